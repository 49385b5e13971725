"""A record that is played with answers of a model, or of anything else, where the record has none."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.agent_tool import AskAgent
from connectagent.agents.runtime import Runtime
from connectagent.data import ConfigurableLLM, LLMResponse, Message, TraceEntry, WordByWord
from connectagent.loop.output import Asked
from connectagent.replay.player import Player, RecordedTools
from connectagent.replay.playing import Named, Playing
from connectagent.replay.recording import RecordedTurn, Recording
from connectagent.replay.runs import Run
from connectagent.session.snapshot import clone
from connectagent.tools.tool import Tool


class LivePlaying(Playing):
    """A record whose turns an agent takes again; what each request and each call comes to is decided by a subclass.

    `Playing` has what plays the turns: `begin_session`, then for each turn `before`, `begin` and `outcome`.

    Args:
        recording: the record.
        agent: the agent; it is changed for good.
        live_tools: whether tools run; else `find` says what they came to.
        schemas: the schemas of tools that an agent of `agent_from_record` is offered, by name.

    Attributes:
        entries: the trace entries of all agents and turns so far, as the record has them.
    """

    def __init__(
        self,
        recording: Recording,
        agent: Agent,
        live_tools: bool = False,
        schemas: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.live_tools = live_tools
        self.schemas = schemas or {}
        self.entries: list[TraceEntry] = []
        super().__init__(recording, agent, partial(LivePlayer, self))

    @abstractmethod
    def answer(self, own: Any, messages: list[Message], tools: Any, output: type[Any] | None) -> LLMResponse:
        """What a request is answered.

        Args:
            own: the agent's own `LLM`.
            messages, tools, output: the request, as `LLM.complete` gets it.

        Raises:
            RecordEnds: the run stops here.
            Exception: the answer is an error.
        """

    @abstractmethod
    def find(self, name: str, arguments: str, given: Any) -> tuple[Run | None, str]:
        """What a tool came to; else None, and why the record has nothing for it.

        Args:
            name: the tool.
            arguments: its arguments as `canonical` text.
            given: the arguments.
        """

    def begin(self, turn: RecordedTurn) -> None:
        """Begin a turn: its tools are offered, and its answers are next."""
        self.player.begin(turn, self.made)

    def create_model(self, name: str) -> Any:
        """A model by its name, as the agent would make it.

        Raises:
            ConnectAgentError: it cannot be made.
        """
        return _created(self.agent, name)

    def is_only_named(self, own: Any) -> bool:
        """Whether an `LLM` is known by its name only: that of an agent which was made from the record."""
        return isinstance(own, Named)

    def _meet(self, agent: Agent, branch: str) -> None:
        for one in (agent, *agent.below):
            if one is not self.agent and id(one) not in self.player.inside:
                self.player.inside[id(one)] = LivePlayer(self, one)


class LivePlayer(Player):
    """Stands in for the model and the tools of one agent."""

    def __init__(self, playing: LivePlaying, agent: Agent) -> None:
        self.playing = playing
        own = agent.llm
        super().__init__(agent, playing.live_tools)
        agent.llm = _served(playing, own)
        served = partial(_served, playing)
        agent.runtime = Runtime(self._named, self._named, served, lambda after_s: None, replays=True)
        agent.runtime.on_inner = playing._meet

    def _named(self, model: str) -> Any:
        """Another model, which is made when it has to be asked."""
        return Served(self.playing, MadeWhenAsked(self.agent, model))

    def begin(self, turn: RecordedTurn, offered: bool = False) -> None:
        super().begin(turn)
        tools = self.agent.tools
        if offered and isinstance(tools, RecordedTools):
            tools.gone.clear()
            for name, schema in self.playing.schemas.items():
                if name not in tools:
                    parameters = schema.get("parameters") or {"type": "object", "properties": {}}
                    tools.add(Tool(name, str(schema.get("description") or ""), parameters, _no_function))

    def _recorded_tool(self, tool: Tool) -> Tool:
        return tool if isinstance(tool.function, AskAgent) else super()._recorded_tool(tool)

    def _find(self, name: str, id: Any, arguments: str) -> tuple[Run | None, str]:
        return self.playing.find(name, arguments, self._arguments)

    def _ends(self) -> bool:
        return False

    def _note_entry(self, entry: TraceEntry) -> None:
        self.playing.entries.append(clone(entry))


class MadeWhenAsked:
    """A model of an agent that is made when it is asked."""

    def __init__(self, agent: Agent, model: str) -> None:
        self._agent, self.model = agent, model

    def complete(self, messages: list[Message], tools: Any = None, *, output: type[Any] | None = None) -> LLMResponse:
        """Make the model, and ask it."""
        return ask_model(_created(self._agent, self.model), messages, tools, output)


def _created(agent: Agent, model: str) -> Any:
    """A model by its name, although the agent's own models are replaced."""
    create, agent.runtime.create_model = agent.runtime.create_model, None
    try:
        return agent.create_llm(model)
    finally:
        agent.runtime.create_model = create


def ask_model(llm: Any, messages: list[Message], tools: Any, output: type[Any] | None) -> LLMResponse:
    """A model's own answer to copies of a request, in the form that the turn asks for."""
    copies, offered = clone(messages), clone(tools)
    answer: LLMResponse
    answer = llm.complete(copies, offered) if output is None else Asked(output).send(llm, llm.complete, copies, offered)
    return answer


class Served(WordByWord):
    """An LLM whose answers come from what plays the record; in all else it is the agent's own."""

    def __init__(self, playing: LivePlaying, own: Any) -> None:
        self._playing, self._own = playing, own
        self.model = own.model

    def complete(self, messages: list[Message], tools: Any = None, *, output: type[Any] | None = None) -> LLMResponse:
        """What the request is answered."""
        return self._playing.answer(self._own, messages, tools, output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class ServedWithOptions(Served):
    """The same of an LLM that takes parameters of its provider's API."""

    def __init__(self, playing: LivePlaying, own: Any) -> None:
        super().__init__(playing, own)
        self.options = own.options

    def with_options(self, options: dict[str, Any]) -> ServedWithOptions:
        """The same with other parameters."""
        return ServedWithOptions(self._playing, self._own.with_options(options))


def _served(playing: LivePlaying, own: Any) -> Served:
    """What answers in an LLM's place."""
    kind = ServedWithOptions if isinstance(own, ConfigurableLLM) else Served
    return kind(playing, own)


def _no_function(**arguments: Any) -> str:
    raise AssertionError("unreachable: it answers from the record")
