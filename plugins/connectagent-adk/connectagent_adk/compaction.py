"""`adk_compaction`: ADK's compaction of events. Older events are sent as summaries; the conversation keeps them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent import ConfigError, LLMRequest, after_user_input, before_llm, on_complete, run_async
from connectagent_adk.contexts import Event, texts_of
from connectagent_adk.models import Kinds, google_kinds
from connectagent_adk.translation import Message, contents_of, get, system_text, text_in

if TYPE_CHECKING:
    from connectagent import Agent

_EMPTY = len('{"parts":[],"role":"model"}')
_MOST = 2000  # characters of a call's arguments, or of its result, in the prompt of a summary
_GO_ON = "Go on with what was asked for."
_PROMPT = """Sum up the conversation below between a user and an agent, so that the agent can go on with the summary \
in its place. It may begin with an earlier summary. Begin with the language that the user writes in, for example \
"Conversation language: English". Then say what the user asked for, what was decided and found out, which tools \
were called, by their exact names, and what is still open. Be brief.

{conversation_history}"""


@dataclass
class EventsCompactionConfig:
    """When events are compacted, as ADK has it: by turns, by tokens, or by both.

    Args:
        summarizer: `LlmEventSummarizer()`, one of ADK's, or any object with `maybe_summarize_events(events=...)`.
        compaction_interval: after so many new turns they are summed up,
        overlap_size: with as many turns before them.
        token_threshold: from so many tokens of a prompt on, what is older than the last events is summed up,
        event_retention_size: which are so many.

    Raises:
        ValueError: one of a pair is missing, or both pairs.
    """

    summarizer: Any = None
    compaction_interval: int | None = None
    overlap_size: int | None = None
    token_threshold: int | None = None
    event_retention_size: int | None = None

    def __post_init__(self) -> None:
        pairs = (("token_threshold", "event_retention_size"), ("compaction_interval", "overlap_size"))
        if not any(getattr(self, name) is not None for pair in pairs for name in pair):
            raise ValueError("give token_threshold and event_retention_size, or compaction_interval and overlap_size")
        for pair in pairs:
            values = [getattr(self, name) for name in pair]
            if (values[0] is None) != (values[1] is None):
                raise ValueError(f"{' and '.join(pair)} are set together")
            for name, value, least in zip(pair, values, (1, 0), strict=True):
                if value is not None and (not isinstance(value, int) or value < least):
                    raise ValueError(f"{name} is an integer of at least {least}, not {value!r}")


class LlmEventSummarizer:
    """Sums events up with a model.

    Args:
        llm: the model's name; None: the agent's own.
        prompt_template: what the model is asked, with `{conversation_history}`.
    """

    def __init__(self, llm: str | None = None, prompt_template: str | None = None) -> None:
        self.llm, self.prompt_template = llm, prompt_template or _PROMPT

    def prompt(self, events: list[Event]) -> str:
        """What the model is asked."""
        return self.prompt_template.format(conversation_history="\n".join(_lines(events)))


def adk_compaction(config: Any) -> AdkCompaction:
    """Make a plugin of ADK's `EventsCompactionConfig`: `Agent(..., plugins=[adk_compaction(config)])`.

    Args:
        config: ADK's object, or the stand-in of the same name.

    Raises:
        ConfigError: it is neither, or its summarizer is none.
    """
    return AdkCompaction(config)


class AdkCompaction:
    """The plugin that `adk_compaction` makes, for the agent and for those below it.

    Args:
        config: when events are compacted.

    Raises:
        ConfigError: as for `adk_compaction`.
    """

    name = "adk_compaction"

    def __init__(self, config: Any) -> None:
        if not all(hasattr(config, name) for name in EventsCompactionConfig.__dataclass_fields__):
            raise ConfigError(f"adk_compaction takes an EventsCompactionConfig, not {config!r:.80}")
        self._config = config
        self._summarizer: Any = config.summarizer or LlmEventSummarizer()
        of_model = isinstance(self._summarizer, LlmEventSummarizer)
        if not of_model and not callable(getattr(self._summarizer, "maybe_summarize_events", None)):
            raise ConfigError(f"a summarizer has a method maybe_summarize_events(events), not {self._summarizer!r:.80}")
        is_googles = any(one.__module__.startswith("google.adk.") for one in type(self._summarizer).__mro__)
        self._kinds = google_kinds() if is_googles else Kinds()

    @after_user_input(tryfirst=True)
    def begin(self, agent: Agent) -> None:
        """Note where the turn begins."""
        kept, place = _kept(agent), len(_said(agent)) - 1
        if kept["turns"] and kept["turns"][-1] >= place:  # another plugin has shortened the conversation
            kept = {"turns": [], "summaries": []}
        agent.state[_key(agent)] = {**kept, "turns": [*kept["turns"], place]}

    @before_llm(tryfirst=True)  # the callbacks are given what is sent, as in ADK
    def send(self, agent: Agent, request: LLMRequest) -> None:
        """Compact a conversation with too many tokens, and send the summaries in place of what they sum up."""
        self._by_tokens(agent)
        messages: list[Any] = request.messages
        if summaries := _kept(agent)["summaries"]:
            messages = [*_assembled(messages, summaries)]
            if messages[-1]["role"] == "assistant":  # of the turn itself nothing is left but the summary
                messages.append({"role": "user", "content": _GO_ON})
            request.messages = messages

    @on_complete(trylast=True)
    def end(self, agent: Agent) -> None:
        """Compact at the end of a turn."""
        if not self._by_tokens(agent):
            self._by_turns(agent)

    def _by_tokens(self, agent: Agent) -> bool:
        """Sum up what is older than the last events, with the last summary; whether it was done."""
        threshold, stay = self._config.token_threshold, self._config.event_retention_size
        if threshold is None or (_prompt_tokens(agent) or 0) < threshold:
            return False
        last = next(reversed(_kept(agent)["summaries"]), None)
        messages = _said(agent)
        start = last["end"] if last else system_text(messages)[1]
        events = [one for one in _events(agent, Kinds()) if one.place >= start]
        split = _split(events, stay)
        return bool(split) and self._sum_up(agent, start, events[split - 1].end, last)

    def _by_turns(self, agent: Agent) -> None:
        """Sum up the turns that are new, and as many before them as overlap."""
        interval, overlap = self._config.compaction_interval, self._config.overlap_size
        kept, count = _kept(agent), len(_said(agent))
        done = kept["summaries"][-1]["end"] if kept["summaries"] else 0
        new = [n for n, end in enumerate([*kept["turns"][1:], count]) if kept["turns"] and end > done]
        if interval is not None and len(new) >= interval:
            self._sum_up(agent, kept["turns"][max(0, new[0] - overlap)], count, None)

    def _sum_up(self, agent: Agent, start: int, end: int, last: dict[str, Any] | None) -> bool:
        """Sum up the messages from `start` to `end`, and the last summary; whether it was done."""
        messages, kept = _said(agent), _kept(agent)
        begins = last["start"] if last else start
        if not _is_worth_it(messages, kept["summaries"], begins, end):
            return False
        made = self._kinds.event or Event
        events = [
            made(author="user" if one.stands[0]["role"] == "user" else agent.name, content=one.content)
            for one in _events(agent, self._kinds)
            if start <= one.place < end
        ]
        if last:
            content = contents_of(_message(last), self._kinds.types)[0][0]
            events.insert(0, made(author="model", content=content))
        try:
            text = self._summary(agent, events)
        except Exception as error:  # the whole conversation can still be sent
            agent.trace("adk_compacted", status="error", error=f"{type(error).__name__}: {error}")
            return False
        if text is None:
            return False
        summary = {"start": begins, "end": end, "text": text}
        others = [one for one in kept["summaries"] if one["start"] < begins]
        agent.state[_key(agent)] = {**kept, "summaries": [*others, summary]}
        agent.trace("adk_compacted", status="success", **summary)
        return True

    def _summary(self, agent: Agent, events: list[Any]) -> str | None:
        """What the summarizer makes of events."""
        if isinstance(self._summarizer, LlmEventSummarizer):
            answer = agent.ask(self._summarizer.prompt(events), model=self._summarizer.llm)
            if not answer.whole:  # a refusal, or half a summary, would stand in the place of the conversation
                raise ValueError(f"the summary is not whole: {answer.finish_reason}")
            return answer.content or None
        event = run_async(self._event_of(events))
        content = get(get(get(event, "actions"), "compaction"), "compacted_content")
        return None if content is None else text_in(content)

    async def _event_of(self, events: list[Any]) -> Any:
        event = self._summarizer.maybe_summarize_events(events=events)
        return await event if inspect.isawaitable(event) else event


# -- what is kept ----------------------------------------------------------------------------------


def _key(agent: Agent) -> str:
    """The state is shared by the agents of a tree; their conversations are not."""
    return f"adk_compaction:{agent.branch}"


def _kept(agent: Agent) -> dict[str, Any]:
    """Where the turns begin in the conversation, and the summaries: of which messages, and their text."""
    found: dict[str, Any] = agent.state.get(_key(agent)) or {"turns": [], "summaries": []}
    return found


def _said(agent: Agent) -> list[Any]:
    """The conversation."""
    return agent.session["messages"]


def _message(summary: dict[str, Any]) -> list[Message]:
    return [{"role": "assistant", "content": summary["text"]}]


def _assembled(messages: list[Message], summaries: list[dict[str, Any]]) -> list[Message]:
    """The messages with summaries, which overlap, in place of what they sum up: each where that ends."""
    found, place = [], 0
    for one in summaries:
        found += messages[place : one["start"]] + (_message(one) if one["text"] is not None else [])
        place = max(place, one["end"])
    return found + messages[place:]


# -- events ----------------------------------------------------------------------------------------


class _Placed(NamedTuple):
    """An event: a message, or the results of a round; and where these stand in the conversation."""

    place: int
    content: Any
    stands: list[Message]

    @property
    def end(self) -> int:
        return self.place + len(self.stands)


def _events(agent: Agent, kinds: Kinds) -> Iterator[_Placed]:
    messages = _said(agent)
    place = system_text(messages)[1]
    for content, stands in contents_of(messages[place:], kinds.types, texts_of(agent)):
        yield _Placed(place, content, stands)
        place += len(stands)


def _split(events: list[_Placed], stay: int) -> int:
    """How many events can go so that at least `stay` are left, and each result has its call."""
    if len(events) <= stay or not stay:
        return 0 if stay else len(events)
    unanswered: set[str] = set()
    for n in range(len(events) - 1, -1, -1):
        for message in events[n].stands:
            unanswered |= {message["tool_call_id"]} if message["role"] == "tool" else set()
            unanswered -= {call["id"] for call in message.get("tool_calls") or ()}
        if not unanswered and n <= len(events) - stay:
            return n
    return 0


# -- sizes -----------------------------------------------------------------------------------------


def _is_worth_it(messages: list[Message], summaries: list[dict[str, Any]], start: int, end: int) -> bool:
    """Whether a summary of these messages can be shorter than they are, if it is as long as the last one."""
    others = [one for one in summaries if one["start"] < start]
    without = _assembled(messages, [*others, {"start": start, "end": end, "text": None}])
    removed = _size(_assembled(messages, summaries)) - _size(without) - _EMPTY
    return removed > (_size(_message(summaries[-1])) if summaries else 0)


def _size(messages: list[Message]) -> int:
    """The size of messages as contents, in characters of JSON."""
    contents = (asdict(content) for content, _ in contents_of(messages[system_text(messages)[1] :], Kinds().types))
    shown = (json.dumps(_set(one), ensure_ascii=False, separators=(",", ":"), default=str) for one in contents)
    return sum(map(len, shown))


def _set(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _set(one) for key, one in value.items() if one is not None}
    return [_set(one) for one in value] if isinstance(value, list) else value


def _prompt_tokens(agent: Agent) -> int | None:
    """The tokens of the last prompt as the provider counted them; estimated where none was sent since a summary."""
    for entry in reversed(agent.session["trace"]):
        if entry["type"] == "adk_compacted" and entry["status"] == "success":
            break
        usage = entry.get("usage")
        if entry["type"] == "llm_call" and usage is not None and "/ask:" not in str(entry.get("id")):
            return int(usage["input_tokens"] if isinstance(usage, dict) else usage.input_tokens)
    messages = _assembled(_said(agent), _kept(agent)["summaries"])
    contents = contents_of(messages[system_text(messages)[1] :], Kinds().types, texts_of(agent))
    return sum(_characters(part) for content, _ in contents for part in content.parts or ()) // 4 or None


def _characters(part: Any) -> int:
    count = len(part.text or "")
    for one, value in ((part.function_call, "args"), (part.function_response, "response")):
        if one is not None:
            given = getattr(one, value)
            count += len(one.name or "") + (len(json.dumps(given, default=str)) if given else 0)
    return count


def _lines(events: list[Event]) -> Iterator[str]:
    """What was said, for the prompt of a summary."""
    for event in events:
        for part in event.content.parts or ():
            if part.text:
                yield f"{event.author}: {part.text}"
            if part.function_call:
                yield f"{event.author} called tool: {part.function_call.name}({_cut(part.function_call.args)})"
            if part.function_response:
                yield f"Tool response from {part.function_response.name}: {_cut(part.function_response.response)}"


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}... [{len(text) - _MOST} characters more]"
