"""The form of a structured answer: how a model is asked for it, and how its text is parsed."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, get_origin
from weakref import WeakKeyDictionary

from connectagent.data import LLMResponse, Message, Session
from connectagent.errors import ConfigError, OutputError, ProviderError, libraries
from connectagent.loop.turn import Turn
from connectagent.models.json_text import json_alone, json_in, repeated_key
from connectagent.models.refusals import may_be_the_form
from connectagent.session.instruction import with_instruction
from connectagent.session.messages import refuse_unusable

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

# What a model of one's own has refused, as long as it lives; those behind an SDK know it themselves.
_refused: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class EndedAgent(Protocol):
    """An agent whose turn has ended."""

    @property
    def name(self) -> str: ...
    @property
    def current_session(self) -> Session | None: ...


class Asked:
    """An answer with a JSON Schema, and how a model is asked for it.

    Args:
        model: what the wire takes for it: a pydantic model, or a class of `class_of`.
    """

    def __init__(self, model: type[Any]) -> None:
        self.model = model

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of `model`."""
        found: dict[str, Any] = self.model.model_json_schema()
        return found

    def sent_to(self, llm: Any) -> dict[str, Any]:
        """How a model is asked for this form: `name`, `schema`, and `in_words` if the messages say it."""
        asked = {"name": self.model.__name__, "schema": self.schema}
        return {**asked, "in_words": True} if self._in_words(llm) else asked

    def _in_words(self, llm: Any) -> bool:
        if (takes := getattr(llm, "takes_form", None)) is not None:
            return not takes(self.model)
        return self._key in _refused_by(llm) or "output" not in inspect.signature(llm.complete).parameters

    @cached_property
    def _key(self) -> str:
        return json.dumps(self.schema, sort_keys=True, default=str)

    def send(self, llm: Any, ask: Callable[..., Any], messages: list[Message], tools: Any) -> Any:
        """Ask a model for an answer of this form: by the provider's own parameter, or in words.

        Args:
            llm: the model.
            ask: its `complete`, or its `stream` with `on_text`, which takes the same.

        Raises:
            ProviderError: the call failed.
        """
        given: list[Any] = [tools] if tools else []
        if self._in_words(llm):
            return ask(with_instruction(messages, self.schema), *given)
        try:
            return ask(messages, *given, output=self.model)
        except ProviderError as error:
            if hasattr(llm, "takes_form") or not may_be_the_form(error):
                raise
            answer = ask(with_instruction(messages, self.schema), *given)
        _refused_by(llm).add(self._key)
        return answer


def _refused_by(llm: Any) -> set[str]:
    """The schemas that a model of one's own has refused."""
    try:
        return _refused.setdefault(llm, set())
    except TypeError:  # it cannot be referred to, or hashed
        return set()


class Form(Asked):
    """The form of an answer.

    Args:
        output: a pydantic model, a dataclass, a TypedDict, or a type such as `list[int]`.
        alone: whether an answer must be nothing but the object, and not from the offline model: for a decision.

    Attributes:
        model: the pydantic model for it on the wire, where an answer is always an object.

    Raises:
        ConfigError: pydantic cannot read such a type from JSON.
    """

    def __init__(self, output: Any, alone: bool = False) -> None:
        self._alone = alone
        self.output, self.name = output, str(getattr(output, "__name__", output))
        model, self._field = _model_of(output)
        super().__init__(model)

    def read(self, text: str) -> Any:
        """Parse a text as an object.

        Raises:
            pydantic.ValidationError: the text does not fit.
        """
        found, _ = self._found(text)
        return found if self._field is None else getattr(found, self._field)

    def _found(self, text: str) -> tuple[Any, str]:
        """What a text has of this form, and its JSON: the last object that fits.

        Raises:
            pydantic.ValidationError: none fits; it is about the last one.
        """
        from pydantic import ValidationError

        first: ValidationError | None = None
        for json_text in [json_alone(text)] if self._alone else json_in(text):
            try:
                return self.model.model_validate_json(json_text), json_text
            except ValidationError as error:
                first = first or error
        assert first is not None  # there is at least one text
        raise first

    def problem(self, response: LLMResponse, llm: Any) -> str | None:
        """What does not fit in an answer, one line each, or None.

        Raises:
            ProviderError: the answer is not whole; another try under the same limit would not be either.
            ConfigError: the offline model answered, and the answer is a decision.
        """
        from pydantic import ValidationError

        refuse_unusable(response, llm.model, getattr(llm, "provider", llm.model), must_be_whole=True)
        if self._alone and response.model == "offline":
            raise ConfigError("the offline model answers by rule and judges nothing; name a model")
        try:
            _, json_text = self._found(response.content or "")
        except ValidationError as error:
            return _wrong(error)
        repeated = repeated_key(json_text)
        return None if repeated is None else f"- {repeated}: this key stands twice in one object"

    def fits(self, turn: Turn, response: LLMResponse) -> bool:
        """Whether the model's answer in a turn has this form; otherwise ask for a correction.

        Raises:
            OutputError: the model has used all its attempts.
        """
        wrong = self.problem(response, turn.agent.llm)
        if wrong is None:
            return True
        turn.misfits += 1
        if turn.was_resumed_after(OutputError, f"{turn.place}/model1"):  # by whoever wants it to be tried again
            turn.misfits = 0
        elif turn.misfits > turn.agent.output_retries:
            raise self.misfit(turn.agent.llm, wrong, response.content or "")
        turn.conversation.append(self.again(wrong), by={"plugin": "connectagent"})
        return False

    def again(self, wrong: str) -> Message:
        """The message that asks the model to correct an answer that does not fit."""
        return {"role": "user", "content": f"That does not fit {self.name}:\n{wrong}\nAnswer again, correctly."}

    def misfit(self, llm: Any, wrong: str, text: str) -> OutputError:
        """The error for a model that gave no answer of this form."""
        problem = f"{llm.model} gave no {self.name}, as its answer does not fit:\n{wrong}\n"
        return OutputError(f"{problem}Its answer: {text[:300]!r}")

    def result(self, agent: EndedAgent, text: str) -> Any:
        """The result of a turn as an object.

        Raises:
            OutputError: the result does not fit, since a handler replaced it, or the turn ended without an answer.
        """
        from pydantic import ValidationError

        try:
            return self.read(text)
        except ValidationError as error:
            session = agent.current_session
            outcome = None if session is None else session["outcome"]
            raise OutputError(
                f"agent {agent.name!r} ended its turn ({outcome}) with a result that is no {self.name}:\n"
                f"{_wrong(error)}\nThe result: {text[:300]!r}"
            ) from None


def form_of(output: Any) -> Form | None:
    """The form that `output=` asks for; None for text."""
    return None if output is None or output is str else Form(output)


def _model_of(output: Any) -> tuple[type[BaseModel], str | None]:
    """A pydantic model for a type, and its field with the value; None if the model is the value."""
    with libraries():
        from pydantic import BaseModel, RootModel, create_model
        from pydantic.errors import PydanticUserError
    from typing_extensions import is_typeddict  # recognizes those of both modules

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
    """The validation errors, one line each: the place and the reason."""
    lines = [f"- {'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}" for item in error.errors()]
    return "\n".join(lines[:10])
