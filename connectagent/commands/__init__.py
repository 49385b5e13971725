"""What a command needs: options, the agent of a script or a record, tables, files, and errors in one style.

Commands of plugins are click commands that `@register_commands` adds. Public is what `__all__` lists.

| exit code | means |
| --- | --- |
| 0 | it went well |
| 1 | it failed, or found what it looks for: raise `click.exceptions.Exit(1)`, or any exception |
| 2 | wrong usage: raise `usage_error(...)`, or wrap the work in `usage_errors()` |
| 75 | a turn waits for a person: `Paused` came through |
| 130 | Ctrl-C |

An exception that a command lets through is shown in at most five lines, masked, with the place in the user's script.
"""

from __future__ import annotations

from connectagent.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from connectagent.commands.failure import answer, plain, show_error, usage_error, usage_errors
    from connectagent.commands.option_sets import OptionSet, option_set, plugins_added
    from connectagent.commands.plugin_options import AgentCommand, plugin_option
    from connectagent.commands.progress import Progress
    from connectagent.commands.prompts import Number, Prompt, prompt_options, read_prompts
    from connectagent.commands.recorded_agent import agent_in, agent_maker, script_of
    from connectagent.commands.script import agent_of, agent_options, apply_options, load, load_beside, plugin_from_text
    from connectagent.commands.tables import (
        Column,
        cost_text,
        echo,
        echo_json,
        json_option,
        record_argument,
        show_table,
        terminal,
        tokens_text,
    )
    from connectagent.commands.usage import Group, WholeNumber
    from connectagent.commands.written import check_written, lines_into, write_text

_HOMES = {
    "commands.failure": "answer plain show_error usage_error usage_errors",
    "commands.option_sets": "OptionSet option_set plugins_added",
    "commands.plugin_options": "AgentCommand plugin_option",
    "commands.progress": "Progress",
    "commands.prompts": "Number Prompt prompt_options read_prompts",
    "commands.recorded_agent": "agent_in agent_maker script_of",
    "commands.script": "agent_of agent_options apply_options load load_beside plugin_from_text",
    "commands.tables": "Column cost_text echo echo_json "
    "json_option record_argument show_table terminal tokens_text",
    "commands.usage": "Group WholeNumber",
    "commands.written": "check_written lines_into write_text",
}

__all__ = [
    "AgentCommand",
    "Column",
    "Group",
    "Number",
    "OptionSet",
    "Progress",
    "Prompt",
    "WholeNumber",
    "agent_in",
    "agent_maker",
    "agent_of",
    "agent_options",
    "answer",
    "apply_options",
    "check_written",
    "cost_text",
    "echo",
    "echo_json",
    "json_option",
    "lines_into",
    "load",
    "load_beside",
    "option_set",
    "plain",
    "plugin_from_text",
    "plugin_option",
    "plugins_added",
    "prompt_options",
    "read_prompts",
    "record_argument",
    "script_of",
    "show_error",
    "show_table",
    "terminal",
    "tokens_text",
    "usage_error",
    "usage_errors",
    "write_text",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
