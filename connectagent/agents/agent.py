"""`Agent`: the names that programs, handlers and tools use. Each is a line or two over an `AgentCore`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypedDict, TypeVar, Unpack, cast, overload

from connectagent.agents import closing
from connectagent.agents.arguments import Arguments, ModelArguments, PluginArguments, TreeArguments, TurnArguments
from connectagent.agents.copies import definition_of, made_again
from connectagent.agents.core import AgentCore
from connectagent.agents.handler_face import HandlerFace
from connectagent.agents.sessions import answer
from connectagent.agents.tree import DIRECTIONS
from connectagent.data import LLM, AgentBase, File, Image
from connectagent.loop.stream import Events, streamed
from connectagent.loop.turn import Turn
from connectagent.loop.turn_agent import TurnAgent
from connectagent.session.messages import user_message
from connectagent.settings.tracebacks import shorten, with_short_tracebacks

if TYPE_CHECKING:
    from connectagent.agents.awaited import AsyncEvents
    from connectagent.agents.batch import Item
    from connectagent.agents.keyed_session import KeyedSession
    from connectagent.records.store import Store

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


class Agent(HandlerFace, AgentBase):
    """A model with tools, a conversation, and plugins that observe and steer each step of it.

    Args:
        name: identifies the agent in records and logs.
        tools: functions, methods, objects, `Tool`s or agents; one, a list or a tuple.
        system_prompt: text, a path to a text file, or the name of a file in `prompts/`; a path with
            spaces only as a `Path`.
        model: `claude-...`, `gpt-...` or `provider/model`; by default the setting `model`, else that of the first
            provider with a key, else `offline`.
        llm: anything with `model` and `complete(messages, tools)`, instead of `model`.
        api_key: the provider's key, instead of its environment variable.
        base_url: the provider's address, instead of its own.
        max_iterations: how many model calls a turn may take.
        trust: `"open"`, `"careful"`, `"strict"`, a policy text, a path to one, or an `Agent` that judges.
        log: None writes a record and a text log into `.co/`, False writes neither; a path is where the text log goes.
        quiet: whether nothing is shown on the terminal, of agents inside neither, whatever their own `quiet` says.
        plugins: marked functions, lists, modules, objects, installed names, also with options, `("name", {...})`;
            `"no:name"` leaves one out.
        on_events: the same as `plugins`, for this agent without those below it; they run after `plugins`.
        stream: whether handlers of `on_text` get the model's text as it arrives.
        options: parameters of the provider that are sent with each request, such as `temperature`.
        plugin_errors: `"raise"`, or `"warn"`: an exception of a handler becomes a warning and a trace entry,
            except in `before_` and `around_` hooks, which may be guards.
        state: the initial `current_session["state"]` of each session; each `{name}` in the system prompt must
            then be in it.
        sub_agents: agents that the model may hand over to, with the tool `transfer_to_agent`.
        description: how this agent is described to the models of other agents.
        transfer_to: to whom the agent may hand over: any of `"children"`, `"parent"`, `"siblings"`; by default all.
        inherit_plugins: whether the parent's plugins run in this agent too, before its own.
        run: a function of `agent` and `prompt` in place of a model: it returns the result, or yields its pieces.
        output_key: the key of the state under which the result is stored.
        output: the type that each `input()` returns in place of text, as its own `output=` does for one turn.
        output_retries: how often an answer that does not fit `output` is sent back in a turn.
        parallel_tools: how many tool calls of a round may run at the same time.

    Raises:
        ConfigError: the name, the model, the system prompt, the tree of agents or a setting cannot be used.
        ToolDefinitionError: a tool cannot be used.
        HandlerError, PluginError: a plugin cannot be used.
    """

    @with_short_tracebacks
    def __init__(
        self,
        name: str,
        tools: Any = None,
        system_prompt: str | Path | None = None,
        model: str | None = None,
        *,
        llm: LLM | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        max_iterations: int = 10,
        trust: Any = None,
        log: bool | str | Path | None = None,
        quiet: bool = False,
        plugins: Any = None,
        on_events: Any = None,
        stream: bool = False,
        options: dict[str, Any] | None = None,
        plugin_errors: str = "raise",
        state: dict[str, Any] | None = None,
        sub_agents: Any = None,
        description: str | None = None,
        transfer_to: Iterable[str] = DIRECTIONS,
        inherit_plugins: bool = True,
        run: Callable[..., Any] | None = None,
        output_key: str | None = None,
        output: Any = None,
        output_retries: int = 2,
        parallel_tools: int = 1,
    ) -> None:
        chosen = ModelArguments(model, llm, api_key, base_url, options)
        plugged = PluginArguments(plugins, on_events, trust, log, quiet, plugin_errors)
        place = TreeArguments(sub_agents, description, transfer_to, inherit_plugins)
        turns = TurnArguments(max_iterations, parallel_tools, stream, run, output, output_retries, output_key)
        given = Arguments(name, tools, system_prompt, state, chosen, plugged, place, turns)
        self._core = AgentCore(self, given, self._made_with)
        self._core.take_place()

    # -- turns ----------------------------------------------------------------------------------

    @overload
    def input(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: None = None
    ) -> str: ...

    @overload
    def input(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: type[Output]
    ) -> Output: ...

    def input(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: Any = None
    ) -> Any:
        """Give the agent a user's message and return the turn's result.

        Args:
            prompt: text, an `Image`, a `File`, or a list of text, images and files.
            max_iterations: how many model calls this turn may take, instead of the agent's own number.
            key: identifies this turn inside another agent's turn, in place of the prompt: for example where the
                prompt contains the time.
            output: the type of the result in place of text: a pydantic model, a dataclass, a TypedDict, or a type
                such as `list[int]`. The tools stay available; an answer that does not fit is sent back.

        Raises:
            OutputError: the result does not fit `output`.
            Paused: a call in it waits for a person.
            ProviderError: a model call failed and no handler recovered it.
            Exception: whatever a handler raised, with a note that names it.
        """
        core = self._core
        try:
            form = core.form if output is None else core.form_for(output)
            text = answer(core, user_message(prompt), max_iterations, key=key, form=form)
            return text if form is None else form.result(core, text)
        except BaseException as error:
            shorten(error)
            raise

    def stream(self, prompt: Prompt, max_iterations: int | None = None, *, output: Any = None) -> Events:
        """Take a turn as `input()` does, as an iterator of what happens in it.

        Yields:
            each trace entry, including those of inner agents; pieces of the models' text, `{"type": "text", "text"}`;
            at the end `{"type": "result", "result", "outcome"}`. Leaving the loop early ends the turn, as
            `end_turn()` does.

        Raises:
            Exception: what `input()` raises, from `next()`.
        """
        return streamed(self._core, partial(self.input, prompt, max_iterations, output=output))

    @with_short_tracebacks
    def resume(
        self,
        record: str | Path | None = None,
        *,
        place: str | int | None = None,
        fork: bool = False,
        approve: bool | str = False,
        reject: str | tuple[str, str] | None = None,
        answer: Any = None,
        wait: str | None = None,
        output: Any = None,
        renamed: bool = False,
        abandon: bool = False,
    ) -> Any:
        """Go on with the session of a record, and finish the turn that was stopped in it.

        What is finished is not done again. Where a tool was started and did not finish, the person at the terminal
        is asked whether to run it again; without a terminal, it runs again only if it is `@tool(idempotent=True)`.

        Args:
            record: which session: the path of its record, its id or the first four characters of it, or an
                agent's name, for its last one. What follows is appended to the record. None for this agent's own
                session.
            place: `"TURN"` or `"TURN.ITERATION"`: go back to before it.
            fork: write to a copy with an id of its own, which names this record.
            approve: True approves the waiting call; where several wait, the id of one.
            reject: why the waiting call is rejected; the model reads it.
            answer: the value that replaces the waiting call.
            wait: the id of the wait that `reject` or `answer` is about, where several wait.
            output: the `output` that the turn's `input()` was given.
            renamed: take the record of an agent of another name too: this agent had that name.
            abandon: leave the turn that was stopped as it is; nobody can go on with it then.

        Returns:
            The result of the finished turn, else of the last one; None where there is no turn, or it was abandoned.

        Raises:
            Paused: the turn still waits for a decision.
            ConfigError: there is no such record, several are meant, it is another agent's or cannot be used, or the
                decision or place does not fit it.
        """
        from connectagent.agents.decisions import Decision
        from connectagent.agents.resume import resumed_result  # loads the reader of records

        decision = Decision.of(approve, reject, answer, wait)
        how: dict[str, Any] = {"place": place, "fork": fork, "output": output, "renamed": renamed, "abandon": abandon}
        return resumed_result(self._core, record, decision, **how)

    def resume_stream(self, record: str | Path | None = None, **how: Unpack[Resuming]) -> Events:
        """Go on with a session as `resume()` does, as an iterator of what happens, like `stream()`.

        What was finished before is not shown again.

        Args:
            record, how: as for `resume()`.

        Yields:
            the items of `stream()`; the last has the result.

        Raises:
            Exception: what `resume()` raises, from `next()`.
        """
        return streamed(self._core, partial(self.resume, record, **how))

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

        return await awaited(self._core, partial(self.input, prompt, max_iterations, key=key, output=output))

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

        return AsyncEvents(self._core, partial(self.input, prompt, max_iterations, output=output))

    async def aresume(self, record: str | Path | None = None, **how: Unpack[Resuming]) -> Any:
        """Go on with a session as `resume()` does, without blocking the event loop; cancelled as `ainput()` is."""
        from connectagent.agents.awaited import awaited

        return await awaited(self._core, partial(self.resume, record, **how))

    def aresume_stream(self, record: str | Path | None = None, **how: Unpack[Resuming]) -> AsyncEvents:
        """Go on with a session as `resume()` does, for `async for`, as `astream()`; the last item has the result.

        Args:
            record, how: as for `resume()`.
        """
        from connectagent.agents.awaited import AsyncEvents

        return AsyncEvents(self._core, partial(self.resume, record, **how))

    def reset_conversation(self) -> None:
        """Forget the conversation, also of the agents below; the next `input()` begins a new session and record.

        What the session has cost is forgotten too: `total_cost` begins at 0.

        Raises:
            RuntimeError: a turn is running.
        """
        self._core.reset()

    # -- many sessions --------------------------------------------------------------------------

    def again(self, plugins: Any = None, *, quiet: bool = False) -> Self:
        """A fresh agent of the same definition, with the agents below it, without the session.

        Tools and plugins that were added or removed since are, too. Functions, plugin objects and `llm=` are shared.

        Args:
            plugins: more of them, as for `Agent(plugins=...)`; they run after the others.
            quiet: whether nothing of it is shown on the terminal, nor of the agents below.

        Raises:
            ConfigError, PluginError: a plugin cannot be used.
        """
        agent: Self = made_again(self._core, plugins, quiet)
        return agent

    def for_session(self, key: str, store: Store | None = None) -> KeyedSession:
        """The session of this agent's definition that has a key: a chat, a ticket, an item of a batch.

        A fresh agent takes its turns: `agent.for_session("ticket-7").turn("Hello", number=1)`.

        Args:
            key: names the session among those of agents with this name.
            store: keeps the session too, for other machines, such as `SqliteStore("sessions.db")`. Without one, its
                file is all there is.

        Raises:
            ConfigError: the agent is not recorded, the key is empty or not a str, or the store lacks a method.
        """
        from connectagent.agents.keyed_session import KeyedSession  # loads the reader of records

        return KeyedSession(self, key, store)

    def map(
        self,
        prompts: Iterable[Any] | Mapping[str, Any],
        concurrency: int = 16,
        *,
        run: str | None = None,
        ordered: bool = False,
        max_failures: int | None = None,
        budget_usd: float | None = None,
        timeout_s: float | None = None,
        max_iterations: int | None = None,
        output: Any = None,
        store: Store | None = None,
    ) -> Iterator[Item]:
        """Take a turn for each prompt, several at the same time; each has a fresh agent and a session of its own.

        Args:
            prompts: prompts as for `input()`, pairs of id and prompt, or a dict of prompts by id; an iterator is read
                as far as it is needed. Without ids, the id is made from the prompt's text.
            concurrency: how many run at the same time.
            run: a name. The items' records are then its state: the same call again takes what is missing, goes on with
                what was stopped, and reads the rest.
            ordered: whether the items come in the order of the prompts, in place of that in which they end.
            max_failures: how many prompts may fail before no more are begun.
            budget_usd: how much may be spent before no more are begun.
            timeout_s: how long prompts are begun.
            max_iterations, output: as for `input()`.
            store: keeps the run's sessions too, as for `for_session()`.

        Yields:
            an `Item` for each prompt: `id`, `status`, `result`, `error`, `record`, `cost` and more. An error of one
            prompt does not stop the others. Leaving the loop stops all before their next step.

        Raises:
            BatchStopped: a limit was reached. It comes after the items that ran and, of a list, all done ones.
            ConfigError: an argument cannot be used.
        """
        from connectagent.agents.batch import Batch, BatchLimits, in_order  # loads the reader of records

        limits = BatchLimits(max_failures, budget_usd, timeout_s)
        options = {"max_iterations": max_iterations, "output": output}
        items = Batch(self, prompts, concurrency, run, limits, options, store=store).items()
        return in_order(items) if ordered else items

    # -- the tree, and the end ------------------------------------------------------------------

    @property
    def parent(self) -> Agent | None:
        """The agent above it in a tree, or None."""
        return None if self._core.tree.parent is None else _face(self._core.tree.parent)

    @property
    def sub_agents(self) -> tuple[Agent, ...]:
        """The agents that it was given to hand over to."""
        return tuple(_face(one) for one in self._core.tree.sub_agents)

    @property
    def children(self) -> list[Agent]:
        """The agents directly below this one: its `sub_agents` and the agents among its tools."""
        return [_face(one) for one in self._core.tree.children]

    @property
    def below(self) -> list[Agent]:
        """All agents of the tree below this one, each before those below it."""
        return [_face(one) for one in self._core.tree.below]

    @property
    def root(self) -> Agent:
        """The agent at the top of the tree; a lone agent is its own."""
        return _face(self._core.tree.root)

    @property
    def branch(self) -> str:
        """The names from the root down to this agent: `root.billing`."""
        return self._core.tree.branch

    @property
    def callers(self) -> list[Agent]:
        """The agents in whose turns this one's turn runs, the nearest first; [] where its turn is the outermost."""
        return [] if self._core.turn is None else [_face(turn.agent) for turn in self._core.turn.callers()]

    def find(self, name: str) -> Agent | None:
        """The agent of that name here or below, or None; `agent.root.find` looks in the whole tree."""
        found = self._core.tree.find(name)
        return None if found is None else _face(found)

    def close(self) -> None:
        """Close the agent and the agents below it: `on_agent_closed` fires once for each.

        A closed agent takes no further turn. `with Agent(...) as agent:` closes it at the end of the block. An agent
        that nobody closes is closed at the end of the process, or, once it is garbage,
        when another agent is made or takes a turn.

        Raises:
            RuntimeError: a turn is running.
            Exception: the first error of a handler, after all handlers have run; the other errors are its notes.
        """
        closing.close(self._core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        definition = definition_of(self._core)
        definition.check_travels(self.name)
        return definition.make, ()

    def __copy__(self) -> NoReturn:
        raise TypeError(
            f"agent {self.name!r} cannot be copied: agent.again() makes a fresh one of the same definition, and "
            "agent.resume(record, fork=True) goes on with a copy of its session"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.llm.model!r}, tools={self.list_tools()!r})"


def _face(core: TurnAgent[Turn]) -> Agent:
    return cast(Agent, core.face)
