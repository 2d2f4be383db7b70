"""The domain over which a method counts tables: the schema's own bins, or a survey's adaptive bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedsynth.cliques import Clique
from fedsynth.federation.query import Counts
from fedsynth.schema.bins import Axis
from fedsynth.schema.derive import forbidden_cells

if TYPE_CHECKING:
    from fedsynth.models.cells import Cells
    from fedsynth.models.estimate import Zeros
    from fedsynth.models.synthesizer import Model, Synthesizer
    from fedsynth.schema import Schema


@dataclass(frozen=True, eq=False)
class Domain:
    """An axis for each stored column of ``schema``: its own bins, or the groups of ``columns`` if there are any."""

    schema: Schema
    columns: tuple[Cells, ...] | None = None

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of contingency tables."""
        if self.columns is None:
            return tuple(Axis(column) for column in range(len(self.schema.stored)))
        return tuple(cells.axis(at) for at, cells in enumerate(self.columns))

    @cached_property
    def held(self) -> tuple[Cells, ...]:
        """The columns' groups; without a survey, the schema's own bins."""
        from fedsynth.models.cells import Cells

        return self.columns or tuple(Cells.of_bins(column) for column in self.schema.stored)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of groups of each column."""
        return self.schema.sizes if self.columns is None else tuple(cells.size for cells in self.columns)

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Shape of the table of the columns of ``clique``."""
        return tuple(self.sizes[column] for column in clique)

    def counts(self, cliques: Sequence[Clique], weights: Sequence[int] = ()) -> Counts:
        """Return the query for the tables of ``cliques``."""
        return Counts(self.axes, tuple(map(tuple, cliques)), tuple(weights))

    @cached_property
    def zeros(self) -> Zeros:
        """Cells that the schema's rules forbid, by clique."""
        return forbidden_cells(self.schema, self.columns)

    def synthesizer(self, model: Model, info: Mapping[str, Any]) -> Synthesizer:
        """Return the synthesizer of a model over these axes."""
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        return Synthesizer(self.schema, self.columns or own_bins(self.schema), model, info)
