"""Promise 1, content: what a provider refuses is adapted or replaced, its owner is named, and the session goes on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusing_provider import POISON, WIRES, RefusingProvider, pdf, png

from connectagent import (
    Agent,
    File,
    Image,
    LLMResponse,
    ProviderError,
    Retry,
    Tool,
    ToolCall,
    after_each_tool,
    before_llm,
    on_error,
)
from connectagent.testing import conversation_problems, replayed


def shot() -> Image:
    """Take a picture that the provider refuses."""
    return Image(png(poison=True))


def paper() -> File:
    """Read a document that the provider refuses."""
    return File(pdf(poison=True), name="a.pdf")


def words() -> str:
    """Say something that the provider refuses."""
    return f"{POISON.decode()} words"


def look() -> str:
    """Look."""
    return "nothing to see"


@after_each_tool
def add_words(agent: Agent) -> None:
    agent.current_session["messages"].append({"role": "user", "content": f"By the way: {POISON.decode()}"})  # type: ignore[index]


@before_llm
def edit_request(request: Any) -> None:
    request.messages = [*request.messages, {"role": "user", "content": f"Only now: {POISON.decode()}"}]


# The prompt, the tools, the handlers, and whose the refused element is.
ELEMENTS: dict[str, tuple[Any, list[Any], list[Any], dict[str, Any]]] = {
    "image of a tool": ("call shot", [shot], [], {"tool": "shot"}),
    "file of a tool": ("call paper", [paper], [], {"tool": "paper"}),
    "text of a tool": ("call words", [words], [], {"tool": "words"}),
    "image of the user": (["What is this?", Image(png(poison=True))], [], [], {"user": "user"}),
    "file of the user": (["What is this?", File(pdf(poison=True), name="a.pdf")], [], [], {"user": "user"}),
    "message of a handler": ("call look", [look], [add_words], {"handler": "add_words"}),
}


def odd_tool(format: str = "poison") -> Tool:
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": format}}}
    return Tool("odd", "Odd.", schema, lambda x="": x)


@pytest.fixture(params=WIRES)
def provider(request: Any) -> Iterator[RefusingProvider]:
    server = RefusingProvider(request.param)
    with server:
        yield server


def agent_at(provider: RefusingProvider, tools: list[Any] = [], handlers: list[Any] = [], **more: Any) -> Agent:  # noqa: B006
    return Agent("eye", tools, on_events=handlers, quiet=True, **{"log": False, **provider.options, **more})


def messages_of(agent: Agent) -> list[Any]:
    return list(agent.current_session["messages"])  # type: ignore[index]


def calls_of(agent: Agent) -> list[tuple[Any, ...]]:
    trace = agent.current_session["trace"]  # type: ignore[index]
    return [(entry["status"], entry.get("attempt", 1)) for entry in trace if entry["type"] == "llm_call"]


def owners_of(agent: Agent) -> list[dict[str, Any]]:
    trace = agent.current_session["trace"]  # type: ignore[index]
    return [entry["refused"]["of"] for entry in trace if entry["type"] == "message_edited" and "refused" in entry]


def take(agent: Agent, prompt: Any, streamed: bool) -> str:
    if not streamed:
        return str(agent.input(prompt))
    for _ in agent.stream(prompt):
        pass
    return str(agent.current_session["result"])  # type: ignore[index]


# -- replaced by the loop -------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_what_was_refused_is_replaced_and_the_session_goes_on(
    provider: RefusingProvider, element: str, streamed: bool
) -> None:
    prompt, tools, handlers, owner = ELEMENTS[element]
    agent = agent_at(provider, tools, handlers)
    assert take(agent, prompt, streamed) == "Seen."
    assert len(provider.refused) == 1
    first = 1 if isinstance(prompt, str) else 0
    assert calls_of(agent)[first:] == [("error", 1), ("success", 2)]
    (found,) = owners_of(agent)
    assert owner.items() <= found.items()
    assert take(agent, "And now?", streamed) == "Seen."
    assert len(provider.refused) == 1  # the next request is one that is taken
    assert not conversation_problems(agent.current_session["messages"])  # type: ignore[index]


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_session_of_another_process_goes_on_too(provider: RefusingProvider, element: str, co_dir: Path) -> None:
    prompt, tools, handlers, _ = ELEMENTS[element]
    agent = agent_at(provider, tools, handlers, log=None)
    agent.input(prompt)
    other = agent_at(provider, tools, [], log=None)
    other.resume(agent.record)
    assert other.input("And now?") == "Seen."
    assert len(provider.refused) == 1
    before = messages_of(agent)
    assert messages_of(other)[: len(before)] == before


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_session_with_a_key_goes_on_too(provider: RefusingProvider, element: str, co_dir: Path) -> None:
    prompt, tools, handlers, _ = ELEMENTS[element]
    for number, text in enumerate([prompt, "And now?"]):
        agent = agent_at(provider, tools, handlers if number == 0 else [], log=None)
        assert agent.for_session("user-1").turn(text) == "Seen."
    assert len(provider.refused) == 1


@pytest.mark.parametrize("element", ["image of a tool", "text of a tool", "message of a handler"])
def test_an_agent_inside_another_goes_on_too(provider: RefusingProvider, element: str) -> None:
    prompt, tools, handlers, owner = ELEMENTS[element]
    inner = Agent("inner", tools, on_events=handlers, quiet=True, log=False, **provider.options)
    outer = agent_at(provider, [inner])
    arguments = json.dumps({"prompt": prompt})
    parameter = next(iter(outer.tools["inner"].parameters["properties"]))
    assert outer.input("call inner " + arguments.replace("prompt", parameter)) == "Seen."
    assert len(provider.refused) == 1 and owner.items() <= owners_of(inner)[0].items()
    assert outer.input("And now?") == "Seen." and inner.input("And now?") == "Seen."
    assert len(provider.refused) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
def test_a_tool_whose_schema_was_refused_is_left_out_with_a_warning(
    provider: RefusingProvider, streamed: bool, co_dir: Path
) -> None:
    agent = agent_at(provider, [look, odd_tool()], log=None)
    with pytest.warns(RuntimeWarning, match="'odd' is left out of requests"):
        assert take(agent, "Hello", streamed) == "Seen."
    assert len(provider.refused) == 1 and calls_of(agent) == [("error", 1), ("success", 2)]
    assert take(agent, "call look", streamed) == "Seen."
    other = agent_at(provider, [look, odd_tool()], log=None)
    other.resume(agent.record)
    assert other.input("And now?") == "Seen." and len(provider.refused) == 1
    mended = agent_at(provider, [look, odd_tool("date")], log=None)  # a schema that is taken is offered again
    mended.resume(agent.record)
    assert mended.input("call odd") == "Seen." and len(provider.refused) == 1
    assert any("odd" in json.dumps(tool) for tool in provider.taken[-1]["tools"])


def test_two_elements_of_one_round_are_both_replaced(provider: RefusingProvider) -> None:
    def shots() -> Image:
        """Take another picture."""
        return Image(png(2, 2, poison=True))

    @before_llm
    def twice(agent: Agent, request: Any) -> LLMResponse | None:
        if agent.current_session["iteration"] > 1:  # type: ignore[index]
            return None
        return LLMResponse(None, [ToolCall("a", "shot", {}), ToolCall("b", "shots", {})])

    agent = agent_at(provider, [shot, shots], [twice])
    assert agent.input("Go") == "Seen."
    assert [one["tool"] for one in owners_of(agent)] == ["shots", "shot"] and len(provider.refused) == 2


def test_a_request_of_one_call_goes_on_and_the_conversation_stays(provider: RefusingProvider) -> None:
    agent = agent_at(provider, [look], [edit_request])
    assert agent.input("Hello") == "Seen." and agent.input("Again") == "Seen."
    assert [message["content"] for message in messages_of(agent)] == ["Hello", "Seen.", "Again", "Seen."]
    trace = agent.current_session["trace"]  # type: ignore[index]
    assert all(entry["refused"] for entry in trace if entry["type"] == "llm_call" and entry["status"] == "success")


def test_a_second_refusal_restores_the_element_and_raises_the_first_error(provider: RefusingProvider) -> None:
    """Two texts are refused: the error does not point at another one, so only one more attempt is made."""
    seen: list[tuple[str, int]] = []

    @on_error
    def note(error: Exception, attempt: int) -> None:
        seen.append((str(error), attempt))

    agent = agent_at(provider, [words], [note, add_words])
    with pytest.raises(ProviderError) as raised:
        agent.input("call words")
    assert len(provider.refused) == 2 and seen == [(str(raised.value), 1)]
    assert calls_of(agent)[-2:] == [("error", 1), ("error", 2)] and not owners_of(agent)
    first = provider.refused[0]["error"]["message"]
    assert first in str(raised.value)
    assert sum(POISON.decode() in str(message["content"]) for message in messages_of(agent)) == 2


class Failing:
    """A model that fails with an error while the conversation has an image."""

    provider, model = "x", "x/one"

    def __init__(self, **error: Any) -> None:
        self.error, self.calls = error, 0

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        self.calls += 1
        if '"image_url": {' in json.dumps(messages):
            raise ProviderError(**{"kind": "bad_request", "provider": "x", "status": 400, **self.error})
        return LLMResponse("Seen.")


IMAGE = "messages.0.content.1.image.source.base64: Could not process image"
NOT_CONTENT: list[dict[str, Any]] = [
    {"message": IMAGE, "kind": "auth", "status": 401},
    {"message": IMAGE, "kind": "rate_limit", "status": 429},
    {"message": IMAGE, "kind": "context_length"},
    {"message": IMAGE, "status": 500, "kind": "server"},
    {"message": IMAGE, "status": None},
    {"message": "the prompt is too long: 300000 tokens", "kind": "context_length", "status": 413},
    {"message": "x/one: max_tokens: 9000 > 8192 (bad_request, HTTP 400)"},
    {"message": "x/one: Unsupported value: 'temperature' does not support 0.2 with this model."},
    {"message": "Unsupported parameter: 'max_tokens' is not supported with this model."},
    {"message": "Unknown parameter: 'frobnicate'."},
    {"message": "Your credit balance is too low to access the API."},
    {"message": "An assistant refused", "kind": "content_filter"},
]
CONTENT: list[dict[str, Any]] = [
    {"message": IMAGE},
    {"message": "Request exceeds the maximum size", "kind": "context_length", "status": 413},
    {"message": "Invalid value: 'image_url'. Supported values are: 'text'."},
    {"message": "x/one: Provider returned error (bad_request, HTTP 400)"},
    {"message": "Request contains an invalid argument."},
    {"message": "Unable to process input image. Please retry or report."},
    {"message": "Unsupported MIME type: image/tiff", "status": 422},
    {"message": "Missing required parameter: 'messages[0].content[1].image_url.url'."},
    {"message": "Invalid content type. image_url is only supported by certain models."},
]


@pytest.mark.parametrize("error", NOT_CONTENT, ids=lambda error: f"{error['message'][:30]}-{error.get('status')}")
def test_other_errors_get_no_further_attempt(error: dict[str, Any]) -> None:
    llm = Failing(**error)
    with pytest.raises(ProviderError):
        Agent("a", llm=llm, log=False, quiet=True).input(["Look", Image(png())])
    assert llm.calls == 1


@pytest.mark.parametrize("error", CONTENT, ids=lambda error: error["message"][:30])
def test_errors_about_content_get_one(error: dict[str, Any]) -> None:
    llm = Failing(**error)
    agent = Agent("a", llm=llm, log=False, quiet=True)
    assert agent.input(["Look", Image(png())]) == "Seen." and llm.calls == 2
    assert agent.input("Again") == "Seen." and llm.calls == 3


def test_what_the_model_took_before_is_not_replaced() -> None:
    class Moody(Failing):
        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            if len(messages) < 3:
                return LLMResponse("Seen.")
            return super().complete(messages, tools)

    llm = Moody(message=IMAGE)
    agent = Agent("a", llm=llm, log=False, quiet=True)
    agent.input(["Look", Image(png())])
    with pytest.raises(ProviderError):
        agent.input("Again")
    assert llm.calls == 1


def test_retries_of_handlers_are_counted_without_these_attempts() -> None:
    numbers: list[int] = []

    class Busy(Failing):
        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            if self.calls < 3:
                return super().complete(messages, tools)
            return LLMResponse("Seen.")

    llm = Busy(message=IMAGE)
    llm.complete = _failing_twice(llm)  # type: ignore[method-assign]

    @on_error
    def again(attempt: int) -> Retry:
        numbers.append(attempt)
        return Retry()

    agent = Agent("a", llm=llm, on_events=[again], log=False, quiet=True)
    assert agent.input(["Look", Image(png())]) == "Seen."
    assert numbers == [1] and [one[1] for one in calls_of(agent)] == [1, 2, 3]


def _failing_twice(llm: Failing) -> Callable[..., LLMResponse]:
    def complete(messages: Any, tools: Any = None) -> LLMResponse:
        llm.calls += 1
        if llm.calls > 2:
            return LLMResponse("Seen.")
        raise ProviderError(IMAGE, kind="bad_request", provider="x", status=400)

    return complete


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_turn_that_was_killed_goes_on_wherever_it_was_cut(element: str, tmp_path: Path, co_dir: Path) -> None:
    prompt, tools, handlers, _ = ELEMENTS[element]
    provider = RefusingProvider("anthropic")
    with provider:
        agent = agent_at(provider, tools, handlers, log=None)
        agent.input(prompt)
        assert agent.record is not None
        lines = agent.record.read_bytes().splitlines(keepends=True)
        first = next(number for number, line in enumerate(lines) if b'"user_input"' in line)
        for cut in range(first + 1, len(lines)):
            place = tmp_path / f"cut{cut}.yaml"
            place.write_bytes(b"".join(lines[:cut]))
            refused, other = len(provider.refused), agent_at(provider, tools, handlers, log=None)
            other.resume(place)
            assert len(provider.refused) - refused <= 1
            assert other.current_session["result"] == "Seen.", lines[cut - 1]  # type: ignore[index]
            assert sum(POISON.decode() in str(message) for message in messages_of(other)) == 0
            if b'"tool_name"' not in lines[cut - 1]:  # else it was killed in the tool, which is in doubt
                assert _without_ids(messages_of(other)) == _without_ids(messages_of(agent)), lines[cut - 1]
            refused = len(provider.refused)
            assert other.input("And now?") == "Seen." and len(provider.refused) == refused


def _without_ids(messages: list[Any]) -> str:
    return re.sub(r"call_\d+", "", json.dumps(messages))


def test_the_record_plays_again_without_a_difference(provider: RefusingProvider, co_dir: Path) -> None:
    for prompt, tools, handlers, _ in ELEMENTS.values():
        agent = agent_at(provider, tools, handlers, log=None)
        agent.input(prompt)
        agent.input("And now?")
        assert agent.record is not None
        played = replayed(agent.record, agent_at(provider, tools, handlers))
        assert played.same, (prompt, played)


def test_a_session_that_was_refused_by_an_older_version_goes_on(
    provider: RefusingProvider, co_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, tools, _, _ = ELEMENTS["image of a tool"]
    with monkeypatch.context() as older:
        older.setattr("connectagent.loop.model_choice.ask_without_refused", lambda call: None)
        agent = agent_at(provider, tools, log=None)
        for text in (prompt, "Hello?"):
            with pytest.raises(ProviderError):
                agent.input(text)
    other = agent_at(provider, tools, log=None)
    assert other.resume(agent.record) == "Seen."
    assert other.input("And now?") == "Seen." and len(provider.refused) == 3
    assert [one["tool"] for one in owners_of(other)] == ["shot"]


def test_awaited_and_mapped_turns_go_on_too(provider: RefusingProvider) -> None:
    agent = agent_at(provider, [shot])
    assert asyncio.run(agent.ainput("call shot")) == "Seen."
    assert len(provider.refused) == 1
    results = agent_at(provider, [shot]).map(["call shot", "call shot"])
    assert [one.result for one in results] == ["Seen."] * 2 and len(provider.refused) == 3


def test_the_cost_counts_each_attempt_once(provider: RefusingProvider) -> None:
    plain, agent = agent_at(provider, [look]), agent_at(provider, [shot])
    plain.input("call look")
    agent.input("call shot")
    assert agent.total_cost == plain.total_cost and agent.total_cost


# -- kept before sending --------------------------------------------------------------------------


def big_picture() -> Image:
    """Take a large picture."""
    return Image(png(padding=4 * 1024 * 1024))


def wrong_type() -> Image:
    """Take a picture whose type is wrong."""
    return Image(png(), media_type="image/jpeg")


def cut_off() -> Image:
    """Take a picture whose end is missing."""
    return Image(png(64, 64)[:-20])


def no_picture() -> Image:
    """Take no picture."""
    return Image(b"BM no picture", media_type="image/png")


def locked() -> File:
    """Read an encrypted document."""
    return File(b"%PDF-1.4 trailer << /Encrypt 5 0 R >>", name="locked.pdf")


KEPT = {
    "big_picture": (big_picture, "bytes in base64 is left out: anthropic takes at most 5,242,880"),
    "wrong_type": (wrong_type, None),
    "cut_off": (cut_off, "its end is missing"),
    "no_picture": (no_picture, "no PNG, JPEG, GIF or WebP"),
    "locked": (locked, "it is encrypted"),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_known_to_be_refused_is_never_sent(provider: RefusingProvider, kind: str, streamed: bool) -> None:
    tool, note = KEPT[kind]
    agent = agent_at(provider, [tool])
    assert take(agent, f"call {kind}", streamed) == "Seen." and take(agent, "And now?", streamed) == "Seen."
    assert not provider.refused
    if kind != "big_picture" or provider.wire == "anthropic":
        sent = json.dumps(provider.taken[-1])
        assert ("data:image/png" in sent or '"media_type": "image/png"' in sent) if note is None else note in sent
        calls = [entry for entry in agent.current_session["trace"] if entry["type"] == "llm_call"]  # type: ignore[index]
        assert "adapted" in calls[1]["request"] and "adapted" not in calls[2].get("request", {})


def test_schemas_of_other_drafts_and_names_of_properties_are_adapted(provider: RefusingProvider) -> None:
    given: list[dict[str, Any]] = []

    def find(**arguments: Any) -> str:
        given.append(arguments)
        return "found"

    properties = {
        "$filter": {"type": "string"},
        "top": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        "skip": {"type": "integer", "maximum": 9, "exclusiveMaximum": False},
    }
    tool = Tool("find", "Find.", {"type": "object", "properties": properties, "required": ["$filter"]}, find)
    agent = agent_at(provider, [tool])
    name = "_filter" if provider.wire == "anthropic" else "$filter"
    assert agent.input(f'call find {{"{name}": "x", "top": 3}}') == "Seen."
    assert not provider.refused and given == [{"$filter": "x", "top": 3}]
    call = next(entry for entry in agent.current_session["trace"] if entry["type"] == "tool_execution")  # type: ignore[index]
    assert call["arguments"] == {"$filter": "x", "top": 3}
    sent = json.dumps(provider.taken[-1])
    assert "$filter" not in sent.replace('"title": "$filter"', "") or provider.wire != "anthropic"
    assert '"exclusiveMinimum": 0' in sent and "exclusiveMaximum" not in sent
