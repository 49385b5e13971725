"""Take the pictures of docs/images/ anew: `python docs/screenshots.py`, from a clone.

It needs playwright and a Chromium: `pip install -e '.[browser]'`, and Debian's `chromium` or the one that
`CONNECTAGENT_CHROMIUM` names. The record is made by scripted models, so that the pictures show the same each time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from connectagent_view.server import Server
from playwright.sync_api import sync_playwright

from connectagent import (
    Agent,
    LLMResponse,
    ProviderError,
    Retry,
    TokenUsage,
    ToolCall,
    ToolRejected,
    after_each_tool,
    after_tools,
    before_each_tool,
    on_error,
)
from connectagent.testing import ScriptedLLM, call

IMAGES = Path(__file__).parent / "images"
SHOWN = "#main[aria-busy=false]"


# -- a session: an agent inside another one, a retry, a failing tool, changes by plugins, cost ------------------------


class Slow(ScriptedLLM):
    """A scripted model that takes its time, so that the timeline has something to show."""

    def complete(self, *given, **more):  # type: ignore[no-untyped-def]
        time.sleep(0.12)
        return super().complete(*given, **more)


def asks(*calls: ToolCall, tokens: int = 1_800) -> LLMResponse:
    return LLMResponse(None, list(calls), TokenUsage(tokens, 90, cost=tokens * 3e-6 + 90 * 15e-6))


def says(text: str, tokens: int = 2_600) -> LLMResponse:
    return LLMResponse(text, None, TokenUsage(tokens, 140, cost=tokens * 3e-6 + 140 * 15e-6))


def find_order(customer: str) -> str:
    """Find the last order of a customer."""
    time.sleep(0.05)
    return f"order 4711 of {customer}: a kettle, 39 USD, delivered on Monday, card 4929 1234 5678 9012"


def refund(order: int, amount: int) -> str:
    """Pay money back."""
    time.sleep(0.03)
    return f"refunded {amount} USD for order {order}"


def read_policy(topic: str) -> str:
    """Read the shop's policy."""
    time.sleep(0.08)
    if topic == "refunds":
        raise TimeoutError("the policy server does not answer")
    return "Kettles can be returned within 30 days."


@on_error
def patient(error: Exception, tool_call: ToolCall | None, attempt: int) -> Retry | None:
    return Retry(after_s=0.1) if isinstance(error, ProviderError) and attempt < 3 else None


@after_each_tool
def hide_cards(result: str) -> str | None:
    return result.replace("4929 1234 5678 9012", "[card]") if "4929" in str(result) else None


@before_each_tool
def small_refunds(tool_call: ToolCall) -> None:
    if tool_call.name == "refund" and tool_call.arguments["amount"] > 50:
        raise ToolRejected("More than 50 USD: ask a person first.")


@after_tools
def remind(agent: Agent) -> None:
    agent.session["messages"].append({"role": "user", "content": "Check the policy before you promise anything."})


def session() -> Path:
    """The record of one turn of a shop's agent."""
    policy = Agent(
        "policy",
        tools=[read_policy],
        description="Knows the shop's policies.",
        llm=Slow(
            asks(call("read_policy", topic="refunds"), tokens=900),
            asks(call("read_policy", topic="returns"), tokens=1_000),
            says("Kettles can be returned within 30 days.", tokens=1_100),
        ),
        quiet=True,
    )
    busy = ProviderError("Overloaded. Please try again.", kind="overloaded", provider="anthropic", status=529)
    shop = Agent(
        "shop",
        tools=[find_order, refund, policy],
        system_prompt="You help the customers of a kettle shop.",
        plugins=[patient, hide_cards, small_refunds],
        on_events=[remind],
        llm=Slow(
            asks(call("find_order", customer="Ada"), call("policy", prompt="May a kettle be returned?")),
            busy,
            asks(call("refund", order=4711, amount=99), tokens=2_400),
            asks(call("refund", order=4711, amount=39), tokens=2_700),
            says("You get 39 USD back for the kettle of order 4711.", tokens=2_900),
        ),
        quiet=True,
    )
    shop.input("My kettle leaks. I am Ada and want my money back.")
    assert shop.record is not None
    return shop.record


def main() -> None:
    """Write the pictures."""
    chromium = os.environ.get("CONNECTAGENT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONNECTAGENT_DIR"] = folder
        sys.modules["__main__"].__file__ = "/home/ada/shop.py"  # the page shows it
        server = Server(session())
        threading.Thread(target=server.serve, daemon=True).start()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
            page.goto(server.url)
            page.wait_for_selector(SHOWN)
            IMAGES.mkdir(exist_ok=True)
            page.screenshot(path=IMAGES / "view.png", animations="disabled")
            browser.close()
        server.close()
    print(f"written: {IMAGES / 'view.png'}, {(IMAGES / 'view.png').stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
