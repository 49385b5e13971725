"""What the page tells of a session with inner agents, failed attempts, edits, a pause and a crash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import view_agents
import view_browser
from served_page import PYTHONPATH, Page
from view_agents import HOSTILE, big, busy, company, failing, killed
from view_browser import NEEDS_CHROMIUM, NODE, PNG, SHOWN, Tab, until

from connectagent import Agent, LLMRequest, before_llm
from connectagent.agents.decisions import waiting_in
from connectagent.records.findings import keep_finding
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM

browser, served, tab = view_browser.browser, view_browser.served, view_browser.tab
pytestmark = NEEDS_CHROMIUM
SCREENS = os.environ.get("CONNECTAGENT_SCREENS")  # a folder for pictures of every state, to look at


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


# -- the five questions, in two clicks each ------------------------------------------------------


def test_what_failed_and_why_is_told_without_a_click_and_shown_with_one(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    assert "ValueError: nothing is there" in page.inner_text("#problems")
    assert "connection reset" not in page.inner_text("#problems")  # another attempt succeeded
    page.click("#problem-list a:has-text('nothing is there')")
    page.wait_for_selector(".row[open] .field:has-text('nothing is there')")
    assert page.inner_text(".row[open] .field:has(h4:text-is('arguments'))").count("bad") == 1


def test_where_the_time_went_is_told_without_a_click(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    lanes = page.eval_on_selector_all(".lane-name", "all => all.map(one => one.innerText)")
    assert {"model", "tools", "waiting", "finder", "checker", "shorten", "date"} <= set(lanes)
    waited = page.get_attribute("svg .wait >> nth=0", "class")
    assert waited == "wait bad0"
    assert page.eval_on_selector("svg .wait title", "one => one.textContent").startswith("wait before attempt 2, ")


def test_what_it_cost_is_told_without_a_click_by_agent(tab: Tab, served: Page) -> None:
    agent = company()
    page = tab.open(served.server.url)
    rows = page.eval_on_selector_all(
        "#agents tbody tr", "all => all.map(row => [...row.children].map(cell => cell.innerText.trim()))"
    )
    assert [row[0] for row in rows] == ["editor", "finder", "checker"]
    assert [row[3] for row in rows[1:]] == ["275", "55"]
    assert rows[0][2] == page.inner_text("#sums dd >> nth=1") and rows[0][5] == page.inner_text("#sums dd >> nth=5")
    assert rows[0][4] == "$0.0610 + ?"  # a model call of no known price
    assert page.inner_text("#sums dd >> nth=3") == rows[0][3]
    assert agent.record is not None


def test_what_a_plugin_changed_is_told_word_by_word_with_one_click(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    page.click(".lane button:text-is('date')")
    page.wait_for_selector("#changes .change:not([hidden])")
    shown = page.query_selector_all("#changes .change:not([hidden])")
    assert len(shown) == 1
    assert shown[0].query_selector("del").inner_text() == "some day"
    assert shown[0].query_selector("ins").inner_text() == "Tuesday"
    link = shown[0].query_selector("a.where")
    assert link.get_attribute("href").startswith("vscode://file/") and "view_agents.py:" in link.inner_text()
    page.click("#changes button:has-text('All plugins')")
    assert len(page.query_selector_all("#changes .change:not([hidden])")) > 2


def test_what_was_sent_in_a_call_is_told_with_one_click(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    page.click("#timeline .turn:first-of-type > .rows > .row.model > summary >> nth=2")
    page.wait_for_selector(".row[open] .request .sent")
    told = page.inner_text(".row[open] .request")
    assert "4 messages, 2 new or changed" in told and "2 messages as in the call before" in told
    states = page.eval_on_selector_all(".request .sent", "all => all.map(one => one.className)")
    assert states == ["sent new", "sent new"]
    assert "3 tools: search, pay, finder" in told
    page.click(".request button:has-text('Show all messages')")
    page.wait_for_selector(".request .sent.same")
    assert "It is Tuesday. Be brief." in page.inner_text(".request .sent >> nth=0")
    page.click(".request summary:text-is('Raw JSON')")
    page.wait_for_selector(".request .raw .json")
    assert page.inner_text(".request .raw .json").startswith("{3}")


# -- agents, attempts, turns ---------------------------------------------------------------------


def test_an_inner_agents_rows_stand_below_its_own_one_row_for_each_attempt(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    tree = page.eval_on_selector_all(
        "#timeline .turn:first-of-type .row:not([hidden])",
        """all => all.map(row => {
            let depth = 0;
            for (let node = row; node; node = node.parentElement) depth += node.classList.contains("inside");
            return `${depth} ${row.querySelector(".kind").innerText} ${row.querySelector(".name").innerText}`;
        })""",
    )
    assert tree[:16] == [
        "0 hook date",
        "0 model scripted",
        "0 model scripted",
        "0 tool finder",
        "0 agent finder",
        "1 input input",
        "1 model scripted",
        "1 tool checker",
        "1 agent checker",
        "2 input input",
        "2 model scripted",
        "2 tool search",
        "2 model scripted",
        "1 model scripted",
        "0 model scripted",
        "0 tool search",
    ]
    badges = page.eval_on_selector_all(".badge", "all => all.map(one => one.innerText)")
    assert {"tried again", "attempt 2", "cached 80%"} <= set(badges)
    page.click("#agents a:text-is('checker')")
    page.wait_for_selector(".row.agent[open] .name:text-is('checker')")


def test_the_conversation_of_an_inner_agent_is_shown(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    page.keyboard.press("c")
    page.click("#conversation .plugins button:text-is('checker')")
    until(lambda: len(page.query_selector_all("#conversation .message")) == 5)
    assert page.query_selector("#conversation .message:has-text('You check.')")


def test_a_turn_that_was_resumed_is_shown_item_by_item_with_the_wait_for_a_person(tab: Tab, served: Page) -> None:
    agent = company()
    assert agent.record is not None
    time.sleep(0.3)
    agent.llm.responses.append("Paid.")  # type: ignore[attr-defined]
    agent.resume(agent.record, approve=True)
    page = tab.open(served.server.url)
    titles = page.eval_on_selector_all(".turn h3 .number", "all => all.map(one => one.innerText)")
    assert titles == ["Turn 1", "Turn 2", "Turn 2, resumed"]
    waited = page.eval_on_selector_all("svg .wait title", "all => all.map(one => one.textContent)")
    (told,) = [title for title in waited if title.startswith("waited for a person, ")]
    assert re.fullmatch(r"waited for a person, ([3-9]\d\dms|\d+\.\ds)", told)
    assert page.inner_text("#answer").endswith("Paid.") and page.inner_text("#status") == "answered"


# -- the answer ----------------------------------------------------------------------------------


def test_the_answer_is_markdown_and_obeys_nothing(tab: Tab, served: Page) -> None:
    from view_agents import REPORT

    Agent("teller", llm=ScriptedLLM(REPORT), quiet=True).input("Tell me")
    page = tab.open(served.server.url)
    page.wait_for_selector("#answer .markdown [role=heading]:has-text('Report')")
    assert page.inner_text("#answer table td >> nth=0") == "sdk"
    assert page.inner_text("#answer strong") == "three" and page.inner_text("#answer :not(pre) > code") == "ask"
    assert page.eval_on_selector_all("#answer a", "all => all.map(one => one.getAttribute('href'))") == [
        "https://example.org/x"
    ]
    told = page.inner_text("#answer")
    assert "</script><script>window.pwned=1</script><img" in told and "\\u202e" in told
    page.wait_for_timeout(100)
    assert page.evaluate("window.pwned") is None
    assert page.query_selector_all("#app img, #app script") == []
    assert HOSTILE not in page.content()


def test_the_answer_is_copied(tab: Tab, served: Page) -> None:
    Agent("teller", llm=ScriptedLLM("It is **fine**. " * 60), quiet=True).input("Tell me")
    page = tab.open(served.server.url)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#answer button:text-is('Copy')")
    page.wait_for_selector("#answer button:text-is('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == "It is **fine**. " * 60


def test_a_pause_shows_the_command_that_decides_it(tab: Tab, served: Page) -> None:
    agent = company()
    assert agent.record is not None
    page = tab.open(served.server.url)
    told = page.inner_text("#answer")
    assert "a person must agree" in told and "pay(amount=7)" in told
    [wait] = waiting_in(agent.record)
    assert f"connectagent resume .co/evals/{agent.record.name} --approve '{wait.id}'" in told


def test_a_crash_says_while_what(tab: Tab, served: Page) -> None:
    killed()
    page = tab.open(served.server.url)
    told = page.inner_text("#answer")
    assert "while this ran" in told and "tool boom size=7" in told and "in the agent miner" in told
    assert page.inner_text("#status") == "crashed"
    assert re.search(r"connectagent resume \.co/evals/doomed_\S+\.yaml$", told, re.MULTILINE)
    assert page.inner_text("#agents tbody tr >> nth=1").split()[-1] == "?"  # how long it took is not known
    page.click("#answer a")
    page.wait_for_selector(".row.tool.running[open] .field:has-text('7')")


def test_json_is_a_tree_and_thinking_is_folded(tab: Tab, served: Page) -> None:
    from connectagent import LLMResponse
    from connectagent.testing import call

    def facts() -> dict[str, Any]:
        """Facts."""
        return {"items": [{"id": number, "more": {"deep": "word"}} for number in range(3)]}

    thinking = {"blocks": [{"type": "thinking", "thinking": "I wonder."}]}
    answer = LLMResponse("Fine.", provider_data=thinking)
    Agent("thinker", [facts], llm=ScriptedLLM([call("facts")], answer), quiet=True).input("Think")
    page = tab.open(served.server.url)
    page.keyboard.press("c")
    page.wait_for_selector("#conversation .thought summary")
    assert not page.is_visible("text=I wonder.")
    page.click("#conversation .thought summary")
    assert page.is_visible("text=I wonder.")


def test_an_image_is_shown_when_it_is_asked_for(tab: Tab, served: Page) -> None:
    from connectagent import Image

    image = Image(data=PNG, media_type="image/png")
    Agent("seer", llm=ScriptedLLM("A dot."), quiet=True).input(["What is it?", image])
    page = tab.open(served.server.url)
    page.keyboard.press("c")
    page.click("#conversation button:text-is('Show image')")
    page.wait_for_selector("#conversation img[alt='image 1 of this message']")
    assert page.evaluate("document.querySelector('#conversation img').getAttribute('src')").startswith("data:image/png")


# -- the list, addresses, search -----------------------------------------------------------------


def test_sessions_are_searched_filtered_and_compared(tab: Tab, served: Page) -> None:
    busy("one")
    company()
    busy("two")
    page = tab.open(served.server.url)
    assert page.inner_text("#count") == "3 sessions"
    page.fill("#list-text", "report")
    page.wait_for_selector("#count:has-text('1 of 3 sessions')")
    page.fill("#list-text", "")
    page.click("#more-filters summary")
    page.wait_for_selector("#list-plugin option[value='guard']", state="attached")
    page.select_option("#list-plugin", "guard")
    page.wait_for_selector("#count:has-text('1 of 3 sessions')")
    page.select_option("#list-plugin", "")
    page.select_option("#list-tool", "pay")
    page.wait_for_selector("#count:has-text('1 of 3 sessions')")
    page.select_option("#list-tool", "")
    page.select_option("#list-agent", "two")
    page.wait_for_selector("#list a[data-name^=two]")
    page.select_option("#list-agent", "")
    page.wait_for_selector("#count:text-is('3 sessions')")
    page.focus("#list a.beside:not([hidden]) >> nth=0")
    page.keyboard.press("Enter")
    page.wait_for_selector("#beside .sides")
    assert not page.is_visible("#main")
    assert page.inner_text("#beside thead").count("_") == 2
    page.click("#beside thead a >> nth=0")
    page.wait_for_selector("#main:visible")


def test_two_sessions_side_by_side_have_all_their_steps_as_they_began_and_lead_back(
    tab: Tab, served: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectagent_view.reading._AT_ONCE_S", 0.0)  # each answer has one entry
    names = [name_of(company()), name_of(busy())]
    tab.page.goto(f"{served.server.url}#record={names[0]}&beside={names[1]}")
    page = tab.page
    page.wait_for_selector("#beside .side")
    steps = page.eval_on_selector_all(
        "#beside .side:first-child ol >> nth=0 >> li",
        """all => all.map((one) => [
            ...[".kind", "b"].map((part) => one.querySelector(part).innerText), one.style.getPropertyValue("--depth"),
        ])""",
    )
    finder, checker = steps.index(["tool", "finder", "0"]), steps.index(["tool", "checker", "1"])
    assert steps[finder + 1] == ["agent", "finder", "0"]
    assert finder < checker < steps.index(["tool", "search", "2"]) < steps.index(["tool", "search", "0"])
    page.wait_for_selector("#beside .result .h1:text-is('Report')")
    page.click("#beside .back")
    page.wait_for_selector("#main:visible")


def test_an_address_leads_to_an_entry_a_message_or_a_turn_after_a_restart_too(tab: Tab, served: Page) -> None:
    agent = company()
    assert agent.record is not None
    page = tab.open(served.server.url)
    page.click("#problem-list a")
    entry = page.evaluate("location.hash")
    page.keyboard.press("c")
    page.wait_for_selector("#conversation .message.tool a.number")
    message = page.get_attribute("#conversation .message.tool a.number >> nth=0", "href")
    words = page.inner_text("#conversation .message.tool >> nth=0")
    with Page() as other:
        page = tab.open(other.server.url + entry)
        page.wait_for_selector(".row[open] .field:has-text('nothing is there')")
        tab.page.goto("about:blank")
        page = tab.open(other.server.url + message)
        page.wait_for_selector("#conversation .message.found")
        assert page.inner_text("#conversation .message.found") == words
        tab.page.goto("about:blank")
        page = tab.open(f"{other.server.url}#record={agent.record.name}&turn=2")
        page.wait_for_selector(".turn.found:has-text('Pay for it')")


def test_the_search_finds_what_is_in_a_blob(tab: Tab, served: Page) -> None:
    def long() -> str:
        """Give a long text."""
        return "a" * 30_000 + " THE NEEDLE " + "b" * 30_000

    from connectagent.testing import call

    Agent("long", [long], llm=ScriptedLLM([call("long")], "Done."), quiet=True).input("Go")
    page = tab.open(served.server.url)
    page.fill("#filter", "the needle")
    page.wait_for_selector("#matches:has-text('1 entry')")
    page.wait_for_selector(".row.tool:not([hidden])")


# -- while it runs -------------------------------------------------------------------------------


def test_the_tail_of_a_conversation_comes_alone_and_what_runs_moves(tab: Tab, served: Page) -> None:
    process = subprocess.Popen(
        [sys.executable, view_agents.__file__],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        tab.page.goto(served.server.url)
        page = tab.page
        page.wait_for_selector(".row.running .ms:text-matches('^\\\\d')", timeout=15_000)
        first = page.inner_text(".row.running .ms")
        while page.inner_text(".row.running .ms") == first:
            page.wait_for_timeout(50)
        page.keyboard.press("c")
        page.wait_for_selector("#conversation .message.assistant")
        page.evaluate("document.querySelector('#conversation .message').dataset.mine = 'kept'")
        process.stdin.write("\n")
        process.stdin.flush()
        page.wait_for_selector("#conversation .message.tool")
        assert page.query_selector("#conversation .message[data-mine=kept]")
        asked = [request for request in tab.requests if "/conversation?" in request]
        assert asked[0].endswith("known=-1") and "known=-1" not in asked[-1]
        process.stdin.write("\n\n")
        process.stdin.flush()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_long_conversation_sends_only_what_is_new() -> None:
    agent = big(turns=4, size=400)
    assert agent.record is not None
    with Page() as page:
        whole = page.ask("conversation", record=agent.record.name)[2]
        rows = len(page.json("news", record=agent.record.name)["rows"])
        agent.llm.calls = 0  # type: ignore[attr-defined]
        agent.input("One more")
        tail = page.ask("conversation", record=agent.record.name, known=rows - 1)[2]
    assert len(tail) < len(whole) / 2


# -- who can use it ------------------------------------------------------------------------------


def test_keys_are_listed_and_those_of_one_character_can_be_switched_off(tab: Tab, served: Page) -> None:
    busy()
    page = tab.open(served.server.url)
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    assert "next problem" in page.inner_text("#help")
    page.uncheck("#letters")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    assert page.is_visible("#timeline") and not page.is_visible("#conversation")
    tab.page.goto("about:blank")
    page = tab.open(served.server.url)
    page.keyboard.press("c")
    assert page.is_visible("#timeline")
    page.click("#show-help")
    page.check("#letters")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.wait_for_selector("#conversation .message")


def test_tab_alone_reaches_rows_without_a_key_before(tab: Tab, served: Page) -> None:
    company()
    page = tab.open(served.server.url)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('.row')?.id ?? document.activeElement.id"))
        if reached[-1].startswith("e") and reached[-1][1:].isdecimal():
            break
    assert reached[-1][1:].isdecimal(), reached
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#{reached[-1]}[open] .detail")


def test_a_letter_typed_in_the_search_of_the_list_is_a_letter(tab: Tab, served: Page) -> None:
    busy()
    page = tab.open(served.server.url)
    page.focus("#list-text")
    page.keyboard.type("ejc?")
    assert page.input_value("#list-text") == "ejc?"
    assert not page.query_selector("#help[open]") and page.is_visible("#timeline")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400, 2200] if SCREENS else [360, 1400])
def test_axe_finds_nothing_in_any_state_and_nothing_scrolls_sideways(
    browser: Any, served: Page, width: int, scheme: str
) -> None:
    axe = NODE / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        pytest.skip(f"no axe-core in {NODE}: npm install --prefix {NODE} axe-core")
    editor = company()
    names = {one: name_of(made) for one, made in {"editor": editor, "busy": busy(), "failing": failing()}.items()}
    names["doomed"] = killed().name
    tab = Tab(browser, viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    found: list[Any] = []
    states: list[str] = []

    def check(state: str) -> None:
        states.append(state)
        if SCREENS:
            picture(page, f"{SCREENS}/{len(states):02}-{state}-{width}-{scheme}.png", width)
        violations = page.evaluate(f"{axe.read_text('utf-8')}\n;axe.run(document, {{resultTypes: ['violations']}})")
        found.extend((state, one["id"], [node["html"] for node in one["nodes"]]) for one in violations["violations"])
        if page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
            found.append((state, "scrolls sideways"))

    def fresh(place: str) -> Any:
        tab.page.goto("about:blank")
        return tab.open(f"{served.server.url}#{place}")

    for name in ("doomed", "failing", "busy", "editor"):
        page = fresh(f"record={names[name]}")
        check(name)
    page.click("#timeline .turn:first-of-type > .rows > .row.model > summary >> nth=2")
    page.wait_for_selector(".request .sent")
    page.click(".request .raw summary")
    page.wait_for_selector(".raw .json")
    check("request")
    page.keyboard.press("c")
    page.wait_for_selector("#conversation .message")
    page.click("#conversation .changes summary >> nth=0")
    check("conversation")
    page.keyboard.press("d")
    page.wait_for_selector("#changes .change")
    check("changes")
    page.keyboard.press("?")
    check("keys")
    page.keyboard.press("Escape")
    keep(editor, "confirmed", "search")
    page = fresh(f"record={names['editor']}")
    page.click(".row:has(.badge.bisect) summary")
    page.wait_for_selector(".bisected pre")
    check("found")
    page.goto(f"{served.server.url}#record={names['editor']}&beside={names['busy']}")
    page.wait_for_selector("#beside .sides")
    check("beside")
    tab.page.goto("about:blank")
    page.goto(served.server.url)
    page.wait_for_selector("#list li")
    if width > 900:  # the newest session is shown beside the list
        page.wait_for_selector(SHOWN)
    page.click("#more-filters summary")
    check("filters")
    tab.context.close()
    assert found == []
    assert tab.complaints == [] and len(states) == 11


def picture(page: Any, path: str, width: int) -> None:
    """Take a picture of the whole page: as high as it is, since what is not in sight is not drawn."""
    page.evaluate("scrollTo(0, 0)")
    for _ in range(2):  # the most height of a text depends on the window's
        page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
    page.screenshot(path=path)
    page.set_viewport_size({"width": width, "height": 900})


def keep(agent: Agent, said: str, tool: str) -> None:
    """Keep a finding of a tool call."""
    assert agent.record is not None
    lines = [line for turn in read_record(agent.record)["turns"] for line in turn["lines"]]
    entry = next(line for line in lines if line.get("tool_name") == tool and line["type"] == "tool_execution")
    maker = {"file": __file__, "line": 7}
    keep_finding(agent.record, {"symptom": f"calls {tool}", "said": said.splitlines(), "entry": entry, "maker": maker})


def test_what_bisect_found_is_at_the_entry_that_was_bad_also_if_it_comes_later(tab: Tab, served: Page) -> None:
    agent = busy()
    page = tab.open(served.server.url)
    assert not page.query_selector(".badge.bisect")
    keep(agent, "turn off:  remind\n<img src=x onerror=alert(1)>", "search")
    page.click(".row.tool:has(.badge.bisect) summary")
    page.wait_for_selector(".bisected pre")
    assert page.inner_text(".bisected h4") == "bisect: calls search"
    assert page.inner_text(".bisected pre").splitlines() == ["turn off:  remind", "<img src=x onerror=alert(1)>"]
    assert page.get_attribute(".bisected a.where", "href").startswith("vscode://file")
    assert "not confirmed" in page.inner_text(".bisected .facts")
    page.fill("#filter", "bisect")
    until(lambda: tab.rows() == 1)
    keep(agent, "turn off:  nothing", "search")
    page.wait_for_selector(".row[open] .bisected pre:has-text('nothing')")


def name_of(agent: Agent) -> str:
    assert agent.record is not None
    return agent.record.name


# -- how fast ------------------------------------------------------------------------------------


def test_5000_sessions_are_listed_within_a_second(tab: Tab, folder: Path) -> None:
    agent = busy()
    assert agent.record is not None
    data = agent.record.read_bytes()
    for number in range(4_999):
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(1_700_000_000 + number))
        (agent.record.parent / f"many_{stamp}.yaml").write_bytes(data)
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    took = []
    for _ in range(2):
        with Page() as served:
            begun = time.perf_counter()
            page = tab.open(served.server.url)
            page.wait_for_selector("#list li >> nth=100")
            took.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            page.fill("#list-text", "nothing like it")
            page.wait_for_selector("#count:has-text('0 of 5,000 sessions')")
            searched = time.perf_counter() - begun
        tab.page.goto("about:blank")
    print(f"listed in {min(took) * 1000:.0f} ms, all searched in {searched * 1000:.0f} ms")
    assert min(took) < 1.0 * crowd
    assert searched < 3.0 * crowd


def test_a_request_is_shown_where_a_handler_gave_the_call_other_messages(tab: Tab, served: Page) -> None:
    @before_llm
    def other(agent: Any, request: LLMRequest) -> None:
        request.messages = [{"role": "user", "content": "Something else"}]

    Agent("teller", None, "Be brief.", llm=ScriptedLLM("Fine."), on_events=[other], quiet=True).input("Tell me")
    page = tab.open(served.server.url)
    page.click("#timeline .row.model")
    page.wait_for_selector(".request .sent:has-text('Something else')")
    assert "1 message, 1 new or changed" in page.inner_text(".request")
    page.wait_for_selector(SHOWN)
