"""What becomes of an answer for each reason to stop: on each wire, plain and streamed, over the real SDKs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from stopped_answers import WIRES, answer, good, llm_at, typed_answer
from wire_server import WireServer

from connectagent import Agent, ProviderError, Retry, llm_do, on_error
from connectagent.stop_reasons import REASONS, stop_reason
from connectagent.testing import ScriptedLLM, replayed

MODES = ("plain", "stream")


@dataclass
class Report:
    """A report, all of whose fields have defaults."""

    title: str = "untitled"
    pages: int = 0


# -- the cases -------------------------------------------------------------------------------------


@dataclass
class Case:
    """One reason on one wire, in one mode."""

    wire: str
    mode: str
    reason: str
    end: str
    kind: str

    @property
    def word(self) -> str | None:
        """The reason as connectagent keeps it."""
        return self.reason or ("not_given" if self.wire == "anthropic" else None)

    def agent(self, server: WireServer, **given: Any) -> Agent:
        options = {"log": False, "quiet": True, "stream": self.mode == "stream", **given}
        return Agent("a", llm=llm_at(server, self.wire), **options)

    def fails(self, run: Callable[[], Any], kind: str | None = None) -> ProviderError:
        with pytest.raises(ProviderError) as caught:
            run()
        assert (caught.value.kind, caught.value.finish_reason) == (kind or self.kind, self.word), caught.value
        return caught.value


def text(case: Case) -> None:
    """A text is a result where it is whole, cut, a refusal in words, or where nothing is known against it."""
    with WireServer(answer(case.wire, case.mode, case.reason, "Half an", [])) as server:
        agent = case.agent(server)
        outcome = {"whole": "answered", "truncated": "truncated", "unknown": "truncated", "refused": "refused"}
        if case.end in ("filtered", "failed") or (case.wire, case.end) == ("anthropic", "refused"):
            case.fails(lambda: agent.input("Hi"))
        else:
            assert (agent.input("Hi"), agent.session["outcome"]) == ("Half an", outcome[case.end])


def nothing(case: Case) -> None:
    """An answer without text and calls is never a result."""
    with WireServer(answer(case.wire, case.mode, case.reason, None, [])) as server:
        agent = case.agent(server)
        if (case.wire, case.reason) in (("chat", "refusal"), ("responses", "refusal")):  # it says nothing then
            with pytest.raises(ProviderError, match="is empty"):
                agent.input("Hi")
        else:
            case.fails(lambda: agent.input("Hi"), case.kind or "empty")


def tools(case: Case) -> None:
    """Of a whole answer all calls run; of one that was cut those that are complete; of every other one none."""
    ran: list[str] = []

    def wipe(path: str = "/data") -> str:
        """Wipe."""
        ran.append(path)
        return "wiped"

    calls = [("t1", "wipe", '{"path": "/tmp"}'), ("t2", "wipe", "")]
    said = "I refuse." if case.reason == "refusal" else None
    asks, done = (
        answer(case.wire, case.mode, case.reason, said, calls),
        answer(case.wire, case.mode, good(case.wire), "Done.", []),
    )
    pauses = [asks] * 10 if case.reason == "pause_turn" else [asks]
    with WireServer(*pauses, done) as server:
        agent = case.agent(server, tools=[wipe])
        if case.end in ("whole", "truncated"):
            assert agent.input("Hi") == "Done."
        else:
            case.fails(lambda: agent.input("Hi"))
    assert ran == {"whole": ["/tmp", "/data"], "truncated": ["/tmp"]}.get(case.end, [])


def typed(case: Case) -> None:
    """A cut answer is no object of defaults, and is not asked for again under the same limit."""
    with WireServer(typed_answer(case.wire, case.mode, case.reason, '{"title": "Rep')) as server:
        agent = case.agent(server, output_retries=1)
        if case.end == "whole":
            if (case.wire, case.mode) == ("anthropic", "plain"):  # the server has read it already
                assert agent.input("Hi", output=Report) == Report("Rep")
            else:
                with pytest.raises(ValueError, match="JSON"):
                    agent.input("Hi", output=Report)
                assert len(server.requests) == 2
        else:
            case.fails(lambda: agent.input("Hi", output=Report))
            assert len(server.requests) == (10 if case.reason == "pause_turn" else 1)
    with WireServer(typed_answer(case.wire, case.mode, case.reason, '{"title": "Report", "pages": 3}')) as server:
        agent = case.agent(server)
        if case.end == "whole":
            assert agent.input("Hi", output=Report) == Report("Report", 3)
        else:
            case.fails(lambda: agent.input("Hi", output=Report))


def by_llm_do(case: Case) -> None:
    """Whoever gets nothing but a text or an object gets none that is not whole."""
    for output, given in ((None, "Half an"), (Report, '{"title": "Report", "pages": 3}')):
        made = answer if output is None else typed_answer
        said = made(case.wire, "plain", case.reason, given, *([[]] if output is None else []))
        with WireServer(said) as server:
            llm = llm_at(server, case.wire)
            if case.end == "whole":
                expected = given if output is None else Report("Report", 3)
                assert llm_do("Hi", output, llm=llm) == expected  # type: ignore[arg-type]
            else:
                case.fails(partial(llm_do, "Hi", output, llm=llm))


def retried(case: Case) -> None:
    """`on_error` gets the error of an answer that cannot be used, and asks another model."""
    kinds: list[str] = []

    @on_error
    def elsewhere(error: Exception) -> Retry:
        assert isinstance(error, ProviderError)
        kinds.append(error.kind)
        return Retry(model=ScriptedLLM('{"title": "From elsewhere"}'))

    with WireServer(typed_answer(case.wire, case.mode, case.reason, '{"title": "Rep"}')) as server:
        agent = case.agent(server, on_events=[elsewhere])
        found = agent.input("Hi", output=Report)
    assert (found.title, kinds) == (("Rep", []) if case.end == "whole" else ("From elsewhere", [case.kind]))


def resumed(case: Case) -> None:
    """The record keeps the reason; a replay comes to the same, and a resumed turn asks again."""

    def wipe(path: str = "/data") -> str:
        """Wipe."""
        return "wiped"

    said = "I refuse." if case.reason == "refusal" else None
    asks = answer(case.wire, case.mode, case.reason, said, [("t1", "wipe", '{"path": "/tmp"}'), ("t2", "wipe", "")])
    done = answer(case.wire, case.mode, good(case.wire), "Done.", [])
    pauses = [asks] * 10 if case.reason == "pause_turn" else [asks]
    with WireServer(*pauses, done) as server:
        agent = case.agent(server, tools=[wipe], log=None)
        if case.end in ("whole", "truncated"):
            agent.input("Hi")
        else:
            case.fails(lambda: agent.input("Hi"))
        record = str(agent.record)
        (turn,) = yaml.safe_load(Path(record).read_text("utf-8"))["turns"]
        first = next(entry for entry in turn["trace"] if entry["type"] == "llm_call")
        assert first.get("finish_reason") == case.word
        played = replayed(record, Agent("a", [wipe], llm=llm_at(server, case.wire), log=False, quiet=True))
        assert played.same, played
        if case.end not in ("whole", "truncated"):
            assert first["error_kind"] == case.kind
            assert case.agent(server, tools=[wipe], log=None).resume(record) == "Done."


CASES = [
    Case(wire, mode, reason, *found)
    for wire, reasons in WIRES.items()
    for mode in MODES
    for reason, found in reasons.items()
]


CHECKS = [text, nothing, tools, typed, by_llm_do, retried, resumed]


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.wire}-{one.mode}-{one.reason or 'none'}")
def test_an_answer_is_good_only_if_its_reason_is_known_to_be_good(
    case: Case, check: Callable[[Case], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(case)


def test_each_reason_has_a_source_and_errors_a_kind_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text("utf-8")
    for word, found in REASONS.items():
        assert word == word.lower() and found.source.startswith("[") and stop_reason(word.upper()) == found
        assert (found.end == "whole") == (found.kind == found.text == "")
        assert found.end == "whole" or f"`{found.kind}`" in page
    assert (stop_reason(None).end, stop_reason("").end, stop_reason("of tomorrow").end) == ("whole", "whole", "unknown")
