"""The agent as others see it over A2A: its official client talks to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
pytest.importorskip("a2a", reason="a2a-sdk is not installed")
pytest.importorskip("sse_starlette", reason="sse-starlette is not installed")
import anyio  # noqa: E402
from a2a import types  # noqa: E402
from a2a.client import ClientConfig, create_client  # noqa: E402
from a2a.helpers import new_data_part, new_text_part  # noqa: E402
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, Message, Role, SendMessageRequest, TaskState  # noqa: E402
from connectagent_serve import app_of  # noqa: E402
from google.protobuf.json_format import MessageToDict  # noqa: E402

from connectagent import Agent, Pause, ToolRejected, before_each_tool, tool, xray  # noqa: E402
from connectagent.testing import ScriptedLLM, call  # noqa: E402

PAID: list[int] = []
BASE = "http://localhost:8000"


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}"


@before_each_tool
def asks() -> None:
    if not xray.approved:
        raise Pause("Is 5 fine? sk-ant-api03-abcdefghijklmnop")


def shop(*responses: Any, **options: Any) -> Agent:
    PAID.clear()
    return Agent("shop", tools=[pay], llm=ScriptedLLM(*responses), quiet=True, description="Sells.", **options)


def message(*parts: Any, context: str = "c1", task: str = "", **metadata: Any) -> SendMessageRequest:
    parts_ = [new_text_part(part) if isinstance(part, str) else new_data_part(part) for part in parts]
    made = Message(message_id="m", role=Role.ROLE_USER, parts=parts_, context_id=context, task_id=task)
    made.metadata.update(metadata)
    return SendMessageRequest(message=made)


class Other:
    """Another agent, which sends messages; `states` are those that it was told."""

    def __init__(self, client: Any) -> None:
        self.client, self.task, self.states, self.texts = client, "", list[str](), list[str]()

    async def send(self, request: SendMessageRequest) -> str:
        self.states, self.texts = [], []
        async for event in self.client.send_message(request):
            if event.HasField("task"):
                self.task = event.task.id
                self._note(event.task.status)
            elif event.HasField("status_update"):
                self._note(event.status_update.status)
            elif event.HasField("artifact_update"):
                self.texts += [part.text for part in event.artifact_update.artifact.parts]
        return self.states[-1]

    def _note(self, status: Any) -> None:
        self.states.append(TaskState.Name(status.state).removeprefix("TASK_STATE_").lower())
        for part in status.message.parts:
            self.texts.append(part.text or json.dumps(MessageToDict(part.data)))


def talk(app: Any, steps: Callable[[Other], Any], headers: dict[str, str] | None = None) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, headers=headers) as http:
            await steps(Other(await create_client(BASE, ClientConfig(httpx_client=http))))

    anyio.run(run)


def test_a_message_takes_a_turn_and_the_session_goes_on(co_dir: Path) -> None:
    async def steps(other: Other) -> None:
        assert await other.send(message("Pay 5")) == "completed", other.texts
        assert other.states[:2] == ["submitted", "working"] and other.texts[-1] == "Paid."
        assert json.loads(other.texts[0])["tool"] == "pay"
        task = await other.client.get_task(GetTaskRequest(id=other.task))
        assert [part.text for part in task.artifacts[0].parts] == ["Paid."]
        assert await other.send(message("And now?")) == "completed" and other.texts == ["Nothing."]
        assert other.task != task.id

    talk(app_of(shop(call("pay", amount=5), "Paid.", "Nothing.")), steps)
    assert PAID == [5]


def test_a_guard_acts_in_each_turn(co_dir: Path) -> None:
    @before_each_tool
    def refuse() -> None:
        raise ToolRejected("never")

    async def steps(other: Other) -> None:
        assert await other.send(message("Pay 5")) == "completed" and other.texts[-1] == "No."
        assert json.loads(other.texts[0])["status"] == "rejected"

    talk(app_of(shop(call("pay", amount=5), "No.", plugins=[refuse])), steps)
    assert PAID == []


def test_a_typed_result_is_data(co_dir: Path) -> None:
    async def steps(other: Other) -> None:
        assert await other.send(message("Which?")) == "completed", other.texts
        task = await other.client.get_task(GetTaskRequest(id=other.task))
        assert [MessageToDict(part.data) for part in task.artifacts[0].parts] == [[1, 2]]

    talk(app_of(shop('{"value": [1, 2]}', output=list[int])), steps)


def test_a_message_that_is_sent_again_with_its_number_takes_its_turn_once(co_dir: Path) -> None:
    async def steps(other: Other) -> None:
        for _ in range(2):
            assert await other.send(message("Pay 5", turn=1)) == "completed" and other.texts[-1] == "Paid."
        assert await other.send(message("Pay 6", turn=1)) == "rejected"
        assert await other.send(message("Pay 6", turn=0)) == "rejected"

    talk(app_of(shop(call("pay", amount=5), "Paid.")), steps)
    assert PAID == [5]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("decision", "paid"), [({"approve": True}, [5]), ({"reject": "too dear"}, []), ({"approve": False}, []), ("12", [])]
)
def test_what_waits_is_decided_by_the_next_message(
    decision: Any, paid: list[int], restarted: bool, co_dir: Path
) -> None:
    async def asked(other: Other) -> None:
        assert await other.send(message("Pay 5")) == "input_required", other.texts
        assert any("Is 5 fine?" in text for text in other.texts) and "abcdefghijklmnop" not in str(other.texts)
        assert "pay" in other.texts[-1]
        if not restarted:
            await decided(other)

    async def decided(other: Other) -> None:
        wrong = message({"approve": 1, "reject": "x"}, task="" if restarted else other.task)
        assert await other.send(wrong) == "input_required" and "approve, reject or answer" in other.texts[-1]
        assert await other.send(message(decision, task="" if restarted else other.task)) == "completed"
        assert other.texts[-1] == "Done."

    talk(app_of(shop(call("pay", amount=5), "Done.", plugins=[asks])), asked)
    if restarted:
        talk(app_of(shop("Done.", plugins=[asks])), decided)
    assert paid == PAID


def test_a_task_is_cancelled_and_its_turn_goes_on_with_the_next_message(co_dir: Path) -> None:
    begun: list[bool] = []

    async def look() -> str:
        """Look for a long time, the first time."""
        begun.append(True)
        await anyio.sleep(60 if len(begun) == 1 else 0)
        return "seen"

    async def steps(other: Other) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(other.send, message("Look"))
            while not begun:
                await anyio.sleep(0.01)
            (task,) = (await other.client.list_tasks(ListTasksRequest())).tasks
            task = await other.client.cancel_task(CancelTaskRequest(id=task.id))
            assert TaskState.Name(task.status.state) == "TASK_STATE_CANCELED"
        assert await other.send(message("Look")) == "completed", other.texts
        assert other.texts[-1] == "Done."

    tools = [tool(idempotent=True)(look)]
    talk(app_of(Agent("shop", tools=tools, llm=ScriptedLLM(call("look"), "Done."), quiet=True)), steps)
    assert len(begun) == 2


def test_images_and_objects_are_given_to_the_model(co_dir: Path) -> None:
    seen = ScriptedLLM("Nice.", "Fine.")

    async def steps(other: Other) -> None:
        request = message("Look", {"size": 3})
        request.message.parts.append(types.Part(raw=b"\x89PNG", media_type="image/png"))
        assert await other.send(request) == "completed"
        assert await other.send(message({"size": 4}, context="c2")) == "completed"  # no text, and it does
        request = message(context="c3")
        request.message.parts.append(types.Part(url="ftp://here/a.png", media_type="image/png"))
        assert await other.send(request) == "rejected" and "data: or https: URL" in other.texts[-1]

    talk(app_of(Agent("shop", llm=seen, quiet=True)), steps)
    first, second = [one.messages[-1]["content"] for one in seen.requests]
    assert [one.get("text") for one in first] == ["Look", '{"size": 3.0}', None]
    assert first[2]["image_url"] == {"url": "data:image/png;base64,iVBORw=="} and second == '{"size": 4.0}'


def test_a_number_of_a_turn_that_is_none_is_named(co_dir: Path) -> None:
    async def steps(other: Other) -> None:
        for wrong in ("x", True, 1.5, 0):
            assert await other.send(message("Hi", turn=wrong)) == "rejected"
            assert "turn is an integer of at least 1" in other.texts[-1]

    talk(app_of(shop("Hello.")), steps)


def test_an_error_fails_the_task_without_its_secrets(co_dir: Path) -> None:
    async def steps(other: Other) -> None:
        assert await other.send(message("Go")) == "failed"
        assert "RuntimeError: sk" not in other.texts[-1] and "RuntimeError" in other.texts[-1]
        assert await other.send(message("Go", context="../up")) == "rejected"

    talk(app_of(shop(RuntimeError("sk-ant-api03-abcdefghijklmnop"))), steps)


def test_the_card_says_what_others_need_and_keeps_the_instructions(co_dir: Path) -> None:
    agent = Agent("shop", llm=ScriptedLLM(), system_prompt="Never say this.", description="Sells.", quiet=True)

    async def ask() -> tuple[Any, Any, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app_of(agent, "secret")), base_url=BASE) as http:
            card = await http.get("/.well-known/agent-card.json")
            closed = await http.post("/a2a", json={})
            big = await http.post("/a2a", content=b"[" * 11_000_000, headers={
                "Authorization": "Bearer secret", "Content-Type": "application/json"})  # fmt: skip
            return card, closed.status_code, big.status_code

    card, closed, big = anyio.run(ask)
    assert (closed, big) == (401, 413)
    told = card.json()
    assert (told["name"], told["description"]) == ("shop", "Sells.") and "Never say" not in card.text
    assert told["supportedInterfaces"][0]["url"] == f"{BASE}/a2a" and "bearer" in told["securitySchemes"]


def test_with_a_token_others_are_let_in(co_dir: Path) -> None:
    async def steps(other: Other) -> None:
        assert await other.send(message("Hi")) == "completed"

    talk(app_of(shop("Hello."), "secret"), steps, {"Authorization": "Bearer secret"})
