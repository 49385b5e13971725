"""The hooks' definitions have one form, and the page on hooks has them all."""

from __future__ import annotations

import inspect

import documented_hooks

import connectagent
from connectagent import hooks
from connectagent.hooks import specs


def test_the_page_on_hooks_lists_each_hook_with_its_parameters() -> None:
    assert (documented_hooks.EVENTS, documented_hooks.AROUND) == (specs.EVENTS, specs.AROUND)
    assert {name: tuple(specs.PARAMETERS[name]) for name in specs.HOOKS} == documented_hooks.PARAMETERS


def test_every_hook_has_a_marker_a_contract_and_a_docstring_of_one_form() -> None:
    for name in specs.HOOKS:
        assert getattr(hooks, name).__name__ == name
        assert name in connectagent.__all__
        parts = inspect.cleandoc(specs.SPECS[name].__doc__ or "")  # Python 3.13 strips the indentation itself
        sections = ["Fires:", "Args:", "Yields:" if name in specs.AROUND else "Returns:"]
        places = [parts.index(section) for section in sections]
        assert places == sorted(places), f"{name}: {sections} stand in this order"
        for parameter in specs.PARAMETERS[name]:
            assert f"\n    {parameter}: " in parts, f"{name} does not document {parameter}"
