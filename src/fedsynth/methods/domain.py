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
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.estimate import Zeros
    from fedsynth.models.synthesizer import Model, Synthesizer
    from fedsynth.schema import Schema


@dataclass(frozen=True, eq=False)
class Domain:
    """The bins over which a method counts tables: the schema's own bins, or the adaptive bins that a survey found.

    A survey is a first round of noisy counts of single columns (:mod:`fedsynth.methods.survey`). ``columns`` is its
    result, with the values of each stored column merged into groups
    (:class:`~fedsynth.models.adaptive_bins.AdaptiveBins`): a table has one entry per group along the column's axis.
    Without a survey ``columns`` is ``None``. Stored columns (``schema.stored``) are those that are counted and
    modelled: all but identifiers and columns computed from others, and a column may be stored as its difference from,
    or ratio to, another one. Column positions are places among them, from 0.
    """

    schema: Schema
    columns: tuple[AdaptiveBins, ...] | None = None

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """One axis of contingency tables (:class:`~fedsynth.schema.bins.Axis`) for each stored column, in order."""
        if self.columns is None:
            return tuple(Axis(column) for column in range(len(self.schema.stored)))
        return tuple(cells.axis(at) for at, cells in enumerate(self.columns))

    @cached_property
    def held(self) -> tuple[AdaptiveBins, ...]:
        """Each stored column's values merged into groups, in the order of columns.

        Without a survey, each bin or value of the schema is a group of its own.
        """
        from fedsynth.models.adaptive_bins import AdaptiveBins

        return self.columns or tuple(AdaptiveBins.of_bins(column) for column in self.schema.stored)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of groups of each stored column, in order: the length of its axis in a table."""
        return self.schema.sizes if self.columns is None else tuple(cells.size for cells in self.columns)

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of the table of the columns at the positions ``clique``, in their order."""
        return tuple(self.sizes[column] for column in clique)

    def counts(self, cliques: Sequence[Clique], weights: Sequence[int] = ()) -> Counts:
        """Return the query for contingency tables over these bins, one for each of ``cliques`` (column positions).

        ``weights[i]``, an integer from 1 to 64, divides the noise of table i by that factor relative to a table of
        weight 1 (see :class:`~fedsynth.federation.query.Counts`); by default all tables have the same noise.
        """
        return Counts(self.axes, tuple(map(tuple, cliques)), tuple(weights))

    @cached_property
    def zeros(self) -> Zeros:
        """Table cells in which no row can lie by the schema's rules: for each clique (column positions), a mask.

        A mask is a boolean array of the shape of the clique's table, true in these cells. Fits such as
        :func:`~fedsynth.methods.measure.fit_noisy` take the whole mapping as ``zeros``.
        """
        return forbidden_cells(self.schema, self.columns)

    def synthesizer(self, model: Model, info: Mapping[str, Any]) -> Synthesizer:
        """Return the synthesizer that draws rows from ``model`` and converts group numbers to values of columns.

        ``model`` draws, for every column, the number of a group of this domain. ``info`` holds JSON values about the
        fit, such as the method's name; it is saved with the synthesizer.
        """
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        return Synthesizer(self.schema, self.columns or own_bins(self.schema), model, info)
