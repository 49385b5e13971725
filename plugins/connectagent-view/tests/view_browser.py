"""A browser for the tests of the page.

`pip install connectagent[browser]` and Debian's `chromium`, or another Chromium that `CONNECTAGENT_CHROMIUM` names.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served_page import Page

CHROMIUM = os.environ.get("CONNECTAGENT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")

# As root, and in a container, Chromium has no sandbox of its own. Debian's looks for updates whatever it is told; its
# host names lead nowhere.
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
SHOWN = "#main[aria-busy=false]"


# Where `.ci/run` puts what npm installs; another folder with `node_modules` can be named.
NODE = Path(os.environ.get("CONNECTAGENT_NODE") or Path(__file__).parents[3] / ".venv" / "node")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install connectagent[browser]")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()



def until(is_so: Callable[[], bool], most_s: float = 10.0) -> None:
    """Wait until something is so; the page's policy forbids to evaluate it there again and again."""
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end, "it does not come to be so"
        time.sleep(0.02)


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f00050001ff"
    "56c72f0d0000000049454e44ae426082"
)


class Tab:
    """A page of the browser, which must have nothing to complain about."""

    def __init__(self, browser: Any, **given: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **given})
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> Any:
        self.page.goto(address)
        self.page.wait_for_selector(SHOWN)
        return self.page

    def rows(self) -> int:
        return len(self.page.query_selector_all("#timeline .row:not([hidden])"))


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.context.close()
    assert tab.complaints == []


@pytest.fixture
def served(folder: Path) -> Iterator[Page]:
    with Page() as page:
        yield page


# The texts whose contrast with what is behind them is under 4.5, as WCAG 2.2 has it for AA (1.4.3).
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const numbers = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = numbers(getComputedStyle(node).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.push(`${node.className || node.tagName} ${contrast.toFixed(2)} ${node.textContent}`);
  }
  return poor;
}"""
