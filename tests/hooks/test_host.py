"""The host as pluggy documents a manager: registering, subsets, monitoring, tracing, and hooks called by anybody."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy
import pytest

from connectagent import (
    Agent,
    Continue,
    ToolRejected,
    after_llm,
    after_tools,
    around_tool,
    before_each_tool,
    before_llm,
    on_complete,
    on_error,
    on_trace,
    register_models,
)
from connectagent.data import LLMRequest, LLMResponse, ToolCall
from connectagent.errors import HandlerError, HookResultError, PluginError
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.discovery import handlers_of
from connectagent.hooks.executor import HookCall
from connectagent.hooks.specs import NAMESPACE
from connectagent.testing import ScriptedLLM

CALL = ToolCall("call_1", "look", {})
SCRIPT = ([CALL], "Done.")


def look() -> str:
    """Look."""
    return "seen"


def agent_with(*plugins: Any, script: Any = SCRIPT, **options: Any) -> Agent:
    return Agent("a", [look], llm=ScriptedLLM(*script), log=False, quiet=True, plugins=list(plugins), **options)


def noting(seen: list[str], name: str, **order: bool) -> Callable[..., Any]:
    @before_each_tool(**order)
    def note() -> None:
        seen.append(name)

    return note


class Pair:
    """A plugin of two handlers, which are not in the order of the alphabet."""

    def __init__(self, seen: list[str], name: str = "") -> None:
        self.seen, self.prefix = seen, name

    @before_each_tool
    def b_first(self) -> None:
        self.seen.append(f"{self.prefix}b_first")

    @before_each_tool
    def a_second(self) -> None:
        self.seen.append(f"{self.prefix}a_second")


def ask(agent: Agent) -> Any:
    return agent.hooks.hook.before_each_tool(agent=agent, tool_call=CALL)


# -- the seam ------------------------------------------------------------------------------------


def test_pluggy_calls_handlers_through_the_place_where_its_monitoring_puts_its_wrapper() -> None:
    moved = (
        f"pluggy {pluggy.__version__} has moved `PluginManager._inner_hookexec`, where the host puts its executor: see "
        "what `add_hookcall_monitoring` replaces there, and put the executor into that place"
    )
    manager = pluggy.PluginManager("p")
    before = vars(manager).get("_inner_hookexec")
    assert before is not None, moved
    undo = manager.add_hookcall_monitoring(lambda *given: None, lambda *given: None)
    assert vars(manager)["_inner_hookexec"] is not before, moved
    undo()
    assert vars(manager)["_inner_hookexec"] is before, moved

    given: list[Any] = []
    specs = ModuleType("specs")
    vars(specs)["f"] = pluggy.HookspecMarker("p")(lambda x: None)
    manager.add_hookspecs(specs)
    manager._inner_hookexec = lambda hook, implementations, arguments, firstresult: given.append(arguments)
    call = HookCall({"x": 1})
    manager.hook.f.call_extra((), call)
    assert given == [call] and given[0] is call, f"{moved}; the mapping that call_extra() takes must reach it as it is"


def test_a_pluggy_that_does_not_ask_the_executor_runs_no_handler_unchecked() -> None:
    seen: list[str] = []
    agent = agent_with(noting(seen, "guard"))
    agent.hooks._inner_hookexec = pluggy.PluginManager("p")._inner_hookexec
    with pytest.raises(PluginError, match=r"before_each_tool handler .* past the host"):
        ask(agent)
    assert seen == []


def test_each_host_has_the_specs_that_pluggy_would_make() -> None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(NAMESPACE)
    hosts = [agent_with().hooks for _ in range(2)]
    for name, made in vars(manager.hook).items():
        for host in hosts:
            caller = getattr(host.hook, name)
            assert caller.spec.argnames == made.spec.argnames and caller.spec.opts == made.spec.opts
            assert caller.has_spec() and not caller.is_historic() and not made.is_historic()
        assert getattr(hosts[0].hook, name) is not getattr(hosts[1].hook, name)


# -- hooks that anybody calls --------------------------------------------------------------------


def test_the_first_value_ends_a_hook_for_whoever_calls_it() -> None:
    seen: list[str] = []

    @before_each_tool
    def stand_in() -> str:
        return "mine"

    agent = agent_with(noting(seen, "before"), stand_in, noting(seen, "behind"))
    assert ask(agent) == "mine" and seen == ["before"]
    assert agent.hooks.hook.on_error(agent=agent, error=ValueError(), tool_call=None, request=None, attempt=1) is None


def test_a_chain_gives_the_last_value_to_whoever_calls_it() -> None:
    @on_complete
    def louder(result: str) -> str:
        return result.upper()

    @on_complete
    def more() -> Continue:
        return Continue("More.")

    @on_complete
    def marked(result: str) -> str:
        return f"{result}!"

    agent = agent_with(louder, more, functools.partial(marked))
    assert agent.hooks.hook.on_complete(agent=agent, result="done", outcome="answered") == "DONE!"


def test_an_observing_hook_gives_nothing_and_a_collecting_one_everything() -> None:
    seen: list[Any] = []

    @after_tools
    def note(entries: Any) -> None:
        seen.append(entries)

    @register_models
    def models() -> dict[str, Any]:
        return {"mine": ScriptedLLM}

    agent = agent_with(note, models)
    assert agent.hooks.hook.after_tools(agent=agent, entries=[]) is None and seen == [[]]
    assert agent.hooks.hook.register_models() == [{"mine": ScriptedLLM}]


def test_an_around_hook_runs_the_operation_that_its_caller_adds() -> None:
    seen: list[Any] = []

    @around_tool
    def outer() -> Iterator[None]:
        seen.append((yield))  # type: ignore[misc]
        return "outer"  # type: ignore[return-value]

    @around_tool
    def inner() -> Iterator[None]:
        seen.append((yield))  # type: ignore[misc]

    agent = agent_with(outer, inner)
    hook, given = agent.hooks.hook.around_tool, {"agent": agent, "tool_call": CALL}
    assert hook.call_extra([lambda: "own"], given) == "outer" and seen == ["own", "own"]
    assert hook.call_extra([lambda tool_call: tool_call.name], given) == "outer" and seen[2:] == ["look", "look"]
    assert hook(**given) == "outer" and seen[4:] == [None, None]


def test_a_handler_that_a_caller_adds_is_checked_as_all_others() -> None:
    agent = agent_with()
    hook, given = agent.hooks.hook.before_llm, {"agent": agent, "request": LLMRequest([], [], "m")}
    assert hook.call_extra([lambda request: f"of {request.model}"], given) == "of m"
    with pytest.raises(HookResultError, match="takes None, LLMResponse, str"):
        hook.call_extra([lambda request: 5], given)
    with pytest.raises(HandlerError, match="unknown parameter 'wrong'"):
        hook.call_extra([lambda wrong: None], given)


def test_handlers_that_anybody_calls_are_watched_as_in_a_turn() -> None:
    @before_each_tool
    def broken(agent: Agent) -> None:
        agent.current_session["state"]["half"] = True  # type: ignore[index]
        raise ValueError("mine")

    agent = agent_with(script=("Hello.",))
    agent.input("Hi.")
    agent.hooks.register(broken)
    with pytest.raises(ValueError, match="mine") as raised:
        ask(agent)
    assert "of plugin" in raised.value.__notes__[0]
    assert agent.current_session["state"] == {}  # type: ignore[index]
    assert [(row["handler"], row["calls"]) for row in agent.ledger] == [("broken", 1)]


# -- registering ---------------------------------------------------------------------------------


def module_with(handler: Any) -> ModuleType:
    module = ModuleType("made_here")
    vars(module)["note"] = handler
    return module


def test_what_is_registered_takes_part_in_turns_and_what_is_unregistered_does_not() -> None:
    seen: list[str] = []
    for plugin in (noting(seen, "function"), Pair(seen), module_with(noting(seen, "module"))):
        agent = agent_with(script=([CALL], [CALL], "Done."))
        name = agent.hooks.register(plugin)
        assert name is not None and agent.hooks.get_plugin(name) is plugin
        assert agent.hooks.is_registered(plugin) and agent.hooks.get_name(plugin) == name
        assert [caller.name for caller in agent.hooks.get_hookcallers(plugin) or ()] == ["before_each_tool"]
        agent.input("Go.")
        assert agent.hooks.unregister(plugin) is plugin
        assert not agent.hooks.has_plugin(name) and agent.hooks.get_hookcallers(plugin) is None
        ask(agent)
    assert seen == ["function"] * 2 + ["b_first", "a_second"] * 2 + ["module"] * 2


def test_what_is_registered_later_runs_earlier_and_what_is_added_runs_in_the_listed_order() -> None:
    seen: list[str] = []
    last, first = noting(seen, "last", trylast=True), noting(seen, "first", tryfirst=True)
    agent = agent_with(noting(seen, "listed"), last, first)
    agent.hooks.register(Pair(seen, "registered "))
    agent.hooks.register(noting(seen, "registered later"), "later")
    agent.hooks.add(*handlers_of(noting(seen, "added"), "added"))
    agent.hooks.add(*handlers_of(noting(seen, "added later"), "added_later"))
    ask(agent)
    assert seen == [
        "first",
        "registered later",
        "registered b_first",
        "registered a_second",
        "listed",
        "added",
        "added later",
        "last",
    ]


def test_a_plugin_is_registered_once_and_a_name_given_once() -> None:
    seen: list[str] = []
    pair, agent = Pair(seen), agent_with()
    agent.hooks.register(pair)
    with pytest.raises(ValueError, match="'other' is registered already"):
        agent.hooks.register(pair, "other")
    with pytest.raises(ValueError, match="'Pair' is registered already"):
        agent.hooks.register(Pair(seen), "Pair")
    assert agent.hooks.register(Pair(seen)) == "Pair"  # as two of one class in a list of plugins
    with pytest.raises(PluginError, match="is not marked for a hook"):
        agent.hooks.register(look)
    with pytest.raises(ValueError, match="is not registered"):
        agent.hooks.unregister(Pair(seen))
    with pytest.raises(ValueError, match="is not registered as 'other'"):
        agent.hooks.unregister(pair, "other")
    assert agent.hooks.unregister(name="other") is None


def test_a_plugin_is_unregistered_by_its_name_and_a_blocked_name_takes_none() -> None:
    seen: list[str] = []
    pair = Pair(seen)
    agent = agent_with(pair)
    assert agent.hooks.unregister(name="Pair") is pair
    assert agent.hooks.register(pair, "mine") == "mine"
    agent.hooks.set_blocked("mine")
    assert agent.hooks.register(pair, "mine") is None and agent.hooks.is_blocked("mine")
    ask(agent)
    assert seen == []
    assert agent.hooks.unblock("mine") and agent.hooks.register(pair, "mine") == "mine"


def test_get_plugin_gives_what_was_listed_itself() -> None:
    seen: list[str] = []
    pair, note = Pair(seen), noting(seen, "function")
    agent = agent_with(pair, [note])
    assert agent.hooks.get_plugin("Pair") is pair
    assert agent.hooks.get_plugin("note") is note
    assert agent.hooks.get_plugin("nobody") is None


@dataclass
class Equal:
    """Equal to all others of its class, and without a hash."""

    seen: list[str] = field(default_factory=list)

    @before_each_tool
    def note(self) -> None:
        self.seen.append("called")


def test_plugins_that_are_equal_or_have_no_hash_are_told_apart() -> None:
    one, other = Equal(), Equal()
    agent = agent_with(one)
    agent.hooks.register(other, "other")
    assert agent.hooks.get_plugins()
    agent.hooks.subset_hook_caller("before_each_tool", [one])(agent=agent, tool_call=CALL)
    assert (one.seen, other.seen) == ([], ["called"])
    agent.hooks.unregister(other)
    ask(agent)
    assert (one.seen, other.seen) == (["called"], ["called"])


def test_plugins_come_and_go_while_a_turn_runs() -> None:
    seen: list[str] = []
    late, gone = Pair(seen, "late "), Pair(seen, "gone ")

    @before_llm
    def change(agent: Agent) -> None:
        if agent.current_session["iteration"] == 2:  # type: ignore[index]
            agent.hooks.unregister(gone)
            agent.hooks.register(late, "late")

    agent = agent_with(change, gone, script=([CALL], [CALL], "Done."))
    agent.input("Go.")
    assert seen == ["gone b_first", "gone a_second", "late b_first", "late a_second"]


def test_a_handler_that_is_unregistered_in_a_call_comes_to_its_end_in_it() -> None:
    seen: list[str] = []
    pair = Pair(seen)

    @before_each_tool
    def stop(agent: Agent) -> None:
        if agent.hooks.is_registered(pair):
            agent.hooks.unregister(pair)

    agent = agent_with(stop, pair, script=([CALL], [CALL], "Done."))
    agent.input("Go.")
    assert seen == ["b_first", "a_second"]


# -- adding, and doing without -------------------------------------------------------------------


def test_what_is_added_for_a_block_is_gone_behind_it() -> None:
    seen: list[str] = []
    agent = agent_with(noting(seen, "listed"), noting(seen, "last", trylast=True))
    with agent.hooks.add(*handlers_of(Pair(seen))):
        ask(agent)
    assert seen == ["listed", "b_first", "a_second", "last"]
    seen.clear()
    ask(agent)
    assert seen == ["listed", "last"]


def test_a_handler_of_the_package_is_added_behind_those_of_the_package() -> None:
    seen: list[str] = []

    @on_trace(tryfirst=True)
    def first() -> None:
        seen.append("first")

    @on_trace
    def listed() -> None:
        seen.append("listed")

    @on_trace
    def added() -> None:
        seen.append("added")

    agent = agent_with(first, listed)
    own = [handler.plugin for handler in agent.hooks.handlers("on_trace") if handler.builtin]
    agent.hooks.add(*handlers_of(added, "added", builtin=True))
    plugins = [handler.plugin for handler in agent.hooks.handlers("on_trace")]
    assert plugins[1 : len(own) + 2] == [*own, "added"]
    agent.hooks.hook.on_trace(agent=agent, entry={"type": "mine"})
    assert seen == ["first", "added", "listed"]


def test_a_handler_of_the_package_is_added_before_those_of_users_though_one_of_the_package_runs_last() -> None:
    seen: list[str] = []
    agent = agent_with(noting(seen, "listed"))
    agent.hooks.add(*handlers_of(noting(seen, "last", trylast=True), "last", builtin=True))
    agent.hooks.add(*handlers_of(noting(seen, "own"), "own", builtin=True))
    agent.hooks.add(*handlers_of(noting(seen, "own later"), "own_later", builtin=True))
    ask(agent)
    assert seen == ["own", "own later", "listed", "last"]


def test_the_same_function_is_added_for_a_hook_once() -> None:
    note = noting([], "note")
    agent = agent_with(note)
    with pytest.raises(PluginError, match="listed twice"):
        agent.hooks.add(*handlers_of(note, "other"))
    with pytest.raises(PluginError, match="listed twice"):
        agent.hooks.register([note], "other")


def test_plugins_that_a_block_does_without_are_at_their_places_behind_it() -> None:
    seen: list[str] = []
    plugins = [noting(seen, "1"), Pair(seen, "2 "), noting(seen, "3"), noting(seen, "last", trylast=True)]
    agent = agent_with(*plugins)
    ask(agent)
    before, all_of_them = agent.hooks.loaded, list(seen)
    third = next(handler for handler in before if handler.thing is plugins[2])
    seen.clear()
    with agent.hooks.without(["pair", third]):
        ask(agent)
        agent.hooks.add(*handlers_of(noting(seen, "4"), "new"))
    assert seen == ["1", "last"]
    seen.clear()
    ask(agent)
    assert [name for name in seen if name != "4"] == all_of_them
    agent.hooks.unregister(name="new")
    assert agent.hooks.loaded == before


def test_a_plugin_comes_back_behind_those_that_ran_before_it_though_others_have_gone_meanwhile() -> None:
    seen: list[str] = []
    agent = agent_with()
    for name in "abcd":
        agent.hooks.add(*handlers_of(noting(seen, name), name))
    with agent.hooks.without(["c"]):
        agent.hooks.unregister(name="a")
    ask(agent)
    assert seen == ["b", "c", "d"]


def test_no_call_misses_a_handler_or_runs_it_twice_while_others_are_added() -> None:
    seen: list[str] = []
    agent = agent_with(*[noting(seen, str(number), trylast=number == 2) for number in range(3)])
    others = [list(handlers_of(noting([], "other"), f"other_{number}")) for number in range(2)]
    over = threading.Event()

    def come_and_go(handlers: list[Any]) -> None:
        while not over.is_set():
            with agent.hooks.add(*handlers), agent.hooks.without(["nobody"]):
                pass

    threads = [threading.Thread(target=come_and_go, args=(handlers,)) for handlers in others]
    for thread in threads:
        thread.start()
    try:
        for _ in range(1500):
            seen.clear()
            ask(agent)
            assert seen == ["0", "1", "2"]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert len(agent.hooks.handlers("before_each_tool")) == 3


# -- subsets, monitoring, tracing ----------------------------------------------------------------


def test_a_subset_leaves_out_plugins() -> None:
    seen: list[str] = []
    pair, note = Pair(seen), noting(seen, "function")
    agent = agent_with(pair, note, noting(seen, "other"))
    given = {"agent": agent, "tool_call": CALL}
    agent.hooks.subset_hook_caller("before_each_tool", [pair])(**given)
    agent.hooks.subset_hook_caller("before_each_tool", [note, pair])(**given)
    assert seen == ["function", "other", "other"]
    subset = agent.hooks.subset_hook_caller("before_each_tool", [pair])
    agent.hooks.unregister(note)
    subset(**given)
    assert seen[3:] == ["other"]
    assert agent.hooks.subset_hook_caller("after_llm", [pair]) is agent.hooks.hook.after_llm


def test_monitoring_sees_every_hook_of_a_turn_and_its_outcome() -> None:
    @before_each_tool
    def refuse() -> None:
        raise ToolRejected("not now")

    @after_llm
    def louder(response: LLMResponse) -> str | None:
        return response.content.upper() if response.content else None

    agent, began, ended = agent_with(refuse, louder, on_error(lambda error: None)), [], []
    undo = agent.hooks.add_hookcall_monitoring(
        lambda hook, implementations, given: began.append((hook, len(implementations))),
        lambda outcome, hook, implementations, given: ended.append((hook, outcome)),
    )
    assert agent.input("Go.") == "DONE."
    undo()
    agent.hooks.hook.after_tools(agent=agent, entries=[])
    names = [name for name, _ in began if name != "on_trace"]
    assert names == [
        *("around_turn", "on_session", "after_user_input"),
        *("before_llm", "around_llm", "after_llm"),
        *("before_tools", "before_each_tool", "after_each_tool", "after_tools"),
        *("before_llm", "around_llm", "after_llm"),
        "on_complete",
    ]
    assert ("before_each_tool", 1) in began and ("after_tools", 0) in began
    outcomes = dict(ended)
    assert isinstance(outcomes["before_each_tool"].exception, ToolRejected)
    assert outcomes["after_llm"].get_result().content == "DONE."
    assert outcomes["around_turn"].get_result() == "DONE."
    assert len(began) == len(ended)


def test_monitoring_sees_a_turn_that_runs_already() -> None:
    seen: list[str] = []

    @before_llm
    def begin(agent: Agent) -> None:
        if agent.current_session["iteration"] == 2:  # type: ignore[index]
            agent.hooks.add_hookcall_monitoring(lambda hook, *given: seen.append(hook), lambda *given: None)

    agent_with(begin).input("Go.")
    assert [name for name in seen if name != "on_trace"] == ["around_llm", "after_llm", "on_complete"]


def test_tracing_tells_hooks_and_their_values() -> None:
    @before_each_tool
    def stand_in() -> str:
        return "mine"

    agent, lines = agent_with(stand_in), []
    agent.hooks.trace.root.setwriter(lines.append)
    undo = agent.hooks.enable_tracing()
    agent.input("Go.")
    undo()
    told = "".join(lines)
    assert "before_each_tool [hook]\n" in told and "finish before_each_tool --> mine [hook]" in told
    count = len(lines)
    ask(agent)
    assert len(lines) == count


def test_the_plugins_are_listed_as_they_were_registered() -> None:
    pair, note = Pair([], "p"), noting([], "n")
    agent = agent_with(pair)
    agent.hooks.register(note, "mine")
    assert dict(agent.hooks.list_name_plugin())["mine"] is note
    assert {pair, note} <= agent.hooks.get_plugins()
    assert agent.hooks.has_plugin("mine") and agent.hooks.has_plugin("Pair") and not agent.hooks.has_plugin("other")
    agent.hooks.set_blocked("mine")
    assert note not in agent.hooks.get_plugins() and ("mine", None) in agent.hooks.list_name_plugin()
    assert agent.hooks.register(note, "mine") is None
    assert agent.hooks.unblock("mine") and agent.hooks.register(note, "mine") == "mine"


def test_a_call_without_what_a_handler_takes_is_refused_as_in_pluggy() -> None:
    @on_complete
    def louder(result: str, outcome: str) -> str:
        return result.upper()

    agent = agent_with(louder)
    for given in ({"result": "x"}, {"outcome": "answered"}):
        with pytest.warns(UserWarning, match="cannot be found"), pytest.raises(pluggy.HookCallError, match="argument"):
            agent.hooks.hook.on_complete(agent=agent, **given)
    with pytest.warns(UserWarning, match="cannot be found"):
        assert agent_with().hooks.hook.before_each_tool(tool_call=CALL) is None


def test_a_hook_without_a_contract_is_refused() -> None:
    class Specs:
        @pluggy.HookspecMarker("connectagent")
        def mine(self, x: int) -> None: ...

    with pytest.raises(PluginError, match=r"define it with @connectagent\.hookspec"):
        agent_with().hooks.add_hookspecs(Specs)


def test_a_plugin_registered_in_a_turn_brings_its_resources_and_hooks_of_others() -> None:
    from connectagent import resource

    seen: list[Any] = []

    class Late:
        @resource
        def shelf(self) -> str:
            return "the shelf"

        @after_tools
        def notes(self, shelf: str) -> None:
            seen.append(shelf)

    late = Late()

    @before_llm
    def registers(agent: Agent) -> None:
        if not agent.hooks.is_registered(late):
            agent.hooks.register(late)

    agent = agent_with(registers)
    agent.input("Hi")
    assert seen == ["the shelf"]
    agent.hooks.unregister(late)
    assert agent.resources.names() == []


class First:
    @before_each_tool
    def check(self, tool_call: Any) -> None:
        """Look at a call."""


def checking(name: str, **options: Any) -> ModuleType:
    """A plugin with a handler named `check`."""

    @before_each_tool(**options)
    def check(tool_call: Any) -> None:
        """Look at a call."""

    made = ModuleType(name)
    check.__module__, made.check = name, check  # type: ignore[attr-defined]
    return made


def test_handlers_of_one_name_in_two_plugins_keep_their_name_and_their_own_place() -> None:
    plugins = [checking("one"), checking("two", trylast=True)]
    host = Agent("a", llm=ScriptedLLM(), log=False, quiet=True, plugins=plugins).hooks
    makers = [one.by for one in host.handlers("before_each_tool")]
    assert len({by["handler"] for by in makers}) == 1 and len({by["plugin"] for by in makers}) == 2
    assert [host.is_last("before_each_tool", by) for by in makers] == [False, True]


def test_a_bound_method_is_known_whenever_it_is_taken_from_its_object() -> None:
    first, other = First(), First()
    host = Agent("a", llm=ScriptedLLM(), log=False, quiet=True, plugins=[first.check]).hooks
    assert host.is_registered(first.check) and not host.is_registered(other.check)


def test_whoever_monitors_the_calls_of_hooks_counts_as_another_plugin() -> None:
    host = Agent("a", llm=ScriptedLLM(), log=False, quiet=True).hooks
    assert "before_llm" not in host.others
    undo = host.add_hookcall_monitoring(lambda *given: None, lambda *given: None)
    assert "before_llm" in host.others
    undo()
    assert "before_llm" not in host.others


def test_the_host_knows_at_any_time_which_hooks_have_handlers_and_which_have_other_handlers_than_its_own() -> None:
    host = Agent("a", llm=ScriptedLLM(), log=False, quiet=True, plugins=[noting([], "first")]).hooks

    def agrees() -> tuple[set[str], set[str]]:
        listed = {hook: host.handlers(hook) for hook in vars(host.hook)}
        for hook, found in listed.items():  # what pluggy would call, which runs the last registered first
            registered = getattr(host.hook, hook).get_hookimpls()
            assert found == tuple(one.plugin.handler for one in reversed(registered))
        assert host.active == {hook for hook, found in listed.items() if found}
        assert host.others == {hook for hook, found in listed.items() if any(not one.builtin for one in found)}
        return set(host.active), set(host.others)

    begun = agrees()
    assert "before_each_tool" in host.others and "on_error" not in host.active
    pair, (handler,) = Pair([]), handlers_of(on_error(lambda: None), "failing")
    with host.add(handler):
        assert "on_error" in host.active & host.others
        agrees()
        with host.without(["failing"]):
            assert agrees() == begun
        agrees()
    assert agrees() == begun
    host.register(pair)
    agrees()
    host.unregister(pair)
    assert agrees() == begun
    host.register(pair, "pair")
    host.set_blocked("pair")
    assert agrees() == begun
    before = host.loaded
    host.load([])
    assert agrees() == (set(), set())
    host.load(before)
    assert agrees() == begun
    undo = host.add_hookcall_monitoring(lambda *given: None, lambda *given: None)
    assert host.active == host.others == set(vars(host.hook))
    undo()
    assert agrees() == begun
