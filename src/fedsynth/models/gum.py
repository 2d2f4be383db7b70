"""The gradual update method (GUM): make noisy marginals consistent, then change rows until they match them.

Consistency follows Zhang et al. (PrivSyn, USENIX Security 2021, arXiv 2012.15128), but averages by the variances of the
tables' sums instead of PrivSyn's weights. GUM, from the same paper, moves the rows of all cells of a table at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import related
from fedsynth.errors import InvalidParameter, whole
from fedsynth.models.estimate import Mask, Measurement, Zeros, forbidden, inverse_variance_mean, merged, without
from fedsynth.models.evidence import Evidence, RejectionSampler
from fedsynth.models.junction_tree import Clique, Floats, reduce, spread
from fedsynth.models.saved import DrawnColumn, SavedColumns, Total, check_positions, read_floats, read_head
from fedsynth.schema.bins import MOST_CELLS, MOST_COLUMNS

_DECAY, _EVERY = 0.84, 20  # factor by which the step size shrinks, and the number of sweeps between reductions
_RAKES = 50  # rounds of iterative proportional fitting
MOST_SWEEPS = 1000  # a larger number is taken for a mistake: drawing rows would take hours
_LEAST = 1e-6  # rows of a saved table
_WINDOW = 1 << 15  # smallest number of rows among which one target moves rows


def simplex(noisy: Floats, total: float) -> Floats:
    """Return the non-negative array of sum ``total`` that is nearest (L2) to the ``noisy`` counts; same shape.

    ``total`` must be positive. The projection (Duchi et al., ICML 2008, doi 10.1145/1390156.1390191) lowers all counts
    by one amount before it clips them, if clipping alone would exceed ``total``: fewer empty cells get mass than by
    clipping and rescaling.
    """
    flat = np.sort(noisy.ravel())[::-1]
    excess = np.cumsum(flat) - total
    count = np.arange(1, flat.size + 1)
    last = int(np.flatnonzero(flat - excess / count > 0)[-1])
    nearest: Floats = np.maximum(noisy - excess[last] / (last + 1), 0.0)
    return nearest


def consistent(
    measured: Sequence[Measurement], total: float, rounds: int = 10, *, zeros: Zeros | None = None
) -> dict[Clique, Floats]:
    """Return noisy tables by clique, made non-negative, of sum ``total`` (rows) and with nearly equal 1-way marginals.

    In each of at most ``rounds`` rounds, each column's 1-way counts are set, in all tables that contain it, to the
    inverse-variance mean of these tables' own; the differences are spread evenly over a table's cells, and all tables
    are projected on the simplex. Pass noisy tables unclipped: clipping them first would add mass wherever noise is
    positive. Ends early if tables agree to a thousandth of a row per cell. Tables of the same clique are first merged
    by inverse variance.

    Cells of ``zeros`` (:data:`~fedsynth.models.estimate.Zeros`) stay empty and take no part in any of these steps. If a
    clique of ``zeros`` lies in no table but all its columns have 1-way tables, a table is added for it: the one of
    maximum entropy that is consistent with the tables on subsets of the clique. Rows that GUM changes until they match
    all tables then respect these zeros.
    """
    zeros = zeros or {}
    averages = merged(measured)
    tables = {clique: without(values, clique, zeros) for clique, (values, _) in averages.items()}
    free = {
        clique: ~mask for clique, table in tables.items() if (mask := forbidden(zeros, clique, table.shape)) is not None
    }
    columns = sorted({column for clique in tables for column in clique})
    holders = {column: [clique for clique in tables if column in clique] for column in columns}
    for _ in range(rounds):
        moved = 0.0
        for column in columns:
            marginals = {clique: _marginal(tables[clique], clique, column) for clique in holders[column]}
            # A projection sums cells, and its variance is the sum of their variances.
            cells = {
                clique: np.maximum(1.0, _marginal(free[clique].astype(np.float64), clique, column))
                if clique in free
                else tables[clique].size // marginals[clique].size
                for clique in marginals
            }
            variances = [
                averages[clique][1] * (cells[clique] * marginal.size) / marginal.size
                for clique, marginal in marginals.items()
            ]
            agreed, _ = inverse_variance_mean(list(marginals.values()), variances)
            for clique in holders[column]:
                shift = (agreed - marginals[clique]) / cells[clique]
                moved = max(moved, float(np.abs(shift).max()))
                change = _along(shift, clique, column)
                tables[clique] = tables[clique] + (change * free[clique] if clique in free else change)
        tables = {clique: _projected(table, total, free.get(clique)) for clique, table in tables.items()}
        if moved < 1e-3:
            break
    for clique, mask in zeros.items():
        if all((column,) in tables for column in clique) and not any(set(clique) <= set(held) for held in tables):
            tables[clique] = _possible(mask, clique, tables)
    return tables


def _possible(mask: Mask, clique: Clique, tables: Mapping[Clique, Floats]) -> Floats:
    """Return a table of a clique that is empty in the cells of ``mask`` and consistent with ``tables`` on its subsets.

    Of all such tables it is the one of maximum entropy, by iterative proportional fitting (Deming & Stephan 1940, doi
    10.1214/aoms/1177731829).
    """
    table = np.where(mask, 0.0, 1.0)
    for _ in range(_RAKES):
        for other, counts in tables.items():
            if set(other) <= set(clique):
                sums = reduce(table, clique, other)
                factor = np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), 1.0)
                table = table * spread(factor, other, clique)
    return table


def _projected(table: Floats, total: float, free: Mask | None) -> Floats:
    """Return the nearest non-negative table with sum ``total`` that is empty outside the ``free`` cells."""
    if free is None:
        return simplex(table, total)
    result = np.zeros_like(table)
    result[free] = simplex(table[free], total)
    return result


def _marginal(table: Floats, clique: Clique, column: int) -> Floats:
    at = clique.index(column)
    result: Floats = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis != at))
    return result


def _along(values: Floats, clique: Clique, column: int) -> Floats:
    """Reshape ``values`` so that they broadcast along the axis of ``column``."""
    return values.reshape([-1 if member == column else 1 for member in clique])


@dataclass(frozen=True)
class GradualUpdate:
    """GUM, the gradual update method: changes rows until their contingency tables match ``targets``.

    ``sizes`` holds each column's number of codes. ``targets`` are tables with equal marginals (:func:`consistent`), by
    clique; they are scaled here to the number of rows. Each of the ``sweeps`` (1 to 1000, else
    :class:`InvalidParameter`) visits the targets, those with the largest L1 error at their last visit first. A visit
    moves rows from cells with too many rows to cells with too few. A row is moved either by overwriting its values in
    the target's columns, or by copying over it a whole row that is already in the new cell. Copying preserves the other
    targets better. Overwriting is used for cells without rows and, to mix rows, for half of the rows that move to cells
    with rows, in every second sweep.
    """

    sizes: tuple[int, ...]
    targets: Mapping[Clique, Floats]
    sweeps: int = 20

    def __post_init__(self) -> None:
        whole(1, MOST_SWEEPS, sweeps=self.sweeps)

    def rows(self, start: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return rows that nearly match the targets, in random order, from the codes ``start``: ``(columns, rows)``."""
        total = start.shape[1]
        wanted = {clique: table.ravel() * (total / table.sum()) for clique, table in self.targets.items()}
        rows: NDArray[Any] = np.array(start.T, order="C")  # whole rows are copied, so each is contiguous
        errors = dict.fromkeys(wanted, 0.0)  # of each target before its last visit
        for sweep in range(self.sweeps):
            # Sorting by cell is stable, so shuffling the rows makes the first ones of a cell a random choice.
            rows = rows[rng.permutation(total)]
            step = _DECAY ** (sweep // _EVERY)
            for clique in sorted(wanted, key=lambda target: -errors[target]):
                errors[clique] = self._update(rows, clique, wanted[clique], step, sweep % 2 == 0, rng)
        return np.array(rows.T, order="C")

    def _codes(self, rows: NDArray[Any], clique: Clique) -> NDArray[Any]:
        """Return each row's cell in the narrowest integer type, since short integers are sorted by radix."""
        cells = math.prod(self.sizes[column] for column in clique)
        narrow = np.uint8 if cells < 2**8 else np.uint16 if cells < 2**16 else np.int64
        codes: NDArray[Any] = rows[:, clique[0]].astype(narrow)
        for column in clique[1:]:
            codes *= narrow(self.sizes[column])
            codes += rows[:, column].astype(narrow, copy=False)
        return codes

    def _update(
        self, rows: NDArray[Any], clique: Clique, wanted: Floats, step: float, mix: bool, rng: np.random.Generator
    ) -> float:
        """Move rows (axis 0) from a target's overfull cells to its deficient cells, in place; return the error before.

        Rows move only within a window of the shuffled rows: eight times as many as have to move, but at least
        ``_WINDOW``. Sorting all rows would take most of the time when only one in a hundred moves.
        """
        codes = self._codes(rows, clique)
        counts = np.bincount(codes, minlength=wanted.size)
        lack = wanted - counts
        empty = counts == 0
        needed = np.where(empty, step * wanted, np.minimum(np.maximum(lack, 0), step * counts))
        offset = rng.random()  # shared, so that as many rows are freed as are needed
        fill = _whole(needed, offset)
        freed = _whole(_spread(np.maximum(-lack, 0), counts, float(needed.sum())), offset)
        error = float(np.abs(lack).sum())
        if not fill.any() or not freed.any():
            return error
        # Each target gets a different window, so that no row comes first in all of them.
        turn = int(rng.integers(len(codes)))
        window = min(len(codes), max(_WINDOW, 8 * int(freed.sum())))
        seen = np.concatenate([codes[turn : turn + window], codes[: max(0, turn + window - len(codes))]])
        order = np.argsort(seen, kind="stable")
        sizes = counts if window == len(codes) else np.bincount(seen, minlength=wanted.size)
        starts = np.cumsum(sizes) - sizes
        free = rng.permutation(order[_ranges(starts, np.minimum(freed, sizes))]) + turn
        free[free >= len(codes)] -= len(codes)
        copied = np.where(empty, 0, _whole(fill / 2, rng.random()) if mix else fill)
        cells = np.repeat(np.arange(wanted.size), fill - copied)
        sources = order[_ranges(starts, np.minimum(copied, sizes))] + turn
        sources[sources >= len(codes)] -= len(codes)
        lots = rng.permutation(len(cells) + len(sources))[: len(free)]
        free = free[: len(lots)]
        overwrite = lots < len(cells)
        values = cells[lots[overwrite]]
        for column in reversed(clique):
            rows[free[overwrite], column] = values % self.sizes[column]
            values = values // self.sizes[column]
        whole = rows.view(np.dtype((np.void, rows.strides[0])))[:, 0]  # each row as a single value
        whole[free[~overwrite]] = whole[sources[lots[~overwrite] - len(cells)]]
        return error


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=MOST_CELLS)], ...],
        msgspec.Meta(min_length=1, max_length=MOST_COLUMNS),
    ]
    cliques: tuple[SavedColumns, ...]
    sweeps: Annotated[int, msgspec.Meta(ge=1, le=MOST_SWEEPS)]
    total: Total


@dataclass(frozen=True, eq=False)
class GradualRows:
    """A model that samples rows by GUM (the gradual update method): independent columns, changed to match given tables.

    ``update`` holds these tables as its targets, the 1-way table of every column among them; ``total`` is the estimated
    number of records.
    """

    update: GradualUpdate
    total: float
    kind: ClassVar[str] = "gradual"

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Draw ``rows`` rows and return each column's codes, shape ``(rows,)``."""
        sizes, targets = self.update.sizes, self.update.targets
        start = np.empty((len(sizes), rows), dtype=np.min_scalar_type(max(sizes) - 1))
        for column, size in enumerate(sizes):
            start[column] = rng.choice(size, rows, p=targets[column,] / targets[column,].sum())
        return list(self.update.rows(start, rng))

    def given(self, evidence: Mapping[int, Evidence]) -> RejectionSampler | None:
        """Return a rejection sampler, since rows have no known probability.

        It is ``None`` if a column's own table has no rows that meet its condition.
        """
        for column, known in evidence.items():
            if not (self.update.targets[column,] * known.likelihood(np.arange(self.update.sizes[column]))).any():
                return None
        return RejectionSampler(self, evidence)

    @property
    def related(self) -> NDArray[np.bool_]:
        """Columns that share one of the tables that rows are made to match."""
        return related(len(self.update.sizes), self.update.targets)

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Integer codes."""
        return tuple(DrawnColumn(size) for size in self.update.sizes)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return the model as JSON values and the tables that its rows match."""
        cliques = [list(clique) for clique in self.update.targets]
        meta = {
            "sizes": list(self.update.sizes),
            "cliques": cliques,
            "sweeps": self.update.sweeps,
            "total": self.total,
        }
        return meta, {f"table{at}": table for at, table in enumerate(self.update.targets.values())}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> GradualRows:
        """Restore the model; raises :class:`InvalidParameter` for anything else."""
        saved = read_head(meta, _Saved)
        tables = {}
        for at, clique in enumerate(saved.cliques):
            check_positions(clique, len(saved.sizes))
            tables[clique] = read_floats(arrays, f"table{at}", [saved.sizes[column] for column in clique], 0)
            if not tables[clique].sum() >= _LEAST:
                raise InvalidParameter(f"the table of the columns {list(clique)} has no rows")
        if len(tables) < len(saved.cliques) or not tables.keys() >= {(column,) for column in range(len(saved.sizes))}:
            raise InvalidParameter("it needs the table of every single column, and each table once")
        return cls(GradualUpdate(saved.sizes, tables, saved.sweeps), saved.total)


def _whole(amounts: Floats, offset: float) -> NDArray[np.int64]:
    """Round ``amounts`` to integers by systematic sampling with a uniform ``offset``: unbiased, and so is their sum.

    A cell that should hold a third of a row holds one row in one of three draws.
    """
    bounds = np.floor(np.concatenate([[0.0], np.cumsum(amounts)]) + offset).astype(np.int64)
    return np.diff(bounds)


def _spread(excess: Floats, counts: NDArray[np.int64], wanted: float) -> Floats:
    """Return how much of each excess to free for a sum of ``wanted``: min(excess, share * the cell's rows).

    The share is the same for all cells, and the smallest that is enough; if none is enough, everything is freed.
    """
    over = np.flatnonzero(excess > 0)
    if float(excess.sum()) <= wanted or not len(over):
        return excess
    ratio = excess[over] / counts[over]
    order = np.argsort(ratio)
    capped = np.concatenate([[0.0], np.cumsum(excess[over][order])])[:-1]  # freed by cells that free all their excess
    rest = np.cumsum(counts[over][order][::-1])[::-1]  # rows of the other cells
    share = (wanted - capped) / rest
    first = int(np.argmax(share <= ratio[order]))
    result = np.zeros_like(excess)
    result[over] = np.minimum(excess[over], share[first] * counts[over])
    return result


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions starts[i], ..., starts[i] + lengths[i] - 1, concatenated over i."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(total)
