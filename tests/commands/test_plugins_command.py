"""`connectagent plugins`: the plan is what happens, a new package works, the doctor sees the project's mistakes."""

import os
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import forked
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectagent import Agent, hooks, use
from connectagent.cli.plan import plan_of, text_of
from connectagent.hooks.specs import AROUND, EVENTS, HOOKS
from connectagent.testing import ScriptedLLM

ROOT = Path(__file__).parents[2]
FIRING = [hook for hook in (*EVENTS, *AROUND) if hook != "on_error"]


def co(folder, *arguments, **variables):
    return forked.run(
        "-m", "connectagent", *arguments,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables},
        timeout=60,
    )


def noting(hook, name, log, order):
    """A handler that notes that it was entered."""

    def handler():
        log.append((hook, name))

    def around():
        log.append((hook, name))
        yield

    function = around if hook in AROUND else handler
    function.__qualname__ = name
    return getattr(hooks, hook)(**{order: True} if order else {})(function)


def ping() -> str:
    """Answer."""
    return "pong"


def plugin(number, made, log):
    """A plugin of several handlers: an object, a list, or one function."""
    functions = [noting(hook, f"h{number}_{index}", log, order) for index, (hook, order) in enumerate(made)]
    return functions if len(functions) != 1 else functions[0]


HANDLER = st.tuples(st.sampled_from(FIRING), st.sampled_from(["", "", "tryfirst", "trylast"]))
PLUGIN = st.tuples(st.sampled_from(["plugins", "on_events", "use"]), st.lists(HANDLER, min_size=1, max_size=4))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mix=st.lists(PLUGIN, min_size=1, max_size=6), seed=st.integers())
def test_the_plan_is_the_order_that_a_recorder_sees(mix, seed):
    random.Random(seed).shuffle(mix)
    log, given_to = [], {"plugins": [], "on_events": [], "use": []}
    for number, (door, made) in enumerate(mix):
        given_to[door].append(plugin(number, made, log))
    with use(given_to.pop("use")):
        agent = Agent("a", [ping], llm=ScriptedLLM(("ping", {}), "Done."), log=False, quiet=True, **given_to)
        printed = text_of(plan_of(agent))
    agent.input("go")
    for hook in FIRING:
        planned = re.search(rf"^{hook}\b.*\n((?:  .*\n?)*)", printed, re.MULTILINE)
        names = re.findall(r"^  \d+\. (h\d+_\d+) of ", planned.group(1), re.MULTILINE) if planned else []
        seen = [name for fired, name in log if fired == hook]
        assert seen[: len(names)] == names
        assert len(seen) % len(names) == 0 if names else not seen


def test_the_plan_of_a_script_tells_who_named_what_and_what_moved_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from connectagent import after_llm\n\n@after_llm(tryfirst=True)\ndef early():\n    pass\n"
    )
    (tmp_path / "agent.py").write_text(
        "from connectagent import Agent, after_llm\n\n@after_llm\ndef late():\n    pass\n\n"
        "agent = Agent('a', on_events=[late], quiet=True)\n"
    )
    done = co(tmp_path, "plugins", "plan", "agent.py", "-p", "./mine.py")
    lines = done.stdout.split("after_llm\n")[1].splitlines()
    assert lines[0].startswith("  1. early of 'mine' (")
    assert lines[0].endswith("mine.py:3): named by command line, tryfirst")
    assert lines[1].endswith("agent.py:3): given to the agent, in the order of the list")
    assert "built in" in done.stdout
    assert not (tmp_path / ".co").exists()


def test_the_doctor_sees_the_mistakes_of_a_project(tmp_path):
    assert co(tmp_path, "plugins", "doctor").stdout.splitlines()[-1] == "all well: 0 plugins"
    (tmp_path / "pyproject.toml").write_text("[tool.connectagent]\nplugins = ['absent']\n[tool.connectagent.gone]\n")
    done = co(tmp_path, "plugins", "doctor", CONNECTAGENT_PLUGINS="./missing.py")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "not well: 0 plugins, 3 wrong in the setup"
    for word in ("'absent'", "missing.py", "[tool.connectagent.gone]"):
        assert word in done.stdout


@pytest.mark.parametrize("listed", ["after_tools", "register_models", ",".join(HOOKS)])
def test_a_new_package_has_tests_that_pass_and_an_entry_point_that_is_its_module(listed, tmp_path):
    done = co(tmp_path, "plugins", "new", "My_Zoo", "--hooks", listed)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "connectagent-my-zoo"
    table = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert table["entry-points"]["connectagent"] == {"my-zoo": "connectagent_my_zoo"}
    assert "my-zoo" in (folder / "README.md").read_text()
    assert (folder / "connectagent_my_zoo" / "py.typed").exists()
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert tests.returncode == 0, tests.stdout
    assert "2 passed" in tests.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["new", "9lives"], "9lives"),
        (["new", "x", "--hooks", "after_tolls"], "Did you mean 'after_tools'"),
        (["new", "there"], "is there already"),
        (["inspect", "nobody"], "no plugin 'nobody'"),
        (["uninstall", "nobody"], "no plugin 'nobody'"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments, word, tmp_path):
    (tmp_path / "connectagent-there").mkdir()
    done = co(tmp_path, "plugins", *arguments)
    assert done.returncode in (1, 2)
    assert word in done.stderr
    assert "Traceback" not in done.stderr
