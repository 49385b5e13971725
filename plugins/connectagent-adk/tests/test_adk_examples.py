"""Each example does what it says, and so does the README's code."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest
from connectagent_adk.callback import PARAMETERS

PLUGIN = Path(__file__).parents[1]
EXAMPLES = sorted((PLUGIN / "examples").glob("*.py"))

PRINTS = {
    "add_closing_note": [
        "It is done.",
        "It is done again. (Checked by nobody.)",
        "['It is done again.', 'It is done again. (Checked by nobody.)']",
    ],
    "cache_tool_results": ["12.5 Still 12.5", "asked 1 time"],
    "change_arguments": ["success attic, 7 nights", 'stand_in {"error": "The penthouse is not for rent."}'],
    "enrich_results": ["Mild.", '{"result": 21, "unit": "C", "city": "Oslo"}'],
    "guard_prompts": [
        "Why did the pancake blush?",
        "[Be brief.] You tell jokes.",
        "I do not talk about that.",
        "refused: 1 calls: 1",
    ],
    "keep_artifacts": ["The report has 14 bytes.", '{"saved": "report.txt", "version": 0}'],
    "log_everything": [
        "helper begins: Search for retries",
        "asks offline with 1 contents",
        "answers with 1 calls",
        "calls search({'query': 'retries'})",
        "search returns {'result': 'Two pages about retries'}",
        "asks offline with 3 contents",
        "answers with 0 calls",
        "ends",
    ],
    "recover_errors": [
        "Sorry, I cannot answer after 3 messages.",
        '{"price": 12, "note": "yesterday\'s, as the shop is closed"}',
    ],
    "remember_in_state": [
        "It is A-17.",
        '"You sell tea.\\n\\nThe user\'s last order is A-17."',
        "keep_number {'last_order': 'A-17'}",
    ],
    "require_token": ['{"login": "https://login.example/start"}', "You have one mail."],
    "reword_answers": ["There is a challenge: the log has no challenge in it."],
    "skip_agent_by_state": ["Good evening!", "desk is closed until eight."],
    "skip_over_quota": ["pages about tea", "pages about cups", '{"error": "No more searches in this turn."}'],
}


def test_every_example_has_its_expected_output() -> None:
    assert sorted(PRINTS) == [path.stem for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))["main"]()
    assert capsys.readouterr().out.splitlines() == PRINTS[path.stem]
    assert list(tmp_path.iterdir()) == []
    assert len(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "") > 80


def test_every_callback_is_shown_by_an_example_and_explained_in_the_readme() -> None:
    shown = "\n".join(path.read_text("utf-8") for path in EXAMPLES)
    readme = (PLUGIN / "README.md").read_text("utf-8")
    for slot in PARAMETERS:
        assert f"{slot}=" in shown, slot
        assert f"| `{slot}` |" in readme, slot


def test_the_code_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = (PLUGIN / "README.md").read_text("utf-8").split("```python\n")[1:]
    for block in blocks:
        exec(block.split("```")[0], {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines()[0] == "I do not talk about passwords."
