"""Each mistake of a user costs at most five lines, which say what is wrong and what to do about it."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

import pytest
from mistake_runner import run
from mistake_table import AGENT, MISTAKES, RUN, Mistake


def folder_of(mistake: Mistake, above: Path) -> Path:
    folder = above / "project"
    folder.mkdir()
    if mistake.given.get("no_folder"):
        return folder
    for name, content in {"agent.py": AGENT, **mistake.files}.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    if mistake.given.get("without_rights"):
        folder.chmod(0o555)
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the record of one session."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "agent.py").write_text(AGENT)
    assert run(folder, shlex.split(RUN))[0] == 0
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_a_mistake_costs_five_lines_that_name_it_and_its_remedy(mistake: Mistake, recorded: Path) -> None:
    with tempfile.TemporaryDirectory() as above:
        folder = folder_of(mistake, Path(above))
        if mistake.has_record:
            shutil.copytree(recorded, folder, dirs_exist_ok=True)
        code, output, error = run(folder, shlex.split(mistake.command), **mistake.given)
        if folder.exists():
            folder.chmod(0o755)
    assert code == mistake.code, error
    assert mistake.says in error and mistake.remedy in error, error
    assert len(error.splitlines()) <= 5 and "Traceback" not in error
    assert bool(error) == bool(mistake.says)  # what is no mistake of anybody says nothing
    assert output == "" or mistake.code == 0


def test_no_mistake_is_in_the_table_twice() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 57
