"""Makes this Python lack what Python lacks on Windows; for a process whose PYTHONPATH names this folder.

Modules, functions and flags of POSIX are gone, folders cannot be opened, a file that is open for reading cannot be
synced, and nothing replaces a folder that exists.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.abc
import os
import select
import shutil
import signal
import sys
import tempfile  # noqa: F401  (reads flags that are about to go)
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
FUNCTIONS = ("chown", "fchmod", "fork", "geteuid", "getgid", "getuid", "killpg", "pread", "pwrite", "setsid")
FLAGS = ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK")
SIGNALS = ("SIGKILL", "pthread_sigmask", "sigwait")
_FLAGS_OF = fcntl.F_GETFL
_flags, _open, _fsync, _replace = fcntl.fcntl, os.open, os.fsync, os.replace


class Absent(importlib.abc.MetaPathFinder):
    """Finds none of the modules that only POSIX systems have."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def open_file(path: Any, *arguments: Any, **options: Any) -> int:
    if options.get("dir_fd") is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if not isinstance(path, int) and os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    return _open(path, *arguments, **options)


def fsync(descriptor: Any) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    if _flags(number, _FLAGS_OF) & 3 == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _fsync(descriptor)


def replace(source: Any, target: Any, **options: Any) -> None:
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(source), None, os.fspath(target))
    _replace(source, target, **options)


shutil._use_fd_functions = False  # type: ignore[attr-defined]
for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for holder, names in ((os, (*FUNCTIONS, *FLAGS)), (select, ("poll", "epoll")), (signal, SIGNALS)):
    for name in names:
        if hasattr(holder, name):
            delattr(holder, name)
for name, stand_in in (("open", open_file), ("fsync", fsync), ("replace", replace)):
    setattr(os, name, stand_in)
