"""Generators that methods are given: how noisy 1-way and 2-way tables become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fedsynth.methods.measure import fit_noisy, fitting
from fedsynth.methods.registry import one_of
from fedsynth.schema.derive import forbidden_cells

if TYPE_CHECKING:
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.schema import Schema


class Generator(Protocol):
    """Makes rows of noisy 1-way and 2-way tables."""

    def generate(
        self, schema: Schema, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return the synthesizer of ``total`` rows that the tables describe."""


@dataclass(frozen=True)
class GUM:
    """Tables made consistent, then rows moved until they match, ``sweeps`` times over all tables."""

    sweeps: int = 20

    def generate(
        self, schema: Schema, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer that holds the consistent tables."""
        from fedsynth.models.gum import GradualRows, GradualUpdate, consistent
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        tables = consistent(measured, total, zeros=forbidden_cells(schema))
        model = GradualRows(GradualUpdate(schema.sizes, tables, self.sweeps), total)
        return Synthesizer(schema, own_bins(schema), model, info)


@dataclass(frozen=True)
class PGM:
    """A graphical model fitted to the tables; of those that would make it too large, the earlier ones stay."""

    iterations: int = 500
    max_megabytes: float = 80.0

    def generate(
        self, schema: Schema, measured: Sequence[Measurement], total: float, info: Mapping[str, Any]
    ) -> Synthesizer:
        """Return a synthesizer that holds the fitted model."""
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        zeros = forbidden_cells(schema)
        kept = set(fitting(schema.sizes, [], [table.clique for table in measured], self.max_megabytes, zeros))
        held = [table for table in measured if table.clique in kept]
        model = fit_noisy(schema.sizes, held, total, self.iterations, zeros=zeros)
        return Synthesizer(schema, own_bins(schema), model, info)


GENERATORS = one_of(gum=GUM, pgm=PGM)
"""Metadata of a method's field that holds a generator."""
