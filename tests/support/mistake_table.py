"""Mistakes of users: what is run, and what the error says about the mistake and its remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

AGENT = '''
from connectagent import Agent

def search(query: str) -> str:
    """Search."""
    return "found " + query

agent = Agent("helper", [search], model="offline")
'''
RUN = "run agent.py hi --quiet"
HEAD = '''
from pathlib import Path
from connectagent import Agent, Tool, after_tools, before_llm, llm_do, on_complete

def one(x: int) -> int:
    """One."""
    return x

'''


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Attributes:
        name: what the user did wrong.
        command: the arguments of `connectagent`, as in a shell.
        says: what the error says about it.
        remedy: what the error says about how to mend it.
        files: more files of the folder, or others in place of `agent.py`.
        has_record: whether there was a session before.
        code: the exit code.
        given: more for `mistake_runner.run`.
    """

    name: str
    command: str
    says: str
    remedy: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    has_record: bool = False
    code: int = 1
    given: dict[str, Any] = field(default_factory=dict)


def typed(name: str, command: str, says: str, remedy: str, code: int = 2, **more: Any) -> Mistake:
    """A mistake on the command line, where an agent and its script are fine."""
    return Mistake(name, command, says, remedy, code=code, **more)


def afterwards(name: str, command: str, says: str, remedy: str, code: int = 1) -> Mistake:
    """A mistake with a record, after one session."""
    command += " --script agent.py" if command.startswith("resume") else ""  # its record names the first one's
    return Mistake(name, command, says, remedy, has_record=True, code=code)


def argument(name: str, text: str, says: str, remedy: str, **files: str | bytes) -> Mistake:
    """A wrong argument of `Agent(...)`."""
    return script(name, f"agent = Agent('a', model='offline', {text})", says, remedy, **files)


def script(name: str, text: str, says: str, remedy: str, code: int = 1, command: str = RUN, **files: Any) -> Mistake:
    """A mistake in the script."""
    named = {key.replace("_", "."): value for key, value in files.items()}
    return Mistake(name, command, says, remedy, {"agent.py": f"{HEAD}{text}\n", **named}, code=code)


def project(name: str, text: str, says: str, remedy: str, command: str = RUN) -> Mistake:
    """A mistake in pyproject.toml."""
    return Mistake(name, command, says, remedy, {"pyproject.toml": f"[tool.connectagent]\n{text}\n"})


def surroundings(name: str, command: str, says: str, remedy: str, code: int = 1, **given: Any) -> Mistake:
    """What is wrong is the machine, not the command."""
    return Mistake(name, command, says, remedy, code=code, given=given)


NOT_WRITTEN = "the record cannot be written"
NO_HOME = {"env": {"HOME": "/dev/null/home"}}
ALLOWED = "[tool.connectagent]\nplugins = ['./x.py']\n"
ELSEWHERE = "CONNECTAGENT_DIR can name another folder"

MISTAKES = [
    # -- typed wrongly
    typed("a mistyped command", "rnu agent.py hi", "no command 'rnu'", "Did you mean 'run'?"),
    typed("a command of log without it", "show last", "no command 'show'", "Did you mean 'connectagent log show'?"),
    typed("a command of plugins without it", "doctor", "no command", "Did you mean 'connectagent plugins doctor'?"),
    typed("a script in place of a command", "agent.py hi", "no command", "Did you mean 'connectagent run agent.py'?"),
    typed("a command of a plugin that is not installed", "serve x.py", "connectagent-serve, which is not installed",
          "pip install ./plugins/connectagent-serve"),
    typed("a mistyped command of log", "log shwo", "no command 'shwo'", "Did you mean 'show'?"),
    typed("a mistyped command of plugins", "plugins instal x", "no command", "Did you mean 'install'?"),
    typed("a mistyped option", "run agent.py hi --modle offline", "no option '--modle'", "Did you mean '--model'?"),
    typed("a mistyped script", "run agnt.py hi", "'agnt.py' cannot be read: no such file", "Did you mean 'agent.py'?"),
    typed("a mistyped script for a chat", "chat agnt.py", "no such file", "Did you mean 'agent.py'?"),
    typed("a mistyped hook", "hooks before_lm", "no hook 'before_lm'", "Did you mean 'before_llm'?"),
    typed("a mistyped plugin", "run agent.py hi -p aprove", "no plugin 'aprove' is", "Did you mean 'approve'?", 1),
    typed("a plugin that is not there", "run agent.py hi -p approve", "no plugin", "pip install ./plugins/conn", 1),
    typed("a mistyped plugin file", "run agent.py hi -p ./agnt.py", "there is no plugin file", "agent.py'?", 1),
    typed("a mistyped built-in plugin", "run agent.py hi -p no:consle", "no plugin 'consle'", "'no:console'?", 1),
    typed("a mistyped model", "run agent.py hi --model gtp-5", "unknown model 'gtp-5'", "'openai/gtp-5'", 1),
    typed("a mistyped provider", "run agent.py hi --model opnai/gpt-5", "unknown provider", "'openai/gpt-5'?", 1),
    typed("a mistyped policy", "run agent.py hi --trust somtimes", "is no policy", "'open', 'careful', 'strict'", 1),
    typed("no script", "run", "Missing argument 'SCRIPT'", "connectagent run --help"),
    typed("no check", "eval agent.py agent.py", "Missing option '--check'", "connectagent eval --help"),
    typed("a mistyped check", "eval agent.py agent.py --check exakt", "--check 'exakt' is neither", "'exact'?"),
    typed("a mistyped file of checks", "eval agent.py agent.py --check agnt.py", "no such file", "'agent.py'?"),
    typed("no checks", "eval agent.py agent.py --check agent.py", "begins with check_", "call one of these so", 1),
    typed("a variant without options", "eval agent.py agent.py --check exact --variant x", "no options", "'-p x'"),
    typed("no saved results", "eval agent.py agent.py --check exact --against x.json", "x.json", "eval -o FILE", 1),
    typed("other results", "eval agent.py agent.py --check exact --against agent.py", "no evaluation", "eval -o", 1),
    typed("no prompt", "run agent.py", "the agent needs a prompt", "after the script, or pipe it in"),
    typed("a prompt without quotes", "run agent.py hi there", "extra argument (there)", "in quotes"),
    typed("a word for a number", "run agent.py hi --max-iterations many", "'many' is not a valid whole", "--help"),
    typed("a number that is too small", "run agent.py hi --max-iterations 0", "0 is not in the range", "x>=1"),
    typed("a port that does not exist", "view --port 99999", "99999 is not in the range", "0<=x<=65535"),
    typed("no key", "run agent.py hi --quiet --model gpt-5", "there is no API key", "OPENAI_API_KEY: set it", 1),
    typed("a missing system prompt", "chat --system no.md", "system prompt 'no.md': no such file", "prompts/", 1),
    typed("a bad name of a plugin", "plugins new 'bad name'", "not 'bad name'", "letters, digits and dashes"),
    typed("a folder that is not there", "allow nowhere", "nowhere' is no folder", "connectagent allow --help"),
    typed("nothing was allowed", "allow --revoke", "you have not allowed", "connectagent allow --list", 1),
    typed("no record yet", "log show", "no records yet", "run an agent first", 1),
    typed("nothing to resume", "resume", "no records yet", "run an agent first", 1),
    # -- records
    afterwards("a mistyped record", "log show helpr", "there is no record 'helpr'", "there is: helper"),
    afterwards("a message that is not there", "blame last 99", "there is no message '99'", "has 0 to 1"),
    afterwards("a call that is not there", "log request last 9", "there is no call 9", "has 1 model call"),
    afterwards("nothing waits", "resume last --approve", "nothing waits for a decision", "status is 'answered'"),
    afterwards("two decisions", "resume last --approve a --reject a no", "give one of", "--reject ID WHY", 2),
    afterwards("a turn that is not there", "resume last x --from 9", "no turn or iteration 9", "it has 1, 1.1"),
    afterwards("no number of a turn", "resume last x --from x", "not 'x'", "for example '3' or '3.2'"),
    afterwards("a bad expression", "log grep '('", "'(' is not a regular expression", "missing )", 2),
    afterwards("nothing to keep", "log prune", "say what to keep", "--keep N, --older-than AGE", 2),
    afterwards("an unknown form", "log export last --to pdf", "'pdf' is not one of", "'md', 'jsonl', 'html'", 2),
    afterwards("no folder for a file", "log export last -o no/x.md", "'no/x.md'", "name another file with -o"),
    # -- scripts
    script("no Python", "agent = Agent('a'", "is not Python: line", "was never closed", 2),
    script("no agent", "x = 1", "neither an 'agent' nor", "agent = Agent('helper')", 2),
    script("several agents", "a, b = Agent('a'), Agent('b')", "several agents: a, b", "call the one to run 'agent'", 2),
    script("a main without a prompt", "def main():\n    return 1", "takes no prompt", "run it without one", 2),
    script("a mistyped import", "from connectagent import before_lm", "error: ImportError: connectagent has no",
           "Did you mean 'before_llm'?"),
    script("an empty name", "agent = Agent('')", "an agent's name is a str that is not empty", "not ''"),
    argument("a mistyped argument", "tols=[one]", "Agent() has no argument 'tols'", "Did you mean 'tools'?"),
    argument("a lambda as a tool", "tools=[lambda: 1]", "a lambda cannot be a tool", "Write a 'def'"),
    argument("no tool", "tools=3", "3 of type 'int' cannot be a tool", "Accepted are functions"),
    argument("a tool twice", "tools=[one, one]", "two tools are named 'one'", "Leave one out, or name it otherwise"),
    argument("a handler without a marker", "on_events=[one]", "is not marked for a hook", "(@after_tools)"),
    argument("a text for a number", "max_iterations='3'", "not '3'", "a whole number of model calls"),
    argument("a name for an LLM", "llm='gpt-5'", "not str 'gpt-5'", "a name is given as model='gpt-5'"),
    argument("no prompt file", "system_prompt='prompts/no.md'", "no such file", "or its folder prompts/"),
    argument("bytes for a prompt", "system_prompt=Path('x.md')", "is not UTF-8", "position 3", x_md=b"caf\xe9"),
    script(
        "no type of a parameter",
        "def bare(x):\n    return x\n\nagent = Agent('a', [bare])",
        "parameter 'x' has no type annotation",
        "for example 'x: str'",
    ),
    script("a mistyped parameter", "@before_llm\ndef f(agnt): ...", "parameter 'agnt'", "Did you mean 'agent'?"),
    script("an async handler", "@before_llm\nasync def f(agent): ...", "is async", "connectagent.run_async()"),
    script("a default", "@before_llm\ndef f(request=None): ...", "has a default on 'request'", "drop it"),
    script("a mistyped order", "@before_llm(first=True)\ndef f(agent): ...", "no argument 'first'", "'tryfirst'?"),
    script(
        "a handler that returns the wrong type",
        "@before_llm\ndef f(agent):\n    return 3\n\nagent = Agent('a', model='offline', on_events=[f])",
        "returned int 3",
        "before_llm takes None, LLMResponse, str",
    ),
    script(
        "a handler that raises",
        "@on_complete\ndef f(result):\n    return {}['x']\n\nagent = Agent('a', model='offline', on_events=[f])",
        "KeyError: 'x'",
        "without it: plugins=['no:f']",
    ),
    script("no prompt but a number", "def main():\n    Agent('a').input(3)", "not int: 3", "a prompt is a str",
           command="run agent.py --quiet"),
    script("no plugin of this name", "def main():\n    Agent('a').plugin('x')", "has no plugin 'x'", "It has: none",
           command="run agent.py --quiet"),
    script("ask() outside of a turn", "def main():\n    Agent('a').ask('hi')", "is not in a turn", "see llm_do()",
           command="run agent.py --quiet"),
    # -- settings
    project("a mistyped setting", "modle = 'x'", "no setting 'modle'", "Did you mean 'model'?"),
    project("no number", "max_records = 'many'", "max_records='many' is no limit", "a whole number, or 0 for none"),
    project("no switch", "quiet = 'maybe'", "the setting quiet is 'maybe'", "1 to switch it on", "run agent.py x"),
    project("no list", "plugins = 'approve'", "plugins is a list of names", "not 'approve'"),
    project("no TOML", "model =", "pyproject.toml: cannot be read", "(at line 2, column 8)"),
    project("a bad mask", "mask = '/(/'", "mask: /(/ is no regular expression", "missing )"),
    project("an unknown editor", "editor = 'vim'", "editor is 'vim'", "vscode, cursor, zed", command="view --no-open"),
    surroundings(
        "a mistyped plugin in a variable", RUN, "by the environment variable CONNECTAGENT_PLUGINS", "'approve'?",
        env={"CONNECTAGENT_PLUGINS": "aprove"},
    ),
    # -- the machine
    surroundings("a folder that is read-only", RUN, "Permission denied", ELSEWHERE, 0, without_rights=True),
    surroundings("a read-only folder for a chat", "chat agent.py", NOT_WRITTEN, ELSEWHERE, 0, without_rights=True,
                 stdin="hi\n"),
    surroundings("a read-only folder for a plugin", "plugins new x", "Permission denied", "try another folder", 2,
                 without_rights=True),
    surroundings("a disk that is full", RUN, NOT_WRITTEN, ELSEWHERE, 0, bytes=300),
    surroundings("no space for what is printed", "hooks", "standard output cannot be", "free some space", full=[1]),
    surroundings("no space for the answer", RUN, "standard output cannot be", "free some space", full=[1]),
    surroundings("a file for a folder", RUN, "Not a directory", ELSEWHERE, 0, env={"CONNECTAGENT_DIR": "agent.py"}),
    surroundings("no home", RUN, "", "", 0, **NO_HOME),
    Mistake("no home to allow in", "allow", "cannot be written: Not a directory", "set XDG_STATE_HOME",
            {"pyproject.toml": ALLOWED, "x.py": ""}, given=NO_HOME),
    surroundings("a folder that was removed", "log list", "the current folder was removed", "cd ~", no_folder=True),
    surroundings("a closed standard input", "run agent.py", "needs a prompt", "after the script", 2, closed=[0]),
    surroundings("a closed standard output", RUN, "", "", 0, closed=[1]),
    surroundings("a closed terminal", RUN, "", "", 0, closed=[0, 1, 2]),
]  # fmt: skip
