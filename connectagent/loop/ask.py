"""One model call without an agent."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, TypeVar, overload

from connectagent import frame
from connectagent.data import LLM, Image, LLMResponse, Message
from connectagent.errors import OutputError, ProviderError
from connectagent.loop.model_call import ask_in_turn
from connectagent.models.content import parts_of
from connectagent.models.json_schema import json_in, with_instruction

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Output = TypeVar("Output", bound=BaseModel)
else:
    Output = TypeVar("Output")

# Endpoints that know no schema, or not for this model, say so in many words.
_REFUSES_FORMAT = re.compile(r"response.?format|json.?schema", re.IGNORECASE)

Prompt = str | list[str | Image | dict[str, Any]]


@overload
def llm_do(
    prompt: Prompt,
    output: None = None,
    system_prompt: str | None = None,
    model: str | None = None,
    *,
    llm: LLM | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    options: dict[str, Any] | None = None,
) -> str: ...


@overload
def llm_do(
    prompt: Prompt,
    output: type[Output],
    system_prompt: str | None = None,
    model: str | None = None,
    *,
    llm: LLM | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    options: dict[str, Any] | None = None,
) -> Output: ...


def llm_do(
    prompt: Prompt,
    output: type[Output] | None = None,
    system_prompt: str | None = None,
    model: str | None = None,
    *,
    llm: LLM | None = None,
    api_key: str | None = None,
    base_url: str | None = None,
    options: dict[str, Any] | None = None,
) -> str | Output:
    """The answer of one model call, as text or as an object.

    Args:
        prompt: text, or a list of texts, `Image`s and parts of a message.
        output: a pydantic model; an instance of it is returned. An answer that does not fit is sent back
            once with what was wrong.
        system_prompt: what the model is told first.
        model: a name as `Agent` takes it.
        llm: an `LLM` to ask, in place of a name.
        api_key: the key, in place of the provider's variable.
        base_url: another address of the provider's API.
        options: parameters of the provider's API.

    Raises:
        ProviderError: the call failed.
        OutputError: the second answer does not fit `output` either.
    """
    if llm is None:
        from connectagent.models.create import create_llm

        llm = create_llm(model, api_key=api_key, base_url=base_url, options=options)
    messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages.append({"role": "user", "content": prompt if isinstance(prompt, str) else parts_of(prompt)})
    if output is None:
        return _complete(llm, messages).content or ""
    return _structured(llm, messages, output)


def _structured(llm: LLM, messages: list[Message], output: type[Output]) -> Output:
    from pydantic import ValidationError

    in_words = "output" not in inspect.signature(llm.complete).parameters  # an LLM that somebody else wrote
    if in_words:
        messages = with_instruction(messages, output)
    for _ in range(2):
        try:
            text = _answer(llm, messages, None if in_words else output)
        except ProviderError as error:
            if in_words or error.kind != "bad_request" or not _REFUSES_FORMAT.search(str(error)):
                raise
            in_words, messages = True, with_instruction(messages, output)
            text = _answer(llm, messages, None)
        try:
            return output.model_validate_json(json_in(text))
        except ValidationError as error:
            wrong = _wrong(error)
        messages = [
            *messages,
            {"role": "assistant", "content": text or "(no answer)"},
            {"role": "user", "content": f"That does not fit {output.__name__}:\n{wrong}\nAnswer again, correctly."},
        ]
    raise OutputError(
        f"{llm.model} gave no {output.__name__}, though it was told what was wrong:\n{wrong}\n"
        f"Its answer: {text[:300]!r}"
    )


def _answer(llm: Any, messages: list[Message], output: type[Any] | None) -> str:
    response = _complete(llm, messages, output=output) if output else _complete(llm, messages)
    if response.finish_reason == "refusal":
        provider = getattr(llm, "provider", llm.model)
        text = f"{llm.model}: the model refused to answer: {response.content}"
        raise ProviderError(text, kind="refusal", provider=provider, model=llm.model)
    return response.content or ""


def _complete(llm: Any, messages: list[Message], **options: Any) -> LLMResponse:
    """Ask the model; inside a turn this is an operation of whoever asks: recorded, counted, and not done again."""
    here = frame.current()
    if here is None or here.turn.over:
        return llm.complete(messages, **options)  # type: ignore[no-any-return]
    return ask_in_turn(here, llm, messages, **options)


def _wrong(error: ValidationError) -> str:
    """What does not fit, one line each: the place and the reason."""
    lines = [f"- {'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}" for item in error.errors()]
    return "\n".join(lines[:10])
