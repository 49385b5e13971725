"""One-file plugins: `./plugin.py`."""

from __future__ import annotations

import importlib.util
import os
from contextvars import ContextVar
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from connectagent.errors import PluginError, did_you_mean

_loading: ContextVar[tuple[str, ...]] = ContextVar("_loading", default=())  # the files that are being loaded


class _LoadsItself(PluginError):
    """A file's code makes an agent that loads the file."""


class _Source(SourceFileLoader):
    """Compiles the file itself. Bytecode that lies beside it may be anybody's, and say something else."""

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(self.get_data(self.path), self.path)


@lru_cache(maxsize=32)
def _compiled(source: bytes, path: str) -> CodeType:
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def module_from_path(path: str) -> ModuleType:
    """Load a one-file plugin.

    Raises:
        PluginError: the file cannot be loaded.
    """
    spec = importlib.util.spec_from_file_location(Path(path).stem, path, loader=_Source(Path(path).stem, path))
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
