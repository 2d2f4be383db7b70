"""Column types of a schema: encoding of values as codes (integers from 0), and decoding of codes to values.

Columns are public: they are written down before anybody looks at rows, and encoding never fits anything to the rows.
Encoding is total: no value and no dtype raises an error, and the code of a value depends on that value and the schema
alone. It depends neither on how the value is spelled nor on the type of its column, which other rows may change
(:mod:`fedsynth.schema.canonical`). A row can therefore neither stop a site nor change how another row is encoded. For a
data frame, this begins with the frame: what was lost before, such as the last digits of an integer beyond 2^53 in a
column that a missing value turned into doubles, or the zeros of "007" that ``pandas.read_csv`` took for a number,
cannot be known here. Cells of bytes are read as text (:func:`readable`).

In every column, missing values have the last code, or -1 if the column admits none; -1 leaves a row out. ``size`` is
the number of codes. ``encode(values, missing)`` takes a mask of the missing values (bool), and ``decode(codes, rng)``
returns a series named like the column. ``is_number`` is true of numeric and datetime columns, which have bins between
bounds, and false of the others, which have ``labels``. ``is_time`` is true of datetime columns, for which zero has no
meaning.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import numpy as np
from msgspec import Meta
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from fedsynth.errors import SchemaError
from fedsynth.schema.bins import Floats, Grid, check_bins, equal_bins
from fedsynth.schema.canonical import (
    TRUTH_VALUES,
    canonical_text,
    canonical_texts,
    decode_cell,
    real_part,
    since_1970,
    spells_value,
)
from fedsynth.schema.forms import UNITS, ComputedForm, DeclaredColumn, Number, StoredForm

if TYPE_CHECKING:
    import pandas as pd

Codes = NDArray[np.int64]
Handling = Literal["row left out", "clipped", "counted as 'other'", "counted as missing"]
LARGEST = 1e30  # largest bound in a schema file: squares and single precision must represent all values within it
LARGEST_INTEGER = 2**53  # largest integer up to which doubles represent every integer

_Time = Annotated[str, Meta(description='a time as ISO 8601 text, such as "2026-03-31"')]


@dataclass(frozen=True)
class Fault:
    """One kind of misfit found while a column was encoded: values that do not fit the schema.

    ``rows`` are the positions of these values (int64, from 0), ``wrong`` says what is wrong with them and ``mend`` how
    to fix it (clauses for a message). ``examples`` are pairs of a row and the text of its value.
    """

    rows: Codes
    wrong: str
    handled: Handling
    mend: str
    examples: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Encoded:
    """An encoded column: its codes (int64, shape ``(rows,)``), its numbers, and its faults.

    ``numbers`` are the values of a numeric or datetime column (float64, clipped to the bounds, NaN: missing), ``None``
    for other columns. Times are counted in the column's unit, such as seconds, from 1970 (UTC).
    """

    codes: Codes
    numbers: NDArray[np.float64] | None
    faults: tuple[Fault, ...]


_Found = tuple[NDArray[np.bool_], str, Handling, str]  # a Fault with a boolean mask instead of row positions


def code_of(column: Categorical | Boolean, value: Any, missing_values: Sequence[str]) -> int | None:
    """Return the code of a category's ``value`` as written in a schema file; ``None`` for a value not listed.

    ``value`` is read like a cell of a table. A spelling of missing values (one of ``missing_values``) that spells none
    of the column's values stands for a missing value, if the column admits missing values.
    """
    code = column.code(value)
    if code < 0 and column.missing and str(value) in missing_values:
        return column.size - 1
    return None if code < 0 else code


def missing_spellings(column: Column, missing_values: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the texts that stand for a missing value of a column, and the values that do, as canonical texts.

    ``missing_values`` are a schema's spellings of missing values. One that spells a value listed by ``column`` stands
    for that value. One that spells a number, a boolean or a time, such as ``"-9"``, stands for a missing value in cells
    of any type: it also makes the number -9.0 missing.
    """

    def lists(text: str) -> bool:
        return isinstance(column, Categorical) and column.code(text) >= 0

    spelled = {text for text in missing_values if not lists(text)}
    values = dict.fromkeys((canonical_text(text) for text in spelled if spells_value(text)), -1)
    _join_truth_values(values)
    return spelled, {text for text in values if not lists(text)}


def codes_of_texts(column: Categorical, missing_values: Sequence[str]) -> dict[str, int]:
    """Return the code of every text that a column of texts looks up, for a database that does so itself.

    A cell's text is looked up first, then its canonical text (:mod:`fedsynth.schema.canonical`).
    """
    gone = column.size - 1 if column.missing else -1
    return {**dict.fromkeys(set().union(*missing_spellings(column, missing_values)), gone), **column.codes_by_text}


def _join_truth_values(codes: dict[str, int]) -> None:
    """Let ``1`` stand for true and true for ``1``, where only one of the two has a code; likewise for false."""
    for word, digit in (("True", "1"), ("False", "0")):
        for known, other in ((word, digit), (digit, word)):
            if known in codes:
                codes.setdefault(other, codes[known])


class Categorical(DeclaredColumn, frozen=True):
    """A categorical column: one of a list of ``values``, all text or all integers.

    Cells are compared by value (:mod:`fedsynth.schema.canonical`): the text ``"1"`` in the list, or ``"+1"``, stands
    for the numbers 1 and 1.0 and for the texts ``"1"``, ``"+1"`` and ``"1.0"``, but not for ``"01"``. If the list has
    several spellings of one value, a text that equals one of them is that one; any other cell with the value is the
    canonical spelling, or the first in the list. Booleans are ``"True"`` and ``"False"`` in any usual capitals, or
    ``"1"`` and ``"0"``; where the
    list has only one of the two, it stands for both the boolean and the number. Text keeps leading zeros. Integers are
    read as doubles, so one beyond 2^53 may be counted as its neighbour in the list; write such values as text.
    ``missing`` admits missing values. ``ordered`` declares that the order of ``values`` is meaningful. ``unknown``
    determines the handling of a value that is not listed: its row is left out (``"drop"``), or the value is counted as
    ``"other"``, or as missing (``"missing"``, only if the column admits missing values). A ``computed`` column is
    looked up from another column (:class:`~fedsynth.schema.forms.ComputedForm`). Raises :class:`SchemaError` for no
    list, an empty one, mixed types, duplicates, ``unknown="missing"`` without ``missing``, and ``unknown="other"`` for
    integers.
    """

    name: str
    values: Annotated[tuple[str | int, ...], Meta(description="a list of texts or of whole numbers")]
    missing: bool = False
    ordered: bool = False
    unknown: Literal["drop", "other", "missing"] = "drop"
    computed: ComputedForm | None = None
    is_number: ClassVar[Literal[False]] = False
    is_time: ClassVar[Literal[False]] = False

    def __post_init__(self) -> None:
        if isinstance(self.values, str):  # its letters would be the values
            raise SchemaError(f"column {self.name!r} has values = {self.values!r}; list them, as [{self.values!r}]")
        force_setattr(self, "values", tuple(self.values))
        if not self.values:
            raise SchemaError(f"column {self.name!r} lists no values; list all values that it may have")
        if not (self._text or all(type(value) is int for value in self.values)):
            raise SchemaError(f"column {self.name!r} mixes text and other types; list only text or only integers")
        if len(set(self.values)) < len(self.values):
            raise SchemaError(f"column {self.name!r} lists a value twice; list each value once")
        _one_of(self.name, "unknown", self.unknown, ("drop", "other", "missing"))
        if self.unknown == "missing" and not self.missing:
            raise SchemaError(f"column {self.name!r} has unknown = 'missing' but admits none; set missing = true")
        if self.unknown == "other" and not self._text:
            raise SchemaError(f"column {self.name!r} has unknown = 'other' but integer values; list its values as text")

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels) + self.missing

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the codes of ``values``, their positions in :attr:`labels`, and the faults."""
        codes = _each(values, self.code, -1, np.int64)
        unlisted = (codes < 0) & ~missing
        handled: Handling = "row left out"
        mend = "add it to values"
        if self._text:  # integers cannot be counted as "other"
            mend += ", or set unknown = 'other', which counts all unlisted values as 'other'"
        if self.unknown != "drop":
            mend = "add it to values if it is common"
            handled = "counted as 'other'" if self.unknown == "other" else "counted as missing"
            codes[unlisted] = self.labels.index("other") if self.unknown == "other" else self.size - 1
        return _finish(self, codes, None, missing, [(unlisted, "is not listed", handled, mend)])

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return the values of ``codes``: text or integers, or an ordered pandas category for an ``ordered`` column."""
        import pandas as pd

        gone = codes >= len(self.labels)
        if self.ordered:
            frame_codes = np.where(gone, -1, codes)
            return pd.Series(pd.Categorical.from_codes(frame_codes, list(self.labels), ordered=True), name=self.name)  # type: ignore[call-overload]
        if self._text:
            # The dtype is that of all labels, so that it does not depend on the labels that were drawn.
            return pd.Series([*self.labels, None], name=self.name).take(codes).reset_index(drop=True)
        return _integers(np.array([*self.labels, 0])[codes], gone, self)

    @property
    def is_nominal(self) -> bool:
        """Whether the column is categorical and not declared ordered."""
        return not self.ordered

    @property
    def ordered_codes(self) -> int:
        """Number of codes, from the first, in a meaningful order: declared, or of integers that ascend; else 0."""
        in_order = self.ordered or (not self._text and list(self.values) == sorted(self.values))
        return len(self.values) if in_order else 0

    @property
    def texts(self) -> tuple[str, ...]:
        """The :attr:`labels` as text for people."""
        return tuple(map(str, self.labels))

    @cached_property
    def _text(self) -> bool:
        return all(type(value) is str for value in self.values)

    @cached_property
    def labels(self) -> tuple[str | int, ...]:
        """The value of each code but the missing one: the listed values and, if ``unknown`` is "other", that text."""
        other = ("other",) if self.unknown == "other" and "other" not in self.values else ()
        return (*self.values, *other)

    @cached_property
    def codes_by_text(self) -> dict[str, int]:
        """The code of each text that is looked up: a label as it is spelled, or else a canonical text."""
        codes: dict[str, int] = {str(label): code for code, label in enumerate(self.labels)}
        for label in self.labels:
            codes.setdefault(canonical_text(str(label)), codes[str(label)])
        _join_truth_values(codes)
        return codes

    @cached_property
    def _codes_by_integer(self) -> dict[Any, int]:
        return {value: code for code, value in enumerate(self.labels)}

    def code(self, value: Any) -> int:
        """Return the code of one cell of any type, -1 for a value that is not listed."""
        if not self._text:
            number = _number(value)
            return self._codes_by_integer.get(int(number), -1) if number.is_integer() else -1
        codes = self.codes_by_text
        if isinstance(value, str) and value in codes:
            return codes[value]
        return next((codes[text] for text in canonical_texts(value) if text in codes), -1)


_TRUE = {"true", "t", "yes", "y", "1"}
_FALSE = {"false", "f", "no", "n", "0"}


class Boolean(DeclaredColumn, frozen=True):
    """A boolean column; text such as ``yes``, ``no``, ``t``, ``f``, ``1`` and ``0`` is understood.

    ``missing`` admits missing values. A ``computed`` column is looked up from another column
    (:class:`~fedsynth.schema.forms.ComputedForm`).
    """

    name: str
    missing: bool = False
    computed: ComputedForm | None = None
    is_number: ClassVar[Literal[False]] = False
    is_time: ClassVar[Literal[False]] = False
    is_nominal: ClassVar[bool] = False
    ordered_codes: ClassVar[int] = 0
    labels: ClassVar[tuple[bool, ...]] = (False, True)
    texts: ClassVar[tuple[str, ...]] = ("no", "yes")

    @property
    def size(self) -> int:
        """Number of codes."""
        return 2 + self.missing

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the codes of ``values`` (0: false, 1: true, 2: missing), and the faults."""
        codes = _each(values, self.code, -1, np.int64)
        unread: _Found = (codes < 0, "is neither true nor false", "row left out", "make the column categorical")
        return _finish(self, codes, None, missing, [unread])

    def code(self, value: Any) -> int:
        """Return the code of one cell of any type, -1 for one that is neither true nor false."""
        text = next(iter(canonical_texts(value.strip() if isinstance(value, str) else value)), "").lower()
        return 1 if text in _TRUE else 0 if text in _FALSE else -1

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return the values of ``codes``: dtype ``bool``, or ``boolean`` if values may be missing."""
        import pandas as pd

        if not self.missing:
            return pd.Series(codes == 1, name=self.name)
        return pd.Series(pd.arrays.BooleanArray(codes == 1, codes == 2), name=self.name)


class Numeric(DeclaredColumn, frozen=True):
    """A numeric column between public bounds ``low`` and ``high``, discretised into bins.

    ``edges`` are bin edges from ``low`` to ``high``. Without them the range is divided into ``bins`` bins of equal
    width; an ``integer`` column with at most that many values gets one bin per value. Bins include their lower edge and
    exclude their upper edge; the last bin includes both. A code decodes to a value drawn uniformly from its bin, with
    ``decimals`` digits after the point (default: no rounding). ``missing`` admits missing values. ``outside``
    determines the handling of a number outside the bounds, infinity included: it is moved to the nearer bound
    (``"clip"``), or its row is left out (``"drop"``). A column may be ``stored`` as its difference from, or ratio to,
    another column (:class:`~fedsynth.schema.forms.StoredForm`), with ``bins`` bins for that, or ``computed`` from other
    columns (:class:`~fedsynth.schema.forms.ComputedForm`). Raises :class:`SchemaError` for invalid bounds, bins or
    decimals, and for a bin without any value.
    """

    name: str
    low: Number
    high: Number
    edges: tuple[float, ...] | None = None
    bins: int = 32
    integer: bool = False
    decimals: int | None = None
    missing: bool = False
    outside: Literal["clip", "drop"] = "clip"
    stored: StoredForm | None = None
    computed: ComputedForm | None = None
    is_number: ClassVar[Literal[True]] = True
    is_time: ClassVar[Literal[False]] = False
    is_nominal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        number = int if self.integer else float
        for bound in ("low", "high"):
            value = getattr(self, bound)
            finite = abs(value) <= sys.float_info.max
            if not finite or (self.integer and (value != int(value) or abs(value) > LARGEST_INTEGER)):
                raise SchemaError(f"column {self.name!r} has {bound} = {value}; give a finite {number.__name__}")
            force_setattr(self, bound, number(value))
        if self.edges is not None:
            force_setattr(self, "edges", tuple(float(edge) for edge in self.edges))
        _one_of(self.name, "outside", self.outside, ("clip", "drop"))
        check_bins(self.name, self.low, self.high, self.edges, self.bins)
        if self.decimals is not None and (self.integer or self.decimals not in range(13)):
            raise SchemaError(
                f"column {self.name!r} has decimals = {self.decimals}; give 0 to 12, and only without integer = true"
            )
        empty = self.bins_as_cells.lower >= self.bins_as_cells.upper
        if self.per_unit and empty.any():
            bin_ = int(np.flatnonzero(empty)[0])
            between = f"between {self.bin_edges[bin_]:g} and {self.bin_edges[bin_ + 1]:g}"
            raise SchemaError(
                f"column {self.name!r} has no value {between}; widen that bin, or use fewer bins or more decimals"
            )

    @property
    def per_unit(self) -> int:
        """Values are multiples of ``1 / per_unit``; 0 stands for arbitrary real numbers."""
        return 1 if self.integer else 0 if self.decimals is None else 10**self.decimals

    @property
    def round_steps(self) -> tuple[int, ...]:
        """Units that count as rounder than powers of ten: none, see :attr:`Datetime.round_steps`."""
        return ()

    @property
    def size(self) -> int:
        """Number of codes: one for each bin, and one for missing values if the column admits them."""
        return len(self.bin_edges) - 1 + self.missing

    @cached_property
    def bin_edges(self) -> NDArray[np.float64]:
        """Edges of the bins, float64, in ascending order, one more than there are bins.

        The last edge occurs twice if the column is constant, or has a bin for each integer.
        """
        if self.edges is not None:
            return np.array(self.edges)
        return equal_bins(self.low, self.high, self.bins, whole=self.integer, per_unit=self.per_unit)

    @cached_property
    def bins_as_cells(self) -> Grid:
        """The bins as cells (:class:`~fedsynth.schema.bins.Grid`), from which values are drawn."""
        return Grid.of_bins(self.bin_edges, self.per_unit)

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the bins of ``values`` as codes, the values as numbers, and the faults."""
        import pandas as pd

        if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_complex_dtype(values.dtype):
            numbers = values.to_numpy(np.float64, na_value=np.nan, copy=True)
        else:
            numbers = _each(values, _number, np.nan, np.float64)
        numbers[missing] = np.nan
        unread = np.isnan(numbers)
        mend = "correct the file, or make the column categorical"
        faults: list[_Found] = [(unread, "is not a number", "row left out", mend)]
        if self.integer:
            broken = np.isfinite(numbers) & (numbers != np.floor(numbers))
            faults.append((broken, "is not an integer", "row left out", "round it, or set integer = false"))
            numbers[broken] = np.nan
        return _encode_numbers(self, numbers, missing, faults)

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return one value per code, drawn uniformly from its bin, as :meth:`series`."""
        return self.series(self.bins_as_cells.values(codes, rng.random(len(codes))))

    def series(self, numbers: Floats) -> pd.Series[Any]:
        """Convert numbers that the column admits to a series of the column's dtype; NaN stands for missing.

        The dtype is ``float64``, or ``int64`` for integers (``Int64`` if they may be missing).
        """
        import pandas as pd

        gone = np.isnan(numbers)
        if self.integer:
            return _integers(np.where(gone, 0, numbers), gone, self)
        return pd.Series(numbers, name=self.name)


def binned(column: Numeric | Datetime, numbers: Floats) -> tuple[Codes, Floats]:
    """Return the codes of a column's ``numbers``, and the numbers clipped to its bounds (-0.0 becomes 0.0).

    The code is the number's bin, or the last code for a missing number (NaN). Bins include their lower edge, and the
    last bin also its upper edge.
    """
    edges = column.bin_edges
    bins = np.searchsorted(edges[1:-1], numbers, side="right")
    return np.where(np.isnan(numbers), column.size - 1, bins), np.clip(numbers, edges[0], edges[-1]) + 0.0


def fine_cells(column: Numeric | Datetime, bins: int) -> Grid:
    """Return about ``bins`` cells for the column's bounds, by :meth:`Grid.fine <fedsynth.schema.bins.Grid.fine>`."""
    return Grid.fine(column.bin_edges, column.per_unit, bins)


def sound_bounds(low: float, high: float) -> bool:
    """Return whether bounds are at most 1e30 in size and 1e-30 apart, which is safe from overflow and underflow."""
    return max(abs(low), abs(high)) <= LARGEST and (low == high or high - low >= 1 / LARGEST)


class Datetime(DeclaredColumn, frozen=True):
    """A datetime column between public bounds ``low`` and ``high`` (ISO 8601 text), discretised into bins.

    ``unit`` (us, ms, s, min, h, D) is the resolution, to which values are rounded down. ``timezone`` is an IANA name;
    times are then time-zone aware, and binned in UTC. Bounds and ``edges`` written without a zone are in ``timezone``,
    but values without one are in UTC; values with one do not fit if ``timezone`` is not set. ``edges``, ``bins``,
    ``missing``, ``outside`` and ``stored`` are as in :class:`Numeric`; ``computed`` may be a copy. Raises
    :class:`SchemaError` for invalid bounds,
    edges, units or options.
    """

    name: str
    low: _Time
    high: _Time
    edges: tuple[_Time, ...] | None = None
    bins: int = 32
    unit: str = "s"
    timezone: str | None = None
    missing: bool = False
    outside: Literal["clip", "drop"] = "clip"
    stored: StoredForm | None = None
    computed: ComputedForm | None = None
    is_number: ClassVar[Literal[True]] = True
    is_time: ClassVar[Literal[True]] = True
    is_nominal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.edges is not None:
            force_setattr(self, "edges", tuple(self.edges))
        _one_of(self.name, "unit", self.unit, tuple(UNITS))
        _one_of(self.name, "outside", self.outside, ("clip", "drop"))
        if self.timezone is not None:
            self._zone(self.timezone)
        edges = None if self.edges is None else [self._bound(edge) for edge in self.edges]
        check_bins(self.name, self._bound(self.low), self._bound(self.high), edges, self.bins)

    @property
    def size(self) -> int:
        """Number of codes: one for each bin, and one for missing values if the column admits them."""
        return len(self.bin_edges) - 1 + self.missing

    @property
    def microseconds(self) -> int:
        """Length of the column's ``unit`` in microseconds."""
        return UNITS[self.unit]

    @property
    def per_unit(self) -> int:
        """Always 1: times are whole multiples of the unit."""
        return 1

    @property
    def round_steps(self) -> tuple[int, ...]:
        """Longer units (days, unless a time zone shifts them, hours and so on) in the column's own, descending."""
        longer = sorted((length for length in UNITS.values() if length > self.microseconds), reverse=True)
        return tuple(length // self.microseconds for length in longer[self.timezone is not None :])

    @cached_property
    def bin_edges(self) -> NDArray[np.float64]:
        """Edges of the bins, float64, as in :class:`Numeric`: times in the unit from 1970 (UTC)."""
        if self.edges is not None:
            return np.array([self._bound(edge) for edge in self.edges])
        return equal_bins(self._bound(self.low), self._bound(self.high), self.bins, whole=True, per_unit=1)

    @cached_property
    def bins_as_cells(self) -> Grid:
        """The bins as cells (:class:`~fedsynth.schema.bins.Grid`), from which times are drawn."""
        return Grid.of_bins(self.bin_edges, self.per_unit)

    def encode(self, values: pd.Series[Any], missing: NDArray[np.bool_]) -> Encoded:
        """Return the bins of ``values`` as codes, the times as numbers, and the faults."""
        import pandas as pd

        if isinstance(values.dtype, pd.DatetimeTZDtype):
            ticks = _microseconds(values.dt.tz_convert(None).to_numpy())
            if self.timezone is None:
                ticks[:] = _ZONED
        elif isinstance(values.dtype, np.dtype) and values.dtype.kind == "M":
            ticks = _microseconds(values.to_numpy())
        else:
            ticks = _each(values, lambda value: _instant(value, self.timezone is not None), _NO_TIME, np.int64)
        unread, zoned = ticks == _NO_TIME, ticks == _ZONED
        example = "write it as ISO 8601, for example 2026-03-31 or 2026-03-31T12:30:00"
        faults: list[_Found] = [
            (unread, "is not a time", "row left out", example),
            (zoned, "has a time zone", "row left out", "set timezone, or strip the zone"),
        ]
        numbers = np.where(missing | unread | zoned, np.nan, (ticks // self.microseconds).astype(np.float64))
        return _encode_numbers(self, numbers, missing, faults)

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.Series[Any]:
        """Return one time per code, drawn uniformly from its bin, as :meth:`series`."""
        return self.series(self.bins_as_cells.values(codes, rng.random(len(codes))))

    def series(self, numbers: Floats) -> pd.Series[Any]:
        """Return pandas times from ``numbers`` that count the column's unit from 1970 (UTC); NaN stands for missing.

        The numbers must be among those that the column admits. The times are in the column's ``timezone``, if it has
        one.
        """
        import pandas as pd

        gone = np.isnan(numbers)
        instants = self.times(np.where(gone, 0, numbers))
        instants[gone] = np.datetime64("NaT")
        times = pd.Series(instants, name=self.name)
        return times if self.timezone is None else times.dt.tz_localize("UTC").dt.tz_convert(self.timezone)

    def times(self, numbers: Floats) -> NDArray[np.datetime64]:
        """Return known ``numbers``, as in :meth:`series`, as ``datetime64[us]`` in UTC."""
        return (numbers.astype(np.int64) * self.microseconds).astype("datetime64[us]")

    def _bound(self, text: str) -> float:
        time = _read_time(text) if isinstance(text, str) else None
        if time is None:
            raise SchemaError(f"column {self.name!r} has the bound {text!r}; write it as ISO 8601 text")
        if self.timezone is None and time.tzinfo is not None:
            raise SchemaError(f"column {self.name!r} has the bound {text!r} with a time zone; set timezone or drop it")
        if self.timezone is not None and time.tzinfo is None:
            time = time.replace(tzinfo=self._zone(self.timezone))
        return float(since_1970(time) // self.microseconds)

    def _zone(self, name: str) -> ZoneInfo:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError) as error:
            raise SchemaError(
                f"column {self.name!r} has timezone = {name!r}; give an IANA name such as Europe/Zurich"
            ) from error


Column = Categorical | Boolean | Numeric | Datetime


_FLOAT = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf(?:inity)?",
    re.IGNORECASE | re.ASCII,
)
_NO_TIME, _ZONED = np.iinfo(np.int64).min, np.iinfo(np.int64).min + 1  # markers for invalid values; NaT is the first
_FARTHEST = 2**62  # microseconds: beyond every bound that ISO 8601 can express, yet safe from integer overflow


_MANY = 10_000  # values from which on Arrow tells texts apart
_BYTES = (bytes, bytearray, memoryview)


def readable(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column whose cells can be read one by one, whatever its type: bytes become text, by UTF-8."""
    import pandas as pd

    dtype = values.dtype
    binary = isinstance(dtype, pd.CategoricalDtype) and any(isinstance(label, _BYTES) for label in dtype.categories)
    nested = isinstance(dtype, pd.ArrowDtype) and dtype.kind == "O"  # bytes, dictionaries, lists
    if binary or nested or isinstance(dtype, pd.SparseDtype) or dtype == np.clongdouble:  # pandas fails on some
        values = pd.Series(list(values.array), index=values.index, dtype=object, name=values.name)
    if values.dtype != object or is_text(values) or not any(isinstance(value, _BYTES) for value in values):
        return values
    cells = [decode_cell(value) if isinstance(value, _BYTES) else value for value in values]
    return pd.Series(cells, index=values.index, dtype=object, name=values.name)


def distinct_values(values: pd.Series[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Return, for each value of a column, its index among the distinct values (int64), and the list of these values.

    Times with a time zone are converted to UTC. The index is -1 for a missing value, except in an object column that
    holds not only text (or a NUL character), where missing values are in the list. There, values are also distinguished
    by type: ``1`` equals ``True`` in Python, and which of them comes first must not decide how both are read. And only
    text, integers, floats and booleans of Python are listed once; other objects may be listed repeatedly.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.DatetimeTZDtype):
        values = values.dt.tz_convert("UTC")  # pandas crashes on times before a zone's first transition
    if isinstance(values.dtype, pd.StringDtype) or (values.dtype == object and is_text(values)):
        return _distinct_texts(values)
    if values.dtype != object:
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


def _distinct_texts(values: pd.Series[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Return :func:`distinct_values` of texts and missing values.

    pandas before version 3 considers texts equal that differ only after a NUL character.
    """
    if len(values) >= _MANY:
        import pyarrow as pa  # several times as fast, but takes a while to import

        try:
            texts = pa.array(values, pa.large_string(), from_pandas=True)
            found = (texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts).dictionary_encode()
        except UnicodeEncodeError:  # half a surrogate pair, which Arrow cannot hold
            pass
        else:
            return found.indices.fill_null(-1).to_numpy().astype(np.int64), found.dictionary.to_pylist()
    known: dict[Any, int] = {}
    gone = values.isna().to_numpy(dtype=bool).tolist()
    which = [-1 if no else known.setdefault(text, len(known)) for text, no in zip(values, gone, strict=True)]
    return np.array(which, dtype=np.int64), list(known)


def _each(values: pd.Series[Any], read: Callable[[Any], Any], nothing: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """Return ``read(value)`` for each value, once for each distinct one, and ``nothing`` for missing values."""
    which, distinct = distinct_values(values)
    return np.array([*(read(value) for value in distinct), nothing], dtype=dtype)[which]


def is_text(values: pd.Series[Any]) -> bool:
    """Return whether a column holds only text and missing values; false for pandas categories."""
    import pandas as pd

    try:
        return pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty")
    except ArithmeticError:  # pandas fails on a signalling NaN
        return False


def holds_text(values: pd.Series[Any]) -> bool:
    """Return whether a column holds only text, bytes and missing values, also as pandas categories."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        values = pd.Series(values.dtype.categories, dtype=object)
    return is_text(readable(values))


def is_missing(value: Any) -> bool:
    """Return whether an object stands for a missing value: ``None``, ``NA``, or an object unequal to itself (NaN)."""
    import pandas as pd

    try:
        return value is None or value is pd.NA or bool(value != value)
    except (ArithmeticError, TypeError, ValueError):
        return False


def _number(value: Any) -> float:
    """Return the double nearest to a number or boolean, or to one written as text; NaN for anything else."""
    try:
        if isinstance(value, str):
            text = value.strip()
            if text in TRUTH_VALUES:
                return float(TRUTH_VALUES[text] == "True")
            return float(text) if _FLOAT.fullmatch(text) else math.nan
        value = real_part(value)
        return float(value) if isinstance(value, (Real, Decimal, np.bool_)) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def _read_time(text: str) -> datetime | None:
    """Parse ISO 8601 text, including a year (2026) or a month (2026-03); ``None`` if it is not a time."""
    text = text.strip()
    try:
        return datetime.fromisoformat(text + {4: "-01-01", 7: "-01"}.get(len(text), ""))
    except ValueError:
        return None


def _instant(value: Any, zones: bool) -> int:
    """Return microseconds since 1970; ``_ZONED`` for a time with a time zone unless ``zones`` is true.

    A number is read like the text that spells it, so that the year 2026 is one also in a column of numbers.
    """
    time: datetime | None = None
    if isinstance(value, np.datetime64):
        return int(_microseconds(np.array([value]))[0])
    value = real_part(value)
    if isinstance(value, Real | Decimal):
        value = next(iter(canonical_texts(value)), "")
    if isinstance(value, str):
        time = _read_time(value) or _read_time(canonical_text(value.strip()))
    elif isinstance(value, datetime):
        time = value
    elif isinstance(value, date):
        time = datetime(value.year, value.month, value.day)
    if time is None:
        return _NO_TIME
    if time.tzinfo is not None and not zones:
        return _ZONED
    stamp = getattr(time, "asm8", None)  # pandas timestamps (including NaT) have years that Python's do not
    return since_1970(time) if stamp is None else int(_microseconds(np.array([stamp]))[0])


def microseconds_of_text(text: str, zones: bool, nothing: int) -> int:
    """Return microseconds since 1970 of the time that a text stands for, as a datetime column reads it.

    ``nothing`` stands for a text that is no time, or for a time with a time zone unless ``zones`` is true.
    """
    ticks = _instant(text, zones)
    return nothing if ticks in (_NO_TIME, _ZONED) else ticks


def _microseconds(times: NDArray[np.datetime64]) -> NDArray[np.int64]:
    """Return microseconds since 1970, ``_NO_TIME`` for NaT; times too far away are clipped instead of overflowing."""
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


def _encode_numbers(
    column: Numeric | Datetime, numbers: NDArray[np.float64], missing: NDArray[np.bool_], faults: list[_Found]
) -> Encoded:
    """Return the codes of numbers (NaN: missing or faulty); numbers outside the bounds are clipped or left out."""
    edges = column.bin_edges
    outside = (numbers < edges[0]) | (numbers > edges[-1])
    clip = column.outside == "clip"
    mend = "widen low and high if such values are real" if clip else "widen low and high, or set outside = 'clip'"
    beyond = f"lies outside [{column.low}, {column.high}]"
    faults.append((outside, beyond, "clipped" if clip else "row left out", mend))
    return _finish(column, *binned(column, numbers), missing, faults)


def _finish(
    column: Column,
    codes: Codes,
    numbers: NDArray[np.float64] | None,
    missing: NDArray[np.bool_],
    faults: Sequence[_Found],
) -> Encoded:
    """Set the codes of missing values and of rows left out (-1), and collect the faults."""
    mend = "set missing = true, or fill in the value"
    found = [(bad & ~missing, wrong, handled, mend) for bad, wrong, handled, mend in faults]
    if column.missing:
        codes[missing] = column.size - 1
    else:
        found.append((missing, "is missing", "row left out", mend))
    for bad, _, handled, _ in found:
        if handled == "row left out":
            codes[bad] = -1
    faults_found = (Fault(np.flatnonzero(bad), wrong, handled, mend) for bad, wrong, handled, mend in found)
    return Encoded(codes, numbers, tuple(fault for fault in faults_found if len(fault.rows)))


def _integers(values: NDArray[Any], gone: NDArray[np.bool_], column: Categorical | Numeric) -> pd.Series[Any]:
    """Return a column of dtype ``int64``, or ``Int64`` if values may be missing (marked by ``gone``)."""
    import pandas as pd

    if not column.missing:
        return pd.Series(values.astype(np.int64), name=column.name)
    return pd.Series(pd.arrays.IntegerArray(values.astype(np.int64), gone.copy()), name=column.name)


def _one_of(name: str, what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SchemaError(f"column {name!r} has {what} = {value!r}; choose one of {', '.join(allowed)}")
