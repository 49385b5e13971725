"""Asks at the terminal before a tool does what cannot be undone.

A shell command is judged as the whole line that it is: what is not understood to the last character is
asked about. The options are on `Approve`. What was answered is kept for one agent and session in this process, where no
plugin, tool or record can add to it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from connectagent import ConfigError, ToolCall, ToolRejected, after_each_tool, arguments_text, before_each_tool
from connectagent.output import can_ask, forget_typed, one_question

if TYPE_CHECKING:
    from connectagent import Agent, Tool

# Commands, each with its harmless options. `-#` is a number, as in `head -20`; letters may be joined, as in `ls -la`.
# Left out on purpose: what writes (`git diff --output`), runs programs (`--ext-diff`) or never ends (`tail -f`).
READ_ONLY: Mapping[str, str] = {
    "cat": "-A -b -e -E -n -s -t -T -v",
    "grep": "-# -A -B -c -C -e -E -F -h -H -i -l -L -m -n -o -q -r -s -v -w -x --include --exclude --exclude-dir",
    "head": "-# -c -n -q -v",
    "ls": "-1 -a -A -d -F -h -i -l -p -r -R -s -S -t",
    "pwd": "-L -P",
    "tail": "-# -c -n -q -v",
    "wc": "-c -l -L -m -w",
    "whoami": "",
    "git diff": "-w --cached --name-only --name-status --staged --stat",
    "git log": "-# -n -p --all --author --graph --oneline --since --stat --until",
    "git show": "-s --name-only --oneline --stat",
    "git status": "-b -s --branch --porcelain --short",
}
# What "always" remembers as a command, whatever its operands; of other simple commands it remembers the exact line.
# `git push` and `git pull` are not here: `git push origin +main` needs no option to do harm.
REPEATABLE: Mapping[str, str] = {
    "cargo build": "-q -v --release",
    "cargo check": "-q -v",
    "cargo test": "-q -v",
    "git add": "-A -u --all",
    "git commit": "-a -m -q --all --message",
    "git switch": "-c",
    "go build": "-v",
    "go test": "-v",
    "npm ci": "",
    "npm test": "",
    "pytest": "-k -q -s -v -x --lf",
}
# Their operands are programs, or hosts: "always" remembers no line of them.
_RUN_OTHERS = """
    ash at awk bash batch builtin busybox chroot command coproc crontab csh dash deno doas docker ed emacs env eval
    ex exec expect fd find fish flatpak gawk gdb git ionice ksh kubectl less lua man mawk more nawk nice node nohup
    npx nsenter osascript parallel perl php podman pwsh python rsync ruby scp script sed setsid sftp sh source ssh
    stdbuf strace su sudo systemd-run tar tclsh time timeout trap unshare uvx vi vim watch xargs zip zsh .
"""
# One simple command in a POSIX shell: no operator, redirection, expansion, escape or comment. Neither `\` nor `!`
# inside quotes, which fish and csh read otherwise. `~` is a home at the beginning of a word and after `:` and `=`, but
# plain behind a letter or digit, as in `HEAD~1`.
_SIMPLE = re.compile(r"""(?:[A-Za-z0-9_./:=,@%+\ -]|(?<=[A-Za-z0-9_])~|'[^'\\!]*'|"[^"$`\\!]*")*""")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")  # not `A=1`, which would be an assignment

_SHELL_WORDS = {"bash", "cmd", "command", "exec", "execute", "powershell", "run", "sh", "shell", "terminal", "zsh"}
_SHELL_PARAMETERS = ("command", "cmd")
# Arguments that cannot change what a line does; `cwd` and `env` can.
_BESIDE: Mapping[str, type] = {"description": str, "timeout": int, "timeout_ms": int, "timeout_s": int}
_WORD = re.compile(r"\w+")
_LIKE_LATIN = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")  # scripts with letters that look like Latin ones
_SHOWN = 10_000  # characters of an argument that the user is shown


@dataclass(frozen=True)
class Approve:
    """The plugin: `Agent(plugins=["approve"])`, or with options `Agent(plugins=[Approve(risky={"bash"})])`.

    Args:
        risky: names of the tools that are asked about; None for all that are not `@tool(read_only=True)`.
        safe: names of tools that are never asked about.
        shell: for each tool that takes a shell command, the parameter that holds it; None recognises tools
            that are named like `bash` or `run_command` and have a parameter `command` or `cmd`.
        allow: commands that run without a question, each with its harmless options; a whole line must be one.

    Raises:
        ConfigError: an option is of another type, or a tool is both risky and safe.
    """

    changes = ("rejection",)

    risky: Collection[str] | None = None
    safe: Collection[str] = ()
    shell: Mapping[str, str] | None = None
    allow: Mapping[str, str] = field(default_factory=lambda: READ_ONLY)
    name: ClassVar[str] = "approve"

    def __post_init__(self) -> None:
        for option in ("risky", "safe"):
            if isinstance(value := getattr(self, option), str):
                raise ConfigError(f"approve: {option}={value!r} is one str; give names, {option}={{{value!r}}}")
        for option, value in (("shell", self.shell or {}), ("allow", self.allow)):
            if not isinstance(value, Mapping):
                raise ConfigError(f"approve: {option}={value!r} is no dict, such as {{'name': 'text'}}")
        if both := set(self.risky or ()) & set(self.safe):
            raise ConfigError(f"approve: {', '.join(sorted(both))} cannot be both risky and safe")

    @before_each_tool(trylast=True)  # so that it sees the arguments that other handlers leave
    def ask(self, agent: Agent, tool_call: ToolCall) -> None:
        """Let the call run, with the user's arguments or the model's, or reject it.

        Raises:
            ToolRejected: the user said no, or there is nobody to ask.
        """
        tool = agent.tools.get(tool_call.name)
        if tool is None or tool_call.error or not self._is_risky(tool):
            return  # of the first two, none will run
        line = self._line(tool_call)
        if line is not None and covering(line, self.allow):
            return
        memory = _memory(tool_call, line)
        with one_question():
            if memory in _answers(agent, "always"):
                return
            if not can_ask():
                raise ToolRejected(self._nobody(tool_call, line))
            self._decide(agent, tool_call, memory)

    @after_each_tool
    def tell(self, agent: Agent, tool_call: ToolCall, result: Any) -> str | None:
        """Tell the model that the user changed its arguments: it would draw wrong conclusions from the result."""
        if tool_call.id not in _answers(agent, "edited"):
            return None
        _answers(agent, "edited").remove(tool_call.id)
        note = f"(the user changed the arguments to {arguments_text(tool_call.arguments)})"
        return f"{result}\n{note}" if isinstance(result, str) else None

    def _is_risky(self, tool: Tool) -> bool:
        if tool.name in self.safe:
            return False
        return not tool.read_only if self.risky is None else tool.name in self.risky

    def _line(self, tool_call: ToolCall) -> str | None:
        """The command of a shell tool; None for other tools, "" where the call holds more than a command."""
        if self.shell is not None:
            parameter = self.shell.get(tool_call.name)
        else:
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", tool_call.name)
            named = _SHELL_WORDS & {word.lower() for word in words}
            parameter = next((name for name in _SHELL_PARAMETERS if named and name in tool_call.arguments), None)
        if parameter is None:
            return None
        line = tool_call.arguments.get(parameter)
        others = {name: value for name, value in tool_call.arguments.items() if name != parameter}
        alone = all(isinstance(value, _BESIDE.get(name, ())) for name, value in others.items())
        return line if isinstance(line, str) and alone else ""

    def _nobody(self, tool_call: ToolCall, line: str | None) -> str:
        reason = f"{tool_call.name!r} needs a person's consent, and there is no terminal to ask at. "
        if line is not None and self.allow:
            commands = ", ".join(sorted(self.allow))
            reason += f"These run without it, one to a call, without pipes, redirections and expansions: {commands}. "
        return reason + "Go on without it, or tell the user what you would have done."

    def _decide(self, agent: Agent, tool_call: ToolCall, memory: str | None) -> None:
        """Ask until there is an answer, and do what it says."""
        _say("", f"{agent.name} wants to call {tool_call.name}")
        for name, value in tool_call.arguments.items():
            _say(f"  {name}:", *_wrapped(value if isinstance(value, str) else arguments_text(value)))
        always = f"[a] always in this session: {_clipped(memory)}, " if memory else ""
        while True:
            answer = _read(f"[y] once, {always}[e] edit the arguments, [n] no: ")
            if answer in ("y", "yes"):
                return
            if answer in ("a", "always") and memory:
                _remember(agent, "always", memory)
                return
            if answer in ("e", "edit") and (edited := _edited(tool_call)) is not None:
                tool_call.arguments = edited
                _remember(agent, "edited", tool_call.id)
                return
            if answer in ("n", "no", None):
                raise ToolRejected(_reason(tool_call))


# By agent: the session that the answers were given in, and the answers.
_given: WeakKeyDictionary[Any, tuple[Any, dict[str, list[str]]]] = WeakKeyDictionary()


def _answers(agent: Agent, kind: str) -> list[str]:
    """What the user answered in this session: `always`, what may always run; `edited`, ids of calls."""
    session, answers = _given.get(agent, (None, {}))
    return answers.get(kind, []) if session is not None and session is agent.current_session else []


def _remember(agent: Agent, kind: str, item: str) -> None:
    session, answers = _given.get(agent, (None, {}))
    if session is not agent.current_session:
        answers = {}
        _given[agent] = (agent.current_session, answers)
    answers.setdefault(kind, []).append(item)


def _memory(tool_call: ToolCall, line: str | None) -> str | None:
    """What "always" would remember: the tool, or of a shell tool the command; None where nothing may be remembered."""
    if line is None:
        return tool_call.name
    repeated = repeatable(line)
    return f"{tool_call.name}: {repeated}" if repeated else None


# -- judging a line ------------------------------------------------------------------------------


def words_of(line: str) -> list[str]:
    """The words of a line that is one simple command without expansions; [] for every other line."""
    return shlex.split(line) if line.isprintable() and _SIMPLE.fullmatch(line) else []


def covering(line: str, commands: Mapping[str, str]) -> str | None:
    """The command that a whole line is a harmless form of.

    Args:
        line: what a shell would be given.
        commands: for each command, a program or a program and its subcommand, the options that are harmless.

    Returns:
        The key of `commands`, or None where no command covers the line.
    """
    words = words_of(line)
    for command in sorted(commands, key=len, reverse=True):
        head = command.split()
        if head == words[: len(head)]:
            harmless = commands[command].split()
            options = [word for word in words[len(head) :] if word.startswith("-")]
            return command if all(_is_among(option, harmless) for option in options) else None
    return None


def _is_among(option: str, harmless: Collection[str]) -> bool:
    """Whether an option is harmless: `--name=value`, letters that are joined, or a number where `-#` is."""
    name, equals, _ = option.partition("=")
    if name in harmless:
        return not equals or name.startswith("--")
    if re.fullmatch(r"-[0-9]+", option):
        return "-#" in harmless
    joined = re.fullmatch(r"-([A-Za-z0-9]+?)[0-9]*", option)
    return joined is not None and all(f"-{letter}" in harmless for letter in joined[1])


def repeatable(line: str) -> str | None:
    """What "always" remembers of a line: `git commit ...`, the exact line, or None, which is nothing."""
    if command := covering(line, REPEATABLE):
        return f"{command} ..."
    words = words_of(line)
    if not words or not _PROGRAM.fullmatch(words[0]):
        return None
    program = re.sub(r"[0-9.]+$", "", PurePosixPath(words[0]).name) or "."  # python3.11
    return None if program in _RUN_OTHERS.split() else line


# -- at the terminal -----------------------------------------------------------------------------


def _say(*lines: str, end: str = "\n") -> None:
    print("\n".join(map(_visible, lines)), end=end, file=sys.stderr, flush=True)


def _visible(text: str) -> str:
    """Text without a character that a terminal would obey: arguments cannot hide or fake the question."""
    shown = "".join(one if one.isprintable() else _escaped(one) for one in text)
    return shown if shown.isascii() else _WORD.sub(_spelled, shown)


def _spelled(word: re.Match[str]) -> str:
    """A word in which letters that pass for Latin ones are escaped, if it has Latin ones too."""
    if word[0].isascii() or not any(one.isascii() and one.isalpha() for one in word[0]):
        return word[0]
    return "".join(_escaped(one) if _passes_for_another(one) else one for one in word[0])


def _passes_for_another(sign: str) -> bool:
    if sign.isascii():
        return False
    is_other_form = unicodedata.normalize("NFKC", sign).isascii()  # such as a wide letter
    return is_other_form or unicodedata.name(sign, "").startswith(_LIKE_LATIN)


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode()


def _wrapped(text: str) -> list[str]:
    """A text as lines that all bear a mark, so that none of them can pass for one of the question's own."""
    room = max(20, shutil.get_terminal_size().columns - 5) // (1 if text.isascii() else 2)
    lines = [_visible(line) for line in text[:_SHOWN].splitlines() or [""]]
    parts = [line[start : start + room] for line in lines for start in range(0, max(1, len(line)), room)]
    more = [f"  ({len(text) - _SHOWN} more characters are not shown)"] if len(text) > _SHOWN else []
    return [f"  | {part}" for part in parts] + more


def _clipped(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(question: str) -> str | None:
    """What the user types, stripped; None at the end of input. Ctrl-C goes its own way."""
    forget_typed()
    _say(question, end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


def _reason(tool_call: ToolCall) -> str:
    why = _read("Why not? The model reads it (Enter: no reason): ")
    refused = f"the user said no to this call of {tool_call.name!r}"
    return f"{refused}: {why}" if why else f"{refused}. Do not repeat it; ask what the user wants, or go on without it."


def _edited(tool_call: ToolCall) -> dict[str, Any] | None:
    """The arguments as the user wants them; None where what was typed is no JSON object."""
    _say("Arguments now:", *_wrapped(arguments_text(tool_call.arguments)))
    typed = _read("New arguments, as JSON on one line (Enter: back): ")
    if not typed:
        return None
    try:
        value = json.loads(typed)
    except ValueError as error:
        _say(f"That is no JSON: {error}")
        return None
    if isinstance(value, dict):
        return value
    _say('That is no JSON object: give all arguments, for example {"path": "notes.txt"}')
    return None
