"""Evidence, which states conditions on columns in a model's codes, and rejection sampling, which any model can use.

A column's axis converts the codes that a model draws to values. It turns a condition on the values into evidence: the
probability that the condition holds, given the code. Models may use evidence in their own way (a factor of a graphical
model, an interval of a normal latent). Any model can be conditioned by rejection sampling: draw rows and keep each with
that probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter

Array = NDArray[np.float64]
Drawn = Sequence[NDArray[Any]]

IMPOSSIBLE = -600.0  # log probability below which evidence counts as impossible; excluded cells contribute about -1000
LEAST = -1e3  # replaces the logarithm of zero, since potentials must be finite
RAREST = 1e-4  # smallest acceptable share of kept rows
_ENOUGH = 100_000  # rows drawn before that share is checked
_BATCH = 1 << 14  # fewest rows that a model draws at a time
_LARGEST = 1 << 18  # most rows drawn at a time


class Evidence(Protocol):
    """A condition on one column's values, expressed in the codes that a model draws for that column.

    The column's axis makes it (:meth:`fedsynth.models.synthesizer.ModelAxis.given`), and the model uses it to draw only
    rows that meet the condition (:meth:`fedsynth.models.synthesizer.Model.given`).
    """

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return, for each drawn code, the probability (0 to 1) that the row meets the condition, shape ``(rows,)``.

        ``codes`` is what the model drew for this column (:class:`~fedsynth.models.saved.DrawnColumn`).
        """


class Sampler(Protocol):
    """Whatever draws rows as codes: a model, or a model given evidence."""

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Draw ``rows`` rows: an array per column, row by row (:class:`~fedsynth.models.saved.DrawnColumn`)."""


@dataclass(frozen=True, eq=False)
class CodeEvidence:
    """Evidence on a column of integer codes: ``values[i]`` is the probability that code i meets the condition."""

    values: Array

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the condition's probability for each of ``codes``; group + place has that of its group."""
        found: Array = self.values[codes.astype(np.int64, copy=False)]
        return found


@dataclass(frozen=True, eq=False)
class PlacedEvidence(CodeEvidence):
    """Evidence on a numeric column that a model draws as a group of cells, with or without a place in the group.

    A group is a set of intervals (cells, :class:`~fedsynth.models.adaptive_bins.AdaptiveBins`) that share one code. A
    model may draw the group's number i as an integer, or i + place in float64: the place, from 0 to below 1, is the
    share of the group's rows below the value. ``values[i]`` is the probability of the condition given group i. The
    other arrays have one entry per cell, shape ``(cells,)``, in ascending order of group + place: cell c ends at
    ``ends[c]``, and the condition holds from the fraction ``begin[c]`` to the fraction ``end[c]`` (0 to 1) of the cell.
    ``after[c]`` is the cell's end, again as group + place, if only the rows that meet the condition are counted.
    """

    ends: Array
    begin: Array
    end: Array
    after: Array

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the condition's probability for each of ``codes``: exactly 0 or 1 for places."""
        if codes.dtype != np.float64:
            return super().likelihood(codes)
        cell, share = self._cells(codes)
        inside = (share >= self.begin[cell]) & (share <= self.end[cell]) & (self.end[cell] > self.begin[cell])
        return inside.astype(np.float64)

    @cached_property
    def places(self) -> tuple[Array, Array]:
        """The least and the greatest place in each group that meet the condition, both of shape ``(groups,)``.

        All places between them meet it too, since a condition admits one interval of values and a group's cells are in
        ascending order. Both are 0 if no row of the group meets it.
        """
        before = np.append(0.0, self.ends[:-1])
        width = self.ends - before
        possible = np.flatnonzero((self.end > self.begin) & (width > 0))
        group = np.floor(before[possible]).astype(np.int64)
        least, greatest = np.full(len(self.values), np.inf), np.zeros(len(self.values))
        np.minimum.at(least, group, (before + self.begin * width)[possible] - group)
        np.maximum.at(greatest, group, (before + self.end * width)[possible] - group)
        return np.where(np.isinf(least), 0.0, least), greatest

    def moved(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Convert places among all rows of a group to places among only its rows that meet the condition.

        This is needed after rejection sampling, because the axis given the condition counts only these rows. All
        ``codes`` must meet the condition; integer ones are groups and are returned unchanged.
        """
        if codes.dtype != np.float64:
            return codes
        cell, share = self._cells(codes)
        before = np.maximum(np.where(cell > 0, self.after[cell - 1], 0.0), np.floor(codes))
        within = np.clip((share - self.begin[cell]) / (self.end[cell] - self.begin[cell]), 0, 1)
        last = np.nextafter(self.after[cell], -np.inf)
        found: NDArray[Any] = np.clip(before + within * (self.after[cell] - before), before, last)
        return found

    def _cells(self, codes: Array) -> tuple[NDArray[np.int64], Array]:
        """Return the cell of each place, and the place's relative position (0 to 1) within the cell."""
        cell = np.searchsorted(self.ends, codes, side="right")
        before = np.where(cell > 0, self.ends[cell - 1], 0.0)
        return cell, (codes - before) / (self.ends[cell] - before)


@dataclass(frozen=True, eq=False)
class RejectionSampler:
    """Rejection sampling: draws rows from ``model`` and keeps each with the probability that it meets the ``evidence``.

    The rows follow the model's conditional distribution exactly; sampling is slow if few rows meet the conditions.
    """

    model: Sampler
    evidence: Mapping[int, Evidence]

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Draw until ``rows`` rows are kept; raises :class:`InvalidParameter` as :func:`keep` does."""

        def draw(many: int) -> tuple[Drawn, NDArray[np.bool_]]:
            drawn = self.model.sample(many, rng)
            likelihood = np.prod([known.likelihood(drawn[at]) for at, known in self.evidence.items()], axis=0)
            return drawn, rng.random(many) < likelihood

        columns = keep(rows, draw, _BATCH)
        for at, known in self.evidence.items():
            if isinstance(known, PlacedEvidence):
                columns[at] = known.moved(columns[at])
        return columns


def keep(rows: int, draw: Callable[[int], tuple[Drawn, NDArray[np.bool_]]], least: int = 1) -> list[NDArray[Any]]:
    """Draw rows until ``rows`` of them are kept, for rejection sampling; return one array per column, cut to ``rows``.

    ``draw(many)`` draws ``many`` rows and returns their columns and a mask of the rows to keep. It is called for
    ``least`` to 2^18 rows at a time, more the fewer were kept before. Raises :class:`InvalidParameter` if fewer than
    one in 10,000 of at least 100,000 drawn rows is kept.
    """
    parts: list[list[NDArray[Any]]] = []
    many_kept = drawn = 0
    while many_kept < rows:
        share = max(many_kept, 1) / drawn if drawn else 1.1
        many = int(np.clip(math.ceil(1.1 * (rows - many_kept) / share), least, _LARGEST))
        columns_drawn, kept = draw(many)
        parts.append([column[kept] for column in columns_drawn])
        many_kept, drawn = many_kept + int(np.count_nonzero(kept)), drawn + many
        if drawn >= _ENOUGH and many_kept < RAREST * drawn and many_kept < rows:
            raise InvalidParameter(
                f"only {many_kept} of {drawn} drawn rows meet the conditions, fewer than one in 10,000: drop a "
                "condition, widen an interval, or use a method with a graphical model, which draws such rows directly"
            )
    return [np.concatenate(columns)[:rows] for columns in zip(*parts, strict=True)]
