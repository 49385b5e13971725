"""`adk_output`: ADK's `output_schema` and `output_key`."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, WithJsonSchema

from connectagent import ConfigError, on_complete

if TYPE_CHECKING:
    from connectagent import Agent


def adk_output(output_schema: Any, output_key: str | None = None) -> AdkOutput:
    """Make the answer's type and a plugin of ADK's `output_schema` and `output_key`.

    `answer = adk_output(City, "city")` goes with `Agent(..., output=answer.type, plugins=[answer])`.

    Args:
        output_schema: a pydantic model, a type such as `list[int]`, a JSON Schema as a dict, or Google's `Schema`.
        output_key: the key of the state under which the answer is stored as data: of a model a dict, without its Nones.

    Raises:
        ConfigError: it is none of these.
    """
    return AdkOutput(output_schema, output_key)


class AdkOutput:
    """The plugin that `adk_output` makes; it acts in the agent that lists it only.

    Attributes:
        type: what `Agent(output=...)` takes.
    """

    name = "adk_output"
    inherited = False

    def __init__(self, output_schema: Any, output_key: str | None = None) -> None:
        if hasattr(output_schema, "json_schema") and not isinstance(output_schema, type):
            output_schema = output_schema.json_schema.model_dump(mode="json", exclude_none=True, by_alias=True)
        is_schema = isinstance(output_schema, dict)
        if not is_schema and not isinstance(output_schema, type) and get_origin(output_schema) is None:
            raise ConfigError(f"output_schema is a type, a JSON Schema or Google's Schema, not {output_schema!r:.80}")
        self.type: Any = Annotated[Any, WithJsonSchema(_lower(output_schema))] if is_schema else output_schema
        self._key = output_key

    @on_complete(trylast=True)
    def store(self, agent: Agent, result: str, outcome: str) -> None:
        """Store the answer as data."""
        if self._key is not None and outcome == "answered":
            with contextlib.suppress(ValueError):  # it does not fit, as a handler has replaced it: input() raises
                agent.state[self._key] = self._data(result)

    def _data(self, text: str) -> Any:
        """What an answer says; answers that are no object are the value of one, which a model can be asked for."""
        found, _ = json.JSONDecoder().raw_decode(text, max(0, text.find("{")))
        of = get_args(self.type)[0] if get_origin(self.type) is list else self.type
        if not (isinstance(self.type, type) and issubclass(self.type, BaseModel)):
            found = found["value"] if isinstance(found, dict) and list(found) == ["value"] else found
        if not (isinstance(of, type) and issubclass(of, BaseModel)):
            return found
        adapter: TypeAdapter[Any] = TypeAdapter(self.type)
        return adapter.dump_python(adapter.validate_python(found), mode="json", exclude_none=True)


def _lower(schema: Any) -> Any:
    """A schema with its types as JSON Schema spells them; Google's has OBJECT and STRING too."""
    if isinstance(schema, list):
        return [_lower(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _lower(value)
        for key, value in schema.items()
    }
