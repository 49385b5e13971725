"""An `on_error` handler that raises does not hide the error that it was to handle."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from connectagent import Agent, HookResultError, ProviderError, around_llm, around_tool, on_error
from connectagent.testing import ScriptedLLM, call

ORIGINAL = "401 invalid api key"


class Refused(ProviderError):
    """An error of a model."""

    def __init__(self) -> None:
        super().__init__(ORIGINAL, kind="auth", provider="x", status=401)


class Same(Exception):
    """An error that equals every other one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exception)

    def __hash__(self) -> int:
        return 1


def plain(error: Exception) -> Any:
    raise KeyError("of the handler")


def from_none(error: Exception) -> Any:
    raise KeyError("of the handler") from None


def while_handling_its_own(error: Exception) -> Any:
    try:
        raise ValueError("inside the handler")
    except ValueError:
        raise KeyError("of the handler")  # noqa: B904


def from_its_own(error: Exception) -> Any:
    raise KeyError("of the handler") from ValueError("inside the handler")


def translated(error: Exception) -> Any:
    raise KeyError("of the handler") from error


def raised_and_caught(error: Exception) -> Any:
    try:
        raise error
    except Exception:
        raise KeyError("of the handler")  # noqa: B904


def equal_to_all(error: Exception) -> Any:
    raise Same("of the handler")


HANDLERS: list[Callable[[Exception], Any]] = [
    plain, from_none, while_handling_its_own, from_its_own, translated, raised_and_caught, equal_to_all,
]  # fmt: skip


def fails() -> str:
    """Fail."""
    raise ValueError(ORIGINAL)


def of_model(handlers: list[Any], **more: Any) -> Agent:
    return Agent("root", llm=ScriptedLLM(Refused()), on_events=handlers, **more)


def of_tool(handlers: list[Any], **more: Any) -> Agent:
    return Agent("root", [fails], llm=ScriptedLLM(call("fails"), "Done."), on_events=handlers, **more)


def of_unknown_tool(handlers: list[Any], **more: Any) -> Agent:
    return Agent("root", llm=ScriptedLLM(call(ORIGINAL), "Done."), on_events=handlers, **more)


def of_inner_agent(handlers: list[Any], **more: Any) -> Agent:
    """The handler is the inner agent's: what it raises ends the tool call of the outer one."""
    inner = Agent("inner", llm=ScriptedLLM(Refused()), on_events=handlers, log=False, quiet=True)
    return Agent("root", tools=[inner], llm=ScriptedLLM(call("inner", prompt="x"), "Done."), **more)


def of_handler_outside(handlers: list[Any], **more: Any) -> Agent:
    """The handler is the outer agent's: the error is that of the inner agent's model."""
    inner = Agent("inner", llm=ScriptedLLM(Refused()), log=False, quiet=True)
    return Agent("root", tools=[inner], llm=ScriptedLLM(call("inner", prompt="x"), "Done."), on_events=handlers, **more)


PLACES: list[Callable[..., Agent]] = [of_model, of_tool, of_unknown_tool, of_inner_agent, of_handler_outside]


def contexts(error: BaseException) -> list[str]:
    found, one = [], error.__context__
    while one is not None:
        found.append(str(one))
        one = one.__context__
    return found


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("raises", HANDLERS, ids=lambda raises: raises.__name__)
def test_the_original_is_the_context_and_is_named(
    raises: Callable[[Exception], Any], place: Callable[..., Agent], awaited: bool
) -> None:
    @on_error
    def handler(error: Exception) -> Any:
        return raises(error)

    agent = place([handler], log=False, quiet=True)
    with pytest.raises(Exception, match="of the handler") as caught:
        asyncio.run(agent.ainput("Go")) if awaited else agent.input("Go")
    assert any(ORIGINAL in one for one in contexts(caught.value))
    shown = "".join(traceback.format_exception(caught.value))
    assert ORIGINAL in shown and "raised by on_error handler" in shown
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "error"]
    if place is not of_inner_agent:  # there, the inner agent's trace has it
        assert ORIGINAL in entries[-1]["handling"]["error"]


def test_a_value_that_cannot_be_used_does_not_hide_it_either() -> None:
    @on_error
    def handler() -> int:
        return 7

    with pytest.raises(HookResultError) as caught:
        of_model([handler], log=False, quiet=True).input("Go")
    assert contexts(caught.value) == [ORIGINAL]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_the_original_raised_again_is_itself(place: Callable[..., Agent]) -> None:
    @on_error
    def handler(error: Exception) -> Any:
        raise error

    with pytest.raises(Exception) as caught:
        place([handler], log=False, quiet=True).input("Go")
    assert ORIGINAL in str(caught.value) and ORIGINAL not in "".join(contexts(caught.value))
    assert not any("while handling" in note for note in getattr(caught.value, "__notes__", ()))


def test_around_handlers_do_not_hide_it_either() -> None:
    @around_llm
    def model() -> Any:
        with contextlib.suppress(ProviderError):
            yield
        raise KeyError("of the handler")

    @around_tool
    def tool() -> Any:
        with contextlib.suppress(ValueError):
            yield
        raise KeyError("of the handler")

    for agent in (of_model([model], log=False, quiet=True), of_tool([tool], log=False, quiet=True)):
        with pytest.raises(KeyError, match="of the handler") as caught:
            agent.input("Go")
        assert contexts(caught.value) == [ORIGINAL]
        assert any(ORIGINAL in note for note in caught.value.__notes__)


def test_it_is_shown_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    @on_error
    def handler(error: Exception) -> Any:
        raise KeyError("of the handler") from None

    with pytest.raises(KeyError):
        of_model([handler], log=False).input("Go")
    shown = " ".join(capsys.readouterr().err.split())
    assert f"KeyError: 'of the handler' (while handling Refused: {ORIGINAL})" in shown
