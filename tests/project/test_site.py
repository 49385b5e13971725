"""The site of the documents: `mkdocs build --strict` knows of no broken link, anchor, docstring or missing page."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from connectagent import __all__ as public

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings") if find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install -e '.[docs]'")
def test_the_site_is_built_in_strict_mode_and_has_what_pages_take_from_elsewhere(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

    def page(name: str) -> str:
        return (tmp_path / "site" / name / "index.html").read_text("utf-8")

    api = page("api")
    shown = [name for name in public if f'id="connectagent.{name}"' in api or f'hooks/#{name}' in api]
    assert shown == public
    assert "ToolRejected" in page("cookbook/approve_before_tools")  # from the example's file
    assert 'href="../../trust/"' in page("cookbook/approve_before_tools")
    assert 'href="../../plugins/approve/"' in page("cookbook/approve_before_tools")
    assert (tmp_path / "site" / "images" / "view.png").is_file() and 'src="images/view.png"' in page("")
    assert 'href="pause-and-resume/"' in page("") and 'href="tutorial/"' in page("")
