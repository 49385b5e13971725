"""Further lines, made from every allowed command: what may be put behind it, and what may not."""

from __future__ import annotations

import pytest
from connectagent_approve import READ_ONLY
from test_lines import HARMLESS, LINES, run

# Behind any of the commands, each of these does more than the command, or means something else to some shell.
BEHIND = [
    "a;rm -rf b", "a&&rm b", "a||rm b", "a&", "a|tee b", "a >b", "a 2>>b", "<(rm b)", "=(rm b)", "$(rm b)", "`rm b`",
    '"$(rm b)"', "$'\\x3brm b'", "a\nrm b", "a\\\n;rm b", "a #b", "~+", "*", "a?", "[a-z]", "{a,b}", "!-1",
    "a\u2028rm b", "a\x00b", "'a\\''; rm b'", '"a\\"; rm b"', "$((1))", "${a@P}", "-- --output=b", "--", "--output=b",
    "--exec=b", "@(a)", "^a^b", "a\u037erm b", "a \uff06 rm b", "%a% & rm b; rem", "a`u000arm b",
    "a\uff1brm b", "a\ufe54rm b", "\u2010-output=b", "\uff0d\uff0doutput=b", "a\x85rm b", "a\u2029rm b", "a\u202e b;mr",
    "'a\u200bb'", "a\u2060;rm b", "a\xa0-p", "\uff5e/a", "\uff04(rm b)", "a\u2215..\u2215b", "a\ufe0f",
]  # fmt: skip
# Options that run programs, write or wait, also abbreviated, joined and behind harmless ones.
OPTIONS = [
    "git log --outpu=a", "git log --out a", "git log --ext-dif", "git diff --ext", "git diff --textcon",
    "git diff -G a", "git diff --no-ind a b", "git show --textconv a", "git show --ext-diff",
    "git show --format=%x00", "git log -L1,2:a", "git log --textconv", "git log -pO a", "git log -5O",
    "git log -c core.pager=a", "git log --stat --output=a", "git log --graph --color=always", "git log --pretty=a",
    "git log --open-files-in-pager", "git log -G '(a+)+$'", "git status -sbz",
    "git status --short --ignore-submodules=none", "git status -uall", "git status --column=always",
    "git  -c a=b status", "git --no-pager log", "git -P log", "git --paginate log", "git --namespace=a log",
    "git --config-env=a=b log", "git --attr-source=a log", "git --bare log", "git --super-prefix=a status",
    "git --work-tree=/ diff", "git -C a diff", "git --exec-path", "git diff-files --output=a", "git diff-index -O a",
    "git diff-tree a", "git difftool", "git logs", "git show-branch", "git show-ref --exclude-existing",
    "git statusx", "git shortlog -s", "git var GIT_EDITOR", "git rev-parse --git-path a", "git grep -O a",
    "git blame --contents a b", "git cat-file --textconv a", "git cat-file --filters a", "git apply a", "git am a",
    "git stash", "git worktree add a", "git notes add", "git remote add a ext::sh", "git remote show a",
    "git maintenance run", "git hook run a", "git gui", "git web--browse a", "git instaweb", "git daemon",
    "git upload-pack a", "git update-index --a", "git commit", "git commit -m a", "git add .", "git tag a",
    "git mv a b", "git rm a", "git restore a", "git switch a", "cat -u a", "cat -nZ a", "cat --version",
    "cat -nvET --show-all a", "cat -1 a", "cat -n- a", "grep -P '(a+)+$' a", "grep -nrP a b", "grep -z a b",
    "grep -m1f a b", "grep -5f a b", "grep -nf a b", "grep -a a b", "grep --file a b", "grep --fil=a b",
    "grep --f=a b", "grep -d skip a b", "grep --devices=read a b", "grep -R a /", "grep --exclude-from=a b c",
    "grep --exclude-f=a b c", "grep --color=always a b", "grep --line-buffered a b", "egrep a b", "fgrep a b",
    "zgrep a b", "rgrep a b", "rg --pre sh a", "ag --pager sh a", "ack --pager=sh a", "head -z a", "head --bytes=1 a",
    "head -n1f a", "head -qf a", "head --zero-terminated a", "head -x a", "tail -nf a", "tail -5F a", "tail -qf a",
    "tail --retry a", "tail -s1 a", "tail --fol a", "tail -z a", "tailf a", "ls -la --color", "ls -laT1 a",
    "ls --time-style=+%s", "ls -laZ", "ls -laD", "ls --dired", "ls -la --hide=a", "lsof", "ls -lab", "ls -laq",
    "ls --sort=none", "ls --zero", "lsattr a", "lsblk", "ls -laN", "ls --quoting-style=shell a", "pwd -LPx",
    "pwd --logical", "pwdx 1", "wc --files0 a", "wc -cx a", "wc -lf a", "wc --total=only a", "wc -lz a",
    "whoami --help", "whoami -a", "who -a", "id", "w", "last", "hostname a", "uname -a", "dir", "vdir", "tac a",
    "nl a", "od a", "xxd -r a b", "split a", "csplit a 1", "uniq a b", "sort -T a b", "comm a b", "cut -f1 a",
    "tr a b", "rev a",
]  # fmt: skip
NEW = [*(f"{command} {behind}" for command in READ_ONLY for behind in BEHIND), *OPTIONS]
OPERANDS = ["", "README.md", "'a b; c' \"d | e\"", "src/a.py docs/b.md"]
FINE = [
    " ".join(part for part in (command, option, operand) if part)
    for command, options in READ_ONLY.items()
    for option in ["", *options.replace("-#", "-7").split()[:6]]
    for operand in (OPERANDS[1:] if command not in ("pwd", "whoami") else OPERANDS[:1])
]


def test_there_are_enough_lines_and_each_is_another() -> None:
    assert len(set(LINES) | set(NEW)) >= 400 and len(set(NEW) - set(LINES)) >= 150
    assert len({*HARMLESS, *FINE}) >= 150 and not {*HARMLESS, *FINE} & {*NEW, *LINES}


@pytest.mark.parametrize("number", range(20))
def test_none_of_the_new_ones_runs_without_a_question(number: int) -> None:
    assert [line for line in NEW[number::20] if run(command=line) != "rejected"] == []


def test_each_harmless_one_runs_without_a_question() -> None:
    assert [line for line in FINE if run(command=line) != "success"] == []
