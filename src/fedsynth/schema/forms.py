"""Forms of columns that are not read directly from rows: stored forms, computed forms, and identifiers.

Their effect on rows, codes and counts is described in :mod:`fedsynth.schema.derive`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedsynth.errors import InvalidParameter, SchemaError

if TYPE_CHECKING:
    import pandas as pd

_MOST_DIGITS = 15  # random digits in a pattern of identifiers
UNITS: dict[str, int] = {
    "us": 1,
    "ms": 10**3,
    "s": 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "D": 86400 * 10**6,
}
_WORDS = {"second": "s", "minute": "min", "hour": "h", "day": "D"}  # names of units in forms


def microseconds_of(unit: str) -> int:
    """Return the length of a unit of time, a name (day, ...) or symbol (D, h, min, s, ms, us), in microseconds.

    Raises :class:`SchemaError` for an unknown unit.
    """
    if (known := UNITS.get(_WORDS.get(unit, unit))) is None:
        raise SchemaError(f"unknown unit {unit!r}; choose one of {', '.join(_WORDS)}")
    return known


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Declares that a numeric or datetime column is stored as its ``difference`` from, or ``ratio`` to, another column.

    Give one of the two, as a pair of column names: the first minus the second, or the first divided by the second. One
    of them is the column itself, which must be the first in a ratio. Sites encode, and models represent, this
    difference or ratio between ``lower`` and ``upper``; decoding recovers the value from it. Differences of times are
    in a ``unit``: day, hour, minute or second. Raises :class:`SchemaError` for invalid operands or bounds.
    """

    difference: tuple[str, str] | None = None
    ratio: tuple[str, str] | None = None
    unit: str | None = None
    lower: float
    upper: float

    def __post_init__(self) -> None:
        _only_one(self, "stored", "difference", "ratio")
        for what in ("difference", "ratio"):
            _operands(self, what, 2, 2)
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower <= self.upper):
            raise SchemaError(f"stored needs finite bounds with lower <= upper, not {self.lower} and {self.upper}")

    @property
    def operands(self) -> tuple[str, str]:
        """Names of the two columns, in the order in which they are subtracted or divided."""
        found = self.difference or self.ratio
        assert found is not None
        return found


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Declares that a column is computed from other columns when rows are decoded; sites are never queried about it.

    The value is the ``sum`` or ``product`` of numeric columns, the ``difference`` of two columns (the first minus the
    second; of times in a ``unit``: day, hour, minute or second), or looked up: ``table`` maps each value (as text) of
    the column ``lookup``, categorical or boolean, to the result. Give one of the four (``lookup`` together with
    ``table``); columns are given by name. Raises :class:`SchemaError` for invalid operands.
    """

    sum: tuple[str, ...] | None = None
    difference: tuple[str, str] | None = None
    product: tuple[str, ...] | None = None
    lookup: str | None = None
    table: Mapping[str, str | int | bool] | None = field(default=None, hash=False)
    unit: str | None = None

    def __post_init__(self) -> None:
        _only_one(self, "computed", "sum", "difference", "product", "lookup")
        for what, most in (("sum", 64), ("difference", 2), ("product", 64)):
            _operands(self, what, 2, most)
        if (self.lookup is None) != (not self.table):
            raise SchemaError("computed needs lookup (a column) together with table (the result for each value of it)")

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the columns from which the value is computed, in order."""
        return self.sum or self.difference or self.product or (str(self.lookup),)


def _only_one(form: Stored | Computed, name: str, *kinds: str) -> None:
    if len(given := [kind for kind in kinds if getattr(form, kind) is not None]) != 1:
        raise SchemaError(f"{name} has {', '.join(given) or 'none'} of {', '.join(kinds)}; give one of them")


def _operands(form: Stored | Computed, kind: str, least: int, most: int) -> None:
    """Convert a form's operands to a tuple of ``least`` to ``most`` names."""
    names = getattr(form, kind)
    if names is None:
        return
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"{kind} = {names!r} is not a list of columns; write their names in quotes")
    if not least <= len(names) <= most or len(set(names)) < len(names):
        raise SchemaError(f"{kind} = {list(names)} must name {least} different columns" + (" or more" * (most > least)))
    object.__setattr__(form, kind, tuple(names))


@dataclass(frozen=True)
class Identifier:
    """A column ``name`` of generated identifiers, unique within every synthetic table; sites never see it.

    ``form`` is ``"sequence"`` (1, 2, 3, ...), ``"uuid"`` (random, version 4), or a pattern in which each ``#`` stands
    for a random digit, such as ``"P-#####"``. Raises :class:`SchemaError` for a pattern without ``#``, or with more
    than 15.
    """

    name: str
    form: str = "sequence"
    kind: ClassVar[str] = "id"

    def __post_init__(self) -> None:
        if not isinstance(self.form, str) or (self.form not in ("sequence", "uuid") and "#" not in self.form):
            raise SchemaError(
                f"column {self.name!r} has form = {self.form!r}; write sequence, uuid, or a pattern such as P-#####"
            )
        if self.form.count("#") > _MOST_DIGITS:
            raise SchemaError(
                f"column {self.name!r} has a pattern of over {_MOST_DIGITS} digits; use uuid, or a shorter pattern"
            )

    def draw(self, rows: int, rng: np.random.Generator) -> pd.Series[Any]:
        """Return ``rows`` distinct identifiers, integers for a sequence and otherwise text.

        Raises :class:`InvalidParameter` if the pattern has fewer than ``rows`` distinct identifiers.
        """
        import pandas as pd

        if self.form == "sequence":
            return pd.Series(np.arange(1, rows + 1), name=self.name)
        if self.form == "uuid":
            from uuid import UUID

            drawn = rng.bytes(16 * rows)
            parts = (drawn[at : at + 16] for at in range(0, len(drawn), 16))
            return pd.Series([str(UUID(bytes=part, version=4)) for part in parts], name=self.name, dtype=object)
        digits = self.form.count("#")
        if rows > 10**digits:
            raise InvalidParameter(
                f"column {self.name!r}: the pattern {self.form!r} has {10**digits} identifiers for {rows} rows; add #"
            )
        pattern = self.form.replace("{", "{{").replace("}", "}}").replace("#", "{}")
        drawn_numbers = rng.choice(10**digits, rows, replace=False).tolist()
        return pd.Series([pattern.format(*f"{n:0{digits}}") for n in drawn_numbers], name=self.name, dtype=object)
