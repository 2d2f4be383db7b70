"""Safe reading and writing of the folders by which server and sites exchange files; others may write there as well.

Rule 1: links are not followed, and reads never block: links, pipes, devices and folders with the name of a message are
not messages. Rule 2: every operation is relative to the opened folder, so nobody can redirect it. Rule 3:
files are written under another name and then renamed. Their durability after a power cut is not relied on: a missing
request is written again, a missing reply is requested again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedsynth.deploy.files.messages import MessageName, named, run_of
from fedsynth.errors import FedsynthError
from fedsynth.files import writing

AGAIN = 30.0  # s after which a file that looks unchanged is read again: copying may preserve time and size
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class ExchangeFolder:
    """The folder ``EXCHANGE/SITE/PART`` of exchanged files, where ``part`` is ``requests`` or ``replies``.

    A folder that does not exist is read as an empty one, and created by writing. The folder ``exchange`` itself must
    exist: all methods raise ``OSError`` otherwise, or if it cannot be used.
    """

    exchange: Path
    site: str
    part: str

    @property
    def path(self) -> Path:
        """Path of the folder, for error and log messages."""
        return self.exchange / self.site / self.part

    def requests(self) -> list[MessageName]:
        """Return the names of the request files in the order of answering: by run, then question, then message."""
        found = [name for file in self._files() if (name := named(file)) is not None and file == name.request]
        return sorted(found, key=lambda name: (name.run, name.step, name.turn, name.digest, name.attempt))

    def ends(self) -> list[str]:
        """Return the names of the runs whose end a file tells (:func:`~fedsynth.deploy.files.messages.run_of`)."""
        return sorted(filter(None, map(run_of, self._files())))

    def _files(self) -> list[str]:
        with self._opened() as folder:
            return [] if folder is None else os.listdir(folder)

    def stamp(self, file: str) -> Stamp | None:
        """Return inode, size in bytes and modification time (ns) of a regular file, by which a change is noticed."""
        with self._opened() as folder:
            if folder is None:
                return None
            with contextlib.suppress(FileNotFoundError):
                return _stamp(os.stat(file, dir_fd=folder, follow_symlinks=False))
        return None

    def read(self, file: str, largest: int) -> bytes | None:
        """Return the bytes of a file; ``None`` if it is no regular file, or has more than ``largest`` bytes."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._opened() as folder:
            if folder is None or self.stamp(file) is None:  # opening a device may do something
                return None
            try:
                descriptor = os.open(file, flags, dir_fd=folder)
            except FileNotFoundError:
                return None
            with open(descriptor, "rb") as opened:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_size > largest:
                    return None
                data = opened.read(largest + 1)
        return data if len(data) <= largest else None

    def write(self, file: str, data: bytes) -> None:
        """Write ``data`` to a file, completely or not at all; raises ``OSError`` if that fails."""
        partial = f".{file}.partial"  # the same each time: the next attempt replaces what a crash left behind
        with self._opened(make=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with writing(self.path / file):
                with open(os.open(partial, flags, 0o666, dir_fd=folder), "wb") as opened:
                    opened.write(data)
                    opened.flush()
                    os.fsync(opened.fileno())
                os.rename(partial, file, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, file: str) -> None:
        """Remove a file if it exists; raises ``OSError`` if that fails."""
        with self._opened() as folder:
            if folder is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file, dir_fd=folder)

    def remove_run(self, run: str) -> None:
        """Remove all messages of a run from this folder, complete or partly written."""
        with self._opened() as folder:
            for file in [] if folder is None else os.listdir(folder):
                name = named(file.removeprefix(".").removesuffix(".partial"))
                if name is not None and name.run == run:
                    os.unlink(file, dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int | None]:
        """Open the folder for the block; give ``None`` if it does not exist and ``make`` is false."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with contextlib.ExitStack() as stack:
            folder = os.open(self.exchange, flags)
            stack.callback(os.close, folder)
            for part in (self.site, self.part):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                try:
                    folder = os.open(part, flags | os.O_NOFOLLOW, dir_fd=folder)
                except FileNotFoundError:
                    yield None
                    return
                stack.callback(os.close, folder)
            yield folder


@dataclass
class ReadTimes:
    """Remembers when each file of a folder was last read, so that a search reads only files that may have changed."""

    _seen: dict[str, tuple[Stamp, float]] = field(default_factory=dict)

    def worth_reading(self, file: str, stamp: Stamp) -> bool:
        """Whether to read a file now (then taken as read): it is new, changed, or was read :data:`AGAIN` s ago."""
        before, when = self._seen.get(file, (None, 0.0))
        now = time.monotonic()
        if stamp == before and now - when < AGAIN:
            return False
        self._seen[file] = (stamp, now)
        return True

    def keep(self, files: Collection[str]) -> None:
        """Forget when other files than these were last read."""
        self._seen = {file: seen for file, seen in self._seen.items() if file in files}


def require_exchange(path: Path) -> None:
    """Raise :class:`FedsynthError` unless ``path``, the folder that carries the files, exists.

    It is never created here: it may be a network share that is not mounted.
    """
    if not path.is_dir():
        raise FedsynthError(f"--exchange {path} is not a folder; create it, or mount the share that carries the files")


def _stamp(found: os.stat_result) -> Stamp | None:
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
