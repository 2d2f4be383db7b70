"""Tilted rows: rows of a model, drawn so that they agree with released sums as far as the sums' noise lets them.

A pool of the model's rows is weighted by the exponential of a linear function of each row, and the rows are drawn from
it. Of all distributions whose expected sums are within some deviations of the noise (the slack) from the released ones,
this is the one with the least Kullback-Leibler divergence from the model: maximum entropy with relaxed constraints
(Dudik, Phillips & Schapire, 2004, doi 10.1007/978-3-540-27819-1_33). A sum with which the model agrees within its noise
thus pulls at nothing. A small quadratic term (:data:`STIFFNESS`) bounds the exponents of sums that no rows can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique, as_tables
from fedsynth.encoding import with_numbers
from fedsynth.errors import InvalidParameter
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.models.synthesizer import Synthesizer

STIFFNESS = 0.01
"""What a sum that pulls may differ further, in deviations for each unit of its exponent times its deviation."""
TIMES = 30
"""Rows of a pool for each row to draw, of few rows: a pool is a sample itself, and its error must be small."""
_LARGEST_POOL = 200_000  # rows of a pool, but at least three for each row to draw
_KEYS = 12  # sums by whose cells a pool is sorted
_STEPS = 200  # of the fit


class _SavedTilt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tilt as JSON values: the column of each axis, and the tables; its arrays lie beside them."""

    columns: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Tilt:
    """Exponents of rows: for each of ``tables``, a number for each cell of its kept axes, in ``exponents``.

    ``axes``, ``weights`` and ``tables`` are those of :class:`~fedsynth.federation.weighted.WeightedCounts`: a row's
    weight in a table is the product of its weights along the summed axes, and its cell is that on the kept axes. Its
    log-weight is the sum over the tables of its weight there times the exponent of its cell.
    """

    axes: tuple[Axis, ...]
    weights: tuple[Integers | None, ...]
    tables: tuple[Clique, ...]
    exponents: tuple[Floats, ...] = ()

    def shapes(self, schema: Schema) -> list[tuple[int, ...]]:
        """Return the shape of each table's exponents."""
        columns = [schema.stored[axis.column] for axis in self.axes]
        sizes = [axis.size(column.size, column.missing) for axis, column in zip(self.axes, columns, strict=True)]
        return [tuple(sizes[at] for at in table if self.weights[at] is None) for table in self.tables]

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` unless every row of the schema has a log-weight."""
        if len(self.weights) != len(self.axes) or len(self.exponents) != len(self.tables):
            raise InvalidParameter("the model's tilt lacks weights or exponents")
        for axis, weights in zip(self.axes, self.weights, strict=True):
            if not 0 <= axis.column < len(schema.stored):
                raise InvalidParameter("the model's tilt names a column that is not there")
            column = schema.stored[axis.column]
            axis.check(column.size, column.missing, column.is_number)
            if weights is not None and weights.shape != (axis.size(column.size, column.missing),):
                raise InvalidParameter("the model's tilt has weights of another shape than its axis")
        if any(not table or min(table) < 0 or max(table) >= len(self.axes) for table in self.tables):
            raise InvalidParameter("the model's tilt names an axis that is not there")
        for shape, exponents in zip(self.shapes(schema), self.exponents, strict=True):
            if exponents.shape != shape or not np.isfinite(exponents).all():
                raise InvalidParameter("the model's tilt has exponents of another shape than its tables")

    def features(self, table: Table) -> Iterator[tuple[Integers, Floats]]:
        """Yield, for each of the tables, each row's cell (C order over the kept axes) and weight, ``(rows,)`` each."""
        places = [axis.places(table.codes[axis.column], table.numbers.get(axis.column)) for axis in self.axes]
        for of, shape in zip(self.tables, self.shapes(table.schema), strict=True):
            weight = np.ones(len(table))
            kept = []
            for at in of:
                along = self.weights[at]
                if along is None:
                    kept.append(places[at])
                else:
                    weight *= along[places[at]]
            cell = np.ravel_multi_index(kept, shape) if kept else np.zeros(len(table), dtype=np.int64)
            yield np.asarray(cell, dtype=np.int64), weight

    def choose(self, table: Table, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return ``rows`` positions in a pool, drawn with probabilities in proportion to the rows' weights, shuffled.

        The draw is systematic over the pool, sorted by the cells of the tables: sums over drawn rows then differ from
        those expected by little more than a row. ``table`` holds the numbers of all columns of numbers.
        """
        log, keys = np.zeros(len(table)), []
        for (cell, weight), exponents in zip(self.features(table), self.exponents, strict=True):
            log += weight * exponents.ravel()[cell]
            keys.append(cell if exponents.size > 1 else weight)
        keys.sort(key=lambda key: len(np.unique(key)), reverse=True)
        order = np.lexsort(keys[-_KEYS:])
        ends = np.cumsum(np.exp(log - log.max())[order])
        points = (np.arange(rows) + rng.random()) * (ends[-1] / rows)
        drawn = order[np.minimum(np.searchsorted(ends, points, side="right"), len(table) - 1)]
        return np.asarray(rng.permutation(drawn), dtype=np.int64)

    def to_arrays(self) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Return the tilt as JSON values and arrays by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for at, (axis, weights) in enumerate(zip(self.axes, self.weights, strict=True)):
            parts = {"cuts": axis.cuts, "groups": axis.groups, "weights": weights}
            arrays |= {f"{name}{at}": part for name, part in parts.items() if part is not None}
        arrays["exponents"] = np.concatenate([part.ravel() for part in self.exponents])
        return msgspec.to_builtins(_SavedTilt(tuple(axis.column for axis in self.axes), self.tables)), arrays

    @classmethod
    def from_arrays(cls, meta: Any, arrays: Mapping[str, NDArray[Any]], schema: Schema) -> Tilt:
        """Restore a tilt from both results of :meth:`to_arrays`; raises :class:`InvalidParameter` for any other."""
        saved = msgspec.convert(meta, _SavedTilt)

        def part(name: str, at: int, kind: type[np.float64] | type[np.int64]) -> NDArray[Any] | None:
            found = arrays.get(f"{name}{at}")
            if found is not None and found.dtype != kind:
                raise InvalidParameter(f"the model's tilt has {name} of type {found.dtype}")
            return found

        axes = tuple(
            Axis(column, part("cuts", at, np.float64), part("groups", at, np.int64))
            for at, column in enumerate(saved.columns)
        )
        tilt = cls(axes, tuple(part("weights", at, np.int64) for at in range(len(axes))), saved.tables)
        exponents = as_tables(arrays["exponents"].astype(np.float64), tilt.shapes(schema))
        tilt = replace(tilt, exponents=tuple(exponents))
        tilt.check(schema)
        return tilt


def pool_size(rows: int) -> int:
    """Return how many rows a pool has from which so many are drawn."""
    return max(3 * rows, min(TIMES * rows, _LARGEST_POOL))


def tilted(
    synthesizer: Synthesizer, tilt: Tilt, released: Sequence[Floats], stds: Sequence[float], slacks: Sequence[float]
) -> Tilt:
    """Return the tilt by which the synthesizer's rows agree with ``released`` sums, one for each table of ``tilt``.

    ``stds`` are the standard deviations of the noise in a number of each, above 0, and ``slacks`` by how many of them
    an expected number may differ from the released one. The fit is on a pool of rows drawn with a fixed seed: it
    depends on released numbers alone.
    """
    from scipy.optimize import minimize

    total = max(synthesizer.model.total, 1.0)
    rng = np.random.default_rng(0)
    pool = with_numbers(synthesizer.sample_table(pool_size(max(1, round(total / 3))), rng), rng)
    features = list(tilt.features(pool))
    sizes = [part.size for part in released]
    ends = np.cumsum(sizes)
    target, std = np.concatenate([part.ravel() for part in released]), np.repeat(np.asarray(stds), sizes)
    slack = np.tile(np.repeat(np.asarray(slacks), sizes), 2)

    def objective(both: Floats) -> tuple[float, Floats]:
        scaled = both[: len(target)] - both[len(target) :]
        exponents = np.split(scaled / std, ends[:-1])
        log = np.zeros(len(pool))
        for (cell, weight), of in zip(features, exponents, strict=True):
            log += weight * of[cell]
        top = float(log.max())
        share = np.exp(log - top)
        whole = float(share.sum())
        share *= total / whole
        expected = np.concatenate(
            [
                np.bincount(cell, share * weight, minlength=size)
                for (cell, weight), size in zip(features, sizes, strict=True)
            ]
        )
        value = total * (np.log(whole / len(pool)) + top) - float(scaled / std @ target) + float(slack @ both)
        value += STIFFNESS * float(scaled @ scaled) / 2
        slope = (expected - target) / std + STIFFNESS * scaled
        return value, np.concatenate([slope, -slope]) + slack

    start, bounds = np.zeros(2 * len(target)), [(0.0, None)] * (2 * len(target))
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
    scaled = found.x[: len(target)] - found.x[len(target) :]
    exponents = as_tables(np.asarray(scaled / std), [part.shape for part in released])
    return replace(tilt, exponents=tuple(exponents))
