"""What bisect found is kept beside the record, and shown in the terminal and on the page: data of whoever wrote it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from connectagent_view.reading import Reading

from connectagent.cli import main
from connectagent.cli.group import cli
from connectagent.records.findings import IDENTITY, MOST, findings_file, findings_of, keep_finding
from connectagent.records.read import read_record
from connectagent.records.retention import remove_oldest

ASKED = ["bisect", "demo", "--bad", "calls write_note", "--by", "plugins", "--samples", "5"]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    """The record of a demo."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("CONNECTAGENT_DIR", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["demo"]) == 0
    (path,) = Path(".co/evals").glob("*.yaml")
    capsys.readouterr()
    return path


def found_rows(record: Path) -> list[dict[str, Any]]:
    return [row for row in Reading(record).news()["rows"] if "found" in row]


def finding(**more: Any) -> dict[str, Any]:
    return {"symptom": "calls pay", "said": ["turn off:  clock"], "confirmed": True, **more}


def test_it_is_at_the_entry_that_was_bad_and_in_the_summary(record: Path, capsys: Any) -> None:
    assert main(ASKED) == 0
    said = capsys.readouterr().out.splitlines()[1:]
    (row,) = found_rows(record)
    assert row["type"] == "llm_call" and "write_note" in row["calls"] and "bisect" in row["badges"]
    (shown,) = row["found"]
    assert (shown["symptom"], shown["confirmed"]) == ("calls write_note", True) and shown["said"].splitlines() == said
    assert main(["log", "summary"]) == 0
    assert "bisect: calls write_note\n  needed:    reminder" in capsys.readouterr().out


def test_the_same_question_has_one_answer_and_a_page_that_is_open_sees_it(record: Path, capsys: Any) -> None:
    reading = Reading(record)
    assert not [row for row in reading.news()["rows"] if "found" in row]
    rows = len(reading.news()["rows"])
    assert main(ASKED) == main(ASKED) == 0
    found = reading.news(rows)["found"]
    (row,) = found["rows"]
    assert len(row["found"]) == row["badges"].count("bisect") == 1
    findings_file(record).unlink()
    later = reading.news(rows)["found"]
    assert later["at"] != found["at"]
    assert later["rows"][0]["found"] == [] and "bisect" not in later["rows"][0]["badges"]


def test_of_a_record_of_others_nothing_is_kept(record: Path, tmp_path: Path, capsys: Any) -> None:
    text = record.read_text()
    record.write_text(text.replace("\nmark: ", "\nmark: x"))
    main(["bisect", str(record), "--bad", "calls write_note"])
    assert not (tmp_path / ".co" / "bisect").exists()


def test_of_a_copy_outside_of_the_records_folder_nothing_is_kept(record: Path, tmp_path: Path) -> None:
    copy = tmp_path / "project" / "evals" / "copy.yaml"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(record.read_bytes())
    assert main(["bisect", str(copy), *ASKED[2:]]) == 0
    assert not list(tmp_path.rglob("bisect"))


def test_of_a_record_in_a_records_folder_reached_through_a_link_it_is_kept(record: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(tmp_path)
    assert main(["bisect", str(tmp_path / "linked" / record), *ASKED[2:]]) == 0
    assert len(findings_of(record)) == 1


def test_where_it_cannot_be_kept_that_is_one_line(record: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / ".co" / "bisect").write_text("a file")
    assert main(ASKED) == 0
    told = capsys.readouterr()
    assert told.out.count("turn off:  reminder") == 1
    assert told.err.startswith("connectagent: view will not show this: ") and len(told.err.splitlines()) == 1


def test_it_goes_with_its_record_and_not_before(record: Path) -> None:
    keep_finding(record, finding())
    remove_oldest(record.parent, keep_files=0, keep_bytes=None, new=None, room=0, dry_run=True)
    assert findings_file(record).exists()
    assert len(remove_oldest(record.parent, keep_files=0, keep_bytes=None, new=None, room=0)) == 1
    assert not record.exists() and not findings_file(record).exists()


def test_a_link_is_not_followed(record: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / f"{record.stem}.json"
    other.write_text("[]")
    findings_file(record).parent.symlink_to(tmp_path / "elsewhere")
    assert main(ASKED) == 0 and other.read_text() == "[]"
    assert "a link may lead anywhere" in capsys.readouterr().err
    remove_oldest(record.parent, keep_files=0, keep_bytes=None)
    assert other.exists() and not record.exists()


def test_the_newest_ones_are_kept(record: Path) -> None:
    for number in range(MOST + 5):
        keep_finding(record, finding(symptom=f"says /{number}/"))
    assert [one["symptom"] for one in findings_of(record)] == [f"says /{number}/" for number in range(5, MOST + 5)]
    keep_finding(record, finding(said=["x" * 600_000]))
    keep_finding(record, finding(symptom="big", said=["x" * 600_000]))
    assert [one["symptom"] for one in findings_of(record)] == ["big"]
    assert sorted(path.name for path in findings_file(record).parent.iterdir()) == [".lock", f"{record.stem}.json"]


KEEP = """
import sys
from pathlib import Path
from connectagent.records.findings import keep_finding
for number in range(4):
    keep_finding(Path(sys.argv[1]), {"symptom": f"says /{sys.argv[2]}.{number}/", "said": ["."]})
"""


def test_searches_at_the_same_time_lose_no_finding(record: Path) -> None:
    searches = [subprocess.Popen([sys.executable, "-c", KEEP, str(record), str(number)]) for number in range(4)]
    assert [one.wait(60) for one in searches] == [0] * 4
    assert len(findings_of(record)) == 16


def test_an_export_has_what_was_found(record: Path, tmp_path: Path) -> None:
    entry = next(line for turn in read_record(record)["turns"] for line in turn["lines"] if line["type"] == "llm_call")
    here = {key: entry.get(key) for key in IDENTITY}
    keep_finding(record, finding(said=["turn off: reminder"], confirmed=True, entry=here, maker={"file": "/x.py"}))
    for form, shown in (("md", "## bisect: "), ("jsonl", '"type": "finding"'), ("html", "turn off: reminder")):
        done = CliRunner().invoke(cli, ["log", "export", str(record), "--to", form])
        assert shown in done.output and "vscode://" not in done.output, done.output[-500:]


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[1, null, []]", "[" * 100_000, '[{"symptom": 1, "said": []}]', '[{"symptom": "a", "said": "b"}]',
     '[{"symptom": "a", "said": [1]}]', '[{"symptom": "a", "said": [], "entry": 5}]',
     '[{"symptom": "a", "said": [], "maker": []}]', " " * 2_000_000 + "[]", "\udc80"],
)  # fmt: skip
def test_a_file_that_is_none_is_left_alone(text: str, record: Path) -> None:
    file = findings_file(record)
    file.parent.mkdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert findings_of(record) == [] and found_rows(record) == []


def test_a_hostile_one_is_shown_as_text(record: Path, capsys: Any) -> None:
    reading = Reading(record)
    reading.read()
    first = reading._listing.entries[0]
    maker = {"file": "/etc/passwd\x1b[2J", "line": "javascript:1"}
    said = ["\x1b]0;x\x07", "<script>", "\udc80"] * 30
    bad = finding(symptom="\x1b[2Jcalls", said=said, entry=first, maker=maker, date={"a": 1})
    keep_finding(record, bad)
    (row,) = found_rows(record)
    assert row["found"][0]["edit"] is None and len(row["found"][0]["said"].splitlines()) == 40
    assert json.dumps(row, allow_nan=False).encode()
    assert main(["log", "summary"]) == 0
    assert "\x1b]" not in (out := capsys.readouterr().out) and "\x1b[2J" not in out


@pytest.mark.posix("has no pipes among its files")
def test_a_pipe_is_not_waited_for(record: Path) -> None:
    findings_file(record).parent.mkdir()
    os.mkfifo(findings_file(record))
    assert found_rows(record) == []


def test_what_is_kept_is_masked(record: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "reminder-Reminder")
    monkeypatch.setenv("OTHER_SECRET", "Reminder.remind")
    assert main(ASKED[:4]) == 0
    assert "Reminder.remind" not in findings_file(record).read_text()
    assert json.loads(findings_file(record).read_text())[0]["symptom"] == "calls write_note"
