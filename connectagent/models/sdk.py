"""One model call over a provider's SDK: what OpenAI's and Anthropic's wires have in common.

The body of a request is encoded here, once, and handed to the SDK's `client.post(content=...)` ready
made. Its typed methods check the whole conversation again on every request: 33 ms after 50 rounds of 8
calls, where this costs 0.6 ms and the encoding. Authentication, retries, timeouts and connections stay
the SDK's.
"""

from __future__ import annotations

import copy
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, ClassVar, NoReturn, Self

from connectagent.data import LLMResponse, Message, TokenUsage
from connectagent.errors import ConfigError, ProviderError, cut, libraries
from connectagent.models.attempts import Attempts, Raised
from connectagent.models.clients import idle_client
from connectagent.models.failures import Endpoint, failure, from_sdk
from connectagent.models.limits import Limits, limits_of
from connectagent.models.names import NO_KEY, PROVIDERS
from connectagent.models.notes import note
from connectagent.models.origin import Origin, RefusedParts, address_of
from connectagent.models.output_forms import IN_WORDS, Learnt, OutputForm, is_worth_trying, learnt_at
from connectagent.models.prices import price
from connectagent.models.refusals import may_be_the_form
from connectagent.models.tool_schemas import SentTools, ToolForms, with_own_names, with_sent_names
from connectagent.models.within_limits import within_limits
from connectagent.session.instruction import with_instruction
from connectagent.stop_reasons import Problem, problem_of

Messages = list[Message]
Tools = list[dict[str, Any]] | None
OnText = Callable[[str], None]

_LONGEST_QUOTE = 300
# A fifth faster without the check for circles, which no conversation has.
_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=str, check_circular=False, allow_nan=False
).encode


def encoded(body: dict[str, Any]) -> bytes:
    """A request's body as JSON. Surrogate pairs are joined; a lone one, for which UTF-8 has no form, is replaced.

    So are numbers that JSON has no form for: no endpoint takes NaN.
    """
    try:
        text = _encode(body)
    except ValueError:
        text = _encode(_finite(body))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _finite(value: object) -> Any:
    """A value with None in the place of NaN and infinities."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------- the adapter


class Exchange:
    """One call to a provider: the client that makes it, and the usage that was reported for it, though it may fail.

    Attributes:
        client: the SDK's.
        usages: of each answer that is whole, as the provider sent it; {} where it reported none.
        begun: of an answer that is not whole yet, or never became so.
    """

    def __init__(self) -> None:
        self.client: Any = None
        self.usages: list[dict[str, Any]] = []
        self.begun: dict[str, Any] | None = None

    def so_far(self, usage: object) -> None:
        """A piece of an answer has come."""
        self.begun = usage if isinstance(usage, dict) else {}

    def whole(self, usage: object) -> None:
        """An answer has come to its end."""
        self.usages.append(usage if isinstance(usage, dict) else {})
        self.begun = None


class WireLLM(ABC):
    """An LLM behind an SDK. A subclass says what its wire looks like: `_make_client`, `_body`, `_answered`, `_usage`.

    Args:
        model: the bare name, as the provider knows it.
        provider: a name of `llm.PROVIDERS`.
        api_key: the key; without it the provider's variable is read at each call.
        base_url: another address of the same API.
        options: parameters that are sent with every request, as the provider names them. Not sent, but
            obeyed: `timeout_s`, `max_retries`, `extra_headers`, and `extra_body`, whose keys are sent.

    Attributes:
        model: `provider/model`.
    """

    default_provider: ClassVar[str]
    path: ClassVar[str]
    default_base_url: ClassVar[str]
    base_url_variable: ClassVar[str]
    client_variables: ClassVar[tuple[str, ...]] = ()
    """Further variables that the SDK reads when a client is made."""

    def __init__(
        self,
        model: str,
        *,
        provider: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.provider = provider or self.default_provider
        self.model = f"{self.provider}/{model}"
        self.wire_model = model
        self._api_key = api_key
        from connectagent.output.masking import add_secret  # it has many patterns to compile

        add_secret(api_key, "api_key")
        self._own_base_url = base_url
        self.options = dict(options or {})
        self._tool_forms = ToolForms()
        self._refused_parts = RefusedParts()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def with_options(self, options: dict[str, Any]) -> Self:
        """The same model with other options; key, address and connections are shared."""
        other = copy.copy(self)
        other.options = dict(options)
        return other

    def complete(self, messages: Messages, tools: Tools = None, *, output: type[Any] | None = None) -> LLMResponse:
        """One answer of the model.

        Args:
            messages: the conversation, in OpenAI's chat format.
            tools: schemas, `{"type": "function", "function": {...}}`.
            output: a pydantic model; the answer's text is to be its JSON, which the caller validates.

        Raises:
            ProviderError: the call failed, or what came is no answer.
        """
        return self._ask(messages, tools, None, output)

    def stream(
        self, messages: Messages, tools: Tools = None, *, on_text: OnText, output: type[Any] | None = None
    ) -> LLMResponse:
        """One answer of the model, its text passed to `on_text` as it arrives; returns the whole response.

        Raises:
            ProviderError: the call failed; also when the stream was cut or carried an error, after
                `on_text` was called. What `on_text` raises comes through as it is.
        """
        return self._ask(messages, tools, on_text, output)

    def load_sdk(self) -> None:
        """Load the SDK and make a client, which takes a second the first time; what is wrong is told by the call."""
        with suppress(Exception), self._client():
            pass

    # -- what a subclass says

    @abstractmethod
    def _make_client(self, key: str | None, base_url: str) -> Any: ...

    @abstractmethod
    def _ways(self, form: OutputForm) -> list[str]:
        """How this wire can ask for a form, the best first; in words is always possible."""

    @abstractmethod
    def _body(self, messages: Messages, tools: Tools, form: OutputForm | None) -> dict[str, Any]: ...

    @abstractmethod
    def _answered(
        self, body: dict[str, Any], on_text: OnText | None, form: OutputForm | None, exchange: Exchange
    ) -> LLMResponse:
        """Send a request and read its answer; put its usage into `exchange` as soon as it is known."""

    @abstractmethod
    def _usage(self, usages: list[dict[str, Any]]) -> TokenUsage | None: ...

    # -- what both share

    def _ask(self, messages: Messages, tools: Tools, on_text: OnText | None, output: type[Any] | None) -> LLMResponse:
        sent = self._tool_forms.of(tools or [], self.provider, self.limits)
        given = within_limits(messages, self.provider, self.limits)
        if output is None:
            return self._asked(given, sent, on_text, None)
        form = OutputForm.of(output, self.limits, [str(tool.get("name")) for tool in _functions(sent.tools)])
        first: ProviderError | None = None
        tried: list[str] = []
        for way in self._open_ways(form):
            if first is not None and not is_worth_trying(way, str(first)):
                tried.append(way)
                continue
            try:
                response = self._asked(given, sent, on_text, form.by(way))
            except ProviderError as error:
                if not may_be_the_form(error):
                    raise
                first = first or error
                tried.append(way)
            else:
                self._learn(form, tried, way)
                return response
        try:
            response = self._asked(with_instruction(given, output.model_json_schema()), sent, on_text, None)
        except ProviderError as error:
            if first is not None and may_be_the_form(error):  # it was not the form that was refused
                raise first from first.__cause__
            raise
        self._learn(form, tried, IN_WORDS)
        return response

    def _asked(self, given: Messages, sent: SentTools, on_text: OnText | None, form: OutputForm | None) -> LLMResponse:
        """Ask with the form in one way; once more without the signed parts that the model refuses to take back."""
        try:
            return self._once(self._refused_parts.left_out(given), sent, on_text, form)
        except ProviderError as error:
            if not self._refused_parts.add(given, error, self.origin):
                raise
            note(f"thinking of earlier answers is left out, which {self.provider} refused: {cut(str(error), 300)}")
        return self._once(self._refused_parts.left_out(given), sent, on_text, form)

    def _once(self, given: Messages, sent: SentTools, on_text: OnText | None, form: OutputForm | None) -> LLMResponse:
        exchange = Exchange()
        try:
            body = self._checked_body(with_sent_names(given, sent), sent.tools or None, form)
            with self._client() as exchange.client:
                response = self._answered(body, on_text, form, exchange)
        except ProviderError as error:
            usages = [*exchange.usages, *([] if exchange.begun is None else [exchange.begun])]
            if usages:
                error.usage = self._usage(usages) or TokenUsage()
            if exchange.begun is not None and error.usage is not None:
                # a cut stream took more than it reported at its beginning
                error.usage.cost = None
            raise
        response.usage = self._usage(exchange.usages)
        if sent.names or sent.keys:
            with_own_names(response, sent)
        if form is not None and response.content:
            response.content = form.own_text(response.content)
        return response

    def takes_form(self, output: type[Any]) -> bool:
        """Whether this model is asked for a form by the provider's own means, as far as is known; else in words."""
        return bool(self._open_ways(OutputForm.of(output)))

    def _open_ways(self, form: OutputForm) -> list[str]:
        learnt = self._learnt()
        return [way for way in self._ways(form) if not learnt.refuses(form, way)]

    def _learn(self, form: OutputForm, refused: list[str], taken: str) -> None:
        """Remember that a form was refused in some ways, after it was taken in another."""
        if refused:
            self._learnt().note(form, refused)
            note(f"the form {form.name!r} was refused as {refused[0]!r}, and is asked for as {taken!r}")

    def _learnt(self) -> Learnt:
        return learnt_at(type(self).__name__, self.provider, self.base_url, self.wire_model)

    @property
    def limits(self) -> Limits:
        """What the provider takes in one request."""
        return limits_of(self.provider, bool(self._own_base_url or self._environment_url()))

    def _checked_body(self, messages: Messages, tools: Tools, form: OutputForm | None) -> dict[str, Any]:
        from connectagent.models.content import CannotSend, without_older

        while True:
            try:
                return self._body(messages, tools, form)
            except CannotSend as error:
                mended = without_older(messages, error.part, f"[a file is left out: {error}]")
                if mended is None:
                    raise self._failure(str(error), "bad_request") from None
                messages = mended

    @property
    def base_url(self) -> str:
        """Where requests go: the argument, the SDK's own variable, or the provider's address."""
        return self._own_base_url or self._environment_url() or self._known_url() or self.default_base_url

    @property
    def origin(self) -> Origin:
        """What signed and encrypted parts of this model's answers belong to."""
        return Origin(self.provider, address_of(self.base_url), self.wire_model)

    def _environment_url(self) -> str | None:
        return os.environ.get(self.base_url_variable) if self._known_url() is None else None

    def _known_url(self) -> str | None:
        known = PROVIDERS.get(self.provider)
        return known.base_url if known else None

    @property
    def _key_variable(self) -> str | None:
        known = PROVIDERS.get(self.provider)
        return known.key_variable if known else None

    def _key(self) -> str | None:
        """The key, or None where there is none; a placeholder where the user's own server needs none."""
        key = self._api_key or (os.environ.get(self._key_variable) if self._key_variable else None)
        if not key and (self._own_base_url or self._environment_url() or not self._key_variable):
            return NO_KEY
        return key or None

    def _client(self) -> AbstractContextManager[Any]:
        """The SDK client for one call; all calls share one that signs in by itself, which each would do anew."""
        key, base_url = self._key(), self.base_url
        if key is None and not self._sdk_may_sign_in():
            raise self._no_key()
        surroundings = tuple(os.environ.get(name) for name in self.client_variables)
        identity = (type(self), self.provider, base_url, key, surroundings)
        return idle_client(identity, partial(self._connected, key, base_url), shared=key is None)

    def _connected(self, key: str | None, base_url: str) -> Any:
        try:
            with libraries():
                return self._make_client(key, base_url)
        except ConfigError:
            raise
        except Exception as error:  # the SDK's own ways to sign in: a profile that cannot be read, say
            self._raise(error)

    def _sdk_may_sign_in(self) -> bool:
        """Whether the SDK may know another way to sign in than this provider's key."""
        return False

    def _no_key(self) -> ProviderError:
        return self._failure("there is no API key; 'offline' and 'ollama/<model>' need none", "auth")

    def _post(self, client: Any, body: dict[str, Any], **how: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Send one request by the SDK; returns what it answers and the attempts that failed before."""
        content, url = encoded(body), f"{client.base_url}".rstrip("/") + self.path
        try:
            with Attempts(self.model, self.options.get("max_retries")) as attempts:
                answer = client.post(url, content=content, cast_to=object, options=self._request_options(), **how)
        except Raised as raised:
            raise raised.error from None
        except Exception as error:
            self._raise(error, retries=attempts.failed(), request=body)
        return answer, attempts.failed()

    def _request_options(self) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **(self.options.get("extra_headers") or {})}
        found: dict[str, Any] = {"headers": headers}
        if self.options.get("timeout_s") is not None:
            found["timeout"] = self.options["timeout_s"]
        if self.options.get("max_retries") is not None:
            found["max_retries"] = self.options["max_retries"]
        return found

    def _body_options(self) -> dict[str, Any]:
        """The options that are part of the body; `tools` is not among them, since it joins the agent's."""
        unsent = ("timeout_s", "max_retries", "extra_headers", "extra_body", "tools", "stream", "betas")
        options = {key: value for key, value in self.options.items() if key not in unsent}
        options.update(self.options.get("extra_body") or {})
        return options

    def _events(self, stream: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """The events of a stream; only what reading raises is made a `ProviderError`, not what the consumer does."""
        iterator = iter(stream)
        while True:
            try:
                event = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                self._raise(error, streaming=True)
            if isinstance(event, dict):
                yield event

    def _raise(
        self,
        error: Exception,
        *,
        streaming: bool = False,
        retries: list[dict[str, Any]] | None = None,
        request: dict[str, Any] | None = None,
    ) -> NoReturn:
        """The one place where an SDK's exception becomes a `ProviderError`; a bug's comes through as it is."""
        found = from_sdk(error, self._endpoint(), streaming=streaming, retries=retries or [], request=request)
        if found is None:
            raise error
        raise found from error

    def _failure(self, text: str, kind: str, **more: Any) -> ProviderError:
        return failure(text, kind, self._endpoint(), **more)

    def _usable(
        self,
        response: LLMResponse,
        answer: object,
        *,
        words: str = "",
        has_more: bool = False,
        must_be_whole: bool = False,
    ) -> LLMResponse:
        """A response that can be used; any other is an error with the provider's words.

        Args:
            response: the response.
            answer: as the provider sent it.
            words: what the provider says of why it stopped.
            has_more: whether the provider sent what is neither text nor calls, but an answer all the same.
            must_be_whole: whether a text of an answer that is not whole is none.

        Raises:
            ProviderError: there is nothing in it that can be used: see `problem_of`.
        """
        has_text, has_calls = bool(response.content) or has_more, bool(response.tool_calls)
        reason = response.finish_reason
        found = problem_of(reason, has_text=has_text, has_calls=has_calls, must_be_whole=must_be_whole)
        if found is None and not (has_text or has_calls):
            found = Problem("empty", "the answer is empty: it has neither a text nor a call of a tool")
        if found is None:
            return response
        text = f"{found.text}: {words}" if words else found.text
        if response.content and not words:
            text = f"{text}; it began {response.content[:_LONGEST_QUOTE]!r}"
        error = self._failure(text, found.kind, status=200, body=answer)
        error.finish_reason = reason
        raise error

    def _endpoint(self) -> Endpoint:
        return Endpoint(self.provider, self.model, self.base_url, self._key(), self._key_variable)

    def _priced(self, usage: TokenUsage, **more: int) -> TokenUsage:
        if usage.cost is None:
            usage.cost = price(self.provider, self.wire_model, usage, **more)
        return usage


def _functions(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools of a request, without what each wire puts around them."""
    return [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in tools]


def count(usage: dict[str, Any], *path: str) -> int:
    """A number of tokens inside a usage object; 0 where it is missing or null."""
    found: Any = usage
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, int) else 0
