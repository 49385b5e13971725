"""Hooks that are retired, marks that are none, and the versions of connectagent that a plugin says it needs."""

from __future__ import annotations

import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pluggy
import pytest

from connectagent import Agent, ConnectAgentDeprecationWarning, HandlerError, PluginError, after_llm
from connectagent.hooks import contract, specs
from connectagent.hooks.distributions import _fits
from connectagent.testing import ScriptedLLM

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
