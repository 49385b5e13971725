"""`connectagent plugins lock` writes the plugins of an agent into a file, and `--check` shows what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from connectagent.cli import main

PLUGIN = """
from connectagent import after_user_input

@after_user_input
def greet(agent):
    agent.current_session["messages"].append({"role": "user", "content": "Be kind."})
"""
SCRIPT = """
from connectagent import Agent
from connectagent.testing import ScriptedLLM

child = Agent("helper", llm=ScriptedLLM("Four."), description="Adds.")
agent = Agent("shop", [child], llm=ScriptedLLM("Hello.", "Bye."), plugins=["./greet.py"], quiet=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    (tmp_path / "greet.py").write_text(PLUGIN)
    (tmp_path / "shop.py").write_text(SCRIPT)
    return tmp_path


def test_the_file_says_what_each_plugin_is_and_was_seen_to_change(capsys: Any) -> None:
    assert main(["run", "shop.py", "Hi", "--quiet"]) == 0
    assert main(["plugins", "lock", "shop.py"]) == 0
    assert capsys.readouterr().out.endswith("connectagent.lock: 1 plugin\n")
    agents = yaml.safe_load(Path("connectagent.lock").read_text())
    (plugin,) = agents["shop"]
    digest = plugin.pop("sha256")
    assert len(digest) == 16 and list(agents) == ["shop", "shop.helper"]
    assert plugin == {
        "name": "greet",
        "from": "file",
        "hooks": ["after_user_input 1 of 1"],
        "seen_to_change": ["message"],
    }


GUARD = """
from connectagent import Agent, ToolRejected, before_each_tool
from connectagent.testing import ScriptedLLM, call

def pay() -> str:
    return "paid"

@before_each_tool
def no_secrets(tool_call):
    raise ToolRejected("No.")

agent = Agent("shop", [pay], llm=ScriptedLLM(call("pay"), "Hello."), on_events=[no_secrets], quiet=True)
"""


def test_what_a_guard_rejected_is_seen_as_the_trace_has_it() -> None:
    Path("shop.py").write_text(GUARD)
    assert main(["run", "shop.py", "Hi", "--quiet"]) == 0
    assert main(["plugins", "lock", "shop.py"]) == 0
    (plugin,) = yaml.safe_load(Path("connectagent.lock").read_text())["shop"]
    assert plugin["seen_to_change"] == ["tool_execution rejected"]


def test_the_same_plugins_give_the_same_file(capsys: Any) -> None:
    assert main(["plugins", "lock", "shop.py", "-o", "a.lock"]) == 0
    first = Path("a.lock").read_bytes()
    assert main(["plugins", "lock", "shop.py", "-o", "a.lock"]) == 0
    assert Path("a.lock").read_bytes() == first
    capsys.readouterr()
    assert main(["plugins", "lock", "shop.py", "-o", "a.lock", "--check"]) == 0
    assert capsys.readouterr().out == "a.lock: the same\n"


def test_check_shows_a_changed_source_a_new_plugin_and_a_new_change(folder: Path, capsys: Any) -> None:
    assert main(["plugins", "lock", "shop.py"]) == 0
    before = Path("connectagent.lock").read_bytes()
    (folder / "greet.py").write_text(PLUGIN + "# changed\n")
    (folder / "other.py").write_text(PLUGIN.replace("greet", "other"))
    assert main(["run", "shop.py", "Hi", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["plugins", "lock", "shop.py", "--check", "-p", "./other.py"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("-  sha256: ") for line in out) == 2  # of the child too
    assert "+- name: other" in out and "+  - message" in out
    assert Path("connectagent.lock").read_bytes() == before


def test_what_was_seen_stays_where_the_records_are_not(capsys: Any, folder: Path) -> None:
    assert main(["run", "shop.py", "Hi", "--quiet"]) == 0
    assert main(["plugins", "lock", "shop.py"]) == 0
    for record in folder.glob(".co/evals/*"):
        record.unlink()
    assert main(["plugins", "lock", "shop.py", "--check"]) == 0


def test_options_are_masked(capsys: Any) -> None:
    from connectagent.agents.agent import Agent
    from connectagent.cli.plugin_lock import _entry

    fact = {"name": "mail", "options": {"to": "ops", "api_key": "sk-ant-api03-Vb7Qm2Xc9Lp4Rt6Yw8Zk1Nd3"}}
    options = _entry(fact, Agent("plain", log=False), {})["options"]
    assert options["to"] == "ops" and "Vb7Qm2" not in str(options["api_key"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--check"], "no such file; write it"),
        (["--check", "-o", "bad.lock"], "is no lock file"),
        (["-o", "gone/x.lock"], "cannot be written"),
        (["gone.py"], "no such file"),
        (["-p", "no-such-plugin"], "no-such-plugin"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], says: str, capsys: Any) -> None:
    Path("bad.lock").write_text("a: 1\n")
    assert main(["plugins", "lock", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_link_of_the_folder_leads_the_file_nowhere_else(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    (folder / "clone").mkdir()
    monkeypatch.chdir(folder / "clone")
    Path("connectagent.lock").symlink_to("../mine")
    assert main(["plugins", "lock"]) == 2
    assert "leads out of the project" in capsys.readouterr().err
    assert not (folder / "mine").exists()
