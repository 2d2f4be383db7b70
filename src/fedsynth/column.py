"""The kinds of columns that a schema can hold: how values become codes, and codes become values again.

A column is public: it is written down before anybody looks at rows, and encoding never fits anything to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.bins import check_bins, draw, equal_bins, grid
from fedsynth.errors import SchemaError

Codes = NDArray[np.int64]
_NO_LABEL = ""  # what a value that is no whole number reads as among integers
_LARGEST_INTEGER = 2**53  # beyond it, doubles skip integers


@dataclass(frozen=True)
class Fault:
    """Values that a column does not admit: ``rows`` (positions), what is ``wrong`` and how to ``mend`` it."""

    rows: Codes
    wrong: str
    mend: str


@dataclass(frozen=True)
class Encoded:
    """A column's codes (-1 where a fault is), its numbers if it has any, and the faults found."""

    codes: Codes
    numbers: NDArray[np.float64] | None
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Categorical:
    """One of a list of values, all text or all integers; text keeps leading zeros.

    ``missing`` admits missing values. ``ordered`` says that the order of ``values`` means something.
    ``unknown = "other"`` turns values that are not listed into ``"other"`` instead of an error.
    """

    name: str
    values: tuple[str, ...] | tuple[int, ...]
    missing: bool = False
    ordered: bool = False
    unknown: Literal["error", "other"] = "error"
    kind: ClassVar[str] = "categorical"
    is_number: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse lists that cannot be told apart."""
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise SchemaError(f"column {self.name!r} lists no values; list what it may hold")
        if not (self._text or all(type(value) is int for value in self.values)):
            raise SchemaError(f"column {self.name!r} mixes kinds of values; list text only, or integers only")
        if len(set(self.values)) < len(self.values):
            raise SchemaError(f"column {self.name!r} lists a value twice; list each once")
        _one_of(self.name, "unknown", self.unknown, ("error", "other"))
        if self.unknown == "other" and not self._text:
            raise SchemaError(f"column {self.name!r} cannot say 'other' among integers; list its values as text")

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels) + self.missing

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the codes of ``values``; ``missing`` marks the missing ones."""
        positions = {value: code for code, value in enumerate(self.labels)}
        fallback = positions["other"] if self.unknown == "other" else -1
        codes = _by_distinct(values, lambda value: positions.get(self._key(value), fallback))
        return _finish(
            self, codes, missing, [(codes < 0, "is not listed", "add it to values, or set unknown = 'other'")]
        )

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return the values behind ``codes``."""
        gone = codes >= len(self.labels)
        if self.ordered:
            frame_codes = np.where(gone, -1, codes)
            return pd.Series(pd.Categorical.from_codes(frame_codes, list(self.labels), ordered=True), name=self.name)  # type: ignore[call-overload]
        if self._text:
            labels = np.array([*self.labels, None], dtype=object)
            return pd.Series(labels[codes], name=self.name)
        labels = np.array([*self.labels, 0])
        return _integers(labels[codes], gone, self)

    @property
    def _text(self) -> bool:
        return all(type(value) is str for value in self.values)

    @cached_property
    def labels(self) -> tuple[str | int, ...]:
        """The value behind each code, a missing one left out."""
        other = ("other",) if self.unknown == "other" and "other" not in self.values else ()
        return (*self.values, *other)

    def _key(self, value: Any) -> str | int:
        if self._text:
            return str(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            return _NO_LABEL
        return int(number) if number.is_integer() else _NO_LABEL


_TRUE = {"true", "t", "yes", "y", "1", "1.0"}
_FALSE = {"false", "f", "no", "n", "0", "0.0"}


@dataclass(frozen=True)
class Boolean:
    """True or false; text such as ``yes``, ``no``, ``t``, ``f``, ``1`` and ``0`` is understood."""

    name: str
    missing: bool = False
    kind: ClassVar[str] = "boolean"
    is_number: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Number of codes."""
        return 2 + self.missing

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the codes of ``values``: 0 for false, 1 for true."""

        def code(value: Any) -> int:
            text = str(value).strip().lower()
            return 1 if text in _TRUE else 0 if text in _FALSE else -1

        codes = _by_distinct(values, code)
        return _finish(self, codes, missing, [(codes < 0, "is neither true nor false", "make the column categorical")])

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return the values behind ``codes``: ``bool``, or ``boolean`` where values may be missing."""
        if not self.missing:
            return pd.Series(codes == 1, name=self.name)
        return pd.Series(pd.arrays.BooleanArray(codes == 1, codes == 2), name=self.name)


@dataclass(frozen=True)
class Numeric:
    """A number between public bounds, in bins.

    ``edges`` are bin edges from ``low`` to ``high``; without them the range is cut into ``bins`` bins of
    equal width (an integer column of fewer values gets one bin each). Bins are closed below and open above,
    the last is closed. A code decodes to a value drawn uniformly from its bin, with ``decimals`` digits after
    the point (default: any). ``outside = "clip"`` moves values outside the bounds onto them.
    """

    name: str
    low: float
    high: float
    edges: tuple[float, ...] | None = None
    bins: int = 32
    integer: bool = False
    decimals: int | None = None
    missing: bool = False
    outside: Literal["error", "clip"] = "error"
    kind: ClassVar[str] = "numeric"
    is_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        number = int if self.integer else float
        for bound in ("low", "high"):
            value = getattr(self, bound)
            if not math.isfinite(value) or (self.integer and (value != int(value) or abs(value) > _LARGEST_INTEGER)):
                raise SchemaError(f"column {self.name!r} has {bound} = {value}; give a finite {number.__name__}")
            object.__setattr__(self, bound, number(value))
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
        _one_of(self.name, "outside", self.outside, ("error", "clip"))
        check_bins(self.name, self.low, self.high, self.edges, self.bins)
        if self.decimals is not None and (self.integer or not 0 <= self.decimals <= 12):
            raise SchemaError(
                f"column {self.name!r} has decimals = {self.decimals}; give 0 to 12, to real numbers only"
            )
        first, last = grid(self.bin_edges, self._per_unit)
        if self._per_unit and (first > last).any():
            bin_ = int(np.flatnonzero(first > last)[0])
            between = f"between {self.bin_edges[bin_]:g} and {self.bin_edges[bin_ + 1]:g}"
            raise SchemaError(
                f"column {self.name!r} has no value {between}; widen that bin, use fewer bins or decimals"
            )

    @property
    def _per_unit(self) -> int:
        """Values per unit that the column can take; zero for all."""
        return 1 if self.integer else 0 if self.decimals is None else 10**self.decimals

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.bin_edges) - 1 + self.missing

    @cached_property
    def bin_edges(self) -> NDArray[np.float64]:
        """Edges of the bins, shape ``(bins + 1,)``; a constant column has one bin of no width."""
        if self.edges is not None:
            return np.array(self.edges)
        return equal_bins(self.low, self.high, self.bins, whole=self.integer, per_unit=self._per_unit)

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the bins of ``values``, and the values themselves as numbers."""
        numbers, unread = _as_floats(values, missing)
        faults = [(unread, "is not a number", "mend the file, or make the column categorical")]
        if self.integer:
            broken = ~unread & np.isfinite(numbers) & (numbers != np.floor(numbers))
            faults.append((broken, "is not an integer", "round it, or set integer = false"))
        return _encode_numbers(self, numbers, missing, faults)

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return one value from each code's bin."""
        gone = codes >= len(self.bin_edges) - 1
        drawn = draw(self.bin_edges, np.where(gone, 0, codes), rng, self._per_unit)
        if self.integer:
            return _integers(drawn.astype(np.int64), gone, self)
        drawn[gone] = np.nan
        return pd.Series(drawn, name=self.name)


_UNITS: dict[str, int] = {
    "us": 1,
    "ms": 10**3,
    "s": 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "D": 86400 * 10**6,
}


@dataclass(frozen=True)
class Datetime:
    """A point in time between public bounds (ISO 8601 text), in bins.

    ``unit`` (us, ms, s, min, h, D) is the resolution: values are rounded down to it. ``timezone`` is an IANA
    name; times are then aware, and binned in UTC. Bins, decoding and ``outside`` as for :class:`Numeric`.
    """

    name: str
    low: str
    high: str
    edges: tuple[str, ...] | None = None
    bins: int = 32
    unit: str = "s"
    timezone: str | None = None
    missing: bool = False
    outside: Literal["error", "clip"] = "error"
    kind: ClassVar[str] = "datetime"
    is_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse bounds that are no times."""
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(self.edges))
        _one_of(self.name, "unit", self.unit, tuple(_UNITS))
        _one_of(self.name, "outside", self.outside, ("error", "clip"))
        edges = None if self.edges is None else [self._instant(edge) for edge in self.edges]
        check_bins(self.name, self._instant(self.low), self._instant(self.high), edges, self.bins)

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.bin_edges) - 1 + self.missing

    @property
    def microseconds(self) -> int:
        """Length of a unit."""
        return _UNITS[self.unit]

    @cached_property
    def bin_edges(self) -> NDArray[np.float64]:
        """Edges of the bins in units since 1970 (UTC), shape ``(bins + 1,)``."""
        if self.edges is not None:
            return np.array([self._instant(edge) for edge in self.edges])
        return equal_bins(self._instant(self.low), self._instant(self.high), self.bins, whole=True, per_unit=1)

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the bins of ``values``, and the instants themselves in units since 1970."""
        if pd.api.types.is_numeric_dtype(values.dtype) and not missing.all():
            fault = Fault(np.flatnonzero(~missing), "is a number, not a time", "write times as ISO 8601 text")
            return Encoded(np.full(len(values), -1), None, (fault,))
        times = pd.to_datetime(values.mask(missing), errors="coerce", utc=self.timezone is not None, format="ISO8601")
        unread = times.isna().to_numpy() & ~missing
        faults = [(unread, "is not a time", "write it as ISO 8601, for example 2026-03-31 or 2026-03-31T12:30:00")]
        if times.dt.tz is not None:
            if self.timezone is None:
                faults.append((~missing & ~unread, "has a time zone", "set timezone, or strip the zone from the file"))
            times = times.dt.tz_convert("UTC").dt.tz_localize(None)
        instants = times.to_numpy("datetime64[us]").astype(np.int64) // self.microseconds
        numbers = np.where(missing | unread, np.nan, instants.astype(np.float64))
        return _encode_numbers(self, numbers, missing, faults)

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return one time from each code's bin."""
        gone = codes >= len(self.bin_edges) - 1
        drawn = draw(self.bin_edges, np.where(gone, 0, codes), rng, per_unit=1).astype(np.int64)
        instants = (drawn * self.microseconds).astype("datetime64[us]")
        instants[gone] = np.datetime64("NaT")
        times = pd.Series(instants, name=self.name)
        return times if self.timezone is None else times.dt.tz_localize("UTC").dt.tz_convert(self.timezone)

    def _instant(self, text: str) -> float:
        try:
            time = pd.Timestamp(text)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"column {self.name!r} has the bound {text!r}; write times as ISO 8601 text") from error
        if self.timezone is not None:
            time = (time.tz_localize(self.timezone) if time.tz is None else time).tz_convert("UTC").tz_localize(None)
        elif time.tz is not None:
            raise SchemaError(f"column {self.name!r} has the bound {text!r} with a zone; set timezone, or leave it out")
        return float(time.to_datetime64().astype("datetime64[us]").astype(np.int64) // self.microseconds)


Column = Categorical | Boolean | Numeric | Datetime
KINDS: dict[str, type[Column]] = {one.kind: one for one in (Categorical, Boolean, Numeric, Datetime)}


def _by_distinct(values: pd.Series[Any], code: Callable[[Any], int]) -> Codes:
    """Return ``code(value)`` of each value, calling it once per distinct value; -1 for missing ones."""
    which, distinct = pd.factorize(values)
    table = np.array([*(code(value) for value in distinct), -1], dtype=np.int64)
    return table[which]


def _as_floats(values: pd.Series[Any], missing: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return np.full(len(values), np.nan), ~missing
    present = values.mask(missing)
    numbers = pd.to_numeric(present, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if not pd.api.types.is_numeric_dtype(values.dtype):
        # Of long decimals in text, to_numeric often misses the nearest double by one; a database does not.
        found = np.flatnonzero(~np.isnan(numbers))
        which, distinct = pd.factorize(present.iloc[found])
        numbers = numbers.copy()
        numbers[found] = np.array([float(one) for one in distinct], dtype=np.float64)[which]
    return numbers, np.isnan(numbers) & ~missing


def _encode_numbers(
    column: Numeric | Datetime,
    numbers: NDArray[np.float64],
    missing: NDArray[np.bool_],
    faults: list[tuple[NDArray[np.bool_], str, str]],
) -> Encoded:
    """Return the codes of numbers, after clipping them or noting those outside."""
    edges = column.bin_edges
    if column.outside == "clip":
        numbers = np.clip(numbers, edges[0], edges[-1])
    outside = (numbers < edges[0]) | (numbers > edges[-1])
    faults.append(
        (
            outside,
            f"lies outside [{column.low}, {column.high}]",
            "widen low and high, or set outside = 'clip'",
        )
    )
    codes = np.minimum(np.searchsorted(edges, numbers, side="right") - 1, len(edges) - 2)
    codes[np.isnan(numbers) | outside] = -1
    return _finish(column, codes, missing, faults, numbers)


def _finish(
    column: Column,
    codes: Codes,
    missing: NDArray[np.bool_],
    faults: Sequence[tuple[NDArray[np.bool_], str, str]],
    numbers: NDArray[np.float64] | None = None,
) -> Encoded:
    """Give missing values their code, or note them as faults where the column admits none."""
    found = [Fault(np.flatnonzero(bad & ~missing), wrong, mend) for bad, wrong, mend in faults]
    if column.missing:
        codes[missing] = column.size - 1
    else:
        codes[missing] = -1
        found.append(Fault(np.flatnonzero(missing), "is missing", "set missing = true, or fill it in"))
    return Encoded(codes, numbers, tuple(fault for fault in found if len(fault.rows)))


def _integers(values: NDArray[Any], gone: NDArray[np.bool_], column: Categorical | Numeric) -> pd.Series[Any]:
    """Return ``int64``, or ``Int64`` where values may be missing."""
    if not column.missing:
        return pd.Series(values.astype(np.int64), name=column.name)
    return pd.Series(pd.arrays.IntegerArray(values.astype(np.int64), gone.copy()), name=column.name)


def _one_of(name: str, what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SchemaError(f"column {name!r} has {what} = {value!r}; choose one of {', '.join(allowed)}")
