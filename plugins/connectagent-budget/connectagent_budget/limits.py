"""The limits of a budget, and what refuses a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from connectagent import ConfigError
from connectagent_budget.counts import Attempt, Used
from connectagent_budget.estimate import Amount

_NAMES = {"model_calls": "model calls", "tool_calls": "tool calls", "tokens": "tokens", "usd": "USD", "seconds": "s"}
_OF_AGENTS = ("model_calls", "tool_calls", "tokens", "usd", "tools")
_ROUNDING = 1 + 1e-9


class Limit(NamedTuple):
    """One limit.

    Args:
        name: of what it counts, as `Used` has it; `tool_calls` for a tool.
        most: the limit.
        agent: whose limit it is; None for all agents together.
        tool: the tool that it limits; None for all together.
    """

    name: str
    most: float
    agent: str | None = None
    tool: str | None = None

    def of(self, used: Used, largest: Amount) -> float:
        """What was used of it; a call that is not settled is taken for the largest one."""
        part = used if self.agent is None else used.agents.get(self.agent, Used())
        if self.tool is not None:
            return part.tools.get(self.tool, 0)
        value: float = getattr(part, self.name)
        return value + max(0, part.unsettled) * self._part_of(largest)

    def is_over(self, used: Used, largest: Amount, attempt: Attempt, wanted: Amount) -> bool:
        """Whether an attempt would exceed it; `wanted` is what the attempt may cost."""
        if self.agent is not None and self.agent not in attempt.agents:
            return False
        if self.name.endswith("_calls"):
            counts = self.name == attempt.kind and self.tool in (None, attempt.name)
            return counts and self.of(used, largest) + 1 > self.most
        so_far = self.of(used, largest)
        return so_far >= self.most or so_far + self._part_of(wanted) > self.most * _ROUNDING

    def refusal(self, used: Used, largest: Amount, wanted: Amount, per: str) -> str:
        """Why an attempt that would exceed it is not made."""
        budget = "The budget" if self.agent is None else f"The budget of the agent {self.agent!r}"
        amounts = self.amounts(used, largest, per)
        if self.of(used, largest) >= self.most or self.name.endswith("_calls"):
            return f"{budget} is used up: {amounts}."
        wants = f"{_shown(self._part_of(wanted))} {_NAMES[self.name]}"
        return f"{budget} is too small for the next call, which may take {wants}: {amounts} are used."

    def amounts(self, used: Used, largest: Amount, per: str) -> str:
        """What was used of how much."""
        what = _NAMES[self.name] if self.tool is None else f"calls of the tool {self.tool!r}"
        return f"{_shown(self.of(used, largest))} of {_shown(self.most)} {what} a {per}"

    def entry(self, used: Used, largest: Amount) -> dict[str, Any]:
        """The keys of an entry of the trace."""
        whose = {key: value for key, value in (("agent", self.agent), ("tool", self.tool)) if value is not None}
        return {"of": self.name, **whose, "used": self.of(used, largest), "limit": self.most}

    def _part_of(self, wanted: Amount) -> float:
        return getattr(wanted, self.name, 0) or 0


class Refusal(NamedTuple):
    """Why an attempt is not made, and by whose limit.

    Args:
        why: what the person or the model reads.
        agent: whose limit it is; None for that of all agents.
        tool: the tool that has the limit; None if it has none of its own.
    """

    why: str
    agent: str | None = None
    tool: str | None = None


def limits_of(options: Mapping[str, Any]) -> list[Limit]:
    """The limits that options name.

    Raises:
        ConfigError: one is no number from 0 up, or has no such name.
    """
    agents = options.get("agents")
    limits = _of_one({name: value for name, value in options.items() if name != "agents"}, None)
    for agent, own in _table("agents", agents, "{'billing': {'usd': 1}}").items():
        option = f"agents[{agent!r}]"
        own = _table(option, own, "{'usd': 1}")
        for name in own:
            if name not in _OF_AGENTS:
                raise ConfigError(f"budget: {option} has no limit {name!r}; it takes {', '.join(_OF_AGENTS)}")
        limits += _of_one(own, agent)
    return limits


def _of_one(options: Mapping[str, Any], agent: str | None) -> list[Limit]:
    option = "{}" if agent is None else f"agents[{agent!r}][{{!r}}]"
    limits = []
    for name, value in options.items():
        if name != "tools" and value is not None:
            limits.append(Limit(name, _number(option.format(name), value), agent))
    tools = option.format("tools")
    for tool, value in _table(tools, options.get("tools"), "{'search': 5}").items():
        limits.append(Limit("tool_calls", _number(f"{tools}[{tool!r}]", value), agent, tool))
    return limits


def _table(option: str, value: Any, example: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"budget: {option} is a table such as {example}, not {value!r:.80}")
    return value


def _number(option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"budget: {option} is a number from 0 up, not {value!r:.80}")
    return value


def _shown(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
