"""How connectagent may change: names that are retired, versions that plugins need, records of later formats."""

from __future__ import annotations

import re
import subprocess
import textwrap
import warnings
from pathlib import Path
from typing import Any

import forked
import pluggy
import pytest

import connectagent
from connectagent import Agent, ConnectAgentDeprecationWarning, HandlerError, after_llm
from connectagent.cli import main
from connectagent.errors import ConfigError, PluginError
from connectagent.hooks import contract, specs
from connectagent.hooks.distributions import _fits
from connectagent.records import read_record
from connectagent.records.file import FORMAT
from connectagent.testing import ScriptedLLM, replayed

ROOT = Path(__file__).parents[2]
FORMATS = Path(__file__).parents[1] / "support" / "record_formats"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def agent(**more: Any) -> Agent:
    return Agent("x", llm=ScriptedLLM("Hi."), quiet=True, **more)


def module(folder: Path, name: str, text: str) -> Any:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return __import__(name)


# -- names -----------------------------------------------------------------------------------------


def test_asking_for_an_attribute_never_raises() -> None:
    for name in ("around_tools", "after_tool", "Agnt", "nothing", "__wrapped__"):
        assert not hasattr(connectagent, name)
    with pytest.raises(AttributeError, match="It is called 'around_tool' now"):
        _ = connectagent.around_tools


def test_an_import_of_a_renamed_or_mistyped_name_says_what_it_is_called() -> None:
    with pytest.raises(ImportError, match="It is called 'around_tool' now"):
        exec("from connectagent import around_tools")
    with pytest.raises(ImportError, match="Did you mean 'Agent'"):
        exec("from connectagent import Agnt")
    assert all(now in connectagent.__all__ for now in connectagent._RENAMED.values())


def test_a_handler_of_a_retired_hook_warns_at_its_own_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before_plan(agent: Any) -> None:
        """An old hook."""

    gone = ConnectAgentDeprecationWarning("before_plan is removed in 0.4: use before_llm")
    contract.spec("observe", retired=gone)(before_plan)
    assert before_plan.contract.retired is gone  # type: ignore[attr-defined]
    monkeypatch.setitem(specs.CONTRACTS, "before_plan", before_plan.contract)  # type: ignore[attr-defined]
    monkeypatch.setitem(specs.PARAMETERS, "before_plan", ("agent",))
    with pytest.warns(ConnectAgentDeprecationWarning, match=r"removed in 0\.4: use before_llm") as caught:
        module(
            folder,
            "old_hook_plugin",
            """
            from connectagent.hooks.markers import marker

            @marker("before_plan")
            def plan(agent): ...
            """,
        )
    assert caught[0].filename == str(folder / "old_hook_plugin.py") and caught[0].lineno == 4


def test_a_handler_that_takes_a_retired_parameter_warns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ConnectAgentDeprecationWarning("'text' of after_llm is removed in 0.4: take 'response'")
    now = specs.CONTRACTS["after_llm"]._replace(retired_parameters={"text": gone})
    monkeypatch.setitem(specs.CONTRACTS, "after_llm", now)
    monkeypatch.setitem(specs.PARAMETERS, "after_llm", (*specs.PARAMETERS["after_llm"], "text"))
    with pytest.warns(ConnectAgentDeprecationWarning, match="take 'response'") as caught:
        module(folder, "old_parameter_plugin", "import connectagent\n\n@connectagent.after_llm\ndef f(text): ...\n")
    assert (caught[0].filename, caught[0].lineno) == (str(folder / "old_parameter_plugin.py"), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @after_llm
        def f(response: Any) -> None: ...


def test_a_plugins_own_hook_can_be_retired_as_in_pluggy(folder: Path) -> None:
    text = """
        import connectagent

        @connectagent.hookspec(warn_on_impl=connectagent.ConnectAgentDeprecationWarning("gone in 2.0"))
        def on_own_old(agent): ...
    """
    defined = module(folder, "own_hook_plugin", text)
    with pytest.warns(ConnectAgentDeprecationWarning, match=r"gone in 2\.0") as caught:

        @defined.on_own_old
        def handler(agent: Any) -> None: ...

        agent(plugins=[handler], log=False)
    assert [warned.filename for warned in caught] == [__file__]  # once, where the handler stands


@pytest.mark.parametrize("project", ["connectagent", "other"])
@pytest.mark.parametrize("form", ["module", "object"])
def test_a_function_that_only_pluggys_marker_marks_is_refused(project: str, form: str, folder: Path) -> None:
    mark = pluggy.HookimplMarker(project)
    if form == "object":

        class Plugin:
            @after_llm
            def good(self, response: Any) -> None: ...

            @mark
            def before_each_tool(self, tool_call: Any) -> None: ...

        plugin: Any = Plugin()
    else:
        plugin = module(
            folder,
            f"foreign_{project}_plugin",
            f"""
            import pluggy
            from connectagent import after_llm

            @after_llm
            def good(response): ...

            @pluggy.HookimplMarker("{project}")
            def before_each_tool(tool_call): ...
            """,
        )
    with pytest.raises(HandlerError, match="would never run: mark it with @before_each_tool") as caught:
        agent(plugins=[plugin], log=False)
    assert f"pluggy.HookimplMarker('{project}')" in str(caught.value) and ".py:" in str(caught.value)


def test_a_module_that_marks_no_function_is_named_with_its_file(folder: Path) -> None:
    plugin = module(folder, "empty_plugin", "def note(agent): ...\n")
    said = re.escape(f"module 'empty_plugin' ({folder / 'empty_plugin.py'}) is not marked for a hook")
    with pytest.raises(PluginError, match=said):
        agent(plugins=[plugin], log=False)


# -- versions that plugins need --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clause", "fits"),
    [
        (">=0.1", True), (">=0.1.0", True), (">=2.0", False), ("<0.2", True), ("<0.1", False), ("==0.1.*", True),
        ("==0.2.*", False), ("!=0.1.0", False), ("~=0.1", True), ("~=0.1.0", True), ("~=0.2", False), ("<=0.1", True),
        (">0.1", False), ("==0.1.0", True), (">= 0.1 ", True), ("@ file:///x", True), ("!=0.1.*", False),
    ],
)  # fmt: skip
def test_a_clause_of_a_requirement_is_read(clause: str, fits: bool) -> None:
    assert _fits("0.1.0", clause) is fits


def installed_plugin(folder: Path, requires: str) -> None:
    info = folder / "connectagent_later-1.0.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: connectagent-later\nVersion: 1.0\nRequires-Dist: {requires}\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text("[connectagent]\nlater = later_plugin\n")
    (folder / "later_plugin.py").write_text("from connectagent import after_llm\n\n@after_llm\ndef f(response): ...\n")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "HOME": str(folder), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return forked.run(*command, cwd=folder, env=environment)


def test_a_plugin_that_needs_a_later_version_is_refused_and_shown(folder: Path) -> None:
    installed_plugin(folder, "connectagent<3,>=2.0")
    code = "from connectagent import Agent\nAgent('x', plugins=['later'], model='offline', quiet=True, log=False)"
    done = run(folder, "-c", code)
    assert done.returncode == 1
    assert "connectagent-later needs connectagent <3,>=2.0, and this is 0.1.0" in done.stderr
    listed = run(folder, "-m", "connectagent", "plugins", "list")
    assert "broken" in listed.stdout and "needs connectagent <3,>=2.0" in listed.stdout + listed.stderr
    doctor = run(folder, "-m", "connectagent", "plugins", "doctor")
    assert doctor.returncode == 1 and "needs connectagent <3,>=2.0" in doctor.stdout


def test_a_plugin_that_needs_this_version_is_loaded(folder: Path) -> None:
    installed_plugin(folder, "connectagent (>=0.1,<0.2) ; python_version > '3'")
    code = "from connectagent import Agent\nAgent('x', plugins=['later'], model='offline', log=False)"
    done = run(folder, "-c", code)
    assert done.returncode == 0, done.stderr


# -- records ---------------------------------------------------------------------------------------


def later(folder: Path) -> Path:
    """A record in a later format, which begins as ours do and goes on otherwise."""
    made = agent()
    made.input("Hello.")
    assert made.record is not None
    text = made.record.read_text().replace("format: 1\n", f"format: {FORMAT + 1}\n", 1)
    path = made.record.with_name("later_2027-01-01T00-00-00.yaml")
    path.write_text(text.replace('connectagent: "0.1.0"', 'connectagent: "9.1"') + "extra: !!something [new\n")
    return path


def test_a_later_format_is_refused_by_every_reader(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = later(folder)
    said = "written by connectagent 9.1; upgrade: pip install -U connectagent"
    with pytest.raises(ConfigError, match=said):
        read_record(path)
    with pytest.raises(ConfigError, match=said):
        replayed(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=said):
        agent().resume(path)
    for command in ("log show", "log diff x", "replay", "blame", "log request", "log export", "log summary"):
        assert main([*command.split(), str(path)]) in (1, 2)
        assert said in capsys.readouterr().err, command
    assert main(["log", "list"]) == 0
    assert "newer" in capsys.readouterr().out
    assert path.read_bytes() == before


def test_a_later_format_is_never_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = later(folder)
    for _ in range(3):
        made = agent()
        made.input("Hello.")
    assert main(["log", "prune", "--keep", "1"]) == 0
    assert path.exists() and len(list(path.parent.glob("x_*.yaml"))) <= 1


def test_an_entry_of_an_unknown_type_is_shown_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = agent()
    made.input("Hello.")
    assert made.record is not None
    odd = '  - {"type": "hologram", "depth": 3, "timestamp": 1.0, "at": "T1"}\n'
    lines = made.record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type": "llm_call"' in line)
    made.record.write_text("".join([*lines[:at], odd, *lines[at:]]))
    assert main(["log", "show"]) == 0
    assert 'hologram: {"depth": 3' in capsys.readouterr().out
    assert replayed(made.record).same
    other = agent()
    other.resume(made.record)
    other.input("And?")
    assert odd in made.record.read_text()


@pytest.mark.parametrize("path", sorted(FORMATS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_stored_record_of_each_format_can_be_used(
    path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evals = folder / ".co" / "evals"
    evals.mkdir(parents=True)
    record = evals / path.name
    record.write_bytes(path.read_bytes())
    assert main(["log", "list"]) == 0 and "shop" in capsys.readouterr().out
    assert main(["log", "show", str(record)]) == 0 and "search" in capsys.readouterr().out
    assert replayed(record).same
    from record_formats.agent import make

    again = make()
    again.resume(record)
    assert again.input("And now?") == "The third answer."
    assert [message["role"] for message in again.session["messages"]][-2:] == ["user", "assistant"]


def test_there_is_a_stored_record_of_each_format() -> None:
    assert {read_record(path)["format"] for path in FORMATS.glob("*.yaml")} == set(range(1, FORMAT + 1))
