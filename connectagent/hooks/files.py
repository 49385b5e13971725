"""One-file plugins: `./plugin.py`."""

from __future__ import annotations

import importlib.util
import os
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from connectagent.errors import PluginError, did_you_mean

_loading: ContextVar[tuple[str, ...]] = ContextVar("_loading", default=())  # the files that are being loaded


class _LoadsItself(PluginError):
    """A file's code makes an agent that loads the file."""


def module_from_path(path: str) -> ModuleType:
    """Load a one-file plugin.

    Raises:
        PluginError: the file cannot be loaded.
    """
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if not Path(path).exists():
        near = did_you_mean(path, map(str, Path(path).parent.glob("*.py")))
        raise PluginError(f"there is no plugin file {path!r}.{near}")
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise PluginError(f"{path!r} is not a Python file; a one-file plugin is a .py with marked functions")
    real = os.path.realpath(path)
    if real in _loading.get():
        raise _LoadsItself(
            f"plugin {path!r} makes an agent while it is being loaded, and each agent has this plugin: it would be "
            "loaded for ever. Keep plugins and agents in files of their own, and name the plugin's"
        )
    module = importlib.util.module_from_spec(spec)
    token = _loading.set((*_loading.get(), real))
    try:
        spec.loader.exec_module(module)
    except (_LoadsItself, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"plugin {path!r} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        _loading.reset(token)
    return module
