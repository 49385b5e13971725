"""What a front end of AG-UI brings to a run: tools that it carries out itself, and the results of their calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from connectagent import Tool, ToolDefinitionError
from connectagent_serve.prompts import known_part
from connectagent_serve.refusals import Refused

MAX_TOOLS = 64  # of a run
MAX_SCHEMA = 32_000  # characters of JSON of one tool: each request to the model has it
MAX_DEPTH = 32  # of objects and lists in each other: an argument that is an object takes two


class FrontEnd(NamedTuple):
    """What a front end brings to a run.

    A call that it carries out has the id of its wait: providers may use an id twice.

    Args:
        tools: those to add to the agent.
        names: of all tools that are carried out elsewhere, also of the agent's own.
        results: of calls, by their ids, as `resume()` takes them.
        told: the ids of calls that its messages have without a result.
    """

    tools: list[Tool]
    names: frozenset[str]
    results: dict[str, Any]
    told: frozenset[str]

    def answer(self, waits: list[Any]) -> dict[str, Any] | None:
        """The decision about the first call whose result it brings; None where it brings none."""
        found = (one for one in waits if one.elsewhere and one.id in self.results)
        return next(({"answer": self.results[one.id], "wait": one.id} for one in found), None)


def front_end_of(run: Any, agent: Any) -> FrontEnd:
    """What the front end of a run brings.

    Args:
        run: the run.
        agent: the agent that is served.

    Raises:
        Refused: a tool cannot be offered; it says what can.
    """
    own = {tool.name: tool for one in speakers(agent) for tool in one.tools}
    tools = _tools_of(run.tools or [], own)
    elsewhere = [name for name, tool in own.items() if tool.function is None]
    results = {one.tool_call_id: _result(one) for one in run.messages if one.role == "tool"}
    told = frozenset(_told(run.messages)) - results.keys()
    return FrontEnd(tools, frozenset([*elsewhere, *(one.name for one in tools)]), results, told)


def _told(messages: list[Any]) -> Iterator[str]:
    """The ids of the calls behind the last message of the user."""
    last = max((at for at, one in enumerate(messages) if one.role == "user"), default=0)
    for message in messages[last:]:
        if message.role == "assistant":
            yield from (call.id for call in message.tool_calls or ())


def speakers(agent: Any) -> Iterator[Any]:
    """The agents that may answer the user: one, and those below that it hands over to or lets work."""
    yield agent
    for one in agent.sub_agents:
        yield from speakers(one)


def _tools_of(given: list[Any], own: dict[str, Tool]) -> list[Tool]:
    """The tools of a front end.

    One that the agent has already, and leaves to the front end, stays as the agent has it.
    """
    if len(given) > MAX_TOOLS:
        raise Refused(400, f"tools has {len(given)}, and may have {MAX_TOOLS}")
    found: dict[str, Tool] = {}
    for one in given:
        if one.name in own and own[one.name].function is not None:
            raise Refused(400, f"tools: the agent has a tool {one.name!r} itself; give yours another name")
        if one.name in found:
            raise Refused(400, f"tools: two are named {one.name!r}; give each a name of its own")
        found[one.name] = _tool(one)
    return [tool for name, tool in found.items() if name not in own]


def _tool(given: Any) -> Tool:
    why = None
    if not is_flat(given.parameters, MAX_DEPTH):
        why = f"the parameters of {given.name!r} are nested too deep: at most {MAX_DEPTH} objects and lists"
    elif len(json.dumps(given.parameters)) > MAX_SCHEMA:
        why = f"the parameters of {given.name!r} have more than {MAX_SCHEMA} characters of JSON"
    try:
        if why is None:
            return Tool(given.name, given.description, given.parameters or {})
    except ToolDefinitionError as error:
        why = str(error).partition("\n")[0]
    except (TypeError, ValueError, AttributeError):
        why = f"the parameters of {given.name!r} are no JSON Schema of an object"
    raise Refused(400, f"tools: {why}")


def is_flat(value: Any, depth: int) -> bool:
    """Whether objects and lists stand in each other at most so deep."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth >= 0 and all(is_flat(one, depth - isinstance(one, dict | list)) for one in inside)


def _result(message: Any) -> Any:
    """What a call came to, as a tool's function would return it: a text, or a list of texts and images."""
    parts = message.content if isinstance(message.content, list) else [{"type": "text", "text": message.content}]
    made = [one if isinstance(one, dict) else known_part(one) for one in parts]
    if message.error:
        made.insert(0, {"type": "text", "text": f"Error: {message.error}"})
    texts = [one["text"] for one in made if one["type"] == "text"]
    return "\n".join(filter(None, texts)) if len(texts) == len(made) else made
