"""How an agent's plugins differ from those that a record names."""

from __future__ import annotations

from typing import Any, Protocol

from connectagent.hooks.host import Host
from connectagent.hooks.sources import as_listed, sources_of
from connectagent.records.sent import as_recorded, canonical


class PluggedAgent(Protocol):
    """An agent, by its plugins."""

    @property
    def hooks(self) -> Host: ...


def changed_plugins(agent: PluggedAgent, head: dict[str, Any]) -> dict[str, list[str]]:
    """The plugins that were `added`, `removed` or `changed` since: another version, source or options; {} for none.

    Args:
        agent: the agent.
        head: the record's head.
    """
    before, now = head.get("plugins"), _versions(agent)
    before = before if isinstance(before, dict) else {}
    both = now.keys() & before.keys()
    differences = {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": sorted({name for name in both if now[name] != before[name]} | (_other_sources(agent, head) & both)),
    }
    return {key: names for key, names in differences.items() if names}


def _versions(agent: PluggedAgent) -> dict[str, str | None]:
    return {handler.plugin: handler.version for handler in as_listed(agent.hooks.loaded)}


def _other_sources(agent: PluggedAgent, head: dict[str, Any]) -> set[str]:
    """The plugins with other options or another source than a record names; none for one that names no sources."""
    then = head.get("plugin_sources")
    if not isinstance(then, dict):
        return set()
    now = sources_of(as_listed(agent.hooks.loaded))
    sides = {name: [side.get(name) or {} for side in (then, now)] for name in then.keys() | now.keys()}
    return {name for name, (one, other) in sides.items() if as_recorded(one) != canonical(other)}


def differences(agent: PluggedAgent, head: dict[str, Any]) -> str:
    """The same in one line; "" for none."""
    return "; ".join(f"{kind} {', '.join(map(str, names))}" for kind, names in changed_plugins(agent, head).items())
