"""The package's own plugins: they use the hooks that everybody uses, and are made for each agent anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from connectagent.settings import enabled


def built_in(*, trust: Any, log: bool | str | Path | None, quiet: bool) -> dict[str, Any]:
    """The own plugins of one agent, by name, in the order in which they run.

    Args:
        trust: a policy for tool calls; None for no policy.
        log: None writes `.co/`, False writes nothing, a path replaces the text log's.
        quiet: whether nothing is shown on the terminal.

    Raises:
        ConfigError: a setting of theirs cannot be used.
    """
    from connectagent import masking

    plugins: dict[str, Any] = {}
    masking.check()  # a mistake in these settings is told here, not in the middle of a turn
    if log is not False:
        from connectagent.builtin.record import Record
        from connectagent.builtin.retention import check_limits
        from connectagent.builtin.textlog import TextLog

        check_limits()
        plugins["record"] = Record()
        plugins["textlog"] = TextLog(None if log is None or log is True else Path(log))
    if not (quiet or enabled("quiet")):
        from connectagent.builtin.console import Console

        plugins["console"] = Console()
    from connectagent.builtin.xray import XrayContext

    plugins["xray"] = XrayContext()
    if trust is not None:
        from connectagent.builtin.trust import Trust

        plugins["trust"] = Trust(trust)
    return plugins
