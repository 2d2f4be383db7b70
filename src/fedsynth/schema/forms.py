"""Forms of columns that are not read directly from rows: stored forms, computed forms, and identifiers.

Their effect on rows, codes and counts is described in :mod:`fedsynth.schema.derive`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

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
Number = Annotated[int | float, Meta(description="a number")]
_WORDS = {"second": "s", "minute": "min", "hour": "h", "day": "D"}  # names of units in forms


def microseconds_of(unit: str) -> int:
    """Return the length of a unit of time, a name (day, ...) or symbol (D, h, min, s, ms, us), in microseconds.

    Raises :class:`SchemaError` for an unknown unit.
    """
    if (known := UNITS.get(_WORDS.get(unit, unit))) is None:
        raise SchemaError(f"unknown unit {unit!r}; choose one of {', '.join(_WORDS)}")
    return known


class Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of what a schema file declares; the tags of its classes tell what."""

    @property
    def kind(self) -> str:
        """The tag of the class."""
        return str(self.__struct_config__.tag)


class DeclaredColumn(Declared, frozen=True, dict=True, tag_field="type", tag=str.lower):
    """Base class of a ``[[column]]`` of a schema file, by its entry ``type``."""


class Relation(Declared, frozen=True, omit_defaults=True, tag_field="relation"):
    """Base class of the relations by which a column follows from others, in its entry ``stored`` or ``computed``.

    In a schema file, a relation is a table of entries; the one with the operands has the relation's tag as its key. A
    further relation is a class with a tag of its own in the union :data:`StoredForm` or :data:`ComputedForm`; one of
    several numbers has the function of two numbers that ``combine`` them. Raises :class:`SchemaError` for invalid
    operands.
    """

    most: ClassVar[int] = 2

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the columns from which the value is computed, in order."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        names, tag = self.operands, self.kind
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise SchemaError(f"{tag} = {names!r} is not a list of columns; write their names in quotes")
        if not 2 <= len(names) <= self.most or len(set(names)) < len(names):
            several = " or more" * (self.most > 2)
            raise SchemaError(f"{tag} = {list(names)} must name 2 different columns{several}")
        force_setattr(self, "operands", tuple(names))


class _Bounded(Relation, frozen=True, kw_only=True):
    lower: Number
    upper: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -math.inf < self.lower <= self.upper < math.inf:
            raise SchemaError(f"stored needs finite bounds with lower <= upper, not {self.lower} and {self.upper}")


class StoredDifference(_Bounded, frozen=True, tag="difference"):
    """Declares that a numeric or datetime column is stored as its difference from another column.

    ``operands`` are the names of two columns, of which one is the column itself: the first minus the second. Sites
    encode, and models represent, this difference between ``lower`` and ``upper``; decoding recovers the value from it.
    Differences of times are in a ``unit``: day, hour, minute or second. Raises :class:`SchemaError` for invalid
    operands or bounds.
    """

    operands: tuple[str, ...] = field(name="difference")
    unit: str | None = None


class StoredRatio(_Bounded, frozen=True, tag="ratio"):
    """Declares that a numeric column is stored as its ratio to another column.

    ``operands`` are the column's own name and the other one's: the first divided by the second. The ratio lies between
    ``lower`` and ``upper``, as in :class:`StoredDifference`.
    """

    operands: tuple[str, ...] = field(name="ratio")


class Sum(Relation, frozen=True, tag="sum"):
    """Declares that a column is the sum of the numeric columns ``operands``, when rows are decoded.

    Sites are never queried about a computed column. Raises :class:`SchemaError` for invalid operands.
    """

    most = 64
    combine: ClassVar[np.ufunc] = np.add
    operands: tuple[str, ...] = field(name="sum")


class Difference(Relation, frozen=True, tag="difference"):
    """Declares that a column is the difference of two ``operands``, the first minus the second, as in :class:`Sum`.

    Differences of times are in a ``unit``: day, hour, minute or second.
    """

    operands: tuple[str, ...] = field(name="difference")
    unit: str | None = None


class Product(Relation, frozen=True, tag="product"):
    """Declares that a column is the product of the numeric columns ``operands``, as in :class:`Sum`."""

    most = 64
    combine: ClassVar[np.ufunc] = np.multiply
    operands: tuple[str, ...] = field(name="product")


class Lookup(Relation, frozen=True, tag="lookup"):
    """Declares that a column is looked up by another one, ``lookup``, both categorical or boolean.

    ``table`` maps each value (as text) of the other column to the result. Sites compute the column from the other one,
    and models hold both (:mod:`fedsynth.schema.coarse`). A table that nobody can write is ``learned``: sites read both
    columns, and the run's first question counts their values together for this share of the budget, from above 0 to
    0.5 (:mod:`fedsynth.methods.learned`). Beside ``learned``, a table is what a run has found.
    """

    lookup: str
    table: Mapping[str, str | int | bool] = {}
    learned: float | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """Name of the column that is looked up, as a tuple."""
        return (self.lookup,)

    def __post_init__(self) -> None:
        if self.learned is None and not self.table:
            raise SchemaError(
                "lookup needs a table with the result for each value of the column, or learned = 0.05, the share of "
                "the budget for which a run finds it out"
            )
        if self.learned is not None and not 0 < self.learned <= 0.5:
            raise SchemaError(f"learned = {self.learned} must be a share of the budget, above 0 and at most 0.5")

    def __hash__(self) -> int:
        return hash((self.lookup, frozenset(self.table), self.learned))


class Copy(Relation, frozen=True, tag="copy"):
    """Declares that a column equals the column ``copy``, as in :class:`Sum`, or is the date of its times.

    A number is rounded as the column declares, and a time rounded down to the column's unit.
    """

    copy: str

    def __post_init__(self) -> None:
        """There is nothing to check: a copy has one operand."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Name of the column that is copied, as a tuple."""
        return (self.copy,)


class Part(Relation, frozen=True, tag="part"):
    """Declares that a categorical column is a part of the time in the datetime column ``of``.

    The ``part`` is the weekday (seven values, Monday first), the month (twelve) or the hour (24); the column lists its
    values in order, whatever it calls them.
    """

    part: Literal["weekday", "month", "hour"]
    of: str

    def __post_init__(self) -> None:
        """There is nothing to check: a part has one operand."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Name of the datetime column, as a tuple."""
        return (self.of,)

    @property
    def values(self) -> int:
        """Number of values of the part."""
        return {"weekday": 7, "month": 12, "hour": 24}[self.part]


StoredForm = StoredDifference | StoredRatio
ComputedForm = Sum | Difference | Product | Copy | Lookup | Part


class Identifier(DeclaredColumn, frozen=True, tag="id"):
    """A column ``name`` of generated identifiers, unique within every synthetic table; sites never see it.

    ``form`` is ``"sequence"`` (1, 2, 3, ...), ``"uuid"`` (random, version 4), or a pattern in which each ``#`` stands
    for a random digit, such as ``"P-#####"``. Raises :class:`SchemaError` for a pattern without ``#``, or with more
    than 15.
    """

    name: str
    form: str = "sequence"

    def __post_init__(self) -> None:
        if self.form not in ("sequence", "uuid") and "#" not in self.form:
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
