"""Generators that methods are given: how noisy 1-way and 2-way tables become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import fit_over, fitting, without_noise
from fedsynth.methods.registry import one_of

if TYPE_CHECKING:
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer


class Generator(Protocol):
    """Makes rows of noisy 1-way and 2-way tables over the axes of a domain, in which every column is measured."""

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return the synthesizer of ``total`` rows that the tables describe."""


@dataclass(frozen=True)
class GUM:
    """Tables made consistent, then rows moved until they match, ``sweeps`` times over all tables."""

    sweeps: int = 20

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer that holds the consistent tables."""
        from fedsynth.models.gum import GradualRows, GradualUpdate, consistent

        tables = consistent(without_noise(domain, measured, total), total, zeros=domain.zeros)
        return domain.synthesizer(GradualRows(GradualUpdate(domain.sizes, tables, self.sweeps), total), info)


@dataclass(frozen=True)
class PGM:
    """A graphical model fitted to the tables; of those that would make it too large, the earlier ones stay."""

    iterations: int = 500
    max_megabytes: float = 80.0

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer that holds the fitted model."""
        kept = set(fitting(domain.sizes, [], [table.clique for table in measured], self.max_megabytes, domain.zeros))
        held = [table for table in measured if table.clique in kept]
        return domain.synthesizer(fit_over(domain, held, total, self.iterations), info)


GENERATORS = one_of(gum=GUM, pgm=PGM)
"""Metadata of a method's field that holds a generator."""
