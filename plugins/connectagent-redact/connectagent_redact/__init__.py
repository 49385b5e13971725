"""Keeps personal data and secrets out of what models read: `<EMAIL_1a2b3c4d>` stands for an address.

A placeholder is made from the value and a key of the project. So every agent of a tree, and a turn that goes on
elsewhere, has the same one without a list. `finding.py` says what is found. The options are on `Redact`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from connectagent import (
    ConfigError,
    LLMRequest,
    Message,
    ToolArgumentsError,
    ToolCall,
    ToolRejected,
    add_secret,
    after_each_tool,
    after_user_input,
    around_llm,
    around_tool,
    around_turn,
    before_each_tool,
    before_llm,
    before_tools,
    data_folder,
    mask,
    on_complete,
    on_session,
)
from connectagent_redact.finding import canonical, find

if TYPE_CHECKING:
    from connectagent import Agent

KINDS = ("SECRET", "EMAIL", "PHONE", "IBAN", "CARD", "SSN")
_PLACEHOLDER = re.compile(r"<[A-Z][A-Z_]*_[0-9a-f]{8}>")
_UNMASKED = re.compile(rf"(?<!\[masked: ){_PLACEHOLDER.pattern}")
_MASKED = re.compile(rf"\[masked: ({_PLACEHOLDER.pattern})\]")
_DEEPEST = 50  # levels of data
_MOST = 10_000  # values and texts that are remembered
_SHORTEST = 4  # characters: what is shorter would be masked everywhere in the record


class Redact:
    """The plugin: `Agent(plugins=["redact"])`, or with options `Agent(plugins=[("redact", {"restore": ["send"]})])`.

    Args:
        kinds: what is redacted.
        restore: the tools whose arguments get the values back, by name; True for all.
        result: whether the turn's result gets them back.
        region: the country of phone numbers without `+`, such as `DE`.
        presidio: kinds that presidio looks for too, such as `PERSON`; True for people and places.
        allow: values that are not redacted.

    Raises:
        ConfigError: an option cannot be used.
    """

    changes = ("messages", "result")

    name: ClassVar[str] = "redact"
    reach: ClassVar[str] = "turn"  # what a judge or another agent asks a model in this turn is redacted too

    def __init__(
        self,
        kinds: str | Sequence[str] = KINDS,
        restore: bool | str | Sequence[str] = (),
        result: bool = True,
        region: str | None = None,
        presidio: bool | str | Sequence[str] = (),
        allow: str | Sequence[str] = (),
    ) -> None:
        wanted = _texts(kinds)
        if unknown := [kind for kind in wanted if kind not in KINDS]:
            raise ConfigError(f"redact: kinds are {', '.join(KINDS)}, not {unknown[0]!r}")
        named = ("PERSON", "LOCATION") if presidio is True else tuple(_texts(presidio or ()))
        if named and find_spec("presidio_analyzer") is None:
            raise ConfigError("redact: presidio is not installed: pip install 'connectagent-redact[presidio]'")
        self.result, self.allow = result, frozenset(_texts(allow))
        self.restore = restore if isinstance(restore, bool) else frozenset(_texts(restore))
        self._find = partial(find, kinds=frozenset(wanted), region=region, presidio=named)
        self._values: dict[tuple[str, str], str] = {}  # by session and placeholder, without secrets
        # By session and id: the arguments of calls with placeholders, and with the values that they got back.
        self._given: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._outermost: dict[str, Agent] = {}  # by session, of those whose turn runs: whose result the user reads
        self._clean: dict[int, None] = {}  # hashes of texts in which there is nothing to redact

    @on_session
    def take_over(self, agent: Agent, reason: str) -> None:
        """Give a fork the values that the session has had of which it is one."""
        if reason != "forked":
            return
        from connectagent.records import read_record  # forks are rare

        resumed = [entry["record"] for entry in agent.session["trace"] if entry["type"] == "resumed"]
        origin = read_record(resumed[-1]).get("id") if resumed else None
        for (session, placeholder), value in list(self._values.items()):
            if session == origin:
                _remember(self._values, (_session(agent), placeholder), value)

    # -- what comes in -------------------------------------------------------------------------

    @around_turn(tryfirst=True)
    def watch(self, agent: Agent, prompt: str) -> Generator[None, Any, None]:
        """Look at the prompt before it is recorded, so that the record has masks."""
        session = _session(agent)
        self.text(prompt, session)
        outermost = self._outermost.setdefault(session, agent) is agent
        try:
            yield
        finally:
            if outermost:
                self._outermost.pop(session, None)

    @after_user_input(tryfirst=True)
    def take_prompt(self, agent: Agent) -> None:
        """Redact the user's message."""
        self._redact_messages(agent, agent.session["messages"])

    @around_tool(trylast=True)  # the innermost: other handlers, the trace and the record see what is redacted
    def watch_tool(self, agent: Agent, tool_call: ToolCall) -> Generator[None, Any, Any]:
        """Redact what a tool returns."""
        try:
            result = yield
        except Exception as error:
            self.text(str(error), _session(agent))
            raise
        clean = self._redacted(agent, result)
        return None if clean is result else clean

    @after_each_tool(tryfirst=True)
    def after_tool(self, agent: Agent, result: Any) -> Any:
        """Redact errors, and what stood in for a result."""
        clean = self._redacted(agent, result)
        return None if clean is result else clean

    @before_llm(trylast=True)
    def before_model(self, agent: Agent, request: LLMRequest) -> None:
        """Redact what is new in the conversation, whoever put it there."""
        self._redact_messages(agent, request.messages)

    @around_llm(trylast=True)
    def watch_model(self, agent: Agent, request: LLMRequest) -> Generator[None, Any, None]:
        """Redact what handlers and tools ask a model."""
        self._redact_messages(agent, request.messages)
        yield

    def _redacted(self, agent: Agent, value: Any) -> Any:
        return _changed(value, partial(self.text, session=_session(agent)))

    def _redact_messages(self, agent: Agent, messages: list[Message]) -> None:
        """Redact messages in place. What a model wrote itself is known to its provider."""
        for message in messages:
            if message["role"] == "assistant" and not message.get("author"):
                continue
            content = message.get("content")
            clean = self._redacted(agent, content)
            if clean is not content:
                message["content"] = clean

    # -- what goes out -------------------------------------------------------------------------

    @before_tools(tryfirst=True)  # a guard decides about the values, and their form is made of them
    def before_round(self, agent: Agent, tool_calls: list[ToolCall]) -> None:
        """Give calls the values back, if their tools are to have them."""
        for one in filter(self._gets_values, tool_calls):
            self._restore(agent, one)

    @before_each_tool(tryfirst=True)
    def before_tool(self, agent: Agent, tool_call: ToolCall) -> None:
        """The same for a call that other handlers have changed since; refuse one whose values are not known.

        Raises:
            ToolRejected: a value is needed and not known, or not for this tool.
        """
        if self._gets_values(tool_call):
            self._restore(agent, tool_call)
            _changed(tool_call.arguments, partial(self._restored, agent, unknown=_refused))
        elif self._given:
            self._take_back(agent, tool_call)

    def _gets_values(self, tool_call: ToolCall) -> bool:
        return self.restore if isinstance(self.restore, bool) else tool_call.name in self.restore

    def _restore(self, agent: Agent, tool_call: ToolCall) -> None:
        """Put values in place of the placeholders, unless the arguments do not fit the tool."""
        written = tool_call.arguments if tool_call.sent is None else tool_call.sent  # a form may lack the placeholders
        unknown = _masked if agent.replaying else str  # a tool answers from the record then, whose arguments are masked
        restored = _changed(written, partial(self._restored, agent, unknown=unknown))
        tool = agent.tools.get(tool_call.name)
        if restored is written or tool is None:
            return
        try:
            form = tool.canonical(restored)
        except ToolArgumentsError:
            return  # the placeholders stay, as the model reads what does not fit
        self._mask_spellings(agent, form, written)
        key = (_session(agent), tool_call.id)
        self._given.pop(key, None)  # some models repeat ids
        _remember(self._given, key, (written, form))
        tool_call.arguments = restored

    def _take_back(self, agent: Agent, tool_call: ToolCall) -> None:
        """Put the placeholders back, if a handler renamed the call.

        Raises:
            ToolRejected: a handler has edited the arguments too, which have a value still.
        """
        written, form = self._given.get((_session(agent), tool_call.id), ({}, {}))
        if not written:
            return
        if tool_call.arguments == form:
            tool_call.arguments = written
        elif any(self._spelled_in(agent, tool_call.arguments, written)):
            raise ToolRejected(f"{tool_call.name!r} is not to have the values of placeholders")

    def _mask_spellings(self, agent: Agent, form: dict[str, Any], written: dict[str, Any]) -> None:
        """Mask values as the tool gets them, such as a number without blanks, or an address in small letters."""
        for text, placeholder, value in self._spelled_in(agent, form, written):
            if value not in text:
                add_secret(text, placeholder, at_least=_SHORTEST)

    def _spelled_in(
        self, agent: Agent, arguments: dict[str, Any], written: dict[str, Any]
    ) -> Iterator[tuple[str, str, str]]:
        """Each text and number in arguments that has a value of a placeholder, with these, however it is spelled."""
        known = {name: self._values.get((_session(agent), name)) for name in _PLACEHOLDER.findall(str(written))}
        for text in _texts_in(arguments):
            for placeholder, value in known.items():
                letters = _letters(value or "")
                if value is not None and len(letters) >= _SHORTEST and letters in _letters(text):
                    yield text, placeholder, value

    @on_complete(trylast=True)
    def complete(self, agent: Agent, result: str) -> str | None:
        """Give the user the values back."""
        if not self.result or agent.parent is not None or self._outermost.get(_session(agent)) is not agent:
            return None  # another agent reads it, not the user
        restored = self._restored(agent, result)
        return None if restored == result else restored

    def _restored(self, agent: Agent, text: str, unknown: Callable[[str], str] = str) -> str:
        """A text with the values that this session has had in this process; those of others are not for its user.

        Args:
            agent: the agent.
            text: the text.
            unknown: what is put in place of a placeholder whose value is not known; it may raise.
        """
        session, is_json = _session(agent), _is_json(text)

        def value(match: re.Match[str]) -> str:
            known = self._values.get((session, match[0]))
            if known is None:
                return unknown(match[0])
            return json.dumps(known, ensure_ascii=False)[1:-1] if is_json else known

        return _UNMASKED.sub(value, text)

    # -- one value -----------------------------------------------------------------------------

    def text(self, text: str, session: str = "") -> str:
        """A text with placeholders, whose values the session may have back."""
        if hash(text) in self._clean:
            return text
        parts, at = [], 0
        for one in self._find(text):
            if one.value not in self.allow and not _PLACEHOLDER.search(one.value):
                parts += [text[at : one.start], self._placeholder(one.kind, one.value, session)]
                at = one.end
        # What is left: secrets that connectagent knows, values in other encodings, and what a record has masked.
        clean = _MASKED.sub(r"\1", mask("".join([*parts, text[at:]])))
        if clean == text:
            _remember(self._clean, hash(text), None)
            return text
        return clean

    def _placeholder(self, kind: str, value: str, session: str) -> str:
        digest = blake2b(canonical(kind, value).encode("utf-8", "replace"), key=_key(), digest_size=4).hexdigest()
        placeholder = f"<{kind}_{digest}>"
        add_secret(value, placeholder, at_least=_SHORTEST)
        if kind != "SECRET":
            _remember(self._values, (session, placeholder), value)
        return placeholder


def _masked(placeholder: str) -> str:
    return f"[masked: {placeholder}]"


def _refused(placeholder: str) -> str:
    raise ToolRejected(f"the value of {placeholder} is not known any more: ask the user for it again")


def _texts(value: str | Sequence[str]) -> list[str]:
    """The texts of an option; one text is one of them, and not its letters."""
    return [value] if isinstance(value, str) else list(value)


def _session(agent: Agent) -> str:
    """The session's id, which agents that work in one turn share; "" before the first turn."""
    return "" if agent.current_session is None else str(agent.session["id"])


def _changed(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """A value whose texts are changed; the same object if nothing is."""
    if isinstance(value, str):
        changed = change(value)
        return value if changed == value else changed
    if depth > _DEEPEST or value is None or isinstance(value, bool | int | float | bytes):
        return value
    data = _as_data(value)
    inside = partial(_changed, change=change, depth=depth + 1)
    if isinstance(data, dict):
        pairs = _changed_pairs(data, inside)
        return value if pairs is data else pairs
    if isinstance(data, list):
        items = [inside(one) for one in data]
        return value if all(one is other for one, other in zip(items, data, strict=True)) else items
    return value


def _changed_pairs(data: dict[Any, Any], inside: Callable[[Any], Any]) -> dict[Any, Any]:
    """A dict whose keys and values are changed; the same one if nothing is, or it is a picture or a file."""
    if data.get("type") in ("image_url", "file"):
        return data
    pairs = {inside(key): inside(one) for key, one in data.items()}
    same = len(pairs) == len(data) and all(pairs.get(key) is one for key, one in data.items())
    return data if same else pairs


def _texts_in(form: Any) -> Iterator[str]:
    """The texts and numbers in JSON, as texts; the keys of objects too."""
    if isinstance(form, dict | list):
        for one in form:
            yield from _texts_in(one)
        for one in form.values() if isinstance(form, dict) else ():
            yield from _texts_in(one)
    elif isinstance(form, str | int | float) and not isinstance(form, bool):
        yield str(int(form)) if isinstance(form, float) and form.is_integer() else str(form)


def _letters(text: str) -> str:
    """The letters and digits of a text, to compare spellings of one value."""
    return "".join(filter(str.isalnum, text)).casefold()


def _is_json(text: str) -> bool:
    """Whether a text is a JSON list or object, as some models send them."""
    if text.lstrip()[:1] not in ("[", "{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _as_data(value: Any) -> Any:
    """What the model reads of an object, as far as it is known: a dict or a list."""
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value.model_dump() if hasattr(value, "model_dump") else value


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    while len(known) >= _MOST:
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
            del known[next(iter(known))]
    known.setdefault(key, value)


def _key() -> bytes:
    """The project's key, which makes placeholders that nobody can compute from a guess."""
    try:
        return _stored_key(data_folder("redact"))
    except OSError:
        return _stored_key(None)


@cache
def _stored_key(folder: Path | None) -> bytes:
    new = os.urandom(32)
    if folder is None:
        return new
    with contextlib.suppress(FileExistsError), open(folder / "key", "xb", opener=partial(os.open, mode=0o600)) as file:
        file.write(new)
    return (folder / "key").read_bytes()[:64] or new
