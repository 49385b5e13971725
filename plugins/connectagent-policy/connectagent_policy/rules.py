"""The rules: read from YAML, and asked about a call."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from connectagent import ConfigError
from connectagent_policy.values import folded, host_of, inside, numbers, program_of, runs_others, strings

_KEYS = {"agents", "arguments", "paths", "hosts", "commands", "reason"}
_EFFECTS = ("deny", "ask", "allow")


class Verdict(NamedTuple):
    """What the rules say of a call: `allow`, `deny` or `ask`, and why."""

    effect: str
    reason: str


class Rule(NamedTuple):
    """One rule; what is None fits everything."""

    effect: str
    number: int
    agents: list[str] | None
    tools: list[str] | None
    arguments: dict[str, list[str]]
    paths: dict[str, list[str]]
    hosts: dict[str, list[str]]
    commands: dict[str, list[str]]
    reason: str


class _Loader(yaml.SafeLoader):
    """Reads YAML, and refuses a key that is there twice: the second would take the place of the first in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_rules(text: str) -> list[Rule]:
    """The rules of a policy.

    Raises:
        ConfigError: it is no policy; a misspelt key never becomes a rule that fits everything.
    """
    try:
        data = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"policy: not YAML: {error}") from error
    if not isinstance(data, dict) or set(data) != {"rules"} or not isinstance(data["rules"], list):
        raise ConfigError("policy: expected `rules:` with a list of rules, and nothing else")
    return [_rule(number, rule) for number, rule in enumerate(data["rules"], 1)]


def _rule(number: int, rule: Any) -> Rule:
    effects = [one for one in _EFFECTS if isinstance(rule, dict) and one in rule]
    if len(effects) != 1 or set(rule) - _KEYS - set(_EFFECTS):
        raise ConfigError(
            f"policy: rule {number} needs one of {', '.join(_EFFECTS)}, and beside it any of {', '.join(sorted(_KEYS))}"
        )
    tools = _patterns(number, rule[effects[0]])
    parts = {key: _table(number, key, rule.get(key, {})) for key in ("arguments", "paths", "hosts", "commands")}
    agents = _patterns(number, rule["agents"]) if "agents" in rule else None
    return Rule(effects[0], number, agents, tools, **parts, reason=str(rule.get("reason", "")))


def _patterns(number: int, value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"policy: rule {number}: expected a text or a list of texts, not {value!r:.80}")
    return found


def _table(number: int, key: str, value: Any) -> dict[str, list[str]]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"policy: rule {number}: `{key}` is a table: an argument's name, or '*', and patterns")
    return {str(name): _patterns(number, patterns) for name, patterns in value.items()}


def judge(rules: list[Rule], agent: str, tool: str, arguments: Mapping[str, Any]) -> Verdict:
    """What the rules say: one that denies wins, then one that asks, then one that allows; else it is denied."""
    for effect in _EFFECTS:
        for rule in rules:
            if rule.effect == effect and _fits(rule, agent, tool, arguments):
                return Verdict(effect, rule.reason or f"rule {rule.number} of the policy")
    return Verdict("deny", "no rule of the policy allows it")


def _fits(rule: Rule, agent: str, tool: str, arguments: Mapping[str, Any]) -> bool:
    if not all(wanted is None or _among(text, wanted) for text, wanted in ((agent, rule.agents), (tool, rule.tools))):
        return False
    every = rule.effect == "allow"  # to be allowed, all values must fit; to be denied or asked about, one is enough
    tests = _tests(rule, every)
    for table, test in tests:
        for name, wanted in table.items():
            found = [test(text, wanted) for text in _values(arguments, name)]
            if not any(found) or (every and not all(found)):
                return False
    named = {name for table, _ in tests for name in table}
    # An argument that nobody judged is not allowed.
    return not every or not named or "*" in named or set(arguments) <= named


def _tests(rule: Rule, every: bool) -> list[tuple[dict[str, list[str]], Callable[[str, list[str]], bool]]]:
    """The tables of a rule, and how a value is compared with their patterns."""
    return [
        (rule.arguments, _among if every else _among_folded),
        (rule.paths, lambda text, wanted: inside(text, wanted, every)),
        (rule.hosts, lambda text, wanted: _host(text, wanted, every)),
        (rule.commands, lambda text, wanted: _command(text, wanted, every)),
    ]


def _host(text: str, wanted: list[str], every: bool) -> bool:
    host = host_of(text)
    return _among(host, wanted) if host else not every


def _values(arguments: Mapping[str, Any], name: str) -> Iterator[str]:
    if name == "*":
        yield from strings(dict(arguments))
    elif name in arguments:
        yield from strings(arguments[name])


def _among(text: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def _among_folded(text: str, patterns: list[str]) -> bool:
    wanted = [folded(one) for one in patterns]
    return any(_among(one, wanted) for one in (folded(text), *numbers(text)))


def _command(text: str, wanted: list[str], every: bool) -> bool:
    """Whether a line is one of the commands. A line that is not simple is never allowed, and always denied."""
    words = program_of(text)
    if not words:
        return not every
    patterns = [pattern for one in wanted for pattern in (one, f"{one} *")]
    if every:
        return _among(" ".join(words), patterns)
    name = words[0].rpartition("/")[2]
    return runs_others(name) or any(_among_folded(" ".join([one, *words[1:]]), patterns) for one in (words[0], name))


def load(path: str | os.PathLike[str]) -> list[Rule]:
    """The rules of a file.

    Raises:
        ConfigError: it cannot be read, or is no policy.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            return read_rules(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"policy: {os.fspath(path)!r} cannot be read: {error}") from error


def shown(arguments: Mapping[str, Any]) -> str:
    """Arguments for a line of text."""
    return json.dumps(arguments, ensure_ascii=True, default=str)[:120]
