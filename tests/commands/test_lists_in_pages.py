"""Pages that list hooks, commands, settings, models, errors or names of the agent list all that the code has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from connectagent import Agent, errors
from connectagent.cli.commands import COMMANDS
from connectagent.hooks.agent_api import AgentAPI
from connectagent.hooks.specs import HOOKS
from connectagent.models.names import PROVIDERS
from connectagent.settings import SETTINGS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def generator() -> ModuleType:
    """docs/generate.py, which is a script."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in GENERATE.pages()}


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("hooks", [f"### `{name}(" for name in HOOKS]),
        ("commands", [f"## `connectagent {name}`" for name in COMMANDS]),
        ("settings", [f"| `{name}` |" for name in SETTINGS]),
        ("models", [f"| `{name}/<model>` |" for name in PROVIDERS]),
        ("errors", [f"| `{name}`" for name in vars(errors) if name.endswith("Error") and name != "Error"]),
    ],
)
def test_a_page_lists_all_that_there_is(page: str, wanted: list[str]) -> None:
    text = PAGES[f"docs/{page}.md"]
    assert [one for one in wanted if text.count(f"\n{one}") != 1] == []


def test_the_page_of_the_agent_describes_what_handlers_and_the_other_pages_use() -> None:
    ours = [text for name, text in PAGES.items() if not name.endswith("coming-from.md")]
    named = set(re.findall(r"`agent\.([a-z_]+)", "\n".join(ours)))
    used = {name for name in {*vars(AgentAPI), *AgentAPI.__annotations__, *vars(Agent)} if not name.startswith("_")}
    described = set(re.findall(r"`agent\.([a-z_]+)", PAGES["docs/agent.md"]))
    assert (named | used) - described - {"py", "logger", "connection", *GENERATE.INTERNAL} == set()


def test_the_first_real_model_is_there_by_line_30_with_the_models_that_a_key_selects() -> None:
    section = README.split("## Your first real model\n")
    assert section[0].count("\n") < 30
    selecting = [one for one in PROVIDERS.values() if one.default_model]
    defaults = [f"`{one.key_variable}` selects `{one.default_model}`" for one in selecting]
    text = " ".join(section[1].split())
    places = [text.find(said) for said in defaults]
    assert -1 not in places and places == sorted(places)


def test_the_page_of_the_commands_begins_with_all_of_them() -> None:
    beginning = PAGES["docs/commands.md"].split("```")[0]
    assert [name for name in COMMANDS if f"`{name}`" not in beginning] == []
