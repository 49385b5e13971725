"""Failed calls are made again after a wait, then other models are asked; a breaker passes over a dead model."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from connectagent_retry import Retries
from pytest_connectagent import AgentTester

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    ProviderError,
    TokenUsage,
    before_llm,
    on_complete,
    on_error,
    register_models,
    tool,
)
from connectagent.testing import ScriptedLLM, call, replayed


def failed(kind: str = "overloaded", after_s: float | None = None) -> ProviderError:
    return ProviderError(kind, kind=kind, provider="test", retry_after_s=after_s)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the loop, which are not taken."""
    found: list[float] = []
    monkeypatch.setattr("connectagent.agents.runtime.time.sleep", found.append)
    return found


def agent_with(plugins: Any, *responses: Any, **options: Any) -> Agent:
    given = {"log": False, "quiet": True, "plugins": plugins, **options}
    return Agent("helper", llm=ScriptedLLM(*responses), **given)


def others(**models: ScriptedLLM) -> Any:
    """A plugin that brings the models `other/<name>`."""

    @register_models
    def bring() -> dict[str, Any]:
        return {"other": lambda name: models[name.partition("/")[2]]}

    return bring


def asked(llm: Any) -> int:
    return len(llm.requests)


def named(*responses: Any, name: str) -> ScriptedLLM:
    return ScriptedLLM(*responses, model=name)


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    changes = {"retry", "request"}
    checked = agenttester.check(Retries(wait_s=0, attempts=2), changes=changes, shares_state=True)
    assert checked.hooks == {"around_llm", "on_agent_ready", "on_error"}


def test_what_may_pass_is_tried_again_after_growing_waits_with_jitter(waits: list[float]) -> None:
    agent = agent_with(Retries(wait_s=1, max_wait_s=5), failed(), failed("connection"), failed("rate_limit"), "Done.")
    assert agent.input("Hi") == "Done."
    assert [low <= wait <= high for wait, low, high in zip(waits, (1, 2, 4), (2, 3, 5), strict=True)] == [True] * 3
    assert any(wait != round(wait) for wait in waits)


def test_after_the_attempts_the_error_reaches_the_caller(waits: list[float]) -> None:
    agent = agent_with(Retries(attempts=3), *[failed()] * 9)
    with pytest.raises(ProviderError):
        agent.input("Hi")
    assert (asked(agent.llm), len(waits)) == (3, 2)


def test_what_the_provider_asks_for_is_waited(waits: list[float]) -> None:
    assert agent_with(Retries(), failed("rate_limit", 30), "Done.").input("Hi") == "Done."
    assert 30 < waits[0] <= 31
    agent = agent_with(Retries(), failed("rate_limit", 61), "never")
    with pytest.raises(ProviderError):
        agent.input("Hi")


def test_other_errors_are_left_to_others(waits: list[float]) -> None:
    for kind in ("bad_request", "refusal", "content_filter", "length", "auth"):
        agent = agent_with(Retries(), failed(kind), "never")
        with pytest.raises(ProviderError):
            agent.input("Hi")
    assert waits == []
    assert agent_with([Retries(), on_error(lambda: "saved")], failed("refusal")).input("Hi") == "saved"


def test_fallback_models_are_asked_in_order(waits: list[float]) -> None:
    one, two = named(*[failed()] * 2, name="one"), named("From two.", name="two")
    plugin = Retries(attempts=2, fallback=["other/one", "other/two"])
    agent = agent_with([plugin, others(one=one, two=two)], *[failed()] * 2)
    assert agent.input("Hi") == "From two."
    assert (asked(agent.llm), asked(one), asked(two), len(waits)) == (2, 2, 1, 4)
    models = [entry["model"] for entry in agent.session["trace"] if entry["type"] == "llm_call"]
    assert models == ["scripted", "scripted", "one", "one", "two"]


@pytest.mark.parametrize(
    ("finish_reason", "attempts"),
    [("content_filter", 1), ("error", 4), ("function_call_filter: MALFORMED_FUNCTION_CALL", 4), ("brand_new", 4)],
)
def test_an_answer_that_stopped_for_no_good_reason_is_asked_for_again_or_elsewhere(
    waits: list[float], finish_reason: str, attempts: int
) -> None:
    bad = [LLMResponse("Half", [call("pay")], finish_reason=finish_reason) for _ in range(attempts)]
    two = named("From two.", name="two")
    agent = agent_with([Retries(fallback="other/two"), others(two=two)], *bad)
    assert agent.input("Hi") == "From two."
    assert (asked(agent.llm), asked(two), len(waits)) == (attempts, 1, attempts)


def test_a_model_that_does_not_help_is_left_at_once(waits: list[float]) -> None:
    one = named("From one.", name="one")
    agent = agent_with([Retries(fallback="other/one"), others(one=one)], failed("auth"))
    assert agent.input("Hi") == "From one."
    assert asked(agent.llm) == 1


def test_an_open_breaker_passes_over_the_model_until_its_time_is_over(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("connectagent_retry.time.monotonic", lambda: now[0])
    one = named(*["From one."] * 9, name="one")
    plugin = Retries(attempts=2, breaker=2, breaker_s=60, fallback="other/one")
    agent = agent_with([plugin, others(one=one)], *[failed()] * 3, "Back.", "Here.")
    assert [agent.input("a"), agent.input("b")] == ["From one."] * 2
    assert asked(agent.llm) == 2
    now[0] = 61
    assert agent.input("c") == "From one."  # it is tried, and fails once
    assert asked(agent.llm) == 3
    now[0] = 122
    assert [agent.input("d"), agent.input("e")] == ["Back.", "Here."]


def test_without_another_model_an_open_breaker_leaves_one_attempt(waits: list[float]) -> None:
    agent = agent_with(Retries(attempts=2, breaker=2), *[failed()] * 9)
    for expected in (2, 3, 4):
        with pytest.raises(ProviderError):
            agent.input("Hi")
        assert asked(agent.llm) == expected


def test_the_attempts_of_the_sdk_are_switched_off() -> None:
    seen: list[Any] = []

    class Model(ScriptedLLM):
        options: ClassVar = {"max_retries": 5, "temperature": 0}

        def with_options(self, options: dict[str, Any]) -> Any:
            seen.append(options)
            return self

    agent = Agent("helper", llm=Model("Hello."), plugins=[Retries()], log=False, quiet=True)
    agent.input("Hi")
    assert seen == [{"max_retries": 0, "temperature": 0}]


def test_each_request_to_a_provider_is_one_attempt(waits: list[float]) -> None:
    requests: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.path)
            self.send_response(503)
            self.send_header("Retry-After", "7")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/v1"
            given: Any = {"model": "openai/m", "base_url": address, "api_key": "none", "options": {"max_retries": 9}}
            agent = Agent("helper", plugins=[Retries(attempts=3)], log=False, quiet=True, **given)
            with agent, pytest.raises(ProviderError):
                agent.input("Hi")
        finally:
            server.shutdown()
            thread.join()
    assert (len(requests), [7 < wait <= 8 for wait in waits]) == (3, [True, True])


def test_idempotent_tools_run_again_and_others_do_not(waits: list[float]) -> None:
    ran: list[str] = []

    @tool(idempotent=True)
    def read(x: int) -> str:
        """Read."""
        ran.append("read")
        if ran.count("read") < 3:
            raise OSError("busy")
        return "text"

    def write(x: int) -> str:
        """Write."""
        ran.append("write")
        raise OSError("busy")

    calls = [call("read", x=1), call("write", x=1), call("read", x="wrong"), call("gone")]
    for parallel in (1, 3):
        ran.clear()
        agent = agent_with(Retries(), calls, "Done.", tools=[read, write], parallel_tools=parallel)
        assert agent.input("Go") == "Done."
        assert (ran.count("read"), ran.count("write")) == (3, 1)


def test_streams_children_and_asks_are_tried_again(waits: list[float]) -> None:
    agent = agent_with(Retries(), failed("stream"), "Done.")
    list(agent.stream("Hi"))
    assert agent.session["result"] == "Done."
    child = Agent("child", llm=ScriptedLLM(failed(), "From below."), quiet=True, log=False)
    agent = agent_with(Retries(), call("child", prompt="a"), "Done.", tools=[child])
    assert (agent.input("Hi"), child.session["result"]) == ("Done.", "From below.")

    @on_complete
    def ask(agent: Agent) -> str:
        return str(agent.ask("Better?").content)

    assert agent_with([Retries(), ask], "Done.", failed(), "Better.").input("Hi") == "Better."


def test_a_resumed_turn_goes_on_with_the_next_attempt_at_the_same_model(co_dir: Path, waits: list[float]) -> None:
    def make(*responses: Any, one: ScriptedLLM) -> Agent:
        plugins = [Retries(attempts=2, fallback=["other/one", "other/two"]), others(one=one, two=named(name="two"))]
        return agent_with(plugins, *responses, log=None)

    first = make(failed(), failed(), one=named(KeyboardInterrupt(), name="one"))
    with pytest.raises(KeyboardInterrupt):
        first.input("Hi")
    waits.clear()
    one = named("From one.", name="one")
    again = make(one=one)
    assert again.resume(first.record) == "From one."
    assert (asked(again.llm), asked(one), waits) == (0, 1, [])


def test_a_replay_gives_the_same_and_does_not_wait(co_dir: Path, waits: list[float]) -> None:
    whole = agent_with(Retries(), failed(), "Done.", log=None)
    whole.input("Hi")
    waits.clear()
    assert whole.record is not None
    played = replayed(whole.record, agent=agent_with(Retries(), log=None))
    assert (played.same, played.result, waits) == (True, "Done.", [])


def test_what_failed_attempts_cost_is_counted(waits: list[float]) -> None:
    cut = ProviderError("cut", kind="stream", provider="test", usage=TokenUsage(5, 5, cost=0.5))
    agent = agent_with(Retries(), cut, LLMResponse("Done.", usage=TokenUsage(5, 5, cost=0.25)))
    agent.input("Hi")
    assert agent.total_cost == 0.75


def test_a_handler_that_names_a_model_keeps_it(waits: list[float]) -> None:
    @before_llm
    def choose(request: Any) -> None:
        request.model = "other/one"

    one = named(failed(), "From one.", name="one")
    agent = agent_with([Retries(), choose, others(one=one)])
    assert agent.input("Hi") == "From one."


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"wait_s": -1}, {"breaker": "5"}, {"max_wait_s": True}, {"fallback": [1]}]
)
def test_wrong_options_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Retries(**wrong)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.endswith("Hello.\n")


def test_a_misspelt_fallback_is_told_when_the_agent_is_made() -> None:
    with pytest.raises(ConfigError, match="unknown provider 'nobody'") as refused:
        agent_with([Retries(fallback=["offline", "nobody/x"])], "Hello.")
    assert "of plugin 'retry'" in "".join(refused.value.__notes__)
