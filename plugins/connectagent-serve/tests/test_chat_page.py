"""The chat page in a browser, on a desk and on a phone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install connectagent[browser]")
from test_serve import free_port, served  # noqa: E402

CHROMIUM = os.environ.get("CONNECTAGENT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")
# As root, and in a container, Chromium has no sandbox of its own; its host names lead nowhere.
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
AGENT = """
import os
from connectagent import Agent, LLMResponse, Pause, ToolCall, before_each_tool

def pay(amount: int) -> str:
    "Pay."
    open("paid", "a").write(f"{amount} ")
    return "paid"

@before_each_tool
def ask():
    raise Pause("a payment")

class Model:
    model = "m"
    def complete(self, messages, tools=None):
        said = messages[-1]["content"]
        if said == "fail":
            raise RuntimeError("down")
        if said.startswith("pay"):
            return LLMResponse(None, [ToolCall(f"c{n}", "pay", {"amount": int(n)}) for n in said.split()[1:]])
        return LLMResponse("It says " + said)

agent = Agent("shop", tools=[pay], llm=Model(), plugins=[ask], parallel_tools=2, quiet=True)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Chat:
    def __init__(self, page: Any) -> None:
        self.page, self.problems = page, list[str]()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.set_default_timeout(15_000)

    def say(self, text: str) -> None:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        self.seen(f"p.user >> text={text}")

    def seen(self, what: str) -> None:
        self.page.locator(what).last.wait_for()


@pytest.mark.parametrize("width", [360, 1200])
def test_a_chat_with_waits_errors_and_a_page_that_is_loaded_again(width: int, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT, "utf-8")
    process, page = served(tmp_path, port := free_port()), browser.new_page(viewport={"width": width, "height": 700})
    try:
        chat = Chat(page)
        page.goto(f"http://127.0.0.1:{port}/")
        chat.say("Hello <b>there</b>")
        chat.seen("p.agent >> text=It says Hello <b>there</b>")
        chat.say("x" * 300)
        chat.seen("p.agent >> text=It says xxx")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        chat.say("fail")
        chat.seen("p.error >> text=down")
        chat.say("pay 5 6")
        chat.seen('p.wait >> text=pay {"amount":6}')
        page.reload()
        chat.seen("p.note >> text=3 turns")
        assert page.locator("p.wait").count() == 2
        page.click("p.wait >> nth=0 >> text=Approve")
        page.locator("p.wait").nth(1).wait_for(state="detached")
        assert page.locator("p.wait").count() == 1
        page.click("p.wait >> text=Reject")
        chat.seen("p.agent >> text=It says rejected: a person refused")
        assert page.locator("p.wait").count() == 0 and (tmp_path / "paid").read_text() == "5 "
        process.kill()
        process.wait()
        chat.say("Are you there?")
        chat.seen("p.error >> text=does not answer")
        assert page.input_value("#prompt") == "Are you there?" and chat.problems == []
    finally:
        page.close()
        process.kill()
        process.wait()


def test_a_token_is_asked_for(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT, "utf-8")
    before, port = "import os; os.environ['KEY'] = 'hidden'", free_port()
    process = served(tmp_path, port, before, more=["--token-env", "KEY"])
    page = browser.new_page()
    try:
        chat = Chat(page)
        page.goto(f"http://127.0.0.1:{port}/")
        chat.say("Hello")
        chat.seen("p.error >> text=bearer token")
        assert page.input_value("#prompt") == "Hello"
        page.fill("#token", "hidden")
        page.press("#token", "Enter")
        page.press("#prompt", "Enter")
        chat.seen("p.agent >> text=It says Hello")
    finally:
        page.close()
        process.kill()
        process.wait()
