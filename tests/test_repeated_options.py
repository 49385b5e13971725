"""An option that takes one value and is given twice is refused, for every command; others keep all their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from connectagent.cli import main
from connectagent.cli.group import cli


def single(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every option of every command that takes one value."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from single(command, (*path, name))
            continue
        for one in command.params:
            if isinstance(one, click.Option) and not (one.multiple or one.is_flag or one.count):
                yield (*path, name, one.opts[-1])


@pytest.mark.parametrize("words", list(single(cli)), ids=" ".join)
def test_an_option_of_one_value_is_refused_when_it_is_given_twice(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "1", words[-1], "2"]) == 2
    assert f"option {words[-1]!r} is given twice" in capsys.readouterr().err
