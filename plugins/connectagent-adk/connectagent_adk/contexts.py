"""What a callback is given beside its request, response or tool: the context, with state, actions and artifacts."""

from __future__ import annotations

import copy
import inspect
import json
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote
from weakref import WeakKeyDictionary

from connectagent import PluginError, ToolCall
from connectagent_adk.artifacts import OfPlugin
from connectagent_adk.translation import contents_of, plain_text

if TYPE_CHECKING:
    from connectagent import Agent

_INSTEAD = {
    "request_credential": "look for the token in `state`; without it, return {'error': ...} from before_tool_callback",
    "get_auth_response": "keep the credential in `state`",
    "save_credential": "keep the credential in `state`, or where your program keeps its secrets",
    "load_credential": "keep the credential in `state`, or where your program keeps its secrets",
    "request_confirmation": "use a plugin that asks, such as connectagent-approve",
    "search_memory": "give the agent a tool that searches",
    "add_session_to_memory": "store `agent.current_session` after the turn",
    "run_node": "call the other agent's input()",
}


class State(MutableMapping[str, Any]):
    """`agent.current_session["state"]` as ADK has it; each write is in the session at once.

    Args:
        value: the session's state.
        delta: takes what is written through this object; None for a key that is deleted.
    """

    APP_PREFIX = "app:"
    USER_PREFIX = "user:"
    TEMP_PREFIX = "temp:"

    def __init__(self, value: dict[str, Any], delta: dict[str, Any]) -> None:
        self._value = value
        self._delta = delta

    def __getitem__(self, key: str) -> Any:
        return self._value[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._value[key] = self._delta[key] = value

    def __delitem__(self, key: str) -> None:
        del self._value[key]
        self._delta[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def has_delta(self) -> bool:
        """Whether this callback has changed the state."""
        return bool(self._delta)

    def to_dict(self) -> dict[str, Any]:
        """A copy of the whole state."""
        return dict(self._value)


@dataclass
class EventCompaction:
    """A summary in place of the events between two times."""

    start_timestamp: float
    end_timestamp: float
    compacted_content: Any


@dataclass
class EventActions:
    """What a callback asks for beside its value.

    Args:
        skip_summarization: of a tool's callback: the turn ends with the tool's result, after its round.
        escalate: the `Loop` around the agent is left at the end of the turn.
        state_delta: changes of the state; what is put in here is written to it.
        artifact_delta: the artifacts that the callback saved, with their versions.
        transfer_to_agent: of a tool's callback: the agent that answers from now on, after the round.
        compaction: of a summarizer's event: the summary.
    """

    skip_summarization: bool | None = None
    escalate: bool | None = None
    state_delta: dict[str, Any] = field(default_factory=dict)
    artifact_delta: dict[str, int] = field(default_factory=dict)
    transfer_to_agent: str | None = None
    compaction: EventCompaction | None = None


@dataclass
class Event:
    """One message of the conversation, and whose it is: `user` or the agent's name."""

    author: str
    content: Any = None
    invocation_id: str = ""
    branch: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    actions: EventActions = field(default_factory=EventActions)
    partial: bool | None = None
    error_code: str | None = None
    error_message: str | None = None
    long_running_tool_ids: set[str] | None = None
    timestamp: float = field(default_factory=time.time)

    def get_function_calls(self) -> list[Any]:
        """The calls in the message."""
        return [part.function_call for part in self.content.parts or () if part.function_call]

    def get_function_responses(self) -> list[Any]:
        """The results in the message."""
        return [part.function_response for part in self.content.parts or () if part.function_response]

    def is_final_response(self) -> bool:
        """Whether the message ends the turn: it neither calls a tool nor is a tool's result."""
        return not (self.get_function_calls() or self.get_function_responses())


@dataclass
class Session:
    """The session as ADK has it.

    Args:
        id: stays the same as long as the program keeps the session.
        app_name: the agent's name.
        user_id: whose session it is.
        state: `agent.current_session["state"]`.
        messages: `agent.current_session["messages"]`.
        types: the module of `Content` and `Part`.
        texts: the names of the tools that return a str.
    """

    id: str
    app_name: str
    user_id: str
    state: dict[str, Any]
    messages: list[Any] = field(repr=False)
    types: Any = field(repr=False)
    texts: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def events(self) -> list[Event]:
        """The conversation; system messages are left out."""
        said = [message for message in self.messages if message["role"] not in ("system", "developer")]
        pairs = contents_of(said, self.types, self.texts)
        return [Event("user" if stands[0]["role"] == "user" else self.app_name, item) for item, stands in pairs]


class Guard:
    """What ADK's callbacks have made of one tool call.

    connectagent asks a handler again about a call that another handler changed after it. ADK asks the callbacks of its
    runner's plugins and those of the agent once, in one row. So a handler of this package decides again only where
    somebody else changed the call.
    """

    def __init__(self) -> None:
        self._left: list[tuple[object, str]] = []  # each plugin that decided, and the call as it left it
        self._after: tuple[str, dict[str, Any]] | None = None  # the call, and the arguments for callbacks after it

    def has_left(self, plugin: object, call: ToolCall) -> bool:
        """Whether a plugin has decided about the call, and since then only ADK's callbacks have changed it."""
        now = _shown(call)
        if not self._left or self._left[-1][1] != now:
            return False
        # Where the plugin itself left the call like this, the turn runs its step again, and so does the plugin.
        return any(one is plugin for one, _ in self._left) and not any(
            one is plugin and shown == now for one, shown in self._left
        )

    def begin(self, call: ToolCall) -> None:
        """A plugin decides: if somebody else changed the call, all decide anew."""
        if self._left and self._left[-1][1] != _shown(call):
            self._left.clear()

    def leave(self, plugin: object, call: ToolCall) -> None:
        """A plugin has decided."""
        self._left.append((plugin, _shown(call)))

    def args_after(self, call: ToolCall) -> dict[str, Any]:
        """The arguments for callbacks after the tool: each sees what those before it have made of them."""
        now = _shown(call)
        if self._after is None or self._after[0] != now:
            self._after = (now, copy.deepcopy(call.arguments))
        return self._after[1]


def _shown(call: ToolCall) -> str:
    return json.dumps([call.name, call.arguments], default=repr)


class Turn:
    """What the adapter keeps for one turn of one agent.

    Args:
        session: the agent's session.
        session_id: tells sessions apart.
    """

    def __init__(self, session: Any, session_id: str | None = None) -> None:
        self.session = session
        self.number = session["turn"]
        self.session_id = session_id or uuid.uuid4().hex
        self.invocation_id = f"e-{uuid.uuid4()}"
        self.filled: list[Services] = []  # whose shared state the session has
        self.decided: set[Any] = set()  # where a callback of a list has given its value
        self.endings: dict[int, str] = {}  # callbacks that end the turn after the round, with the call's id
        self.ended: Any = None  # the agent's `ended`, where it was a callback's action
        self.escalated = False  # whether a callback leaves the `Loop`
        self.of_user: dict[int, str] = {}  # by callback: its text, which is to stand in the conversation as the user's
        self._guards: dict[tuple[int, str], Guard] = {}

    def guard_of(self, call: ToolCall) -> Guard:
        """What is kept for a tool call of this iteration."""
        return self._guards.setdefault((self.session["iteration"], call.id), Guard())


_turns: WeakKeyDictionary[Agent, Turn] = WeakKeyDictionary()


def turn_of(agent: Agent, services: Services) -> Turn:
    """What is kept for the agent's turn, made anew for each; all callbacks of an agent share it."""
    session: Any = agent.current_session
    turn = _turns.get(agent)
    if turn is None or turn.session is not session or turn.number != session["turn"]:
        same = turn is not None and turn.session is session
        turn = _turns[agent] = Turn(session, turn.session_id if turn and same else None)
    if services not in turn.filled:
        turn.filled.append(services)
        services.fill(session["state"])
    return turn


def texts_of(agent: Agent) -> frozenset[str]:
    """The names of the tools that are annotated to return a str, whose results are never read as JSON lists."""
    found = ((tool.name, getattr(tool.function, "__annotations__", {}).get("return")) for tool in agent.tools)
    return frozenset(name for name, returns in found if returns in (str, "str"))


@dataclass(eq=False)
class Services:
    """Where artifacts and shared state are kept.

    Args:
        artifacts: an artifact service, or None.
        state: the state of `app:` and `user:` for all sessions, or None: such keys are then like others.
        user_id: whose state and artifacts those of `user:` are.
    """

    artifacts: Any = None
    state: MutableMapping[str, Any] | None = None
    user_id: str = "user"

    def fill(self, state: dict[str, Any]) -> None:
        """Bring what other sessions have written into a session's state."""
        mine = self._mine()
        for key, value in dict(self.state or {}).items():
            if not key.startswith((State.APP_PREFIX, mine)):  # another user's
                continue
            key = f"{State.USER_PREFIX}{key.removeprefix(mine)}" if key.startswith(mine) else key
            if state.get(key, self) != value:
                state[key] = copy.deepcopy(value)

    def share(self, delta: Mapping[str, Any]) -> None:
        """Take over what a callback has written; None for a key that was deleted."""
        if self.state is None:
            return
        for key, value in delta.items():
            if key.startswith(State.USER_PREFIX):
                key = self._mine() + key.removeprefix(State.USER_PREFIX)
            elif not key.startswith(State.APP_PREFIX):
                continue
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = copy.deepcopy(value)

    def _mine(self) -> str:
        """What the user's keys begin with; no user's id is the beginning of another one's."""
        return f"{State.USER_PREFIX}{quote(self.user_id, safe='')}:"


class Context:
    """What ADK calls `CallbackContext` and `ToolContext`.

    Args:
        agent: the agent.
        turn: what is kept for its turn.
        types: the module of `Content` and `Part`.
        services: where artifacts and shared state are kept.
        function_call_id: the id of the tool call, in the callbacks of tools.
    """

    def __init__(
        self, agent: Agent, turn: Turn, types: Any, services: Services, function_call_id: str | None = None
    ) -> None:
        self.agent, self._turn, self._types, self._services = agent, turn, types, services
        self.function_call_id = function_call_id
        self.actions = EventActions()
        self.state = State(turn.session["state"], self.actions.state_delta)
        self.agent_name = agent.name
        self.app_name = agent.root.name
        self.branch = None if agent.root is agent else agent.branch
        self.invocation_id = turn.invocation_id
        self.user_id = services.user_id
        self._invocation_context = self  # ADK's own plugins look into it

    def __getattr__(self, name: str) -> Any:
        instead = _INSTEAD.get(name)
        hint = f"ADK's {name} is not here: {instead}" if instead else f"the context has no {name!r}"
        raise AttributeError(hint)

    @property
    def session(self) -> Session:
        """The session, with its conversation as `events`."""
        held = self._turn.session
        return Session(
            self._turn.session_id, self.agent_name, self.user_id, held["state"], held["messages"], self._types,
            texts_of(self.agent),
        )  # fmt: skip

    @property
    def user_content(self) -> Any:
        """The user's message that began this turn."""
        prompt = self._turn.session["user_prompt"]
        for message in reversed(self._turn.session["messages"]):
            if message["role"] == "user" and plain_text(message["content"]) == prompt:
                return contents_of([message], self._types)[0][0]
        return self._types.Content(role="user", parts=[self._types.Part(text=prompt)])

    async def save_artifact(self, filename: str, artifact: Any, custom_metadata: dict[str, Any] | None = None) -> int:
        """Keep a part under a name, and return its version, from 0 up.

        Raises:
            ValueError: there is no artifact service.
        """
        more = {"custom_metadata": custom_metadata} if custom_metadata else {}
        version = await self._artifact("save_artifact", filename=filename, artifact=artifact, **more)
        self.actions.artifact_delta[filename] = version
        return int(version)

    async def load_artifact(self, filename: str, version: int | None = None) -> Any:
        """The part that is kept under a name, its last version if none is named; None if there is none.

        Raises:
            ValueError: there is no artifact service.
        """
        try:
            return await self._artifact("load_artifact", filename=filename, version=version)
        except (LookupError, FileNotFoundError):  # as some stores tell it
            return None

    async def list_artifacts(self) -> list[str]:
        """The names of the artifacts.

        Raises:
            ValueError: there is no artifact service.
        """
        return list(await self._artifact("list_artifact_keys"))

    async def _artifact(self, method: str, **given: Any) -> Any:
        whose = {"app_name": self.agent_name, "user_id": self.user_id, "session_id": self._turn.session_id}
        value = getattr(self._artifact_service(), method)(**whose, **given)
        return await value if inspect.isawaitable(value) else value

    def _artifact_service(self) -> Any:
        if self._services.artifacts is not None:
            return self._services.artifacts
        try:
            return OfPlugin(self.agent, self.agent.plugin("artifacts"), self._types)
        except PluginError:
            raise ValueError(
                "there is no artifact service: adk_callbacks(..., artifact_service=InMemoryArtifactService()), "
                "or Agent(plugins=['artifacts', ...])"
            ) from None


CallbackContext: TypeAlias = Context
ToolContext: TypeAlias = Context
