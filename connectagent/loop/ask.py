"""A model call that a program or plugin makes: `llm_do`, which needs no agent, and `agent.ask`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast, overload

from connectagent import frame
from connectagent.data import LLM, ConfigurableLLM, File, Image, LLMRequest, LLMResponse, Message
from connectagent.errors import TurnEndedError
from connectagent.frame import Frame
from connectagent.loop.beside import body_in
from connectagent.loop.execute import refuse_left
from connectagent.loop.model_call import Call
from connectagent.loop.output import Form, form_of
from connectagent.loop.remote import Remote
from connectagent.loop.turn import Turn, turn_in
from connectagent.loop.turn_agent import TurnAgent
from connectagent.models.content import parts_of
from connectagent.session.messages import as_response, refuse_unusable
from connectagent.session.snapshot import clone
from connectagent.tools.awaiting import CALLER, operating
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.waits import holding, take

Output = TypeVar("Output")
Prompt = str | Image | File | list[str | Image | File | dict[str, Any]]


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
        prompt: text, an `Image`, a `File`, or a list of texts, images, files and parts of a message.
        output: a pydantic model, a dataclass, a TypedDict, or a type such as `list[int]`; an instance of it is
            returned. An answer that does not fit is sent back once with what was wrong.
        system_prompt: the system prompt.
        model: a name as `Agent` takes it.
        llm: an `LLM` to ask, in place of a name.
        api_key: the key, in place of the provider's variable.
        base_url: another address of the provider's API.
        options: parameters of the provider's API.

    Raises:
        ValueError: the prompt is empty.
        ProviderError: the call failed, or the answer is not whole (`length`, where a token limit has cut it).
        OutputError: the second answer does not fit `output` either.
    """
    if llm is None:
        from connectagent.models.create import create_llm

        llm = create_llm(model, api_key=api_key, base_url=base_url, options=options)
    form, messages = form_of(output), _messages(prompt, system_prompt)
    complete = _completing(llm, form)
    if form is None:
        return complete(messages).content or ""
    return _structured(form, llm, messages, complete)  # type: ignore[no-any-return]


def verdict(prompt: str, output: type[Any], system_prompt: str, llm: LLM) -> Any:
    """Like `llm_do`, for a decision: the answer must be nothing but the object, and not from the offline model.

    Raises:
        ProviderError: the call failed.
        OutputError: the second answer is not just the object either.
        ConfigError: the offline model answered.
    """
    form = Form(output, alone=True)
    return _structured(form, llm, _messages(prompt, system_prompt), _completing(llm, form))


def _completing(llm: LLM, form: Form | None) -> Callable[[list[Message]], LLMResponse]:
    """A function that asks a model for a whole answer: as an operation of the running turn, or outside of turns."""
    here = frame.current()
    if here is not None and not here.turn.over:
        return partial(_in_turn, here, llm, form, must_be_whole=True)
    return partial(_whole, form, llm)


def ask(
    agent: TurnAgent[Turn],
    prompt: str | list[Any],
    output: type[Any] | None = None,
    system_prompt: str | None = None,
    model: str | None = None,
    tools: Any = (),
) -> Any:
    """`agent.ask()`: the answer of one model call inside the running turn.

    Raises:
        RuntimeError: no turn is running.
        TurnEndedError: a handler ended the turn before the model was asked.
        ValueError: the prompt is empty.
    """
    refuse_left("ask()")
    here = frame.current()
    if here is None or here.turn.over:
        if agent.turn is None:
            raise RuntimeError(f"agent {agent.name!r} is not in a turn: ask() is for handlers and tools; see llm_do()")
        here = agent.turn.innermost
    llm = agent.llm if model is None else agent.create_llm(model)
    form = form_of(output)
    complete = partial(_in_turn, here, llm, form, tools=_schemas(tools))
    messages = _messages(prompt, system_prompt)
    return complete(messages) if form is None else _structured(form, llm, messages, complete)


def _in_turn(
    asked: Frame,
    llm: Any,
    form: Form | None,
    messages: list[Message],
    tools: list[dict[str, Any]] | None = None,
    must_be_whole: bool = False,
) -> LLMResponse:
    """Ask a model as an operation of the turn: hooks see it; it is recorded, counted and never repeated.

    Raises:
        RuntimeError: the turn no longer waits for the code.
        TurnEndedError: a handler ended the turn before the model was asked.
    """
    body = body_in(asked)
    if body is not None and (body.left or body.over):
        raise RuntimeError(f"a model was asked by a tool that the turn no longer waits for: {asked.id}")
    # A `Remote` does on the turn's own thread what touches the conversation, and passes on the rest.
    turn = turn_in(asked) if body is None else cast(Turn, Remote(body, copy_context()))
    lock, caller = turn.alone(asked), CALLER.get()

    def send(*given: Any) -> LLMResponse:
        lock.release()  # others may ask while this call waits for its answer
        try:
            apart = None if caller is None else caller.apart()
            answer = _send(form, *given) if apart is None else apart.run(partial(_send, form, *given))
            return answer  # type: ignore[no-any-return]
        finally:
            take(lock)

    def asking() -> LLMResponse | None:
        request = _request(llm, messages, tools)
        name = None if form is None else form.name
        id = turn.key(asked, "ask", request.model, [messages, tools, name] if tools or name else messages)
        by = asked.by or turn.boundary.innermost() or turn.agent.by
        call = Call(turn, request, id, llm, asked, by, send, form, must_be_whole)
        return call.attempt() or call.retried()

    with holding(lock):
        response: LLMResponse | None = operating(asking)
    if response is None:
        raise TurnEndedError(f"the turn was ended before {llm.model} was asked", model=llm.model)
    return response


def _request(llm: Any, messages: list[Message], tools: list[dict[str, Any]] | None) -> LLMRequest:
    """A request to a model, with the options that it has."""
    options = dict(clone(dict(llm.options))) if isinstance(llm, ConfigurableLLM) else {}
    return LLMRequest(messages, tools or [], str(llm.model), options)


def _messages(prompt: Any, system_prompt: str | None) -> list[Message]:
    """The messages to send: the given ones, or a user's message, below the system prompt.

    Raises:
        ValueError: the prompt is empty.
    """
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise ValueError("the prompt is empty: give a text, an Image, a File, or a list of them")
    messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    if isinstance(prompt, list) and prompt and all(isinstance(one, dict) and "role" in one for one in prompt):
        return [*messages, *clone(prompt)]
    return [*messages, {"role": "user", "content": prompt if isinstance(prompt, str) else parts_of(prompt)}]


def _schemas(tools: Any) -> list[dict[str, Any]]:
    """The schemas of the tools to offer; the caller runs the calls that the model answers."""
    if not tools:
        return []
    if isinstance(tools, list | tuple) and all(isinstance(tool, dict) for tool in tools):
        return list(clone(list(tools)))
    return list(clone(ToolRegistry(tools).schemas()))


def _structured(form: Form, llm: Any, messages: list[Message], complete: Callable[[list[Message]], LLMResponse]) -> Any:
    for _ in range(2):
        response = complete(messages)
        wrong = form.problem(response, llm)
        if wrong is None:
            return form.read(response.content or "")
        answer: Message = {"role": "assistant", "content": response.content or "(no answer)"}
        messages = [*messages, answer, form.again(wrong)]
    raise form.misfit(llm, str(wrong), response.content or "")


def _whole(form: Form | None, llm: Any, messages: list[Message]) -> LLMResponse:
    response: LLMResponse = as_response(_send(form, llm, messages))
    refuse_unusable(response, llm.model, getattr(llm, "provider", None), must_be_whole=True)
    return response


def _send(form: Form | None, llm: Any, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> Any:
    if form is not None:
        return form.send(llm, llm.complete, messages, tools)
    return llm.complete(messages, tools) if tools else llm.complete(messages)
