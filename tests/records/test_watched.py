"""What each model call was sent is read back from the record exactly, and what each change replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from connectagent import (
    Agent,
    LLMRequest,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    ToolCall,
    after_each_tool,
    after_llm,
    after_tools,
    around_llm,
    before_each_tool,
    before_llm,
    on_error,
)
from connectagent.records.blobs import blob_folder
from connectagent.records.read import read_record
from connectagent.records.watched import Request, request_of, watched_agents
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def search(query: str) -> str:
    """Search."""
    if query == "bad":
        raise ValueError("nothing is there")
    return f"pages about {query} " * 20


def long(size: int) -> str:
    """Give a long text."""
    return "abc " * size


@after_each_tool
def shorten(agent: Any, result: Any) -> Any:
    return str(result)[:50] if len(str(result)) < 1000 else None


@after_tools
def remind(agent: Any) -> None:
    agent.current_session["messages"].append({"role": "user", "content": "Is the answer there?"})


@before_llm
def date(agent: Any, request: LLMRequest) -> None:
    if request.messages[0]["role"] == "system" and "today" not in str(request.messages[0]["content"]):
        request.messages[0]["content"] = f"{request.messages[0]['content']} It is today."


@on_error
def again(agent: Any, error: Exception, attempt: int, request: LLMRequest | None) -> Any:
    if request is not None and attempt < 3:
        request.messages = [*request.messages, {"role": "user", "content": f"attempt {attempt} failed"}]
        return Retry()
    return None


@around_llm
def window(agent: Any, request: LLMRequest) -> Any:
    if len(request.messages) > 8:
        request.messages = request.messages[-4:]
        while request.messages[0]["role"] == "tool":
            del request.messages[0]
    request.tools = [tool for tool in request.tools if tool["function"]["name"] != "long" or len(request.messages) < 5]
    yield


@after_llm
def judge(agent: Any, response: LLMResponse) -> None:
    if response.content and agent.name == "root":
        agent.ask("Is that fine?", system_prompt="You judge.", tools=[search])


def numbered(path: Path) -> dict[str, Any]:
    record = read_record(path)
    lines = [line for turn in record["turns"] for line in turn["lines"]]
    for number, line in enumerate(lines):
        line["number"] = number
    return record


def asked(record: dict[str, Any]) -> list[int]:
    lines = [line for turn in record["turns"] for line in turn["lines"]]
    return [line["number"] for line in lines if line["type"] == "llm_call" and line["status"] != "stand_in"]


def read_back(path: Path) -> list[Request]:
    record = numbered(path)
    requests = [request_of(record, number, blob_folder(path)) for number in asked(record)]
    return [request for request in requests if request is not None]


def pairs(requests: list[Any]) -> list[tuple[Any, Any]]:
    return [(request.messages, request.tools) for request in requests]


def data(requests: list[Request]) -> list[tuple[Any, Any]]:
    return [([sent.message for sent in request.messages], request.tools) for request in requests]


class Failing(ScriptedLLM):
    """A scripted model whose second and third requests fail."""

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        if len(self.requests) in (1, 2):
            self.responses.insert(len(self.requests), OSError("connection reset"))  # type: ignore[arg-type]
        return super().complete(messages, tools)


def calls_and_words() -> list[Any]:
    return [
        [call("search", query="one"), call("search", query="bad")],
        [call("long", size=20_000)],
        LLMResponse("First I say this.", [call("search", query="two")]),
        "Done.",
        "It is fine.",
    ]


def test_every_request_is_read_back_as_the_model_got_it() -> None:
    llm = Failing(*calls_and_words())
    agent = Agent("root", [search, long], "Be brief.", llm=llm, on_events=[shorten, remind, date, again], quiet=True)
    agent.input("Go")
    assert agent.record is not None
    assert data(read_back(agent.record)) == pairs(llm.requests)
    assert len(llm.requests) > 5


def test_also_where_a_handler_gave_this_call_other_messages_and_tools_or_asked_itself() -> None:
    llm = ScriptedLLM(*calls_and_words()[:3], "Fine.", "Done.", "It is fine.", "Well.", "Fine.")
    agent = Agent("root", [search, long], "Be brief.", llm=llm, on_events=[remind, window, judge], quiet=True)
    agent.input("Go")
    agent.input("Again")
    assert agent.record is not None
    requests = read_back(agent.record)
    assert data(requests) == pairs(llm.requests)
    assert any(len(request.tools) == 1 for request in requests) and any(len(request.tools) == 2 for request in requests)
    assert any(sent.message["content"] == "You judge." for request in requests for sent in request.messages)


def test_also_of_the_agents_inside_and_over_turns() -> None:
    inner = ScriptedLLM([call("search", query="x")], "Found.", [call("search", query="y")], "Found again.")
    outer = ScriptedLLM([call("finder", prompt="Find x")], "One.", [call("finder", prompt="Find y")], "Two.")
    finder = Agent("finder", [search], "You find.", llm=inner, on_events=[shorten], quiet=True)
    root = Agent("root", [finder], "You lead.", llm=outer, quiet=True)
    root.input("First")
    root.input("Second")
    assert root.record is not None
    both = {agent.entries[0].get("author"): list(agent.requests()) for agent in watched_agents(numbered(root.record))}
    assert data(both["root"]) == pairs(outer.requests)
    assert data(both["finder"]) == pairs(inner.requests)


def test_also_before_and_after_a_pause_and_of_a_turn_that_was_taken_back() -> None:
    @before_each_tool
    def guard(agent: Any, tool_call: ToolCall) -> None:
        if tool_call.name == "search" and not tool_call.approved:
            raise Pause("agree?")

    def agent_of(llm: Any) -> Agent:
        return Agent("root", [search, long], "Be brief.", llm=llm, on_events=[guard, shorten], quiet=True)

    first, second, third = (
        ScriptedLLM([call("search", query="one")]),
        ScriptedLLM("Done.", "And this."),
        ScriptedLLM("Other."),
    )
    with pytest.raises(Paused) as paused:
        agent_of(first).input("Go")
    path = paused.value.record
    assert path is not None
    agent = agent_of(second)
    agent.resume(path, approve=True)
    agent.input("And now?")
    agent_of(third).resume(path, place=2)
    requests = read_back(path)
    assert data(requests) == pairs([*first.requests, *second.requests, *third.requests])


def test_what_is_new_since_the_call_before_is_marked() -> None:
    @before_llm
    def rewrite(agent: Any, request: LLMRequest) -> None:
        if len(request.messages) > 3:
            request.messages[1]["content"] = "Go there"

    llm = ScriptedLLM([call("search", query="one")], [call("search", query="two")], "Done.")
    agent = Agent("root", [search], "Be brief.", llm=llm, on_events=[rewrite], quiet=True)
    agent.input("Go")
    assert agent.record is not None
    first, second, third = read_back(agent.record)
    assert [sent.state for sent in first.messages] == ["new", "new"]
    assert [sent.state for sent in second.messages] == ["same", "changed", "new", "new"]
    assert (second.messages[1].before or {})["content"] == "Go"
    assert [sent.state for sent in third.messages] == ["same"] * 4 + ["new"] * 2
    assert second.before is not None and second.before["number"] == first.entry["number"]


def test_schemas_and_options_are_recorded_when_they_differ_from_the_call_before() -> None:
    class Configured(ScriptedLLM):
        options: ClassVar[dict[str, Any]] = {"temperature": 1, "extra_headers": {"X-Key": "hidden value"}}

        def with_options(self, options: dict[str, Any]) -> Configured:
            return self

    @before_llm
    def cold(agent: Any, request: LLMRequest) -> None:
        if len(request.messages) > 3:
            request.options["temperature"] = 0

    llm = Configured([call("search", query="a")], [call("search", query="b")], "Done.")
    agent = Agent("root", [search], llm=llm, on_events=[cold], quiet=True)
    agent.input("Go")
    assert agent.record is not None
    requests = read_back(agent.record)
    assert [request.options["temperature"] for request in requests] == [1, 1, 0]
    assert all(request.options["extra_headers"] == {"X-Key": "***"} for request in requests)
    recorded = [request.entry.get("request", {}).keys() for request in requests]
    assert [sorted(keys) for keys in recorded] == [["model", "options", "tools"], [], ["options"]]
    assert requests[2].data()["tools"][0]["function"]["name"] == "search"


def test_a_record_without_schemas_gives_the_names_of_the_tools() -> None:
    agent = Agent("root", [search], llm=ScriptedLLM("Done."), quiet=True)
    agent.input("Go")
    assert agent.record is not None
    record = numbered(agent.record)
    for line in record["turns"][0]["lines"]:
        line.pop("request", None)
    (number,) = asked(record)
    request = request_of(record, number)
    assert request is not None and request.tools == ["search"]


def test_what_a_change_replaced_is_known() -> None:
    @before_each_tool
    def fix(agent: Any, tool_call: ToolCall) -> None:
        tool_call.arguments["query"] = "two"

    @after_llm
    def polite(agent: Any, response: LLMResponse) -> Any:
        if response.content:
            agent.current_session["state"]["said"] = response.content
            response.content += " Thanks."

    llm = ScriptedLLM([call("search", query="one")], "Done.", "Done too.")
    handlers = [fix, polite, shorten, date]
    agent = Agent("root", [search], "Be brief.", llm=llm, on_events=handlers, quiet=True)
    agent.input("Go")
    agent.input("On")
    assert agent.record is not None
    (root,) = watched_agents(numbered(agent.record))
    changes = {
        (entry["type"], entry.get("of")): root.history.replaced[id(entry)]
        for entry in root.entries
        if id(entry) in root.history.replaced
    }
    was, now = changes["change", "tool_call"]
    assert (was["arguments"], now["arguments"]) == ({"query": "one"}, {"query": "two"})
    was, now = changes["change", "result"]
    assert (len(was), len(now)) == (len(search("two")), 50)
    was, now = changes["change", "response"]
    assert (was["content"], now["content"]) == ("Done too.", "Done too. Thanks.")
    was, now = changes["message_edited", None]
    assert (was["content"], now["content"]) == ("Be brief.", "Be brief. It is today.")
    assert changes["state_delta", None] == ({"said": "Done."}, {"said": "Done too."})


def test_the_schema_of_a_parameter_that_is_called_like_a_secret_is_no_secret() -> None:
    def enter(token: str) -> str:
        """Enter."""
        return "in"

    llm = ScriptedLLM([call("enter", token="hunter22-and-more")], "Done.")
    agent = Agent("root", [enter], llm=llm, quiet=True)
    agent.input("Go")
    assert agent.record is not None
    requests = read_back(agent.record)
    assert requests[0].tools == llm.requests[0].tools
    assert "hunter22-and-more" not in agent.record.read_text("utf-8")
