"""A sum that nobody may read, but that can be selected from, and opened in part with noise.

Central methods are written against a vault: with a trusted server it is an array in that server's memory;
other trusts may hold it as secret shares.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import BudgetExceeded, Unsupported
from fedsynth.federation.task import marginals_sensitivity
from fedsynth.federation.trust import add_noise, noise_std
from fedsynth.privacy.ledger import Entry
from fedsynth.privacy.noise import RandomBits, exponential_mechanism
from fedsynth.privacy.release import Exponential, Gaussian, Release, Sensitivity
from fedsynth.schema import Schema

Clique = tuple[int, ...]
_GRAIN = 1024  # parts of a record that scores are rounded to


@dataclass(frozen=True, eq=False)
class WeightedL1:
    """Score ``weight * (|| counts - expected ||_1 - penalty)`` of each candidate, in records.

    One record moves a table of counts by 1 in L1, hence a score by at most the largest weight.
    ``expected[i]`` has the shape of candidate ``i``'s table.
    """

    candidates: tuple[Clique, ...]
    expected: tuple[NDArray[np.float64], ...]
    weights: NDArray[np.float64]
    penalties: NDArray[np.float64]

    @property
    def sensitivity(self) -> float:
        """The largest weight."""
        return float(self.weights.max())

    def utilities(self, marginal: Callable[[Clique], NDArray[np.int64]]) -> NDArray[np.float64]:
        """Return the score of each candidate, given its exact table."""
        distances = [np.abs(marginal(c) - e).sum() for c, e in zip(self.candidates, self.expected, strict=True)]
        return self.weights * (np.array(distances) - self.penalties)


@dataclass
class Vault:
    """The exact contingency tables of ``cliques``, pooled over sites, and ``rho`` to spend on them.

    Every select, scores and open is charged against ``rho``, which the sites paid when they deposited.
    """

    schema: Schema
    tables: dict[Clique, NDArray[np.int64]]
    rho: float
    bits: Callable[[str], RandomBits]
    note: Callable[[Entry], None]
    sites: tuple[str, ...]
    step: int
    spent: float = 0.0
    _derived: dict[Clique, NDArray[np.int64]] = field(default_factory=dict)

    def select(self, score: WeightedL1, release: Exponential) -> int:
        """Return the index of one candidate, drawn by the exponential mechanism."""
        self._charge("select", release, len(score.candidates))
        utilities = score.utilities(self._marginal)
        content = hashlib.sha256(utilities.tobytes()).hexdigest()
        bits = self.bits(f"select {score.candidates} {release} {self.spent!r} {content}")
        return exponential_mechanism(utilities, score.sensitivity, release.epsilon, bits)

    def scores(self, score: WeightedL1, release: Gaussian) -> tuple[NDArray[np.float64], float]:
        """Return every candidate's score with noise, and the noise's standard deviation; ``release`` pays for all.

        Scores are rounded to multiples of 2^-10 before exact integer noise hides them: rounding can move two
        neighbouring scores apart by one multiple more than the declared sensitivity.
        """
        exact = np.rint(score.utilities(self._marginal) * _GRAIN).astype(np.int64)
        self._charge("scores", release, exact.size)
        moved = math.ceil(score.sensitivity * _GRAIN) + 1
        sensitivity = Sensitivity(l1=float(moved * exact.size), l2=moved * math.sqrt(exact.size))
        content = hashlib.sha256(exact.tobytes()).hexdigest()
        bits = self.bits(f"scores {score.candidates} {release} {self.spent!r} {content}")
        return add_noise(exact, release, sensitivity, bits) / _GRAIN, noise_std(release, sensitivity) / _GRAIN

    def open(self, cliques: Sequence[Clique], release: Gaussian) -> list[NDArray[np.int64]]:
        """Return noisy tables of ``cliques``; ``release`` pays for all of them together."""
        exact = np.concatenate([self._marginal(clique).ravel() for clique in cliques])
        self._charge("open", release, exact.size)
        content = hashlib.sha256(exact.tobytes()).hexdigest()
        bits = self.bits(f"open {tuple(cliques)} {release} {self.spent!r} {content}")
        noisy = add_noise(exact, release, marginals_sensitivity(self.schema, cliques), bits)
        shapes = [self.schema.shape(clique) for clique in cliques]
        ends = np.cumsum([np.prod(shape) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(noisy, ends[:-1]), shapes, strict=True)]

    def std(self, cliques: Sequence[Clique], release: Gaussian) -> float:
        """Return the noise's standard deviation in each cell of what :meth:`open` returns."""
        return noise_std(release, marginals_sensitivity(self.schema, cliques))

    def _marginal(self, clique: Clique) -> NDArray[np.int64]:
        """Return the exact table of a deposited clique, or of a subset of one."""
        if clique in self.tables:
            return self.tables[clique]
        if clique not in self._derived:
            source = next((held for held in self.tables if set(clique) <= set(held)), None)
            if source is None:
                raise Unsupported(f"columns {clique} were not deposited together; deposit a clique that contains them")
            axes = tuple(axis for axis, column in enumerate(source) if column not in clique)
            self._derived[clique] = self.tables[source].sum(axis=axes)
        return self._derived[clique]

    def _charge(self, verb: str, release: Release, cells: int) -> None:
        if self.spent + release.rho > self.rho * (1 + 1e-9):
            raise BudgetExceeded(
                f"the vault has released rho={self.spent:.6g} of {self.rho:.6g} and this costs {release.rho:.6g} more; "
                "deposit with a larger rho"
            )
        self.spent += release.rho
        self.note(Entry(self.step, verb, "vault", release, self.sites, cells, "paid for by the deposit"))
