"""A graphical model over groups of cells, with the order of numbers within groups by a latent normal law.

Two numbers that correlate do so within their groups as well, most of all in a last group that holds a tail. Rows drawn
from the model say in which groups their numbers lie; their places within these follow a normal law of known
correlation, given the groups. Each group's own distribution stays: only which row has which of its values is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsynth.models.evidence import Evidence
from fedsynth.models.mrf import MarkovRandomField

Array = NDArray[np.float64]

_FARTHEST = 1e-12  # probability beyond which no group begins
_REACH = 8.0  # of the normal axis
SWEEPS = 4  # of the Gibbs sampler; it starts at the groups' means, close to what it draws from


@dataclass(frozen=True, eq=False)
class RankedGroups:
    """Rows of ``groups``, with places within the groups of some ``columns`` that follow their ``correlation``.

    ``ordered[i]`` of the groups of ``columns[i]`` are intervals of a number in ascending order; the others, such as
    missing values, have no places. ``correlation`` is that of the columns' normal scores, positive definite.
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
    def _ends(self) -> list[Array]:
        """Where each group of each of the columns begins on the normal axis, and where the last one ends."""
        from scipy.special import ndtri

        found = []
        for column, many in zip(self.columns, self.ordered, strict=True):
            counts = np.maximum(self.groups.marginals([(column,)])[(column,)][:many], np.finfo(float).tiny)
            inner = np.clip(np.cumsum(counts)[:-1] / counts.sum(), _FARTHEST, 1 - _FARTHEST)
            found.append(np.concatenate([[-np.inf], ndtri(inner), [np.inf]]))
        return found

    def sample(self, rows: int, rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        """Return rows by axis: groups, and for the columns their group plus the place within it, from 0 to below 1."""
        drawn: list[NDArray[Any]] = list(self.groups.sample(rows, rng))
        low, high = np.full((2, len(self.columns), rows), np.inf)
        low *= -1
        for at, (column, many) in enumerate(zip(self.columns, self.ordered, strict=True)):
            held = drawn[column] < many
            low[at, held], high[at, held] = (self._ends[at][drawn[column][held] + step] for step in (0, 1))
        latent = _within(low, high, self.correlation, rng)
        for at, column in enumerate(self.columns):
            drawn[column] = drawn[column] + _places(drawn[column], latent[at], rng)
        return drawn

    def given(self, evidence: Mapping[int, Evidence]) -> RankedGroups | None:
        """Return the model of rows with this evidence; ``None`` if it has no such rows."""
        groups = self.groups.given(evidence)
        return None if groups is None else RankedGroups(groups, self.columns, self.ordered, self.correlation)

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the model as JSON values and named arrays."""
        meta, arrays = self.groups.to_arrays()
        head = {"groups": meta, "columns": list(self.columns), "ordered": list(self.ordered)}
        return head, {"correlation": self.correlation, **arrays}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RankedGroups:
        """Return the model that :meth:`to_arrays` described, to the last bit."""
        groups = MarkovRandomField.from_arrays(meta["groups"], arrays)
        return cls(groups, tuple(meta["columns"]), tuple(meta["ordered"]), np.asarray(arrays["correlation"]))


def _within(low: Array, high: Array, correlation: Array, rng: np.random.Generator) -> Array:
    """Return normal vectors between bounds, all of shape ``(columns, rows)``, by Gibbs sampling."""
    from scipy.special import ndtr, ndtri

    precision = np.linalg.inv(correlation)
    latent = ndtri((ndtr(low) + ndtr(high)) / 2)
    for _ in range(SWEEPS):
        for at in range(len(latent)):
            deviation = precision[at, at] ** -0.5
            mean = latent[at] - (precision[at] @ latent) / precision[at, at]
            begin, end = (low[at] - mean) / deviation, (high[at] - mean) / deviation
            flip = begin > 0  # of an upper tail, the lower one is told more precisely
            begin, end = np.where(flip, -end, begin), np.where(flip, -begin, end)
            below = ndtr(begin)
            point = ndtri(below + rng.random(len(mean)) * (ndtr(end) - below))
            drawn = mean + deviation * np.where(flip, -point, point)
            latent[at] = np.clip(np.clip(drawn, -_REACH, _REACH), low[at], high[at])
    return latent


def _places(groups: NDArray[Any], latent: Array, rng: np.random.Generator) -> Array:
    """Return for each row a place (0 to below 1), evenly over each group, in the order of ``latent``."""
    order = np.lexsort((latent, groups))
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    places = np.empty(len(groups))
    held = groups[order]
    places[order] = (np.arange(len(groups)) - starts[held] + rng.random(len(groups))) / counts[held]
    return np.minimum(places, 1 - 2.0**-40)
