"""Distributions of plugins that a test installs by writing them into a folder of `sys.path`."""

import sys

import pytest

MARK = "from connectagent import on_complete\n\n@on_complete\ndef mark(result):\n    return result + '!'\n"
ENDING = """
from connectagent import on_complete

class Ending:
    def __init__(self, text: str = '.', times: int = 1):
        self.ending = text * times

    @on_complete
    def end(self, result):
        return result + self.ending
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed distributions: `site(name, text, value)` adds one; it is the current folder too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_PLUGINS", raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    modules = set(sys.modules)

    def add(name, text, value="{module}", distribution=None, group="connectagent"):
        module = f"plugin_{tmp_path.name.replace('-', '_')}_{name.replace('-', '_').replace('.', '_')}"
        (folder / f"{module}.py").write_text(text)
        distribution = distribution or f"connectagent-{name}"
        info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value.format(module=module)}\n")
        monkeypatch.syspath_prepend(str(folder))  # a path of its own: what was read of it before is not asked again
        return module

    yield add
    for name in set(sys.modules) - modules:
        if name.startswith("plugin_"):
            del sys.modules[name]


PROVIDER = (
    "from connectagent import register_models\nfrom connectagent.testing import ScriptedLLM\n\n"
    "@register_models\ndef bring():\n    return {'PREFIX': lambda name: ScriptedLLM(name)}\n"
)
