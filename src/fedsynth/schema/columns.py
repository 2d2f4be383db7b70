"""The kinds of columns that a schema can hold: how values become codes, and codes become values again.

A column is public: it is written down before anybody looks at rows, and encoding never fits anything to them. Encoding
is total: no single value raises, and the code of a value depends on that value and the column alone, so that no row
can stop a site or change what becomes of another row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import SchemaError
from fedsynth.schema.bins import Floats, Grid, bin_of, check_bins, equal_bins
from fedsynth.schema.forms import UNITS, Computed, Identifier, Stored

if TYPE_CHECKING:
    import pandas as pd

Codes = NDArray[np.int64]
Handling = Literal["row left out", "clipped", "counted as 'other'", "counted as missing"]
LARGEST = 1e30  # of the bounds in a schema file: squares and single precision must hold what lies between them
LARGEST_INTEGER = 2**53  # beyond it, doubles skip integers


@dataclass(frozen=True)
class Fault:
    """Values outside the schema: ``rows`` (positions), what is ``wrong``, how they are ``handled``, the ``mend``."""

    rows: Codes
    wrong: str
    handled: Handling
    mend: str


@dataclass(frozen=True)
class Encoded:
    """A column's codes (-1 where the row is left out), its numbers if it has any, and the faults found."""

    codes: Codes
    numbers: NDArray[np.float64] | None
    faults: tuple[Fault, ...]


_Found = tuple[NDArray[np.bool_], str, Handling, str]  # a fault whose rows are still a mask


def code_of(column: Categorical | Boolean, value: Any, missing_values: Sequence[str]) -> int | None:
    """Return the code of a category's value as a schema file writes it; ``None`` for one that it does not list.

    A spelling of missing values stands for a missing one, and text for the integer or the truth that it spells.
    """
    known: dict[Any, int]
    if isinstance(column, Categorical):
        known = {str(label): code for code, label in enumerate(column.labels)}
        text = str(value)
    else:
        known = dict.fromkeys(_FALSE, 0) | dict.fromkeys(_TRUE, 1)
        text = str(value).strip().lower()
    if text in known:
        return known[text]
    return column.size - 1 if column.missing and value in missing_values else None


@dataclass(frozen=True)
class Categorical:
    """One of a list of values, all text or all integers; text keeps leading zeros.

    ``missing`` admits missing values. ``ordered`` says that the order of ``values`` means something.
    ``unknown`` says what becomes of a value that is not listed: its row is left out (``"drop"``), or the value becomes
    ``"other"``, or it becomes missing (``"missing"``, where the column admits that). A ``computed`` column is looked
    up.
    """

    name: str
    values: tuple[str, ...] | tuple[int, ...]
    missing: bool = False
    ordered: bool = False
    unknown: Literal["drop", "other", "missing"] = "drop"
    computed: Computed | None = None
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
        _one_of(self.name, "unknown", self.unknown, ("drop", "other", "missing"))
        if self.unknown == "missing" and not self.missing:
            raise SchemaError(f"column {self.name!r} has unknown = 'missing' but admits none; set missing = true")
        if self.unknown == "other" and not self._text:
            raise SchemaError(f"column {self.name!r} cannot say 'other' among integers; list its values as text")

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels) + self.missing

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the codes of ``values``; ``missing`` marks the missing ones.

        Raises :class:`SchemaError` for times where integers are listed.
        """
        if not self._text:
            _check_type(self, values.dtype, {"numbers", "objects"}, "cast it to integers, or list its values as text")
        positions: dict[Any, int] = {value: code for code, value in enumerate(self.labels)}
        codes = _each(values, lambda value: positions.get(self._key(value), -1), -1, np.int64)
        unlisted = (codes < 0) & ~missing
        handled: Handling = "row left out"
        mend = "add it to values, or set unknown = 'other'"
        if self.unknown != "drop":
            mend = "add it to values if it is common"
            handled = "counted as 'other'" if self.unknown == "other" else "counted as missing"
            codes[unlisted] = positions["other"] if self.unknown == "other" else self.size - 1
        return _finish(self, codes, None, missing, [(unlisted, "is not listed", handled, mend)])

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return the values behind ``codes``."""
        import pandas as pd

        gone = codes >= len(self.labels)
        if self.ordered:
            frame_codes = np.where(gone, -1, codes)
            return pd.Series(pd.Categorical.from_codes(frame_codes, list(self.labels), ordered=True), name=self.name)  # type: ignore[call-overload]
        if self._text:
            # The type is that of the labels, so that it does not depend on which of them were drawn.
            return pd.Series([*self.labels, None], name=self.name).take(codes).reset_index(drop=True)
        return _integers(np.array([*self.labels, 0])[codes], gone, self)

    @property
    def in_order(self) -> bool:
        """Whether the order of ``values`` means something: it is declared, or they are integers listed as they grow."""
        return self.ordered or (not self._text and list(self.values) == sorted(self.values))

    @property
    def _text(self) -> bool:
        return all(type(value) is str for value in self.values)

    @cached_property
    def labels(self) -> tuple[str | int, ...]:
        """The value behind each code, a missing one left out."""
        other = ("other",) if self.unknown == "other" and "other" not in self.values else ()
        return (*self.values, *other)

    def _key(self, value: Any) -> str | int | None:
        if self._text:
            return _spelled(value)
        number = _number(value)
        return int(number) if number.is_integer() else None


_TRUE = {"true", "t", "yes", "y", "1", "1.0"}
_FALSE = {"false", "f", "no", "n", "0", "0.0"}


@dataclass(frozen=True)
class Boolean:
    """True or false; text such as ``yes``, ``no``, ``t``, ``f``, ``1`` and ``0`` is understood.

    A ``computed`` column is looked up.
    """

    name: str
    missing: bool = False
    computed: Computed | None = None
    kind: ClassVar[str] = "boolean"
    is_number: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Number of codes."""
        return 2 + self.missing

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the codes of ``values``: 0 for false, 1 for true; raises :class:`SchemaError` for times."""
        _check_type(self, values.dtype, {"numbers", "objects"}, "cast it to booleans")

        def code(value: Any) -> int:
            text = (_spelled(value) or "").strip().lower()
            return 1 if text in _TRUE else 0 if text in _FALSE else -1

        codes = _each(values, code, -1, np.int64)
        unread: _Found = (codes < 0, "is neither true nor false", "row left out", "make the column categorical")
        return _finish(self, codes, None, missing, [unread])

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return the values behind ``codes``: ``bool``, or ``boolean`` where values may be missing."""
        import pandas as pd

        if not self.missing:
            return pd.Series(codes == 1, name=self.name)
        return pd.Series(pd.arrays.BooleanArray(codes == 1, codes == 2), name=self.name)


@dataclass(frozen=True)
class Numeric:
    """A number between public bounds, in bins.

    ``edges`` are bin edges from ``low`` to ``high``; without them the range is cut into ``bins`` bins of
    equal width (an integer column of fewer values gets one bin each). Bins are closed below and open above,
    the last is closed. A code decodes to a value drawn uniformly from its bin, with ``decimals`` digits after
    the point (default: any). ``outside`` says what becomes of a number beyond the bounds, infinity included: it is
    moved onto the nearer one (``"clip"``), or its row is left out (``"drop"``). ``stored`` and ``computed`` say that
    the number is held by its relation to another column, in ``bins`` bins of that, or follows from others.
    """

    name: str
    low: float
    high: float
    edges: tuple[float, ...] | None = None
    bins: int = 32
    integer: bool = False
    decimals: int | None = None
    missing: bool = False
    outside: Literal["clip", "drop"] = "clip"
    stored: Stored | None = None
    computed: Computed | None = None
    kind: ClassVar[str] = "numeric"
    is_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        number = int if self.integer else float
        for bound in ("low", "high"):
            value = getattr(self, bound)
            if not math.isfinite(value) or (self.integer and (value != int(value) or abs(value) > LARGEST_INTEGER)):
                raise SchemaError(f"column {self.name!r} has {bound} = {value}; give a finite {number.__name__}")
            object.__setattr__(self, bound, number(value))
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
        _one_of(self.name, "outside", self.outside, ("clip", "drop"))
        check_bins(self.name, self.low, self.high, self.edges, self.bins)
        if self.decimals is not None and (self.integer or not 0 <= self.decimals <= 12):
            raise SchemaError(
                f"column {self.name!r} has decimals = {self.decimals}; give 0 to 12, to real numbers only"
            )
        empty = self.bins_as_cells.lower >= self.bins_as_cells.upper
        if self.per_unit and empty.any():
            bin_ = int(np.flatnonzero(empty)[0])
            between = f"between {self.bin_edges[bin_]:g} and {self.bin_edges[bin_ + 1]:g}"
            raise SchemaError(
                f"column {self.name!r} has no value {between}; widen that bin, use fewer bins or decimals"
            )

    @property
    def per_unit(self) -> int:
        """Of which fraction of a unit the values are multiples; zero for all."""
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
        return equal_bins(self.low, self.high, self.bins, whole=self.integer, per_unit=self.per_unit)

    @cached_property
    def bins_as_cells(self) -> Grid:
        """The bins as cells, from which values are drawn."""
        return Grid.of_bins(self.bin_edges, self.per_unit)

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the bins of ``values``, and the values themselves as numbers.

        Raises :class:`SchemaError` for a column of times, durations or complex numbers.
        """
        if _check_type(self, values.dtype, {"numbers", "objects"}, "cast it to numbers") == "numbers":
            numbers = values.to_numpy(np.float64, na_value=np.nan, copy=True)
        else:
            numbers = _each(values, _number, np.nan, np.float64)
        numbers[missing] = np.nan
        unread = np.isnan(numbers)
        mend = "mend the file, or make the column categorical"
        faults: list[_Found] = [(unread, "is not a number", "row left out", mend)]
        if self.integer:
            broken = np.isfinite(numbers) & (numbers != np.floor(numbers))
            faults.append((broken, "is not an integer", "row left out", "round it, or set integer = false"))
            numbers[broken] = np.nan
        return _encode_numbers(self, numbers, missing, faults)

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return one value from each code's bin."""
        return self.series(self.bins_as_cells.values(codes, rng.random(len(codes))))

    def series(self, numbers: Floats) -> pd.Series[Any]:
        """Return numbers that the column admits as the values that it decodes to; NaN is missing."""
        import pandas as pd

        gone = np.isnan(numbers)
        if self.integer:
            return _integers(np.where(gone, 0, numbers), gone, self)
        return pd.Series(numbers, name=self.name)


def fine_cells(column: Numeric | Datetime, bins: int) -> Grid:
    """Return about ``bins`` public cells between the column's bounds, finer or coarser than the schema's own bins."""
    return Grid.fine(column.bin_edges, column.per_unit, bins)


def sound_bounds(low: float, high: float) -> bool:
    """Say whether scores and models can compute with numbers between these bounds without overflow or underflow."""
    return max(abs(low), abs(high)) <= LARGEST and (low == high or high - low >= 1 / LARGEST)


@dataclass(frozen=True)
class Datetime:
    """A point in time between public bounds (ISO 8601 text), in bins.

    ``unit`` (us, ms, s, min, h, D) is the resolution: values are rounded down to it. ``timezone`` is an IANA
    name; times are then aware, and binned in UTC. Bins, decoding, ``outside`` and ``stored`` as for :class:`Numeric`.
    """

    name: str
    low: str
    high: str
    edges: tuple[str, ...] | None = None
    bins: int = 32
    unit: str = "s"
    timezone: str | None = None
    missing: bool = False
    outside: Literal["clip", "drop"] = "clip"
    stored: Stored | None = None
    kind: ClassVar[str] = "datetime"
    is_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse bounds that are no times."""
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(self.edges))
        _one_of(self.name, "unit", self.unit, tuple(UNITS))
        _one_of(self.name, "outside", self.outside, ("clip", "drop"))
        edges = None if self.edges is None else [self._bound(edge) for edge in self.edges]
        check_bins(self.name, self._bound(self.low), self._bound(self.high), edges, self.bins)

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.bin_edges) - 1 + self.missing

    @property
    def microseconds(self) -> int:
        """Length of a unit."""
        return UNITS[self.unit]

    @property
    def per_unit(self) -> int:
        """Of which fraction of a unit the times are multiples."""
        return 1

    @cached_property
    def bin_edges(self) -> NDArray[np.float64]:
        """Edges of the bins in units since 1970 (UTC), shape ``(bins + 1,)``."""
        if self.edges is not None:
            return np.array([self._bound(edge) for edge in self.edges])
        return equal_bins(self._bound(self.low), self._bound(self.high), self.bins, whole=True, per_unit=1)

    @cached_property
    def bins_as_cells(self) -> Grid:
        """The bins as cells, from which times are drawn."""
        return Grid.of_bins(self.bin_edges, self.per_unit)

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the bins of ``values``, and the instants themselves in units since 1970.

        Raises :class:`SchemaError` for a column of numbers or durations, and for one whose type has a time zone where
        ``timezone`` is not set.
        """
        _check_type(self, values.dtype, {"times", "objects"}, "write times as ISO 8601 text")
        zoned_dtype = getattr(values.dtype, "tz", None) is not None
        if zoned_dtype and self.timezone is None:
            raise SchemaError(f"column {self.name!r} has a time zone ({values.dtype}); set timezone, or strip the zone")
        if zoned_dtype:
            ticks = _microseconds(values.dt.tz_convert(None).to_numpy())
        elif isinstance(values.dtype, np.dtype) and values.dtype.kind == "M":
            ticks = _microseconds(values.to_numpy())
        else:
            ticks = _each(values, lambda value: _instant(value, self.timezone is not None), _NO_TIME, np.int64)
        unread, zoned = ticks == _NO_TIME, ticks == _ZONED
        example = "write it as ISO 8601, for example 2026-03-31 or 2026-03-31T12:30:00"
        faults: list[_Found] = [
            (unread, "is not a time", "row left out", example),
            (zoned, "has a time zone", "row left out", "set timezone, or strip the zone from the file"),
        ]
        numbers = np.where(missing | unread | zoned, np.nan, (ticks // self.microseconds).astype(np.float64))
        return _encode_numbers(self, numbers, missing, faults)

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return one time from each code's bin."""
        return self.series(self.bins_as_cells.values(codes, rng.random(len(codes))))

    def series(self, numbers: Floats) -> pd.Series[Any]:
        """Return numbers of units since 1970 that the column admits as the times that it decodes to; NaN is missing."""
        import pandas as pd

        gone = np.isnan(numbers)
        instants = (np.where(gone, 0, numbers).astype(np.int64) * self.microseconds).astype("datetime64[us]")
        instants[gone] = np.datetime64("NaT")
        times = pd.Series(instants, name=self.name)
        return times if self.timezone is None else times.dt.tz_localize("UTC").dt.tz_convert(self.timezone)

    def _bound(self, text: str) -> float:
        time = _read_time(text) if isinstance(text, str) else None
        if time is None:
            raise SchemaError(f"column {self.name!r} has the bound {text!r}; write times as ISO 8601 text")
        if self.timezone is None and time.tzinfo is not None:
            raise SchemaError(f"column {self.name!r} has the bound {text!r} with a zone; set timezone, or leave it out")
        if self.timezone is not None and time.tzinfo is None:
            try:
                time = time.replace(tzinfo=ZoneInfo(self.timezone))
            except (KeyError, ValueError, OSError) as error:
                raise SchemaError(
                    f"column {self.name!r} has timezone = {self.timezone!r}; give an IANA name such as Europe/Zurich"
                ) from error
        return float(_since_1970(time) // self.microseconds)


Column = Categorical | Boolean | Numeric | Datetime


KINDS: dict[str, type[Column | Identifier]] = {
    one.kind: one for one in (Categorical, Boolean, Numeric, Datetime, Identifier)
}


_FLOAT = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf(?:inity)?",
    re.IGNORECASE | re.ASCII,
)
_EPOCH = datetime(1970, 1, 1)
_NO_TIME, _ZONED = np.iinfo(np.int64).min, np.iinfo(np.int64).min + 1  # in place of an instant; the first is NaT too
_FARTHEST = 2**62  # microseconds: beyond every bound that ISO 8601 can write, and far from wrapping around


def distinct_values(values: pd.Series[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Return for each value of a column which of the distinct values it is (-1 where it is missing), and these.

    Times of a zone are given in UTC. Values of several types are told apart by type: ``1`` equals ``True``, and which
    of the two came first must not decide how the other is read. In such a column a missing value is a distinct value.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.DatetimeTZDtype):
        values = values.dt.tz_convert("UTC")  # pandas crashes at times before a zone's first change
    if isinstance(values.dtype, pd.StringDtype):
        values = values.astype(object)
    # pandas before 3 takes texts for equal that differ behind a NUL only.
    if values.dtype != object or (is_text(values) and "\0" not in "".join(values[values.notna()])):
        which, found = pd.factorize(values)
        return which, list(found)
    known: dict[tuple[type, Any], int] = {}
    distinct: list[Any] = []
    which = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        at = len(distinct)
        if type(value) in (str, int, float, bool):
            at = known.setdefault((type(value), value), at)
        if at == len(distinct):
            distinct.append(value)
        which[row] = at
    return which, distinct


def _each(values: pd.Series[Any], read: Callable[[Any], Any], nothing: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """Return ``read(value)`` of each value as ``dtype``, and ``nothing`` (or whatever it reads as) for missing ones.

    Equal values are read once.
    """
    which, distinct = distinct_values(values)
    return np.array([*(read(value) for value in distinct), nothing], dtype=dtype)[which]


def is_text(values: pd.Series[Any]) -> bool:
    """Say whether a column holds text and missing values only."""
    import pandas as pd

    try:
        return pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty")
    except ArithmeticError:  # pandas cannot look at a signalling NaN
        return False


def is_missing(value: Any) -> bool:
    """Say whether a value in a column of objects stands for a missing one: ``None``, or one that is not itself."""
    import pandas as pd

    try:
        return value is None or value is pd.NA or bool(value != value)
    except (ArithmeticError, TypeError, ValueError):
        return False


def _spelled(value: Any) -> str | None:
    """Return a value as text; ``None`` for an integer of more digits, or a year, than Python or pandas spell out."""
    try:
        return str(value + 0.0 if isinstance(value, (float, np.floating)) else value)  # -0.0 and 0.0 are one value
    except (ValueError, NotImplementedError):
        return None


def _number(value: Any) -> float:
    """Return the double nearest to a number or to the text of one, and NaN for anything else."""
    try:
        if isinstance(value, str):
            text = value.strip()
            return float(text) if _FLOAT.fullmatch(text) else math.nan
        return float(value) if isinstance(value, (Real, Decimal, np.bool_)) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def _read_time(text: str) -> datetime | None:
    """Return the time that an ISO 8601 text names, a year (2026) or a month (2026-03) included."""
    text = text.strip()
    try:
        return datetime.fromisoformat(text + {4: "-01-01", 7: "-01"}.get(len(text), ""))
    except ValueError:
        return None


def _since_1970(time: datetime) -> int:
    """Return microseconds since 1970, in UTC where the time has a zone."""
    return (time.replace(tzinfo=None) - _EPOCH - (time.utcoffset() or timedelta(0))) // timedelta(microseconds=1)


def _instant(value: Any, zones: bool) -> int:
    """Return a value's microseconds since 1970; ``_ZONED`` for a time with a zone unless the column has ``zones``."""
    time: datetime | None = None
    if isinstance(value, np.datetime64):
        return int(_microseconds(np.array([value]))[0])
    if isinstance(value, str):
        time = _read_time(value)
    elif isinstance(value, datetime):
        time = value
    elif isinstance(value, date):
        time = datetime(value.year, value.month, value.day)
    if time is None:
        return _NO_TIME
    if time.tzinfo is not None and not zones:
        return _ZONED
    stamp = getattr(time, "asm8", None)  # pandas' own times (NaT too) know years that Python's do not
    return _since_1970(time) if stamp is None else int(_microseconds(np.array([stamp]))[0])


def _microseconds(times: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """Return microseconds since 1970, ``_NO_TIME`` for NaT; times too far off do not wrap around."""
    unit = np.datetime_data(times.dtype)[0]
    if unit not in ("s", "ms", "us", "ns"):
        times, unit = times.astype("datetime64[s]"), "s"
    ticks = times.astype(np.int64)
    if unit == "ns":
        ticks = ticks // 1000
    else:
        each = {"s": 10**6, "ms": 10**3, "us": 1}[unit]
        ticks = np.clip(ticks, -_FARTHEST // each, _FARTHEST // each) * each
    ticks[np.isnat(times)] = _NO_TIME
    return ticks


def _check_type(column: Column, dtype: Any, admitted: set[str], mend: str) -> str:
    """Return whether a column holds numbers, times or objects; raise :class:`SchemaError` if that is not admitted."""
    import pandas as pd

    api = pd.api.types
    held = dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype
    if api.is_datetime64_any_dtype(held):
        kind = "times"
    elif api.is_timedelta64_dtype(held) or api.is_complex_dtype(held):
        kind = "durations" if api.is_timedelta64_dtype(held) else "complex numbers"
    elif isinstance(held, (pd.PeriodDtype, pd.IntervalDtype)):
        kind = "periods"
    else:
        kind = "numbers" if api.is_numeric_dtype(held) else "objects"
    if kind not in admitted:
        raise SchemaError(
            f"column {column.name!r} holds {kind} ({dtype}), which a {column.kind} column cannot read; {mend}"
        )
    return kind if held is dtype else "objects"


def _encode_numbers(
    column: Numeric | Datetime, numbers: NDArray[np.float64], missing: NDArray[np.bool_], faults: list[_Found]
) -> Encoded:
    """Return the codes of numbers (NaN: missing or faulty), those beyond the bounds clipped or left out."""
    edges = column.bin_edges
    outside = (numbers < edges[0]) | (numbers > edges[-1])
    clip = column.outside == "clip"
    mend = "widen low and high if such values are real" if clip else "widen low and high, or set outside = 'clip'"
    beyond = f"lies outside [{column.low}, {column.high}]"
    faults.append((outside, beyond, "clipped" if clip else "row left out", mend))
    numbers = np.clip(numbers, edges[0], edges[-1])
    codes = bin_of(edges, numbers)
    return _finish(column, codes, numbers, missing, faults)


def _finish(
    column: Column,
    codes: Codes,
    numbers: NDArray[np.float64] | None,
    missing: NDArray[np.bool_],
    faults: Sequence[_Found],
) -> Encoded:
    """Give missing values their code and rows that are left out theirs, -1, and collect the faults."""
    mend = "set missing = true, or fill it in"
    found = [(bad & ~missing, wrong, handled, mend) for bad, wrong, handled, mend in faults]
    if column.missing:
        codes[missing] = column.size - 1
    else:
        found.append((missing, "is missing", "row left out", mend))
    for bad, _, handled, _ in found:
        if handled == "row left out":
            codes[bad] = -1
    told = (Fault(np.flatnonzero(bad), wrong, handled, mend) for bad, wrong, handled, mend in found)
    return Encoded(codes, numbers, tuple(fault for fault in told if len(fault.rows)))


def _integers(values: NDArray[Any], gone: NDArray[np.bool_], column: Categorical | Numeric) -> pd.Series[Any]:
    """Return ``int64``, or ``Int64`` where values may be missing."""
    import pandas as pd

    if not column.missing:
        return pd.Series(values.astype(np.int64), name=column.name)
    return pd.Series(pd.arrays.IntegerArray(values.astype(np.int64), gone.copy()), name=column.name)


def _one_of(name: str, what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SchemaError(f"column {name!r} has {what} = {value!r}; choose one of {', '.join(allowed)}")
