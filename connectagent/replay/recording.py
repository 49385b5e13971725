"""A record for replay: the model's answers, the tools' results, and what was sent when."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from connectagent.agents.decisions import Decision
from connectagent.data import Message, TraceEntry
from connectagent.errors import ConfigError
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.misfits import refuse_odd_lines
from connectagent.records.read import read_lazily, refuse_odd, require_agent
from connectagent.records.sent import SentSoFar
from connectagent.replay.runs import CHANGES, RESUME, Run, ended_bodies, repeated, runs_of
from connectagent.session.history import History
from connectagent.session.journal import DECIDED, LINES, is_aside
from connectagent.session.moments import Moment
from connectagent.session.prompt import prompt_changes
from connectagent.session.snapshot import By, clone

PROGRAM = "(program)"  # the plugin, in `by`, of the code that uses the agent
_ASIDE = tuple(LINES)  # lines that only the record has
_BEGINS = ("user_input", "(turn)")  # the second is replay's own: see `_mark_begin`


@dataclass(slots=True)
class Sent:
    """What a model was sent.

    Args:
        turn, iteration: when.
        model: the model's name; None where it is not known.
        moment: the conversation: each message, and who made it or changed it last.
        tools: the tools, by name; None where it is not known.
        changes: how handlers changed this one request, one `{"by", "value"}` each; `value` holds counts.
        schemas: the tools; None where they are not known.
        options: the parameters of the provider's API; None where they are not known.
        own: the messages of this request, if they are not those of the conversation.
        output: how a structured answer was asked for: its `name` and `schema`, {} if not known; None for text.
        agreed: how many messages from the start are known to be as they were.
    """

    turn: int
    iteration: int
    model: str | None
    moment: Moment[Any]
    tools: list[str] | None
    changes: list[dict[str, Any]] = field(default_factory=list)
    schemas: list[Any] | None = None
    options: dict[str, Any] | None = None
    own: list[Message] | None = None
    output: dict[str, Any] | None = None
    agreed: int = 0

    @property
    def messages(self) -> list[Message]:
        """All messages of the request."""
        return self.messages_since(0)

    @property
    def makers(self) -> list[By]:
        """Who made each message, or changed it last; [] where they are not those of the conversation."""
        return [one[1] for one in self.moment.since()] if self.own is None else []

    def messages_since(self, start: int) -> list[Message]:
        """The messages from a place on."""
        return [one[0] for one in self.moment.since(start)] if self.own is None else self.own[start:]

    @property
    def place(self) -> str:
        return f"{self.turn}.{self.iteration}"


@dataclass(slots=True)
class RecordedTurn:
    """One turn of a record.

    Attributes:
        number: the turn's number.
        before: what the program did before it: entries of its changes, and of its calls of tools.
        input: its `user_input` entry.
        entries: all others.
        answers: the `llm_call` entries of what the model was asked, in order.
        asks: those of what handlers and tools asked themselves, by their place.
        sent: the requests, one for each of `answers`.
        runs: the times that tools ran, in order.
        end: the keys of the turn's summary; without `status` it was cut off.
    """

    number: int
    before: list[TraceEntry]
    input: TraceEntry
    entries: list[TraceEntry] = field(default_factory=list)
    answers: list[TraceEntry] = field(default_factory=list)
    asks: dict[str, TraceEntry] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        """Whether the process ended in it."""
        return "status" not in self.end

    @property
    def steps(self) -> int:
        """How many steps of the agent itself it has: see `is_step`."""
        return sum(map(is_step, self.entries))

    @property
    def was_stopped(self) -> bool:
        """Whether something outside of it ended it: the end of its process, Ctrl-C or a cancelled task."""
        return self.is_cut or self.end["status"] in ("interrupted", "cancelled")


def is_step(entry: TraceEntry) -> bool:
    """Whether an entry is a turn's input, or a call of a model or tool that was made."""
    kinds = ("user_input", "llm_call", "tool_execution")
    return entry.get("type") in kinds and entry.get("status") != "skipped" and not is_aside(entry)


def checked_data(path: Path) -> dict[str, Any]:
    """A record's data with its long texts, of which each line is as connectagent writes it.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record; it names the first line that is not.
    """
    data = read_lazily(path)
    with refuse_odd(path):
        refuse_odd_lines(path, data, data["turns"])
        return partial(restored, folder=blob_folder(path))(data)  # type: ignore[no-any-return]


class Recording:
    """A record, as replay needs it.

    Args:
        path: the record.
        data: what `read_record` gave for it, or made of it; it is changed. None: the file is read.

    Attributes:
        head: the keys above the turns.
        turns: the turns that led to where the record ends; what was taken back by `resume --from` is left out.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """

    def __init__(self, path: Path, data: dict[str, Any] | None = None) -> None:
        self.path = path
        if data is None:
            data = checked_data(path)
        require_agent(data, path)
        self.turns: list[RecordedTurn] = []
        with refuse_odd(path):
            self._take(data)

    def _take(self, data: dict[str, Any]) -> None:
        self.items: list[dict[str, Any]] = data.pop("turns")
        self.head: dict[str, Any] = data
        if any(item.get("unreadable") for item in self.items):
            raise ConfigError(f"{self.path}: not a record: a turn has something else than entries in its trace")
        for item in self.items:
            _mark_begin(item)
        self._kept = self._effective()
        self._read()

    def history(self, kind: type[History] = History) -> History:
        """A history of the session's beginning."""
        first = clone(self.head.get("begins_with") or {})
        changes = prompt_changes(self.head.get("system_prompt_changes"))
        made = kind(self.head.get("system_prompt") or "", first.get("messages"), first.get("state"), 0, changes)
        made.turn = int(first.get("turn") or 0)
        return made

    def decision(self, turn: RecordedTurn, nth: int) -> Decision | None:
        """What was decided when a turn was paused for the nth time, from 0; None where nobody did."""
        pauses = [at for at, entry in enumerate(turn.entries) if entry.get("type") == "paused"]
        if nth >= len(pauses):
            return None
        pause = turn.entries[pauses[nth]]
        since = turn.entries[pauses[nth] : pauses[nth + 1] if nth + 1 < len(pauses) else None]
        if not any(entry.get("type") == "resumed" for entry in since):
            return None
        if pause.get("inner"):
            return self._decision_inside(pause)
        id = (pause.get("call") or {}).get("id")
        for entry in since:
            if (entry.get("by") or {}).get("plugin") != RESUME or id not in (None, entry.get("call_id")):
                continue
            if (decided := _decided(entry)) is not None:
                return Decision(decided, None)
        return Decision({"approve": True}, None)

    def _decision_inside(self, pause: TraceEntry) -> Decision:
        """What was decided about a call of an agent inside."""
        lines = (line for item in self.items for line in item["lines"])
        nothing: TraceEntry = {}
        decided = next((one for one in lines if one["type"] == DECIDED and one["id"] in pause["waits"]), nothing)
        made = {key: decided[key] for key in ("reject", "answer") if key in decided} or {"approve": True}
        if isinstance(made.get("answer"), dict):
            made["answer"] = made["answer"].get("value")
        return Decision(made, decided["id"] if len(pause["waits"]) > 1 and decided else None)

    def refuse_handoffs(self) -> None:
        """Refuse a session in which another agent answered in place of its own, which a record alone does not make.

        Raises:
            ConfigError: there is a handoff in it.
        """
        for turn in self.turns:
            for entry in turn.entries:
                if entry.get("type") == "tool_execution" and isinstance(entry.get("handoff"), dict):
                    raise ConfigError(
                        f"{self.path.name}: {self.head.get('agent')} handed over to {entry['handoff'].get('target')}, "
                        "which cannot be played from the record alone: name the script that makes these agents, or "
                        "pass agent="
                    )

    def tools(self) -> list[str]:
        """The names of all tools that ran or were offered."""
        offered = (name for turn in self.turns for sent in turn.sent for name in sent.tools or ())
        return list(dict.fromkeys([*offered, *(run.name for turn in self.turns for run in turn.runs)]))

    def _effective(self) -> list[tuple[int, TraceEntry]]:
        """The entries, each with the number of its item; those that were taken back are left out."""
        kept: list[tuple[int, TraceEntry]] = []
        history = self.history()
        rewound = any(item.get("from") for item in self.items)
        for number, item in enumerate(self.items):
            if item.get("from"):
                history = history.before(*item["from"])
                del kept[len(history.entries) :]
            if rewound:
                history.extend(item["trace"], closed="status" in item)
            kept += [(number, entry) for entry in item["trace"]]
        return kept

    def _read(self) -> None:
        sends = sends_in([entry for _, entry in self._kept])
        history = self._watched(sends)
        waiting: list[TraceEntry] = []
        given, bodies = SentSoFar(), self._bodies()
        begins = {number: at for at, (number, entry) in enumerate(self._kept) if entry.get("type") in _BEGINS}
        for at, (number, entry) in enumerate(self._kept):
            kind, item = entry.get("type"), self.items[number]
            if kind in _BEGINS:
                self._begin(int(item.get("turn") or 0), entry, waiting)
                waiting = []
            elif not self.turns or (not item.get("resumed") and at < begins.get(number, at + 1)):
                waiting.append(entry)
                continue
            turn = self.turns[-1]
            turn.entries.append(entry)
            turn.end = {key: item[key] for key in ("status", "result", "error", "model", "stream_left") if key in item}
            if at in sends:
                given.take(entry)
                turn.answers.append(entry)
                model = turn.end.get("model") or self.head.get("model")
                turn.sent.append(sent_of(turn, history.seen[sends[at]], at - sends[at], given, model))
        for turn in self.turns:
            turn.runs = runs_of(turn.entries, bodies.get(turn.number, ()))
            turn.asks = asks_in(turn.entries)

    def _bodies(self) -> dict[int, list[TraceEntry]]:
        """What came of tools whose rounds were not over, by the number of the turn."""
        kept, found = {number for number, _ in self._kept}, dict[int, list[TraceEntry]]()
        for number, item in enumerate(self.items):
            if number in kept:
                found.setdefault(int(item.get("turn") or 0), []).extend(ended_bodies(item["lines"]).get("", ()))
        return found

    def _begin(self, number: int, entry: TraceEntry, waiting: list[TraceEntry]) -> None:
        """Begin a turn; what waited for it comes from its own handlers, or from the program."""
        inside = [one for one in waiting if _is_inside_turn(one)]
        before = [one for one in waiting if not _is_inside_turn(one)]
        self.turns.append(RecordedTurn(number, before, entry, inside))

    def _watched(self, sends: dict[int, int]) -> Watched:
        history = self.history(Watched)
        assert isinstance(history, Watched)
        history.marks = set(sends.values())
        kept: dict[int, list[TraceEntry]] = {}
        for number, entry in self._kept:
            kept.setdefault(number, []).append(entry)
        turn: list[TraceEntry] = []  # with the items that go on with it
        for number, item in enumerate(self.items):
            turn += (own := kept.get(number, []))
            if number + 1 == len(self.items) or not self.items[number + 1].get("resumed"):
                history.extend(turn, closed="status" in item or len(own) < len(item["trace"]))
                turn = []
        return history


def sends_in(entries: list[TraceEntry]) -> dict[int, int]:
    """By the place of each `llm_call` whose model was asked, the place before which the request was sent."""
    sends = {}
    again = repeated(entries, "llm_call")
    for at, entry in enumerate(entries):
        if at in again:
            continue
        if entry.get("type") == "llm_call" and entry.get("status") != "stand_in" and not is_aside(entry):
            place, left = at, int(entry.get("entries_since_request") or 0)
            while place and left:
                place -= 1
                left -= entries[place].get("type") not in _ASIDE
            sends[at] = place
    return sends


def sent_of(turn: RecordedTurn, moment: Moment[Any], behind: int, given: SentSoFar, model: str | None) -> Sent:
    """The request that the newest entry of a turn is about.

    Args:
        turn: the turn, up to the `llm_call`.
        moment: the conversation at the request, with who made each message.
        behind: how many entries are between the request and the `llm_call`.
        given: what it was given besides.
        model: the agent's model; None where it is not known.
    """
    iteration = int(turn.entries[-1].get("iteration") or 0)
    again = bool(turn.sent) and turn.sent[-1].iteration == iteration  # perhaps by Retry(model=...)
    before = turn.entries[: max(0, len(turn.entries) - 1 - behind)]
    since = len(before)
    while since and before[since - 1].get("type") != "llm_call":
        since -= 1
    changes = request_changes(before[since:])
    chosen = (changes[-1]["value"] or {}).get("model") if changes else None
    model = None if again else chosen or model
    own = given.own([one[0] for one in moment.since()]) if given.is_edited else None
    output = given.output or ({} if turn.input.get("output") else None)  # older records do not have it
    request = given.tools, given.options, own, output
    return Sent(turn.number, iteration, model, moment, given.names, changes, *request)


class Watched(History):
    """A history that remembers the conversation as it was before certain entries."""

    def __init__(self, *beginning: Any) -> None:
        super().__init__(*beginning)
        self.marks: set[int] = set()
        self.seen: dict[int, Moment[Any]] = {}

    def _apply(self, entry: TraceEntry) -> None:
        if len(self.entries) in self.marks:
            self.seen[len(self.entries)] = self.moment()
        super()._apply(entry)


def conversation_of(history: History) -> list[tuple[Message, By]]:
    """The conversation of a history: each message as it is now, with who made it or changed it last."""
    return [(clone(line.message), line.changes[-1].by) for line in history.lines]


def request_changes(entries: list[TraceEntry]) -> list[dict[str, Any]]:
    """How handlers changed one request, by the entries before it."""
    kinds = ("change", "request")
    changed = (one for one in entries if (one.get("type"), one.get("of")) == kinds and not is_aside(one))
    return [{"by": entry.get("by"), "value": entry.get("value")} for entry in changed]


def _is_inside_turn(entry: TraceEntry) -> bool:
    """Whether an entry that stands before a turn's `user_input` comes from one of its handlers, of `around_turn`."""
    place = str(entry.get("id") or entry.get("at") or "")
    return place.startswith("T") and (entry.get("by") or {}).get("plugin") != PROGRAM


def _decided(entry: TraceEntry) -> dict[str, Any] | None:
    """A decision other than approval, by the entry of the call."""
    kind, status = entry.get("type"), entry.get("status")
    if kind == "tool_execution" and status == "rejected":
        return {"reject": str(entry.get("result")).removeprefix("rejected: ")}
    if kind in ("tool_execution", "llm_call") and status == "stand_in":
        return {"answer": entry.get("result", entry.get("content"))}
    return None


def _mark_begin(item: dict[str, Any]) -> None:
    """Mark where a turn began that ended before its message was there, as a handler of `around_turn` raised."""
    trace = item["trace"]
    begun = any(entry.get("type") == "user_input" for entry in trace)
    if not begun and not item.get("resumed") and "input" in item and "status" in item:
        own = (entry.get("type") in CHANGES and (entry.get("by") or {}).get("plugin") == PROGRAM for entry in trace)
        trace.insert(next((at for at, is_own in enumerate(own) if not is_own), len(trace)), {
            "type": _BEGINS[1], "prompt": item["input"],
        })  # fmt: skip


def asks_in(entries: list[TraceEntry]) -> dict[str, TraceEntry]:
    """What handlers and tools asked models themselves, by the place."""
    return {str(one.get("id")): one for one in entries if one.get("type") == "llm_call" and is_aside(one)}
