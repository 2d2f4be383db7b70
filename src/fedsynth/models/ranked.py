"""A graphical model over groups of cells, in which a latent normal vector orders numbers within their groups.

Two correlated numbers are correlated within their groups as well, most of all in a last group that contains a tail.
The graphical model determines the groups of a row's numbers; their places within the groups follow a normal
distribution of known correlation, given the groups. The distribution of each number within its group is unchanged: the
latent vector only decides which row gets which of the values.
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

_FARTHEST = 1e-12  # smallest tail probability at which a group begins or ends
_REACH = 8.0  # bound of the normal axis
SWEEPS = 4  # of the Gibbs sampler, which starts at the groups' medians, close to its target


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
    def _ends(self) -> list[Array]:
        """For each of the columns, the boundaries of its ordered groups on the normal axis."""
        from scipy.special import ndtri

        found = []
        for column, many in zip(self.columns, self.ordered, strict=True):
            counts = np.maximum(self.groups.marginals([(column,)])[(column,)][:many], np.finfo(float).tiny)
            inner = np.clip(np.cumsum(counts)[:-1] / counts.sum(), _FARTHEST, 1 - _FARTHEST)
            found.append(np.concatenate([[-np.inf], ndtri(inner), [np.inf]]))
        return found

    def sample(self, rows: int, rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        """Draw ``rows`` rows and return one array per column, shape ``(rows,)``, in the schema's order.

        A column's array holds its groups as integers. For those of ``columns`` it holds group + place in float64, where
        the place within the group is from 0 to below 1.
        """
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
        """Return the model given ``evidence`` (conditions by column position); ``None`` if it has no such rows.

        The groups (bins) follow their conditional distribution exactly. Numbers' places within them are only
        approximate: the same correlation is applied to what the evidence leaves of each column, so a number restricted
        to a narrow interval depends more on the other numbers than it should. :class:`~fedsynth.models.evidence.Kept`
        is exact.
        """
        groups = self.groups.given(evidence)
        return None if groups is None else RankedGroups(groups, self.columns, self.ordered, self.correlation)

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the model, to be saved, as JSON values and named arrays (see :meth:`from_arrays`)."""
        meta, arrays = self.groups.to_arrays()
        head = {"groups": meta, "columns": list(self.columns), "ordered": list(self.ordered)}
        return head, {"correlation": self.correlation, **arrays}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RankedGroups:
        """Restore the model, exactly, from both results of :meth:`to_arrays`; a missing entry raises ``KeyError``."""
        groups = MarkovRandomField.from_arrays(meta["groups"], arrays)
        return cls(groups, tuple(meta["columns"]), tuple(meta["ordered"]), np.asarray(arrays["correlation"]))


def _within(low: Array, high: Array, correlation: Array, rng: np.random.Generator) -> Array:
    """Draw normal vectors between bounds by Gibbs sampling; all arrays have shape ``(columns, rows)``."""
    from scipy.special import ndtr, ndtri

    precision = np.linalg.inv(correlation)
    latent = ndtri((ndtr(low) + ndtr(high)) / 2)
    for _ in range(SWEEPS):
        for at in range(len(latent)):
            deviation = precision[at, at] ** -0.5
            mean = latent[at] - (precision[at] @ latent) / precision[at, at]
            begin, end = (low[at] - mean) / deviation, (high[at] - mean) / deviation
            flip = begin > 0  # an upper tail is mirrored to the lower one, where ndtr is more precise
            begin, end = np.where(flip, -end, begin), np.where(flip, -begin, end)
            below = ndtr(begin)
            point = ndtri(below + rng.random(len(mean)) * (ndtr(end) - below))
            drawn = mean + deviation * np.where(flip, -point, point)
            latent[at] = np.clip(np.clip(drawn, -_REACH, _REACH), low[at], high[at])
    return latent


def _places(groups: NDArray[Any], latent: Array, rng: np.random.Generator) -> Array:
    """Return a place (0 to below 1) for each row, evenly spread over each group, in the order of ``latent``."""
    order = np.lexsort((latent, groups))
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    places = np.empty(len(groups))
    held = groups[order]
    places[order] = (np.arange(len(groups)) - starts[held] + rng.random(len(groups))) / counts[held]
    return np.minimum(places, 1 - 2.0**-40)
