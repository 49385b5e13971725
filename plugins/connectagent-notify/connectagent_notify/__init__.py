"""Messages to people when a turn ends, fails or waits for a decision: to the desktop, a webhook, Slack and others."""

from __future__ import annotations

import os
import shlex
import threading
import time
import warnings
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from connectagent import ConfigError, Paused, PluginWarning, arguments_text, around_turn, mask, on_agent_closed

if TYPE_CHECKING:
    from connectagent import Agent

EVENTS = ("ended", "failed", "waiting")
_MOST = 100  # messages that wait to be sent; of more, the oldest are dropped
_LONGEST = 500  # characters of a text in a message
_inside: ContextVar[bool] = ContextVar("connectagent_notify_inside", default=False)


class Message(NamedTuple):
    """One message."""

    kind: str  # apprise's: success, failure or warning
    title: str
    body: str


class Notify:
    """The plugin: `Agent(plugins=[Notify("slack://...")])`, or `plugins=["notify"]` with addresses in `APPRISE_URLS`.

    Args:
        urls: where to, as apprise writes addresses; by default what the variable `APPRISE_URLS` has.
        on: what is announced: `ended`, `failed`, `waiting`.
        after_s: a turn that ended sooner is not announced. Failures and waits always are.
        content: whether results, errors, reasons and arguments are in the messages, masked.
        close_s: how many seconds closing the agent waits for messages that are on their way.

    Raises:
        ConfigError: there is no address, or one that apprise does not know, or an unknown event.
    """

    changes = ("outside?",)

    name: ClassVar[str] = "notify"

    def __init__(
        self,
        urls: str | Sequence[str] = (),
        on: Sequence[str] = EVENTS,
        after_s: float = 0,
        content: bool = True,
        close_s: float = 5,
    ) -> None:
        if unknown := [event for event in ([on] if isinstance(on, str) else on) if event not in EVENTS]:
            raise ConfigError(f"notify: on= takes {', '.join(EVENTS)}, not {unknown[0]!r}")
        self.on, self.after_s, self.content, self.close_s = on, after_s, content, close_s
        self._sender = _Sender(_targets([urls] if isinstance(urls, str) else list(urls)))

    @around_turn
    def turn(self, agent: Agent, prompt: str) -> Generator[None, str, None]:
        """Tell how a turn came out, unless it is inside of another one."""
        if agent.replaying or _inside.get():
            yield
            return
        token, started = _inside.set(True), time.monotonic()
        try:
            result = yield
            if time.monotonic() - started >= self.after_s:
                self._tell("ended", "success", f"{agent.name}: {agent.session['outcome']}", result)
        except Paused as paused:
            self._tell("waiting", "warning", f"{agent.name} waits for you", _waits(paused), _command(paused))
            raise
        except Exception as error:
            self._tell("failed", "failure", f"{agent.name} failed: {type(error).__name__}", str(error))
            raise
        finally:
            _inside.reset(token)

    @on_agent_closed
    def close(self) -> None:
        """Wait for messages that are on their way."""
        if lost := self._sender.close(self.close_s):
            warnings.warn(f"notify: not delivered to {', '.join(sorted(lost))}", PluginWarning, stacklevel=2)

    def _tell(self, event: str, kind: str, title: str, content: str, more: str = "") -> None:
        """Hand a message to the thread that sends it; this takes no time."""
        if event in self.on:
            text = _clipped(str(mask(content))) if self.content else ""
            self._sender.send(Message(kind, str(mask(title)), "\n".join(filter(None, (text, more))) or title))


class _Sender:
    """Sends messages from a thread, which is there only while there are some.

    Args:
        targets: apprise's services, one for each address.
    """

    def __init__(self, targets: list[Any]) -> None:
        self._targets = targets
        self._waiting: SimpleQueue[Message] = SimpleQueue()
        self._lost: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message soon."""
        with self._lock:
            if self._waiting.qsize() >= _MOST:
                self._waiting.get()
            self._waiting.put(message)
            self._start()

    def close(self, seconds: float) -> frozenset[str]:
        """Wait until all is sent, and drop what is not; the addresses that did not get everything."""
        with self._lock:
            self._start()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        with self._lock:
            if self._thread is not None:
                while not self._waiting.empty():
                    self._waiting.get()
                self._lost |= {_shown(target) for target in self._targets}
            lost, self._lost = self._lost, frozenset()
        return lost

    def _start(self) -> None:
        """Start the thread, if there is something to send; one that Ctrl-C or a fork took away is made anew."""
        if not self._waiting.empty() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._work, name="connectagent-notify", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        from apprise import NotifyType

        while True:
            with self._lock:
                if self._waiting.empty():
                    self._thread = None
                    return
                message = self._waiting.get()
            for target in self._targets:
                try:
                    sent = target.notify(body=message.body, title=message.title, notify_type=NotifyType(message.kind))
                except Exception:  # of a service's own code
                    sent = False
                if not sent:
                    self._lost |= {_shown(target)}


def _targets(urls: list[str]) -> list[Any]:
    """The services by address: an `Apprise` would send with threads, and cannot when the process ends.

    Raises:
        ConfigError: there is no address, or one that apprise does not know.
    """
    from apprise import Apprise  # takes a while
    from apprise.utils import parse

    split: Any = parse.parse_urls
    addresses = [one for url in urls or [os.environ.get("APPRISE_URLS", "")] for one in split(url)]
    if not addresses:
        raise ConfigError("notify: no address; set APPRISE_URLS or Notify(urls=...), 'dbus://' for the desktop")
    targets = []
    for address in addresses:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it now loads all its services
            targets.append(Apprise.instantiate(address))
        if targets[-1] is None:
            scheme = address.partition(":")[0]  # the rest may be secret
            raise ConfigError(f"notify: apprise takes no such address of the kind {scheme!r}: see its list of services")
    return targets


def _shown(target: Any) -> str:
    """An address without what is secret in it."""
    return str(target.url(privacy=True)).partition("?")[0]


def _waits(paused: Paused) -> str:
    """What waits for a decision, a line each."""
    lines = []
    for wait in paused.waiting:
        calls = wait.calls if wait.call is None else [wait.call]
        asked = [f"{call['name']} {arguments_text(mask(call['arguments']))}" for call in calls]
        lines.append(f"{wait.reason}: {', '.join(asked)}" if asked else wait.reason)
    return "\n".join(lines)


def _command(paused: Paused) -> str:
    """The commands to decide, a line for each call that waits."""
    if paused.record is None:
        return ""
    command = f"connectagent resume {shlex.quote(str(paused.record))}"
    return "\n".join(f"{command} {_option(wait.id, wait.elsewhere)}" for wait in paused.waiting)


def _option(id: str, elsewhere: bool) -> str:
    """The option that lets a call go on: one that is carried out elsewhere cannot be approved."""
    return f"--answer {shlex.quote(id)} TEXT" if elsewhere else f"--approve {shlex.quote(id)}"


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
