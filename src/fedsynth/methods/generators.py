"""Generators, an option of some methods: they turn noisy 1-way and 2-way tables into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedsynth.errors import positive, whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import fit_over, select_fitting, without_noise
from fedsynth.methods.registry import one_of

if TYPE_CHECKING:
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer


class RowGenerator(Protocol):
    """Last step of methods with an option ``generator``: turns noisy 1-way and 2-way tables into a source of rows."""

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer whose rows agree with the noisy tables ``measured``, without asking any site.

        The tables are over the bins of ``domain``, and contain every column's 1-way table; several of the same columns
        are averaged. ``total`` is the estimated number of records of all sites. ``info`` holds JSON values for the
        synthesizer's ``info``.
        """


@dataclass(frozen=True)
class GUM:
    """GUM, the gradual update method of PrivSyn: makes tables consistent, then changes random rows until they match.

    Drawn rows are changed in ``sweeps`` passes over all tables. Source: arXiv 2012.15128; the algorithm is in
    :mod:`fedsynth.models.gum`.
    """

    sweeps: int = 20

    def __post_init__(self) -> None:
        whole(sweeps=self.sweeps)

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer that makes rows from the consistent tables."""
        from fedsynth.models.gum import GradualRows, GradualUpdate, consistent

        tables = consistent(without_noise(domain, measured, total), total, zeros=domain.zeros)
        return domain.synthesizer(GradualRows(GradualUpdate(domain.sizes, tables, self.sweeps), total), info)


@dataclass(frozen=True)
class PGM:
    """Private-PGM (arXiv 1901.09136): fits a graphical model to the noisy tables, in at most ``iterations`` steps.

    A table with which the model would need more than ``max_megabytes`` (MiB, 8 bytes per cell) is skipped; tables are
    taken in the order given.
    """

    iterations: int = 500
    max_megabytes: float = 80.0

    def __post_init__(self) -> None:
        whole(iterations=self.iterations)
        positive(max_megabytes=self.max_megabytes)

    def generate(
        self, domain: Domain, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer that holds the graphical model."""
        kept = set(
            select_fitting(domain.sizes, [], [table.clique for table in measured], self.max_megabytes, domain.zeros)
        )
        held = [table for table in measured if table.clique in kept]
        return domain.synthesizer(fit_over(domain, held, total, self.iterations), info)


GENERATORS = one_of(gum=GUM, pgm=PGM)
"""Metadata of a method's field that holds a generator."""
