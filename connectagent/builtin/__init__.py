"""The package's own plugins. They use public hooks only; each agent gets new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.settings import enabled, overrides


def built_in(*, trust: object, log: bool | str | Path | None, quiet: bool) -> dict[str, Any]:
    """The own plugins of one agent, by name, in the order in which they run.

    Args:
        trust: a policy for tool calls; None for no policy.
        log: None writes `.co/`, False writes nothing, a path replaces the text log's.
        quiet: whether nothing is shown on the terminal.

    Raises:
        ConfigError: `log`, `trust` or a setting of theirs cannot be used.
    """
    from connectagent.output import masking

    if log is not None and not isinstance(log, bool | str | Path):
        raise ConfigError(f"log is None, False or the text log's path, not {type(log).__name__} {log!r:.80}")
    plugins: dict[str, Any] = {}
    masking.check()  # a mistake in these settings raises here, not in the middle of a turn
    if log is not False:
        from connectagent.builtin.textlog import TextLog

        plugins["textlog"] = TextLog(None if log is None or log is True else Path(log))
    if not (quiet or enabled("quiet")):
        from connectagent.builtin.console import Console

        plugins["console"] = Console(follows=True)
    trust = overrides.get("trust") if trust is None else trust
    if trust is not None:
        from connectagent.builtin.trust import Trust

        plugins["trust"] = Trust(trust)
    return {**plugins, **overrides.get("own_plugins", {})}
