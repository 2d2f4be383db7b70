"""Cache of references (scores of real rows in place of synthetic ones), for evaluations of several synthetic tables."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from fedsynth.rows import Table

Value = TypeVar("Value")
_MOST = 32  # groups of tables in the cache; an evaluation needs three
_known: OrderedDict[tuple[str, ...], dict[Hashable, Any]] = OrderedDict()


def cached(tables: Sequence[Table | None], settings: Hashable, compute: Callable[[], Value]) -> Value:
    """Return ``compute()``, cached in this process by the content of ``tables`` and by ``settings``.

    The value must depend on nothing but ``tables`` and ``settings`` (seeds included), and callers must not change it.
    The least recently used tables are evicted.
    """
    rows = tuple("" if table is None else table.digest + _persons(table) for table in tables)
    found = _known.setdefault(rows, {})
    _known.move_to_end(rows)
    if len(_known) > _MOST:
        _known.popitem(last=False)
    if settings not in found:
        found[settings] = compute()
    value: Value = found[settings]
    return value


def _persons(table: Table) -> str:
    """Return the SHA-256 (hex) of the persons of the rows, which the digest of a table leaves out; "" without any."""
    return "" if table.persons is None else hashlib.sha256(table.persons.tobytes()).hexdigest()
