"""Locks between processes, on every system: who alone may run, write or answer, and whether anybody does.

A lock is an empty file of its own, never the file that it protects: on Windows, nobody else can read what is locked.
The file stays, since a process that waits for a removed file would get a lock of its own.

Rule 1: the system keeps the lock (flock, or LockFileEx on Windows), so that it ends with its process, however that
ends. Rule 2: it belongs to the opened file, so that a forked process shares it: it lasts until the last of them has
ended, or closed the file. Rule 3: what cannot be locked is refused, and a file's mere existence is never taken for a
lock.

Such a lock binds the processes of one machine. Over a network it binds those of several only if the file system passes
locks on to its server: NFS does unless mounted with nolock or local_lock, SMB unless with nobrl, and some do not even
though they report success. No program can tell, so a site's state, on whose locks its privacy account rests, belongs on
a local disk: `fedsynth site check` fails elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from fedsynth.errors import FedsynthError


@contextmanager
def exclusive(file: Path, busy: str = "") -> Iterator[None]:
    """A context manager that holds the lock ``file`` alone; the file is created if missing, its folder is not.

    While another process holds it (or this one, elsewhere), it waits, or, with the message ``busy``, raises
    :class:`~fedsynth.errors.FedsynthError`. Raises that error as well if the system cannot lock, and ``OSError`` if the
    file cannot be opened.
    """
    with _opened(file) as descriptor:
        if not _lock(descriptor, file, wait=not busy):
            raise FedsynthError(busy)
        yield


@contextmanager
def shared(file: Path) -> Iterator[None]:
    """A context manager that holds the lock ``file`` together with any number of others; raises as :func:`exclusive`.

    The locks of the system that this rests on are exclusive: each holder has one of the files ``NAME.0``, ``NAME.1``
    and so on, the first that is free.
    """
    for place in _places(file):
        with _opened(place) as descriptor:
            if _lock(descriptor, place, wait=False):
                yield
                return


def is_shared(file: Path) -> bool:
    """Return whether any process holds the lock ``file`` by :func:`shared`."""
    for place in _places(file):
        if not place.exists():
            return False
        with _opened(place) as descriptor:
            if not _lock(descriptor, place, wait=False):
                return True
    raise AssertionError("there is always a further place")


def _places(file: Path) -> Iterator[Path]:
    return (file.with_name(f"{file.name}.{number}") for number in count())


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path, *, wait: bool) -> bool:
    from filelock import lock_descriptor  # few commands need it; its FileLock falls back to files that merely exist

    try:
        return lock_descriptor(descriptor, blocking=wait)
    except OSError as error:
        raise FedsynthError(
            f"{file} cannot be locked ({error.strerror}), so another process might do the same at the same time; put "
            "its folder on a local disk"
        ) from error
