"""Handlers: what may be one, in which order they run, and what their values decide."""

from __future__ import annotations

import functools
import re
import types
from typing import Any

import pytest
from noting_handlers import agent_with, line_of, noting

import connectagent
from connectagent import (
    Agent,
    HandlerError,
    PluginError,
    after_tools,
    after_user_input,
    around_llm,
    around_tool,
    before_each_tool,
    before_llm,
    before_tools,
    hooks,
    on_complete,
)
from connectagent.hooks.specs import AROUND, HOOKS, PARAMETERS
from connectagent.testing import HookRecorder

# -- what may be a handler -----------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_takes_a_handler_with_all_of_its_parameters_or_none(hook: str) -> None:
    body = "yield" if hook in AROUND else "pass"
    for names in ((), PARAMETERS[hook]):
        scope: dict[str, Any] = {}
        exec(f"def handler({', '.join(names)}):\n    {body}", scope)
        assert getattr(hooks, hook)(scope["handler"]) is scope["handler"]


def test_a_marked_function_stays_callable() -> None:
    @after_tools
    def twice(agent: Any) -> Any:
        return 2 * agent

    assert twice(4) == 8 and twice.__name__ == "twice"


def test_functions_methods_partials_objects_and_modules_can_all_be_plugins() -> None:
    seen: list[str] = []

    class Plugin:
        @after_user_input
        def first(self, prompt: str) -> None:
            seen.append(f"method {prompt}")

        @staticmethod
        @on_complete
        def second(result: str) -> None:
            seen.append(f"inner staticmethod {result}")

        @on_complete
        @staticmethod
        def third(result: str) -> None:
            seen.append(f"outer staticmethod {result}")

        @classmethod
        @on_complete
        def fourth(cls) -> None:
            seen.append(f"classmethod of {cls.__name__}")

    class Callable:
        @on_complete
        def __call__(self) -> None:
            seen.append("callable")

    @on_complete
    def prefixed(prefix: str = "", *, outcome: str) -> None:
        seen.append(f"{prefix} {outcome}")

    module = types.ModuleType("one_file")
    module.handler = noting("on_complete", "module", seen)  # type: ignore[attr-defined]
    agent_with(Plugin(), Callable(), functools.partial(prefixed, "partial"), module).input("Hi")
    assert seen == [
        "method Hi",
        "inner staticmethod Done.",
        "outer staticmethod Done.",
        "classmethod of Plugin",
        "callable",
        "partial answered",
        "module",
    ]


def test_a_bound_method_is_a_plugin_by_itself() -> None:
    class Counter:
        turns = 0

        @on_complete
        def count(self) -> None:
            self.turns += 1

    counter = Counter()
    agent_with(counter.count).input("Hi")
    assert counter.turns == 1


def test_two_markers_on_one_function_both_work() -> None:
    seen: list[str] = []

    @before_llm
    @on_complete(trylast=True)
    def both(agent: Agent) -> None:
        seen.append("both")

    agent_with(both).input("Hi")
    assert seen == ["both", "both"]


def test_a_parameter_of_its_own_needs_a_default_and_keeps_it() -> None:
    seen: list[Any] = []

    @on_complete
    def handler(result: str, limit: int = 5, *, outcome: str) -> None:
        seen.append((result, limit, outcome))

    agent_with(handler).input("Hi")
    assert seen == [("Done.", 5, "answered")]


# -- mistakes are found where they are made ------------------------------------------------------


def mistaken(source: str, marker: Any) -> str:
    scope: dict[str, Any] = {}
    exec(compile(source, "mine.py", "exec"), scope)
    with pytest.raises(HandlerError) as caught:
        marker(scope["handler"])
    assert "mine.py:1" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "marker", "told"),
    [
        ("def handler(tool_cal): pass", before_each_tool, "unknown parameter 'tool_cal'. Did you mean 'tool_call'?"),
        ("def handler(result): pass", before_tools, "before_tools gives agent, tool_calls"),
        ("def handler(agent=None): pass", after_tools, "default on 'agent'"),
        ("def handler(*args): pass", after_tools, "takes *args"),
        ("def handler(**options): pass", after_tools, "takes **options"),
        ("async def handler(agent): pass", after_tools, "async"),
        ("async def handler(agent):\n    yield", around_llm, "async"),
        ("def handler(agent):\n    yield", after_tools, "around_turn, around_llm, around_tool"),
        ("def handler(agent): pass", around_tool, "yield exactly once"),
    ],
)
def test_a_function_that_cannot_be_the_handler_is_told_at_once_with_its_place(
    source: str, marker: Any, told: str
) -> None:
    assert told in mistaken(source, marker)


def test_an_unmarked_function_is_told_with_its_place_and_what_was_probably_meant() -> None:
    def after_tool(agent: Agent) -> None: ...

    with pytest.raises(PluginError) as caught:
        agent_with(after_tool)
    assert f"{__file__}:{line_of(after_tool)}" in str(caught.value)
    assert "Did you mean to decorate 'after_tool' with @after_tools?" in str(caught.value)


@pytest.mark.parametrize("thing", [object(), 5, types.ModuleType("empty"), {}, HookRecorder])
def test_what_brings_no_handler_is_no_plugin(thing: Any) -> None:
    with pytest.raises(PluginError):
        agent_with(thing)


def test_the_same_plugin_listed_twice_is_an_error_that_names_it() -> None:
    handler = noting("on_complete", "x", [])
    recorder = HookRecorder()
    with pytest.raises(PluginError, match=f"{re.escape(noting.__code__.co_filename)}:.*listed twice"):
        agent_with(handler, on_events=[handler])
    with pytest.raises(PluginError, match="listed twice"):
        agent_with(recorder, recorder)
    agent_with(HookRecorder(), HookRecorder())  # two objects of one class are two plugins


def test_a_misspelt_hook_is_told_at_the_import() -> None:
    with pytest.raises(ImportError, match="Did you mean 'after_each_tool'"):
        exec("from connectagent import after_each_tol")
    with pytest.raises(AttributeError, match="Did you mean 'after_each_tool'"):
        connectagent.after_each_tol  # noqa: B018
    with pytest.raises(AttributeError):
        connectagent.something_else  # noqa: B018


def test_tryfirst_and_trylast_exclude_each_other() -> None:
    with pytest.raises(HandlerError, match=f"{re.escape(__file__)}:"):
        after_tools(tryfirst=True, trylast=True)(lambda: None)


def test_no_name_leaves_a_plugin_out_and_must_name_one() -> None:
    seen: list[str] = []

    @on_complete
    def loud() -> None:
        seen.append("loud")

    agent_with(loud, "no:loud").input("Hi")
    assert seen == []
    with pytest.raises(PluginError, match="no plugin 'quiet-one'"):
        agent_with("no:quiet_one")


# -- order ---------------------------------------------------------------------------------------


def test_handlers_run_as_listed_plugins_before_on_events_tryfirst_and_trylast_aside() -> None:
    seen: list[str] = []
    plugins = [
        noting("on_complete", "last", seen, trylast=True),
        noting("on_complete", "1", seen),
        [noting("on_complete", "2", seen), [noting("on_complete", "3", seen)]],
        noting("on_complete", "first", seen, tryfirst=True),
    ]
    agent_with(*plugins, on_events=[noting("on_complete", "4", seen)]).input("Hi")
    assert seen == ["first", "1", "2", "3", "4", "last"]


def test_handlers_of_an_object_run_in_the_order_of_their_definition_base_classes_first() -> None:
    seen: list[str] = []

    class Base:
        @on_complete
        def zebra(self) -> None:
            seen.append("zebra")

    class Derived(Base):
        @on_complete
        def ant(self) -> None:
            seen.append("ant")

    agent_with(Derived()).input("Hi")
    assert seen == ["zebra", "ant"]


def test_the_first_around_handler_is_the_outermost() -> None:
    seen: list[str] = []

    def span(name: str) -> Any:
        @around_llm
        def handler() -> Any:
            seen.append(f"{name} enters")
            yield
            seen.append(f"{name} leaves")

        return handler

    agent_with(span("outer"), span("inner")).input("Hi")
    assert seen == ["outer enters", "inner enters", "inner leaves", "outer leaves"]


def test_an_around_handler_may_replace_the_outcome_and_swallow_an_error() -> None:
    @around_llm
    def rescue() -> Any:
        try:
            yield
        except OSError:
            return "rescued"

    @around_llm
    def shout() -> Any:
        response = yield
        return response.content.upper()

    assert agent_with(rescue, script=(OSError("down"),)).input("Hi") == "rescued"
    assert agent_with(shout).input("Hi") == "DONE."
