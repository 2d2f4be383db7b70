"""Plugins: objects of other packages, found as entry points (group and name) or given as ``package.module:name``.

A message never makes a site look up a plugin: of other packages, a site imports only what its own configuration names,
a source of rows (:func:`fedsynth.data.sources.open_source`) and the kinds of questions in its policy
(:func:`fedsynth.federation.query.query_class`).
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedsynth.errors import Unsupported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FEATURES = ("fedsynth.deep", "fedsynth.bench")
"""Features that the rest does without; their modules ``methods`` and ``models`` list what they add to it."""
_HOME = Path(__file__).parent


def of_features(name: str) -> list[ModuleType]:
    """Import and return the module called ``name`` of each installed feature."""
    return [import_module(f"{feature}.{name}") for feature in FEATURES if find_spec(feature)]


def place_of(kind: Any) -> str:
    """Return a class or function as ``package.module:Name``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def built_in(kind: Any) -> bool:
    """Whether a class or function is one that a file of fedsynth's own holds under its name, whatever it says it is.

    It is not proof against code that changes fedsynth's modules: nothing in one process is.
    """
    module = sys.modules.get(kind.__module__)
    file = Path(getattr(module, "__file__", None) or "/")
    return file.is_relative_to(_HOME) and getattr(module, kind.__qualname__, None) is kind


def installed(group: str, own: Collection[str] = (), name: str | None = None) -> dict[str, EntryPoint]:
    """Return the installed entry points of a group by name, or only the one called ``name`` (if installed).

    ``group`` is such as ``fedsynth.metrics``. ``own`` are the names of fedsynth's own objects, which no package may
    take. Raises :class:`Unsupported` if two packages provide the same name; the message names both.
    """
    from importlib.metadata import entry_points  # slow to import, and few commands need it

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group) if name is None else entry_points(group=group, name=name):
        if entry.name in own or entry.name in found:
            first = _package(found[entry.name]) if entry.name in found else "fedsynth"
            raise Unsupported(
                f"{entry.name!r} ({group}) is provided by two packages, {first} and {_package(entry)}: uninstall one "
                f"of them, or write the full name, package.module:name ({_package(entry)} has {entry.value})"
            )
        found[entry.name] = entry
    return found


def load(entry: EntryPoint) -> Any:
    """Import and return the object of an entry point; raises :class:`Unsupported` if it cannot be imported."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise Unsupported(
            f"cannot import {entry.name!r} of the package {_package(entry)} ({error}); update or uninstall that package"
        ) from error


def named(place: str) -> Any:
    """Import and return the object at ``package.module:name``; raises :class:`Unsupported` if it cannot be imported."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a relative name, such as .module
        raise Unsupported(
            f"cannot import {place!r} ({error}); write it as package.module:name, and install the package or add the "
            "module's folder to PYTHONPATH"
        ) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
