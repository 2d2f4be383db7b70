"""Gaussian copulas over columns of any type, and estimation of their correlations from sums over encoded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import related
from fedsynth.errors import InvalidParameter
from fedsynth.models.conditions import Between, Condition, Is
from fedsynth.models.evidence import Evidence, RejectionSampler, keep
from fedsynth.models.normal_scores import TERMS, Array, Integers, NormalScores
from fedsynth.models.saved import (
    DrawnColumn,
    Total,
    check_cells,
    check_correlation,
    read_floats,
    read_grid,
    read_head,
)
from fedsynth.schema.bins import MOST_COLUMNS, Grid
from fedsynth.schema.columns import Column

Drawn = Array | Integers  # numbers of a column, or its codes

_LARGEST = 0.995  # largest absolute correlation
_FLOOR = 1e-6  # smallest eigenvalue of a correlation matrix
_PROJECTIONS = 100  # iterations of Higham's method


# ---------------------------------------------------------------------------------------------------------------------
# Correlations


def fitted_correlation(axes: Sequence[NormalScores], scores: Sequence[Array], products: Array, std: float) -> Array:
    """Estimate a Gaussian copula's correlation matrix, shape ``(l, l)``, from noisy sums over encoded rows.

    ``axes[j]`` describes column j, and ``scores[j]`` holds a number for each of its cells, by which the cell's rows are
    encoded: ascending along the axis, with a mean of about 0 (:meth:`NormalScores.scores
    <fedsynth.models.normal_scores.NormalScores.scores>`). ``products`` are the means over rows of the product of two
    columns' scores, flat, for the pairs of columns ``(1, 0), (2, 0), (2, 1), (3, 0)`` and so on; each has noise of
    standard deviation ``std``. The result is corrected for the correlation that encoding by cells loses
    (:func:`latent_correlation`, at most 0.995 in absolute value), shrunk towards zero according to the noise, and
    positive definite.
    """
    deviation = np.sqrt([float(axis.shares @ score**2) for axis, score in zip(axes, scores, strict=True)])
    matrix = np.zeros((len(axes), len(axes)))
    matrix[np.tril_indices(len(axes), -1)] = products
    latent = latent_correlation(axes, scores, matrix + matrix.T)
    # To first order, the noise of a correlation is that of the mean product divided by both standard deviations.
    spread = np.outer(deviation, deviation)
    noise = np.divide(std, spread, out=np.zeros_like(spread), where=spread > 0)
    return nearest_correlation(shrunk(latent, noise))


def latent_correlation(axes: Sequence[NormalScores], scores: Sequence[Array], products: Array) -> Array:
    """Return the correlations, shape ``(l, l)``, of normal variables whose discretised scores have mean ``products``.

    ``axes`` and ``scores`` are those of :func:`fitted_correlation`. ``products[i, j]`` is the mean over rows of the
    product of the scores of columns i and j; the diagonal is not used. The correlation of scores is weaker than that of
    the variables. For normal variables of correlation r, the mean product of two columns' scores is the series sum_k
    c_k d_k r^k in their Hermite coefficients (Mehler's formula). It increases in r because the scores increase along
    their axes, so it can be inverted for each pair.
    """
    c = np.stack([axis.coefficients(score) for axis, score in zip(axes, scores, strict=True)])
    grid = np.sin(np.linspace(-1, 1, 161) * np.arcsin(_LARGEST))
    powers = grid[:, None] ** np.arange(1, TERMS + 1)
    correlation = np.eye(len(axes))
    for i in range(len(axes)):
        for j in range(i):
            reached = np.maximum.accumulate(powers @ (c[i] * c[j]))
            if reached[-1] > reached[0]:
                correlation[i, j] = correlation[j, i] = np.interp(products[i, j], reached, grid)
    return correlation


def nearest_correlation(matrix: Array) -> Array:
    """Return the positive definite correlation matrix nearest to a symmetric ``matrix`` (Higham 2002); same shape.

    Nearest in the Frobenius norm, by alternating projections with Dykstra's correction (doi 10.1093/imanum/22.3.329).
    """
    nearest, correction = (matrix + matrix.T) / 2, np.zeros_like(matrix)
    for _ in range(_PROJECTIONS):
        asked = nearest - correction
        positive = _positive_part(asked)
        correction = positive - asked
        nearest = positive.copy()
        np.fill_diagonal(nearest, 1.0)
    nearest = _positive_part(nearest)
    scale = np.sqrt(np.diag(nearest))
    result: Array = nearest / np.outer(scale, scale)
    np.fill_diagonal(result, 1.0)
    return result


def _positive_part(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    positive: Array = (vectors * np.maximum(values, _FLOOR)) @ vectors.T
    return (positive + positive.T) / 2


def shrunk(correlation: Array, std: Array) -> Array:
    """Shrink noisy correlations towards zero by a common factor, according to the standard deviation ``std`` of each.

    The result has ones on the diagonal. This is the positive-part James-Stein estimator; it returns independent columns
    if all correlations are explained by noise.
    """
    below = np.tril_indices(len(correlation), -1)
    observed, noise = float((correlation[below] ** 2).sum()), float((std[below] ** 2).sum())
    kept = max(0.0, 1 - noise / observed) if observed > 0 else 0.0
    return np.eye(len(correlation)) + kept * (correlation - np.diag(np.diag(correlation)))


# ---------------------------------------------------------------------------------------------------------------------
# The model


@dataclass(frozen=True, eq=False)
class IntervalEvidence:
    """Evidence on a column with one normal axis: the row's point on the axis lies in one of several intervals.

    ``low`` and ``high`` are the ends of the intervals as probabilities under the standard normal (0 to 1), ascending
    and without overlap, shape ``(intervals,)``.
    """

    low: Array
    high: Array

    @property
    def share(self) -> float:
        """Probability of the evidence under the standard normal."""
        return float((self.high - self.low).sum())

    @property
    def ends(self) -> tuple[Array, Array]:
        """Ends of the intervals as points of the normal axis, infinite at probabilities 0 and 1."""
        from scipy.special import ndtri

        return ndtri(self.low), ndtri(self.high)

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return 1.0 for each point of shape ``(rows, 1)`` inside one of the intervals and 0.0 for others."""
        low, high = self.ends
        found: Array = np.any((codes >= low) & (codes <= high), axis=1).astype(np.float64)
        return found


@dataclass(frozen=True, eq=False)
class OneAxis:
    """How a copula represents a column by one standard normal variable: each cell is an interval of its axis.

    Cells are the codes of a category or, with a ``grid``, the grid's intervals of numbers or times, after which a last
    cell may stand for missing values. ``axis`` holds the order of the cells' intervals and the cells' shares of the
    rows, ``unplaced`` the number of rows that :class:`~fedsynth.models.adaptive_bins.AdaptiveBins` has under this name.
    """

    axis: NormalScores
    grid: Grid | None
    unplaced: float = 0.0
    kind: ClassVar[str] = "normal scores"
    latents: ClassVar[int] = 1

    def drawn(self, points: Array, rng: np.random.Generator) -> Drawn:
        """Return the values at points ``(rows, 1)``: codes or, with a grid, numbers; ``rng`` is not used."""
        cells, share = self.axis.cells(points[:, 0])
        return cells if self.grid is None else self.grid.values(cells, share)

    def given(self, column: Column, condition: Condition) -> tuple[IntervalEvidence, OneAxis]:
        """Return the part of the normal axis on which ``condition`` holds, as evidence, and this axis, unchanged."""
        from scipy.special import ndtr

        size = len(self.axis.shares)
        begin, end = np.zeros(size), np.zeros(size)
        if isinstance(condition, Between):
            assert self.grid is not None
            begin[: len(self.grid)], end[: len(self.grid)] = self.grid.overlap(condition.low, condition.high)
        else:
            end[list(condition.codes) if isinstance(condition, Is) else -1] = 1.0
        begin, end = begin[self.axis.order], end[self.axis.order]
        ends = np.concatenate([[0.0], ndtr(self.axis.thresholds), [1.0]])
        low = ends[:-1] + begin * np.diff(ends)
        high = np.where(end == 1, ends[1:], ends[:-1] + end * np.diff(ends))
        low, high = low[high > low], high[high > low]
        if len(low):
            apart = low[1:] > high[:-1]  # otherwise the next interval begins where this one ends
            low, high = low[np.append(True, apart)], high[np.append(apart, True)]
        return IntervalEvidence(low, high), self

    def cells(self, column: Column) -> Grid | None:
        """Return the cells of a number or time."""
        return self.grid

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return this axis as named arrays."""
        arrays = {**self.axis.to_arrays(), "unplaced": np.array(self.unplaced)}
        return arrays if self.grid is None else {**arrays, **self.grid.to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> OneAxis:
        """Restore an axis from :meth:`to_arrays`."""
        grid, unplaced = read_grid(arrays) if "upper" in arrays else None, read_floats(arrays, "unplaced", (), 0)
        return cls(NormalScores.from_arrays(arrays), grid, float(unplaced))

    def check(self, column: Column, drawn: DrawnColumn) -> None:
        """Raise :class:`InvalidParameter` unless it converts what the model has ``drawn`` to values of ``column``."""
        check_cells(column, self.grid, len(self.axis.shares))
        if drawn != DrawnColumn(0, latents=self.latents):
            raise InvalidParameter(f"the model does not draw a point of one normal axis for {column.name!r}")


class Margin(Protocol):
    """A column's axis that a copula can serve: it converts points on ``latents`` normal axes to values."""

    latents: ClassVar[int]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved copula."""

    total: Total
    latents: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=2)], ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)
    ]


@dataclass(frozen=True, eq=False)
class Copula:
    """A Gaussian copula of rows: jointly normal latent variables with a ``correlation`` matrix of shape ``(l, l)``.

    Column j has ``latents[j]`` consecutive ones, which its axis converts to values: one for a :class:`OneAxis`.
    ``total`` is the estimated number of records.
    """

    correlation: Array
    total: float
    latents: tuple[int, ...]
    kind: ClassVar[str] = "copula"

    @classmethod
    def of(cls, margins: Sequence[Margin], correlation: Array, total: float) -> Copula:
        """Return the copula of columns with the axes ``margins``, whose latents have this ``correlation``."""
        return cls(correlation, total, tuple(margin.latents for margin in margins))

    def sample(self, rows: int, rng: np.random.Generator) -> list[Array]:
        """Draw ``rows`` rows as points on each column's normal axes; one array ``(rows, latents)`` per column."""
        return self.split(rng.standard_normal((rows, len(self.correlation))) @ np.linalg.cholesky(self.correlation).T)

    def given(self, evidence: Mapping[int, Evidence]) -> TruncatedCopula | RejectionSampler | None:
        """Return a sampler of rows given ``evidence``, by position; ``None`` if a region has probability 0.

        Evidence on a column with one latent variable truncates its normal distribution (:class:`IntervalEvidence`). For
        columns with two, rejection sampling is used.
        """
        regions = {at: known for at, known in evidence.items() if isinstance(known, IntervalEvidence)}
        others = {at: known for at, known in evidence.items() if not isinstance(known, IntervalEvidence)}
        if not all(region.share > 0 for region in regions.values()):
            return None
        # The rarest column comes first, because its own region never causes a rejection.
        columns = tuple(sorted(regions, key=lambda at: regions[at].share))
        found = TruncatedCopula(self, columns, tuple(regions[at] for at in columns))
        return RejectionSampler(found if regions else self, others) if others else found

    def split(self, z: Array) -> list[Array]:
        """Split points of all latent variables, shape ``(rows, l)``, into the columns' parts ``(rows, latents)``."""
        return [z[:, end - many : end] for many, end in zip(self.latents, np.cumsum(self.latents), strict=True)]

    @property
    def related(self) -> NDArray[np.bool_]:
        """All pairs: each has a correlation."""
        return related(len(self.latents), [range(len(self.latents))])

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Points on normal axes."""
        return tuple(DrawnColumn(0, latents=many) for many in self.latents)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the model as JSON values and named arrays."""
        return {"total": self.total, "latents": list(self.latents)}, {"correlation": self.correlation}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Copula:
        """Restore the model; raises :class:`InvalidParameter` for anything else."""
        saved = read_head(meta, _Saved)
        correlation = read_floats(arrays, "correlation", [sum(saved.latents)] * 2)
        check_correlation(correlation)
        return cls(correlation, saved.total, saved.latents)


@dataclass(frozen=True, eq=False)
class TruncatedCopula:
    """Sampler of a copula's rows given evidence: some columns lie in intervals of their normal axes.

    ``columns`` are the positions of these columns, which have one latent variable each, and ``regions`` their
    intervals. The latents are drawn one after the other from their normal distribution given the previous ones,
    truncated to their regions. A row is kept with a probability: the product, over all columns but the first, of the
    conditional probability of the column's region (for the first column it is the same in every row). This is exact:
    rows come from the proposal of Geweke, Hajivassiliou and Keane (doi 10.1016/0304-4076(94)01716-6), with rejection
    instead of weights.
    """

    copula: Copula
    columns: tuple[int, ...]
    regions: tuple[IntervalEvidence, ...]

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Draw as :meth:`Copula.sample`; raises :class:`InvalidParameter` if too few drawn rows are kept."""
        from scipy.special import ndtr, ndtri

        starts = np.cumsum((0, *self.copula.latents))[:-1]
        first = [int(starts[column]) for column in self.columns]
        order = np.array([*first, *(at for at in range(len(self.copula.correlation)) if at not in first)])
        root = np.linalg.cholesky(self.copula.correlation[np.ix_(order, order)])

        def draw(many: int) -> tuple[list[Array], NDArray[np.bool_]]:
            free, likelihood = rng.standard_normal((many, len(order))), np.ones(many)
            for at, region in enumerate(self.regions):
                mean = (free[:, :at] @ root[at, :at])[:, None]
                low, high = (ndtr((end - mean) / root[at, at]) for end in region.ends)
                reached = np.cumsum(high - low, axis=1)
                likelihood *= reached[:, -1] if at else 1.0
                place = rng.random(many) * reached[:, -1]
                which = np.minimum((reached <= place[:, None]).sum(axis=1), reached.shape[1] - 1)
                each = np.arange(many), which
                u = high[each] - (reached[each] - place)
                free[:, at] = ndtri(np.clip(u, np.finfo(np.float64).tiny, 1 - 2.0**-53))
            points = np.empty_like(free)
            points[:, order] = free @ root.T
            return self.copula.split(points), rng.random(many) < likelihood

        return keep(rows, draw)
