"""What is known of a row before it is drawn, as a model's axes say it, and rows drawn and kept where nothing is faster.

A condition on a column's values becomes evidence on the model's axis: the probability that the condition holds, given
what the model draws there. A model takes evidence in its own way (a factor of a graphical model, an interval of a
normal latent); any model can draw rows and keep each with that probability.
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

IMPOSSIBLE = -600.0  # log probability below which a model has no such rows; what it rules out lies about -1000
LEAST = -1e3  # stands for the logarithm of zero, which potentials must not hold
RAREST = 1e-4  # share of drawn rows that must be kept
_ENOUGH = 100_000  # rows that are drawn before the share is judged
_BATCH = 1 << 14
_LARGEST = 1 << 18


class Evidence(Protocol):
    """What is known of one column, on the model's axis."""

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the probability (0 to 1) that the condition holds, given each of what the model drew."""


class Sampler(Protocol):
    """What draws rows on axes: a model, or a model given evidence."""

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Return rows by axis: codes, shape ``(rows,)``, or points of latent axes, shape ``(rows, latents)``."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Evidence on codes: ``values[i]`` is the probability of the condition given code i."""

    values: Array

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the values of these codes."""
        found: Array = self.values[codes]
        return found


@dataclass(frozen=True, eq=False)
class Placed(Weights):
    """Evidence on groups of cells, and on places within them (a group plus a place from 0 to below 1).

    Cell i, in the order of places, ends at ``ends[i]``; of it the condition holds from ``begin[i]`` to ``end[i]`` (0 to
    1). Among rows that meet the condition it ends at ``after[i]``.
    """

    ends: Array
    begin: Array
    end: Array
    after: Array

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return the values of groups; of places 1 where the condition holds and 0 elsewhere."""
        if codes.dtype != np.float64:
            return super().likelihood(codes)
        cell, share = self._cells(codes)
        begin, end = self.begin[cell], self.end[cell]
        return ((begin < end) & (begin <= share) & (share <= end)).astype(np.float64)

    def moved(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return the places, among rows that meet the condition, of the values at these places; groups as they are."""
        if codes.dtype != np.float64:
            return codes
        cell, share = self._cells(codes)
        before = np.maximum(np.where(cell > 0, self.after[cell - 1], 0.0), np.floor(codes))
        within = np.clip((share - self.begin[cell]) / (self.end[cell] - self.begin[cell]), 0, 1)
        last = np.nextafter(self.after[cell], -np.inf)
        found: NDArray[Any] = np.clip(before + within * (self.after[cell] - before), before, last)
        return found

    def _cells(self, codes: Array) -> tuple[NDArray[np.int64], Array]:
        """Return the cell of each place, and how far into it (0 to 1) the place lies."""
        cell = np.searchsorted(self.ends, codes, side="right")
        before = np.where(cell > 0, self.ends[cell - 1], 0.0)
        return cell, (codes - before) / (self.ends[cell] - before)


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows of a ``model``, each kept with the likelihood of the ``evidence``: exact, slow where they are rare."""

    model: Sampler
    evidence: Mapping[int, Evidence]

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Return rows; raises :class:`InvalidParameter` where fewer than one in 10,000 is kept."""

        def draw(many: int) -> tuple[Drawn, NDArray[np.bool_]]:
            drawn = self.model.sample(many, rng)
            likelihood = np.prod([one.likelihood(drawn[at]) for at, one in self.evidence.items()], axis=0)
            return drawn, rng.random(many) < likelihood

        found = keep(rows, draw, _BATCH)
        for at, one in self.evidence.items():
            if isinstance(one, Placed):
                found[at] = one.moved(found[at])
        return found


def keep(rows: int, draw: Callable[[int], tuple[Drawn, NDArray[np.bool_]]], least: int = 1) -> list[NDArray[Any]]:
    """Return the first ``rows`` of those that ``draw(many)`` says to keep, drawn as often as it takes.

    At least ``least`` rows are drawn at once.

    Raises :class:`InvalidParameter` where fewer than one row in 10,000 is kept.
    """
    parts: list[list[NDArray[Any]]] = []
    held = drawn = 0
    while held < rows:
        share = max(held, 1) / drawn if drawn else 1.1
        many = int(np.clip(math.ceil(1.1 * (rows - held) / share), least, _LARGEST))
        found, kept = draw(many)
        parts.append([one[kept] for one in found])
        held, drawn = held + int(np.count_nonzero(kept)), drawn + many
        if drawn >= _ENOUGH and held < RAREST * drawn and held < rows:
            raise InvalidParameter(
                f"{held} of {drawn} drawn rows meet the conditions, fewer than one in 10,000: drop a condition, widen "
                "an interval, or use a method whose rows come from a graphical model, which draws such rows directly"
            )
    return [np.concatenate(columns)[:rows] for columns in zip(*parts, strict=True)]
