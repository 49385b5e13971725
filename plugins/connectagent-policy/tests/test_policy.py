"""The rules, the attacks of `attacks.txt`, and the plugin in whole turns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from connectagent_policy import Policy, judge, read_rules
from connectagent_policy.command import group
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, Paused, shadow
from connectagent.testing import ScriptedLLM

RULES = read_rules("""
rules:
  - allow: read
    paths: {path: box}
  - allow: fetch
    hosts: {url: [example.com, "*.example.org"]}
  - allow: run
    commands: {line: git status}
  - deny: "*"
    paths: {path: "**/.env"}
  - ask: send
    agents: mailer
  - deny: send
    arguments: {to: "*@evil.com"}
""")
DENIALS = read_rules("""
rules:
  - allow: "*"
  - deny: "denied path"
    paths: {value: ["**/.env", secrets]}
  - deny: "denied host"
    hosts: {value: [evil.com, "*.evil.com", 127.0.0.1]}
  - deny: "denied command"
    commands: {value: [rm, git push]}
  - deny: "denied argument"
    arguments: {value: "*@evil.com"}
""")
KINDS = {"path": ("read", "path"), "host": ("fetch", "url"), "command": ("run", "line")}
HEADS = (*KINDS, "nested", *(f"denied {kind}" for kind in (*KINDS, "argument")))
SIGNS = {"\\u0000": "\0", "\\n": "\n", "\\r": "\r", "\\t": "\t", "\\u00a0": "\u00a0", "\\u200b": "\u200b",
         "\\u200e": "\u200e", "\\u202e": "\u202e"}  # fmt: skip


def attacks() -> list[tuple[str, str]]:
    found, kind = [], ""
    for line in Path(__file__).with_name("attacks.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]") and line[1:-1] in HEADS:
            kind = line[1:-1]
        elif line:
            found.append((kind, line))
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box").mkdir()
    (tmp_path / "secrets").mkdir()
    links = {"link": "/etc", "up": "..", "chain": "link", "cfg": "../.env", "secret-link": "../secrets"}
    for name, target in links.items():
        (tmp_path / "box" / name).symlink_to(target)


def test_no_attack_is_allowed() -> None:
    cases = attacks()
    assert len(cases) > 270
    through = []
    for kind, text in cases:
        for sign, real in SIGNS.items():
            text = text.replace(sign, real)
        tool, name = KINDS.get(kind, ("read", ""))
        arguments = json.loads(text) if kind == "nested" else {name: text}
        denied = kind.startswith("denied")
        found = judge(DENIALS, "a", kind, {"value": text}) if denied else judge(RULES, "a", tool, arguments)
        if found.effect == "allow":
            through.append((kind, text))
    assert through == []


def test_what_no_rule_denies_is_not_denied() -> None:
    for kind, text in (
        ("path", "secret/a"),
        ("path", "env"),
        ("host", "http://evil.example.com"),
        ("host", "127.0.0.2"),
        ("command", "git commit -m rm"),
        ("command", "rmdir x"),
        ("argument", "x@evil.org"),
    ):
        assert judge(DENIALS, "a", f"denied {kind}", {"value": text}).effect == "allow", text


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {"path": "box/a.txt"}),
        ("read", {"path": "box/new/../a.txt"}),
        ("read", {"path": os.path.join("box", "a b.txt")}),
        ("read", {"path": ["box/a", "box/b"]}),
        ("fetch", {"url": "https://EXAMPLE.com:443/x?y=http://evil.com"}),
        ("fetch", {"url": "http://a.example.org./"}),
        ("run", {"line": "git status"}),
        ("run", {"line": "git status --short 'a b'"}),
    ],
)
def test_what_is_meant_is_allowed(tool: str, arguments: dict[str, object]) -> None:
    assert judge(RULES, "a", tool, arguments).effect == "allow"


def test_deny_wins_over_ask_and_ask_over_allow() -> None:
    assert judge(RULES, "mailer", "send", {"to": "a@b.com"}).effect == "ask"
    assert judge(RULES, "mailer", "send", {"to": "a@evil.com"}).effect == "deny"
    assert judge(RULES, "other", "send", {"to": "a@b.com"}).effect == "deny"
    assert judge(RULES, "a", "read", {"path": "box/.ENV"}).effect == "deny"


@pytest.mark.parametrize(
    "text",
    ["", "rules", "rules: 1", "rules: [{allow: x, pathes: {a: b}}]", "rules: [{deny: x, allow: y}]",
     "rules: [{paths: {a: b}}]",
     "rules: [{allow: []}]", "rules: [{allow: x, hosts: evil.com}]", "rules: []\nrule: []", "{", "rules: [{allow: 7}]"],
)  # fmt: skip
def test_a_policy_with_a_mistake_lets_nothing_run(text: str) -> None:
    with pytest.raises(ConfigError, match="policy: "):
        read_rules(text)
    assert "so nothing may run" in turn(Policy(text=text))


def read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


def turn(plugin: object, path: str = "box/a") -> str:
    llm = ScriptedLLM(("read", {"path": path}), "done")
    agent = Agent("a", tools=[read], llm=llm, plugins=[plugin], quiet=True, log=False)
    assert agent.input("Go") == "done"
    return str(llm.requests[-1].messages[-1]["content"])


def test_a_missing_policy_lets_nothing_run() -> None:
    assert "so nothing may run" in turn(Policy("nothing.yaml"))


def test_a_turn_goes_on_after_a_denial() -> None:
    policy = "rules: [{allow: read, paths: {path: box}}]"
    assert turn(Policy(text=policy)) == "text of box/a"
    Path("policy.yaml").write_bytes(policy.replace("\n", "\r\n").encode("utf-8-sig"))  # by an editor on Windows
    assert turn(Policy("policy.yaml")) == "text of box/a"
    assert turn(Policy(text=policy), "../x").startswith("rejected: denied: no rule of the policy allows it")
    assert turn(shadow(Policy(text=policy)), "../x") == "text of ../x"


def test_ask_pauses_and_goes_on_when_a_person_approves(tmp_path: Path) -> None:
    plugin = Policy(text="rules: [{ask: read, reason: private}]")
    agent = Agent("a", [read], llm=ScriptedLLM(("read", {"path": "x"})), plugins=[plugin], quiet=True, log=tmp_path)
    with pytest.raises(Paused, match="the policy asks about read: private") as paused:
        agent.input("Go")
    again = Agent("a", [read], llm=ScriptedLLM("done"), plugins=[plugin], quiet=True, log=tmp_path)
    assert again.resume(paused.value.record, approve=True) == "done"


def test_the_command_judges_the_calls_of_a_record(tmp_path: Path) -> None:
    llm = ScriptedLLM(("read", {"path": "box/a"}), ("read", {"path": "/etc/passwd"}), "done")
    agent = Agent("a", [read], llm=llm, quiet=True, log=tmp_path)
    agent.input("Go")
    Path("policy.yaml").write_text("rules: [{allow: read, agents: a, paths: {path: box}}]")
    assert agent.record is not None
    shown = CliRunner().invoke(group, ["test", "policy.yaml", str(agent.record)])
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        'allow  a.read {"path": "box/a"}  (rule 1 of the policy)',
        'deny   a.read {"path": "/etc/passwd"}  (no rule of the policy allows it)',
        "1 allow, 0 ask, 1 deny",
    ]


def test_the_command_judges_calls_of_agents_below_as_theirs(tmp_path: Path) -> None:
    below = Agent("reader", [read], llm=ScriptedLLM(("read", {"path": "box/a"}), "done"), quiet=True)
    llm = ScriptedLLM(("reader", {"prompt": "Read"}), "done")
    agent = Agent("boss", [below], llm=llm, quiet=True, log=tmp_path)
    agent.input("Go")
    Path("policy.yaml").write_text("rules: [{allow: read, agents: reader}, {allow: reader, agents: boss}]")
    shown = CliRunner().invoke(group, ["test", "policy.yaml", str(agent.record)])
    assert shown.output.splitlines() == [
        'allow  reader.read {"path": "box/a"}  (rule 1 of the policy)',
        'allow  boss.reader {"prompt": "Read"}  (rule 2 of the policy)',
        "2 allow, 0 ask, 0 deny",
    ]


def test_every_path_of_a_turn_holds(agenttester: AgentTester) -> None:
    agenttester.check(lambda: Policy(text="rules: [{allow: '*'}]"))


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("evil", "evil"), ("evil", ["good", "evil"]), ("evil", {"a": [{"b": "evil"}]}), ("evil", {"evil": 1}),
        ("1000", 1000), ("1000", 1000.0), ("1000.0", 1000), ("1000.0", [1000.0]), ("-1", -1.0), ("0.5", 0.5),
        ("true", True), ("True", True), ("false", {"a": False}), ("null", None), ("null", [None]),
    ],
)  # fmt: skip
def test_a_rule_that_denies_fits_values_of_each_kind(pattern: str, value: Any) -> None:
    text = f"rules:\n  - allow: '*'\n  - deny: act\n    arguments: {{x: '{pattern}'}}\n"
    assert judge(read_rules(text), "a", "act", {"x": value}).effect == "deny"
