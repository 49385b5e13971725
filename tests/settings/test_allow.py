"""`connectagent allow`: what a project's file asks for waits for the person's word, for one folder and one content."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from test_discovery import ENDING, site  # noqa: F401  a fixture
from wire_server import WireServer, chat

from connectagent import Agent, ConfigError
from connectagent.loop.ask import llm_do
from connectagent.models.create import create_llm
from connectagent.settings import asked_by, co_folder, overrides, read_allowed, refusal, setting
from connectagent.settings.allowed import allow, asked_for, digest, store, word_for
from connectagent.testing import ScriptedLLM

ROOT = Path(__file__).parents[2]
MARK = """
from connectagent import on_complete
open({ran!r}, "a").close()

@on_complete
def mark(result):
    return "M"
"""
AGENT = "from connectagent import Agent\nagent = Agent('a', quiet=True)\n"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("GATEWAY_URL", "GATEWAY_KEY", "PLUGINS", "MODEL", "DIR", "MASK"):
        monkeypatch.delenv(f"CONNECTAGENT_{name}", raising=False)


def project(text: str, folder: Path | None = None) -> Path:
    path = (folder or Path.cwd()) / "pyproject.toml"
    path.write_text(f"[tool.connectagent]\n{text}\n")
    return path


def allowed(folder: Path | None = None) -> None:
    folder = folder or Path.cwd()
    allow(folder, asked_by(folder / "pyproject.toml"))


def co(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command as one that is installed: the current folder is no place of modules."""
    return forked.run(
        "-P", "-m", "connectagent", *arguments,
        cwd=cwd,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(Path.cwd().parent / "home"),
            "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
            **variables,
        },
        timeout=60,
    )


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and 3 <= len(lines) <= 5, done.stderr
    assert "Traceback" not in done.stderr
    for word in ("pyproject.toml is not allowed yet", "connectagent allow", *words):
        assert word in done.stderr


# -- addresses -----------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WireServer]:
    monkeypatch.setenv("CONNECTAGENT_GATEWAY_KEY", "key-of-the-person")
    with WireServer(chat("Hello.")) as running:
        yield running


def asks(model: str | None = None) -> list[object]:
    """The doors to a model, each called once."""
    named = {"model": model} if model else {}
    return [
        lambda: Agent("a", log=False, quiet=True, **named).input("secret prompt"),
        lambda: create_llm(model).complete([{"role": "user", "content": "secret prompt"}]),
        lambda: llm_do("secret prompt", model=model),
        lambda: Agent("a", model=model or "co/x", api_key="k", log=False, quiet=True).input("secret prompt"),
        lambda: Agent("a", llm=ScriptedLLM(), log=False, quiet=True).create_llm(model or "co/x"),
    ]


@pytest.mark.parametrize("model", [None, "co/gpt-4o"])
def test_an_address_of_a_project_gets_neither_key_nor_prompt_until_it_is_allowed(
    model: str | None, server: WireServer
) -> None:
    project(f"model = 'co/x'\ngateway_url = '{server.openai_url}'")
    for ask in asks(model):
        with pytest.raises(ConfigError, match="gateway_url = 'http") as error:
            ask()  # type: ignore[operator]
        assert len(str(error.value).splitlines()) <= 5
        assert str(error.value).endswith(f"connectagent allow {Path.cwd()}")
    assert not server.requests and not server.headers
    allowed()
    for ask in asks(model):
        ask()  # type: ignore[operator]
    assert server.headers[0]["authorization"] == "Bearer key-of-the-person"


def test_another_address_or_another_folder_needs_another_word(server: WireServer, tmp_path: Path) -> None:
    project("gateway_url = 'http://127.0.0.1:9/v1'")
    allowed()
    assert setting("gateway_url") == "http://127.0.0.1:9/v1"
    project(f"gateway_url = '{server.openai_url}'")
    with pytest.raises(ConfigError, match="has changed since you allowed it"):
        create_llm("co/x")
    project("gateway_url = 'http://127.0.0.1:9/v1'")
    assert setting("gateway_url")
    shutil.copytree(Path.cwd(), tmp_path / "copy")
    os.chdir(tmp_path / "copy")
    with pytest.raises(ConfigError, match="is not allowed yet"):
        create_llm("co/x")
    assert not server.requests


def test_a_key_of_a_project_is_not_used_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_GATEWAY_URL", "http://127.0.0.1:9/v1")
    project("gateway_key = 'key-of-a-stranger'")
    with pytest.raises(ConfigError, match="gateway_key") as error:
        create_llm("co/x")
    assert "key-of-a-stranger" not in str(error.value)
    allowed()
    assert create_llm("co/x")._key() == "key-of-a-stranger"  # type: ignore[attr-defined]


def test_environment_and_code_need_no_word(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    project("gateway_url = 'http://127.0.0.1:9/v1'\nmodel = 'co/x'")
    Agent("a", model="co/x", base_url=server.openai_url, api_key="k", log=False, quiet=True).input("Hi")
    monkeypatch.setenv("CONNECTAGENT_GATEWAY_URL", server.openai_url)
    Agent("a", log=False, quiet=True).input("Hi")
    assert [head["authorization"] for head in server.headers] == ["Bearer k", "Bearer key-of-the-person"]


def test_settings_that_stay_in_the_folder_need_no_word() -> None:
    project("model = 'offline'\ndir = 'records'\nmask = ['token']\nplugins = ['approve', 'no:./x.py']\nquiet = true")
    assert asked_by(Path("pyproject.toml")) == [] and refusal() is None
    assert co_folder() == Path.cwd() / "records"


@pytest.mark.parametrize("place", ["/somewhere", "~/other", "../other", "a/../../other"])
def test_records_are_written_outside_of_the_project_when_it_is_allowed(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project(f"dir = '{place}'")
    Agent("a", llm=ScriptedLLM("Hi."), quiet=True).input("Hi")
    assert "the record cannot be written" in (told := capsys.readouterr().err) and "dir = " in told
    with pytest.raises(ConfigError, match="dir = "):
        co_folder()
    assert_refused(co("log", "list"), "dir = ")
    outside = Path(os.path.abspath(os.path.expanduser(place)))
    assert not outside.exists() and not Path(".co").exists()
    allowed()
    assert co_folder() == outside


def test_a_project_does_not_switch_masking_off_until_it_is_allowed() -> None:
    (Path.cwd() / "agent.py").write_text(AGENT)
    project("mask = 'off'")
    variables = {"SHOP_TOKEN": "tok-4471-abcdef-9920"}
    done = co("run", "agent.py", "What is tok-4471-abcdef-9920?", **variables)
    texts = [path.read_text() for path in Path.cwd().rglob(".co/**/*") if path.is_file()]
    assert not any("tok-4471" in text for text in texts)
    assert "tok-4471" not in done.stderr
    allowed()
    co("run", "agent.py", "What is tok-4471-abcdef-9920?", **variables)
    assert any("tok-4471" in path.read_text() for path in Path.cwd().rglob(".co/evals/*.yaml"))


@pytest.mark.parametrize("value", ["'https://evil.example'", "['x', './more.py']", "{a = {b = '/etc'}}", "'~/x'"])
def test_options_of_a_plugin_that_reach_out_need_the_word(value: str, site: object) -> None:  # noqa: F811
    site("ending", ENDING.replace("text * times", "str(text)"), "{module}:Ending")  # type: ignore[operator]
    project(f"plugins = ['ending']\n[tool.connectagent.ending]\ntext = {value}")
    with pytest.raises(ConfigError, match=r"ending\.text.* = "):
        Agent("a", llm=ScriptedLLM("Hi."), log=False, quiet=True)
    allowed()
    assert Agent("a", llm=ScriptedLLM("Hi."), log=False, quiet=True).input("x") != "Hi."


# -- code ----------------------------------------------------------------------------------------


@pytest.fixture
def marked() -> Path:
    """A project that names a file of code, which leaves a file when it runs."""
    ran = Path.cwd().parent / "ran"
    Path("mark.py").write_text(MARK.format(ran=str(ran)))
    Path("agent.py").write_text(AGENT)
    (Path.cwd().parent / "mine.py").write_text(AGENT)
    project("plugins = ['./mark.py']")
    return ran


WITHOUT_A_SCRIPT = [["plugins", "plan"], ["chat"], ["run", "../mine.py", "Hi"], ["chat", "../mine.py"]]


@pytest.mark.parametrize("command", WITHOUT_A_SCRIPT)
def test_code_of_a_project_waits_for_the_word_where_no_script_of_it_is_named(command: list[str], marked: Path) -> None:
    assert_refused(co(*command), "the code of plugin './mark.py'")
    assert not marked.exists()
    allowed()
    assert co(*command).returncode == 0
    assert marked.exists()


@pytest.mark.parametrize("command", [["run", "agent.py", "Hi"], ["plugins", "plan", "agent.py"], ["chat", "agent.py"]])
def test_a_script_that_the_person_names_may_load_the_code_of_its_own_project(command: list[str], marked: Path) -> None:
    done = co(*command)
    assert done.returncode == 0, done.stderr
    assert marked.exists()


def test_a_program_loads_the_code_of_the_project_that_it_lies_in_and_of_no_other(marked: Path, tmp_path: Path) -> None:
    code = "from connectagent import Agent\nprint(Agent('a', log=False, quiet=True).input('Hi'))\n"
    (Path.cwd() / "inside").mkdir()
    for path in (Path("inside/program.py"), tmp_path / "outside.py"):
        path.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=60)

    assert python("inside/program.py").stdout == "M\n"
    marked.unlink()
    for arguments in ([str(tmp_path / "outside.py")], ["-c", code]):
        done = python(*arguments)
        assert done.returncode == 1 and "is not allowed yet" in done.stderr
    assert not marked.exists()


def test_a_program_of_the_environment_is_no_program_of_the_project(
    marked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as pytest, installed into a `.venv` inside of the project."""
    monkeypatch.setitem(overrides, "program", str(Path.cwd() / "tool.py"))
    monkeypatch.setattr(sys, "prefix", str(Path.cwd() / ".venv"))
    assert Agent("a", llm=ScriptedLLM("Hi."), log=False, quiet=True).input("x") == "M"
    monkeypatch.setitem(overrides, "program", str(Path.cwd() / ".venv" / "bin" / "tool"))
    with pytest.raises(ConfigError, match="is not allowed yet"):
        Agent("a", llm=ScriptedLLM("Hi."), log=False, quiet=True)


@pytest.mark.parametrize("way", ["command line", "environment", "code"])
def test_what_the_person_names_besides_needs_no_word(way: str, marked: Path) -> None:
    if way == "code":
        path = str(Path.cwd() / "mark.py")
        assert Agent("a", llm=ScriptedLLM("Hi."), plugins=[path], log=False, quiet=True).input("x") == "M"
        return
    options = ["-p", "./mark.py"] if way == "command line" else []
    variables = {"CONNECTAGENT_PLUGINS": str(Path.cwd() / "mark.py")} if way == "environment" else {}
    assert co("plugins", "plan", *options, **variables).returncode == 0
    assert marked.exists()


def test_code_that_is_left_out_needs_no_word(marked: Path) -> None:
    done = co("plugins", "plan", "-p", "no:mark")
    assert done.returncode == 0, done.stderr
    assert not marked.exists()


def test_changed_code_needs_a_new_word(marked: Path) -> None:
    allowed()
    assert co("plugins", "plan").returncode == 0
    marked.unlink()
    Path("mark.py").write_text(Path("mark.py").read_text() + "# more\n")
    done = co("plugins", "plan")
    assert done.returncode == 1 and "has changed since you allowed it" in done.stderr
    assert not marked.exists()


def test_the_doctor_tells_what_is_not_allowed(marked: Path) -> None:
    done = co("plugins", "doctor")
    assert done.returncode == 1 and "the code of plugin './mark.py'" in done.stdout
    allowed()
    assert co("plugins", "doctor").returncode == 0


def test_many_wishes_are_told_in_five_lines(marked: Path) -> None:
    project("plugins = ['./mark.py', './a.py', './b.py']\ngateway_url = 'http://x'\nmask = 'off'\ndir = '/x'")
    done = co("plugins", "plan", CONNECTAGENT_DIR="here", CONNECTAGENT_MASK="on")
    assert_refused(done, "the code of plugin './mark.py'", "and 5 more: connectagent allow --show")


# -- the command ---------------------------------------------------------------------------------


def test_the_command_shows_allows_lists_and_revokes(marked: Path, tmp_path: Path) -> None:
    project("plugins = ['./mark.py']\ngateway_key = 'hidden'\ngateway_url = \"http://gate.example/\\u202e\\u001b[2J\"")
    shown = co("allow", "--show").stdout.splitlines()
    assert shown[0] == f"{Path.cwd() / 'pyproject.toml'} asks for:"
    assert shown[1:] == [
        "  the code of plugin './mark.py'",
        "  gateway_key (its value is not shown)",
        "  gateway_url = 'http://gate.example/\\u202e\\x1b[2J'",
    ]
    assert word_for(Path.cwd()) is None
    assert co("allow", "--list").stdout == "you have allowed nothing\n"
    (Path.cwd() / "deeper").mkdir()
    done = co("allow", str(Path.cwd() / "deeper"), cwd=tmp_path)
    assert done.stdout.splitlines() == [f"{Path.cwd() / 'pyproject.toml'} is allowed:", *shown[1:]]
    assert refusal() is None
    first, *rest = co("allow", "--list", cwd=tmp_path).stdout.splitlines()
    assert first.startswith(f"{Path.cwd()}  20") and first.endswith("  allowed") and rest == shown[1:]
    Path("mark.py").write_text("")
    assert co("allow", "--list").stdout.splitlines()[0].endswith("  changed since")
    assert co("allow", "--revoke").stdout == f"{Path.cwd()} is not allowed any more\n"
    assert refusal() is not None and co("allow", "--revoke").returncode == 1
    co("allow", "pyproject.toml")
    Path("pyproject.toml").unlink()
    assert co("allow", "--list").stdout.splitlines()[0].endswith("  gone")
    assert co("allow", "--revoke", str(Path.cwd())).returncode == 0
    assert co("allow", "--list").stdout == "you have allowed nothing\n"
    assert not marked.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--list", "--revoke"], 2, "give one of"),
        (["--list", "."], 2, "--list takes no path"),
        (["nowhere"], 2, "is no folder"),
        ([], 1, "there is no pyproject.toml that is yours"),
        (["--revoke"], 1, "you have not allowed"),
    ],
)
def test_a_mistake_is_told(arguments: list[str], code: int, told: str) -> None:
    done = co("allow", *arguments)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr


def test_there_may_be_nothing_to_allow() -> None:
    path = project("model = 'offline'")
    assert co("allow").stdout == f"{path} asks for nothing that you would have to allow\n"
    assert not store().exists()


def test_a_state_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    project("gateway_url = 'http://x'")
    (tmp_path / "file").write_text("")
    done = co("allow", XDG_STATE_HOME=str(tmp_path / "file"))
    assert done.returncode == 1 and "cannot be written" in done.stderr and "Traceback" not in done.stderr


# -- how the word is kept ------------------------------------------------------------------------


def kept() -> Path:
    project("gateway_url = 'http://x'")
    allowed()
    (path,) = store().iterdir()
    return path


@pytest.mark.posix("has no modes: a user's folder is the user's alone")
def test_the_word_is_the_users_alone(tmp_path: Path) -> None:
    path = kept()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent == tmp_path / "state" / "connectagent" / "allowed"
    assert refusal() is None
    for mode in (0o644, 0o620, 0o602):  # git and archives write such modes
        path.chmod(mode)
        assert refusal() is not None
    path.chmod(0o600)
    assert refusal() is None


@pytest.mark.posix("tells no owner by a number")
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_a_word_of_another_user_is_none() -> None:
    os.chown(kept(), 12345, 12345)
    assert refusal() is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"folder": 1}', '{"digest": "x", "folder": "", "asked": []}'])
def test_a_word_that_cannot_be_read_is_none(text: str) -> None:
    path = kept()
    path.write_text(text)
    assert refusal() is not None
    assert co("allow", "--list").stdout == "you have allowed nothing\n"


@pytest.mark.posix("has no pipes among its files")
def test_a_link_a_pipe_or_another_folders_file_is_no_word(tmp_path: Path) -> None:
    path = kept()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refusal() is not None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert refusal() is not None


def test_the_state_folder_is_where_the_xdg_specification_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert store() == tmp_path / "me" / ".local" / "state" / "connectagent" / "allowed"


def test_a_word_holds_no_key() -> None:
    project("gateway_key = 'key-of-a-stranger'")
    allowed()
    (path,) = store().iterdir()
    assert "key-of-a-stranger" not in path.read_text()
    assert set(json.loads(path.read_text())) == {"folder", "digest", "asked", "when"}


# -- a file that a plugin reads --------------------------------------------------------------------


def hooks(text: str = '{"run": "sh $PROJECT/scripts/check.sh"}') -> Path:
    """A project with a file that says what is to run, and the script that it names."""
    Path(".git").mkdir()
    for name, content in ((".tool/hooks.json", text), ("scripts/check.sh", "true\n")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    return Path(".tool/hooks.json").absolute()


def test_a_file_with_commands_is_read_once_it_is_allowed_and_not_after_a_change() -> None:
    file = hooks()
    with pytest.raises(ConfigError, match=r"hooks\.json is not allowed yet[^\n]*\n.*connectagent allow .*hooks\.json"):
        read_allowed(file)
    done = co("allow", "--show", str(file))
    assert "what hooks.json says" in done.stdout and "the file 'scripts/check.sh'" in done.stdout
    assert co("allow", str(file)).returncode == 0
    assert read_allowed(file).startswith('{"run"')
    assert f"{file}  " in (listed := co("allow", "--list").stdout) and "  allowed" in listed
    Path("scripts/check.sh").write_text("curl evil\n")
    with pytest.raises(ConfigError, match="has changed since you allowed it, or a file that it names"):
        read_allowed(file)
    assert "changed since" in co("allow", "--list").stdout
    assert co("allow", str(file)).returncode == 0 and read_allowed(file)
    file.write_text('{"run": "other"}')
    with pytest.raises(ConfigError, match="has changed"):
        read_allowed(file)
    assert co("allow", "--revoke", str(file)).returncode == 0
    with pytest.raises(ConfigError, match="not allowed yet"):
        read_allowed(file)


def test_a_program_of_the_project_may_read_its_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    file = hooks()
    monkeypatch.setitem(overrides, "program", str(Path("agent.py").absolute()))
    assert read_allowed(file)
    monkeypatch.setitem(overrides, "program", str(Path.cwd().parent / "elsewhere" / "agent.py"))
    with pytest.raises(ConfigError, match="not allowed yet"):
        read_allowed(file)


def test_what_a_word_for_a_file_does_not_cover_is_outside_of_the_project() -> None:
    Path("../outside.sh").write_text("true\n")
    file = hooks('{"run": "../outside.sh scripts/check.sh /etc/passwd ..", "x": "\\u0000"}')
    assert [one.text for one in asked_by(file)] == ["what hooks.json says", "the file 'scripts/check.sh'"]


def test_a_file_that_cannot_be_read_cannot_be_allowed() -> None:
    file = hooks()
    file.write_bytes(b"\xff\xfe\x00")
    done = co("allow", str(file))
    assert done.returncode == 1 and "cannot be read" in done.stderr and "Traceback" not in done.stderr
    assert co("allow", "no-such-file").returncode == 2
@pytest.mark.parametrize(
    ("table", "asked"),
    [
        ({"check": "rm -rf x"}, ["the command x.check = 'rm -rf x'"]),
        ({"check": ["make", "x"]}, ["the command x.check = 'make x'"]),
        ({"servers": {"a": {"command": "sh", "args": ["-c", "y"]}}}, ["the command x.servers.a.command = 'sh -c y'"]),
        ({"hooks": [{"command": "y"}]}, ["the command x.hooks.command = 'y'"]),
        ({"file": ".mcp.json"}, ["x.file = '.mcp.json'"]),
        ({"calls": 2, "mode": "warn"}, []),
    ],
)
def test_commands_in_options_of_plugins_need_the_word(table: dict[str, object], asked: list[str]) -> None:
    assert [one.text for one in asked_for({"x": table}, Path())] == asked


def test_other_arguments_of_a_command_and_another_mcp_json_need_a_new_word(tmp_path: Path) -> None:
    def word(arguments: str, text: str) -> str:
        (tmp_path / ".mcp.json").write_text(text)
        table = {"file": ".mcp.json", "servers": {"a": {"command": "sh", "env": {"X": arguments}}}}
        return digest(asked_for({"mcp": table}, tmp_path))

    assert len({word("a", "{}"), word("b", "{}"), word("a", "[]"), word("a", "{}")}) == 3
