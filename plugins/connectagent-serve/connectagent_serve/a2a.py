"""A2A: a context is a session, and a task is one of its turns. It needs `connectagent-serve[a2a]`."""

from __future__ import annotations

import json
from typing import Any

from a2a.helpers import (  # type: ignore[import-not-found, misc, unused-ignore]
    get_data_parts,
    get_text_parts,
    new_data_part,
    new_task_from_user_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext  # type: ignore[import-not-found, misc, unused-ignore]
from a2a.server.events import EventQueue  # type: ignore[import-not-found, misc, unused-ignore]
from a2a.server.request_handlers import DefaultRequestHandler  # type: ignore[import-not-found, misc, unused-ignore]
from a2a.server.routes import create_jsonrpc_routes  # type: ignore[import-not-found, misc, unused-ignore]
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater  # type: ignore[import-not-found, misc, unused-ignore]
from a2a.types import (  # type: ignore[import-not-found, misc, unused-ignore]
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
    TaskState,
)
from anyio import to_thread

from connectagent import Paused
from connectagent_serve.decisions import decision_of
from connectagent_serve.outcomes import FAULTS
from connectagent_serve.prompts import prompt_of_a2a
from connectagent_serve.refusals import Refused, refusal_of
from connectagent_serve.sessions import Sessions
from connectagent_serve.told import told


def card_of(agent: Any, address: str, protected: bool) -> Any:
    """What an agent says of itself to others; its instructions and tools stay its own.

    Args:
        agent: the agent.
        address: the URL at which it takes messages.
        protected: whether clients need a bearer token.
    """
    said = told(agent.description or f"The agent {agent.name}.")
    card = AgentCard(
        name=agent.name,
        description=said,
        version="1",
        supported_interfaces=[AgentInterface(url=address, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[AgentSkill(id=agent.name, name=agent.name, description=said, tags=["agent"])],
    )
    if protected:
        bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))
        card.security_schemes["bearer"].CopyFrom(bearer)
        card.security_requirements.append(SecurityRequirement(schemes={"bearer": StringList()}))
    return card


def endpoint_of(sessions: Sessions, protected: bool) -> Any:
    """The function that answers the requests of A2A's JSON-RPC; `protected` as in `card_of`."""
    card = card_of(sessions.agent, "/a2a", protected)
    handler = DefaultRequestHandler(agent_executor=Turns(sessions), task_store=InMemoryTaskStore(), agent_card=card)
    return create_jsonrpc_routes(handler, "/a2a")[0].endpoint


class Turns(AgentExecutor):  # type: ignore[import-not-found, misc, unused-ignore]
    """Takes a turn for each task. Where the session waits, the message decides, whichever task it is for."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Take a turn, or go on with the one that waits."""
        message: Any = context.message
        updates = TaskUpdater(event_queue, str(context.task_id), str(context.context_id))
        if context.current_task is None:
            task = new_task_from_user_message(message)
            task.id, task.context_id = updates.task_id, updates.context_id
            await event_queue.enqueue_event(task)
        await updates.start_work()
        state, parts = await self._outcome(message, updates)
        await updates.update_status(state, updates.new_agent_message(parts) if parts else None)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Say that a turn has been cancelled; `execute` was, and the record tells it."""
        await TaskUpdater(event_queue, str(context.task_id), str(context.context_id)).cancel()

    async def _outcome(self, message: Any, updates: TaskUpdater) -> tuple[Any, list[Any]]:
        """What a task has come to, and what is said of it."""
        waits = False
        try:
            with self.sessions.slot(), self.sessions.open(updates.context_id) as session:
                waits = await to_thread.run_sync(lambda: session.begun and session.sums()[0] == "paused")
                end = await _take(session, message, _decision(message) if waits else None, updates)
                await updates.add_artifact([_part(end["result"])], name="result")
                return _state_of(end["outcome"])
        except Paused as paused:
            waiting = [{"id": one.id, "call": one.call, "reason": one.reason} for one in paused.waiting]
            parts = [new_text_part(told(paused.reason)), new_data_part(told({"waiting": waiting}))]
            return TaskState.TASK_STATE_INPUT_REQUIRED, parts
        except Exception as error:
            refusal = refusal_of(error, updates.context_id)
        state = TaskState.TASK_STATE_FAILED
        if refusal.status_code < 500:  # nothing was begun, or decided
            state = TaskState.TASK_STATE_INPUT_REQUIRED if waits else TaskState.TASK_STATE_REJECTED
        return state, [new_text_part(refusal.detail)]


def _state_of(outcome: str) -> tuple[Any, list[Any]]:
    """The state of a task whose turn has ended, and what is said of it.

    Clients trust the answer of a completed task: https://github.com/kagent-dev/kagent/issues/2895. A rejected one is
    one that the agent "has decided to not perform", also later: https://a2a-protocol.org/latest/definitions/.
    """
    if outcome not in FAULTS:
        return TaskState.TASK_STATE_COMPLETED, []
    state = TaskState.TASK_STATE_REJECTED if outcome == "refused" else TaskState.TASK_STATE_FAILED
    return state, [new_text_part(FAULTS[outcome])]


async def _take(session: Any, message: Any, decision: dict[str, Any] | None, updates: TaskUpdater) -> dict[str, Any]:
    """Take a turn, or go on with the one that waits; each tool call is an update. Returns its result and outcome."""
    if decision is not None:
        entries = session.aresume_stream(**decision)
    else:
        entries = session.astream(_prompt(message), _number(message))
    end: dict[str, Any] = {"result": None, "outcome": "ended"}
    async with entries as given:
        async for entry in given:
            if entry["type"] == "result":
                end = entry
            elif entry["type"] == "tool_execution" and entry["status"] != "skipped":
                made = {"tool": entry["tool_name"], "status": entry["status"], "arguments": entry.get("arguments")}
                parts = [new_data_part(told(made))]
                await updates.update_status(TaskState.TASK_STATE_WORKING, updates.new_agent_message(parts))
    return end


def _part(result: Any) -> Any:
    shown = told(result)
    return new_text_part(shown) if isinstance(shown, str) else new_data_part(shown)


def _prompt(message: Any) -> Any:
    objects = [json.dumps(one, ensure_ascii=False) for one in get_data_parts(message.parts)]
    return prompt_of_a2a(message.parts, [text for text in get_text_parts(message.parts) if text.strip()] + objects)


def _number(message: Any) -> int | None:
    """The number of the turn, from the message's metadata: a message that is sent again takes its turn once."""
    number = dict(message.metadata).get("turn")
    if number is None:
        return None
    if type(number) is not float or not number.is_integer() or number < 1:
        raise Refused(400, "the metadata's turn is an integer of at least 1")
    return int(number)


def _decision(message: Any) -> dict[str, Any]:
    """What a message decides: an object with approve, reject or answer, and perhaps wait; or its text is the answer."""
    objects = get_data_parts(message.parts)
    if not objects:
        return {"answer": _prompt(message)}
    return decision_of(objects[0])
