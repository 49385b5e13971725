"""`adk_plugin`: a plugin of ADK's runner, an object with callbacks as methods, for an agent and all agents below it."""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from typing import TYPE_CHECKING, Any

from connectagent import (
    HandlerError,
    LLMResponse,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    around_turn,
    before_each_tool,
    before_llm,
    on_complete,
    on_error,
)
from connectagent import on_agent_closed as on_closed
from connectagent_adk.callback import PARAMETERS, PLUGIN_PARAMETERS, Callback
from connectagent_adk.contexts import Context, Event, Services, turn_of
from connectagent_adk.models import google_kinds
from connectagent_adk.plugin import AdkCallbacks
from connectagent_adk.translation import (
    Ids,
    contents_of,
    is_content,
    is_response,
    llm_response,
    messages_of,
    response_from,
    text_in,
)

if TYPE_CHECKING:
    from connectagent import Agent


def adk_plugin(
    plugin: Any,
    *,
    artifact_service: Any = None,
    shared_state: MutableMapping[str, Any] | None = None,
    user_id: str = "user",
) -> AdkPlugin:
    """Make a plugin of an ADK plugin: `Agent(..., plugins=[adk_plugin(LoggingPlugin())])`.

    Args:
        plugin: an object with methods of `BasePlugin`, ADK's or that of this package.
        artifact_service: as in `adk_callbacks`.
        shared_state: as in `adk_callbacks`.
        user_id: as in `adk_callbacks`.

    Raises:
        HandlerError: it is no such object, or has none of the methods.
    """
    methods = {slot: method for slot in PLUGIN_PARAMETERS if (method := _own(plugin, slot)) is not None}
    if isinstance(plugin, type) or not methods:
        raise HandlerError(
            f"{plugin!r:.100} is no plugin of ADK's; give an object with methods {', '.join(PLUGIN_PARAMETERS)}"
        )
    return AdkPlugin(plugin, methods, Services(artifact_service, shared_state, user_id))


def _own(plugin: Any, slot: str) -> Any:
    """A plugin's own method of a slot; None where `BasePlugin` has it."""
    method = getattr(plugin, slot, None)
    inherited = getattr(method, "__qualname__", "").startswith("BasePlugin.")
    return None if inherited or not callable(method) else method


class AdkPlugin(AdkCallbacks):
    """The plugin that `adk_plugin` makes. It acts in the agents below too, and before the callbacks of any agent.

    Args:
        plugin: ADK's plugin.
        methods: its methods.
        services: where artifacts and shared state are kept.
    """

    inherited = True

    def __init__(self, plugin: Any, methods: dict[str, Any], services: Services) -> None:
        self.name = str(getattr(plugin, "name", "") or type(plugin).__name__)
        made = {slot: Callback(slot, method, of_plugin=True) for slot, method in methods.items()}
        if any(one.__module__.startswith("google.adk.") for one in type(plugin).__mro__):
            for callback in made.values():
                callback.kinds = google_kinds()
        for slot, marker in _MARKERS.items():  # before those of agents, as in ADK
            if slot in made:
                self._add(slot, marker, getattr(self, f"_{slot}")(made[slot]), made[slot])
        super().__init__({slot: [made[slot]] for slot in PARAMETERS if slot in made}, services)
        if "on_event_callback" in made:
            callback = made["on_event_callback"]
            self._add("on_event_of_tools", after_tools, self._tool_events(callback), callback)

    def _add(self, name: str, marker: Any, handler: Callable[..., Any], *callbacks: Callback) -> None:
        """Mark a handler so that it runs before the callbacks of agents, wherever the plugin is listed."""
        first = marker(tryfirst=True) if marker in _FIRST else marker
        super()._add(name, first, handler, *callbacks)

    # -- one method for each slot that only plugins have: its handler ------------------------------

    def _on_user_message_callback(self, callback: Callback) -> Callable[..., None]:
        def handler(agent: Agent) -> None:
            if agent.root is not agent:
                return
            messages: Any = agent.session["messages"]
            content = contents_of(messages[-1:], callback.kinds.types)[0][0]
            value = self._call(agent, callback, user_message=content)
            if value and not is_content(value):
                raise callback.refuse(value, "Content")
            if value:
                messages[-1]["content"] = messages_of(value, Ids())[-1]["content"]

        return handler

    def _before_run_callback(self, callback: Callback) -> Callable[..., str | None]:
        def handler(agent: Agent) -> str | None:
            value = self._call(agent, callback) if agent.root is agent else None
            if value and not is_content(value):
                raise callback.refuse(value, "Content")
            return text_in(value) if value else None

        return handler

    def _after_run_callback(self, callback: Callback) -> Callable[..., Generator[None, str, None]]:
        def handler(agent: Agent) -> Generator[None, str, None]:
            yield
            if agent.root is agent:
                self._call(agent, callback)

        return handler

    def _on_agent_error_callback(self, callback: Callback) -> Callable[..., Generator[None, str, None]]:
        def handler(agent: Agent) -> Generator[None, str, None]:
            try:
                yield
            except Exception as error:
                if "invocation_context" not in callback.names or agent.root is agent:
                    self._call(agent, callback, error=error)
                raise

        return handler

    _on_run_error_callback = _on_agent_error_callback

    def _on_event_callback(self, callback: Callback) -> Callable[..., LLMResponse | None]:
        def handler(agent: Agent, response: LLMResponse) -> LLMResponse | None:
            content = llm_response(response, callback.kinds).content
            _, value = self._event(agent, callback, content)
            if value is not None and not is_response(value):
                raise callback.refuse(value, "Event")
            return response_from(value, response, callback.kinds.types) if value is not None else None

        return handler

    def _tool_events(self, callback: Callback) -> Callable[..., None]:
        def handler(agent: Agent, entries: list[dict[str, Any]]) -> None:
            messages: Any = agent.session["messages"]
            for content, stands in contents_of(messages[-len(entries) - 1 :], callback.kinds.types):
                if stands[0]["role"] != "tool":
                    continue
                event, value = self._event(agent, callback, content)
                if value is not None and value is not event:
                    raise callback.refuse(value, "an event in place of a model's answer, not of tools' results")

        return handler

    def _event(self, agent: Agent, callback: Callback, content: Any) -> tuple[Any, Any]:
        """The event for a content, and what the plugin makes of it."""
        turn = turn_of(agent, self._services)
        branch = Context(agent, turn, callback.kinds.types, self._services).branch
        made = callback.kinds.event or Event
        event = made(author=agent.name, content=content, invocation_id=turn.invocation_id, branch=branch)
        return event, self._call(agent, callback, event=event)

    def _close(self, callback: Callback) -> Callable[..., None]:
        def handler(agent: Agent) -> None:
            if agent.root is agent:
                callback()

        return handler


_MARKERS: dict[str, Any] = {
    "on_user_message_callback": after_user_input,
    "before_run_callback": after_user_input,
    "after_run_callback": around_turn,
    "on_run_error_callback": around_turn,
    "on_agent_error_callback": around_turn,
    "on_event_callback": after_llm(trylast=True),
    "close": on_closed,
}
# The hooks at which agents have callbacks too.
_FIRST = (
    after_user_input,
    before_llm,
    after_llm,
    on_error,
    before_each_tool,
    after_each_tool,
    on_complete,
    around_turn,
)
