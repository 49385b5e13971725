"""Reports of planted bugs in recorded conversations: they reproduce elsewhere, and tell nothing that is private."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planted_bugs import BUGS, source
from recorded_agents import agent_for
from wire_driver import ERROR_KINDS, MODES, RETRIED, WIRE, Recording, load, recordings, replay_server

from connectagent.cli import main
from connectagent.settings import overrides

REPORTS = int(os.environ.get("CONNECTAGENT_REPORTS", "4"))
SECRETS = {
    "variable": "zq81-planted-77x-aleph-secret",
    "key": "sk-ant-api03-Vb7Qm2Xc9Lp4Rt6Yw8Zk1Nd3",
    "home": "/home/jane.doe/clients",
    "user": "jane.doe",
    "mac": "/Users/mjones",
    "customer": "ACME-4711",
}

pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")


def cases() -> Iterator[tuple[Path, str]]:
    """Recordings that went well, each with bugs; different bugs first."""
    good = [path for path in recordings() if path.stem not in (*ERROR_KINDS, *RETRIED)]
    bugs = list(BUGS)
    for shift in range(len(bugs)):
        for at, path in enumerate(good):
            yield path, bugs[(at + shift) % len(bugs)]


def recorded(path: Path, plugin: Path, mode: str) -> None:
    """Drive a recording with a plugin, and plant secrets in what the agent reads."""
    recording = Recording(load(path))
    private = "; ".join(SECRETS.values())
    result = recording.result
    recording.result = lambda id: f"{private}\n{result(id)}\n{private}"  # type: ignore[assignment, return-value]
    with replay_server(path, mode) as server:
        agent = agent_for(recording, server.base_url, mode, [], log=None, plugins=[str(plugin)])
        agent.system_prompt = f"{agent.system_prompt or ''} {private}"
        for turn in recording.data["drive"]["turns"]:
            if turn.get("new_conversation"):
                return
            with contextlib.suppress(Exception):
                prompt = recording.prompt(turn)
                agent.input(f"{prompt} {private}" if isinstance(prompt, str) else prompt)


def elsewhere(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh process, in a folder with nothing but the report and the plugin."""
    kept = ("PATH", "PYTHONPATH", "LANG")
    environment = {key: value for key, value in os.environ.items() if key in kept}
    command = [sys.executable, "-m", "connectagent", "replay", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**environment, "HOME": str(folder)}, capture_output=True, text=True, timeout=60
    )


def test_reports_of_planted_bugs_reproduce_elsewhere_and_leak_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRETS["variable"])
    made = 0
    for number, (path, bug) in enumerate(cases()):
        if made == REPORTS:
            break
        home = tmp_path / str(number)
        home.mkdir()
        monkeypatch.chdir(home)
        plugin = home / "planted.py"
        plugin.write_text(source(bug))
        recorded(path, plugin, MODES[number % 2])
        named = ["--bad", BUGS[bug][1]] if BUGS[bug][1] else []
        code = main(["report", "-p", str(plugin), "--also-mask", r"ACME-\d+", *named, "-o", "bug.yaml"])
        overrides.clear()
        printed = capsys.readouterr()
        if code == 2 and any(f"error: {why}" in printed.err for why in ("nothing failed", "the record does not show")):
            continue  # the recording has no tool call, for example
        assert code == 0, (path.stem, bug, printed.err)
        if not named and "by planted" not in printed.out.splitlines()[0]:
            continue  # the recording ended with an error of its own
        made += 1
        text = (home / "bug.yaml").read_text()
        for kind, secret in SECRETS.items():
            assert secret.lower() not in text.lower() and secret.lower() not in printed.out.lower(), (kind, path, text)
        assert len(text) < 5000, (path.stem, bug, text)
        away = home / "away"
        away.mkdir()
        (away / "bug.yaml").write_text(text)
        (away / "planted.py").write_text(source(bug))
        there = elsewhere(away, "bug.yaml", "-p", "./planted.py")
        assert there.returncode == 1 and ": reproduced" in there.stdout, (path.stem, bug, text, there)
        gone = elsewhere(away, "bug.yaml", "-p", "no:planted")
        assert gone.returncode == 0 and "not reproduced" in gone.stdout, (path.stem, bug, text, gone)
        assert sorted(entry.name for entry in away.iterdir()) in (
            ["bug.yaml", "planted.py"], ["__pycache__", "bug.yaml", "planted.py"],
        )  # fmt: skip
    assert made == REPORTS
