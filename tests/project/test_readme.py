"""What the README and docs/ say is true: their code and commands run, their tables and lists are the code's own."""

import fnmatch
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import connectagent
import connectagent.testing
from connectagent import Agent, errors
from connectagent.cli.commands import COMMANDS
from connectagent.hooks.agent_api import AgentAPI
from connectagent.hooks.specs import HOOKS
from connectagent.models.names import PROVIDERS
from connectagent.settings import SETTINGS, overrides

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def generator():
    """docs/generate.py, which is a script."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in GENERATE.pages()}
OTHERS = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md"]
OTHERS += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("plugins/**/README.md"))]
LINKING = {**PAGES, **{name: (ROOT / name).read_text(encoding="utf-8") for name in OTHERS}}


def blocks(language):
    return [
        pytest.param(found.group(1), id=f"{name} line {text[: found.start()].count(chr(10)) + 1}")
        for name, text in PAGES.items()
        for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def lines_with(text):
    return [line for line in README.splitlines() if text in line]


def anchors(text):
    """The names by which the headings of a page are linked to."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def offline(monkeypatch, tmp_path):
    for provider in PROVIDERS.values():
        if provider.key_variable:
            monkeypatch.delenv(provider.key_variable, raising=False)
    for name in SETTINGS:
        monkeypatch.delenv(f"CONNECTAGENT_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


# -- code and commands ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_runs_without_a_key_and_without_a_network(code, offline):
    for library in re.findall(r"^from (fastapi|joblib|distributed|celery) import", code, re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed")
    exec(compile(code, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("code", [block for block in blocks("sh") if "venv" not in block.values[0]])
def test_a_shell_block_runs(code, offline, tmp_path):
    for command in ("connectagent", "python"):
        wrapper = tmp_path / "bin" / command
        wrapper.parent.mkdir(exist_ok=True)
        module = "-m connectagent" if command == "connectagent" else ""
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        wrapper.chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-euc", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_agent_says_what_the_readme_shows(offline, capsys):
    exec(blocks("python")[0].values[0], {})
    assert capsys.readouterr().out == blocks("text")[0].values[0]


def test_the_first_handler_rejects_as_the_readme_says(offline, capsys):
    exec(blocks("python")[2].values[0], {})
    rejected = "rejected: Never search for passwords."
    assert rejected in capsys.readouterr().out and f"`{rejected}`" in README


def test_the_shop_of_the_page_about_tools_orders(offline, capsys):
    (shop,) = [block.values[0] for block in blocks("python") if "class Shop" in block.values[0]]
    exec(shop, {"__name__": "page"})
    ordered = "- order(item='tea', size='large'): ordered: tea (large)"
    assert f"{ordered}\n['show_basket', 'order']" in capsys.readouterr().out


def test_the_pages_leave_no_options_of_the_command_line_in_force():
    assert overrides == {}


# -- the README ----------------------------------------------------------------------------------


def test_the_readme_is_short():
    assert 100 <= len(README.splitlines()) <= 150


@pytest.mark.parametrize("heading", ["Your first agent", "Your first handler"])
def test_what_comes_first_is_a_few_lines(heading):
    block = README.split(f"## {heading}")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 12


def test_the_sections_are_in_the_order_in_which_they_are_looked_for():
    assert re.findall(r"^## (.*)$", README, re.MULTILINE) == [
        "Install",
        "Your first agent",
        "Your first real model",
        "Your first handler",
        "The hooks",
        "What makes it different",
        "Where to go on",
        "Working on connectagent",
    ]


def test_the_first_real_model_is_there_by_line_30_with_the_models_that_a_key_selects():
    section = README.split("## Your first real model\n")
    assert section[0].count("\n") < 30
    selecting = [one for one in PROVIDERS.values() if one.default_model]
    defaults = [f"`{one.key_variable}` selects `{one.default_model}`" for one in selecting]
    text = " ".join(section[1].split())
    places = [text.find(said) for said in defaults]
    assert -1 not in places and places == sorted(places)


def test_the_picture_is_small():
    (picture,) = re.findall(r"!\[[^\]]+\]\([^)]*\b(docs/[^)]+)\)", README)
    assert (ROOT / picture).stat().st_size < 200_000


def test_each_of_the_two_commands_is_one_line():
    (demo,) = lines_with("bin/connectagent demo")
    (tests,) = lines_with("bin/pytest")
    for line in (demo, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")


def test_the_checks_of_every_change_run_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "grep -m 1 'bin/pytest' README.md" in script
    assert script.rstrip().splitlines()[-2:] == ['bash -euc "$tests -rs" || status=$?', 'exit "$status"']


# -- the pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_the_generated_parts_are_up_to_date(name):
    assert GENERATE.updated(PAGES[name]) == PAGES[name], "write them anew: python docs/generate.py"


def test_the_page_of_the_commands_begins_with_all_of_them():
    beginning = PAGES["docs/commands.md"].split("```")[0]
    assert [name for name in COMMANDS if f"`{name}`" not in beginning] == []


def test_a_hidden_option_leaves_no_empty_row_on_the_page_of_the_commands():
    assert "| `` |" not in PAGES["docs/commands.md"]


def test_each_generated_part_stands_in_one_page():
    places = {part: [name for name, text in PAGES.items() if f"<!-- {part} -->\n" in text] for part in GENERATE.PARTS}
    assert {part: len(names) for part, names in places.items()} == dict.fromkeys(GENERATE.PARTS, 1)


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
def test_a_page_lists_all_that_there_is(page, wanted):
    text = PAGES[f"docs/{page}.md"]
    assert [one for one in wanted if text.count(f"\n{one}") != 1] == []


def test_the_page_of_errors_has_each_attribute_of_a_providers_error():
    section = PAGES["docs/errors.md"].split("## `ProviderError`")[1].split("```")[0]
    attributes = re.findall(r"^ {4}(\w+): ", inspect.getdoc(errors.ProviderError), re.MULTILINE)
    assert len(attributes) > 5 and [name for name in attributes if f"`{name}`" not in section] == []


def test_the_page_of_the_agent_describes_what_handlers_and_the_other_pages_use():
    ours = [text for name, text in PAGES.items() if not name.endswith("coming-from.md")]
    named = set(re.findall(r"`agent\.([a-z_]+)", "\n".join(ours)))
    used = {name for name in {*vars(AgentAPI), *AgentAPI.__annotations__, *vars(Agent)} if not name.startswith("_")}
    described = set(re.findall(r"`agent\.([a-z_]+)", PAGES["docs/agent.md"]))
    assert (named | used) - described - {"py", "logger", "connection", *GENERATE.INTERNAL} == set()


def test_before_the_first_release_no_page_takes_a_plugin_from_pypi_where_anybody_may_have_its_name():
    released = re.search(r"^## \[\d", LINKING["CHANGELOG.md"], re.MULTILINE)
    taking = [name for name, text in LINKING.items() if re.search(r"`pip install '?connectagent-", text)]
    assert released or taking == []


INDEX = "cookbook/index.md"
RECIPES = sorted(f"cookbook/{path.stem}.md" for path in (ROOT / "examples").glob("*.py"))


def test_each_page_is_listed_once_in_the_index_and_in_the_site():
    names = sorted(path.name for path in DOCS.glob("*.md") if path.name != "README.md")
    index = re.findall(r"^\| \[[^\]]+\]\(([\w/-]+\.md)\)", PAGES["docs/README.md"], re.MULTILINE)
    site = re.findall(r"^ *- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(index) == sorted([*names, "cookbook/index.md"])
    elsewhere = ["index.md", "tutorial.md", "security.md", "changelog.md"]
    plugins = [path.name.removeprefix("connectagent-") for path in (ROOT / "plugins").glob("connectagent-*")]
    elsewhere += [f"plugins/{name}.md" for name in plugins]
    assert sorted(site) == sorted([*names, *elsewhere, "cookbook/index.md", *RECIPES])
    table = re.findall(r"^\| \[(\w+)\]\(../plugins/connectagent-\1\)", PAGES["docs/plugins.md"], re.MULTILINE)
    assert sorted(table) == sorted(plugins)


def test_the_cookbook_has_a_page_for_each_example_which_shows_its_file():
    assert sorted(name for name in PAGES if "cookbook" in name) == sorted(f"docs/{one}" for one in [*RECIPES, INDEX])
    listed = re.findall(r"\]\((\w+\.md)\) \|$", PAGES[f"docs/{INDEX}"], re.MULTILINE)
    assert sorted(f"cookbook/{name}" for name in listed) == RECIPES
    for recipe in RECIPES:
        file = f"examples/{Path(recipe).stem}.py"
        assert f'```python title="{file}"\n--8<-- "{file}"\n```\n' in PAGES[f"docs/{recipe}"]


def test_the_page_of_the_python_api_has_each_public_name_once():
    page = PAGES["docs/api.md"]
    for module in (connectagent, connectagent.testing):
        shown = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", page, re.MULTILINE)
        marked = re.findall(r"\[`(\w+)`\]\(hooks\.md#", page) if module is connectagent else []
        assert sorted(shown + marked) == sorted(module.__all__)


@pytest.mark.parametrize("name", LINKING)
def test_each_link_leads_somewhere(name):
    text = re.sub(r"^```.*?^```$", "", LINKING[name], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        if of_release := re.fullmatch(r"https://[\w./]+?/connectagent/(?:(?:blob|tree)/)?v[\d.]+/(.+)", path):
            file = ROOT / of_release[1]  # in an sdist, whose README an index shows without the files beside it
        elif path.startswith("https://"):
            continue
        else:
            file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target


def test_the_page_about_internals_lists_each_file_of_the_larger_rooms():
    room, listed = "", {}
    table = PAGES["docs/internals.md"].split("The files of the larger rooms:")[1].split("\n## ")[0]
    for named, files in re.findall(r"^\| (?:`(\w+)/`)? ?\| (`.*?) \|", table, re.MULTILINE):
        room = named or room
        listed.setdefault(room, []).extend(re.findall(r"`([\w*]+\.py)`", files))
    for room, names in listed.items():
        found = [path.name for path in (ROOT / "connectagent" / room).glob("*.py") if path.name != "__init__.py"]
        matched = [name for pattern in names for name in fnmatch.filter(found, pattern)]
        assert sorted(found) == sorted(set(matched)), room
        assert all(fnmatch.filter(found, pattern) for pattern in names), room


def test_the_changelog_has_its_headings():
    assert re.findall(r"^##+ (.*)$", LINKING["CHANGELOG.md"], re.MULTILINE)[:4] == [
        "[Unreleased]",
        "Added",
        "Changed",
        "Fixed",
    ]
