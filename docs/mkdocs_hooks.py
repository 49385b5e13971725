"""What the site has beyond docs/: README, tutorial, changelog, plugins. Links to other files become plain text."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "plugins/README.md": "tutorial.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the repository outside of docs/, each with the page that it becomes."""

_FOUND = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
PLUGINS = {name: f"plugins/{name.removeprefix('connectagent-')}.md" for name in _FOUND}
ELSEWHERE |= {f"plugins/{name}/README.md": page for name, page in PLUGINS.items()}
FOLDERS = {f"plugins/{name}": page for name, page in PLUGINS.items()}
"""Links to the folder of a plugin lead to its page."""

_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from elsewhere."""
    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Let links between files of the repository lead to the pages that these are, or be text where they are none."""
    pages = ELSEWHERE | FOLDERS | {f"docs/{file.src_uri}": file.src_uri for file in files}
    here = next(path for path, name in pages.items() if name == page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        name = pages.get(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
        return text if name is None else f"[{text}]({posixpath.relpath(name, folder or '.')}{anchor or ''})"

    return _LINK.sub(link, markdown)
