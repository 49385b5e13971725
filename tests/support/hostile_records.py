"""Records as strangers, disks and editors may leave them, put through every command that reads records.

`python hostile_records.py COUNT SEED` prints what went wrong, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from record_agents import worker

from connectagent import Agent, LLMResponse, Pause, Paused, before_each_tool
from connectagent.cli import main
from connectagent.cli.view.server import Server, _Refused
from connectagent.errors import ConfigError
from connectagent.records.read import load_record
from connectagent.testing import ScriptedLLM, call

SLOW_S = 5.0
BATCH = 20  # records that are in the folder at once
EACH = [
    *(["log", "show", *more] for more in ([], ["--full"], ["--json"])),
    *(["log", "export", "--to", form] for form in ("md", "jsonl", "html")),
    *(["log", "tail", "-n", number] for number in ("0", "3")),
    *(["log", name, *more] for name, more in (("summary", []), ("request", []), ("request", ["--json", "--full"]))),
    *([name, *more] for name in ("blame", "bill") for more in ([], ["--json"])),
    ["replay", "--json"],
    ["resume"],
    ["bill", "-p", "no:x"],
    ["report"],
]
BAD = ["--bad", "says /./"]
WITH_SCRIPT = [  # behind the record comes the script of its agent
    ["replay", "--json"],
    ["replay", "--live-tools"],
    ["bill", "-p", "no:waits"],
    ["report", "--bad", "says /./"],
    ["bisect", *BAD, "--samples", "1", "--json"],
    ["compare", *BAD, "--prompt", "/dev/null"],
]
ALL = [
    *(["log", "list", "--limit", "0", *more] for more in ([], ["--json"])),
    *(["log", "stats", *more] for more in ([], ["--json"])),
    ["log", "grep", "."],
    ["log", "prune", "--keep", "0", "--dry-run"],
]
ODD: list[Any] = [
    *(None, True, -1, 0, 10**30, 1e308, float("nan"), float("-inf"), "", "x" * 5000, "\x1b[31m\u202e\0", [], {}),
    *([[]], {"": {}}, [None], "null", "T1/1/model1", "2026-01-01T00:00:00Z", {"type": "llm_call"}, -(2**63)),
]
TAGS = ["!!python/object/apply:os.system ['touch pwned']", "!!python/object/new:os.system [touch pwned]"]
TAGS += ["!x", "&a", "*a"]


# -- records ---------------------------------------------------------------------------------------


def ask(text: str) -> str:
    """Ask."""
    if text == "bad":
        raise ValueError("no")
    return text.upper()


@before_each_tool
def waits(tool_call: Any) -> None:
    if tool_call.arguments.get("text") == "wait":
        raise Pause("may I?")


def bases() -> list[str]:
    """Whole records: of turns, of an error, of a pause, of agents in agents."""
    plain = worker(rounds=2, calls=2, system_prompt="Work: well.")
    plain.input("One.")
    plain.execute_tool("work", {"n": 1, "x": 0.5})
    plain.input("Two.")
    paused = Agent("paused", [ask], llm=ScriptedLLM([call("ask", text="wait")], "Yes."), plugins=[waits], quiet=True)
    with contextlib.suppress(Paused):
        paused.input("Wait.")
    assert paused.record is not None
    resumed = Agent("paused", [ask], llm=ScriptedLLM("Yes."), plugins=[waits], quiet=True)
    resumed.resume(paused.record, approve=True)
    inner = Agent("inner", [ask], llm=ScriptedLLM([call("ask", text="bad")], "Inner."), quiet=True)
    outer = Agent("outer", [inner], llm=ScriptedLLM([call("inner", prompt="Do.")], OSError("gone")), quiet=True)
    with contextlib.suppress(OSError):
        outer.input("Go.")
    paths = sorted(Path(".co/evals").iterdir())
    made = [path.read_text() for path in paths]
    for path in paths:
        path.unlink()
    return made


def special(rng: random.Random) -> bytes:
    """Something that was made to break a reader."""
    head = 'format: 1\nagent: a\nmodel: m\nturns:\n- turn: 1\n  input: "x"\n  trace:\n'
    deep, wide = rng.choice([99, 100, 101, 1000, 200_000]), rng.choice([10, 1000, 100_000])
    bomb = "a: &a [x, x]\n"
    bomb += "".join(f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]\n" for one, two in pairwise("abcdefghij"))
    entry = rng.choice([
        '{"type": "x", "v": ' + "[" * deep + "]" * deep + "}",
        '{"v": ' + '{"a":' * deep + "1" + "}" * deep + "}",
        "[" * deep, "{" * deep, "- " * deep, '{"a": "' + "\\" * deep, "? " * deep, '"' * deep,
        '{"v": [' + "[]," * wide * 10 + "[]]}",
        '{"v": {' + ", ".join(f'"{n}": {n}' for n in range(wide)) + "}}",
        '{"v": ' + "9" * wide + "}", '{"v": -1' + "0" * wide + ".5e+9}", '{"v": 1.0e+' + "9" * 20 + "}",
        '{"' + "k" * wide + '": 1}', '{? "' + "k" * wide + '" : .nan}',
        '{"type": "tool_execution", "v": "' + "\\u0000\\u001b]0;x\\u0007" * wide + '"}',
        f'{{"type": {rng.choice(TAGS)}, "b": [{rng.choice(TAGS)}]}}', f"{rng.choice(TAGS)} {{}}",
        '{"<<": {"a": 1}, "b": *a}', "{<<: *a}", "|\n    text", ">-\n    text", '{"a": "x\n     y"}', "'it''s'",
        '{"a": "\\ud83d"}', '{"type": "llm_call", "usage": {"input_tokens": ' + "9" * 300 + "}}",
    ])  # fmt: skip
    whole = rng.choice([
        head + f"  - {entry}\n  status: answered\n", head + f"  - {entry}\n", head.replace('"x"', entry),
        bomb, "&a [*a]\n", "x: &x {y: *x}\n", entry + "\n", "turns: " + entry + "\n", "turns:\n- " + entry + "\n",
        head + f"  result: {entry}\n  messages: {json.dumps(entry)}\n  session: {entry}\n  status: {entry}\n",
        head * 50, "turns:\n" + "- turn: 1\n" * wide, "\n" * wide, "a: 1\n" * wide, "---\n" * wide, "\r\n" * wide,
        head.replace("\n", "\r\n"), "\ufeff" + head, head.replace("trace:", "trace: 5"), head + "  trace: [1]\n",
        head.replace("turn: 1", "turn: " + "9" * 5000) + "  status: answered\n",
        f"{rng.choice(TAGS)}\nagent: x\n", "format: 1\nagent: a\nscript: /etc/passwd\nmodel: m\nturns:\n",
        head + '  from: 5\n  status: answered\n- turn: 2\n  from: [9, 9]\n  input: "y"\n',
        "format: 1\nagent: a\nbegins_with: [1]\nsystem_prompt: {}\nplugins: [1]\nturns:\n- turn: {}\n  input: []\n",
        "x" * wide, "\0" * wide, "",
    ])  # fmt: skip
    return whole.encode("utf-8", "surrogatepass")


def with_odd_value(rng: random.Random, text: str) -> str:
    """A record with other values in its lines."""
    lines = text.split("\n")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        odd = rng.choice(ODD)
        try:
            entry = json.loads(lines[at][4:])
            place = rng.choice([entry, *(value for value in entry.values() if isinstance(value, dict) and value)])
            place[rng.choice(list(place))] = odd
            lines[at] = f"  - {_written(entry)}"
        except (ValueError, AttributeError):
            lines[at] = f"{lines[at].partition(': ')[0]}: {_written(odd)}"
    return "\n".join(lines)


def _written(value: Any) -> str:
    text = json.dumps(value)
    return re.sub("-?Infinity|NaN", lambda found: {"N": ".nan", "I": ".inf", "-": "-.inf"}[found[0][0]], text)


def with_other_lines(rng: random.Random, text: str, others: list[str]) -> str:
    lines = text.split("\n")
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(lines))
        other = rng.choice(rng.choice(others).split("\n"))
        new = rng.choice([[], [other], [lines[at]] * 3, [other, lines[at]], ["  " + other]])
        lines[at : at + rng.randint(0, 3)] = new
        lines = lines or [""]
    return "\n".join(lines)


def with_other_bytes(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    parts = [b"", b'"', b"\\", b"{", b"}", b"[", b"\n", b"\n  ", b": ", b"\xff", b"0", b"*a", b"\xe2\x80\xa8"]
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(made))
        made[at : at + rng.randint(0, 3)] = rng.choice(parts)
    return bytes(made[: rng.randrange(len(made)) if rng.random() < 0.2 else None])


def records(rng: random.Random, count: int) -> Iterator[bytes]:
    known = bases()
    for number in range(count):
        text = rng.choice(known)
        kind = number % 4
        if kind == 0:
            yield special(rng)
        elif kind == 1:
            yield with_odd_value(rng, text).encode("utf-8", "surrogatepass")
        elif kind == 2:
            yield with_other_lines(rng, text, known).encode()
        else:
            yield with_other_bytes(rng, text.encode())


def agents() -> None:
    """The agents of `bases`, for this file as the script of `resume` and `replay`."""
    scripted = [call("ask", text="wait"), call("ask", text="a"), *["Done."] * 20]
    inner = Agent("inner", [ask], llm=ScriptedLLM(*scripted), quiet=True)
    made = [worker(rounds=2, calls=2), Agent("paused", [ask], llm=ScriptedLLM(*scripted), plugins=[waits], quiet=True)]
    globals().update({agent.name: agent for agent in [*made, Agent("outer", [inner], llm=Ends(), quiet=True)]})


class Ends:
    """A model that answers at once."""

    model = "ends"

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        return LLMResponse("Ended.")


if __name__ == "connectagent_script":
    agents()


# -- what reads them ---------------------------------------------------------------------------------


class Checks:
    """Runs what reads records, and keeps what went wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.asked = 0
        self.codes: Counter[str] = Counter()
        self.slowest = 0.0

    def run(self, arguments: list[str], what: str, data: bytes) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.timed(lambda: self._told(main(arguments), out, err, arguments), f"{arguments} {what}", data)

    def _told(self, code: int, out: io.StringIO, err: io.StringIO, arguments: list[str]) -> None:
        told = err.getvalue()
        assert code in (0, 1, 2, 75), code
        self.codes[f"{arguments[0]} {code}"] += 1
        assert "Traceback" not in told, told[-2000:]
        told = told.replace("error: OSError: gone\n", "")  # the recorded error of a model is raised again
        # An error that a command expects has no class before its text.
        assert not re.search(r"^error: [A-Z]\w+(Error|Exception|Exit): ", told, re.MULTILINE), told[-2000:]
        assert code in (0, 1) or err.getvalue(), "failed without a word"
        if code == 0 and "--json" in arguments:
            json.loads(out.getvalue())

    def page(self, server: Server, name: str, data: bytes, **given: Any) -> None:
        secret = server.url.split("/")[3]
        query = "&".join(f"{key}={quote(str(value))}" for key, value in given.items())

        def answer() -> None:
            with contextlib.suppress(_Refused):
                kind, body = server._answer(f"/{secret}/{name}?{query}")
                if kind == "application/json":
                    json.loads(body)

        self.timed(answer, f"view {name} {given}", data)

    def same_as_yaml(self, path: Path, data: bytes) -> None:
        """What is read is what YAML reads."""
        try:
            fast = load_record(path)
        except ConfigError:
            return
        if len(data) > 100_000:
            return
        try:
            slow = yaml.load(data.rpartition(b"\n")[0], Loader=yaml.CSafeLoader) or {}
        except yaml.YAMLError:
            assert max(map(len, re.findall(rb'"[^"]*":', data)), default=0) > 1000, "YAML refuses it"
            return
        slow["turns"] = slow.get("turns") or []
        for turn in slow["turns"]:
            turn["trace"] = turn.get("trace") or []
        assert repr(fast) == repr(slow), "it is misread"

    def timed(self, action: Callable[[], Any], what: str, data: bytes) -> None:
        self.asked += 1
        started = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, 8 * SLOW_S)
        try:
            action()
        except BaseException as error:
            self._keep(what, f"{type(error).__name__}: {error}", data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.process_time() - started
        self.slowest = max(self.slowest, took)
        if took > SLOW_S:
            self._keep(what, f"{took:.1f} s", data)

    def _keep(self, what: str, why: str, data: bytes) -> None:
        self.wrong.append(f"{what}: {why[-1500:]} in {data[:300]!r}")
        if folder := os.environ.get("CONNECTAGENT_HOSTILE_KEEP"):
            Path(folder, f"{len(self.wrong)}.yaml").write_bytes(data)
            Path(folder, f"{len(self.wrong)}.txt").write_text(self.wrong[-1], "utf-8", "backslashreplace")


def odd_files(folder: Path) -> None:
    """What may stand among records and is none."""
    (folder / "loop_2026-01-01T00-00-00.yaml").symlink_to("loop_2026-01-01T00-00-00.yaml")
    (folder / "far_2026-01-01T00-00-00.yaml").symlink_to("/dev/zero")
    (folder / "folder_2026-01-01T00-00-00.yaml").mkdir()
    os.mkfifo(folder / "pipe_2026-01-01T00-00-00.yaml")
    (folder / "\udcff\n\x1b[31m.yaml").write_text("agent: x\n")


def check(count: int, seed: int) -> Checks:
    def stop(number: int, frame: Any) -> None:
        raise TimeoutError("it takes too long")

    signal.signal(signal.SIGALRM, stop)
    rng, checks = random.Random(seed), Checks()
    made = list(records(rng, count))
    evals = Path(".co/evals")
    odd_files(evals)
    for first in range(0, count, BATCH):
        names = (f"r{first + at}_2026-01-01T00-00-{at:02}.yaml" for at in range(BATCH))
        batch = dict(zip(map(evals.joinpath, names), made[first : first + BATCH], strict=False))
        for path, data in batch.items():
            path.write_bytes(data)
        server = Server()
        for arguments in ALL:
            checks.run(arguments, f"batch {first}", b"")
        checks.page(server, "sessions", b"")
        paths = list(batch)
        for path, data in batch.items():
            for arguments in EACH:
                checks.run([*arguments, str(path)], "", data)
            checks.run(["log", "diff", str(path), str(rng.choice(paths))], "", data)
            checks.timed(partial(checks.same_as_yaml, path, data), "yaml", data)
            for decision in ([], ["--approve", "T1/1/c1/before_each_tool/wait:ask"], ["--from", "1.1"], ["--fork"]):
                copy = Path("copy.yaml")
                copy.write_bytes(data)
                checks.run(["resume", str(copy), "--quiet", "--script", __file__, *decision], "", data)
            for arguments in WITH_SCRIPT:
                checks.run([*arguments, str(path), __file__], "", data)
            checks.run(["chat", "--quiet", __file__, "--resume", str(copy)], "", data)
            given: dict[str, Any] = {"record": path.name}
            checks.page(server, "news", data, **given)
            for name in ("entry", "request", "changes"):
                checks.page(server, name, data, **given, entry=rng.randrange(3))
            checks.page(server, "changes", data, **given)
            checks.page(server, "text", data, **given, item=0, key="result")
            checks.page(server, "text", data, **given, request=rng.randrange(3))
            checks.page(server, "text", data, **given, message=rng.randrange(3), change=0, image=0)
            checks.page(server, "text", data, **given, entry=rng.randrange(3), key="result")
            checks.page(server, "text", data, **given, message=rng.randrange(3), change=0)
            checks.page(server, "conversation", data, **given)
            checks.page(server, "find", data, **given, text="x")
        server.close()
        for path in batch:
            path.unlink(missing_ok=True)
    return checks


if __name__ == "__main__":
    checks = check(int(sys.argv[1]), int(sys.argv[2]))
    if Path("pwned").exists():
        checks.wrong.append("a record's code ran")
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    if sys.platform == "linux":  # where that counts the process too from which this one was started
        megabytes = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    told = {"asked": checks.asked, "codes": checks.codes, "slowest": checks.slowest, "mb": megabytes}
    print(json.dumps({"wrong": checks.wrong, **told}))
