"""`connectagent blame` names who made and changed each message, and is right about it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectagent import Agent, LLMResponse, Retry, ToolCall, hooks
from connectagent.cli.blame import blame
from connectagent.errors import ConfigError
from connectagent.hooks.specs import EVENTS, PARAMETERS
from connectagent.records.history import history_of
from connectagent.session.history import MessageChange
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


@hooks.after_tools
def reflect(agent: Agent) -> None:
    agent.current_session["messages"].append({"role": "user", "content": "Think again."})  # type: ignore[index]


@hooks.after_each_tool
def redact(result: str) -> str:
    return result.replace("secret", "***")


@hooks.before_llm
def shorten(agent: Agent, request: Any) -> None:
    if len(request.messages) > 5:
        del request.messages[1]


def search(query: str) -> str:
    """Search."""
    return f"secret of {query}"


@pytest.fixture
def record() -> Path:
    llm = ScriptedLLM(("search", {"query": "tea"}), "Found it.", "Bye.", model="test/one")
    agent = Agent("blamed", [search], "Be good.", llm=llm, quiet=True, plugins=[reflect, redact, shorten])
    agent.input("Find tea.")
    agent.input("Thanks.")
    return next(Path(".co/evals").iterdir())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(blame, list(arguments), env={"COLUMNS": "200"})


def test_the_table_names_the_maker_of_each_message_and_who_changed_it(record: Path) -> None:
    shown = run(str(record))
    assert shown.exit_code == 0
    head, *lines = shown.stdout.splitlines()
    assert head.split() == ["#", "role", "turn", "made", "by", "and", "then", "message"]
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3", "4", "5", "6", "-"]
    makers = ["its beginning", "model test/one", "tool search", "reflect"]
    makers += ["model test/one", "the user", "model test/one"]
    for line, maker in zip(lines, [*makers, "the user"], strict=True):
        assert maker in line
    assert "edited by redact" in lines[2] and "*** of tea" in lines[2]
    assert "removed by shorten" in lines[-1]


def test_a_message_is_shown_with_all_that_was_done_to_it(record: Path) -> None:
    for name in ("2", "message:2"):
        shown = run(str(record), name).stdout
        assert shown.startswith("message 2, tool\n")
        assert re.search(r"added by tool search\nin turn 1\.1; entry:\d+\n    secret of tea\n", shown)
        edit = r"edited by redact \(after_each_tool, .*test_blame\.py:\d+\)\n.*\n    "
        assert re.search(edit + re.escape("[-secret-]{+***+} of tea\n"), shown)


def test_an_entry_is_shown_with_the_messages_that_it_touched(record: Path) -> None:
    (line,) = [line for line in history_of(record).lines if line.message["content"] == "Think again."]
    number = line.changes[0].entry
    shown = run(str(record), f"entry:{number}").stdout
    assert shown.startswith(f"entry {number}, message, by reflect (after_tools, ")
    assert "added message 3, by reflect" in shown and '"Think again."' in shown
    removed = history_of(record).removed[0].changes[-1].entry
    assert "removed a message that is gone, by shorten" in run(str(record), f"entry:{removed}").stdout


def test_json_holds_the_same(record: Path) -> None:
    data = json.loads(run(str(record), "--json").stdout)
    assert [line["message"] for line in data] == [0, 1, 2, 3, 4, 5, 6, None]
    assert data[2]["now"]["content"] == "*** of tea"
    assert [change["did"] for change in data[2]["changes"]] == ["added", "edited"]
    assert data[2]["changes"][1]["by"]["handler"] == "redact"
    assert json.loads(run(str(record), "2", "--json").stdout) == data[2]
    entry = json.loads(run(str(record), "entry:0", "--json").stdout)
    assert entry["type"] == "user_input" and entry["messages"][0]["by"] == {"user": "user"}


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("99", "there is no message '99'; the record has 0 to 6"),
        ("x", "there is no message 'x'; the record has 0 to 6"),
        ("-1", ""),
        ("entry:999", "there is no entry '999'; the record has 0 to"),
        ("entry:", "there is no entry ''; the record has 0 to"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(record: Path, what: str, says: str) -> None:
    shown = run(str(record), what)
    assert shown.exit_code != 0
    assert says in str(shown.exception)


def test_a_record_that_is_none_is_told() -> None:
    shown = run("nothing")
    assert isinstance(shown.exception, ConfigError) and "no record 'nothing'" in str(shown.exception)
    Path("bad.yaml").write_text("text\n")
    assert "not a record" in str(run("bad.yaml").exception)


# -- the right maker -----------------------------------------------------------------------------

ACTS = ("append", "append", "edit", "remove", "insert")
PLACES = (*EVENTS, "tool", "on_trace")
ACT = st.tuples(st.sampled_from(PLACES), st.integers(0, 2), st.sampled_from(ACTS), st.integers(0, 9))
DRAWN = st.lists(ACT, min_size=1, max_size=6)


class Signing:
    """Handlers and a tool that write their own name into each message that they make or change."""

    def __init__(self, plan: list[tuple[str, int, str, int]]) -> None:
        self.plan, self.seen = plan, dict.fromkeys(PLACES, 0)
        handlers = [self.handler(hook) for hook in (*EVENTS, "on_trace")]
        calls = [ToolCall("c1", "sign", {}), ToolCall("c2", "fail", {}), ToolCall("c3", "sign", {})]
        script = [LLMResponse("by model", calls), "by model", LLMResponse("by model", calls[:1]), "by model"]
        llm = ScriptedLLM(*script, model="model")
        self.agent = Agent("signed", [self.sign, self.fail], llm=llm, quiet=True, plugins=[handlers])

    def sign(self, agent: Any) -> str:
        """Sign."""
        self.act(agent, "tool", "sign")
        return "by sign"

    def fail(self) -> str:
        """Fail."""
        raise ValueError("by fail")

    def act(self, agent: Any, place: str, name: str) -> None:
        nth, messages = self.seen[place], agent.current_session["messages"]
        self.seen[place] += 1
        mine = {"role": "user", "content": f"by {name}"}
        for where, when, act, n in self.plan:
            if (where, when) != (place, nth):
                continue
            free = [k for k, message in enumerate(messages) if message["role"] == "user"]
            if act == "append" or not free:
                messages.append(dict(mine))
            elif act == "insert":
                messages.insert(free[n % len(free)], dict(mine))
            elif act == "edit":
                messages[free[n % len(free)]]["content"] = f"by {name}, {n}"
            elif len(free) > 1:
                del messages[free[n % len(free)]]

    def handler(self, hook: str) -> Any:
        name = f"at_{hook}"
        scope = {"act": self.act}
        source = f"def {name}({', '.join(PARAMETERS[hook])}):\n    act(agent, {hook!r}, {name!r})"
        exec(compile(source, __file__, "exec"), scope)
        return getattr(hooks, hook)(scope[name])


def maker(change: MessageChange) -> Any:
    by = change.by
    return by.get("user") or by.get("model") or by.get("tool") or by.get("handler") or by.get("plugin")


@settings(
    max_examples=int(os.environ.get("PROPERTY_CASES", "120")),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(plan=DRAWN)
def test_whatever_handlers_do_the_maker_is_the_one_who_signed(plan: list[Any], tmp_path_factory: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONNECTAGENT_DIR", str(tmp_path_factory.mktemp("co")))
        signing = Signing(plan)
        signing.agent.input("by user")
        signing.agent.input("by user")

        path = signing.agent.record
        assert path is not None and signing.agent.current_session is not None
        history = history_of(path)
        assert history.messages == signing.agent.current_session["messages"]
        for line in [*history.lines, *history.removed]:
            for change in line.changes:
                text = str((change.message or {}).get("content") or "")
                if text.startswith("by "):
                    signed = text.removeprefix("by ").partition(",")[0]
                    assert maker(change) == signed, (plan, change)
                elif "by fail" in text:
                    assert maker(change) == "fail"


def test_a_change_is_shown_word_by_word() -> None:
    @hooks.before_llm
    def date(request: Any) -> None:
        request.messages[0]["content"] = request.messages[0]["content"].replace("some day", "Tuesday")

    text = "Be brief. " + "Mind the rules. " * 60 + "It is some day, I think."
    agent = Agent("a", None, text, llm=ScriptedLLM("Done."), on_events=[date], quiet=True)
    agent.input("Go")
    for what in ("0", "entry:1"):
        told = CliRunner().invoke(blame, [str(agent.record), what]).stdout
        assert "It is [-some day-]{+Tuesday+}, I think." in told
        assert " characters ...]It is [-" not in told and " characters ...]" in told


def test_an_answer_to_another_attempt_is_the_models_own() -> None:
    @hooks.on_error
    def again() -> Any:
        return Retry()

    agent = Agent("a", llm=ScriptedLLM(OSError("lost"), "Done."), on_events=[again], quiet=True)
    agent.input("Go")
    assert history_of(Path(str(agent.record))).lines[-1].changes[0].by == {"model": "scripted"}


def test_a_result_of_what_was_not_run_is_connectagents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))

    def work(agent: Agent) -> str:
        """Work."""
        agent.end_turn("enough")
        return "worked"

    agent = Agent("a", [work], llm=ScriptedLLM([call("nosuch"), call("work"), call("work")]), quiet=True)
    agent.input("Go")
    lines = history_of(agent.record).lines  # type: ignore[arg-type]
    made = [line.changes[-1].by for line in lines if line.message["role"] == "tool"]
    assert [by.get("tool") or by.get("plugin") for by in made] == ["connectagent", "work", "connectagent"]
