"""What real rows score in a synthetic table's place: it depends on no synthetic row, so it is computed once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from fedsynth.rows import Table

Value = TypeVar("Value")
_MOST = 32  # groups of tables; an evaluation asks about three
_known: OrderedDict[tuple[str, ...], dict[Hashable, Any]] = OrderedDict()


def once(tables: Sequence[Table | None], settings: Hashable, compute: Callable[[], Value]) -> Value:
    """Return ``compute()``, or what it returned before in this process for tables of the same rows and settings.

    ``tables`` and ``settings`` are all that the value depends on, its seeds among them, and it is not changed
    afterwards. Forgotten are the tables that were asked about longest ago.
    """
    rows = tuple("" if table is None else table.digest for table in tables)
    found = _known.setdefault(rows, {})
    _known.move_to_end(rows)
    if len(_known) > _MOST:
        _known.popitem(last=False)
    if settings not in found:
        found[settings] = compute()
    value: Value = found[settings]
    return value
