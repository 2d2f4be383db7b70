"""What differs between Linux, macOS and Windows: permissions of files, and what needs a POSIX system."""

from __future__ import annotations

import logging
import os
import stat
from functools import lru_cache
from pathlib import Path

from fedsynth.errors import Unsupported

POSIX = hasattr(os, "geteuid")
"""Whether files have an owner and POSIX permissions, and folders can be opened: true on Linux and macOS."""

NOT_CHECKED = "who may read {} was not checked, since this system has no POSIX permissions"
ALLOW_NOBODY = "keep it where no other user may read: in your own profile, or as icacls says"
_log = logging.getLogger(__name__)


def require_posix(what: str) -> None:
    """Raise :class:`~fedsynth.errors.Unsupported` on a system where ``what``, such as a command, cannot run."""
    if not POSIX:
        raise Unsupported(
            f"{what} needs Linux or macOS: run it there, in a container with Linux, or on this machine in WSL2"
        )


def is_exposed(path: Path, others: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """Return whether users other than the owner may read, write or enter a file or folder.

    ``others`` are the permission bits that must not be set. Where the system has no POSIX permissions, nothing can be
    checked: the result is ``False``, and a warning in the log says so, once for each path.
    """
    if not POSIX:
        _warn_unchecked(path)
        return False
    return bool(path.stat().st_mode & others)


@lru_cache(maxsize=1024)
def _warn_unchecked(path: Path) -> None:
    _log.warning("%s; %s", NOT_CHECKED.format(path), ALLOW_NOBODY)
