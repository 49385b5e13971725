"""The page's code: modules that fit together, checked by TypeScript, and one vendored library as it was published."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import connectagent_view
import pytest
from connectagent_view.page import SCRIPTS, library, script
from view_browser import NODE

VIEW = Path(connectagent_view.__file__).parent
VENDORED = {
    "marked.umd.js": "bb95d4c15f1289f78486eaacebf3bb18688475ed58a040ef762ed49337090542",
    "marked.LICENSE": "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c",
}


def test_what_is_vendored_is_as_it_was_published() -> None:
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (VIEW / "vendor").iterdir()}
    assert {name: digest for name, digest in files.items() if name != "README.md"} == VENDORED
    told = (VIEW / "vendor" / "README.md").read_text("utf-8")
    assert all(name in told for name in VENDORED)
    assert "marked v18.2.1" in library()[:100]


def test_every_module_is_in_the_page_behind_those_that_it_imports() -> None:
    assert set(SCRIPTS) == {path.name for path in VIEW.glob("*.js")}
    export = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.M)
    exports = {name: set(export.findall(text(name))) for name in SCRIPTS}
    for name in SCRIPTS:
        for names, other in re.findall(r"^import \{([^}]*)\} from \"\./(\w+\.js)\";$", text(name), re.M):
            assert {one.strip() for one in names.split(",")} <= exports[other], (name, other)
            assert SCRIPTS.index(other) < SCRIPTS.index(name), (name, other)
        assert len(re.findall(r"^import ", text(name), re.M)) == text(name).count(' from "./'), name
    assert not re.search(r"^(import|export) ", script(), re.M)


def test_no_two_modules_have_the_same_name_for_something() -> None:
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script(), re.M)
    assert [name for name, number in Counter(names).items() if number > 1] == []


def test_each_file_of_the_page_is_small() -> None:
    for path in [*VIEW.glob("*.js"), *VIEW.glob("*.css"), *VIEW.glob("*.html"), *VIEW.glob("*.py")]:
        assert len(path.read_text("utf-8").splitlines()) <= 300, path


def test_typescript_has_nothing_to_complain_about(tmp_path: Path) -> None:
    compiler = NODE / "node_modules" / ".bin" / "tsc"
    if not compiler.exists() or shutil.which("node") is None:
        pytest.skip(f"no TypeScript in {NODE}: npm install --prefix {NODE} typescript")
    options = {
        **dict.fromkeys(("checkJs", "allowJs", "noEmit", "strict", "noImplicitAny", "noUnusedLocals"), True),
        "target": "es2023",
        "module": "esnext",
        "moduleResolution": "bundler",
        "lib": ["es2023", "dom", "dom.iterable"],
        "types": [],
    }
    (tmp_path / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": options, "files": [str(VIEW / "page.js")]}), "utf-8"
    )
    done = subprocess.run([compiler, "-p", tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def text(name: str) -> str:
    return (VIEW / name).read_text("utf-8")
