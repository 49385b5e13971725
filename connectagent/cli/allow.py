"""`connectagent allow`: allows what a project's file asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from connectagent.commands.failure import plain
from connectagent.errors import ConfigError
from connectagent.settings import asked_by, project_file


@click.command(short_help="Allow what the settings of a project ask for.")
@click.argument("path", required=False, metavar="[PATH]")
@click.option("--show", is_flag=True, help="Print what the project asks for, and allow nothing.")
@click.option("--list", "listed", is_flag=True, help="Print the projects that you allowed.")
@click.option("--revoke", is_flag=True, help="Revoke what you allowed for the project.")
def allow(path: str | None, show: bool, listed: bool, revoke: bool) -> None:
    """Allow the addresses, code and paths that the settings of a project ask for.

    PATH is a folder of the project, by default the current one, or a file whose commands a plugin is to run. You allow
    the settings and code as they are now: after a change they need to be allowed again. This is stored in your state
    folder, not in the project.
    """
    if show + listed + revoke > 1 or (listed and path is not None):
        raise click.UsageError("give one of --show, --list and --revoke; --list takes no path")
    if listed:
        _list()
        return
    folder = Path(path or ".").absolute()
    if folder.name == "pyproject.toml" and folder.is_file():
        folder = folder.parent
    if revoke:
        _revoke(folder)
    else:
        _allow(folder, show)


def _allow(folder: Path, show: bool) -> None:
    from connectagent.settings import allowed

    if not folder.exists():
        raise click.UsageError(f"{str(folder)!r} is no folder and no file")
    file = project_file(folder) if folder.is_dir() else folder
    if file is None:
        raise ConfigError(f"from {folder} up to the repository's root there is no pyproject.toml that is yours")
    asked = asked_by(file)
    if not asked:
        click.echo(plain(f"{file} asks for nothing that you would have to allow"))
        return
    if not show:
        _kept(allowed.allow, file.parent if folder.is_dir() else file, asked)
    click.echo(plain(f"{file} {'asks for' if show else 'is allowed'}:"))
    for one in asked:
        click.echo(plain(f"  {one.text}"))


def _revoke(folder: Path) -> None:
    """Revoke a word; the folder and its settings may be gone."""
    from connectagent.settings import allowed

    file = project_file(folder) if folder.is_dir() else None
    project = file.parent if file else folder
    if not _kept(allowed.revoke, project):
        raise ConfigError(f"you have not allowed {project}; see: connectagent allow --list")
    click.echo(plain(f"{project} is not allowed any more"))


def _kept(action: Callable[..., Any], *given: Any) -> Any:
    """Run an action in the user's state folder.

    Raises:
        ConfigError: it cannot be written.
    """
    from connectagent.settings import allowed

    try:
        return action(*given)
    except RuntimeError as error:
        raise ConfigError(f"nothing can be kept: {error}; set XDG_STATE_HOME") from error
    except OSError as error:
        raise ConfigError(f"{allowed.store()} cannot be written: {error.strerror}; set XDG_STATE_HOME") from error


def _list() -> None:
    from connectagent.settings import allowed

    words = allowed.words()
    if not words:
        click.echo("you have allowed nothing")
    for word in words:
        click.echo(plain(f"{word['folder']}  {word['when']}  {_state(word)}"))
        for text in word["asked"]:
            click.echo(plain(f"  {text}"))


def _state(word: dict[str, Any]) -> str:
    from connectagent.settings import allowed

    file = Path(word["folder"])
    file = file if file.suffix and not file.is_dir() else file / "pyproject.toml"
    if not file.is_file():
        return "gone"
    try:
        return "allowed" if allowed.digest(asked_by(file)) == word["digest"] else "changed since"
    except ConfigError:
        return "changed since"
