"""What the plots of a report are drawn from: shares by bin or category, and matrices of association.

They are counts of real rows without noise: for the eyes of whoever holds the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsynth.evaluation.dependence import association_matrix
from fedsynth.evaluation.features import is_numeric
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Column, Datetime

_BARS = 20  # bars of a picture; categories beyond them are gathered in one
_COLUMNS = 40  # columns of a matrix of association that can still be read


@dataclass(frozen=True)
class ColumnPicture:
    """One column, real beside synthetic.

    ``labels`` names each bar; ``real`` and ``synthetic`` hold the bar's share of the rows (0 to 1). A column
    of numbers or times has ``edges``, one more than its bars of values (numbers, or ISO 8601 text). Where
    values may be missing, a last bar labelled "missing" follows, without edges.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]
    edges: tuple[float, ...] | tuple[str, ...] = ()


@dataclass(frozen=True)
class Associations:
    """Association of every pair of some columns, between -1 and 1, as nested tuples (columns, columns)."""

    names: tuple[str, ...]
    real: tuple[tuple[float, ...], ...]
    synthetic: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Pictures:
    """All that a report draws besides scores."""

    columns: tuple[ColumnPicture, ...]
    associations: Associations

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"columns": [asdict(one) for one in self.columns], "associations": asdict(self.associations)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Pictures:
        """Return the pictures that :meth:`to_json` described."""
        columns = [
            ColumnPicture(
                one["name"],
                one["kind"],
                *(tuple(one[part]) for part in ("labels", "real", "synthetic", "edges")),
            )
            for one in content["columns"]
        ]
        matrices = content["associations"]
        rows = {side: tuple(tuple(row) for row in matrices[side]) for side in ("real", "synthetic")}
        return cls(tuple(columns), Associations(tuple(matrices["names"]), **rows))


def draw_pictures(real: Table, synthetic: Table) -> Pictures:
    """Return the pictures of two tables; of more than 40 columns, the first 40 enter the matrices."""
    columns = range(len(real.codes))
    some = list(columns[:_COLUMNS])
    matrices = [association_matrix(table, some) for table in (real, synthetic)]
    return Pictures(
        tuple(_column(real, synthetic, column) for column in columns),
        Associations(
            real.schema.names[:_COLUMNS],
            *(tuple(tuple(float(one) for one in row) for row in np.round(matrix, 4)) for matrix in matrices),
        ),
    )


def _column(real: Table, synthetic: Table, column: int) -> ColumnPicture:
    described = real.schema.stored[column]
    if is_numeric(real, column):
        return _numbers(described, real, synthetic, column)
    size = real.schema.sizes[column]
    shares = [np.bincount(table.codes[column], minlength=size) / len(table) for table in (real, synthetic)]
    labels = _labels(described)
    values = size - described.missing
    shown = np.arange(values)
    if values > _BARS:
        keep = np.argsort(-(shares[0] + shares[1])[:values], kind="stable")[: _BARS - 1]
        shown = np.sort(keep) if isinstance(described, Categorical) and described.ordered else keep
    names = [labels[code] for code in shown]
    bars = [share[shown].tolist() for share in shares]
    if len(shown) < values:
        rest = np.setdiff1d(np.arange(values), shown)
        names.append(f"{len(rest)} others")
        bars = [[*bar, float(share[rest].sum())] for bar, share in zip(bars, shares, strict=True)]
    if described.missing:
        names.append("missing")
        bars = [[*bar, float(share[-1])] for bar, share in zip(bars, shares, strict=True)]
    return ColumnPicture(described.name, described.kind, tuple(names), tuple(bars[0]), tuple(bars[1]))


def _numbers(described: Column, real: Table, synthetic: Table, column: int) -> ColumnPicture:
    """Return equal bins between the real rows' lowest and highest value, and the rest of the synthetic ones apart."""
    known = [table.numbers[column][~np.isnan(table.numbers[column])] for table in (real, synthetic)]
    everything = np.concatenate(known)
    low, high = (float(everything.min()), float(everything.max())) if len(everything) else (0.0, 1.0)
    if low == high:
        edges = np.array([low, high])
    else:
        distinct = np.unique(everything[:: max(1, len(everything) // 100_000)])
        bars = min(_BARS, max(1, len(distinct)))
        edges = np.linspace(low, high, bars + 1)
    shares = []
    for table, values in zip((real, synthetic), known, strict=True):
        where = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        counts = np.bincount(where, minlength=len(edges) - 1) / len(table)
        shares.append(counts.tolist() + ([1 - len(values) / len(table)] if described.missing else []))
    shown = _times(described, edges) if isinstance(described, Datetime) else tuple(edges.tolist())
    texts = [f"{one:.6g}" if isinstance(one, float) else one for one in shown]
    labels = [f"{a} to {b}" for a, b in itertools.pairwise(texts)]
    labels += ["missing"] if described.missing else []
    return ColumnPicture(described.name, described.kind, tuple(labels), tuple(shares[0]), tuple(shares[1]), shown)


def _times(column: Datetime, edges: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[str, ...]:
    times = (edges * column.microseconds).astype(np.int64).astype("datetime64[us]")
    days = edges[-1] - edges[0] > 20 * 86400e6 / column.microseconds
    return tuple(np.datetime_as_string(times, unit="D" if days else "m").tolist())


def _labels(column: Column) -> list[str]:
    if isinstance(column, Categorical):
        return [str(value) for value in column.labels]
    return ["no", "yes"]
