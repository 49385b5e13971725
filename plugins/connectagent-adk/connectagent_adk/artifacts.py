"""Where artifacts are kept: in memory, or by the plugin connectagent-artifacts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectagent import Agent

_TEXT = "text/plain; charset=utf-8"  # of parts with text; those with bytes keep the type that they have


class OfPlugin:
    """ADK's artifact service on the plugin `artifacts` of an agent, so that its tools and programs find the same files.

    Args:
        agent: the agent.
        plugin: its `Artifacts`.
        types: the module of `Part`.
    """

    def __init__(self, agent: Agent, plugin: Any, types: Any) -> None:
        self._agent, self._plugin, self._types = agent, plugin, types

    def save_artifact(self, *, filename: str, artifact: Any, **whose: Any) -> int:
        """Keep a version, and return its number."""
        blob = getattr(artifact, "inline_data", None)
        data, mime_type = (artifact.text, _TEXT) if blob is None else (blob.data, blob.mime_type)
        return int(self._plugin.save(self._agent, filename, data, mime_type))

    def load_artifact(self, *, filename: str, version: int | None = None, **whose: Any) -> Any:
        """A version, the last if none is named.

        Raises:
            LookupError: there is none.
        """
        found = self._plugin.load(self._agent, filename, version)
        if found.mime_type == _TEXT:
            return self._types.Part(text=found.text)
        return self._types.Part.from_bytes(data=found.data, mime_type=found.mime_type)

    def list_artifact_keys(self, **whose: Any) -> list[str]:
        """The names of the session's artifacts and of the user's."""
        return list(self._plugin.list(self._agent))


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
