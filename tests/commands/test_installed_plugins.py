"""Distributions, good and broken ones, in a virtual environment of their own."""

import pytest
from fresh_environment import Environment, wheel

HOOK = "from connectagent import on_complete\n\n@on_complete\ndef sign(result):\n    return result + ' (signed)'\n"
TOOLS = """
from connectagent import on_agent_ready, register_commands

class Tools:
    def __init__(self, factor: int = 2):
        self.factor = factor

    @on_agent_ready
    def add(self, agent):
        agent.add_tool(self.times)

    def times(self, x: int) -> int:
        '''Multiply a number.'''
        return self.factor * x

    @register_commands
    def command(self, cli):
        import click
        cli.add_command(click.Command('factor', callback=lambda: click.echo(f'factor {self.factor}')))
"""
MODEL = """
from connectagent import LLMResponse, register_models

class Loud:
    def __init__(self, model):
        self.model = model

    def complete(self, messages, tools=None):
        return LLMResponse(messages[-1]["content"].upper())

@register_models
def loud():
    return {"loud": Loud}
"""
GOOD = {
    "sign": (HOOK, ["connectagent", "sign = sign_plugin"]),
    "tools": (
        TOOLS,
        ["connectagent", "tools = tools_plugin:Tools", "connectagent.commands", "factor = tools_plugin:Tools"],
    ),
    "loud": (MODEL, ["connectagent", "loud = loud_plugin", "connectagent.models", "loud = loud_plugin"]),
}
BROKEN = {
    "needy": ("import not_there_at_all\n", "requires nothing named not_there_at_all"),
    "typo": ("from connectagent import after_toolz\n", "Did you mean 'after_tools'"),
    "wrong": ("from connectagent import after_tools\n@after_tools\ndef f(agnt):\n    pass\n", "Did you mean 'agent'"),
    "leaver": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "crash": ("raise OSError('no disk')\n", "no disk"),
    "twin-one": (HOOK, "declared by several distributions"),
    "twin-two": (HOOK, "declared by several distributions"),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    made = Environment(folder)
    wheels = [wheel(folder, name, text, lines) for name, (text, lines) in GOOD.items()]
    for name, (text, _) in BROKEN.items():
        own = "twin" if name.startswith("twin") else name
        lines = ["connectagent", f"{own} = {name.replace('-', '_')}_plugin"]
        wheels.append(wheel(folder, name, text, lines))
    done = made.run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *map(str, wheels))
    assert done.returncode == 0, done.stderr
    return made


def test_three_good_and_seven_broken_distributions_are_all_told_truly(environment):
    listed = environment.listed()
    assert {name: listed[f"connectagent-{name}"]["status"] for name in GOOD} == dict.fromkeys(GOOD, "ok")
    assert listed["connectagent-tools"]["hooks"] == ["on_agent_ready", "register_commands"]
    for name, (_, word) in BROKEN.items():
        row = listed[f"connectagent-{name}"]
        assert (row["status"], row["version"]) == ("broken", "1.0")
        assert word in f"{row['error']} {row['way_out']}"
        assert "uninstall" in row["way_out"].lower()
    assert len(listed) == 10
    text = environment.co("plugins", "list")
    assert (text.returncode, text.stderr) == (0, "")
    assert all(f"from connectagent-{name}," in text.stdout for name in [*GOOD, *BROKEN])


def test_the_doctor_says_it_again_in_the_last_line_and_the_exit_code(environment):
    done = environment.co("plugins", "doctor")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("not well: 10 plugins, 7 broken")
    assert all(f"(connectagent-{name})" in last for name in BROKEN)


def test_the_doctor_loads_only_the_plugins_that_are_named(environment):
    done = environment.co("plugins", "doctor", "sign", "connectagent-twin-one")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line.partition(" (")[0] for line in lines[:-1]] == ["sign", "twin"]
    assert (done.returncode, lines[-1]) == (1, "not well: 2 plugins, 1 broken: twin (connectagent-twin-one)")
    assert environment.co("plugins", "doctor", "tools").stdout.splitlines()[-1] == "all well: 1 plugin"
    wrong = environment.co("plugins", "doctor", "sing")
    assert wrong.returncode != 0 and "Did you mean 'sign'?" in wrong.stderr


def test_a_project_file_that_cannot_be_read_is_no_plugin_s_fault(environment):
    project = environment.folder / "pyproject.toml"
    project.write_text("[tool.connectagent")
    try:
        assert environment.listed()["connectagent-tools"]["status"] == "not checked"
        assert "1 wrong in the setup" in environment.co("plugins", "doctor").stdout.splitlines()[-1]
    finally:
        project.unlink()


def test_an_agent_with_the_three_good_ones_runs(environment):
    code = (
        "from connectagent import Agent\n"
        "agent = Agent('a', model='loud/one', plugins=['Connectagent_Sign', 'tools'], quiet=True, log=False)\n"
        "print(agent.input('hello'), agent.execute_tool('times', {'x': 4})['result'])"
    )
    done = environment.run("-c", code)
    assert done.stdout == "HELLO (signed) 8\n", done.stderr


def test_a_command_is_found_without_loading_another_plugin(environment):
    done = environment.co("factor")
    assert (done.returncode, done.stdout, done.stderr) == (0, "factor 2\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["hooks"], ["demo", "--help"], ["plugins", "plan"]])
def test_every_command_works_beside_broken_plugins(arguments, environment):
    assert environment.co(*arguments).returncode == 0


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_plugin_that_is_named_stops_the_agent_with_its_message(name, environment):
    own = "twin" if name.startswith("twin") else name
    code = f"from connectagent import Agent, PluginError\ntry:\n    Agent('a', plugins=['{own}'])\n"
    done = environment.run("-c", f"{code}except PluginError as error:\n    print(error)\n")
    assert BROKEN[name][1] in done.stdout, done.stderr
    assert f"connectagent-{name} 1.0" in done.stdout
    left_out = f"from connectagent import Agent\nAgent('a', plugins=['no:{own}'], log=False)"
    assert environment.run("-c", left_out, CONNECTAGENT_PLUGINS=own).returncode == 0


def test_one_of_two_that_share_a_name_can_be_meant_by_its_distribution(environment):
    code = "from connectagent import Agent\nAgent('a', plugins=['connectagent-twin-one'], log=False)"
    done = environment.run("-c", code)
    assert done.returncode == 0, done.stderr


def test_inspect_tells_handlers_options_and_load_time(environment):
    done = environment.co("plugins", "inspect", "tools")
    assert "on_agent_ready: Tools.add of 'tools' 1.0" in done.stdout, done.stderr
    assert "tools_plugin.py:8" in done.stdout
    assert "options: factor (default 2)" in done.stdout
    assert "load time: " in done.stdout
    assert environment.co("plugins", "inspect", "typo").returncode == 1


def test_a_broken_plugin_is_uninstalled_and_a_good_one_installed_again(environment):
    done = environment.co("plugins", "uninstall", "leaver")
    assert (done.returncode, done.stdout) == (0, "uninstalled: connectagent-leaver\n"), done.stderr
    assert "connectagent-leaver" not in environment.listed()
    made = environment.folder / "connectagent_leaver-1.0-py3-none-any.whl"
    again = environment.co("plugins", "install", str(made))
    assert again.returncode == 1
    assert "SystemExit: 3" in again.stderr
    environment.co("plugins", "uninstall", "connectagent-sign")
    good = environment.co("plugins", "install", str(environment.folder / "connectagent_sign-1.0-py3-none-any.whl"))
    assert (good.returncode, good.stdout) == (0, "sign 1.0  ok  on_complete\n"), good.stderr
