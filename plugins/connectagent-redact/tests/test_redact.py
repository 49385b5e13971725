"""Personal data and secrets do not reach a model or the record; tools and users may get them back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from connectagent_redact import Redact
from pytest_connectagent import AgentTester
from redact_attacks import GITHUB, HARMLESS, IBAN, MAIL, NESTED, PHONE, TEXTS

from connectagent import (
    Agent,
    ConfigError,
    Pause,
    Paused,
    ToolCall,
    after_tools,
    after_user_input,
    before_each_tool,
    shadow,
)
from connectagent.testing import ScriptedLLM, call, replayed


@dataclass
class Person:
    name: str
    mail: str


def find(name: str) -> dict[str, str]:
    """Find a person."""
    return {"name": name, "mail": MAIL}


def send(to: str, text: str = "") -> str:
    """Send a mail."""
    sent.append(to)
    return f"sent to {to}"


sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def agent_with(plugin: Any, *responses: Any, **more: Any) -> Agent:
    given = {"tools": [find, send], "log": False, "quiet": True, "plugins": [plugin], **more}
    return Agent("helper", llm=ScriptedLLM(*responses), **given)


def requests(agent: Agent) -> str:
    return json.dumps([request.messages for request in agent.llm.requests], ensure_ascii=False)  # type: ignore[attr-defined]


def placeholder(plugin: Redact, value: str = MAIL) -> str:
    return plugin.text(value)


def written(folder: Path) -> str:
    """Everything that is on the disk, without the key."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "key")
    return "\n".join(path.read_text("utf-8", "replace") for path in files)


def sends_what_it_reads(messages: Any, tools: Any) -> Any:
    """Sends a mail to the placeholder that it was given last."""
    found = [part for message in messages for part in str(message["content"]).split('"') if part.startswith("<EMAIL_")]
    return call("send", to=found[-1])


# -- the texts -------------------------------------------------------------------------------------


def test_there_are_over_a_hundred() -> None:
    assert len(TEXTS) + len(HARMLESS) + len(NESTED) > 100


@pytest.mark.parametrize(("text", "part", "found"), TEXTS, ids=range(len(TEXTS)))
def test_what_is_found_in_a_text(text: str, part: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectagent_redact.add_secret", lambda *given, **more: None)  # it masks it in later texts
    clean = Redact().text(text)
    assert (part not in clean) is found, clean
    assert Redact().text(clean) == clean


@pytest.mark.parametrize("text", HARMLESS, ids=range(len(HARMLESS)))
def test_what_is_harmless_stays(text: str) -> None:
    assert Redact().text(text) == text


@pytest.mark.parametrize("value", NESTED, ids=range(len(NESTED)))
def test_results_are_redacted_at_any_depth(value: Any) -> None:
    def look() -> Any:
        """Look."""
        return value

    agent = agent_with(Redact(), call("look"), "Done.", tools=[look])
    agent.input("Look")
    assert MAIL not in requests(agent) and "<EMAIL_" in requests(agent)


def test_equal_values_have_one_placeholder_in_every_agent_and_writing() -> None:
    assert Redact().text(MAIL) == Redact().text(MAIL.upper())
    assert Redact().text(f"a {IBAN} b") == Redact().text(f"a {IBAN.replace(' ', '')} b")
    assert Redact().text(MAIL) != Redact().text(f"x{MAIL}")


# -- turns -----------------------------------------------------------------------------------------


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    checked = agenttester.check(Redact, changes={"messages", "result"})
    assert {"around_turn", "around_tool", "around_llm", "on_complete"} <= checked.hooks


def test_neither_the_model_nor_the_record_gets_what_a_user_wrote(co_dir: Path) -> None:
    plugin, mail = Redact(), "nobody.knows.it.yet@example.org"
    agent = agent_with(plugin, lambda messages, tools: f"I write to {messages[-1]['content'].split()[-1]}", log=None)
    assert agent.input(f"My address is {mail}") == f"I write to {mail}"
    assert mail not in requests(agent)
    assert agent.session["messages"][0]["content"] == f"My address is {placeholder(plugin, mail)}"
    assert mail not in written(co_dir) and placeholder(plugin, mail) in written(co_dir)


def test_neither_gets_what_a_tool_returned_or_raised(co_dir: Path) -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError(f"there is no {PHONE}")

    def person() -> Person:
        """Find a person."""
        return Person("Ada", MAIL)

    calls = [call("find", name="Ada"), call("fail"), call("person")]
    agent = agent_with(Redact(), calls, "Done.", tools=[find, fail, person], log=None)
    agent.input("Find Ada")
    for text in (requests(agent), written(co_dir)):
        assert MAIL not in text and PHONE not in text and "<PHONE_" in text


def test_a_tool_gets_the_value_back_only_if_it_is_to_have_it(co_dir: Path) -> None:
    for options, got in (({}, "<EMAIL_"), ({"restore": ["send"]}, MAIL), ({"restore": True}, MAIL)):
        sent.clear()
        agent = agent_with(Redact(**options), call("find", name="Ada"), sends_what_it_reads, "Done.", log=None)
        agent.input("Write to Ada")
        assert sent[0].startswith(got)
        assert MAIL not in requests(agent) and MAIL not in written(co_dir)


def test_secrets_do_not_come_back() -> None:
    def token() -> str:
        """Get a token."""
        return f"token {GITHUB}"

    def answer(messages: Any, tools: Any) -> Any:
        return f"It is {messages[-1]['content']}"

    agent = agent_with(Redact(restore=True), call("token"), answer, tools=[token])
    assert GITHUB not in agent.input("Get it") and GITHUB not in requests(agent)


def test_what_handlers_add_and_ask_is_redacted_too() -> None:
    @after_tools
    def add(agent: Agent) -> None:
        agent.session["messages"].append({"role": "user", "content": f"From {MAIL}"})
        assert agent.ask(f"Who is {MAIL}?").content == "Nobody."

    agent = agent_with([Redact(), add], call("find", name="x"), "Nobody.", "Done.", system_prompt=f"You serve {MAIL}.")
    agent.input("Go")
    assert MAIL not in requests(agent) and requests(agent).count("<EMAIL_") >= 4


def test_guards_see_the_values_that_a_tool_gets() -> None:
    seen: list[Any] = []

    @before_each_tool
    def guard(tool_call: ToolCall) -> None:
        seen.append(tool_call.arguments.get("to"))

    agent = agent_with([Redact(restore=["send"]), guard], call("find", name="x"), sends_what_it_reads, "Done.")
    agent.input("Go")
    assert seen[-1] == MAIL


def test_children_and_handoffs_agree_on_placeholders() -> None:
    child = Agent("child", [find], llm=ScriptedLLM(call("find", name="Ada"), "Found <x>."), quiet=True, log=False)
    plugin = Redact()

    def ask(messages: Any, tools: Any) -> Any:
        return call("child", prompt=messages[-1]["content"])

    agent = agent_with(plugin, ask, "Done.", tools=[child])
    agent.input(f"Ask {MAIL}")
    assert MAIL not in requests(agent) and MAIL not in requests(child)
    assert placeholder(plugin) in requests(child)


def test_a_streamed_turn_and_calls_at_once_are_redacted() -> None:
    agent = agent_with(Redact(), [call("find", name=name) for name in "abc"], "Done.", parallel_tools=3)
    list(agent.stream(f"I am {MAIL}"))
    assert MAIL not in requests(agent) and requests(agent).count("<EMAIL_") >= 4


def test_a_typed_result_gets_its_values_back() -> None:
    def answer(messages: Any, tools: Any) -> str:
        words = [word for message in messages for word in str(message["content"]).split()]
        return json.dumps({"name": "Ada", "mail": next(word for word in words if word.startswith("<EMAIL_"))})

    agent = agent_with(Redact(), answer)
    assert agent.input(f"I am {MAIL}", output=Person) == Person("Ada", MAIL)


def test_a_session_gets_no_value_of_another_one_for_its_placeholder(co_dir: Path) -> None:
    def repeats(messages: Any, tools: Any) -> str:
        return f"I wrote to {messages[0]['content']}"

    agent = agent_with(Redact(restore=["send"]), *[sends_what_it_reads, repeats] * 2, log=None)
    assert MAIL in agent.for_session("ada").turn(f'"{MAIL}"') and sent == [MAIL]
    assert MAIL not in agent.for_session("eve").turn(f'"{placeholder(Redact())}"') and sent == [MAIL]
    assert "is not known any more" in requests(agent)


# -- resumes and replays ---------------------------------------------------------------------------


@before_each_tool
def ask_before_sending(tool_call: ToolCall) -> None:
    if tool_call.name == "send":
        raise Pause("send it?")


def test_a_turn_that_goes_on_in_this_process_has_the_values(co_dir: Path) -> None:
    plugins = [Redact(restore=["send"]), ask_before_sending]
    agent = agent_with(plugins, call("find", name="Ada"), sends_what_it_reads, "Done.", log=None)
    with pytest.raises(Paused):
        agent.input(f"I am {PHONE}")
    assert agent.resume(approve=True) == "Done."
    assert sent == [MAIL] and MAIL not in requests(agent) and MAIL not in written(co_dir)


def test_a_fork_in_this_process_has_the_values(co_dir: Path) -> None:
    agent = agent_with(Redact(), *[lambda messages, tools: str(messages[0]["content"])] * 2, log=None)
    agent.input(f"I am {PHONE}")
    agent.resume(agent.record, fork=True)
    assert PHONE in agent.input("Who?")


def test_elsewhere_the_model_reads_that_a_value_is_not_known(co_dir: Path) -> None:
    agent = agent_with(Redact(), "<EMAIL_00000000>", call("send", to="<EMAIL_00000000>"), "Done.", log=None)
    agent.input("Hi")
    other = agent_with(Redact(restore=True), call("send", to="<EMAIL_00000000>"), "Done.", log=None)
    other.resume(agent.record)
    other.input("Send it")
    assert sent == [] and "the value of <EMAIL_00000000> is not known any more" in requests(other)


def test_a_replay_sends_the_same(co_dir: Path) -> None:
    agent = agent_with(Redact(), call("find", name="Ada"), "Done.", "Again.", log=None)
    agent.input("I am grace.hopper@example.org and +49 30 1234567")
    agent.input("More")
    assert agent.record is not None
    played = replayed(agent.record, agent=agent_with(Redact(), log=None))
    assert played.same, played.divergence


def test_a_replay_needs_no_values_that_tools_got_back(co_dir: Path) -> None:
    agent = agent_with(Redact(restore=True), sends_what_it_reads, "Done.", log=None)
    agent.input('I am "mary.somerville@example.org"')
    assert sent == ["mary.somerville@example.org"] and agent.record is not None
    played = replayed(agent.record, agent=agent_with(Redact(restore=True), log=None))
    assert played.same, played.divergence


def test_nothing_is_changed_in_a_dry_run() -> None:
    agent = agent_with(shadow(Redact()), "Done.")
    agent.input(f"I am {MAIL}")
    assert MAIL in requests(agent)


# -- options ---------------------------------------------------------------------------------------


def test_what_is_allowed_or_not_asked_for_stays() -> None:
    mail = "bob.k@example.org"
    assert Redact(allow=[mail]).text(f"{mail} {PHONE}").startswith(f"{mail} <PHONE_")
    assert Redact(allow=mail).text(f"{mail} {PHONE}").startswith(f"{mail} <PHONE_")
    assert Redact(kinds=["PHONE"]).text(f"{mail} {PHONE}").startswith(f"{mail} <PHONE_")
    assert Redact(region="DE").text("Call 0171 1234567").startswith("Call <PHONE_")


@pytest.mark.parametrize("wrong", [{"kinds": ["NAME"]}, {"kinds": "email"}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="redact: kinds are"):
        Redact(**wrong)


def test_presidio_finds_people() -> None:
    pytest.importorskip("presidio_analyzer", reason="presidio is not installed")
    pytest.importorskip("en_core_web_lg", reason="presidio's language model is not installed")
    assert "<PERSON_" in Redact(presidio=True).text("My name is Ada Lovelace.")


def test_without_presidio_its_option_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectagent_redact.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'connectagent-redact\[presidio\]'"):
        Redact(presidio=True)


def test_one_kind_for_presidio_is_that_kind_and_not_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    analyzer = SimpleNamespace(analyze=lambda text, **options: asked.append(options["entities"]) or [])
    monkeypatch.setattr("connectagent_redact.find_spec", lambda name: True)
    monkeypatch.setattr("connectagent_redact.finding._analyzer", lambda: analyzer)
    Redact(presidio="PERSON").text("Ada")
    assert asked == [["PERSON"]]


def test_a_handler_behind_it_sees_placeholders() -> None:
    seen: list[str] = []

    @after_user_input
    def note(agent: Agent) -> None:
        seen.append(str(agent.session["messages"][-1]["content"]))

    agent_with([Redact(), note], "Done.").input(f"I am {MAIL}")
    assert seen and MAIL not in seen[0]


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str], co_dir: Path) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.startswith("Write to <EMAIL_") and second == "I wrote to ada@example.org."
