"""The kit for authors: each wrongdoing of a plugin is found and named, and good plugins pass."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from found_faults import end_when_found

from connectagent import (
    Agent,
    Continue,
    LLMResponse,
    PluginError,
    Retry,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    around_llm,
    around_tool,
    around_turn,
    before_each_tool,
    before_llm,
    hooks,
    llm_do,
    on_agent_ready,
    on_complete,
    on_error,
    on_trace,
)
from connectagent.hooks.specs import AROUND, EVENTS
from connectagent.settings import overrides
from connectagent.testing import (
    AgentTester,
    HookRecorder,
    NetworkRefused,
    PluginFaults,
    ScriptedLLM,
    ScriptEnded,
    call,
    conversation_problems,
    crash_at,
    no_network,
    run_agent,
)
from connectagent.testing.plugin_tester import tester as check_module
from connectagent.testing.plugin_tester.paths import PATHS, TOOLS, PathModel
from connectagent.testing.plugin_tester.shared_state import Place, _content

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
tester = AgentTester()


def search(query: str) -> str:
    """Search the docs."""
    return f"two pages about {query}"


# -- one finished turn ---------------------------------------------------------------------------


def test_run_agent_gives_a_finished_turn(co_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    turn = run_agent(call("search", query="x"), "Done.", prompt="Look.", tools=[search])
    assert (turn.result, turn.error) == ("Done.", None)
    assert [message["role"] for message in turn.messages] == ["user", "assistant", "tool", "assistant"]
    assert [entry["type"] for entry in turn.trace] == ["user_input", "llm_call", "tool_execution", "llm_call"]
    assert turn.hooks.of("after_user_input") == [{"prompt": "Look."}]
    assert len(turn.llm.requests) == 2
    assert turn.agent.name == "tested"
    assert not co_dir.exists()
    assert capfd.readouterr() == ("", "")


def test_run_agent_writes_and_shows_where_it_is_asked_to(co_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_agent("Done.", log=None, quiet=False, name="loud")
    assert list(co_dir.glob("evals/loud_*.yaml"))
    assert "loud" in capfd.readouterr().err


@pytest.mark.parametrize("error", [OSError("down"), KeyboardInterrupt()])
def test_run_agent_keeps_what_the_turn_raised(error: BaseException) -> None:
    turn = run_agent(error)
    assert turn.error is error
    assert turn.result is None
    assert turn.messages[0]["content"] == "Go."


def test_a_script_that_is_too_short_is_the_tests_mistake() -> None:
    with pytest.raises(ScriptEnded, match="called 2 times"):
        run_agent(call("search", query="x"), tools=[search])
    with pytest.raises(TypeError, match="not both"):
        run_agent("Done.", llm=ScriptedLLM("Done."))


# -- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk"), SystemExit(3)])
@pytest.mark.parametrize("point", [*EVENTS, *AROUND, *(f"{hook}:exit" for hook in AROUND), "on_trace", "model", "tool"])
def test_a_crash_happens_at_its_point_and_the_next_turn_is_whole(point: str, error: Any) -> None:
    crash = crash_at(point, error=error)

    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    llm = ScriptedLLM(*[[call("fail"), call("search", query="x")], "Done."] * 5)
    turn = run_agent(llm=llm, tools=[fail, search], plugins=[crash])
    assert crash.fired
    if point == "tool" and not isinstance(error, type):  # the tool's own error, which the model reads
        assert turn.error is None
    else:
        assert turn.error is error or isinstance(turn.error, error if isinstance(error, type) else type(error))
    assert str(turn.agent.input("Go on.")) == "Done."
    assert conversation_problems(turn.messages) == []


def test_a_crash_counts() -> None:
    crash = crash_at("before_llm", nth=2, error=ValueError)
    turn = run_agent(call("search", query="x"), "Done.", tools=[search], plugins=[crash])
    assert isinstance(turn.error, ValueError)
    assert (crash.seen, turn.hooks.names.count("after_tools")) == (2, 1)
    assert not (missed := crash_at("before_llm", nth=3)).fired
    assert run_agent("Done.", plugins=[missed]).result == "Done."


def test_a_crash_in_a_tool_or_a_model_is_no_handlers() -> None:
    turn = run_agent(call("search", query="x"), "Done.", tools=[search], plugins=[crash_at("tool", error=OSError("x"))])
    assert turn.trace[2]["status"] == "error"
    turn = run_agent("Done.", plugins=[crash_at("model", error=OSError("x")), on_error(_recover)])
    assert turn.result == "recovered"


def _recover(error: Exception) -> str:
    return "recovered"


def test_a_crash_while_streaming_and_while_an_agent_is_made() -> None:
    turn = run_agent("one two", plugins=[crash_at("on_text", nth=2)], stream=True)
    assert isinstance(turn.error, KeyboardInterrupt)
    assert isinstance(run_agent("Done.", plugins=[crash_at("model")], stream=True).error, KeyboardInterrupt)
    with pytest.raises(ValueError, match="early"):
        run_agent("Done.", plugins=[crash_at("on_agent_ready", error=ValueError("early"))])


def test_a_crash_that_cannot_be_meant_is_told() -> None:
    with pytest.raises(ValueError, match="Did you mean 'after_tools'"):
        crash_at("after_tolls")
    with pytest.raises(ValueError, match="counts from 1"):
        crash_at("after_tools", nth=0)
    with pytest.raises(TypeError, match="raises an exception"):
        crash_at("after_tools", error="boom")  # type: ignore[arg-type]


# -- the network ---------------------------------------------------------------------------------

FAR = ("203.0.113.7", 443)  # reserved for documentation: nobody is there


def test_no_connection_leaves_the_machine(no_network: Any) -> None:
    with socket.socket() as one, pytest.raises(NetworkRefused, match=r"203.0.113.7:443.*allow=\['203.0.113.7:443'\]"):
        one.connect(FAR)
    with socket.socket() as one, pytest.raises(NetworkRefused):
        one.connect_ex(FAR)
    with pytest.raises(NetworkRefused, match=r"example\.org:80"):
        socket.getaddrinfo("example.org", 80)
    with pytest.raises(NetworkRefused, match=r"example\.org:80"):
        socket.create_connection(("example.org", 80))
    with socket.socket(socket.AF_INET6) as one, pytest.raises(NetworkRefused, match=r"\[2001:db8::1\]:80"):
        one.connect(("2001:db8::1", 80))
    assert no_network.refused == [
        "203.0.113.7:443", "203.0.113.7:443", "example.org:80", "example.org:80", "[2001:db8::1]:80",
    ]  # fmt: skip


def test_this_machine_can_be_reached(no_network: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as one:
        server.bind(str(tmp_path / "s"))
        server.listen()
        one.connect(str(tmp_path / "s"))


def test_asyncio_and_threads_are_guarded_too(no_network: Any) -> None:
    with pytest.raises(NetworkRefused):
        asyncio.run(asyncio.wait_for(asyncio.open_connection(*FAR), 5))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_refused()))
    thread.start()
    thread.join()
    assert found == [True]


def _refused() -> bool:
    try:
        socket.getaddrinfo("example.org", 80)
    except NetworkRefused:
        return True
    except OSError:  # there is no network here, but nobody refused it
        return False
    return False


def test_guards_nest_and_leave_nothing_behind() -> None:
    before = (socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo)
    with no_network():
        assert _refused()
        with no_network(allow=["example.org"]):
            assert not _refused()
        with no_network(allow=["EXAMPLE.org:80"]), pytest.raises(NetworkRefused, match=r"example\.org:81"):
            socket.getaddrinfo("example.org", 81)
        assert _refused()
    assert (socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo) == before
    assert "connect" not in vars(socket.socket)
    outer, inner = no_network(), no_network()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)  # in another order, as threads leave them
    assert _refused()
    inner.__exit__(None, None, None)
    assert socket.getaddrinfo is before[2]
    with pytest.raises(TypeError, match="one str"):
        no_network(allow="example.org")


def test_the_addresses_of_a_name_that_is_allowed_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
        with no_network(allow=[f"api.test:{port}"]) as guard:
            socket.getaddrinfo("api.test", port)
            guard.check("203.0.113.7", port)
            with pytest.raises(NetworkRefused):
                guard.check("203.0.113.7", port + 1)


# -- the tester: what is wrong is found ----------------------------------------------------------


def messages_of(agent: Agent) -> Any:
    assert agent.current_session is not None
    return agent.current_session["messages"]


def state_of(agent: Agent) -> Any:
    assert agent.current_session is not None
    return agent.current_session["state"]


@after_tools
def drops_results(agent: Agent) -> None:
    messages = messages_of(agent)
    messages[:] = [message for message in messages if message["role"] != "tool"]


@after_tools
def asks_without_an_answer(agent: Agent) -> None:
    made = {"id": "mine", "type": "function", "function": {"name": "do_work", "arguments": "{}"}}
    messages_of(agent).append({"role": "assistant", "content": None, "tool_calls": [made]})


@after_tools
def puts_a_message_between(agent: Agent) -> None:
    messages_of(agent).insert(-1, {"role": "user", "content": "hm"})


@before_llm
def trims_one_request(request: Any) -> None:
    request.messages = [message for message in request.messages if message["role"] != "tool"]


@after_tools
def leaves_no_message(agent: Agent) -> None:
    messages_of(agent).append({"role": "robot"})


@after_user_input
def counts_in_the_state(agent: Agent) -> None:
    state_of(agent)["count"] = 1


@before_each_tool
def sets_a_key(agent: Agent) -> None:
    agent.current_session["mine"] = 1  # type: ignore[index,typeddict-unknown-key]


@on_complete
def adds_an_entry(agent: Agent) -> None:
    agent.current_session["trace"].append({"type": "mine"})  # type: ignore[index]


@before_llm
def hides_the_tools(request: Any) -> None:
    request.tools = []


@after_llm
def shouts(response: Any) -> None:
    response.content = (response.content or "").upper() + "!"


@before_llm
def answers_itself() -> str:
    return "I know."


@before_each_tool
def edits_arguments(tool_call: Any) -> None:
    tool_call.arguments["x"] = 5


@after_each_tool
def signs(result: Any) -> str:
    return f"{result} (signed)"


@around_tool
def hides_errors(tool_call: Any) -> Iterator[Any]:
    try:
        return (yield)
    except Exception:
        return "all well"


@before_each_tool
def rejects() -> None:
    raise ToolRejected("no")


@on_error
def tries_again() -> Retry:
    return Retry(after_s=1000)


@on_error
def recovers(error: Exception) -> str:
    return "never mind"


@after_tools
def ends(agent: Agent) -> None:
    agent.end_turn("enough")


@on_complete
def goes_on() -> Continue:
    return Continue("more")


@on_agent_ready
def brings_a_tool(agent: Agent) -> None:
    agent.add_tool(search)


@before_llm
def switches_the_model(agent: Agent) -> None:
    agent.llm = agent.create_llm("other")


@on_error
def needs_a_call(tool_call: Any) -> None:
    print(tool_call.name)


@after_llm
def returns_a_dict() -> Any:
    return {"content": "x"}


@around_turn
def never_resumed(prompt: str) -> Iterator[None]:
    yield
    yield


class Counter:
    def __init__(self) -> None:
        self.turns = 0

    @on_complete
    def count(self) -> None:
        self.turns += 1


class Collector:
    seen: list[str] = []  # noqa: RUF012  the mistake that is to be found

    @after_user_input
    def collect(self, prompt: str) -> None:
        self.seen.append(prompt)


class Nested:
    def __init__(self) -> None:
        self.memory = Memory()

    @on_trace
    def note(self, entry: Any) -> None:
        self.memory.note(entry["type"])


class Memory:
    __slots__ = ("noted",)

    def __init__(self) -> None:
        self.noted: dict[str, set[str]] = {}

    def note(self, kind: str) -> None:
        self.noted.setdefault(kind, set()).add(f"{kind}{len(self.noted.get(kind, ()))}")


LOG: list[str] = []
last_prompt = ""


def _write(text: str) -> None:
    global last_prompt
    last_prompt = f"{text}{len(LOG)}"
    LOG.append(text)


@after_user_input
def logs_in_a_global(prompt: str) -> None:
    _write(prompt)


def closure() -> Any:
    seen: list[str] = []

    @after_user_input
    def remembers(prompt: str) -> None:
        seen.append(prompt)

    return remembers


@after_user_input
def keeps_in_a_default(prompt: str, *, _seen: list[str] = []) -> None:  # noqa: B006
    _seen.append(prompt)


@around_llm
def swallows() -> Iterator[None]:
    try:
        yield
    except BaseException:
        return


@around_tool
def converts(tool_call: Any) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        raise RuntimeError("the tool was cut off") from error


@on_error
def careless(error: Exception) -> None:
    try:
        str(error).upper()
    except:  # noqa: E722
        return


@after_tools
def asks_and_swallows(agent: Agent) -> None:
    try:
        llm_do("What now?", llm=agent.llm)
    except BaseException:
        return


@on_complete
def finally_returns(result: str) -> None:
    try:
        result.strip()
    finally:
        return None  # noqa: B012


WRONG: list[tuple[Any, dict[str, Any], str, list[str]]] = [
    (drops_results, {"changes": {"messages"}}, "order", ["broke the conversation", "before the results of"]),
    (asks_without_an_answer, {"changes": {"messages"}}, "order", ["before the results of ['mine']"]),
    (puts_a_message_between, {"changes": {"messages"}}, "order", ["user comes before the results"]),
    (trims_one_request, {"changes": {"request"}}, "order", ["left a request.messages that no provider takes"]),
    (leaves_no_message, {"changes": {"messages"}}, "raises", ["HookResultError", "robot"]),
    (counts_in_the_state, {}, "changes", ["changed state['count']", "changes={'state'}"]),
    (sets_a_key, {}, "changes", ["changed session['mine']", "changes={'session'}"]),
    (adds_an_entry, {}, "changes", ["added the trace entry {'type': 'mine'}", "changes={'trace'}"]),
    (hides_the_tools, {}, "changes", ["changed request", "changes={'request'}"]),
    (shouts, {}, "changes", ["changed response", "changes={'response'}"]),
    (answers_itself, {}, "changes", ["returned 'I know.'", "changes={'response'}"]),
    (edits_arguments, {}, "changes", ["changed tool_call", "changes={'arguments'}"]),
    (signs, {}, "changes", ["(signed)", "changes={'result'}"]),
    (hides_errors, {}, "changes", ["returned 'all well'", "changes={'result'}"]),
    (rejects, {}, "changes", ["rejected a call: 'no'", "changes={'rejection'}"]),
    (tries_again, {}, "changes", ["had the call made again", "changes={'retry'}"]),
    (recovers, {"changes": {"result"}}, "changes", ["recovered the call", "changes={'response'}"]),
    (recovers, {"changes": {"response"}}, "changes", ["recovered the call", "changes={'result'}"]),
    (ends, {}, "changes", ["ended the turn", "changes={'turn'}"]),
    (goes_on, {}, "changes", ["let the turn go on with 'more'", "changes={'turn'}"]),
    (brings_a_tool, {}, "changes", ["changed agent.tools", "'search'", "changes={'tools'}"]),
    (switches_the_model, {}, "changes", ["changed agent.llm", "changes={'agent'}"]),
    (needs_a_call, {"changes": {"terminal"}}, "raises", ["a model's error", "raises=[AttributeError]"]),
    (returns_a_dict, {}, "raises", ["HookResultError", "after_llm takes None, LLMResponse, str"]),
    (never_resumed, {}, "raises", ["yields more than once"]),
    (Counter(), {}, "shares state", ["'turns' of the Counter object", "shares_state=True"]),
    (Collector, {}, "shares state", ["'seen' of the class Collector"]),
    (Nested(), {}, "shares state", ["'memory' of the Nested object"]),
    (logs_in_a_global, {}, "shares state", ["'LOG' of the module test_testing", "'last_prompt' of the module"]),
    (closure(), {}, "shares state", ["'seen' of the function remembers"]),
    (keeps_in_a_default, {}, "shares state", ["'_seen' of the function keeps_in_a_default"]),
    (swallows, {}, "interrupts", ["swallowed KeyboardInterrupt", "catch Exception"]),
    (converts, {"raises": [RuntimeError], "leave_out": "differs"}, "interrupts", ["was turned into RuntimeError"]),
    (careless, {}, "interrupts", ["swallowed a Ctrl-C at", "input() returned 'Done.'"]),
    (asks_and_swallows, {}, "interrupts", ["swallowed Ctrl-C", "the plugin itself asks"]),
    (finally_returns, {}, "interrupts", ["swallowed a Ctrl-C at"]),
]  # fmt: skip


def name(plugin: Any) -> str:
    return str(getattr(plugin, "__name__", type(plugin).__name__))


@pytest.mark.parametrize(("plugin", "options", "rule", "words"), WRONG, ids=[name(case[0]) for case in WRONG])
def test_a_wrongdoing_is_found_and_named(
    plugin: Any,
    options: dict[str, Any],
    rule: str,
    words: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end_when_found(rule, words, monkeypatch)
    with pytest.raises(PluginFaults) as found:
        tester.check(plugin, **options)
    text = str(found.value)
    assert {fault.rule for fault in found.value.faults} == {rule}
    for word in [f"{rule}: ", __file__, "on the path: ", *words]:
        assert word in text
    assert len(text.splitlines()) < 30


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        (swallows, {"changes": {"interrupts"}}),
        (shouts, {"changes": "response"}),
        (Counter(), {"shares_state": True}),
        (Counter, {}),
        (lambda: Counter(), {}),
        (closure, {}),
        ([Counter, closure], {}),
        (HookRecorder, {}),
        (needs_a_call, {"raises": [AttributeError], "changes": {"terminal"}}),
        (tries_again, {"changes": ["retry"]}),
        (brings_a_tool, {"changes": {"tools"}}),
        ([ends, goes_on], {"changes": {"turn"}}),
    ],
)
def test_what_is_declared_or_an_agents_own_is_no_fault(
    plugin: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = take_fewer_paths(monkeypatch, 5)  # plugins' own tests take more of the paths
    assert tester.check(plugin, **options).turns > 300 / step


def take_fewer_paths(monkeypatch: pytest.MonkeyPatch, step: int) -> int:
    """Let checks take one path in so many, or with CONNECTAGENT_TESTER=all each; returns that number."""
    step = 1 if os.environ.get("CONNECTAGENT_TESTER") == "all" else step
    for name in ("PATHS", "PLAIN"):
        paths = getattr(check_module, name)
        monkeypatch.setattr(check_module, name, paths[::step])
    return step


class Lazy:
    """Makes a client when it is first needed, as many plugins do: the same for all agents, and no conversation's."""

    def __init__(self) -> None:
        self.client: Any = None
        self.lock = threading.Lock()

    @after_tools
    def send(self) -> None:
        with self.lock:
            self.client = self.client or object()


def test_what_is_made_once_for_all_agents_is_not_shared_state() -> None:
    tester.check(Lazy())


class Busy:
    """Changes its attributes in a thread of its own."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.over = False

    def work(self) -> None:
        number = 0
        while not self.over:
            number += 1
            setattr(self, f"a{number % 50}", number)
            self.seen[number % 37] = number
            self.__dict__.pop(f"a{(number + 25) % 50}", None)
            self.seen.pop((number + 18) % 37, None)


def test_an_object_that_a_thread_changes_meanwhile_is_read() -> None:
    busy = Busy()
    thread = threading.Thread(target=busy.work, daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(300):
            assert "seen" in _content(Place(busy, "the object"))
    finally:
        busy.over = True
        sys.setswitchinterval(interval)
        thread.join()


class Locked:
    lock = threading.Lock()

    @after_tools
    def work(self, agent: Agent) -> None:
        with (
            self.lock,
        ):
            len(agent.tools)
        self.lock.acquire()
        try:
            len(agent.tools)
        finally:
            self.lock.release()


def test_no_lock_is_left_locked() -> None:
    tester.check(Locked())
    assert not Locked.lock.locked()


DECLARED: dict[str, dict[str, Any]] = {
    "approve_before_tools": {"changes": {"rejection"}},
    "cache_answers": {"changes": {"response"}, "shares_state": True},
    "hand_over": {"changes": {"terminal"}},
    "log_each_tool": {"changes": {"terminal?"}},  # as the program has set up logging
    "recover_failing_model": {"changes": {"retry", "response"}},
    "recover_failing_tool": {"changes": {"retry", "result?"}},  # a result on few paths only
    "redact_secrets": {"changes": {"response", "result"}},
    "reflect_after_tools": {"changes": {"messages"}},
    "watch_context": {"changes": {"request?", "terminal?"}},  # the conversations of the paths are short
}


def test_every_example_that_brings_handlers_is_declared() -> None:
    marked = [
        path.stem
        for path in EXAMPLES.glob("*.py")
        if re.search(r"^ *@(on|before|after|around)_", path.read_text("utf-8"), re.M)
    ]
    assert sorted(marked) == sorted(DECLARED)


@pytest.mark.parametrize("path", [EXAMPLES / f"{name}.py" for name in DECLARED], ids=lambda path: path.stem)
def test_the_examples_keep_the_rules(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin: Any = str(path)
    take_fewer_paths(monkeypatch, 3)
    if path.stem == "cache_answers":
        scope: dict[str, Any] = {"__name__": "cache_answers"}
        exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)
        plugin = scope["Cache"]()
    tester.check(plugin, **DECLARED[path.stem])


def test_a_check_takes_less_than_five_seconds() -> None:
    started = time.process_time()  # of this process alone: the machine may be busy
    tester.check(str(EXAMPLES / "redact_secrets.py"), changes={"response", "result"})
    assert time.process_time() - started < 5


# -- the tester: its ways ------------------------------------------------------------------------


def test_an_author_can_bring_tools_responses_and_answers() -> None:
    asked: list[str] = []
    searched: list[str] = []

    def find(query: str) -> str:
        """Find."""
        searched.append(query)
        return "found"

    @after_tools
    def think(agent: Agent) -> None:
        asked.append(llm_do("What now?", llm=agent.llm))

    with pytest.raises(PluginFaults, match="'asked' of the function think"):
        tester.check(think, tools=[find], responses=[call("find", query="x"), "Done."], answers=["This.", "That."])
    assert searched
    assert set(asked) == {"This.", "That."}


@pytest.mark.parametrize(
    ("plugin", "options", "error", "words"),
    [
        (shouts, {"changes": {"respond"}}, ValueError, "Did you mean 'response'"),
        (search, {}, PluginError, "'search' needs 'query'"),
        (Memory, {}, PluginError, "not marked for a hook"),
        (lambda: None, {}, PluginError, "not marked for a hook"),
        ("nobody-has-this", {}, PluginError, "nobody-has-this"),
        (object(), {}, PluginError, "not marked for a hook"),
    ],
)
def test_what_is_no_plugin_is_told_at_once(plugin: Any, options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        tester.check(plugin, **options)


@pytest.mark.parametrize("hangs_in", ["a turn", "replay"])
def test_a_handler_that_goes_on_after_its_check_changes_nothing_of_the_process(hangs_in: str) -> None:
    going_on = threading.Event()
    threads = set()

    @before_llm
    def hangs(agent: Agent) -> None:
        if (os.environ.get("TZ") == before) is (hangs_in == "a turn"):
            threads.add(threading.current_thread())
            going_on.wait(20)

    before = os.environ.get("TZ")
    with pytest.raises(PluginFaults) as found:
        tester.check(hangs, limit_s=0.2)
    assert {fault.rule for fault in found.value.faults} == {"hangs"}
    assert os.environ.get("TZ") == before
    overrides["dir"] = ".mine"
    going_on.set()
    for thread in threads:
        thread.join(20)
    assert overrides["dir"] == ".mine"
    assert os.environ.get("TZ") == before


def test_the_terminal_and_the_tracing_of_the_caller_are_left_as_they_are() -> None:
    def trace(*_: Any) -> None:
        return None

    before, stdin = sys.gettrace(), sys.stdin
    sys.settrace(trace)
    try:
        tester.check(Lazy())
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert sys.stdin is stdin


def test_a_failure_is_readable_in_the_output_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["connectagent.testing"]\n')
    (tmp_path / "test_mine.py").write_text(
        "from connectagent import after_tools\n\n@after_tools\ndef think(agent):\n"
        "    agent.current_session['messages'].append({'role': 'user', 'content': 'hm'})\n\n"
        "def test_it(agenttester, no_network, co_dir):\n    agenttester.check(think)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert f"changes: after_tools handler 'think' ({tmp_path / 'test_mine.py'}:3)" in done.stdout
    assert "if it is meant" in done.stdout.lower()
    assert "tester.py" not in done.stdout
    assert len(done.stdout.splitlines()) < 35


def test_the_paths_are_those_of_the_hook_table() -> None:
    from test_hook_table import PATHS as TABLE
    from test_hook_table import seen, spelled_out

    reached = set()
    for path in PATHS:
        recorder, llm = HookRecorder(), PathModel(path, ["Noted."])
        options: dict[str, Any] = {"max_iterations": path.limit, "stream": True, "tools": list(TOOLS)}
        turn = run_agent(llm=llm, plugins=[recorder, *path.drivers()], **options)
        assert turn.hooks.names == recorder.names
        reached.add(shape(seen(recorder)))
    missing = [row.name for row in TABLE if shape(spelled_out(row.hooks)) not in reached]
    assert missing == []


def shape(names: list[str]) -> str:
    """A path without how often it goes round: several calls or rounds in a row are one."""
    words = [word for index, word in enumerate(names) if names[index - 1 : index] != [word]]
    again = True
    while again:
        again = False
        for length in range(2, 12):
            for start in range(len(words) - 2 * length + 1):
                if words[start : start + length] == words[start + length : start + 2 * length]:
                    del words[start : start + length]
                    again = True
                    break
    return " ".join(words)


def test_the_kit_loads_without_pytest_and_nothing_heavy() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\nimport connectagent.testing as kit\n"
        "heavy = ('openai', 'anthropic', 'pydantic', 'rich', 'yaml', 'click', 'asyncio')\n"
        "print([name for name in heavy if name in sys.modules], kit.run_agent('Hi.').result)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout.strip() == "[] Hi.", done.stderr


def test_the_recorder_of_a_stand_in_is_told_apart_from_a_models_answer() -> None:
    turn = run_agent("never asked", plugins=[hooks.before_llm(lambda: LLMResponse("I know."))])
    assert (turn.result, turn.llm.requests) == ("I know.", [])
