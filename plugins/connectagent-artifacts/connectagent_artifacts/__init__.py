"""Files that an agent makes and is given, by name and in versions: reports, pictures, uploads.

The options are on `Artifacts`. Which session a name belongs to is in that session, `state["artifacts"]`, so
that one which is resumed finds its own again; each save and deletion is an entry of the trace.
"""

from __future__ import annotations

import mimetypes
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from connectagent import ConfigError, Image, after_user_input, on_agent_ready, tool
from connectagent_artifacts.stores import (
    Artifact,
    ArtifactError,
    ArtifactNotFound,
    ArtifactStore,
    FileStore,
    InMemoryStore,
    Scope,
)

if TYPE_CHECKING:
    from connectagent import Agent

__all__ = [
    "Artifact",
    "ArtifactError",
    "ArtifactNotFound",
    "ArtifactStore",
    "Artifacts",
    "FileStore",
    "InMemoryStore",
    "Scope",
    "artifacts_of",
]

USER = "user:"  # names with this prefix outlive the session
_SHOWN = 20_000  # characters of a text that the model is shown at once
_LISTED = 200  # names that the model is shown
_LARGEST_IMAGE = 5_000_000  # bytes; more is refused by Anthropic
_LONGEST_NAME = 1_000  # characters
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MIME_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;[ -~]*)?", re.ASCII)


@dataclass(eq=False)
class Artifacts:
    """The plugin: `Agent(plugins=["artifacts"])`, or `Agent(plugins=[Artifacts(tools=False)])`.

    Args:
        store: where artifacts are kept; None for files in `.co/artifacts`.
        user: whose they are; names that begin with `user:` are shared by this user's sessions.
        tools: whether the model gets `save_artifact`, `load_artifact` and `list_artifacts`.

    Raises:
        ConfigError: the user is no name.
    """

    changes = ("tools",)

    store: ArtifactStore | None = None
    user: str = "default"
    tools: bool = True
    name: ClassVar[str] = "artifacts"
    _kept: ArtifactStore = field(init=False, repr=False)
    # What was saved before an agent's first turn, when there is no session yet: its id, and entries for the trace.
    _early: WeakKeyDictionary[Agent, tuple[str, list[dict[str, Any]]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not self.user:
            raise ConfigError(f"artifacts: user is a str that is not empty, not {self.user!r}")
        if self.store is not None and not callable(getattr(self.store, "save", None)):
            raise ConfigError(f"artifacts: store is an ArtifactStore, such as FileStore('folder'), not {self.store!r}")
        self._kept = FileStore() if self.store is None else self.store
        self._early = WeakKeyDictionary()

    # -- for programs, tools and handlers --------------------------------------------------------

    def save(self, agent: Agent, name: str, data: bytes | str, mime_type: str | None = None) -> int:
        """Keep data under a name and return its version: 0, or one more than the newest.

        Args:
            agent: whose session the artifact belongs to.
            name: such as `report.pdf` or `charts/sales.png`; with `user:` before it, of all sessions of the user.
            data: the content; text is kept as UTF-8.
            mime_type: what it is; guessed from the name where it is not given.

        Raises:
            ArtifactError: the name, the data or the MIME type cannot be used, or the store cannot keep it.
        """
        bare = _checked(name)
        content = _content(name, data)
        mime_type = _checked_type(mime_type) or mimetypes.guess_type(bare, strict=False)[0]
        mime_type = mime_type or ("text/plain" if isinstance(data, str) else "application/octet-stream")
        scope = self._scope(agent, name) or Scope(self.user, self._begin(agent))
        version = self._kept.save(scope, bare, content, mime_type)
        described = {"name": name, "version": version, "bytes": len(content), "mime_type": mime_type}
        self._trace(agent, {"type": "artifact", **described})
        return version

    def load(self, agent: Agent, name: str, version: int | None = None) -> Artifact:
        """One version of an artifact, or the newest.

        Raises:
            ArtifactNotFound: there is none; the message lists what there is.
            ArtifactError: the name cannot be used, or the store cannot be read.
        """
        bare, scope = _checked(name), self._scope(agent, name)
        if version is not None and type(version) is not int:
            raise ArtifactError(f"a version is a whole number, 0 for the first, not {version!r}")
        found = self._kept.load(scope, bare, version) if scope else None
        if found is None:
            raise ArtifactNotFound(self._missing(agent, name, version))
        return Artifact(name, found.version, found.data, found.mime_type, found.timestamp)

    def list(self, agent: Agent) -> Sequence[str]:
        """The names of the session's artifacts, and of the user's, in order."""
        scope = self._scope(agent, "")
        own = self._kept.names(scope) if scope else []
        return [*sorted(own), *(USER + name for name in sorted(self._kept.names(Scope(self.user))))]

    def versions(self, agent: Agent, name: str) -> Sequence[int]:
        """The versions of an artifact in ascending order; [] if there is none."""
        bare, scope = _checked(name), self._scope(agent, name)
        return sorted(self._kept.versions(scope, bare)) if scope else []

    def delete(self, agent: Agent, name: str) -> bool:
        """Remove all versions of an artifact; whether there was one. The next version of the name is 0 again."""
        bare, scope = _checked(name), self._scope(agent, name)
        deleted = self._kept.delete(scope, bare) if scope else False
        if deleted:
            self._trace(agent, {"type": "artifact_deleted", "name": name})
        return deleted

    # -- for the model ---------------------------------------------------------------------------

    @tool
    def save_artifact(self, agent: Agent, name: str, content: str, mime_type: str | None = None) -> str:
        """Save a text as a file, as a new version if there is one of that name.

        Args:
            name: such as report.md or data/sales.csv; begin it with "user:" to keep it for later conversations.
            content: the whole text.
            mime_type: only where the name does not tell it.
        """
        version = self.save(agent, name, content, mime_type)
        return f"saved {name!r} as version {version}"

    @tool(read_only=True)
    def load_artifact(self, agent: Agent, name: str, version: int | None = None, start: int = 0) -> Any:
        """Read a saved file.

        Args:
            name: as list_artifacts gives it.
            version: an older one; without it, the newest.
            start: the first character to show, to go on in a text that is too long to be shown at once.
        """
        found = self.load(agent, name, version)
        if found.mime_type in _PICTURES and len(found.data) <= _LARGEST_IMAGE:
            return Image(found.data)
        try:
            text = found.text
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            about = f"{found.mime_type}, {len(found.data):,} bytes"
            return f"{name!r} version {found.version} cannot be shown: {about}"
        start = min(max(start, 0), len(text))
        end = min(start + _SHOWN, len(text))
        more = f"\n[characters {start} to {end} of {len(text)}; go on with start={end}]" if end < len(text) else ""
        return text[start:end] + more

    @tool(read_only=True)
    def list_artifacts(self, agent: Agent) -> Any:
        """List the saved files: name and number of the newest version."""
        names = self.list(agent)
        shown: Any = []
        for name in names[:_LISTED]:
            if versions := self.versions(agent, name):
                shown.append({"name": name, "version": versions[-1]})
        more = [f"{len(names) - _LISTED} more"] if len(names) > _LISTED else []
        return shown + more or "nothing is saved"

    # -- the plugin ------------------------------------------------------------------------------

    @on_agent_ready
    def join(self, agent: Agent) -> None:
        """Make the plugin known to `artifacts_of`, and its tools to the model."""
        _plugins[agent] = self
        if self.tools:
            agent.add_tool([self.save_artifact, self.load_artifact, self.list_artifacts])

    @after_user_input(tryfirst=True)
    def take_over(self, agent: Agent) -> None:
        """Bring into the session what was saved before there was one."""
        early = self._early.pop(agent, None)
        if early is not None and agent.current_session is not None:
            state = agent.current_session["state"].setdefault(self.name, {"session": early[0]})
            if state.get("session") == early[0]:  # not, where another session was put in meanwhile
                agent.current_session["trace"].extend(early[1])

    def _scope(self, agent: Agent, name: str) -> Scope | None:
        """Where a name belongs; None where it is one of a session that has no artifact yet."""
        if name.startswith(USER):
            return Scope(self.user)
        early = self._early.get(agent)
        session = agent.current_session
        state = session["state"] if session else {}
        own = state.get(self.name, {"session": early[0]} if early else None)
        if own is None:
            return None
        if not isinstance(own, dict) or not isinstance(own.get("session"), str) or not own["session"]:
            raise ArtifactError(f"state['artifacts'] is this plugin's: {{'session': id}}, not {own!r:.80}")
        return Scope(self.user, own["session"])

    def _begin(self, agent: Agent) -> str:
        """Give the session the id under which its artifacts are kept, and return it.

        It is made from the session's own id, so that calls and agents at work at the same time, each with a copy of
        the state, come to the same one.
        """
        name = agent.root.name[:60]
        if agent.current_session is None:
            return self._early.setdefault(agent, (f"{name}_{secrets.token_hex(6)}", []))[0]
        made = f"{name}_{agent.session['id']}"
        own: dict[str, str] = agent.current_session["state"].setdefault(self.name, {"session": made})
        return own["session"]

    def _trace(self, agent: Agent, entry: dict[str, Any]) -> None:
        """Tell the trace; whose doing it is, connectagent adds for what runs in a turn."""
        session = agent.current_session
        if session is None:
            self._begin(agent)
            self._early[agent][1].append({**entry, "timestamp": time.time()})
            return
        if pending := session.get("pending_tool"):
            entry["call_id"] = pending["id"]
        agent.trace(entry.pop("type"), **entry)

    def _missing(self, agent: Agent, name: str, version: int | None) -> str:
        if there := self.versions(agent, name):
            return f"artifact {name!r} has no version {version}; versions: {', '.join(map(str, there[-20:]))}"
        names = self.list(agent)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return f"there is no artifact {name!r}; artifacts: {', '.join(map(repr, names[:20])) or 'none'}{more}"


_plugins: WeakKeyDictionary[Agent, Artifacts] = WeakKeyDictionary()


def artifacts_of(agent: Agent) -> Artifacts:
    """The `Artifacts` that an agent has, for tools and handlers: `artifacts_of(agent).save(agent, "a.txt", "text")`.

    Raises:
        ConfigError: the agent has none.
    """
    found = _plugins.get(agent)
    if found is None:
        raise ConfigError(f"agent {agent.name!r} keeps no artifacts; make it with Agent(plugins=['artifacts'])")
    return found


# -- names and contents --------------------------------------------------------------------------


def _checked(name: Any) -> str:
    """A name without its `user:`.

    Raises:
        ArtifactError: it could be taken for a path out of a folder, or cannot be shown.
    """
    problem = None
    bare = name.removeprefix(USER) if isinstance(name, str) else ""
    if not bare.strip():
        problem = "it is empty" if isinstance(name, str) else f"it is of type {type(name).__name__}"
    elif len(bare) > _LONGEST_NAME:
        problem = f"it is longer than {_LONGEST_NAME:,} characters"
    elif re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", bare):
        problem = "it has control characters or halves of characters"
    elif "\\" in bare or re.match("/|[A-Za-z]:/", bare):
        problem = "it is a path of this machine"
    elif not {"", ".", ".."}.isdisjoint(bare.split("/")):
        problem = "it has a part that is empty, '.' or '..'"
    if problem:
        raise ArtifactError(
            f"{name!r:.100} cannot be an artifact's name: {problem}; take one such as 'report.pdf', 'charts/sales.png' "
            "or, to keep it for later sessions, 'user:profile.json'"
        )
    return bare


def _checked_type(mime_type: Any) -> str | None:
    if mime_type is None or (isinstance(mime_type, str) and _MIME_TYPE.fullmatch(mime_type)):
        return mime_type
    raise ArtifactError(f"{mime_type!r:.100} is no MIME type, such as 'text/csv' or 'image/png'")


def _content(name: str, data: Any) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise ArtifactError(f"artifact {name!r}: the text has half a character at {error.start}") from None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ArtifactError(f"artifact {name!r}: data is bytes or str, not {type(data).__name__}")
