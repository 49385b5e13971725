"""Windows as connectagent sees it, on Linux: `PYTHONPATH=tests/windows python -m pytest tests/records/test_records.py`.

Each process with this folder on its PYTHONPATH has it, and so have its children. For the code of connectagent and its
plugins only, since the standard library needs them:

- `os.name` is "nt", `sys.platform` is "win32".
- Modules and attributes that Windows lacks are not there: see `MODULES` and `LACKING`.
- Folders cannot be opened. A descriptor that was opened without `O_BINARY` changes the ends of lines.
- Names that Windows does not take cannot be created: devices, some characters, a dot or a space at the end.
- `msvcrt` is there. Its locks exclude all others, belong to the open file and end with it, or with the process.

For all code:

- A file that is open in any process cannot be removed, renamed or replaced, nor can the folder of such a file.
- `os.rename` does not replace. Files have the owner 0.

It does less than Windows: a lock among a file's own bytes is refused at once, where Windows refuses whoever reads
them; a descriptor that only reads takes a lock that others of its kind can have too; names keep their case; paths have
no drives; signals, consoles and sub-processes are Linux's. Tests may use what Windows lacks: they play the terminal,
the kill, the other process.
"""

from __future__ import annotations

import builtins
import fcntl
import importlib
import os
import re
import select
import signal
import stat
import struct
import subprocess  # imports msvcrt, if there is one
import sys
import termios
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
ROOT = Path(__file__).resolve().parents[2]
_OS = """
pread pwrite fork forkpty register_at_fork killpg getpgid setsid setpgid getuid geteuid getgid getegid chown
fchmod fchown mkfifo mknod openpty ttyname sysconf statvfs uname nice getloadavg sync wait3 wait4
sched_getaffinity O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_CLOEXEC posix_fadvise posix_spawn
"""
_SIGNAL = """
SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGWINCH SIGTSTP SIGALRM SIGPIPE SIGCHLD SIGCONT SIGSTOP SIGQUIT alarm
setitimer pause pthread_kill pthread_sigmask siginterrupt sigwait
"""
_SELECT = "poll epoll kqueue POLLOUT POLLERR POLLHUP POLLIN"
LACKING = {
    name: set(text.split())
    for name, text in {
        "os": _OS,
        "signal": _SIGNAL,
        "select": _SELECT,
        "socket": "AF_UNIX",
        "time": "tzset clock_gettime CLOCK_MONOTONIC",
    }.items()
}
MODULES = {"fcntl", "termios", "resource", "pwd", "grp", "pty", "tty", "crypt", "readline"}
_PRODUCT = (f"{ROOT}/connectagent/", f"{ROOT}/plugins/")
_TEXT = 1 << 40  # a flag that no system has: stands for O_BINARY
_BAD_NAME = re.compile(r'[<>:"|?*\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d) *(\.|$)', re.IGNORECASE)


def is_product(file: str) -> bool:
    """Whether a file is code of connectagent or a plugin."""
    return file.startswith(_PRODUCT) and "/tests/" not in file.removeprefix(str(ROOT))


# -- modules as the product sees them --------------------------------------------------------------


class Lesser(types.ModuleType):
    """A module without what Windows lacks, and with what it has instead. What is set, is set in the real one."""

    def __init__(self, real: types.ModuleType, lacking: set[str], instead: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(_real=real, _lacking=lacking, _instead=instead)
        for name in ("__doc__", "__loader__", "__package__", "__spec__"):
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacking:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} (on Windows)")
        return self._instead[name] if name in self._instead else getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._real) if name not in self._lacking]


_text: set[int] = set()  # descriptors that change the ends of lines


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    fd = os.open(path, flags & ~_TEXT, mode, dir_fd=dir_fd)
    (_text.discard if flags & _TEXT else _text.add)(fd)
    return fd


def _write(fd: int, data: Any) -> int:
    if fd not in _text:
        return os.write(fd, data)
    os.write(fd, bytes(data).replace(b"\n", b"\r\n"))
    return len(data)


def _read(fd: int, length: int) -> bytes:
    data = os.read(fd, length)
    return data.partition(b"\x1a")[0].replace(b"\r\n", b"\n") if fd in _text else data


def _locking(fd: int, mode: int, length: int) -> None:
    start = os.lseek(fd, 0, os.SEEK_CUR)
    if start < max(1 << 30, os.fstat(fd).st_size) and mode:
        raise AssertionError("on Windows nobody else could read or write what is locked here")
    writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    kind = (fcntl.F_WRLCK if writable else fcntl.F_RDLCK) if mode else fcntl.F_UNLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, start, length, 0))
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


def _by_keys(look: Callable[[], Any]) -> Any:
    """Look at the terminal's keys, where it would give whole lines."""
    modes = termios.tcgetattr(0)
    by_keys = [*modes[:3], modes[3] & ~termios.ICANON, *modes[4:]]
    termios.tcsetattr(0, termios.TCSANOW, by_keys)
    try:
        return look()
    finally:
        termios.tcsetattr(0, termios.TCSANOW, modes)


def _msvcrt() -> types.ModuleType:
    made = types.ModuleType("msvcrt")
    made.LK_UNLCK, made.LK_LOCK, made.LK_NBLCK = 0, 1, 2  # type: ignore[attr-defined]
    made.locking = _locking  # type: ignore[attr-defined]
    made.kbhit = lambda: _by_keys(lambda: bool(select.select([0], [], [], 0)[0]))  # type: ignore[attr-defined]
    made.getwch = lambda: _by_keys(lambda: os.read(0, 1).decode("latin-1"))  # type: ignore[attr-defined]
    return made


_seen: dict[str, types.ModuleType] = {
    "os": Lesser(
        os, LACKING["os"], {"name": "nt", "O_BINARY": _TEXT, "open": _open, "write": _write, "read": _read}
    ),
    "sys": Lesser(sys, set(), {"platform": "win32"}),
    "signal": Lesser(signal, LACKING["signal"], {}),
    "select": Lesser(select, LACKING["select"], {}),
    "msvcrt": _msvcrt(),
}
_real_import, _real_import_module = builtins.__import__, importlib.import_module


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    first = name.partition(".")[0]
    if (first in _seen or first in MODULES) and is_product((globals or {}).get("__file__") or ""):
        if first in MODULES:
            raise ModuleNotFoundError(f"No module named {first!r} (on Windows)", name=first)
        if name == first or not fromlist:
            return _seen[first]
    return _real_import(name, globals, locals, fromlist, level)


def _import_module(name: str, package: str | None = None) -> Any:
    if (name in _seen or name in MODULES) and is_product(sys._getframe(1).f_code.co_filename):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} (on Windows)", name=name)
        return _seen[name]
    return _real_import_module(name, package)


# -- files -----------------------------------------------------------------------------------------


def is_open(path: Any, dir_fd: int | None = None) -> bool:
    """Whether any process has a file open: the kernel gives a lease on it to its only user."""
    for _ in range(3):  # another process may look at the same time
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
        except OSError:
            return False
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return False
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # nothing happens when another process opens it meanwhile
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            return False
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return False
        finally:
            os.close(fd)
    return True


def _files(path: Any) -> Iterator[Any]:
    """A file, or the files of a folder."""
    if isinstance(path, int) or os.path.islink(path) or not os.path.isdir(path):
        yield path
        return
    for top, _, names in os.walk(path):
        yield from (os.path.join(os.fsdecode(top), os.fsdecode(name)) for name in names)


def _refuse_open(path: Any, dir_fd: int | None = None) -> None:
    for one in _files(path):
        if is_open(one, dir_fd):
            used = "The process cannot access the file because it is being used by another process"
            error = PermissionError(13, used, path)
            error.winerror = 32  # type: ignore[attr-defined]
            raise error


def _guarded(real: Callable[..., Any], replaces: bool) -> Callable[..., Any]:
    def removing(path: Any, *, dir_fd: int | None = None) -> None:
        _refuse_open(path, dir_fd)
        real(path, dir_fd=dir_fd)

    def renaming(old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        _refuse_open(old, src_dir_fd)
        if real.__name__ == "rename" and dst_dir_fd is None and os.path.lexists(new):
            raise FileExistsError(17, "File exists", old, None, new)
        if dst_dir_fd is None and not os.path.isdir(new):
            _refuse_open(new)
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    made = renaming if replaces else removing
    made.__name__ = real.__name__
    return made


def _refuse_names(event: str, given: tuple[Any, ...]) -> None:
    """An audit hook: what the product creates has a name that Windows takes."""
    if event == "open":
        path = given[0] if isinstance(given[2], int) and given[2] & os.O_CREAT else None
    else:
        path = {"os.mkdir": given[:1], "os.rename": given[1:2]}.get(event, (None,))[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.path.basename(os.fsdecode(path))
    if not _BAD_NAME.search(name) or os.fsdecode(path).startswith("/dev/"):
        return
    frame: Any = sys._getframe(1)
    for _ in range(12):
        if frame is not None and is_product(frame.f_code.co_filename):
            raise OSError(22, "Invalid argument (on Windows)", path)
        frame = frame and frame.f_back


def _without_owner(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def stat_of(*given: Any, **more: Any) -> os.stat_result:
        found = real(*given, **more)
        names = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return os.stat_result((*found[:4], 0, 0, *found[6:]), names)

    return stat_of


# -- processes -------------------------------------------------------------------------------------


def _with_stand_in(environment: Any) -> Any:
    """The environment of a child that has the stand-in too."""
    given = dict(os.environ if environment is None else environment)
    path = given.get("PYTHONPATH", "")
    return environment if HERE in path.split(":") else given | {"PYTHONPATH": f"{HERE}:{path}".rstrip(":")}


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *given: Any, **more: Any) -> None:
        more["env"] = _with_stand_in(more.get("env"))
        super().__init__(*given, **more)


def install() -> None:
    """Have Windows' semantics in this process, and in those that it starts."""
    builtins.__import__, importlib.import_module = _import, _import_module
    for name, replaces in {"unlink": False, "remove": False, "rename": True, "replace": True}.items():
        setattr(os, name, _guarded(getattr(os, name), replaces))
    for name in ("stat", "lstat", "fstat") if os.geteuid() else ():
        setattr(os, name, _without_owner(getattr(os, name)))
    subprocess.Popen = _Popen  # type: ignore[misc]
    sys.addaudithook(_refuse_names)
