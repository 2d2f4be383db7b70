"""Objects of other packages: entry points by group and name, or written out as ``package.module:name``.

For those who run methods and judge tables. A site looks up nothing because of a message: it imports the places that its
policy names (:func:`fedsynth.federation.query.query_class`).
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsynth.errors import Unsupported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def installed(group: str, own: Collection[str] = (), name: str | None = None) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; with a ``name``, that one alone, if it is there.

    ``own`` are the names that fedsynth itself gives. Raises :class:`Unsupported` for a name that several packages give,
    and says which.
    """
    from importlib.metadata import entry_points  # slow to import, and of no use to most commands

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group) if name is None else entry_points(group=group, name=name):
        if entry.name in own or entry.name in found:
            first = _package(found[entry.name]) if entry.name in found else "fedsynth"
            raise Unsupported(
                f"{entry.name!r} ({group}) comes from two packages, {first} and {_package(entry)}: uninstall one of "
                f"them, or name what you mean, package.module:name (theirs is {entry.value})"
            )
        found[entry.name] = entry
    return found


def load(entry: EntryPoint) -> Any:
    """Return what an entry point stands for; raises :class:`Unsupported` where that cannot be imported."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise Unsupported(
            f"{entry.name!r} of the package {_package(entry)} cannot be imported ({error}); update or uninstall that"
        ) from error


def named(place: str) -> Any:
    """Return what ``package.module:name`` stands for; raises :class:`Unsupported` where that cannot be imported."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Unsupported(f"{place!r} cannot be imported ({error}); name it package.module:name") from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
