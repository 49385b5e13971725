"""The methods of an agent for programs with an event loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from connectagent.agents.closing import Closable
from connectagent.data import File, Image

if TYPE_CHECKING:
    from connectagent.agents.awaited import AsyncEvents

Prompt = str | Image | File | list[Any]
Output = TypeVar("Output")


class Resuming(TypedDict, total=False):
    """The arguments of `agent.resume()` behind the record."""

    place: str | int | None
    fork: bool
    approve: bool | str
    reject: str | tuple[str, str] | None
    answer: Any
    wait: str | None
    output: Any
    renamed: bool
    abandon: bool


class AsyncMethods(Closable):
    """An agent whose turns can be awaited. Each is the turn of `input()`, in a thread of its own."""

    input: Any
    resume: Any

    @overload
    async def ainput(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: None = None
    ) -> str: ...
    @overload
    async def ainput(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: type[Output]
    ) -> Output: ...
    async def ainput(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: Any = None
    ) -> Any:
        """Take a turn as `input()` does, without blocking the event loop.

        Async tools run on this loop. Cancelling ends the turn: what it awaits is cancelled, a model call or tool that
        cannot be stopped is left behind, and the record says `cancelled`; the next turn goes on as after Ctrl-C.

        Args:
            prompt, max_iterations, key, output: as for `input()`.

        Raises:
            Exception: what `input()` raises.
        """
        from connectagent.agents.awaited import awaited  # loads asyncio

        return await awaited(self, partial(self.input, prompt, max_iterations, key=key, output=output))

    def astream(self, prompt: Prompt, max_iterations: int | None = None, *, output: Any = None) -> AsyncEvents:
        """Take a turn as `stream()` does, for `async for`; best in `async with agent.astream(...) as events:`.

        A turn whose events are not read to their end is cancelled.

        Args:
            prompt, max_iterations, output: as for `stream()`.

        Returns:
            An async iterator of the items of `stream()`, with `aclose()`. The turn begins with the first item.

        Raises:
            Exception: what `input()` raises, from the iteration.
        """
        from connectagent.agents.awaited import AsyncEvents  # loads asyncio

        return AsyncEvents(self, partial(self.input, prompt, max_iterations, output=output))

    async def aresume(self, record: str | Path | None = None, **how: Unpack[Resuming]) -> Any:
        """Go on with a session as `resume()` does, without blocking the event loop; cancelled as `ainput()` is."""
        from connectagent.agents.awaited import awaited

        return await awaited(self, partial(self.resume, record, **how))

    def aresume_stream(self, record: str | Path | None = None, **how: Unpack[Resuming]) -> AsyncEvents:
        """Go on with a session as `resume()` does, for `async for`, as `astream()`; the last item has the result.

        Args:
            record, how: as for `resume()`.
        """
        from connectagent.agents.awaited import AsyncEvents

        return AsyncEvents(self, partial(self.resume, record, **how))
