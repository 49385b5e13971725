"""The model request as ADK has it, and what a callback's edits of it mean for this one call."""

from __future__ import annotations

from typing import Any

from connectagent import HookResultError, LLMRequest
from connectagent_adk.callback import Callback
from connectagent_adk.models import Kinds
from connectagent_adk.translation import Ids, Message, contents_of, get, messages_of, system_text, text_in

# What a callback may change; everything else of the config belongs to the agent.
_EDITABLE = ("system_instruction", "tools")


class RequestView:
    """An `LlmRequest` that stands for connectagent's request.

    Args:
        request: the request.
        tools: the agent's tools by name, with their descriptions.
        kinds: the classes of what is made.

    Attributes:
        llm_request: what the callback is given.
    """

    def __init__(self, request: LLMRequest, tools: dict[str, str], kinds: Kinds) -> None:
        types = kinds.types
        messages: list[Any] = request.messages
        self.request = request
        self.system, self.system_count = system_text(messages)
        self.declared = [_declaration(schema["function"], types) for schema in request.tools]
        config = types.GenerateContentConfig(
            system_instruction=self.system or None,
            tools=[types.Tool(function_declarations=list(self.declared))] if self.declared else [],
        )
        pairs = contents_of(messages[self.system_count :], types)
        self.llm_request = kinds.request(
            model=request.model,
            contents=[content for content, _ in pairs],
            config=config,
            tools_dict={name: kinds.tool(name=name, description=text) for name, text in tools.items()},
        )
        # Pydantic may copy what it is given: what counts are the contents that the request really holds.
        ids = Ids()
        self.before = {
            id(content): (content, stands, messages_of(content, ids))
            for content, (_, stands) in zip(self.llm_request.contents, pairs, strict=True)
        }
        self.others = _others(config)

    def write_back(self, callback: Callback) -> None:
        """Make the callback's edits those of this one call; what it left alone stays the message that it was.

        Raises:
            HookResultError: it changed what cannot be changed for one call.
        """
        mine = self.llm_request
        if mine.model != self.request.model:
            raise _fixed(callback, "llm_request.model", "Agent(model=...)")
        for name, value in _others(mine.config).items():
            if value != self.others.get(name):
                raise _fixed(callback, f"llm_request.config.{name}", f"Agent(options={{{name!r}: ...}})")
        messages = self._messages()
        held = self.request.messages
        if len(messages) != len(held) or any(new is not old for new, old in zip(messages, held, strict=True)):
            self.request.messages = messages
        self._write_tools()

    def _messages(self) -> list[Any]:
        ids = Ids()
        system = text_in(self.llm_request.config.system_instruction)
        if system == self.system:
            messages: list[Any] = self.request.messages[: self.system_count]
        else:
            messages = [{"role": "system", "content": system}] if system else []
        for content in self.llm_request.contents or ():
            _, stands, before = self.before.get(id(content), (None, [], []))
            after = messages_of(content, ids)
            messages += stands if after == before else _kept(after, before, stands)
        return messages

    def _write_tools(self) -> None:
        tools = self.llm_request.config.tools or []
        declared = [each for tool in tools for each in get(tool, "function_declarations") or ()]
        if [get(each, "name") for each in declared] == [each.name for each in self.declared]:
            return
        known = {schema["function"]["name"]: schema for schema in self.request.tools}
        self.request.tools = [known.get(str(get(each, "name"))) or _schema(each) for each in declared]


def _kept(after: list[Message], before: list[Message], stands: list[Message]) -> list[Message]:
    """The messages of an edited content; those of its results that were left alone stay the originals."""
    if len(after) != len(before):
        return after
    return [old if new == was else new for new, was, old in zip(after, before, stands, strict=True)]


def _declaration(function: dict[str, Any], types: Any) -> Any:
    name, description = function["name"], function.get("description")
    return types.FunctionDeclaration(
        name=name, description=description, parameters_json_schema=function.get("parameters")
    )


def _schema(declared: Any) -> dict[str, Any]:
    parameters = get(declared, "parameters_json_schema") or {"type": "object", "properties": {}}
    description = get(declared, "description") or ""
    return {
        "type": "function",
        "function": {"name": str(get(declared, "name")), "description": description, "parameters": parameters},
    }


def _others(config: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if name not in _EDITABLE and value is not None}


def _fixed(callback: Callback, what: str, instead: str) -> HookResultError:
    return HookResultError(
        f"{callback} changed {what}, which connectagent sets for the whole agent: {instead}. For one call, a callback "
        "may change contents, config.system_instruction and config.tools"
    )
