"""What is known before the first call: whether the model has a price, and what the call may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from connectagent_budget import Budget
from connectagent_budget.estimate import ASSUMED_OUTPUT, ATTACHED, estimate, has_no_price

from connectagent import Agent, LLMRequest, LLMResponse, Retry, TokenUsage, before_llm, on_error
from connectagent.testing import ScriptedLLM, call

SONNET = "anthropic/claude-sonnet-4-5"  # 3 USD a million input tokens, 15 a million output tokens
PAID = TokenUsage(10, 10, cost=0.01)


def search(query: str) -> str:
    """Search the docs."""
    return "Two pages."


class Provided(ScriptedLLM):
    """A scripted model that has a provider's name and options, as an adapter does."""

    def __init__(self, model: str, *responses: Any, options: dict[str, Any] | None = None) -> None:
        super().__init__(*responses, model=model)
        self.provider = model.partition("/")[0]
        self.options = options or {}

    def with_options(self, options: dict[str, Any]) -> Provided:
        return self


def entries(agent: Agent) -> list[Any]:
    return [entry for entry in agent.session["trace"] if entry["type"] == "budget"]


UNPRICED = ["ollama/llama3.2", "lmstudio/any", "co/gpt-5-mini", "openai/nobody-knows", "anthropic/claude-0"]


@pytest.mark.parametrize("per", ["turn", "session", "day"])
@pytest.mark.parametrize("model", UNPRICED)
def test_a_model_without_a_price_is_refused_before_the_first_call(model: str, per: str, co_dir: Path) -> None:
    llm = Provided(model, "never")
    agent = Agent("helper", llm=llm, plugins=[Budget(usd=9, per=per)], log=False, quiet=True)
    for _ in range(2):
        assert f"the price of {model} is not known" in agent.input("Hi")
    assert (agent.session["outcome"], llm.requests) == ("budget", [])
    assert entries(agent)[0]["of"] == "unknown"


@pytest.mark.parametrize("per", ["turn", "session", "day"])
@pytest.mark.parametrize("model", UNPRICED)
def test_one_that_is_allowed_is_told_on_the_terminal_and_in_the_trace_of_each_turn(
    model: str, per: str, co_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [LLMResponse(text, None, TokenUsage(5, 5)) for text in ("One.", "Two.")]
    plugin = Budget(usd=9, per=per, unpriced="allow")
    agent = Agent("helper", llm=Provided(model, *answers), plugins=[plugin], log=False)
    for number, text in enumerate(("One.", "Two."), 1):
        assert agent.input("Hi") == text
        shown = capsys.readouterr()
        told = f"the budget cannot be kept: the price of {model} is not known"
        assert " ".join(shown.err.split()).count(told) == 1
        assert [entry["of"] for entry in entries(agent)] == ["unknown"] * number


@pytest.mark.parametrize("limits", [{"tokens": 900_000}, {"model_calls": 3}, {"agents": {"another": {"usd": 1}}}])
def test_who_limits_no_usd_of_it_needs_no_price(limits: dict[str, Any]) -> None:
    llm = Provided("ollama/llama3.2", LLMResponse("Hello.", None, TokenUsage(5, 5)))
    assert Agent("helper", llm=llm, plugins=[Budget(**limits)], log=False, quiet=True).input("Hi") == "Hello."


def test_the_offline_model_costs_nothing() -> None:
    agent = Agent("helper", [search], model="offline", plugins=[Budget(usd=1, tokens=9)], log=False, quiet=True)
    assert "search" in agent.input('search "a"').lower()
    assert (agent.session["outcome"], entries(agent)) == ("answered", [])


def test_models_that_say_what_they_cost_are_asked() -> None:
    own = ScriptedLLM(model="ollama/mine")
    assert not has_no_price("ollama/mine", own)
    assert not has_no_price("mine", own)
    assert not has_no_price("openrouter/any", Provided("openrouter/any"))
    assert has_no_price("ollama/other", own)


def test_another_model_that_a_handler_or_a_judge_names_is_refused_too() -> None:
    @before_llm
    def other(request: LLMRequest) -> None:
        request.model = "ollama/llama3.2"

    @on_error
    def fall_back() -> Retry:
        return Retry(model=Provided("ollama/llama3.2", "never"))

    @before_llm
    def judge(agent: Agent) -> None:
        agent.ask("Good?", model="ollama/llama3.2")

    for handler in (other, fall_back, judge):
        llm = Provided(SONNET, ValueError("down"), "never")
        agent = Agent("helper", llm=llm, plugins=[handler, Budget(usd=9)], log=False, quiet=True)
        try:
            agent.input("Hi")
        except Exception as error:
            assert "ended" in str(error), handler
        assert agent.session["outcome"] in ("budget", None), handler  # None: the judge could not ask
        assert len(llm.requests) == (handler is fall_back), handler


LIMITS = [
    ({"max_tokens": 100}, 100),
    ({"max_completion_tokens": 70}, 70),
    ({"max_output_tokens": 60}, 60),
    ({"extra_body": {"max_tokens": 50}}, 50),
]


@pytest.mark.parametrize(
    ("model", "options", "output"),
    [
        *((model, *limit) for model in (SONNET, "openai/gpt-5") for limit in LIMITS),
        (SONNET, {}, 8192),
        (SONNET, {"thinking": {"type": "enabled", "budget_tokens": 1000}}, 9192),
        ("openai/gpt-5", {}, ASSUMED_OUTPUT),
    ],
)
def test_an_estimate_counts_the_request_and_the_longest_answer(
    model: str, options: dict[str, Any], output: int
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 999_999}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "é" * 2000}, image]}]
    request = LLMRequest(messages, [], model, options)
    found = estimate(request, output=True, priced=True)
    assert found is not None and found.tokens is not None and found.usd is not None
    given = found.tokens - output
    assert 1000 + ATTACHED <= given <= 1000 + ATTACHED + 30
    rates = (3, 15) if model == SONNET else (1.25, 10)
    assert found.usd == pytest.approx((given * rates[0] + output * rates[1]) / 1e6)


@pytest.mark.parametrize(("limits", "fits"), [({"usd": 0.1}, False), ({"usd": 0.2}, True), ({"tokens": 8000}, False)])
def test_the_first_call_is_made_only_if_its_estimate_fits(limits: dict[str, Any], fits: bool) -> None:
    llm = Provided(SONNET, LLMResponse("Hello.", None, PAID))
    agent = Agent("helper", llm=llm, plugins=[Budget(**limits)], log=False, quiet=True)
    answer = agent.input("Hi")
    assert len(llm.requests) == fits
    assert (answer == "Hello.") if fits else ("too small for the next call, which may take" in answer)


def test_an_estimate_is_settled_by_what_the_call_cost() -> None:
    answers = [LLMResponse(None, [call("search", query="a")], PAID)] * 9
    llm = Provided(SONNET, *answers, options={"max_tokens": 6000})  # 0.09 USD
    agent = Agent("helper", [search], llm=llm, plugins=[Budget(usd=0.1)], log=False, quiet=True, max_iterations=9)
    agent.input("Hi")
    assert len(llm.requests) == 9  # each costs 0.01


def test_parallel_first_calls_do_not_take_the_same_rest() -> None:
    answers = [LLMResponse("Done.", None, TokenUsage(10, 2000, cost=0.03))] * 9
    llm = Provided(SONNET, *answers, options={"max_tokens": 2000})
    children = [Agent(f"c{number}", llm=llm, log=False, quiet=True) for number in range(6)]
    lead = ScriptedLLM(LLMResponse(None, [call(one.name, prompt="Go") for one in children], TokenUsage(1, 1, cost=0.0)))
    agent = Agent("lead", children, llm=lead, plugins=[Budget(usd=0.1)], log=False, quiet=True, parallel_tools=6)
    agent.input("Go")
    assert agent.session["outcome"] == "budget"
    assert 1 <= len(llm.requests) <= 3
