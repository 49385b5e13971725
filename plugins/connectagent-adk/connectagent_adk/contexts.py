"""What a callback is given beside its request, response or tool: the context, with state, actions and artifacts."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

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
class EventActions:
    """What a callback asks for beside its value.

    Args:
        skip_summarization: of a tool's callback: the turn ends with the tool's result, after its round.
        escalate: the turn ends; of a tool's callback, after its round and with the tool's result.
        state_delta: changes of the state; what is put in here is written to it.
        artifact_delta: the artifacts that the callback saved, with their versions.
        transfer_to_agent: of a tool's callback: the agent that answers from now on, after the round.
    """

    skip_summarization: bool | None = None
    escalate: bool | None = None
    state_delta: dict[str, Any] = field(default_factory=dict)
    artifact_delta: dict[str, int] = field(default_factory=dict)
    transfer_to_agent: str | None = None


@dataclass
class Event:
    """One message of the conversation, and whose it is: `user` or the agent's name."""

    author: str
    content: Any


@dataclass
class Session:
    """The session as ADK has it.

    Args:
        id: stays the same as long as the program keeps the session.
        app_name: the agent's name.
        user_id: always `user`.
        state: `agent.current_session["state"]`.
        messages: `agent.current_session["messages"]`.
        types: the module of `Content` and `Part`.
    """

    id: str
    app_name: str
    user_id: str
    state: dict[str, Any]
    messages: list[Any] = field(repr=False)
    types: Any = field(repr=False)

    @property
    def events(self) -> list[Event]:
        """The conversation; system messages are left out."""
        said = [message for message in self.messages if message["role"] not in ("system", "developer")]
        pairs = contents_of(said, self.types)
        return [Event("user" if stands[0]["role"] == "user" else self.app_name, item) for item, stands in pairs]


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
        self.request: Any = None  # the last one, for on_model_error_callback
        self.decided: set[Any] = set()  # where a callback of a list has given its value
        self.endings: dict[int, str] = {}  # callbacks that end the turn after the round, with the call's id
        self.ended: Any = None  # the agent's `ended`, where it was a callback's action


class Context:
    """What ADK calls `CallbackContext` and `ToolContext`.

    Args:
        agent: the agent.
        turn: what is kept for its turn.
        types: the module of `Content` and `Part`.
        artifact_service: where artifacts are kept, or None.
        function_call_id: the id of the tool call, in the callbacks of tools.
    """

    def __init__(
        self, agent: Agent, turn: Turn, types: Any, artifact_service: Any = None, function_call_id: str | None = None
    ) -> None:
        self._agent, self._turn, self._types, self._artifacts = agent, turn, types, artifact_service
        self.function_call_id = function_call_id
        self.actions = EventActions()
        self.state = State(turn.session["state"], self.actions.state_delta)
        self.agent_name = agent.name
        self.invocation_id = turn.invocation_id
        self.user_id = "user"

    def __getattr__(self, name: str) -> Any:
        instead = _INSTEAD.get(name)
        hint = f"ADK's {name} is not here: {instead}" if instead else f"the context has no {name!r}"
        raise AttributeError(hint)

    @property
    def session(self) -> Session:
        """The session, with its conversation as `events`."""
        held = self._turn.session
        return Session(
            self._turn.session_id, self.agent_name, self.user_id, held["state"], held["messages"], self._types
        )

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
        return await self._artifact("load_artifact", filename=filename, version=version)

    async def list_artifacts(self) -> list[str]:
        """The names of the artifacts.

        Raises:
            ValueError: there is no artifact service.
        """
        return list(await self._artifact("list_artifact_keys"))

    async def _artifact(self, method: str, **given: Any) -> Any:
        if self._artifacts is None:
            raise ValueError(
                "there is no artifact service: adk_callbacks(..., artifact_service=InMemoryArtifactService())"
            )
        whose = {"app_name": self.agent_name, "user_id": self.user_id, "session_id": self._turn.session_id}
        value = getattr(self._artifacts, method)(**whose, **given)
        return await value if inspect.isawaitable(value) else value


CallbackContext: TypeAlias = Context
ToolContext: TypeAlias = Context


class InMemoryArtifactService:
    """Artifacts in memory, with the interface of ADK's artifact services."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], dict[str, list[Any]]] = {}

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: Any,
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Keep a version, and return its number."""
        versions = self._files(app_name, user_id, session_id, filename).setdefault(filename, [])
        versions.append(artifact)
        return len(versions) - 1

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> Any:
        """A version, the last if none is named; None if there is none."""
        versions = self._files(app_name, user_id, session_id, filename).get(filename, [])
        index = len(versions) - 1 if version is None else version
        return versions[index] if 0 <= index < len(versions) else None

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """The names of a session's artifacts and of the user's."""
        own = self._files(app_name, user_id, session_id, "")
        return sorted({*own, *self._files(app_name, user_id, None, "user:")})

    def _files(self, app: str, user: str, session: str | None, filename: str) -> dict[str, list[Any]]:
        """The versions by name; those that begin with `user:` are the same in all sessions."""
        whose = "" if filename.startswith("user:") else session or ""
        return self._kept.setdefault((app, user, whose), {})
