"""The command line: what it prints, what it exits with, and that no mistake costs more than five lines."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

from connectagent import __version__
from connectagent.cli.commands import COMMANDS
from connectagent.commands.failure import lines_of
from connectagent.hooks.specs import HOOKS, PARAMETERS
from connectagent.models.names import PROVIDERS

ROOT = Path(__file__).parents[2]
ECHO = """
from connectagent import Agent, LLMResponse

class Echo:
    model = "echo"

    def complete(self, messages, tools=None):
        return LLMResponse("you said " + messages[-1]["content"])
"""
AGENT = f"{ECHO}\nagent = Agent('parrot', llm=Echo())\n"


def environment(folder, **variables):
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("STUB", "") + str(ROOT),
        "HOME": str(folder),
        **variables,
    }


def co(folder, *arguments, stdin="", **variables):
    """Run `connectagent` in a folder, with no key and an empty home."""
    return forked.run(
        "-m", "connectagent", *arguments, cwd=folder, env=environment(folder, **variables), input=stdin, timeout=60
    )


def script(folder, text, name="agent.py"):
    (folder / name).write_text(text, encoding="utf-8")
    return name


def assert_told(done, code, *words):
    """An error that is told in at most five lines, without a traceback and not on stdout."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 5, done.stderr
    for word in words:
        assert word in done.stderr
    assert done.stdout == ""


# -- version, help, what is loaded ---------------------------------------------------------------


def test_the_version_is_the_project_s(tmp_path):
    done = co(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"connectagent {__version__}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", __version__)


def test_the_version_takes_at_most_five_times_as_long_as_python_itself(tmp_path):
    def took(*arguments):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment(tmp_path), capture_output=True, check=True)
        return time.perf_counter() - started

    took("-m", "connectagent", "--version")
    pairs = [(took("-m", "connectagent", "--version"), took("-c", "pass")) for _ in range(7)]
    ours, python = (min(column) for column in zip(*pairs, strict=True))  # the machine may be busy
    assert ours <= 5 * python


@pytest.mark.parametrize(
    ("argument", "not_loaded"),
    [
        ("--version", "click openai anthropic pydantic rich yaml"),
        ("--help", "openai anthropic pydantic rich yaml"),
        ("hooks", "openai anthropic pydantic rich yaml"),
    ],
)
def test_what_is_not_needed_is_not_loaded(argument, not_loaded, tmp_path):
    code = (
        "import sys, connectagent.cli as cli; cli.main(sys.argv[1:]); "
        f"print([name for name in {not_loaded.split()} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, argument], env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.stderr == "[]\n"


def test_help_lists_every_command(tmp_path):
    done = co(tmp_path, "--help")
    assert done.returncode == 0
    assert [name for name in COMMANDS if f"  {name} " not in done.stdout] == []


@pytest.mark.parametrize("command", list(COMMANDS))
def test_each_command_has_its_help(command, tmp_path):
    done = co(tmp_path, command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: connectagent {command}")


def test_an_unknown_command_is_told_with_the_one_that_was_meant(tmp_path):
    assert_told(co(tmp_path, "hoks"), 2, "no command 'hoks'", "Did you mean 'hooks'")
    assert_told(co(tmp_path, "agent.py"), 2, "connectagent run agent.py")


def test_an_unknown_option_is_a_usage_error(tmp_path):
    assert_told(co(tmp_path, "demo", "--fast"), 2, "--fast")


def test_an_installed_plugin_brings_commands_and_a_broken_one_costs_only_its_own(tmp_path):
    for name, text in (
        ("good", "import click\nfrom connectagent import register_commands\n\n@register_commands\ndef add(cli):\n"
         "    cli.add_command(click.Command('greet', callback=lambda: print('hello')))\n"
         "    cli.add_command(click.Command('demo', callback=lambda: print('not this one')))\n"),
        ("broken", "raise OSError('no disk')\n"),
    ):  # fmt: skip
        script(tmp_path, text, f"{name}_plugin.py")
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[connectagent]\n{name} = {name}_plugin\n")
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    greeted = co(tmp_path, "greet", **path)
    assert (greeted.returncode, greeted.stdout) == (0, "hello\n")
    assert greeted.stderr == ""
    assert "Watch an agent" in co(tmp_path, "demo", "--help", **path).stdout


def test_a_reader_that_has_gone_is_no_error(tmp_path):
    script(tmp_path, "def main():\n    for _ in range(100_000):\n        print('line')\n")
    command = f"{sys.executable} -m connectagent run agent.py | head -1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("line\n", "")


# -- hooks ---------------------------------------------------------------------------------------


def test_the_hooks_are_listed_with_their_parameters(tmp_path):
    done = co(tmp_path, "hooks")
    assert [name for name in HOOKS if f"  {name}({', '.join(PARAMETERS[name])})" not in done.stdout] == []
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", ["on_error", "on-error", "@on_error"])
def test_the_contract_of_a_hook_is_its_spec(name, tmp_path):
    done = co(tmp_path, "hooks", name)
    assert "def handler(agent, error, tool_call, request, attempt):" in done.stdout
    assert "Retry: the call is made again" in done.stdout


def test_an_unknown_hook_is_told_with_the_one_that_was_meant(tmp_path):
    assert_told(co(tmp_path, "hooks", "after_tool"), 2, "no hook 'after_tool'", "Did you mean 'after_tools'")


# -- run -----------------------------------------------------------------------------------------


def test_the_result_of_an_agent_is_what_stdout_holds(tmp_path):
    done = co(tmp_path, "run", script(tmp_path, AGENT), "hello")
    assert (done.returncode, done.stdout) == (0, "you said hello\n")
    assert list(tmp_path.glob(".co/evals/parrot_*.yaml"))


@pytest.mark.parametrize("arguments", [["-"], []])
def test_the_prompt_is_read_from_a_pipe(arguments, tmp_path):
    done = co(tmp_path, "run", script(tmp_path, AGENT), *arguments, stdin="from a pipe\n")
    assert done.stdout == "you said from a pipe\n"


@pytest.mark.parametrize(
    ("main", "arguments", "stdin", "printed"),
    [
        ("def main():\n    return 7", [], "unread", "7\n"),
        ("def main():\n    print('done')", [], "", "done\n"),
        ("def main(prompt):\n    return prompt[::-1]", ["abc"], "", "cba\n"),
        ("def main(prompt):\n    return prompt[::-1]", [], "abc", "cba\n"),
        ("def main(prompt='x'):\n    return prompt", [], "unread", "x\n"),
        ("async def main(prompt):\n    return prompt", ["abc"], "", "abc\n"),
    ],
)
def test_a_main_is_given_the_prompt_if_it_takes_one(main, arguments, stdin, printed, tmp_path):
    done = co(tmp_path, "run", script(tmp_path, main), *arguments, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_only_agent_needs_no_particular_name_and_of_several_agent_is_the_one(tmp_path):
    assert co(tmp_path, "run", script(tmp_path, AGENT.replace("agent =", "parrot =")), "a").stdout == "you said a\n"
    two = f"{AGENT}\nother = Agent('other', llm=Echo())\n"
    assert co(tmp_path, "run", script(tmp_path, two), "a").stdout == "you said a\n"


def test_a_script_runs_as_it_would_by_its_own_name(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    script(folder, "VALUE = 'from beside'", "beside.py")
    text = (
        "import sys, beside\nfrom dataclasses import dataclass\n\n@dataclass\nclass Point:\n    x: 'int'\n\n"
        "def main():\n    return f'{beside.VALUE} {sys.argv} {Point(1)}'\n\n"
        "if __name__ == '__main__':\n    raise SystemExit('started twice')\n"
    )
    done = co(tmp_path, "run", f"inner/{script(folder, text)}")
    assert done.stdout == "from beside ['inner/agent.py'] Point(x=1)\n"


def test_the_model_of_the_command_line_wins_over_the_script_s(tmp_path):
    done = co(tmp_path, "run", script(tmp_path, AGENT), "hello", "--model", "offline")
    assert done.stdout.startswith("[offline]")
    named = "from connectagent import Agent\nagent = Agent('a', model='gpt-5')\n"
    assert co(tmp_path, "run", script(tmp_path, named), "hi", "--model", "offline").stdout.startswith("[offline]")


def test_quiet_leaves_the_result_alone_on_the_terminal(tmp_path):
    assert "parrot" in co(tmp_path, "run", script(tmp_path, AGENT), "hello").stderr
    done = co(tmp_path, "run", "agent.py", "hello", "--quiet")
    assert (done.stdout, done.stderr) == ("you said hello\n", "")


def test_a_plugin_file_joins_every_agent_of_the_script(tmp_path):
    script(
        tmp_path,
        "from connectagent import on_complete\n\n@on_complete\ndef loud(result):\n    return result.upper()\n",
        "loud.py",
    )
    done = co(tmp_path, "run", script(tmp_path, AGENT), "hello", "-p", "./loud.py")
    assert done.stdout == "YOU SAID HELLO\n"


RAISING = "from connectagent import on_complete\n\n@on_complete\ndef broken(result):\n    return {}['no key']\n"


def test_the_error_of_a_plugin_is_told_with_the_plugin_s_line(tmp_path):
    script(tmp_path, RAISING, "broken.py")
    done = co(tmp_path, "run", script(tmp_path, AGENT), "hello", "--quiet", "-p", "./broken.py")
    assert_told(done, 1, "KeyError: 'no key'", f"{tmp_path / 'broken.py'}:5 in broken: return {{}}['no key']")
    assert "hooks.py" not in done.stderr and "click" not in done.stderr


@pytest.mark.parametrize("place", ["command line", "project"])
def test_a_script_that_is_its_own_plugin_is_an_error(place, tmp_path):
    text = f"from connectagent import on_complete\n{AGENT}\n@on_complete\ndef loud(result):\n    return '!'\n"
    if place == "project":
        (tmp_path / "pyproject.toml").write_text("[tool.connectagent]\nplugins = ['./agent.py']\n")
    options = ["-p", "./agent.py"] if place == "command line" else []
    done = co(tmp_path, "run", *options, script(tmp_path, text), "hello")
    assert_told(done, 1, "agent.py' makes an agent while it is being loaded")


def test_a_plugin_is_left_out_built_in_ones_too(tmp_path):
    done = co(tmp_path, "run", script(tmp_path, AGENT), "hello", "-p", "no:record", "-p", "no:console")
    assert (done.stdout, done.stderr) == ("you said hello\n", "")
    assert not list(tmp_path.glob(".co/evals/*"))


def test_a_script_that_exits_exits_with_its_own_code(tmp_path):
    done = co(tmp_path, "run", script(tmp_path, "import sys\n\ndef main():\n    sys.exit(7)\n"))
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["'agent.py' cannot be read: no such file"]),
        ("def main(:\n", ["is not Python: line 1"]),
        ("\x00\x00", ["is not Python"]),
        ("x = 1\n", ["neither an 'agent' nor a function 'main'"]),
        ("agent = 'me'\n", ["'agent' is not an Agent but str 'me'"]),
        (AGENT.replace("agent =", "a = Agent('b', llm=Echo())\nc ="), ["several agents: a, c"]),
        ("def main():\n    return 1\n", ["takes no prompt"]),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(text, words, tmp_path):
    if text is not None:
        script(tmp_path, text)
    assert_told(co(tmp_path, "run", "agent.py", "hello"), 2, *words)


def test_the_agent_around_all_others_is_the_one_to_run(tmp_path):
    inner, outer = "helper = Agent('inner', llm=Echo())\n", "boss = Agent('outer', [helper], llm=Echo())\n"
    script(tmp_path, AGENT[: AGENT.index("agent =")] + inner + outer)
    done = co(tmp_path, "run", "agent.py", "hello")
    assert done.returncode == 0, done.stderr
    assert "outer" in done.stderr and "inner" not in done.stderr


def test_a_folder_and_a_picture_are_no_scripts(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    assert_told(co(tmp_path, "run", "."), 2, "Is a directory")
    assert_told(co(tmp_path, "run", "picture.png"), 2, "is not Python")


@pytest.mark.parametrize("arguments", [["-"], [], [" "]])
def test_an_empty_prompt_is_a_usage_error(arguments, tmp_path):
    assert_told(co(tmp_path, "run", script(tmp_path, AGENT), *arguments), 2, "needs a prompt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model='gpt-5'", ["OPENAI_API_KEY"]),
        ("model='claude-sonnet-4-5'", ["ANTHROPIC_API_KEY"]),
        ("model='gtp-5'", ["unknown model 'gtp-5'"]),
        ("model='opnai/gpt-5'", ["unknown provider 'opnai'", "Did you mean 'openai/gpt-5'"]),
        ("model='co/x'", ["CONNECTAGENT_GATEWAY_URL"]),
        ("system_prompt='prompts/missing.md'", ["prompts/missing.md", "no such file"]),
        ("system_prompt=Path('missing.md')", ["missing.md", "no such file"]),
        ("tools=[bare]", ["bare", "x"]),
        ("tools=[one, lambda: None]", ["lambda"]),
        ("tools=[one, other]", ["'one'"]),
        ("tools=3", ["3"]),
        ("on_events=[one]", ["'one'", "not marked"]),
        ("plugins=['aprove']", ["no plugin 'aprove'"]),
        ("plugins=['no:consle']", ["consle"]),
        ("trust='maybe.md'", []),
    ],
)
def test_a_mistake_in_a_script_is_told_in_five_lines(arguments, words, tmp_path):
    text = (
        "from pathlib import Path\nfrom connectagent import Agent, Tool\n\ndef bare(x):\n    return x\n\n"
        "def one(x: int) -> int:\n    return x\n\nother = Tool('one', 'Another.', {'type': 'object'}, one)\n"
        f"agent = Agent('a', quiet=True, {arguments})\n"
    )
    assert_told(co(tmp_path, "run", script(tmp_path, text), "hello"), 1, *words)


def test_every_provider_whose_key_is_missing_names_its_variable(tmp_path):
    text = "import sys\nfrom connectagent import Agent, ProviderError\n\ndef main():\n"
    text += (
        f"    for name in {[name for name, provider in PROVIDERS.items() if provider.key_variable and name != 'co']}:\n"
    )
    text += "        try:\n            Agent('a', model=f'{name}/m', quiet=True, log=False).input('x')\n"
    text += "        except ProviderError as error:\n            print(name, error.kind, error)\n"
    done = co(tmp_path, "run", script(tmp_path, text))
    for name, provider in PROVIDERS.items():
        if provider.key_variable and name != "co":
            assert f"{name} auth" in done.stdout
            assert provider.key_variable in done.stdout


def test_an_error_of_the_script_names_its_own_last_line(tmp_path):
    text = "import json\n\ndef main():\n    return load('{')\n\ndef load(text):\n    return json.loads(text)\n"
    done = co(tmp_path, "run", script(tmp_path, text))
    assert_told(done, 1, "JSONDecodeError", "agent.py:7 in load: return json.loads(text)")
    whole = co(tmp_path, "run", "agent.py", "--traceback")
    assert whole.returncode == 1
    assert "Traceback" in whole.stderr


def test_an_error_of_a_handler_names_the_handler(tmp_path):
    text = f"{ECHO}\nfrom connectagent import after_llm\n\n@after_llm\ndef broken(response):\n"
    text += "    return response.contents\n\nagent = Agent('a', llm=Echo(), on_events=[broken], quiet=True)\n"
    assert_told(co(tmp_path, "run", script(tmp_path, text), "x"), 1, "AttributeError", "'broken'", "after_llm")


def test_an_error_of_a_plugin_names_the_line_of_the_plugin_that_raised_it(tmp_path):
    plugin = "from connectagent import before_llm\n\ndef look(found):\n    return found['missing']\n\n"
    (tmp_path / "plug.py").write_text(plugin + "@before_llm\ndef broken():\n    return look({})\n")
    text = f"{ECHO}\nagent = Agent('a', llm=Echo(), quiet=True)\nagent.input('hi')\n"
    done = co(tmp_path, "run", "-p", "./plug.py", script(tmp_path, text))
    assert_told(done, 1, "KeyError: 'missing'", "plug.py:4 in look: return found['missing']", "'broken'")


def test_an_error_inside_the_package_names_no_line_of_it(tmp_path):
    done = co(tmp_path, "run", script(tmp_path, "import connectagent\nconnectagent.Agent('a').nothing\n"))
    assert_told(done, 1, "AttributeError", "agent.py:2 in <module>")
    from connectagent.hooks.host import Host

    try:
        Host(None).nothing()  # type: ignore[arg-type,attr-defined]
    except AttributeError as error:
        raised = error
    assert "test_cli.py" in lines_of(raised)[1]


def test_the_notes_of_an_error_are_shown_and_five_lines_are_kept():
    error = ValueError("\n".join(f"line {number}" for number in range(20)))
    error.add_note("try this\x1b[31m")
    lines = lines_of(error)
    assert len(lines) == 5
    assert lines[0] == "error: ValueError: line 0"
    assert lines[-1] == "try this\\x1b[31m"
    assert len(lines_of(ValueError("x" * 100_000))[0]) <= 400


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_run_with_130_and_leaves_a_record(tmp_path):
    text = (
        "import time\nfrom connectagent import Agent\n\n"
        "def wait() -> str:\n    '''Wait.'''\n    print('waiting', flush=True)\n"
        "    time.sleep(30)\n    return ''\n\nagent = Agent('sleeper', tools=[wait], quiet=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "connectagent", "run", script(tmp_path, text), "wait"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "interrupted\n"
    assert '"status": "interrupted"' in next(tmp_path.glob(".co/evals/sleeper_*.yaml")).read_text()


# -- chat ----------------------------------------------------------------------------------------


def test_each_line_of_a_pipe_is_a_turn_of_one_conversation(tmp_path):
    text = f"{ECHO.replace('messages[-1]', 'messages[0]')}\nagent = Agent('parrot', llm=Echo())\n"
    done = co(tmp_path, "chat", script(tmp_path, text), stdin="one\n\ntwo\n/quit\nthree\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "you said one\nyou said one\n", "")


def test_reset_forgets_the_conversation(tmp_path):
    text = f"{ECHO.replace('messages[-1]', 'messages[0]')}\nagent = Agent('parrot', llm=Echo())\n"
    done = co(tmp_path, "chat", script(tmp_path, text), stdin="one\n/reset\ntwo")
    assert done.stdout == "you said one\nyou said two\n"


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
def test_an_answer_is_shown_once(option, tmp_path):
    done = co(tmp_path, "chat", "--model", "offline", option, stdin="hello\n")
    assert done.returncode == 0
    assert done.stdout.count("[offline]") == 1
    assert done.stderr == ""


def test_what_a_handler_made_of_an_answer_is_shown_too(tmp_path):
    text = "from connectagent import Agent, on_complete\n\n@on_complete\ndef sign(result):\n    return 'signed'\n"
    done = co(tmp_path, "chat", script(tmp_path, text), stdin="hello\n")
    assert done.stdout.endswith("\nsigned\n")


def test_a_script_without_an_agent_brings_its_functions_as_tools(tmp_path):
    text = (
        "def shout(text: str) -> str:\n    '''Shout a text.'''\n    return text.upper()\n\ndef _hidden(x):\n    pass\n"
    )
    done = co(tmp_path, "chat", script(tmp_path, text), stdin='shout "hello"\n')
    assert "HELLO" in done.stdout
    assert 'shout(text="hello"): success' in done.stderr
    assert co(tmp_path, "chat", "agent.py", "--quiet", stdin='shout "hello"\n').stderr == ""


def test_the_system_prompt_reaches_the_model(tmp_path):
    (tmp_path / "system.md").write_text("Be brief.")
    co(tmp_path, "chat", "--system", "system.md", stdin="hello\n")
    assert "Be brief." in next(tmp_path.glob(".co/evals/chat_*.yaml")).read_text()
    assert_told(co(tmp_path, "chat", "--system", "missing.md", stdin="hello\n"), 1, "missing.md")


def test_a_turn_that_fails_does_not_end_the_conversation(tmp_path):
    done = co(tmp_path, "chat", "--model", "gpt-5", stdin="one\ntwo\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("OPENAI_API_KEY") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--model", "gtp-5"], ["unknown model"]), (["-p", "nothing"], ["no plugin"]), (["-p", "./x.py"], ["x.py"])],
)
def test_a_chat_that_cannot_begin_says_why(arguments, words, tmp_path):
    assert_told(co(tmp_path, "chat", *arguments, stdin="hello\n"), 1, *words)
