"""Which functions of the package a piece of code runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import connectagent

PACKAGE = Path(connectagent.__file__).parent


def belongs(code: CodeType) -> bool:
    """Whether a function is the package's own."""
    return Path(code.co_filename).is_relative_to(PACKAGE)


def stands_in(code: CodeType) -> bool:
    """Whether a function is part of the scripted model that stands in for a provider."""
    return Path(code.co_filename).is_relative_to(PACKAGE / "testing")


def visited(work: Callable[[], Any]) -> list[CodeType]:
    """The package's functions in the order in which `work` enters them, a generator anew after each yield."""
    entered: list[CodeType] = []
    model: list[FrameType] = []  # the scripted model, while it answers: what it calls is not the turn's

    def note(frame: FrameType, event: str, _: Any) -> None:
        if model:
            if event == "return" and frame is model[0]:
                model.clear()
        elif event == "call" and stands_in(frame.f_code):
            model.append(frame)
        elif event == "call":
            entered.append(frame.f_code)

    gc.disable()  # what it frees may run code of its own
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return [code for code in entered if belongs(code)]
