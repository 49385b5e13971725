"""Costs are those of the library's table, whether it calculates them or what it once said is multiplied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices import data_snapshot

from connectagent.data import TokenUsage
from connectagent.models import prices
from connectagent.models.prices import price

PROVIDERS: Any = data_snapshot.get_snapshot().providers


@pytest.fixture(autouse=True)
def no_rates() -> Iterator[None]:
    prices._rates.clear()
    yield
    prices._rates.clear()


def by_library(provider: str, model: str, usage: TokenUsage, now: datetime | None = None) -> float | None:
    """What the library says that a call costs."""
    try:
        given = genai_prices.Usage(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens, cache_write_tokens=usage.cache_write_tokens,
        )  # fmt: skip
        found = genai_prices.calc_price(given, model, provider_id=provider, genai_request_timestamp=now)
    except (LookupError, ValueError, TypeError):
        return None
    return float(found.total_price)


def some_usage(dice: random.Random) -> TokenUsage:
    tokens = dice.choice([0, 1, 1_000, 250_000, dice.randrange(10**7)])
    read = dice.choice([0, dice.randint(0, tokens)])
    written = dice.choice([0, dice.randint(0, tokens - read)])
    return TokenUsage(tokens, dice.choice([0, dice.randrange(10**5)]), read, written)


@pytest.mark.parametrize("provider", [provider.id for provider in PROVIDERS])
def test_each_models_cost_is_that_of_the_table_to_the_last_digit(provider: str) -> None:
    dice = random.Random(provider)
    for model in next(one for one in PROVIDERS if one.id == provider).models:
        for _ in range(5):
            usage = some_usage(dice)
            assert price(provider, model.id, usage) == by_library(provider, model.id, usage), (model.id, usage)


def test_the_table_has_prices_that_depend_on_the_number_of_tokens() -> None:
    few, many = TokenUsage(100_000, 0), TokenUsage(300_000, 0)
    costs = [price("google", "gemini-2.5-pro", usage) for usage in (few, many)]
    assert costs == [by_library("google", "gemini-2.5-pro", usage) for usage in (few, many)]
    assert costs[0] is not None and costs[1] is not None and costs[1] > 3 * costs[0]


@pytest.mark.parametrize("counts", [(10, 5, 11), (10, 5, 6, 6), (10, 5, -1), (10, -5), (-1,)])
def test_counts_that_contradict_each_other_are_left_to_the_library(counts: tuple[int, ...]) -> None:
    usage = TokenUsage(*counts)
    for provider, model in (("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-4o-mini"), ("openai", "gpt-4")):
        price(provider, model, TokenUsage(10, 5))
        assert price(provider, model, usage) == by_library(provider, model, usage)


def test_a_price_of_the_hour_is_that_of_this_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for hour in (12, 20, 12):
        now = datetime(2025, 6, 1, hour, tzinfo=UTC)
        monkeypatch.setattr(prices, "utc_now", lambda now=now: now)
        costs.append(price("deepseek", "deepseek-chat", TokenUsage(1_000, 10)))
        assert costs[-1] == by_library("deepseek", "deepseek-chat", TokenUsage(1_000, 10), now)
    assert costs[0] == costs[2] != costs[1]


def test_the_library_calculates_once_for_each_price(monkeypatch: pytest.MonkeyPatch) -> None:
    calculated = []
    known = genai_prices.types.ModelPrice.calc_price
    monkeypatch.setattr(
        genai_prices.types.ModelPrice, "calc_price", lambda self, usage: calculated.append(usage) or known(self, usage)
    )
    first = price("openai", "gpt-4o-mini", TokenUsage(10, 5))
    before = len(calculated)
    costs = [price("openai", "gpt-4o-mini", TokenUsage(10 * number, 5 * number)) for number in range(1, 50)]
    assert len(calculated) == before and costs[0] == first
    assert costs == [by_library("openai", "gpt-4o-mini", TokenUsage(10 * n, 5 * n)) for n in range(1, 50)]


def test_a_new_table_has_new_prices_and_old_ones_are_forgotten() -> None:
    old = price("openai", "gpt-4o-mini", TokenUsage(1_000))
    kept: list[Any] = []
    for number in range(1, 2 * prices._MOST_RATES):
        table = genai_prices.types.Provider(
            id="openai", name="OpenAI", api_pattern="x",
            models=[genai_prices.types.ModelInfo(
                id="gpt-4o-mini", match=genai_prices.types.ClauseEquals(equals="gpt-4o-mini"),
                prices=genai_prices.types.ModelPrice(input_mtok=Decimal(number)),
            )],
        )  # fmt: skip
        kept.append(data_snapshot.DataSnapshot([table], from_auto_update=True))
        data_snapshot.set_custom_snapshot(kept[-1])
        try:
            assert price("openai", "gpt-4o-mini", TokenUsage(1_000)) == number / 1_000
        finally:
            data_snapshot.set_custom_snapshot(None)
    assert price("openai", "gpt-4o-mini", TokenUsage(1_000)) == old
    assert len(prices._rates) <= prices._MOST_RATES
