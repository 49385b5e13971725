"""The form of an answer that is to be more than text: how a model is asked for it, and how its text is read."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_origin

from connectagent.data import LLMResponse, Message
from connectagent.errors import ConfigError, OutputError, ProviderError
from connectagent.models.json_schema import json_in, with_instruction

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

# Endpoints that know no schema, or not for this model, say so in many words.
_REFUSES_FORMAT = re.compile(r"response.?format|json.?schema", re.IGNORECASE)


class Form:
    """What an answer is to be.

    Args:
        output: a pydantic model, a dataclass, a TypedDict, or a type such as `list[int]`.

    Attributes:
        model: a pydantic model that stands for it on the wire, where an answer is always an object.

    Raises:
        ConfigError: pydantic cannot read such a type from JSON.
    """

    def __init__(self, output: Any) -> None:
        self.output, self.name = output, str(getattr(output, "__name__", output))
        self.model, self._field = _model_of(output)
        self._in_words: set[str] = set()  # the models that take no schema

    def send(self, llm: Any, ask: Callable[..., Any], messages: list[Message], tools: Any) -> Any:
        """Ask a model for an answer of this form: by the provider's own means, or in words.

        Args:
            llm: the model.
            ask: its `complete`, or `stream` with a place for the text.

        Raises:
            ProviderError: the call failed.
        """
        given: list[Any] = [tools] if tools else []
        if llm.model not in self._in_words and "output" in inspect.signature(ask).parameters:
            try:
                return ask(messages, *given, output=self.model)
            except ProviderError as error:
                if error.kind != "bad_request" or not _REFUSES_FORMAT.search(str(error)):
                    raise
                self._in_words.add(llm.model)
        return ask(with_instruction(messages, self.model), *given)

    def read(self, text: str) -> Any:
        """The object that a text says.

        Raises:
            pydantic.ValidationError: the text does not fit.
        """
        found = self.model.model_validate_json(json_in(text))
        return found if self._field is None else getattr(found, self._field)

    def problem(self, response: LLMResponse, llm: Any) -> str | None:
        """What does not fit in an answer, one line each; None where it fits.

        Raises:
            ProviderError: the model refused to answer.
        """
        from pydantic import ValidationError

        if response.finish_reason == "refusal":
            told, provider = f"the model refused to answer: {response.content}", getattr(llm, "provider", llm.model)
            raise ProviderError(f"{llm.model}: {told}", kind="refusal", provider=provider, model=llm.model)
        try:
            self.read(response.content or "")
        except ValidationError as error:
            return _wrong(error)
        return None

    def again(self, wrong: str) -> Message:
        """The message by which an answer that does not fit is sent back."""
        return {"role": "user", "content": f"That does not fit {self.name}:\n{wrong}\nAnswer again, correctly."}

    def misfit(self, llm: Any, wrong: str, text: str) -> OutputError:
        """The error for a model that gave no answer of this form."""
        told = f"{llm.model} gave no {self.name}, though it was told what was wrong:\n{wrong}\n"
        return OutputError(f"{told}Its answer: {text[:300]!r}")

    def result(self, agent: Any, text: str) -> Any:
        """The result of a turn as an object.

        Raises:
            OutputError: it is none, since a handler replaced it, or something else than an answer ended the turn.
        """
        from pydantic import ValidationError

        try:
            return self.read(text)
        except ValidationError as error:
            outcome = (agent.current_session or {}).get("outcome")
            raise OutputError(
                f"agent {agent.name!r} ended its turn ({outcome}) with a result that is no {self.name}:\n"
                f"{_wrong(error)}\nThe result: {text[:300]!r}"
            ) from None


def form_of(output: Any) -> Form | None:
    """The form that `output=` asks for; None for text."""
    return None if output is None or output is str else Form(output)


def _model_of(output: Any) -> tuple[type[BaseModel], str | None]:
    """A pydantic model for a type, and the field of it that has the value; None where the model is the value."""
    from pydantic import BaseModel, RootModel, create_model
    from pydantic.errors import PydanticUserError
    from typing_extensions import is_typeddict  # which knows those of both modules

    try:
        if not isinstance(output, type) and get_origin(output) is None:
            raise TypeError("it is no type")
        if isinstance(output, type) and issubclass(output, BaseModel) and not issubclass(output, RootModel):
            return output, None
        if isinstance(output, type) and (dataclasses.is_dataclass(output) or is_typeddict(output)):
            made: Any = type(output.__name__, (RootModel[output],), {"__doc__": output.__doc__})
            made.model_json_schema()
            return made, "root"
        made = create_model("Answer", value=(output, ...))
        made.model_json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(
            "output is a pydantic model, a dataclass, a TypedDict or a type such as list[int], "
            f"not {output!r:.80}: {first}"
        ) from None
    return made, "value"


def _wrong(error: ValidationError) -> str:
    """What does not fit, one line each: the place and the reason."""
    lines = [f"- {'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}" for item in error.errors()]
    return "\n".join(lines[:10])
