"""Lines that must not run without a question, whatever tricks they play; and those that must."""

from __future__ import annotations

import random
import shutil
import subprocess
from typing import Any

import pytest
from connectagent_approve import READ_ONLY, REPEATABLE, Approve, _remember, repeatable, words_of

from connectagent import Agent
from connectagent.testing import ScriptedLLM

TRICKS = {
    "more than one command": [
        "ls; rm -rf ~", "ls ;rm -rf ~", "ls;rm -rf ~", "ls && rm -rf ~", "ls || rm -rf ~", "ls & rm -rf ~", "ls &",
        "ls | sh", "ls |& sh", "ls\nrm -rf ~", "ls\r\nrm -rf ~", "ls\rrm -rf ~", "\nrm -rf ~", "ls ;; rm x",
        "cat a; cat b", "pwd;", "git status; git push", "git status && git push --force", "! ls; rm x", "(ls; rm x)",
        "{ ls; rm x; }", "if ls; then rm x; fi", "for f in a; do rm $f; done", "while ls; do rm x; done",
        "ls() { rm -rf ~; }; ls", "function ls { rm x; }", "case a in a) rm x;; esac", "[[ a ]] && rm x",
        "ls 'a'; rm x", 'ls "a"; rm x', "ls 'a';rm x'b'", "ls ';' ; rm x", 'ls ";" & rm x', "cat 'a' | sh",
    ],
    "expansion": [
        "ls $(rm -rf ~)", "ls `rm -rf ~`", 'ls "$(rm -rf ~)"', 'ls "`rm -rf ~`"', "cat <(rm x)", "ls $HOME",
        "ls ${HOME}", 'ls "$HOME"', "ls ${x:=$(rm y)}", "ls ${x:-`rm y`}", "ls $((a[$(rm x)]))", "ls $'a\\x27; rm x'",
        'ls $"a"', "ls ~", "ls ~root/.ssh", "cat ~/.ssh/id_rsa", "ls *", "cat *.env", "cat /etc/pass?d",
        "cat /etc/[p]asswd", "cat {/etc/shadow,a}", "ls @(a|b)", "ls !(a)", "!ls", "!!", "ls !$", "^ls^rm", "ls ^a^b",
        "cat '!rm'", 'cat "!rm"', "$0", "$SHELL -c ls", "${0}", "l$()s", "ls$IFS-la", "cat$IFS/etc/shadow", "git $x",
        "ls a=~", "ls \"a$(rm x)b\"", "ls 'a'$(rm x)'b'", 'ls "a"`rm x`"b"',
    ],
    "redirection": [
        "ls > ~/.bashrc", "ls >> ~/.bashrc", "ls 2> a", "ls &> a", "ls >| a", "ls >& a", "cat < /etc/shadow",
        "cat <> a", "cat << EOF\nrm x\nEOF", "cat <<< x", "> a", ">a ls", "ls>a", "cat a >b",
        "git diff > .git/hooks/pre-commit", "cat evil > .git/config", "head -1 a 1>b", "exec 3<>/dev/tcp/1.2.3.4/80",
        "ls '>' > a",
    ],
    "quotes and escapes": [
        "ls \\; rm x", "ls \\\nrm x", "ls 'a", 'ls "a', "ls 'a' \"b", "ls \\", "l\\s", "'ls' \\; rm", "ls 'a\\' ; rm '",
        "ls 'a\\'' ; rm x '", 'ls "a\\" ; rm x"', "ls # rm", "#ls", "ls\t; rm x", "ls\x00; rm x", "ls\x0b; rm x",
        "ls \x1b[2J", "ls \u202egpj.exe", "ls\u00a0-la", "ls\u2028rm x", "ls\u0085rm x", "\uff4c\uff53",
        "ls \u037e rm x", "ls \uff1b rm x", "\u217cs", "'git status'", "'ls -la'", "'ls' 'a\nrm x'", "ls '\udcff'",
        "''", '""', "", " ", "'' ls",
    ],
    "assignment and program": [
        "A=1 ls", "PATH=/tmp ls", "LD_PRELOAD=./x.so ls", "A=1", "GIT_PAGER=./x git log", "PAGER=x git log",
        "GIT_EXTERNAL_DIFF=./x git diff", "BASH_ENV=x ls", "IFS=x ls", "./ls", "/tmp/ls", "../ls", "bin/cat a",
        "/bin/ls", "LS", "Cat a", "ls.exe", "lsx", "catt a", "-ls", "=ls", ":", ".", ". a", "%1", "+ls", "git",
        "gits status",
    ],
    "wrappers": [
        "sudo ls", "doas ls", "su -c ls", "env ls", "env A=1 sh", "xargs rm", "nohup ls", "time ls", "timeout 5 ls",
        "nice ls", "stdbuf -o0 ls", "setsid ls", "watch ls", "strace ls", "sh -c ls", "bash -c 'rm -rf ~'",
        "bash -lc ls", "zsh -c ls", "dash x", "busybox rm x", "python -c 'import os'", "python3 -c 1",
        "python3.11 x.py", "perl -e 1", "ruby -e 1", "node -e 1", "php -r 1", "eval ls", "exec ls", "command ls",
        "builtin ls", "source a", "/usr/bin/env ls", "/usr/bin/sudo ls", "script -c ls", "ssh host ls",
        "ssh -o ProxyCommand=x host", "docker run a", "npx x", "uvx x", "trap ls EXIT", "awk 'BEGIN{system(1)}'",
        "gawk 1", "sed -n 1e a", "sed -i s/a/b/ c", "sed 's/a/b/e' c", "sed 'w x' a", "tar cf a --to-command=sh b",
        "tar xf a --checkpoint-action=exec=sh", "zip a b -T -TT sh", "find . -delete", "find . -exec rm x +",
        "find . -fprint x", "find / -name a", "fd -x rm", "rsync -e sh a b", "scp -S x a b", "vim -c :q", "less a",
        "man -P sh ls", "crontab a", "at now", "parallel rm",
    ],
    "options and subcommands": [
        "git -c core.pager=x log", "git -C /tmp status", "git --git-dir=x status", "git --exec-path=x status",
        "git -p log", "git diff --output=x", "git diff --output x", "git diff --outp=x", "git log --output=x",
        "git diff --ext-diff", "git log --ext-diff", "git diff --textconv", "git diff --no-index a b", "git diff -Ox",
        "git show --output=x", "git log --open-files-in-pager=x", "git grep -Osh a", "git grep --open-files-in-pager a",
        "git push", "git pull", "git fetch --upload-pack=x", "git clone x", "git co", "git st", "git alias", "git x",
        "git config alias.status '!x'", "git status --unknown", "git -c alias.status=x status", "git branch -D a",
        "git checkout .", "git reset --hard", "git clean -fdx", "git submodule foreach ls", "git bisect run x",
        "git rebase -x ls", "git difftool -x sh", "git archive --exec=x", "git ls-remote --upload-pack=x a",
        "git help status", "git status -- -x", "git diff --stat --ext-diff", "git diff -wO", "git --help", "tail -f a",
        "tail -F a", "tail --follow a", "tail -nf", "tail --pid=1 a", "tail -20f a", "cat -", "cat --help",
        "grep -f a b", "grep --file=a b", "grep -Pr a", "grep -rf a", "grep --include a -f b",
        "grep -D read a /dev/zero", "ls --hyperlink", "ls --col=always", "wc --files0-from=a", "wc --files0-f=a",
        "head -zn1 a", "ls -la=x", "pwd -x", "sort -o a b", "sort --compress-program=x a", "rm a", "mv a b",
        "cp a b", "dd if=a of=b", "tee a", "chmod 777 a", "ln -s a b", "curl x", "wget x", "kill 1", "date -s 1",
        "whoami -x", "cat a '-z'", "ls \"-Z\"", "file -C", "printf -v a b", "echo a", "test -v 'a[1]'", "true", "env",
        "export A=1", "alias ls=rm", "unset a", "cd /", "set -x", "shopt -s a", "hash -p /tmp/x ls", "enable -f a b",
        "type ls", "umask 0", "ulimit 0",
    ],
}  # fmt: skip
LINES = [line for lines in TRICKS.values() for line in lines]

HARMLESS = [
    "ls", "ls -la", "ls -l -a src", " ls ", "ls  src", "cat README.md", "cat -n a b", "cat 'a file'", 'cat "a; b | c"',
    "cat 'it $(is) `one` word'", "cat src/a.py docs/b.md", "cat a=b", "cat 'Größe.txt'", "pwd", "pwd -P", "whoami",
    "head a", "head -20 a", "head -n 20 a", "head -n20 a", "tail -5 a", "tail -c 100 a", "wc -l a", "wc -lw a b",
    "grep foo a", "grep -rn foo src", "grep -rn 'foo|bar; baz' src", "grep -A3 foo a", "grep -5 foo a",
    "grep -e a -e b c", "grep --include='*.py' -r foo .", "grep -rn --exclude-dir=.git x .", "git status",
    "git status -sb", "git status --porcelain", "git diff", "git diff --stat", "git diff HEAD",
    "git diff --cached src/a.py", "git log", "git log -5", "git log -n 5 --oneline",
    "git log --since='2 weeks' --author=ada", "git show", "git show --stat HEAD", "git show HEAD:src/a.py",
    "git diff HEAD~1", "git diff --stat HEAD~1 src/a.py", "git log HEAD~3", "git diff HEAD~2..HEAD~1",
]  # fmt: skip

PLUGIN = Approve()
ran: list[str] = []


def bash(command: str, timeout: Any = 10, cwd: str = ".", env: str = "") -> str:
    """Run a command."""
    ran.append(command)
    return "ok"


def run(plugin: Any = PLUGIN, always: list[str] | None = None, **arguments: Any) -> str:
    """The status of a call of the shell tool, where there is nobody to ask."""
    ran.clear()
    agent = Agent("helper", [bash], llm=ScriptedLLM("Hello."), plugins=[plugin], log=False, quiet=True)
    agent.input("Hi")
    assert agent.current_session is not None
    agent.current_session["state"]["approve"] = {"always": ["bash", f"bash: {arguments.get('command')}"]}  # no answers
    for answer in always or ():
        _remember(agent, "always", answer)
    entry = agent.execute_tool("bash", arguments)
    assert bool(ran) == (entry["status"] == "success")
    return str(entry["status"])


def test_there_are_200_tricks_and_each_is_another() -> None:
    assert len(LINES) >= 200
    assert len(set(LINES)) == len(LINES)


@pytest.mark.parametrize("line", LINES, ids=ascii)
def test_a_trick_does_not_run_without_a_question(line: str) -> None:
    assert run(command=line) == "rejected"


@pytest.mark.parametrize("line", HARMLESS, ids=ascii)
def test_a_harmless_line_runs_without_a_question(line: str) -> None:
    assert run(command=line) == "success"


@pytest.mark.parametrize("line", LINES, ids=ascii)
def test_a_trick_does_not_run_because_an_ordinary_command_always_may(line: str) -> None:
    always = [f"bash: {command} ..." for command in [*REPEATABLE, *READ_ONLY]]
    assert run(always=[*always, "bash: ls", "bash: ", "bash"], command=line) == "rejected"


@pytest.mark.parametrize(
    "kind", ["more than one command", "expansion", "redirection", "quotes and escapes", "wrappers"]
)
def test_always_remembers_nothing_of_a_trick(kind: str) -> None:
    assert [line for line in TRICKS[kind] if repeatable(line)] == []


@pytest.mark.parametrize(
    ("line", "remembered"),
    [
        ("git commit -m 'a message'", "git commit ..."),
        ("git commit -am x", "git commit ..."),
        ("git add .", "git add ..."),
        ("npm test", "npm test ..."),
        ("pytest -q tests", "pytest ..."),
        ("make test", "make test"),
        ("rm -r build", "rm -r build"),
        ("./build.sh", "./build.sh"),
        ("git commit --amend", None),
        ("git commit -F a", None),
        ("git push", None),
        ("git add . && git push", None),
        ("pytest -p evil", "pytest -p evil"),
        ("A=1 make", None),
        ("/usr/local/bin/python3.11 x.py", None),
        ("FOO+=1 make", None),
    ],
)
def test_always_remembers_a_command_or_the_exact_line(line: str, remembered: str | None) -> None:
    assert repeatable(line) == remembered


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_a_shell_reads_the_same_words_in_every_line_that_is_understood(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    dice = random.Random(shell)
    pieces = [*"abc'\"' \" -=/.,:@%+ |;&$`\\<>(){}*?[]~#!^\n\t", "ls ", "'a'", '"b"', "''", "\u00e9", " 'x|y' "]
    lines = ["".join(dice.choices(pieces, k=dice.randint(1, 12))) for _ in range(60_000)]
    understood = [(line, words) for line in lines if (words := words_of(line))]
    assert len(understood) > 1000
    # Were one of them more than words, what is printed would not be the words of all of them in their order.
    script = "\n".join(f"printf '%s\\0' 'line' {line}" for line, _ in understood)
    printed = subprocess.run([shell], input=script, capture_output=True, text=True, timeout=60)
    assert printed.stderr == ""
    assert printed.stdout.split("\0")[:-1] == [word for _, words in understood for word in ["line", *words]]


def test_what_always_may_run_is_no_more_than_was_said() -> None:
    always = ["bash: git commit ...", "bash: rm -r build"]
    assert run(always=always, command="git commit -m 'another'") == "success"
    assert run(always=always, command="rm -r build") == "success"
    for line in ("rm -r build src", "rm  -r build", "git commit -F a", "git commit -m a; rm b"):
        assert run(always=always, command=line) == "rejected"


def test_arguments_beside_the_command_are_judged_too() -> None:
    assert run(command="ls", timeout=5) == "success"
    beside: list[dict[str, Any]] = [{"cwd": "/evil"}, {"env": "PATH=/evil"}, {"timeout": "5; rm x"}]
    for more in beside:
        assert run(command="ls", **more) == "rejected"
        assert run(always=["bash: git add ..."], command="git add .", **more) == "rejected"
    assert run(cmd="ls", command="rm x") == "rejected"


def test_allow_takes_other_commands_with_their_options() -> None:
    plugin = Approve(allow={"pytest": "-q -x", "cargo tree": ""})
    assert [run(plugin, command=line) for line in ("pytest", "pytest -qx tests", "cargo tree")] == ["success"] * 3
    assert [run(plugin, command=line) for line in ("pytest -p evil", "cargo", "ls")] == ["rejected"] * 3
    assert run(Approve(allow={}), command="ls") == "rejected"
