"""Generators, an option of some methods: they turn noisy 1-way and 2-way tables into rows."""

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
    """Generates rows from noisy 1-way and 2-way tables over a domain's axes; every column must be measured."""

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return the synthesizer of ``total`` rows that the tables describe."""


@dataclass(frozen=True)
class GUM:
    """GUM, the gradual update method: makes tables consistent, then changes rows to match them in ``sweeps`` passes."""

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
    """Private-PGM: fits a graphical model to the tables; skips each table that would make the model too large."""

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
