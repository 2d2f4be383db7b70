"""Plot data of a report: shares by bin or category, and association matrices.

They are plain data. :func:`plot_data` computes them from real rows without noise: only the holder of these rows may see
them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsynth.evaluation.dependence import association_matrix
from fedsynth.rows import Table
from fedsynth.schema import Column

_BARS = 20  # bars of a plot; further categories share one bar
_ATOMS = 4  # values of a column of numbers that have a bar of their own, at most
_ATOM = 0.03  # least share of the known values at an atom
_ABOVE_NEIGHBOURS = 4  # an atom has at least so many times the rows of its neighbouring values
_TAIL = 0.5  # a tail longer than this, as a multiple of the width of the body, gets one bar
_SKEW = 0.15  # the scale is logarithmic if the median lies below this fraction of the width of the body
_COLUMNS = 40  # columns of an association matrix: more could not be read


Values = NDArray[np.float64]
Role = Literal["value", "below", "bin", "above", "missing"]


@dataclass(frozen=True)
class ColumnPlotData:
    """Plot data of one column: the shares of real and of synthetic rows in each bar.

    - ``name``: the column; ``kind``: its type, "categorical", "boolean", "numeric" or "datetime".
    - ``labels``, ``real``, ``synthetic``: each bar's label, and the shares of real and of synthetic rows that it counts
      (0 to 1). The bars count every row once.
    - ``roles``: each bar's kind, one of "value" (a single value, or all rarer categories), "bin", "below", "above" and
      "missing".
    - ``edges``: the edges of the bins (numbers, or ISO 8601 text), one more than bins; empty without bins.
    - ``logarithmic``: whether bins have equal width in asinh(value / unit), with a unit chosen for the column.
    - ``quantiles``: (name, real value, synthetic value), as text.

    Each category has its own bar ("value"); if there are over 20, the 19 commonest have, and one bar counts the others.
    So has each value of a column with at most 20 distinct numbers. In other columns of numbers and times, atoms come
    first (single values that many rows share, such as zero; also "value"). All other rows are counted in bins, and
    outliers in one bar "below" and one "above" the bins. If values may be missing, the last bar counts the missing
    ones.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    roles: tuple[Role, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]
    edges: tuple[float | str, ...] = ()
    logarithmic: bool = False
    quantiles: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Associations:
    """Association matrices of the real and of the synthetic rows, each ``(columns, columns)`` as nested tuples.

    ``names`` are the columns; values lie between -1 and 1, with ones on the diagonal
    (:func:`~fedsynth.evaluation.dependence.association_matrix`).
    """

    names: tuple[str, ...] = ()
    real: tuple[tuple[float, ...], ...] = ()
    synthetic: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class PlotData:
    """Plot data of a report: one :class:`ColumnPlotData` for each column, and the association matrices."""

    columns: tuple[ColumnPlotData, ...] = ()
    associations: Associations = Associations()


def plot_data(real: Table, synthetic: Table) -> PlotData:
    """Return the plot data of a report on two tables; the association matrices hold at most the first 40 columns.

    It is computed from real rows without noise: only the holder of these rows may see it.
    """
    columns = range(len(real.codes))
    some = list(columns[:_COLUMNS])
    matrices = [association_matrix(table, some) for table in (real, synthetic)]
    return PlotData(
        tuple(_column(real, synthetic, column) for column in columns),
        Associations(
            real.schema.names[:_COLUMNS],
            *(tuple(tuple(float(one) for one in row) for row in np.round(matrix, 4)) for matrix in matrices),
        ),
    )


def column_data(synthetic: Table, name: str) -> ColumnPlotData:
    """Return the plot data of one column of synthetic rows alone: shares of real rows are 0."""
    found = _column(synthetic, synthetic, synthetic.schema.index(name))
    return replace(found, real=(0.0,) * len(found.real), quantiles=())


def _column(real: Table, synthetic: Table, column: int) -> ColumnPlotData:
    described = real.schema.stored[column]
    if described.is_number:
        return _numbers(described, real, synthetic, column)
    size = real.schema.sizes[column]
    shares = [np.bincount(table.codes[column], minlength=size) / len(table) for table in (real, synthetic)]
    labels = described.texts
    values = size - described.missing
    shown = np.arange(values)
    if values > _BARS:
        keep = np.argsort(-(shares[0] + shares[1])[:values], kind="stable")[: _BARS - 1]
        shown = keep if described.is_nominal else np.sort(keep)
    names = [labels[code] for code in shown]
    bars = [share[shown].tolist() for share in shares]
    if len(shown) < values:
        rest = np.setdiff1d(np.arange(values), shown)
        names.append(f"{len(rest)} others")
        bars = [[*bar, float(share[rest].sum())] for bar, share in zip(bars, shares, strict=True)]
    roles: list[Role] = ["value"] * len(names)
    if described.missing:
        names.append("missing")
        roles.append("missing")
        bars = [[*bar, float(share[-1])] for bar, share in zip(bars, shares, strict=True)]
    return ColumnPlotData(described.name, described.kind, tuple(names), tuple(roles), tuple(bars[0]), tuple(bars[1]))


def _numbers(described: Column, real: Table, synthetic: Table, column: int) -> ColumnPlotData:
    """Return one bar for each value if there are few, else bars of atoms, bins and tails."""
    assert described.is_number
    known = [table.numbers[column][~np.isnan(table.numbers[column])] for table in (real, synthetic)]
    distinct = np.union1d(*known)
    few = len(distinct) <= _BARS
    atoms = distinct if few else _atoms(known)
    rest = [side[~np.isin(side, atoms)] for side in known]
    if not few and len(others := np.unique(np.concatenate(rest))) < 2:
        atoms, rest = np.union1d(atoms, others), [np.zeros(0)] * 2
    written = _written(described, atoms)
    bars: list[tuple[Role, str, Sequence[int]]] = [
        ("value", text, [int((side == value).sum()) for side in known])
        for value, text in zip(atoms, written, strict=True)
    ]
    edges, logarithmic = np.zeros(0), False
    if any(map(len, rest)):
        edges, logarithmic = _edges(*rest, is_time=described.is_time, whole=described.is_time or described.integer)
        bars += _bins(described, edges, rest)
    if described.missing:
        gone = [int(np.isnan(table.numbers[column]).sum()) for table in (real, synthetic)]
        bars.append(("missing", "missing", gone))
    return ColumnPlotData(
        described.name,
        described.kind,
        tuple(label for _, label, _ in bars),
        tuple(role for role, _, _ in bars),
        tuple(count[0] / len(real) for _, _, count in bars),
        tuple(count[1] / len(synthetic) for _, _, count in bars),
        _written(described, edges) if described.is_time else tuple(edges.tolist()),
        logarithmic,
        () if few else _quantiles(described, known),
    )


def _atoms(known: Sequence[Values]) -> Values:
    """Return the atoms in ascending order: values far more frequent than their neighbours, in either table.

    The comparison with neighbours excludes smooth peaks of a distribution.
    """
    found: dict[float, float] = {}
    for side in known:
        values, counts = np.unique(side, return_counts=True)
        for at in np.flatnonzero(counts >= _ATOM * len(side)).tolist():
            beside = np.concatenate([counts[max(0, at - 3) : at], counts[at + 1 : at + 4]])
            if not len(beside) or counts[at] >= _ABOVE_NEIGHBOURS * np.median(beside):
                share = float(counts[at] / len(side))
                found[float(values[at])] = max(share, found.get(float(values[at]), 0.0))
    return np.sort(sorted(found, key=lambda value: -found[value])[:_ATOMS])


def _edges(real: Values, synthetic: Values, *, is_time: bool, whole: bool) -> tuple[Values, bool]:
    """Return the edges of the bins, and whether their scale is logarithmic.

    They cover the central 98 % of the real rows, extended to extreme values that are not far away. On a linear scale,
    bins of integers hold equally many; unequal bins would look like differences in frequency.
    """
    everything, body = np.concatenate([real, synthetic]), real if len(real) else synthetic
    least, low, middle, high, most = (
        *(float(everything.min()), *np.quantile(body, [0.01, 0.5, 0.99]).tolist()),
        float(everything.max()),
    )
    logarithmic = not is_time and low >= 0 and middle - low < _SKEW * (high - low)
    unit = float(np.quantile(body[body > 0], 0.1)) if logarithmic else 1.0
    ends = [math.asinh(one / unit) if logarithmic else one for one in (least, low, high, most)]
    reach = _TAIL * (ends[2] - ends[1])
    start = ends[0] if ends[1] - ends[0] <= reach or not reach else ends[1]
    end = ends[3] if ends[3] - ends[2] <= reach or not reach else ends[2]
    if whole and not logarithmic:
        start, end = math.floor(start), math.floor(end) + 1
        step = math.ceil((end - start) / _BARS)
        return start + step * np.arange(math.ceil((end - start) / step) + 1, dtype=np.float64), False
    edges = np.linspace(start, end, _BARS + 1)
    if logarithmic:
        # Rounding in asinh and sinh must exclude neither the lowest nor the highest value.
        edges = unit * np.sinh(edges)
        edges[[0, -1]] = least if start == ends[0] else low, most if end == ends[3] else high
    if whole:
        edges = np.unique([math.floor(edges[0]), *np.ceil(edges[1:-1]), math.floor(edges[-1]) + 1])
    return edges, logarithmic


def _bins(described: Column, edges: Values, sides: Sequence[Values]) -> Iterator[tuple[Role, str, Sequence[int]]]:
    """Yield the bars of bins and, if either table has rows beyond them, of tails; the last bin is closed."""
    counts = []
    for side in sides:
        where = np.searchsorted(edges, side, side="right")
        where[side == edges[-1]] = len(edges) - 1
        counts.append(np.bincount(where, minlength=len(edges) + 1).tolist())
    texts = _written(described, edges)
    everything = np.concatenate(sides)
    least, most = _written(described, [float(everything.min()), float(everything.max())])
    below, *inner, above = zip(*counts, strict=True)
    if any(below):
        yield "below", f"below {texts[0]} (down to {least})", below
    for (start, end), (one, two), count in zip(
        itertools.pairwise(edges), itertools.pairwise(texts), inner, strict=True
    ):
        label = f"{one} to {two}"
        if described.is_number and not described.is_time and described.integer:
            label = one if end - start == 1 else f"{one} to {_written(described, [end - 1])[0]}"
        yield "bin", label, count
    if any(above):
        yield "above", f"{texts[-1]} and above (up to {most})", above


def _quantiles(described: Column, known: Sequence[Values]) -> tuple[tuple[str, str, str], ...]:
    """Return the 1 %, 50 % and 99 % quantiles of both tables, or nothing if either has no known value."""
    if not all(map(len, known)):
        return ()
    names = ("1 % lie below", "median", "99 % lie below")
    sides = [np.quantile(side, [0.01, 0.5, 0.99], method="inverted_cdf") for side in known]
    return tuple(zip(names, *(_written(described, side, digits=4) for side in sides), strict=True))


def _written(described: Column, values: Iterable[float], digits: int = 6) -> tuple[str, ...]:
    """Return numbers as text, or times in ISO 8601: as dates if the unit is days or they span over 20 days."""
    numbers = np.asarray(list(values), dtype=np.float64)
    if described.is_time:
        times = described.times(numbers)
        days = described.unit == "D" or (len(numbers) > 1 and np.ptp(numbers) * described.microseconds > 20 * 86400e6)
        return tuple(np.datetime_as_string(times, unit="D" if days else "m").tolist())
    return tuple(
        f"{one:,.0f}"
        if abs(one) < 1e9 and (one == round(one) or abs(one) >= 10 ** (digits - 1))
        else f"{one:.{digits}g}"
        for one in numbers.tolist()
    )
