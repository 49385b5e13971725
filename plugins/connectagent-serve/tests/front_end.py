"""A front end of AG-UI as its clients are: it keeps the messages that events make, and sends all of them each time."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from ag_ui.core import Event, RunAgentInput
from connectagent_serve import app_of
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(Event)
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
SHOW = {"name": "show", "description": "Show a place on the map.", "parameters": PLACE}


@contextmanager
def serving(agent: Any, **options: Any) -> Iterator[str]:
    """An agent that is served at a port of this machine, in a thread; its address."""
    server = uvicorn.Server(uvicorn.Config(app_of(agent, **options), port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class FrontEnd:
    """One thread of a front end.

    Args:
        base: the server's address.
        tools: those that it carries out.
    """

    def __init__(self, base: str, *tools: dict[str, Any], thread: str = "t1") -> None:
        self.base, self.tools, self.thread = base, list(tools), thread
        self.messages: list[dict[str, Any]] = []
        self.state: Any = {}
        self.body: dict[str, Any] = {}  # of the last run

    def says(self, text: str) -> list[dict[str, Any]]:
        """Send what the user says; the events."""
        self.messages.append({"id": uuid.uuid4().hex, "role": "user", "content": text})
        return self.run()

    def run(self, **more: Any) -> list[dict[str, Any]]:
        """Send a run with all messages; its events, each checked, which make further messages."""
        self.body = {
            "threadId": self.thread, "runId": uuid.uuid4().hex, "messages": self.messages, "tools": self.tools,
            "context": [], "state": self.state, "forwardedProps": {}, **more,
        }  # fmt: skip
        RunAgentInput.model_validate(self.body)
        found = self.sent(self.body)
        for event in found:
            self._apply(event)
        return found

    def sent(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a run, which make no messages."""
        reply = httpx.post(f"{self.base}/agui", content=json.dumps(body), headers=JSON, timeout=60)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line]
        for event in found:
            EVENT.validate_python(event)
        assert found[0]["type"] == "RUN_STARTED" and found[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
        return found

    def refused(self, **more: Any) -> str:
        """Why a run is refused."""
        body = {"threadId": self.thread, "runId": "r", "messages": self.messages, "tools": self.tools, **more}
        reply = httpx.post(f"{self.base}/agui", content=json.dumps(body), headers=JSON)
        assert reply.status_code == 400, reply.text
        message: str = reply.json()["error"]["message"]
        return message

    @property
    def open(self) -> list[dict[str, Any]]:
        """The calls without a result."""
        done = {one["toolCallId"] for one in self.messages if one["role"] == "tool"}
        calls = [call for one in self.messages for call in one.get("toolCalls") or ()]
        return [call for call in calls if call["id"] not in done]

    def carry_out(self, work: Callable[..., str] = lambda place: f"shown {place}", **more: Any) -> None:
        """Carry out all open calls: their results stand right behind them, as clients put them."""
        for call in self.open:
            result = work(**json.loads(call["function"]["arguments"]))
            self.bring(call["id"], result, **more)

    def bring(self, id: str, content: Any, **more: Any) -> None:
        """Put a result behind its call."""
        at = next(
            at for at, one in enumerate(self.messages) if id in [call["id"] for call in one.get("toolCalls") or ()]
        )
        message = {"id": uuid.uuid4().hex, "role": "tool", "toolCallId": id, "content": content, **more}
        self.messages.insert(at + 1, message)

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "TOOL_CALL_START":
                call = {"id": event["toolCallId"], "type": "function"}
                call["function"] = {"name": event["toolCallName"], "arguments": ""}
                self.messages.append({"id": event["toolCallId"], "role": "assistant", "toolCalls": [call]})
            case "TOOL_CALL_ARGS":
                calls = [call for one in self.messages for call in one.get("toolCalls") or ()]
                call = next(one for one in reversed(calls) if one["id"] == event["toolCallId"])
                call["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                result = {"id": event["messageId"], "role": "tool", "toolCallId": event["toolCallId"]}
                self.messages.append({**result, "content": event["content"]})
            case "TEXT_MESSAGE_START":
                self.messages.append({"id": event["messageId"], "role": "assistant", "content": ""})
            case "TEXT_MESSAGE_CONTENT":
                self.messages[-1]["content"] += event["delta"]
            case "STATE_SNAPSHOT":
                self.state = event["snapshot"]
            case "STATE_DELTA":
                for one in event["delta"]:
                    key = one["path"][1:].replace("~1", "/").replace("~0", "~")
                    self.state = {name: value for name, value in self.state.items() if name != key}
                    if one["op"] == "add":
                        self.state[key] = one["value"]


JSON = {"Content-Type": "application/json"}


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """The types of events, without those that begin and end the run."""
    return [one["type"] for one in found[1:-1]]


def told(found: list[dict[str, Any]]) -> str:
    """The text of a run that ended well."""
    assert found[-1]["type"] == "RUN_FINISHED", found
    return "".join(one["delta"] for one in found if one["type"] == "TEXT_MESSAGE_CONTENT")
