"""The plugin tester: each wrongdoing of a plugin is found and named, and good plugins pass."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from found_faults import end_when_found
from pytest_connectagent import AgentTester, PluginFaults
from pytest_connectagent import tester as check_module
from pytest_connectagent.shared_state import Place, _content

from connectagent import (
    Agent,
    Continue,
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
    llm_do,
    on_agent_ready,
    on_complete,
    on_error,
    on_trace,
)
from connectagent.settings import overrides
from connectagent.testing import (
    HookRecorder,
    call,
)

tester = AgentTester()


def search(query: str) -> str:
    """Search the docs."""
    return f"two pages about {query}"




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
    (logs_in_a_global, {}, "shares state", ["'LOG' of the module test_plugin_tester", "'last_prompt' of the module"]),
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
def test_a_handler_that_goes_on_after_its_check_changes_nothing_of_the_process(
    hangs_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setitem(overrides, "dir", ".mine")
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
    (tmp_path / "test_mine.py").write_text(
        "from connectagent import after_tools\n\n@after_tools\ndef think(agent):\n"
        "    agent.current_session['messages'].append({'role': 'user', 'content': 'hm'})\n\n"
        "def test_it(agenttester, no_network, co_dir):\n    agenttester.check(think)\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    plugin = ["-p", "pytest_connectagent.fixtures"]  # as the distribution's entry point does
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert f"changes: after_tools handler 'think' ({tmp_path / 'test_mine.py'}:3)" in done.stdout
    assert "if it is meant" in done.stdout.lower()
    assert "tester.py" not in done.stdout
    assert len(done.stdout.splitlines()) < 35


