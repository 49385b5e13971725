"""One model call that code of others asks for: `llm_do`, which needs no agent, and `agent.ask`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from connectagent import frame
from connectagent.data import LLM, ConfigurableLLM, Image, LLMRequest, LLMResponse, Message
from connectagent.errors import OutputError, ProviderError
from connectagent.frame import Frame
from connectagent.loop.model_call import Call
from connectagent.loop.remote import Remote
from connectagent.models.content import parts_of
from connectagent.models.json_schema import json_in, with_instruction
from connectagent.session.state import clone
from connectagent.tools.registry import ToolRegistry

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
    here, send = frame.current(), Sending(output)
    complete = partial(send, llm)
    if here is not None and not here.turn.over:
        complete = partial(_in_turn, here, llm, send)
    messages = _messages(prompt, system_prompt)
    if output is None:
        return complete(messages).content or ""
    return _structured(llm, messages, output, complete)


def ask(
    agent: Any,
    prompt: str | list[Any],
    output: type[Any] | None = None,
    system_prompt: str | None = None,
    model: str | None = None,
    tools: Any = (),
) -> Any:
    """What `agent.ask()` returns: the answer of one model call, as part of the turn in which it is asked for.

    Raises:
        RuntimeError: no turn is running.
    """
    here = frame.current()
    if here is None or here.turn.over:
        if agent.turn is None:
            raise RuntimeError(f"agent {agent.name!r} is not in a turn: ask() is for handlers and tools; see llm_do()")
        here = agent.turn.innermost
    llm = agent.llm if model is None else agent.create_llm(model)
    complete = partial(_in_turn, here, llm, Sending(output), tools=_schemas(tools))
    messages = _messages(prompt, system_prompt)
    return complete(messages) if output is None else _structured(llm, messages, output, complete)


def _in_turn(
    asked: Frame, llm: Any, send: Sending, messages: list[Message], tools: list[dict[str, Any]] | None = None
) -> LLMResponse:
    """Ask a model as an operation of whoever asks: hooks see it, it is recorded, counted, and not done again.

    Raises:
        RuntimeError: a handler ended the turn before the model was asked.
    """
    if asked.body is not None and (asked.body.left or asked.body.over):
        raise RuntimeError(f"a model was asked by a tool that nobody waits for any more: {asked.id}")
    turn: Any = asked.turn if asked.body is None else Remote(asked.body, copy_context())
    lock = turn.alone(asked)

    def meanwhile(*given: Any) -> LLMResponse:
        lock.release()  # others may ask while this one waits for its answer
        try:
            return send(*given)
        finally:
            lock.acquire()

    with lock:
        options = dict(clone(dict(llm.options))) if isinstance(llm, ConfigurableLLM) else {}
        request = LLMRequest(messages, tools or [], str(llm.model), options)
        form = getattr(send.output, "__name__", None)
        id = turn.key(asked, "ask", request.model, [messages, tools, form] if tools or form else messages)
        by = asked.by or turn.boundary.running() or turn.agent.by
        response = Call(turn, request, id, llm, asked, by, meanwhile).attempts()
    if response is None:
        raise RuntimeError(f"the turn was ended before {request.model} was asked")
    return response


class Sending:
    """Sends messages to a model whose answer shall have a form: by the provider's own means, or told in words.

    Args:
        output: a pydantic model; None for any text.
    """

    def __init__(self, output: type[Any] | None) -> None:
        self.output, self._in_words = output, False

    def __call__(self, llm: Any, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        """The model's answer.

        Raises:
            ProviderError: the call failed.
        """
        given: list[Any] = [tools] if tools else []
        if self.output is None:
            return llm.complete(messages, *given)  # type: ignore[no-any-return]
        if not self._in_words and "output" in inspect.signature(llm.complete).parameters:
            try:
                return llm.complete(messages, *given, output=self.output)  # type: ignore[no-any-return]
            except ProviderError as error:
                if error.kind != "bad_request" or not _REFUSES_FORMAT.search(str(error)):
                    raise
                self._in_words = True
        return llm.complete(with_instruction(messages, self.output), *given)  # type: ignore[no-any-return]


def _messages(prompt: Any, system_prompt: str | None) -> list[Message]:
    """What is sent: messages as they were given, or a user's message; what the model is told first stands above."""
    messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if isinstance(prompt, list) and prompt and all(isinstance(one, dict) and "role" in one for one in prompt):
        return [*messages, *clone(prompt)]
    return [*messages, {"role": "user", "content": prompt if isinstance(prompt, str) else parts_of(prompt)}]


def _schemas(tools: Any) -> list[dict[str, Any]]:
    """The schemas of tools that a model is told of; the caller acts on the calls that it answers."""
    if not tools:
        return []
    if isinstance(tools, list | tuple) and all(isinstance(tool, dict) for tool in tools):
        return list(tools)
    return ToolRegistry(tools).schemas()


def _structured(
    llm: Any, messages: list[Message], output: type[Output], complete: Callable[[list[Message]], LLMResponse]
) -> Output:
    from pydantic import ValidationError

    for _ in range(2):
        response = complete(messages)
        if response.finish_reason == "refusal":
            provider = getattr(llm, "provider", llm.model)
            told = f"{llm.model}: the model refused to answer: {response.content}"
            raise ProviderError(told, kind="refusal", provider=provider, model=llm.model)
        text = response.content or ""
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


def _wrong(error: ValidationError) -> str:
    """What does not fit, one line each: the place and the reason."""
    lines = [f"- {'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}" for item in error.errors()]
    return "\n".join(lines[:10])
