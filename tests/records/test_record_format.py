"""docs/record-format.md lists each entry type and key that a record can have, and no other.

The sessions below are made to bring about all of them; what they write is compared with the page in both directions.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from entry_types import fields, misfit_dict
from wire_server import Answer, WireServer, chat

from connectagent import (
    Agent,
    Continue,
    Image,
    LLMResponse,
    Loop,
    Parallel,
    Pause,
    Paused,
    ProviderError,
    Retry,
    TokenUsage,
    Tool,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    around_llm,
    around_tool,
    before_each_tool,
    before_llm,
    before_tools,
    llm_do,
    on_agent_ready,
    on_complete,
    on_error,
    on_session,
    on_trace,
    shadow,
    tool,
)
from connectagent.agents.rewind import take_back
from connectagent.models.openai import OpenAILLM
from connectagent.records.read import load_record
from connectagent.session.entries import ENTRIES, By
from connectagent.session.journal import LINES
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM, call

PAGE = (Path(__file__).parents[2] / "docs" / "record-format.md").read_text(encoding="utf-8")
EVERYWHERE = "Keys of every line"
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000"
    "01f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
BUSY = ProviderError("busy", kind="rate_limit", provider="x", status=429, retry_after_s=0.01)
BUSY.retries = [{"status": 429}]
BUSY.finish_reason = "error"


def tables() -> dict[str, set[str]]:
    """The keys that the page lists under each of its headings."""
    found: dict[str, set[str]] = {}
    for section in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if "| key | holds |" in body:
            found[title.strip("`")] = set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE))
    return found


def agent(name: str, tools: Any, *script: Any, **options: Any) -> Agent:
    return Agent(name, tools, llm=ScriptedLLM(*script), quiet=True, **options)


def work(x: int = 1) -> dict[str, int]:
    """Work."""
    return {"x": x}


def fail() -> str:
    """Fail."""
    raise OSError("no")


CALL = ("work", {"x": 2})


# -- sessions ------------------------------------------------------------------------------------


def a_session_that_begins_with_something() -> None:
    script = (CALL, "Done.", '{"value": 1}')
    one = agent("begins", [work], *script, max_iterations=5, state={"left": 1}, system_prompt="{left}")
    one.input(["Look.", Image(DOT)], max_iterations=4)
    one.execute_tool("work")
    one.current_session["state"]["left"] = 2
    one.current_session["messages"].append({"role": "user", "content": "By the way."})
    one.input("Again", output=int)


def handlers_that_decide() -> None:
    @after_user_input
    def greet(agent: Any, prompt: str) -> str | None:
        agent.current_session["messages"].append({"role": "user", "content": "Be kind."})
        return "Hello." if prompt == "greet" else None

    @before_llm
    def stand_in(agent: Any, request: Any) -> str | None:
        state = agent.current_session["state"]
        if agent.current_session["user_prompt"] != "stand in":
            state["old"] = 1
            return None
        state["new"] = 2
        del state["old"]
        request.options["temperature"] = 0
        return "Instead."

    @after_llm
    def edit(agent: Any, response: Any) -> str | None:
        agent.current_session["mood"] = "good"
        agent.current_session["messages"][0]["content"] += "!"
        time.sleep(0.006)
        return f"{response.content}." if response.content else None

    @after_tools
    def forget(agent: Any) -> None:
        agent.current_session["trace"].append({"type": "log", "text": "forgets"})
        messages = agent.current_session["messages"]
        messages.append({"role": "user", "content": "Never mind."})
        del messages[0]

    one = agent("decides", [work], CALL, "Done.", "Hm.", on_events=[greet, stand_in, edit, forget])
    for prompt in ("work", "greet", "stand in"):
        one.input(prompt)


def handlers_about_tools() -> None:
    @before_each_tool
    def guard(agent: Any, tool_call: Any) -> Any:
        state = agent.current_session["state"]
        x = tool_call.arguments.get("x")
        if x == 3:
            state["old"] = tool_call.arguments["x"] = 33
        if x == 4:
            state["new"] = state.pop("old")
            raise ToolRejected("no")
        return "instead" if x == 5 else None

    @around_tool
    def other(tool_call: Any) -> Iterator[Any]:
        yield
        if tool_call.arguments.get("x") == 6:
            return "something else"
        return None

    @after_each_tool
    def sign(agent: Any, result: Any, entry: Any) -> str:
        if entry["status"] == "rejected":
            agent.current_session["state"]["old"] = agent.current_session["state"].pop("new")
        return f"{result}, signed"

    rounds = [[("work", {"x": x}) for x in range(3, 7)], [("nothing", {})], "Done."]
    agent("guarded", [work], *rounds, on_events=[guard, other, sign]).input("Go")


def attempts_that_fail() -> None:
    @on_error
    def again(error: Any, tool_call: Any) -> Any:
        return Retry() if str(error) in ("busy", "no") else "recovered"

    @around_llm
    def lose(agent: Any) -> Iterator[Any]:
        response = yield
        agent.current_session["state"]["answers"] = True
        if response.content == "lose it":
            raise KeyboardInterrupt

    @before_llm
    def options(request: Any) -> None:
        request.options["top_p"] = 0.1

    usage = TokenUsage(10, 5, cost=0.1)
    answer = LLMResponse("Done.", usage=usage, finish_reason="stop", provider_data={"provider": "x"})
    script = [BUSY, OSError("down"), [("once", {})], answer, "lose it"]

    class Configured(ScriptedLLM):
        def __init__(self, *responses: Any) -> None:
            super().__init__(*responses)
            self.options = {"top_p": 0.5}

        def with_options(self, options: Any) -> Any:
            return self

    failed = iter([True])

    def once() -> str:
        """Fail once."""
        if next(failed, False):
            raise OSError("no")
        return "yes"

    one = Agent("fails", [once], llm=Configured(*script), on_events=[again, lose, options], quiet=True)
    one.input("Go")
    one.input("Go")
    with pytest.raises(KeyboardInterrupt):
        one.input("Go")


def a_request_that_is_made_again() -> None:
    busy = Answer({"error": {"message": "busy"}}, 429, {"retry-after-ms": "1"})
    with WireServer(busy, chat("Done.")) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url)
        Agent("waits", llm=llm, quiet=True).input("Go.")


def a_turn_that_ends_early_and_one_that_goes_on() -> None:
    def stop(agent: Any) -> None:
        """Stop."""
        agent.end_turn("Stopped.", scope="turn", outcome="stopped")

    @before_llm
    def budget(agent: Any, request: Any) -> None:
        request.messages = [*request.messages]
        if agent.current_session["user_prompt"] == "end":
            agent.end_turn("No money.")

    @on_complete
    def more(agent: Any, result: str) -> Any:
        return Continue("Sure?") if result == "Perhaps." else None

    @around_llm
    def enough(agent: Any) -> Iterator[Any]:
        response = yield
        if response.content == "Enough.":
            agent.end_turn("It is enough.")

    one = agent("ends", [stop], "Perhaps.", "Yes.", ("stop", {}), "Enough.", on_events=[budget, more, enough])
    for prompt in ("go on", "stop", "enough", "end"):
        one.input(prompt)


def messages_that_are_mended() -> None:
    @before_llm
    def break_order(agent: Any) -> None:
        agent.current_session["messages"].insert(-1, {"role": "tool", "tool_call_id": "lost", "content": "?"})

    agent("mended", None, "Done.", on_events=[break_order]).input("Go")


def a_handler_that_asks() -> None:
    @after_llm
    def first(response: Any) -> str:
        return response.content + "!"

    @after_llm
    def critic(response: Any) -> None:
        llm_do("Is it good?", llm=ScriptedLLM("It is."))
        with contextlib.suppress(OSError):
            llm_do("Is it?", llm=ScriptedLLM(OSError("down")))

    agent("asks", None, "Done.", on_events=[first, critic]).input("Go")

    @on_complete
    def end(agent: Any) -> None:
        agent.end_turn("Enough.")

    @on_complete
    def asks() -> None:
        llm_do("Is it good?", llm=ScriptedLLM("It is."))

    agent("asks_last", None, "Done.", on_events=[end, asks]).input("Go")


def a_shadowed_plugin() -> None:
    @before_each_tool
    def no(agent: Any) -> None:
        agent.add_tool(fail)
        agent.current_session["state"]["x"] = 1
        raise ToolRejected("no")

    @after_each_tool
    def other() -> str:
        return "other"

    agent("shadowed", [work], CALL, "Done.", plugins=[shadow([no, other])]).input("Go")


def an_error_that_stops_the_turn() -> None:
    one = agent("stops", None, OSError("down"), "Done.")
    with pytest.raises(OSError):
        one.input("Go")
    one.resume(one.record)


def a_call_that_is_changed_behind_a_guard() -> None:
    @before_each_tool
    def guard(agent: Any) -> None:
        agent.current_session["trace"].pop()

    @before_each_tool
    def rename(tool_call: Any) -> None:
        tool_call.name, tool_call.arguments = "work", {"x": 3}

    agent("renames", [work], ("play", {"x": 2}), "Done.", plugins=[guard, rename]).input("Go")


def arguments_in_another_spelling() -> None:
    agent("spells", [work], ("work", {"x": "2"}), "Done.").input("Go")


def a_pause_that_is_decided_elsewhere() -> None:
    def payer(*script: Any) -> Agent:
        @before_each_tool
        def count(agent: Any, tool_call: Any) -> None:
            tool_call.arguments["x"] = 3

        @before_each_tool
        def ask(agent: Any) -> None:
            raise Pause("sure?")

        @on_session
        def greet(agent: Any) -> None:
            agent.state["greeted"] = True

        return agent("payer", [work], *script, plugins=[count, ask, greet])

    first = payer(CALL, "Done.")
    with pytest.raises(Paused):
        first.input("Pay")
    record: Any = first.record
    overrides["plugins"] = ["no:ask"]
    try:
        payer("Paid.", "More.").resume(record, approve=True)
        payer("Done.").resume(record, place="1", fork=True)
        payer("Done.").for_session("ticket-7").turn("Wait.")
        payer("Done.").input("Pay")
    finally:
        overrides.pop("plugins", None)


def a_tool_that_is_carried_out_elsewhere() -> None:
    one = agent("elsewhere", [Tool("show", "Show it.", {})], call("show"), "Done.")
    with pytest.raises(Paused):
        one.input("Go")
    one.resume(answer="shown")


def pauses_of_other_kinds() -> None:
    for place, decision in (("llm", {"answer": "Instead."}), ("tools", {"reject": "no"}), ("tool", {"answer": 3})):

        def ask(agent: Any) -> None:
            """Ask."""
            raise Pause("sure?")

        @after_user_input
        def value(agent: Any) -> None:
            agent.current_session["state"]["x"] = 1

        @before_llm
        def end(agent: Any) -> None:
            agent.end_turn("Enough.")

        @before_tools
        def ask_about_round(agent: Any) -> None:
            raise Pause("sure?")

        handlers = {"llm": [end, before_llm(ask)], "tools": [ask_about_round], "tool": []}[place]
        before = [] if place == "llm" else [call("work", x=1)]  # which may have its result while the other call waits
        calls, handlers = [*before, call("ask")], [value, *handlers]
        one = agent(f"pauses_{place}", [work, ask], calls, "Done.", on_events=handlers, parallel_tools=2)
        with pytest.raises(Paused):
            one.input("Go")
        one.resume(one.record, **decision)


def content_that_a_provider_refuses() -> None:
    """An image of a tool, and a tool's schema; an image with a wrong type is adapted before."""
    refused: dict[str, Any] = {"kind": "bad_request", "provider": "x", "status": 400}
    image = ProviderError("messages.2.content.0.image.source.base64: Could not process image", **refused)
    schema = ProviderError("tools.0.custom.input_schema: JSON schema is invalid.", **refused)

    def look() -> Image:
        """Look."""
        return Image(DOT, media_type="image/jpeg")

    with pytest.warns(RuntimeWarning, match="'look' is left out"):
        agent("refused", [look], schema, call("look"), image, "Done.").input("Go")
    with WireServer(chat("Seen.")) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url)
        Agent("adapted", llm=llm, quiet=True).input(["What is it?", Image(DOT, media_type="image/jpeg")])


def agents_inside() -> None:
    def stop(agent: Any) -> None:
        """Stop."""
        agent.current_session["state"].update(done=True, path=["stop"])
        agent.current_session["state"].pop("old", None)
        agent.end_turn("Stopped.", scope="loop")

    billing = agent("billing", None, [("transfer_to_agent", {"agent_name": "desk"})], "Bill.", system_prompt="Bills.")
    desk = agent("desk", None, ("transfer_to_agent", {"agent_name": "billing"}), "Back.", sub_agents=[billing])
    desk.input("Invoice?")
    loop = Loop("loop", [agent("worker", [stop], ("stop", {}))], state={"old": 1})
    loop.quiet = True  # type: ignore[attr-defined]
    loop.input("Go")
    broken = agent("broken", None, BUSY)
    helper = agent("helper", None, "Before.", "Helps.")
    helper.input("Before")  # so its conversation begins with something
    both = [[("broken", {"prompt": "x"}), ("helper", {"prompt": "y"}), ("work", {})], "Done."]
    agent("chief", [broken, helper, work], *both).input("Go")


def an_agent_inside_that_waits() -> None:
    @before_each_tool
    def ask() -> None:
        raise Pause("sure?")

    def inner(name: str) -> Agent:
        return agent(name, [work], CALL, "Done.", on_events=[ask])

    pair = Parallel("pair", [inner("one"), inner("two")], quiet=True)
    with pytest.raises(Paused) as paused:
        pair.input("Go")
    with pytest.raises(Paused):
        pair.resume(pair.record, approve=paused.value.waiting[0].id)


def agents_that_write_one_dict_at_once() -> None:
    def writes(agent: Any) -> str:
        agent.state["scores"]["last"] = agent.name
        agent.state["last"] = agent.name
        agent.state.setdefault("all", []).append(agent.name)
        agent.state.pop("none", None)
        return "written"

    pair = [Agent(name, run=writes, quiet=True) for name in ("one", "two")]
    Parallel("writers", pair, state={"scores": {"last": ""}, "none": 0}, quiet=True).input("Go")


def calls_at_once() -> None:
    def note(agent: Any) -> str:
        """Note."""
        agent.current_session["state"].setdefault("notes", []).append(1)
        agent.current_session["state"]["noted"] = agent.current_session["state"].pop("old", None)
        return "noted"

    @tool(timeout_s=0.01)
    def slow() -> str:
        """Be slow."""
        time.sleep(0.2)
        return "late"

    calls = [call("note"), call("note"), call("slow")]
    agent("at_once", [note, slow], calls, "Done.", parallel_tools=3, state={"old": 1}).input("Go")


def ctrl_c_while_results_are_placed() -> None:
    @on_trace
    def press(entry: Any) -> None:
        if entry["type"] == "tool_execution":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent("pressed", [work], [CALL, CALL], parallel_tools=2, on_events=[press]).input("Go")


def an_error_that_is_raised_again() -> None:
    @on_error
    def again(attempt: int) -> Any:
        return Retry() if attempt == 1 else "recovered"

    error = ValueError("busy")
    agent("raised_again", [], error, error, plugins=[again]).input("Go")


def a_handler_that_fails_while_it_handles_an_error() -> None:
    @on_error
    def breaks() -> None:
        raise KeyError("of the handler")

    with pytest.raises(KeyError):
        agent("handling", [], ValueError("busy"), plugins=[breaks]).input("Go")


def a_stream_that_is_left() -> None:
    events = Agent("left", llm=ScriptedLLM("Hello."), quiet=True).stream("Go")
    next(events)
    events.close()


def a_turn_that_is_taken_back() -> None:
    back = agent("back", [], "Done.")
    back.input("Go")
    take_back(back)


def sessions_that_were_not_recorded_to_their_end() -> None:
    keyed = agent("cut", [work], CALL, "Done.").for_session("k")
    keyed.turn("Go")
    lost = keyed.record.with_name(keyed.record.name.replace(".yaml", ".incomplete.yaml"))
    keyed.record.rename(lost)
    lost.write_text(lost.read_text().partition("  status: ")[0])
    agent("cut", [work], "Next.").for_session("k").turn("Next")
    plain = agent("lost", [], "Done.")
    plain.input("Go")
    assert plain.record is not None
    lost = plain.record.rename(plain.record.with_name("lost.incomplete.yaml"))
    other = agent("lost", [], "Next.")
    other.resume(lost)
    other.input("Next")


def plugins_that_add_to_system_prompts() -> None:
    @on_agent_ready
    def adds(agent: Agent) -> None:
        agent.system_prompt += " Be brief."

    child = Agent("child", llm=ScriptedLLM("Yes."), system_prompt="Help.", description="Helps.", quiet=True)
    llm = ScriptedLLM(("child", {"prompt": "Help."}), "Done.")
    Agent("prompted", [child], llm=llm, system_prompt="Be good.", plugins=[adds], quiet=True).input("Go.")


SESSIONS: list[Callable[[], None]] = [
    plugins_that_add_to_system_prompts,
    sessions_that_were_not_recorded_to_their_end,
    calls_at_once,
    ctrl_c_while_results_are_placed,
    a_session_that_begins_with_something,
    handlers_that_decide,
    handlers_about_tools,
    attempts_that_fail,
    a_turn_that_ends_early_and_one_that_goes_on,
    messages_that_are_mended,
    a_request_that_is_made_again,
    a_handler_that_asks,
    a_shadowed_plugin,
    an_error_that_stops_the_turn,
    a_call_that_is_changed_behind_a_guard,
    arguments_in_another_spelling,
    a_pause_that_is_decided_elsewhere,
    a_tool_that_is_carried_out_elsewhere,
    pauses_of_other_kinds,
    content_that_a_provider_refuses,
    agents_inside,
    an_agent_inside_that_waits,
    agents_that_write_one_dict_at_once,
    an_error_that_is_raised_again,
    a_handler_that_fails_while_it_handles_an_error,
    a_turn_that_is_taken_back,
    a_stream_that_is_left,
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The keys in the records of all sessions, by the headings of the page."""
    folder = tmp_path_factory.mktemp("sessions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CONNECTAGENT_DIR", str(folder / ".co"))
        script = type(sys)("connectagent_script")
        script.__file__ = str(folder / "agent.py")
        patch.setitem(sys.modules, "connectagent_script", script)
        for session in SESSIONS:
            session()
    found: dict[str, set[str]] = {"The head": set(), "A turn": set(), "by": set(), EVERYWHERE: set()}
    for path in (folder / ".co" / "evals").glob("*.yaml"):
        record = load_record(path)
        found["The head"] |= record.keys()
        for turn in record["turns"]:
            found["A turn"] |= turn.keys()
            for line in turn["trace"]:
                found.setdefault(line["type"], set()).update(line)
                found["by"] |= (line.get("by") or {}).keys()
    return found


def test_the_page_lists_each_type_of_entry_and_no_other(seen: dict[str, set[str]]) -> None:
    assert sorted(tables()) == sorted(seen)
    assert set(tables()) >= LINES


@pytest.mark.parametrize("heading", [name for name in tables() if name != EVERYWHERE])
def test_the_page_lists_each_key_and_no_other(heading: str, seen: dict[str, set[str]]) -> None:
    common = set() if heading in ("The head", "A turn", "by") else tables()[EVERYWHERE]
    assert sorted(seen[heading] - common) == sorted(tables()[heading])


def test_the_types_of_entries_have_the_keys_of_the_page_and_no_other() -> None:
    common = tables()[EVERYWHERE]
    amended = {"tool_execution": {"attempt", "attempts"}}  # in the session; the record has `change` lines
    for name, kind in ENTRIES.items():
        assert fields(kind)[0].keys() - common - amended.get(name, set()) == tables()[name] - common, name
        assert fields(kind)[0]["type"] == Literal[name]
    assert fields(By)[0].keys() == tables()["by"]
    assert set(tables()) - ENTRIES.keys() - LINES == {"The head", "A turn", "by", EVERYWHERE, "log"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"type": "error", "timestamp": 1.0, "error": "no"}, r"has no \['error_type'\]"),
        ({"type": "error", "timestamp": 1.0, "error": "no", "error_type": "E", "odd": 1}, r"has \['odd'\]"),
        ({"type": "error", "timestamp": 1.0, "error": 5, "error_type": "E"}, r"error.error is 5, not <class 'str'>"),
        ({"type": "mended", "timestamp": "now", "messages_before": 1, "messages": 2}, r"mended.timestamp is 'now'"),
    ],
)
def test_an_entry_that_does_not_fit_its_type_is_found(entry: dict[str, Any], says: str) -> None:
    assert re.search(says, misfit_dict(entry, ENTRIES[entry["type"]], entry["type"]) or "")


def test_operations_have_their_beginning_and_their_time() -> None:
    def nap() -> str:
        """Nap."""
        time.sleep(0.02)
        return "slept"

    helper = agent("helper", None, "Helps.")
    before = time.time()
    one = agent("times", [nap, helper], [("nap", {}), ("helper", {"prompt": "x"}), ("lost", {})], "Done.")
    one.input("Go")
    entries = {entry.get("tool_name", entry["type"]): entry for entry in one.session["trace"]}
    for name in ("nap", "helper", "llm_call", "agent_turn"):
        entry = entries[name]
        assert before <= entry["started"] <= time.time() and 0 < entry["duration_ms"] < 10_000, entry
    assert entries["nap"]["duration_ms"] >= 20
    assert "started" not in entries["lost"] and "duration_ms" not in entries["lost"]


def test_a_model_call_names_the_provider_that_was_asked() -> None:
    with WireServer(chat("Done.")) as server:
        one = Agent("asks", llm=OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url), quiet=True)
        one.input("Go.")
    offline = Agent("offline", model="offline", quiet=True)
    offline.input("Go.")
    without = agent("scripted", None, "Done.")
    without.input("Go.")
    for made, provider in ((one, "openai"), (offline, "offline"), (without, None)):
        assert [e.get("provider") for e in made.session["trace"] if e["type"] == "llm_call"] == [provider]


def test_no_key_of_every_line_is_one_that_no_line_has(seen: dict[str, set[str]]) -> None:
    lines = [keys for name, keys in seen.items() if name not in ("The head", "A turn", "by", EVERYWHERE)]
    assert tables()[EVERYWHERE] <= set().union(*lines)
