"""The legs on which connectagent is tested: `nox` runs all, `nox --list` shows them, `nox -s lint` runs one.

`pip install -e '.[legs]'` brings nox and uv. A Python that the machine does not have is skipped, except on GitHub.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
PYTHONS = ["3.11", "3.12", "3.13"]
LOWEST, NEWEST = PYTHONS[0], PYTHONS[-1]
# What a version of Python or of a library breaks first, in few seconds.
QUICK = [
    "tests/commands/test_cli.py::test_an_unknown_option_is_a_usage_error",
    "tests/commands/test_cli.py::test_an_empty_prompt_is_a_usage_error",
    "tests/promises/test_hook_table.py",
    "tests/project/test_house.py",
    "tests/project/test_libraries.py",
    "tests/models/test_prompt_caching.py",
    "tests/models/test_providers_names.py",
    "tests/tools/test_tool_schemas.py",
]
QUICK_TOOLS = ["pytest", "pytest-xdist", "hypothesis"]
HEAVY = ["dbos", "local", "ray"]
"""Plugins with a large library; the rest is in the extra `all`."""

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = bool(os.environ.get("GITHUB_ACTIONS"))
nox.options.sessions = ["lint", "tests", "lowest", "lowest_core", "newest", "windows", "sdist", "wheels"]

# pyenv hides the versions that are not chosen.
for _pyenv in sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob("3.*/bin")):
    os.environ["PATH"] += os.pathsep + str(_pyenv)


def work(session: nox.Session) -> Path:
    """An empty folder for what a session writes; nox's own would become the tests' TMPDIR, inside of this project."""
    folder = Path(session.virtualenv.location, "work")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def run_tests(session: nox.Session, *arguments: str, folder: Path = ROOT) -> None:
    """Run tests: all of them in two processes, or as `nox -- ARGUMENTS` says."""
    session.install("pip", "setuptools")  # tests build and install, and uv's environments have neither
    command = ["pytest", "-q", "-rfEs", "-p", "no:cacheprovider", *(session.posargs or arguments or ["-n", "2"])]
    with session.chdir(folder):
        session.run(*command, interrupt_timeout=60)  # Ctrl-C: time to name what has failed so far


def install_lowest(session: nox.Session, *extras: str) -> None:
    """Install connectagent with the lowest versions that it and its extras allow, and the newest of what these need."""
    session.install("uv")
    chosen = work(session) / "lowest.txt"
    given = [word for extra in extras for word in ("--extra", extra)]
    compiled = ["uv", "pip", "compile", "-q", "--resolution", "lowest-direct", "--no-emit-package", "setuptools"]
    session.run(*compiled, *given, "--python", session.bin + "/python", "-o", str(chosen), str(ROOT / "pyproject.toml"))
    session.install("--only-binary", ":all:", "-r", str(chosen))
    session.install("--no-deps", "-e", str(ROOT))


@nox.session
def lint(session: nox.Session) -> None:
    """The checkers, and whether an index takes the distributions."""
    session.install("-e", ".[test]", "twine", "pyroma")
    session.run("ruff", "check", ".")
    session.run("mypy")
    target = work(session) / "dist"
    session.run("python", "release.py", "build", str(target), "connectagent", "connectagent-verify")
    built = sorted(map(str, target.iterdir()))
    session.run("twine", "check", "--strict", *built)
    for path in built:
        if path.endswith(".tar.gz"):
            session.run("pyroma", "--min", "10", path)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The suite on each Python."""
    session.install("-e", ".[test]")
    run_tests(session)


@nox.session(python=LOWEST)
def lowest(session: nox.Session) -> None:
    """The suite with the lowest versions that the core and its plugins allow."""
    install_lowest(session, "test")
    run_tests(session)


@nox.session(python=LOWEST)
def lowest_core(session: nox.Session) -> None:
    """The core's tests with the lowest versions that it allows by itself: some plugins need later ones."""
    install_lowest(session)
    session.install(*QUICK_TOOLS)
    needs_their_libraries = "tests/project/test_all_plugins.py"
    run_tests(session, "-n", "2", "tests", "--ignore", needs_their_libraries)


@nox.session(python=NEWEST)
def newest(session: nox.Session) -> None:
    """The suite with the newest versions, and with the tests of the site and of pyright."""
    session.install("--upgrade", "-e", ".[test,types,docs]")
    run_tests(session)


@nox.session(python=LOWEST)
def windows(session: nox.Session) -> None:
    """The suite under Windows' semantics, which `tests/windows/stand_in.py` gives to each process on Linux."""
    session.install("-e", ".[test]")
    session.env["PYTHONPATH"] = str(ROOT / "tests" / "windows")
    run_tests(session)


@nox.session(python=LOWEST, tags=["quick"])
def quick_lowest(session: nox.Session) -> None:
    """A few telling tests with the lowest versions that the core alone allows."""
    install_lowest(session)
    session.install(*QUICK_TOOLS)
    run_tests(session, *QUICK)


@nox.session(python=PYTHONS[1:], tags=["quick"])
def quick(session: nox.Session) -> None:
    """A few telling tests on each later Python, with the newest versions."""
    session.install("-e", ".", *QUICK_TOOLS)
    run_tests(session, *QUICK)


def build(session: nox.Session) -> Path:
    """Build all distributions; the folder where they are."""
    target = work(session) / "dist"
    session.install("setuptools>=77")
    session.run("python", "release.py", "build", str(target), silent=True)
    return target


@nox.session(python=LOWEST)
def sdist(session: nox.Session) -> None:
    """The suite from the unpacked sdist, which knows no git."""
    target = build(session)
    (archive,) = target.glob("connectagent-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    folder = target / archive.name.removesuffix(".tar.gz")
    session.install("-e", f"{folder}[test]")
    run_tests(session, folder=folder)


@nox.session(python=PYTHONS)
def wheels(session: nox.Session) -> None:
    """The wheels in a fresh environment: what users do first, and the tests of the plugins' sdists."""
    target = build(session)
    light = [path for path in sorted(target.glob("*.whl")) if path.name.split("-")[0][13:] not in HEAVY]
    session.install(*map(str, light))
    empty = target / "empty"
    empty.mkdir()
    with session.chdir(empty):
        session.run("python", str(ROOT / "tests" / "project" / "installed.py"), env={"PYTHONPATH": None})
    session.install("--find-links", str(target), *_test_tools())
    for archive in sorted(target.glob("connectagent_*.tar.gz")):
        name = archive.name.split("-")[0][13:]
        if name not in HEAVY:
            unpack_tests(archive, empty / "plugins" / f"connectagent-{name}", without=f"connectagent_{name}")
    shutil.copy(ROOT / "conftest.py", empty)
    # A file of settings of its own: pytest would find the clone's further up, and import the plugins from there.
    (empty / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    run_tests(session, "-n", "2", "plugins", folder=empty)


def unpack_tests(archive: Path, folder: Path, without: str) -> None:
    """Unpack a plugin's sdist without its package, which is to come from the wheel; one conftest.py serves all."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder.parent, filter="data")
    (folder.parent / archive.name.removesuffix(".tar.gz")).rename(folder)
    shutil.rmtree(folder / without)
    (folder / "conftest.py").unlink()


def _test_tools() -> list[str]:
    """What the extra `test` has."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    return list(project["optional-dependencies"]["test"])


@nox.session
def release(session: nox.Session) -> None:
    """Whether this commit may be released: `nox -s release`, or `nox -s release -- --tag v1.0.0`."""
    session.run("python", "release.py", "check", *session.posargs)
