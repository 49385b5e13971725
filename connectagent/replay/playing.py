"""The turns of a record, given to an agent again: its session, its inputs, and what a person decided then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.resume import resume
from connectagent.errors import Paused
from connectagent.records.write import new_log
from connectagent.replay.player import Player, RecordEnds, apply_change
from connectagent.replay.recorded_form import RecordedForm
from connectagent.replay.recording import PROGRAM, RecordedTurn, Recording
from connectagent.replay.runs import Run, runs_of
from connectagent.session.snapshot import clone


def agent_from_record(recording: Recording, plugins: object = None, **options: Any) -> Agent:
    """An agent from a record alone: its name, its model's name, its system prompt and limit.

    Args:
        recording: the record.
        plugins: the agent's plugins.
        options: what else `Agent` takes.
    """
    head = recording.head
    named: Any = Named(str(head.get("model") or "?"))
    limit = int(head.get("max_iterations") or 10)
    given = {"log": False, "quiet": True, "max_iterations": limit, "llm": named, **options}
    agent = Agent(str(head.get("agent") or "replayed"), plugins=plugins, **given)
    if "system_prompt" not in options:
        prompt, extended = str(head.get("system_prompt") or ""), agent.system_prompt  # by `on_agent_ready`
        agent.system_prompt = prompt if prompt.endswith(extended) else prompt + extended
    return agent


class Named:
    """A model that is known by its name only."""

    def __init__(self, model: str) -> None:
        self.model = model

    def complete(self, messages: object, tools: object = None) -> Any:
        raise RecordEnds("the agent of a record has no model of its own")


class Playing(ABC):
    """A record whose turns an agent takes again.

    Args:
        recording: the record.
        agent: the agent; an agent of `agent_from_record` is offered the tools that the record's had.
        player: stands in for the agent's model and tools.

    Raises:
        ConfigError: the conversation was handed over in it, and the agent is one of `agent_from_record`.
    """

    def __init__(self, recording: Recording, agent: Agent, player: Callable[[Agent], Player]) -> None:
        self.recording, self.agent, self.made = recording, agent, isinstance(agent.llm, Named)
        if self.made:
            recording.refuse_handoffs()
        below = agent.below
        self.player = player(agent)
        self.player.is_made = self.made
        agent.log = new_log(recording=False)
        agent.runtime.on_inner = self._meet
        for one in below:
            self._meet(one, one.branch)

    @abstractmethod
    def _meet(self, agent: Agent, branch: str) -> None:
        """Let an agent inside the played one, and those below it, answer from the record too."""

    def begin_session(self) -> None:
        first = self.recording.head.get("begins_with") or {}
        self.agent.log.id = str(self.recording.head.get("id") or self.agent.log.id)  # handlers may send it
        self.agent.current_session = None
        if first:
            prompt = self.agent.system_prompt
            system = [{"role": "system", "content": prompt}] if prompt else []
            session: Any = {"messages": clone(first.get("messages", system)), "state": clone(first.get("state") or {})}
            session["turn"] = int(first.get("turn") or 0)
            self.agent.current_session = session

    def before(self, turn: RecordedTurn) -> None:
        """Do again what the program did before a turn: changes of the session, and calls of tools."""
        self.player.begin(_of_program(turn), self.made)
        if turn.before and self.agent.current_session is None:
            _ = self.agent.conversation.session
        for entry in turn.before:
            if (entry.get("by") or {}).get("plugin") == PROGRAM:
                apply_change(self.agent.current_session, entry)  # type: ignore[arg-type]
            elif entry.get("type") == "tool_execution" and str(entry.get("id")).startswith("B"):  # noqa: SIM102
                if "/exec:" not in entry["id"]:  # a tool or handler of that call made it
                    arguments = entry.get("original_arguments", entry.get("arguments"))
                    self.agent.execute_tool(str(entry.get("tool_name")), clone(arguments))

    def outcome(self, turn: RecordedTurn, play: Callable[[], str]) -> tuple[str | None, BaseException | None]:
        """What the turn returns, or raises."""
        try:
            return play(), None
        except KeyboardInterrupt as error:
            if not any(error is known for known in self.player.raised) and not _expected(turn):
                raise
            return None, error
        except BaseException as error:
            return None, error

    def input(self, turn: RecordedTurn) -> str:
        """Give the agent the turn's input; where it was paused then and decided, go on."""
        content, limit = turn.input.get("content", turn.input.get("prompt", "")), turn.input.get("max_iterations")
        paused, decided, form = 0, None, self._form(turn)
        while True:
            try:
                if decided is None:
                    return self.agent.answer(clone(content), limit, form=form)
                return str(resume(self.agent, None, None, False, decided._replace(form=form)))
            except Paused:
                decided = self.recording.decision(turn, paused)
                if decided is None:
                    raise
                paused += 1

    def _form(self, turn: RecordedTurn) -> Any:
        """The form of a turn's result: the agent's own, else what the record has of the one given to `input()`."""
        own = self.agent.form
        if not turn.input.get("output") or (own is not None and own.name == turn.input["output"]):
            return own
        form = RecordedForm(turn, self.agent)
        if self.made:
            self.agent.output_retries = len(form.sent_back)
        return form


def _of_program(turn: RecordedTurn) -> RecordedTurn:
    """What the program did between two turns, with the runs of its tools."""
    runs: list[Run] = runs_of(turn.before)
    return RecordedTurn(turn.number, [], {}, turn.before, runs=runs, end={"status": "between_turns"})


def _expected(turn: RecordedTurn) -> bool:
    """Whether the turn ended by Ctrl-C then, which a handler may raise again."""
    return str(turn.end.get("error") or "").startswith("KeyboardInterrupt")
