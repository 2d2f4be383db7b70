"""Evidence on single columns, in terms of a model's axes, and rejection sampling for models that have nothing faster.

A condition on a column's values becomes evidence on the model's axis: the probability that the condition holds, given
the code that the model draws. Models may use evidence in their own way (a factor of a graphical model, an interval of a
normal latent). Any model can be conditioned by rejection sampling: draw rows and keep each with that probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """Evidence on one column, on the model's axis."""

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the probability (0 to 1) that the condition holds, for each drawn code."""


class Sampler(Protocol):
    """A sampler of rows on axes: a model, or a model given evidence."""

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Return rows by axis: codes, shape ``(rows,)``, or points on latent axes, shape ``(rows, latents)``."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Evidence on codes: ``values[i]`` is the probability of the condition given code i."""

    values: Array

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the values of these codes; an entry group + place has the value of its group."""
        found: Array = self.values[codes.astype(np.int64, copy=False)]
        return found


@dataclass(frozen=True, eq=False)
class Placed(Weights):
    """Evidence on groups of cells and on places within them (an entry group + place, 0 <= place < 1).

    Cell i, in the order of places, ends at ``ends[i]``. The condition holds on its part from ``begin[i]`` to ``end[i]``
    (0 to 1). Among the rows that meet the condition, the cell ends at ``after[i]``.
    """

    ends: Array
    begin: Array
    end: Array
    after: Array

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the values of groups; for places, 1 where the condition holds and 0 elsewhere."""
        if codes.dtype != np.float64:
            return super().likelihood(codes)
        cell, share = self._cells(codes)
        inside = (share >= self.begin[cell]) & (share <= self.end[cell]) & (self.end[cell] > self.begin[cell])
        return inside.astype(np.float64)

    def moved(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Convert places to the same values' places among the rows that meet the condition; keep plain groups."""
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
class Kept:
    """Rejection sampling: rows of a ``model``, each kept with the likelihood of the ``evidence``.

    The distribution is exact; sampling is slow if such rows are rare.
    """

    model: Sampler
    evidence: Mapping[int, Evidence]

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Return rows; raises :class:`InvalidParameter` if fewer than one in 10,000 is kept."""

        def draw(many: int) -> tuple[Drawn, NDArray[np.bool_]]:
            drawn = self.model.sample(many, rng)
            likelihood = np.prod([known.likelihood(drawn[at]) for at, known in self.evidence.items()], axis=0)
            return drawn, rng.random(many) < likelihood

        found = keep(rows, draw, _BATCH)
        for at, known in self.evidence.items():
            if isinstance(known, Placed):
                found[at] = known.moved(found[at])
        return found


def keep(rows: int, draw: Callable[[int], tuple[Drawn, NDArray[np.bool_]]], least: int = 1) -> list[NDArray[Any]]:
    """Return the first ``rows`` kept rows; ``draw(many)`` returns drawn rows and a mask of those to keep.

    ``draw`` is called as often as necessary, for at least ``least`` rows at a time.

    Raises :class:`InvalidParameter` if fewer than one row in 10,000 is kept.
    """
    parts: list[list[NDArray[Any]]] = []
    held = drawn = 0
    while held < rows:
        share = max(held, 1) / drawn if drawn else 1.1
        many = int(np.clip(math.ceil(1.1 * (rows - held) / share), least, _LARGEST))
        found, kept = draw(many)
        parts.append([column[kept] for column in found])
        held, drawn = held + int(np.count_nonzero(kept)), drawn + many
        if drawn >= _ENOUGH and held < RAREST * drawn and held < rows:
            raise InvalidParameter(
                f"only {held} of {drawn} drawn rows meet the conditions, fewer than one in 10,000: drop a condition, "
                "widen an interval, or use a method with a graphical model, which draws such rows directly"
            )
    return [np.concatenate(columns)[:rows] for columns in zip(*parts, strict=True)]
