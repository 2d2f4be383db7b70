"""The domain over which a method counts tables: the schema's own bins, or a survey's adaptive bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedsynth.cliques import Clique
from fedsynth.federation.query import Counts
from fedsynth.schema.bins import Axis

if TYPE_CHECKING:
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.estimate import Zeros
    from fedsynth.models.synthesizer import Model, Synthesizer
    from fedsynth.schema import Schema


@dataclass(frozen=True, eq=False)
class Domain:
    """The bins over which a method counts tables: the schema's own bins, or the adaptive bins that a survey found.

    ``columns`` is the result of a survey (:mod:`fedsynth.methods.survey`): each stored column's values merged into
    groups. A table has one entry per group along the column's axis. ``None`` stands for the schema's bins. Stored
    columns (``schema.stored``) are those that are counted and modelled: all but identifiers and columns computed from
    others, where a column may be stored as its difference from, or ratio to, another one. Column positions are places
    among them, from 0.
    """

    schema: Schema
    columns: tuple[AdaptiveBins, ...] | None = None

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axis of each stored column in contingency tables."""
        if self.columns is None:
            return tuple(Axis(column) for column in range(len(self.schema.stored)))
        return tuple(cells.axis(at) for at, cells in enumerate(self.columns))

    @cached_property
    def held(self) -> tuple[AdaptiveBins, ...]:
        """The groups of each stored column; without a survey, each bin or value of the schema is a group of its own."""
        from fedsynth.models.adaptive_bins import AdaptiveBins

        return self.columns or tuple(AdaptiveBins.of_bins(column) for column in self.schema.stored)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of groups of each stored column: the length of its axis in a table."""
        return self.schema.sizes if self.columns is None else tuple(cells.size for cells in self.columns)

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of the table of ``clique``."""
        return tuple(self.sizes[column] for column in clique)

    def counts(self, cliques: Sequence[Clique], weights: Sequence[int] = ()) -> Counts:
        """Return the query for the tables of ``cliques`` over these bins; ``weights`` as in :class:`.Counts`."""
        return Counts(self.axes, tuple(map(tuple, cliques)), tuple(weights))

    @cached_property
    def zeros(self) -> Zeros:
        """Table cells in which no row can lie by the schema's rules: for each clique, a boolean mask of its table."""
        return self.schema.forbidden_cells(self.columns)

    def synthesizer(self, model: Model, info: Mapping[str, Any]) -> Synthesizer:
        """Return the synthesizer of a ``model`` of this domain's group numbers, with ``info`` (JSON values)."""
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        return Synthesizer(self.schema, self.columns or own_bins(self.schema), model, info)
