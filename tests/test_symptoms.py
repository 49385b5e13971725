"""A symptom is found in a turn's trace, whichever way the turn came to it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_user_input,
    before_each_tool,
    on_complete,
    on_error,
)
from connectagent.errors import ConfigError, Pause, Paused
from connectagent.testing import ScriptedLLM, call
from connectagent.testing.symptoms import symptom


def refund(order: int, amount: int = 1) -> str:
    """Refund an order."""
    return f"refunded {amount}"


def fail() -> str:
    """Fail."""
    raise ValueError("no such page")


def turn(*answers: Any, plugins: Any = (), prompt: str = "Refund") -> list[Any]:
    """The entries of a turn, which may raise."""
    agent = Agent("shop", tools=[refund, fail], llm=ScriptedLLM(*answers), plugins=plugins, log=False, quiet=True)
    with contextlib.suppress(KeyError, Paused):
        agent.input(prompt)
    return agent.current_session["trace"]  # type: ignore[index]


def shown(text: str, entries: list[Any]) -> bool:
    return symptom(text).shown_by(entries)


@before_each_tool
def guard(tool_call: Any) -> None:
    if tool_call.arguments.get("amount", 0) > 50:
        raise ToolRejected("too much")


def test_a_call_is_found_by_its_name_and_its_arguments() -> None:
    entries = turn(call("refund", order=7, amount=9), "Done.")
    assert shown("calls refund", entries)
    assert shown("calls refund /amount=9/", entries) and shown('calls refund /"amount": 9/', entries)
    assert not shown("calls refund /amount=99/", entries)
    assert not shown("calls fund", entries)
    assert symptom("calls refund").found(entries)["type"] == "llm_call"  # type: ignore[index]


def test_a_call_that_a_handler_took_away_is_not_made_and_one_that_it_adds_is() -> None:
    @after_llm
    def other(response: Any) -> Any:
        if response.tool_calls and response.tool_calls[0].name == "refund":
            response.tool_calls[0].name = "fail"
            return response

    entries = turn(call("refund", order=7), "Done.", plugins=[other])
    assert not shown("calls refund", entries) and shown("calls fail", entries)


def test_a_call_that_waits_for_a_person_was_made() -> None:
    @before_each_tool
    def ask(tool_call: Any) -> None:
        raise Pause("may it?")

    assert shown("calls refund", turn(call("refund", order=7), plugins=[ask]))


def test_what_the_agent_says_is_the_text_that_handlers_leave_and_the_result_that_they_give() -> None:
    @after_llm
    def shout(response: Any) -> Any:
        return response.content.upper()

    @on_complete
    def sign(result: str) -> str:
        return result + " Bye."

    entries = turn("done", plugins=[shout, sign])
    assert shown("says /^DONE$/", entries) and shown("says /Bye/", entries) and not shown("says /done/", entries)

    @after_user_input
    def clock(prompt: str) -> str:
        return "12:00"

    assert shown("says /12:00/", turn(plugins=[clock]))


def test_a_result_is_what_the_model_reads() -> None:
    @after_each_tool
    def redact(result: Any) -> str:
        return "[redacted]"

    assert shown("result /refunded 1/", turn(call("refund", order=7), "Done."))
    entries = turn(call("refund", order=7), "Done.", plugins=[redact])
    assert shown("result /redacted/", entries) and not shown("result /refunded/", entries)


def test_an_error_is_found_in_tools_and_handlers_even_if_a_handler_recovered_it() -> None:
    @on_error
    def recover(error: Exception) -> str:
        return "it failed"

    @after_user_input
    def broken(prompt: str) -> None:
        raise KeyError("clock")

    entries = turn(call("fail"), "Done.", plugins=[recover])
    assert shown("error ValueError", entries) and shown("error builtins.ValueError", entries)
    assert not shown("error KeyError", entries)
    entries = turn(plugins=[broken])
    assert shown("error KeyError", entries) and shown("error KeyError by broken", entries)
    assert not shown("error KeyError by guard", entries)


def test_a_rejection_is_found_by_the_tool_and_by_who_rejects() -> None:
    entries = turn(call("refund", order=7, amount=99), "Done.", plugins=[guard])
    assert shown("rejected refund", entries) and shown("rejected refund by guard", entries)
    assert not shown("rejected refund by trust", entries) and not shown("rejected fail", entries)
    assert not shown("rejected refund", turn(call("refund", order=7), "Done.", plugins=[guard]))


def test_a_function_of_the_person_is_given_the_entries(tmp_path: Path) -> None:
    file = tmp_path / "check.py"
    file.write_text(
        "def twice(entries):\n    return sum(one['type'] == 'tool_execution' for one in entries) == 2\n"
        "def broken(entries):\n    return entries[1000]\n"
    )
    entries = turn(call("refund", order=7), call("refund", order=7), "Done.")
    assert shown(f"{file}:twice", entries) and not shown(f"{file}:twice", entries[:-3])
    with pytest.raises(ConfigError, match="broken raised IndexError"):
        shown(f"{file}:broken", entries)
    with pytest.raises(ConfigError, match=r"has no function 'twise'\. Did you mean 'twice'"):
        symptom(f"{file}:twise")
    with pytest.raises(ConfigError, match="there is no file"):
        symptom(f"{tmp_path}/chek.py:twice")


def test_what_the_record_shows_in_its_place_is_said() -> None:
    entries = turn(call("refund", order=7), call("fail"), "Done.", plugins=[guard])
    why = symptom("calls refnd").why_not(entries)
    assert why == "the record does not show it; it calls: refund, fail. Did you mean 'refund'?"
    assert symptom("calls refund /99/").why_not(entries) == "the record does not show it; it calls: refund, fail"
    assert symptom("says /x/").why_not(entries) == "the record does not show it; it says: Done."
    assert symptom("result /x/").why_not(entries).endswith("results: refunded 1, Error: ValueError: no such page")
    assert symptom("error ValuError").why_not(entries).endswith("its errors: ValueError. Did you mean 'ValueError'?")
    assert symptom("error KeyError").why_not(turn("Done.")).endswith("its errors: nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("call refund", "Did you mean 'calls'?"),
        ("refund", "It is one of: calls NAME [/regex/], says /regex/"),
        ("", "It is one of"),
        ("calls", "it is written as calls NAME or calls NAME /regex/"),
        ("calls refund 99", "it is written as"),
        ("says hello", "it is written as says /regex/"),
        ("result", "it is written as result /regex/"),
        ("says /(/", "is no regular expression"),
        ("error", "it is written as error TYPE"),
        ("rejected refund of guard", "it is written as rejected NAME"),
    ],
)
def test_what_cannot_be_looked_for_is_an_error_that_says_what_can(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        symptom(text)
    assert message in str(caught.value)


def test_a_regular_expression_may_hold_a_place_in_a_file() -> None:
    assert shown("says /shop.py:7/", turn("See shop.py:7."))
