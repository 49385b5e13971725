"""The kit for authors: a scripted turn, crashes, no network, and a recorder of hooks."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    LLMResponse,
    hooks,
    on_error,
)
from connectagent.hooks.specs import AROUND, EVENTS
from connectagent.testing import (
    NetworkRefused,
    ScriptedLLM,
    ScriptEnded,
    call,
    conversation_problems,
    crash_at,
    no_network,
    run_agent,
)

ROOT = Path(__file__).parents[2]


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


# -- the recorder, and what loading costs ------------------------------------------------------------


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
