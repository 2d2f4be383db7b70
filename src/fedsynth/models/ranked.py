"""A graphical model over groups of cells, in which a latent normal vector orders numbers within their groups.

Two correlated numbers are correlated within their groups as well, most of all in a last group that contains a tail. The
graphical model determines the groups of a row's numbers; given the groups, their places within the groups follow a
normal distribution with the model's own correlation matrix. The distribution of each number within its group is
unchanged: the latent vector only decides which row gets which of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.evidence import CodeEvidence, Drawn, Evidence, PlacedEvidence, Sampler, keep
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.saved import DrawnColumn, SavedColumns, check_correlation, check_positions, read_floats, read_head

Array = NDArray[np.float64]

_FARTHEST = 1e-12  # smallest tail probability at which a group begins or ends
_REACH = 8.0  # bound of the normal axis
_LAST = 1 - 2.0**-40  # largest place
_MOST_PLACED = 1 << 13  # groups of a column with places: group + _LAST stays below the next group in float64
SWEEPS = 4  # of the Gibbs sampler, which starts at the groups' medians, close to its target
_KNOTS = np.sin(np.linspace(0, np.pi / 2, 33)) ** 2  # shares of a group's mass at which places are tabulated
_ROWS = 1 << 14  # rows drawn for such a table, or for the bound of rejection weights
_WIDTHS = (0.02, 1.0)  # bounds of a group's width on the normal axis, by which it is frequent in the former rows
_RAREST = 1e-9  # share of the model's rows below which a group may be less frequent in them
_NARROW = 1e-9  # share of a group: a smaller part that is not admitted is ignored, a smaller admitted one widened
_FEWEST = 1 / 256  # share of rows that are kept at least; if there would be fewer, the largest weights are cut
_LEAST = 1 << 10  # fewest rows drawn at a time if some are rejected


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    groups: dict[str, Any]
    columns: SavedColumns
    ordered: SavedColumns


@dataclass(frozen=True, eq=False)
class RankedGroups:
    """A graphical model of groups (bins) in which numbers are also correlated within their groups.

    ``groups`` draws the group of every column. For the numeric columns at the positions ``columns``, a row also gets a
    place within its group: from 0 to below 1, the share of the group's rows with a smaller value. Places follow a
    latent normal vector with the correlation matrix ``correlation`` (positive definite, in the order of ``columns``).
    The first ``ordered[i]`` groups of ``columns[i]`` are intervals of its values in ascending order; the others, such
    as missing values, have no meaningful places.
    """

    groups: MarkovRandomField
    columns: tuple[int, ...]
    ordered: tuple[int, ...]
    correlation: Array
    kind: ClassVar[str] = "ranked"

    @property
    def total(self) -> float:
        """The estimated number of records."""
        return self.groups.total

    @cached_property
    def _intervals(self) -> list[Array]:
        """For each of the columns, where its groups begin and end on the normal axis, shape ``(2, groups)``.

        Groups that are not ordered extend over the whole axis.
        """
        from scipy.special import ndtri

        found = []
        for column, many in zip(self.columns, self.ordered, strict=True):
            counts = np.maximum(self.groups.marginals([(column,)])[(column,)][:many], np.finfo(float).tiny)
            inner = np.clip(np.cumsum(counts)[:-1] / counts.sum(), _FARTHEST, 1 - _FARTHEST)
            ends = np.concatenate([[-np.inf], ndtri(inner), [np.inf]])
            free = np.full(self.groups.sizes[column] - many, np.inf)
            found.append(np.array([np.append(ends[:-1], -free), np.append(ends[1:], free)]))
        return found

    @cached_property
    def _precision(self) -> Array:
        """The inverse of the correlation matrix."""
        return np.asarray(np.linalg.inv(self.correlation), dtype=np.float64)

    def sample(self, rows: int, rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        """Draw ``rows`` rows and return one array per column, shape ``(rows,)``, in the schema's order.

        A column's array holds its groups as integers. For those of ``columns`` it holds group + place in float64, where
        the place within the group is from 0 to below 1.
        """
        drawn: list[NDArray[Any]] = list(self.groups.sample(rows, rng))
        low, high = self._box(drawn)
        latent = _within(low, high, self._precision, rng)
        for at, column in enumerate(self.columns):
            drawn[column] = drawn[column] + _places(drawn[column], latent[at], rng)
        return drawn

    def _box(self, drawn: Drawn) -> Array:
        """Return where the groups ``drawn`` begin and end on the normal axes, shape ``(2, columns, rows)``."""
        found = np.empty((2, len(self.columns), len(drawn[0])))
        for at, (column, intervals) in enumerate(zip(self.columns, self._intervals, strict=True)):
            found[:, at] = intervals[:, drawn[column]]
        return found

    def given(self, evidence: Mapping[int, Evidence]) -> Sampler | None:
        """Return a sampler of rows given ``evidence`` (conditions by column position); ``None`` if no row can meet it.

        Evidence on a number (:class:`~fedsynth.models.evidence.PlacedEvidence`) may admit a part of a group. Any other
        evidence depends on the group alone. :class:`GivenGroups` says how rows are drawn, and what is approximate.
        """
        groups = self.groups.given(evidence)
        if groups is None:
            return None
        parts = {}
        for at, column in enumerate(self.columns):
            known = evidence.get(column)
            if isinstance(known, PlacedEvidence):
                begin, end = known.places
                begin = np.where(begin < _NARROW, 0.0, np.minimum(begin, 1 - _NARROW))
                end = np.where(end > 1 - _NARROW, 1.0, np.maximum(end, begin + _NARROW))
                some = (known.values > 0) & (end - begin < 1)
                if some.any():
                    parts[at] = np.array([np.where(some, begin, 0.0), np.where(some, end, 1.0)])
        found = GivenGroups(self, groups, parts)
        return found if found._bound > 0 else None

    @cached_property
    def _curves(self) -> list[Array]:
        """For each of the columns, places as a function of latent values, shape ``(groups, len(_KNOTS))``.

        Entry k of a group is the probability, given the group, of a latent value below the one that ends the share
        ``_KNOTS[k]`` of the group's standard normal mass. It is the average of the probabilities given all other
        latent values, over drawn rows. In these, the groups of this column are about as frequent as they are wide on
        the normal axis, since the average varies the more the wider they are; nothing changes within a group. The rows
        are always the same ones.
        """
        rng, found = np.random.default_rng(0), []
        for at, column in enumerate(self.columns):
            counts = self.groups.marginals([(column,)])[(column,)]
            width = np.clip(np.diff(np.clip(self._intervals[at], -3, 3), axis=0)[0], *_WIDTHS)
            wanted = width / np.maximum(counts, _RAREST * counts.sum())
            frequent = self.groups.given({column: CodeEvidence(wanted / wanted.max())})
            assert frequent is not None  # it has all rows of the model
            drawn = frequent.sample(_ROWS, rng)
            low, high = self._box(drawn)
            mean, deviation = _given_others(_within(low, high, self._precision, rng), self._precision, at)
            low, high = (low[at] - mean) / deviation, (high[at] - mean) / deviation
            points = _point(_KNOTS[:, None], *self._intervals[at])[:, drawn[column]]
            below = _share((points - mean) / deviation, low, high)
            rows = np.bincount(drawn[column], minlength=len(counts))
            sums = np.array([np.bincount(drawn[column], share, len(counts)) for share in below]).T
            curve = np.tile(_KNOTS, (len(counts), 1))  # the normal distribution itself, where there are no rows
            curve[rows > 0, 1:-1] = sums[rows > 0, 1:-1] / rows[rows > 0, None]
            found.append(curve)
        return found

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """What the model draws for each column: groups, and places in those of ``columns``."""
        placed = set(self.columns)
        return tuple(DrawnColumn(size, at in placed) for at, size in enumerate(self.groups.sizes))

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the model, to be saved, as JSON values and named arrays (see :meth:`from_arrays`)."""
        meta, arrays = self.groups.to_arrays()
        head = {"groups": meta, "columns": list(self.columns), "ordered": list(self.ordered)}
        return head, {"correlation": self.correlation, **arrays}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RankedGroups:
        """Restore the model, exactly, from both results of :meth:`to_arrays`.

        Raises :class:`FedsynthError` for anything else.
        """
        saved = read_head(meta, _Saved)
        groups = MarkovRandomField.from_arrays(saved.groups, arrays)
        check_positions(saved.columns, len(groups.sizes))
        if len(saved.ordered) != len(saved.columns):
            raise InvalidParameter("its lists of columns and of ordered groups have different lengths")
        for column, many in zip(saved.columns, saved.ordered, strict=True):
            if not 1 <= many <= groups.sizes[column] <= _MOST_PLACED:
                raise InvalidParameter(f"column {column} has {many} ordered groups of {groups.sizes[column]}")
        correlation = read_floats(arrays, "correlation", [len(saved.columns)] * 2)
        check_correlation(correlation)
        return cls(groups, saved.columns, saved.ordered, correlation)


@dataclass(frozen=True, eq=False)
class GivenGroups:
    """Draws the rows of ``model`` that meet conditions on columns, for :meth:`RankedGroups.given`.

    ``groups`` is the model's graphical model of groups, given the conditions. ``parts`` describes the conditions that
    admit only a part of some group: for the column at an index in ``model.columns``, an array of shape ``(2, groups)``
    with the places where the admitted part of each group begins and ends (0 and 1 for groups that are admitted whole or
    not at all).

    In the model, a row has the groups G with probability P(G), and then a latent vector Z, normal within the box B(G)
    of the groups' intervals. Its place within group g of column j is F(Z_j), where F is the distribution function of
    Z_j among all rows with that group: in a large sample, the share of the group's rows with smaller values tends to
    F(Z_j). B and F belong to the model, and conditions do not change them: if a condition on another column raises Z_j,
    it raises the place. A condition that admits places from a to b admits latent values from F^-1(a) to F^-1(b), and so
    narrows the box B(G) to a box C(G). The rows that meet all conditions have G and Z distributed as

        P(G) normal(z) / mass(B(G)),  z in C(G),  where mass is the normal probability of a box.

    The graphical model given the conditions draws G with probability proportional to P(G) times all b - a of ``parts``.
    The remaining factor is mass(C(G)) / mass(B(G)) over the product of all b - a: at the upper end of a group, high
    groups of correlated columns are more frequent. So Z is first drawn in B(G). Then each column of ``parts`` in turn
    is drawn again between its ends in C(G), given the other columns. The row's weight is the product, over these
    columns, of the probability (just before the column is drawn again) of a value between its ends, divided by its
    b - a. Given G, the expectation of the weight is the remaining factor, and rows kept in proportion to their weights
    are distributed as above (importance and rejection sampling). If the conditions admit whole groups only, all rows
    are kept.

    Two things are approximate beyond the model's own Gibbs sampling. F is interpolated in a table that is estimated
    from drawn rows. And if fewer than one row in 256 would be kept, the largest weights are cut: other columns then
    follow the conditions too little. This concerns the last values of a long tail, and parts of groups that hardly ever
    occur together.
    """

    model: RankedGroups
    groups: MarkovRandomField
    parts: Mapping[int, Array]

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Draw ``rows`` rows and return one array per column, shape ``(rows,)``, in the schema's order.

        The arrays are those of :meth:`RankedGroups.sample`, except where a condition admits only a part of a group:
        there the place is the share, in the model, of the part's rows below the value. Raises :class:`InvalidParameter`
        if fewer than one in 10,000 of at least 100,000 drawn rows is kept, for parts of groups that practically exclude
        each other.
        """

        def draw(many: int) -> tuple[Drawn, NDArray[np.bool_]]:
            columns, latent, weights = self._weighted(many, rng)
            return [*columns, latent.T], rng.random(many) * self._bound < weights

        drawn: list[NDArray[Any]]
        if self.parts:
            *drawn, points = keep(rows, draw, _LEAST)
            latent = points.T
        else:
            drawn = list(self.groups.sample(rows, rng))
            low, high = self.model._box(drawn)
            latent = _within(low, high, self.model._precision, rng)
        for at, column in enumerate(self.model.columns):
            drawn[column] = drawn[column] + self._places(at, drawn[column], latent[at])
        return drawn

    def _weighted(self, rows: int, rng: np.random.Generator) -> tuple[Drawn, Array, Array]:
        """Draw rows to choose from: return their groups, latent vectors in the narrowed boxes, and weights."""
        drawn, precision = self.groups.sample(rows, rng), self.model._precision
        (low, high), (begin, end) = self.model._box(drawn), self._narrowed(drawn)
        latent = _within(low, high, precision, rng)
        weights = np.ones(rows)
        for at, part in self.parts.items():
            mean, deviation = _given_others(latent, precision, at)
            of_group, of_part = (
                _log_mass((first[at] - mean) / deviation, (last[at] - mean) / deviation)
                for first, last in ((low, high), (begin, end))
            )
            expected = (part[1] - part[0])[drawn[self.model.columns[at]]]
            weights *= np.exp(of_part - of_group) / expected
            latent[at] = _truncated(mean, deviation, begin[at], end[at], rng)
        return drawn, latent, weights

    @cached_property
    def _bound(self) -> float:
        """The weight from which on every row is kept, others in proportion; 0 if no row has any.

        It is the largest of ``_ROWS`` rows, which are always the same, or a smaller one by ``_FEWEST``.
        """
        if not self.parts:
            return 1.0
        weights = self._weighted(_ROWS, np.random.default_rng(0))[-1]
        largest = float(weights.max())
        if weights.mean() >= _FEWEST * largest:
            return largest
        return max(float(np.quantile(weights, 1 - _FEWEST)), np.finfo(float).tiny)

    @cached_property
    def _ends(self) -> dict[int, Array]:
        """The ends of the ``parts`` on the normal axes: as latent values, shape ``(2, groups)``."""
        found = {}
        for at, part in self.parts.items():
            pairs = zip(part.T, self.model._curves[at], strict=True)
            below = np.array([np.interp(ends, curve, _KNOTS) for ends, curve in pairs]).T
            found[at] = np.array([_point(side, *self.model._intervals[at]) for side in below])
        return found

    def _narrowed(self, drawn: Drawn) -> Array:
        """Return the ends of what the conditions admit of the groups ``drawn``, shape ``(2, columns, rows)``."""
        found = self.model._box(drawn)
        for at, ends in self._ends.items():
            found[:, at] = ends[:, drawn[self.model.columns[at]]]
        return found

    def _places(self, at: int, groups: NDArray[Any], latent: Array) -> Array:
        """Return the places (0 to below 1) of latent values: in their groups, or in the admitted parts of these."""
        shares = _share(latent, *self.model._intervals[at][:, groups])
        knot = np.searchsorted(_KNOTS[1:-1], shares, side="right")
        curves = self.model._curves[at]
        before, after = curves[groups, knot], curves[groups, knot + 1]
        places = before + (shares - _KNOTS[knot]) / np.diff(_KNOTS)[knot] * (after - before)
        if at in self.parts:
            begin, end = self.parts[at][:, groups]
            places = (places - begin) / (end - begin)
        found: Array = np.clip(places, 0.0, _LAST)
        return found


def _within(low: Array, high: Array, precision: Array, rng: np.random.Generator) -> Array:
    """Draw normal vectors between bounds by Gibbs sampling; bounds and result have shape ``(columns, rows)``.

    ``precision`` is the inverse of the vectors' correlation matrix.
    """
    from scipy.special import ndtr, ndtri

    latent: Array = ndtri((ndtr(low) + ndtr(high)) / 2)
    for _ in range(SWEEPS):
        for at in range(len(latent)):
            latent[at] = _truncated(*_given_others(latent, precision, at), low[at], high[at], rng)
    return latent


def _given_others(latent: Array, precision: Array, at: int) -> tuple[Array, float]:
    """Return the mean, shape ``(rows,)``, and standard deviation of one column of normal vectors given the others."""
    return latent[at] - (precision[at] @ latent) / precision[at, at], precision[at, at] ** -0.5


def _truncated(mean: Array, deviation: float, low: Array, high: Array, rng: np.random.Generator) -> Array:
    """Draw one normal number between bounds for each row; all arrays have shape ``(rows,)``."""
    from scipy.special import ndtr, ndtri

    begin, end, flip = _lower_tail((low - mean) / deviation, (high - mean) / deviation)
    below = ndtr(begin)
    point = ndtri(below + rng.random(len(mean)) * (ndtr(end) - below))
    drawn = mean + deviation * np.where(flip, -point, point)
    return np.clip(np.clip(drawn, -_REACH, _REACH), low, high)


def _lower_tail(low: Array, high: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Mirror intervals in the upper tail to the lower one, where ndtr is more precise; return them and which ones."""
    flip = low > 0
    return np.where(flip, -high, low), np.where(flip, -low, high), flip


def _log_mass(low: Array, high: Array) -> Array:
    """Return the log probability that a standard normal number lies between two bounds; finite if they are equal."""
    from scipy.special import log_ndtr

    begin, end, _ = _lower_tail(low, high)
    upper = log_ndtr(end)
    return upper + np.log1p(-np.exp(np.minimum(log_ndtr(begin) - upper, -1e-15)))


def _share(point: Array, low: Array, high: Array) -> Array:
    """Return the share of the standard normal distribution's mass between bounds that lies below a point between them.

    It is one half where the mass is 0.
    """
    from scipy.special import ndtr

    begin, end, flip = _lower_tail(low, high)
    below = ndtr(begin)
    mass = ndtr(end) - below
    part = ndtr(np.where(flip, -point, point)) - below
    found: Array = np.divide(part, mass, out=np.full(part.shape, 0.5), where=mass > 0)
    return np.clip(np.where(flip, 1 - found, found), 0.0, 1.0)


def _point(share: Array, low: Array, high: Array) -> Array:
    """Return the point between bounds below which a share of the mass between them lies (inverse of :func:`_share`)."""
    from scipy.special import ndtr, ndtri

    begin, end, flip = _lower_tail(low, high)
    below = ndtr(begin)
    point = ndtri(below + np.where(flip, 1 - share, share) * (ndtr(end) - below))
    inside = np.clip(np.where(flip, -point, point), low, high)
    return np.where(share <= 0, low, np.where(share >= 1, high, inside))


def _places(groups: NDArray[Any], latent: Array, rng: np.random.Generator) -> Array:
    """Return a place (0 to below 1) for each row, evenly spread over each group, in the order of ``latent``."""
    order = np.lexsort((latent, groups))
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    places = np.empty(len(groups))
    held = groups[order]
    places[order] = (np.arange(len(groups)) - starts[held] + rng.random(len(groups))) / counts[held]
    return np.minimum(places, _LAST)
