"""`connectagent bill`: the tokens and cost of a record by who made what was sent, and who breaks the prompt cache."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_agents import agent_for
from wire_driver import WIRE, Recording, load, recordings, replay_server

from connectagent import Agent, LLMResponse, Retry, TokenUsage, after_llm, after_user_input, before_llm, on_error
from connectagent.cli import main
from connectagent.cli.bill import price_of
from connectagent.models.prices import price
from connectagent.records import read_record, tally
from connectagent.records.bill import Bill, bill_of
from connectagent.records.blobs import blob_folder
from connectagent.records.parts import same_until
from connectagent.records.summary import summarise
from connectagent.testing import ScriptedLLM, call
from connectagent.tools import Tool

MODEL = "gpt-5-mini"
HUGE = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(300)}}


class Paid(ScriptedLLM):
    """Reports a token for four characters, and as cached what its call before began with."""

    before = ""

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        answer = super().complete(messages, tools)
        text = json.dumps([tools, messages])[:-1]
        cached = same_until(text, self.before) // 4
        self.before = text
        usage = TokenUsage(len(text) // 4, 20, cached_tokens=cached)
        usage.cost = price("openai", MODEL, usage)
        answer.usage = usage
        return answer


class Clock:
    """Adds a time to the system prompt."""

    def __init__(self) -> None:
        self.times = itertools.count(100)

    @before_llm
    def tick(self, agent: Any) -> None:
        system = agent.current_session["messages"][0]
        system["content"] = f"{system['content'].split(' Now: ')[0]} Now: {next(self.times)}"


class Stuffer:
    """Adds 10 kB."""

    @after_user_input
    def stuff(self, agent: Any) -> None:
        agent.current_session["messages"].append({"role": "user", "content": "x" * 10_000})


def look(query: str) -> str:
    """Look something up."""
    return "r" * (40_000 if query == "all" else 100)


def shop(*answers: Any, plugins: Any = (), tools: Any = (look,), **options: Any) -> Agent:
    llm = Paid(*answers, model=MODEL)
    return Agent("shop", list(tools), "You sell tea.", llm=llm, plugins=list(plugins), quiet=True, **options)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    return tmp_path


def billed(record: Any) -> Bill:
    """The bill of a record, whose parts add up to the record's own sums."""
    found = bill_of(read_record(record), price_of, blob_folder(Path(record)))
    totals, usage = summarise(record).totals, found.spent.usage
    assert totals is not None
    items = found.items.values()
    assert sum(item.tokens for item in items) == usage.input_tokens + usage.output_tokens == (totals.tokens or 0)
    if totals.cost is None:
        assert any(item.cost is None for item in items) or found.unpriced
    else:
        assert sum(item.cost or 0.0 for item in items) == pytest.approx(totals.cost, rel=1e-9)
        assert all(item.cost is not None for item in items)
    return found


def tokens(found: Bill, **of: str) -> int:
    items = found.items.values()
    return sum(item.tokens for item in items if all(getattr(item, key) == value for key, value in of.items()))


def test_a_plugin_that_stuffs_the_context_is_billed_for_it() -> None:
    agent = shop(call("look", query="a"), call("look", query="b"), "Done.", plugins=[Stuffer()])
    agent.input("Hi")
    found = billed(agent.record)
    assert tokens(found, who="Stuffer") == pytest.approx(3 * 2_500, rel=0.1)
    assert max(found.items.values(), key=lambda item: item.tokens).who == "Stuffer"
    assert not found.breaks
    (item,) = (item for item in found.items.values() if item.who == "Stuffer")
    assert item.cached > 4_000 and item.calls == 3  # of the second and the third call
    plain = price("openai", MODEL, TokenUsage(item.tokens - item.cached, 0))
    read = price("openai", MODEL, TokenUsage(item.cached, 0, cached_tokens=item.cached))
    assert item.cost == pytest.approx((plain or 0) + (read or 0))


def test_a_plugin_that_puts_the_time_into_the_prompt_breaks_the_cache() -> None:
    agent = shop(call("look", query="all"), call("look", query="b"), "Done.", plugins=[Stuffer(), Clock()])
    agent.input("Hi")
    found = billed(agent.record)
    assert [(one.who, one.kind, one.iteration) for one in found.breaks] == [
        ("Clock", "system prompt", 2),
        ("Clock", "system prompt", 3),
    ]
    request = found.calls[1].parts or []
    text = "".join(part.text for part in request).encode()
    byte = found.breaks[0].byte
    assert text[:byte].endswith(b"You sell tea. Now: 10") and text[byte : byte + 1] == b"1"
    assert tokens(found, who="Clock") < 20 < 2_000 < (found.breaks[0].tokens or 0)
    cost = price("openai", MODEL, TokenUsage(found.breaks[0].tokens or 0, 0)) or 0
    assert 0.8 * cost < (found.breaks[0].cost or 0) < cost


def test_a_huge_schema_and_a_huge_result_are_billed() -> None:
    tool = Tool("form", "Fills a form.", HUGE, lambda **fields: "ok")
    agent = shop(call("look", query="all"), "Done.", tools=[look, tool])
    agent.input("Hi")
    found = billed(agent.record)
    assert tokens(found, kind="tool result", name="look") == pytest.approx(10_000, rel=0.1)
    assert tokens(found, kind="tool schema", name="form") > 20 * tokens(found, kind="tool schema", name="look") > 0


def test_what_is_in_one_request_only_is_its_plugins() -> None:
    @before_llm
    def remind(request: Any) -> None:
        request.messages = [*request.messages, {"role": "user", "content": "Be brief. " * 50}]

    agent = shop(call("look", query="a"), "Done.", plugins=[remind])
    agent.input("Hi")
    found = billed(agent.record)
    assert tokens(found, who="remind") > 200
    assert [one.who for one in found.breaks] == ["remind"]


def test_who_removes_a_message_breaks_the_cache() -> None:
    @before_llm
    def forget(agent: Any) -> None:
        if agent.current_session["iteration"] == 2:
            del agent.current_session["messages"][1]

    agent = shop(call("look", query="a"), call("look", query="b"), "Done.", on_events=[Stuffer(), forget])
    agent.input("Hi")
    assert [(one.who, one.iteration) for one in billed(agent.record).breaks] == [("forget", 2)]


def test_agents_inside_retries_and_handlers_own_calls_count() -> None:
    @after_llm
    def judge(agent: Any, response: Any) -> None:
        if response.content:
            agent.ask("Is this good? " + "y" * 400)

    @on_error
    def again(error: Exception) -> Any:
        return Retry()

    child = Agent("helper", llm=Paid("Four.", model=MODEL), description="Adds.", quiet=True, inherit_plugins=False)
    answers = (call("helper", prompt="2 + 2"), ConnectionError("gone"), "Done.", "Yes.", "Bye.", "No.")
    agent = shop(*answers, tools=[look, child], plugins=[judge, again])
    agent.input("Hi")
    agent.input("Bye")
    found = billed(agent.record)
    assert {item.agent for item in found.items.values()} == {"shop", "shop.helper"}
    assert tokens(found, who="judge", kind="message") > 2 * 90
    assert tokens(found, who="judge", kind="answer") > 0
    assert len(found.calls) == 6 + 1 and not found.breaks


def test_a_turn_that_was_resumed_is_billed_once_for_each_attempt(folder: Path) -> None:
    agent = shop(call("look", query="a"), ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        agent.input("Hi")
    record = agent.record
    agent.close()
    other = shop("Done.")
    other.resume(record)
    found = billed(record)
    assert sum(item.calls for item in found.items.values() if item.kind == "answer") == 2


def test_what_is_unknown_is_a_question_mark(capsys: Any) -> None:
    agent = Agent("shop", [look], llm=ScriptedLLM(call("look", query="a"), "Done."), quiet=True)
    agent.input("Hi")
    found = billed(agent.record)
    assert found.unpriced == 2 and {item.kind for item in found.items.values()} >= {"message", "tool schema"}
    assert all(item.cost is None and item.bytes for item in found.items.values())
    assert main(["bill"]) == 0
    out = capsys.readouterr().out
    assert "2 model calls, ? tokens, ?" in out and "?: the price or the usage of 2 calls is not known" in out


def test_a_cost_without_a_price_in_the_table_is_divided_evenly() -> None:
    answers = [LLMResponse(text, usage=TokenUsage(100, 20, cost=0.12)) for text in ("Done.", "Bye.")]
    agent = Agent("shop", [look], "You sell tea.", llm=ScriptedLLM(*answers), quiet=True)
    agent.input("Hi")
    agent.input("Bye")
    found = billed(agent.record)
    assert found.even == 2
    assert all(item.cost == pytest.approx(item.tokens * 0.001) for item in found.items.values())


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {tests!r} + "/support"]
from test_bill import Agent, Clock, Stuffer, call, shop
child = Agent("helper", description="Adds.", inherit_plugins=False, quiet=True)  # has no such plugin
agent = shop(call("look", query="a"), "Done.", plugins=[Stuffer(), Clock()])
if __name__ == "__main__":
    agent.input("Hi")
"""


@pytest.fixture
def script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = folder / "shop.py"
    path.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    monkeypatch.chdir(folder)
    before = list(sys.path)
    shop(call("look", query="a"), "Done.", plugins=[Stuffer(), Clock()]).input("Hi")
    yield path
    sys.path[:] = before


@pytest.mark.parametrize(("name", "share", "breaks"), [("Stuffer", 0.3, 1), ("Clock", 1.0, 0)])
def test_without_a_plugin(script: Path, capsys: Any, name: str, share: float, breaks: int) -> None:
    assert main(["bill", "last", str(script), "-p", f"no:{name}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    without = found["without"]
    assert without["until"] is None and without["calls"] == 2
    assert without["then"]["tokens"] == found["tokens"] and without["then"]["breaks"] == 1
    assert without["then"]["cost"] == pytest.approx(found["cost"])
    assert without["now"]["breaks"] == breaks
    assert without["now"]["tokens"] <= share * found["tokens"]
    assert (without["now"]["tokens"] > 0.95 * found["tokens"]) == (name == "Clock")


def test_from_where_replay_cannot_tell_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    (folder / "guard.py").write_text(
        "from connectagent import before_each_tool\n\n"
        "class Other:\n"
        "    @before_each_tool\n"
        "    def edit(self, agent, tool_call):\n"
        "        if agent.current_session['iteration'] == 2:\n"
        "            return 'stood in'\n"
    )
    text = SCRIPT.format(tests=str(Path(__file__).parent)).replace("plugins=[", "plugins=[Other(), ")
    text = text.replace('query="a"),', 'query="a"), call("look", query="b"),')
    text = text.replace("from test", "from guard import Other\nfrom test")
    (folder / "shop.py").write_text(text)
    done = subprocess.run([sys.executable, "shop.py"], capture_output=True, text=True, timeout=60, check=True)
    assert not done.stderr.startswith("Traceback")
    assert main(["bill", "last", "shop.py", "-p", "no:Other", "--json"]) == 0
    without = json.loads(capsys.readouterr().out)["without"]
    assert without["calls"] == 2 and without["until"].startswith("1.2: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "there is no record 'nope'"),
        (["last", "shop.py", "-p", "no:clok"], "Did you mean 'clock'?"),
        (["last", "shop.py", "-p", "more"], "bill takes no:NAME"),
        (["last", "-p", "no:Clock"], "name it"),
        (["last", "gone.py", "-p", "no:Clock"], "'gone.py': no such script"),
        (["last", "shop.py"], "SCRIPT only with -p no:NAME"),
    ],
)
def test_wrong_usage_exits_with_2(script: Path, capsys: Any, arguments: list[str], says: str) -> None:
    record = next(script.parent.glob(".co/evals/*.yaml"))  # as one that names no script
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if not line.startswith("script: ")))
    assert main(["bill", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_table_names_the_plugins(script: Path, capsys: Any) -> None:
    assert main(["bill", "last", str(script), "-p", "no:Clock"]) == 0
    out = capsys.readouterr().out
    assert "Stuffer" in out and "Clock" in out and "in proportion to the size of the text" in out
    assert "without Clock, if the model answers the same:" in out and "2 of 2 calls" in out


@pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")
def test_recorded_conversations_add_up() -> None:
    made = 0
    for path in recordings()[:: int(os.environ.get("CONNECTAGENT_BILLS", "12"))]:
        recording = Recording(load(path))
        with replay_server(path, "plain") as server:
            agent = agent_for(recording, server.base_url, "plain", [], log=None, plugins=[Stuffer()])
            try:
                agent.input(recording.prompt(recording.data["drive"]["turns"][0]))
            except Exception:  # a recorded failure
                continue
        found = billed(agent.record)
        assert not found.breaks and tokens(found, who="Stuffer") > 0
        made += 1
    assert made


def test_a_long_conversation_is_divided_in_groups_whose_parts_have_what_each_would_have_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @before_llm
    def forget(agent: Any) -> None:  # what was said long ago, now and then
        if agent.current_session["iteration"] % 12 == 0:
            del agent.current_session["messages"][3:9]

    agent = shop(*(call("look", query=f"{number}") for number in range(25)), "Done.", plugins=[Stuffer(), forget],
                 max_iterations=50)  # fmt: skip
    agent.input("Hi")
    alone = billed(agent.record)
    monkeypatch.setattr(tally, "_ALONE", 4)
    monkeypatch.setattr(tally, "_GROUP", 2)
    found = billed(agent.record)
    assert found.items.keys() == alone.items.keys() and found.breaks == alone.breaks
    for key, item in found.items.items():
        exact = alone.items[key]
        assert (item.calls, item.bytes) == (exact.calls, exact.bytes)
        near = {"rel": 0.02, "abs": 60 + 2 * item.calls}  # what is rounded in each call, and what a group's edge cuts
        assert (item.tokens, item.cached) == pytest.approx((exact.tokens, exact.cached), **near)
        few = price("openai", MODEL, TokenUsage(60 + 2 * item.calls, 0))
        assert item.cost == pytest.approx(exact.cost, rel=0.1, abs=few)
