"""The model request as ADK has it, and what a callback's edits of it mean for this one call."""

from __future__ import annotations

from typing import Any

from connectagent import HookResultError, LLMRequest
from connectagent_adk.callback import Callback
from connectagent_adk.models import Kinds
from connectagent_adk.translation import Ids, Message, contents_of, get, messages_of, system_text, text_in

_EDITABLE = ("system_instruction", "tools")  # what has a place of its own in a request
# What is a parameter of the provider's API, under its name for OpenAI. Everything else of the config is the agent's.
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_OF_FORM = ("response_mime_type", "response_schema", "response_json_schema")


class RequestView:
    """An `LlmRequest` that stands for connectagent's request.

    Args:
        request: the request.
        tools: the agent's tools by name, with their descriptions.
        kinds: the classes of what is made.
        texts: the names of the tools that return a str.

    Attributes:
        llm_request: what the callback is given.
    """

    def __init__(
        self, request: LLMRequest, tools: dict[str, str], kinds: Kinds, texts: frozenset[str] = frozenset()
    ) -> None:
        types = kinds.types
        messages: list[Any] = request.messages
        self.request = request
        self.system, self.system_count = system_text(messages)
        self.declared = [_declaration(schema["function"], types) for schema in request.tools]
        config = types.GenerateContentConfig(
            system_instruction=self.system or None,
            tools=[types.Tool(function_declarations=list(self.declared))] if self.declared else [],
            **_parameters(request),
        )
        pairs = contents_of(messages[self.system_count :], types, texts)
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
        others = _others(mine.config)
        if fixed := [name for name, value in others.items() if value != self.others.get(name) and name not in _OPTIONS]:
            raise _fixed(callback, fixed[0])
        self.request.model = mine.model or self.request.model
        names = _names(self.request.model)
        for name in _OPTIONS:
            if others.get(name) != self.others.get(name):
                self.request.options.pop(names[name], None)
                if name in others:
                    self.request.options[names[name]] = others[name]
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


def _names(model: str) -> dict[str, str]:
    """The provider's names of the parameters."""
    if model.startswith(("anthropic/", "claude-")):
        return {**_OPTIONS, "stop_sequences": "stop_sequences"}
    if model.startswith("openai-responses/"):
        return {**_OPTIONS, "max_output_tokens": "max_output_tokens"}
    return _OPTIONS


def _parameters(request: LLMRequest) -> dict[str, Any]:
    """The parameters of a request under ADK's names."""
    names, options = _names(request.model), request.options
    found = {name: options[own] for name, own in names.items() if options.get(own) is not None}
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    return found


def _fixed(callback: Callback, name: str) -> HookResultError:
    instead = "Agent(output=...)" if name in _OF_FORM else f"Agent(options={{{name!r}: ...}})"
    return HookResultError(
        f"{callback} changed llm_request.config.{name}, which connectagent sets for the whole agent: {instead}. For "
        f"one call, a callback may change model, contents and config.{', config.'.join([*_EDITABLE, *_OPTIONS])}"
    )
