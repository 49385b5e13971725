"""Finds the handlers in what users list: marked functions, lists, modules, objects, files, installed names."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from connectagent.errors import ConfigError, PluginError, nearest
from connectagent.hooks.connectonion import CONNECTONION, adapted
from connectagent.hooks.entry_points import (
    MODELS,
    Installed,
    check_required,
    clash,
    find,
    guarded,
    installed,
    load,
    named,
    normalized,
    own_name,
    refuse_options_of_settings,
    undeclared,
)
from connectagent.hooks.files import module_from_path
from connectagent.hooks.handler import Handler, described, event_of, is_function, name_of
from connectagent.hooks.left_out import (
    BY_DEFAULT,
    CODE,
    ENVIRONMENT,
    IN_CODE,
    PERSON,
    USE,
    LeftOut,
    describe_place,
    leaves_out,
)
from connectagent.hooks.markers import marked_members, marks_of
from connectagent.hooks.options import Configured, OwnPlugin, configured, give, made_with
from connectagent.hooks.sources import all_options
from connectagent.hooks.specs import HOOKS
from connectagent.settings import SHADOW, check_file, looking_once, named_plugins, overrides, setting

BUILT_IN = ("record", "textlog", "console", "xray", "trust")
DECIDING = ("before_tools", "before_each_tool")  # the hooks that decide about a call
GUARDING = (*DECIDING, "around_tool")  # the hooks that can keep a tool from running
_used: list[Any] = []  # no context variable: it would not reach agents made in other threads
_announced: set[str] = set()


class use:  # called as a function; a class, so that it is a context manager too
    """Give a plugin to every agent that this process makes from now on, or makes inside `with use(plugin):`.

    Args:
        plugin: whatever `plugins=` takes.
    """

    def __init__(self, plugin: object) -> None:
        if plugin is None:
            raise PluginError("use() takes what plugins= takes: a marked function, a module, an object or a name")
        self.plugin = [plugin]  # a new list: an outer block may use the same plugin
        _used.append(self.plugin)

    def __enter__(self) -> use:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop giving the plugin to new agents; those that have it keep it."""
        _used[:] = [plugin for plugin in _used if plugin is not self.plugin]


class shadow:  # called as a function, like `use`
    """A plugin whose handlers run on copies: what they would have done is only traced.

    Args:
        plugin: whatever `plugins=` takes; for an installed one, `"shadow:name"` is the same.
    """

    def __init__(self, plugin: object) -> None:
        plugin = plugin.plugin if isinstance(plugin, shadow) else plugin
        if plugin is None or (isinstance(plugin, str) and plugin.startswith("no:")):
            raise PluginError(f"shadow() takes a marked function, a list, an object or a name, not {plugin!r:.80}")
        self.plugin: Any = configured(plugin) or plugin

    def __repr__(self) -> str:
        return f"shadow({self.plugin!r})"


def _read(item: object) -> Any:
    """An item of a list of plugins; `"shadow:name"` becomes a `shadow`."""
    name, options = item if isinstance(item, Configured) else (item, None)
    if not isinstance(name, str) or not name.startswith(SHADOW):
        return item
    bare = name.removeprefix(SHADOW).strip()
    return shadow(bare if options is None else Configured(bare, options))


def process_wide() -> list[tuple[Any, str]]:
    """The plugins named for every agent, each with its place: project, environment, `use()` or command line."""
    named = [(_read(item), place) for item, place in named_plugins()]
    person = [(item, PERSON) for item in _flat(overrides.get("plugins"))]
    return [*named, *((item, USE) for item in _flat(_used)), *person]


def find_handlers(
    own: dict[str, Any],
    sources: Sequence[object],
    model: str | None = None,
    in_code: Collection[str] = ("trust",),
    *,
    provider_of: Callable[[str], Any],
) -> tuple[list[Handler], list[str], LeftOut]:
    """All handlers of an agent, in the order in which they run, and the plugins that were left out.

    Args:
        own: the package's own plugins by name.
        sources: `plugins` and `on_events`, which agents below do not inherit; `"no:name"` leaves one out,
            `"shadow:name"` shadows it. Plugins named for every agent run before these.
        model: the model's name; the installed plugin that brings it need not be named.
        in_code: the names in `own` that code asked for; the others are defaults.
        provider_of: returns the provider of a model's name; raises `ConfigError` where there is none.

    Returns:
        The handlers, the names of the plugins in code that the command line left out, and all that were left out.

    Raises:
        PluginError: a plugin cannot be found or loaded, is named twice, requires another that the agent does not
            have, or a `"no:name"` matches none.
    """
    named, model = looking_once(lambda: (process_wide(), model or setting("model")))
    everything = [*named, *((item, CODE) for item in _flat(sources))]
    out = LeftOut(everything, BUILT_IN)
    found = [
        (handler, CODE if name in in_code else BY_DEFAULT)
        for name, thing in own.items()
        for handler in handlers_of(thing, name, builtin=True)
    ]
    found += [(one, place) for item, place in _wanted(everything, out) for one in _loaded(item, place, sources[1])]
    known = {normalized(handler.plugin) for handler, _ in found} | set(map(normalized, BUILT_IN))
    out.check(known | {normalized(name) for item, _ in everything if (name := _name(item)) and not leaves_out(item)})
    found += [(handler, BY_DEFAULT) for handler in model_handlers(model, known, provider_of)]
    switched_off = _switched_off(everything, found, out)
    _announce(switched_off)
    kept = [handler for handler, place in found if not out(handler.plugin, place)]
    check_required(kept)
    _check_own_names(kept)
    return kept, switched_off, out


def _switched_off(everything: list[tuple[Any, str]], found: list[tuple[Handler, str]], out: LeftOut) -> list[str]:
    """The names of the plugins in code that the command line left out."""
    names = [_key(item) for item, place in everything if place in IN_CODE and isinstance(item, str | Configured)]
    names += [normalized(handler.plugin) for handler, place in found if place in IN_CODE]
    return sorted({name for name in names if name in out.by_person})


def _announce(switched_off: list[str]) -> None:
    """Print on stderr which plugins in code the command line left out, each once per process."""
    new = [name for name in switched_off if name not in _announced]
    _announced.update(new)
    if new and sys.stderr is not None:
        options = " ".join(f"-p no:{name}" for name in new)
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
            print(f"connectagent: {options} switches off what code names: {', '.join(new)}", file=sys.stderr)


def _wanted(everything: list[tuple[Any, str]], out: LeftOut) -> list[tuple[Any, str]]:
    """The plugins to load, each with the place that names it."""
    _check_shadows([item for item, _ in everything])
    # What is left out is not loaded either: so a broken plugin can be left out.
    items = [(item, place) for item, place in everything if not leaves_out(item) and not out(_name(item), place)]
    items = _with_options_of_the_person(items)
    own = [(item, place) for item, place in items if place == CODE]
    mine = [_key(item) for item, _ in own]
    _check_named_once([item for item, _ in own], mine)
    wide: dict[Any, tuple[Any, str]] = {}
    for item, place in items:
        if place != CODE and _key(item) not in mine:  # naming a plugin for all agents and for this one is allowed
            first, before = wide.setdefault(_key(item), (item, place))
            wide[_key(item)] = (first, before if before in IN_CODE else place)
    return [*wide.values(), *own]


def options_given(items: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """The options that the command line gives to plugins, by what `_key` returns.

    Raises:
        PluginError: one is given twice, whatever the plugin is called.
    """
    given: dict[Any, dict[str, Any]] = {}
    for item in map(_read, items):
        bare = item.plugin if isinstance(item, shadow) else item
        if isinstance(bare, Configured):
            give(given.setdefault(_key(item), {}), bare.name, bare.options)
    return given


def _with_options_of_the_person(items: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """The plugins, each with the options that the command line gives it, wherever else it is named."""
    given = options_given(item for item, place in items if place == PERSON)
    return [(_configured(item, given[key]) if (key := _key(item)) in given else item, place) for item, place in items]


def _configured(item: Any, options: dict[str, Any]) -> Any:
    if isinstance(item, shadow):
        return shadow(_configured(item.plugin, options))
    name, own = item if isinstance(item, Configured) else (item, {})
    return Configured(name, {**own, **options})


def _loaded(item: object, place: str, on_events: object) -> list[Handler]:
    """The handlers of a plugin that is named in a place.

    Raises:
        PluginError: there is no such plugin, it cannot be loaded, or settings give options to a guard that code or the
            command line names.
        ConfigError: the project's file names code that the person has not allowed.
    """
    bare, plugin = _bare(item), None
    if isinstance(bare, str) and bare.endswith(".py"):
        check_file(bare, place)
    elif isinstance(bare, str):
        plugin = find(bare, describe_place(place))
    handlers = list(handlers_of(item))
    for handler in handlers:
        own = getattr(handler.thing, "inherited", True) is False
        handler.local = own or _key(item) in map(_key, _flat(on_events))
    # What is added there with `around_tool` only counts or measures, and most projects set its options.
    guarding = GUARDING if place in IN_CODE else DECIDING if place in (PERSON, ENVIRONMENT) else ()
    if plugin is not None and any(handler.hook in guarding and not handler.shadowed for handler in handlers):
        refuse_options_of_settings(plugin, place if place in (PERSON, ENVIRONMENT) else CODE)
    return handlers


def _check_named_once(items: list[Any], keys: list[Any]) -> None:
    for item, key in zip(items, keys, strict=True):
        name = _bare(item)
        if isinstance(name, str) and keys.count(key) > 1:
            raise PluginError(f"plugin {name!r} is named twice for this agent; name it once")


def _check_own_names(handlers: list[Handler]) -> None:
    """Refuse two plugin objects that give themselves one name: state, records and `no:NAME` could not tell them apart.

    Raises:
        PluginError: there are two.
    """
    found: dict[str, Any] = {}
    for handler in handlers:
        thing = handler.thing
        if handler.builtin or handler.shadowed or is_function(thing) or getattr(thing, "name", None) != handler.plugin:
            continue
        if found.setdefault(normalized(handler.plugin), thing) is not thing:
            raise PluginError(
                f"two plugins of this agent are named {handler.plugin!r}: "
                f"{found[normalized(handler.plugin)]!r:.80} and {thing!r:.80}; give each a name of its own"
            )


def _check_shadows(items: list[Any]) -> None:
    named = [_key(item) for item in items if not isinstance(item, shadow)]
    for item in items:
        if isinstance(item, shadow) and _key(item) in named:
            raise PluginError(f"plugin {item.plugin!r} is both named and shadowed for this agent; do one of them")


def left_out(sources: object) -> set[str]:
    """The normalized names of the plugins that an agent leaves out with `"no:name"`."""
    return {normalized(item[3:]) for item in _flat(sources) if isinstance(item, str) and item.startswith("no:")}


def _bare(item: object) -> Any:
    """What is named, without options, shadowed or not."""
    item = item.plugin if isinstance(item, shadow) else item
    return item.name if isinstance(item, Configured) else item


def _key(item: object) -> Any:
    """A key that is equal for all ways of naming one plugin."""
    item = _bare(item)
    if not isinstance(item, str):
        return id(item)
    if item.endswith(".py") or item.startswith("no:"):
        return item
    found = named(item)
    return normalized(found[0].name) if len(found) == 1 else normalized(item)


def _name(item: object) -> str:
    """The name with which a plugin can be left out before it is loaded; "" for an object."""
    key = _key(item)
    return "" if isinstance(key, int) else Path(key).stem if key.endswith(".py") else key


def model_handlers(model: str | None, known: set[str], provider_of: Callable[[str], Any]) -> list[Handler]:
    """The handlers of the installed plugin that brings a model; [] for a model of a known provider.

    A plugin that does not declare its prefixes is loaded only when no other plugin declares the name.

    Args:
        model: the model's name.
        known: the normalized names of the plugins that the agent has.
        provider_of: as for `find_handlers`.
    """
    if not isinstance(model, str) or model == "offline":
        return []
    with contextlib.suppress(ConfigError):
        provider_of(model)
        return []
    declared = [plugin for plugin in installed(MODELS) if _begins(model, plugin.name)]
    if declared and declared[0].rivals:
        raise PluginError(clash(declared[0]))
    found: list[Handler] = []
    for plugin in declared or undeclared(MODELS):
        if normalized(own_name(plugin)) in known:
            continue
        with contextlib.suppress(*([] if declared else [PluginError])):
            found += [handler for handler in handlers_of(plugin) if handler.hook == "register_models"]
    return found


def _begins(model: str, prefix: str) -> bool:
    return model == prefix or model.startswith(prefix if prefix[-1:] in ("-", ":", "/") else f"{prefix}/")


def _flat(things: object) -> Iterator[Any]:
    if (one := configured(things)) is not None:
        yield _read(one)
    elif isinstance(things, (list, tuple)) and not isinstance(things, OwnPlugin):
        for thing in things:
            yield from _flat(thing)
    elif things is not None:
        yield _read(things)


def handlers_of(thing: object, plugin: str | None = None, *, builtin: bool = False) -> Iterator[Handler]:
    """The handlers of a plugin: a marked function, a list of them, a module, an object, a name or a shadow.

    Raises:
        PluginError: the plugin has no handler, or an installed plugin cannot be loaded.
    """
    if (one := configured(thing)) is not None:
        if one.name.endswith(".py"):
            raise PluginError(f"{one.name!r} is a file, and takes no options: a class of an installed plugin has some")
        yield from _handlers_of_installed(find(one.name), one.options)
    elif isinstance(thing, OwnPlugin):
        yield from handlers_of(thing.plugin, thing.name, builtin=True)
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            yield from handlers_of(item, plugin, builtin=builtin)
    elif isinstance(thing, shadow):
        for handler in handlers_of(thing.plugin, plugin):
            handler.shadowed = True
            yield handler
    elif isinstance(thing, str) and thing.endswith(".py"):
        yield from handlers_of(module_from_path(thing), plugin, builtin=builtin)
    elif isinstance(thing, str):
        yield from handlers_of(find(thing), plugin, builtin=builtin)
    elif isinstance(thing, Installed):
        yield from _handlers_of_installed(thing)
    else:
        yield from _handlers(thing, plugin or plugin_name(thing), None, builtin)


def _handlers(thing: object, plugin: str, version: str | None, builtin: bool = False, **more: Any) -> Iterator[Handler]:
    functions: list[Any] = [thing] if marks_of(thing) else list(_members(thing))
    options = more.pop("options", None) or ({} if builtin else made_with(thing))
    for function in functions:
        called = function if is_function(function) else function.__call__
        for hook, opts in marks_of(function).items():
            made = adapted(called, hook) if event_of(function) else called
            yield Handler(hook, made, opts, plugin, version, builtin, thing=thing, options=options, **more)


def _handlers_of_installed(plugin: Installed, options: Mapping[str, Any] | None = None) -> list[Handler]:
    thing, given = load(plugin, options or {}), all_options(plugin, options or {})
    own = functools.partial(_handlers, plugin=own_name(plugin), version=plugin.version, options=given)

    def listed() -> list[Handler]:
        return [handler for item in _flat([thing]) for handler in own(item)]

    return guarded(plugin, listed)  # type: ignore[no-any-return]


def _members(thing: object) -> Iterator[Callable[..., Any]]:
    if isinstance(thing, type):
        raise PluginError(f"{thing.__qualname__} is a class; a plugin is an object: write {thing.__qualname__}()")
    members = [] if is_function(thing) else list(marked_members(thing))
    if not members:
        what = described(thing)
        if event := event_of(thing):
            known = ", ".join(CONNECTONION)
            raise PluginError(f"{what} is for ConnectOnion's event {event!r}; those with a hook are: {known}")
        raise PluginError(
            f"{what} is not marked for a hook.{_meant(thing)}\n"
            "A plugin is a marked function (@after_tools), a list of them, a module, an object or an installed name."
        )
    yield from members


def _meant(thing: object) -> str:
    for name in [getattr(thing, "__name__", ""), *(() if is_function(thing) else dir(thing))]:
        if near := nearest(str(name), HOOKS, 0.7):
            return f" Did you mean to decorate {name!r} with @{near}?"
    return ""


def plugin_name(thing: object) -> str:
    """The name of a plugin that was not installed."""
    if isinstance(thing, ModuleType):
        return thing.__name__.rpartition(".")[2]
    if is_function(thing):
        return name_of(thing)
    return str(getattr(thing, "name", None) or type(thing).__name__)
