"""Interactions: what a table of several columns adds to their margins, released with less noise than the whole table.

A table of counts moves by 1 if a row is added. Once the distributions of its columns are known, only the part of the
table without margins is of interest, and a row adds less to it: for two columns of k and l groups, a vector of squared
length (1 - 1/k) (1 - 1/l). Released in an orthonormal basis of this part, the same privacy cost buys less noise, down
to a quarter of the variance for halved columns. These are the residuals of ResidualPlanner (Xiao et al., arXiv
2305.08175), for one noise in all directions. For two halved columns, the one number is the contrast of their 2 x 2
table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique, as_tables
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Extent, Position, Query, check_tables
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows, count_pairs
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.methods.domain import Domain
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.pair_tables import Margin, PairTable
    from fedsynth.schema import Schema

GRAIN = 2**12
"""Codes of groups are rounded to integers in units of 1 / GRAIN."""
_MOST_GROUPS = 2**12  # of an axis
_MOST_ORDER = 3
_MOST_CODED = 2  # axes of a table with codes: sums over 2^28 rows stay below 2^52, exact in doubles
_MOST_TABLES = 2**16
MOST_CONTRASTS = 2**20
"""Contrasts of one question, at most."""

_UNIT = float(GRAIN**_MOST_CODED)  # of all sums
_HALF = GRAIN**_MOST_CODED // 2  # the product of the vectors of two groups of two axes, without its sign

Positions = Annotated[tuple[Position, ...], msgspec.Meta(max_length=MOST_COLUMNS)]
Tables = Annotated[
    tuple[Annotated[tuple[Position, ...], msgspec.Meta(min_length=1, max_length=_MOST_ORDER)], ...],
    msgspec.Meta(max_length=_MOST_TABLES),
]
Weight = Annotated[int, msgspec.Meta(ge=1, le=64)]
Weights = Annotated[tuple[Weight, ...], msgspec.Meta(max_length=_MOST_TABLES)]


def basis(groups: int) -> Floats:
    """Return Helmert's orthonormal basis of the vectors whose entries add up to 0, shape ``(groups, groups - 1)``.

    All rows have the squared length 1 - 1 / groups, and each two the product -1 / groups: they are the vertices of a
    regular simplex.
    """
    column, row = np.arange(1, groups), np.arange(groups)[:, None]
    entries = np.where(row < column, 1.0, np.where(row == column, -column, 0.0))
    found: Floats = entries / np.sqrt(column * (column + 1.0))
    return found


def _entries(groups: int) -> tuple[Integers, Integers]:
    """Return the entries of :func:`codes` above and on its diagonal, by column."""
    at = np.arange(1, groups)
    length = np.sqrt(at * (at + 1.0))
    return np.rint(GRAIN / length).astype(np.int64), np.rint(-GRAIN * at / length).astype(np.int64)


def codes(groups: int) -> Integers:
    """Return the integer vector of each group: its row of :func:`basis`, rounded, in units of 1 / ``GRAIN``."""
    column, row = np.arange(1, groups), np.arange(groups)[:, None]
    above, diagonal = _entries(groups)
    return np.where(row < column, above, np.where(row == column, diagonal, 0))


def encoded(counts: NDArray[np.int64], axis: int) -> Integers:
    """Return the sum over an axis of counts of their groups' :func:`codes`, without building these: int64, exact."""
    moved = np.moveaxis(counts, axis, -1)
    above, diagonal = _entries(moved.shape[-1])
    found = above * np.cumsum(moved, axis=-1)[..., :-1] + diagonal * moved[..., 1:]
    return np.moveaxis(found, -1, axis)


class Contrasts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All pairs of the axes ``first``, and of one of these with one of ``second``, each of two groups, in a few bytes.

    The positions are those of a question's axes, the order of the pairs that of :func:`~fedsynth.rows.pairs_of`.
    ``weight`` is as in :class:`Interactions`.
    """

    first: Positions
    second: Positions = ()
    weight: Weight = 1

    @property
    def cells(self) -> int:
        """Number of pairs."""
        return count_pairs((self.first, self.second))


class Interactions(Query, frozen=True):
    """Query for the interactions of columns: sums over rows of products of the codes of their groups.

    Table i has the axes whose positions in ``axes`` are ``tables[i]``, one to three of them. A row's group on an axis
    is encoded by a vector: :func:`codes` or, on the axes whose positions are in ``whole``, a unit vector (1 in the
    place of the group). The answer for a table is the sum over rows of the outer product of these vectors, of shape
    ``(groups - 1, ...)``, or ``groups`` along axes in ``whole``. Before noise is added, it is multiplied by
    ``weights[i]`` (an integer, 1 to 64; default 1) and, for each of at most two axes with codes that the table lacks,
    by ``GRAIN``, and divided by both afterwards.

    Tables of pairs of axes with two groups have one number each, the pair's contrast. Of many columns, they are asked
    by ``contrasts`` instead: each entry stands for many pairs (:class:`Contrasts`), whose contrasts follow those of the
    tables, and are one part of the answer together.
    """

    kind: ClassVar[str] = "interactions"
    unit: ClassVar[float] = _UNIT

    axes: Annotated[tuple[Axis, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    tables: Tables = ()
    whole: Positions = ()
    weights: Weights = ()
    contrasts: Annotated[tuple[Contrasts, ...], msgspec.Meta(max_length=MOST_COLUMNS)] = ()

    @classmethod
    def over(
        cls, axes: Sequence[Axis], tables: Sequence[Clique], whole: Sequence[int] = (), weights: Sequence[int] = ()
    ) -> Interactions:
        """Return the query for ``tables``, with only those of ``axes`` that a table has."""
        used = sorted({at for table in tables for at in table})
        place = {at: number for number, at in enumerate(used)}
        return cls(
            tuple(axes[at] for at in used),
            tuple(tuple(place[at] for at in table) for table in tables),
            tuple(place[at] for at in whole if at in place),
            tuple(weights),
        )

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` unless each axis covers all values of its column and has 2 to 4096 groups.

        Tables and contrasts must name existing axes, each at most once; tables must have one weight each, if any, and
        the axes of contrasts two groups. There is a table or an entry of contrasts at least, each entry stands for a
        pair at least, and all of them for 2^20 at most (``MOST_CONTRASTS``).
        """
        if not (self.tables or self.contrasts):
            raise InvalidParameter("a question for interactions without tables and contrasts; ask for one at least")
        check_tables(schema, self.axes, self.tables, self.weights)
        sizes = self._sizes(schema)
        for axis, size in zip(self.axes, sizes, strict=True):
            if not 2 <= size <= _MOST_GROUPS:
                raise InvalidParameter(f"an axis of column {axis.column} has {size} groups; give 2 to {_MOST_GROUPS}")
        for table in self.tables:
            if sum(at not in self.whole for at in table) > _MOST_CODED:
                raise InvalidParameter(f"table {table} has more than {_MOST_CODED} axes with codes; make others whole")
        if max(self.whole, default=0) >= len(self.axes):
            raise InvalidParameter(f"whole names an axis that does not exist; there are {len(self.axes)}")
        for block in self.contrasts:
            named = (*block.first, *block.second)
            if max(named, default=0) >= len(self.axes) or len(set(named)) < len(named):
                raise InvalidParameter(f"contrasts name each of the {len(self.axes)} axes at most once")
            if any(sizes[at] != 2 for at in named):
                raise InvalidParameter("contrasts need axes of two groups; ask for tables of the others")
            if not block.cells:
                raise InvalidParameter("contrasts of no pair; name two axes at least, one of them first")
        if (many := sum(block.cells for block in self.contrasts)) > MOST_CONTRASTS:
            raise InvalidParameter(f"{many} contrasts are more than {MOST_CONTRASTS}; ask for fewer pairs")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves the answer (integers), in L1 and L2.

        Let u be the vectors of an axis' groups. Adding a record adds to a table the outer product of one u of each
        axis, times the table's factor w (its weight and powers of ``GRAIN``). Without w, its L2 norm is the product of
        the lengths, its L1 norm that of the L1 norms. Both are largest for the largest of each axis; squared L2 norms,
        and L1 norms, add up over the tables.

        Replacing the record changes the outer product from U to V: |U - V|^2 = |U|^2 + |V|^2 - 2 U.V, where U.V is the
        product, over the axes, of the products u.v of vectors of two groups, equal or not. With N the largest |u|^2 of
        an axis and m the largest -u.v (0 if there is none above), u.v lies between -m and N, and m <= N. So U.V is
        least if an odd number of factors is negative; one factor -m, for some axis, and N for the others bounds it.
        Twice the product of all N, plus twice the largest of these, bounds |U - V|^2. In L1 the change is at most that
        of removing and adding.

        Of two axes with two groups each, whatever these are, a contrast is the sum over rows of the product of two
        signs, 1 or -1, times w / 2 in records. It moves by w / 2 if a row is added, and by w, from one sign to the
        other, or not at all if it is replaced. Each contrast counts, also one that is asked for again, of the same
        column twice, or of axes that divide it alike: squares, and absolute values, add up as above.

        The vectors are integers, so nothing is rounded afterwards, and all bounds are computed from these integers.
        """
        sizes = self._sizes(schema)
        used = {at for table in self.tables for at in table}
        norms = {at: _norms(sizes[at], at in self.whole) for at in used}
        l1, square, replaced = 0.0, 0.0, 0.0
        for table, weight in zip(self.tables, self.weights or (1,) * len(self.tables), strict=True):
            axes = [norms[at] for at in table]
            longest = math.prod(longest for longest, _, _ in axes)
            opposite = max(math.prod(n for n, _, _ in axes) // n * m for n, m, _ in axes)
            factor = weight * self._scale(table)
            l1 += factor * math.prod(sums for _, _, sums in axes)
            square += factor**2 * longest
            replaced += factor**2 * 2 * (longest + opposite)
        for block in self.contrasts:
            l1 += block.cells * block.weight * _HALF
            square += block.cells * (block.weight * _HALF) ** 2
            replaced += block.cells * (2 * block.weight * _HALF) ** 2
        return Sensitivity(l1, math.sqrt(square), 2 * l1, math.sqrt(replaced))

    @property
    def cliques(self) -> list[Clique]:
        """The columns of each table, without contrasts."""
        return [tuple(self.axes[at].column for at in table) for table in self.tables]

    def shapes(self, schema: Schema) -> list[tuple[int, ...]]:
        """Return the shape of each table's answer, and then the number of each entry's contrasts; see the class."""
        lengths = [size - (at not in self.whole) for at, size in enumerate(self._sizes(schema))]
        tables = [tuple(lengths[at] for at in table) for table in self.tables]
        return tables + [(block.cells,) for block in self.contrasts]

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in an answer."""
        return sum(math.prod(shape) for shape in self.shapes(schema))

    def extent(self, schema: Schema) -> Extent:
        """Return how much the tables show, in numbers of the answer."""
        used = {at for table in self.tables for at in table}
        used.update(at for block in self.contrasts for at in (*block.first, *block.second))
        order = max([len(table) for table in self.tables] + [2 for _ in self.contrasts])
        return Extent(len({self.axes[at].column for at in used}), order, self.cells(schema))

    def noise_of_counts(self, schema: Schema, std: float) -> Iterator[tuple[Clique, float]]:
        """Yield the noise that interactions leave in a count of each table of one or two columns with given margins.

        Without the margins, independent noise in k cells along an axis has 1 - 1/k of its variance left. One column's
        merged values say nothing of their own numbers of rows, nor do contrasts. Of three columns, the pair that is
        encoded counts, of which the table is a sum over the groups of the third.
        """
        sizes = self._sizes(schema)
        for table, noise in zip(self.tables, self.stds(std), strict=False):
            coded = [at for at in table if at not in self.whole]
            if len(coded) == 1 and self.axes[coded[0]].merges:
                continue
            factor = math.prod(1 - 1 / sizes[at] for at in coded) * math.prod(
                sizes[at] for at in table if at not in coded
            )
            yield tuple(sorted(self.axes[at].column for at in coded)), noise * math.sqrt(factor)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return bounds on what one record adds to any integer: no code exceeds its vector's length."""
        most = max(self._weights) * GRAIN**_MOST_CODED
        return -most, most

    def answer(self, rows: Rows) -> Integers:
        """Return a site's exact sums, times their weights, flattened in C order, one table after the other, int64.

        Counts add up to at most 2^28 rows, and each is multiplied by at most two codes, below 2^12 in absolute value
        each, and by the table's factor: all partial sums stay below 2^58. So do those of contrasts.
        """
        parts = []
        counted = rows.tables(self.axes, self.tables) if self.tables else []
        for table, sums, weight in zip(self.tables, counted, self._weights, strict=False):
            for place, at in enumerate(table):
                if at not in self.whole:
                    sums = encoded(sums, place)
            parts.append(sums.ravel() * (weight * self._scale(table)))
        if self.contrasts:
            products = rows.products(self.axes, [(block.first, block.second) for block in self.contrasts])
            parts += [sums * (block.weight * _HALF) for sums, block in zip(products, self.contrasts, strict=True)]
        return np.concatenate(parts)

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return each table's sums, and then each entry's contrasts, in records."""
        parts = as_tables(flat.astype(np.float64), self.shapes(schema))
        return [part / (weight * _UNIT) for part, weight in zip(parts, self._weights, strict=True)]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviation of the noise in a number of each part of :meth:`split`, in records."""
        return [std / (weight * _UNIT) for weight in self._weights]

    @property
    def _weights(self) -> list[int]:
        """The weights of all tables and contrasts."""
        return [*(self.weights or (1,) * len(self.tables)), *(block.weight for block in self.contrasts)]

    def _scale(self, table: Sequence[int]) -> int:
        """Return the power of ``GRAIN`` that gives a table the unit of those with two encoded axes."""
        return int(GRAIN ** (_MOST_CODED - sum(at not in self.whole for at in table)))

    def _sizes(self, schema: Schema) -> list[int]:
        columns = [schema.stored[axis.column] for axis in self.axes]
        return [axis.size(column.size, column.missing) for axis, column in zip(self.axes, columns, strict=True)]


@lru_cache(maxsize=1024)
def _norms(groups: int, whole: bool) -> tuple[int, int, int]:
    """Return the largest |u|^2, the largest -u.v or 0, and the largest L1 norm of the vectors of an axis' groups."""
    if whole:
        return 1, 0, 1
    above, diagonal = _entries(groups)
    # A vector has the diagonal entry of its group, and those above the diagonal in all later columns. So the product of
    # two depends on the later group alone: its diagonal entry times the one above, and the squares of all later ones.
    later = np.append(np.cumsum((above**2)[::-1])[::-1], 0)
    own = np.append(0, diagonal)
    sums = np.append(np.cumsum(above[::-1])[::-1], 0) + np.abs(own)
    products = later[1:] + above * diagonal
    return int((later + own**2).max()), max(0, -int(products.min())), int(sums.max())


# ---------------------------------------------------------------------------------------------------------------------
# At the server


class Interaction(NamedTuple):
    """Released interactions of the columns of ``clique`` (ascending), in records, each with noise of ``std``.

    ``values`` has the shape of a table's answer in :class:`Interactions`.
    """

    clique: Clique
    values: Floats
    std: float

    def table(self, margins: Mapping[int, Margin], total: float) -> Measurement:
        """Return the table of one or two columns with these interactions and ``margins``, of ``total`` rows.

        ``std`` stays that of an interaction: the noise in the table is that of independent noise of this standard
        deviation in each cell, less its margins.
        """
        from fedsynth.models.estimate import Measurement

        if len(self.clique) == 1:
            size = len(self.values) + 1
            return Measurement(self.clique, total / size + basis(size) @ self.values, self.std)
        counts = [total * margins[at].shares for at in self.clique]
        return Measurement(self.clique, completed(self.values, counts), self.std)

    def summed(self, column: int) -> Interaction:
        """Return the interactions of two columns from those for each group of a third, the one at ``column``."""
        axis = self.clique.index(column)
        others = tuple(at for at in self.clique if at != column)
        return Interaction(others, self.values.sum(axis=axis), self.std * math.sqrt(self.values.shape[axis]))


def measure_interactions(
    federation: Federation,
    domain: Domain,
    cliques: Sequence[Clique],
    share: float,
    weights: Sequence[int] = (),
    whole: int | None = None,
) -> list[Interaction]:
    """Return the noisy interactions of each of ``cliques``, from one sum over sites for ``share`` of the budget.

    Groups are those of ``domain``, at least two per column; ``weights`` as in :class:`Interactions`. In cliques of
    three columns, the one at the position ``whole`` is not encoded: their interactions are those of the other two
    columns for each of its groups. Under Laplace noise (delta = 0), whose scale follows L1 norms, whole tables move
    less than interactions, and are released in their place.
    """
    from fedsynth.methods.measure import EXACT_STD

    last = len(domain.axes)
    tables = [tuple(last if len(clique) > 2 and at == whole else at for at in clique) for clique in cliques]
    if federation.budget.pure and not federation.budget.exact:
        released = federation.sum(domain.counts(cliques, weights), share)
        values = [
            _of_counts(table, [at != last for at in of]) for table, of in zip(released.tables, tables, strict=True)
        ]
    else:
        axes = domain.axes if whole is None else (*domain.axes, domain.axes[whole])
        query = Interactions.over(axes, tables, (last,) if whole is not None else (), weights)
        released = federation.sum(query, share)
        values = released.tables
    return [
        Interaction(clique, value, max(std, EXACT_STD))
        for clique, value, std in zip(cliques, values, released.stds, strict=True)
    ]


def _of_counts(table: Floats, encoded: Sequence[bool]) -> Floats:
    """Return the interactions of a table of counts, along the ``encoded`` axes."""
    for axis, yes in enumerate(encoded):
        if yes:
            table = np.moveaxis(np.tensordot(table, codes(table.shape[axis]) / GRAIN, (axis, 0)), -1, axis)
    return table


def completed(interaction: Floats, margins: Sequence[Floats]) -> Floats:
    """Return the table of counts that has the given interactions and margins, shape ``(k, l)``, in records.

    ``interaction`` has the shape ``(k - 1, l - 1)``. The sums of the result's rows and columns are the ``margins``,
    whatever the noise in ``interaction``, if they have the same total.
    """
    first, second = margins
    total = (float(first.sum()) + float(second.sum())) / 2
    base = np.add.outer(first / len(second), second / len(first)) - total / (len(first) * len(second))
    # The table minus its base is H A H' for the bases H of both axes, and C'H A H'C is what is left of the answer.
    ways = [(basis(len(margin)), codes(len(margin)) / GRAIN) for margin in margins]
    rest = interaction - ways[0][1].T @ base @ ways[1][1]
    one, other = (bases @ np.linalg.inv(coded.T @ bases) for bases, coded in ways)
    found: Floats = base + one @ rest @ other.T
    return found


def clean_slices(
    table: Interaction, column: int, pairs: Mapping[Clique, PairTable], margins: Mapping[int, Margin], total: float
) -> Measurement:
    """Return a 3-way table denoised by slices: for each value of ``column``, the 2-way table of the other two columns.

    ``pairs`` holds the denoised 2-way tables of ``column`` with each of the other two columns: their slices are the
    margins of the tables to be denoised. ``margins`` are those of all three columns
    (:func:`~fedsynth.methods.measure.margins_of`). The ``std`` of the result is that of the noise left in a cell. For a
    value with less than one estimated row, all cells are 0.
    """
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.gum import simplex
    from fedsynth.models.pair_tables import Margin, denoised

    axis = table.clique.index(column)
    tables = {
        at: pairs[at, column].table.T if at < column else pairs[column, at].table for at in table.clique if at != column
    }
    slices = np.moveaxis(table.values, axis, 0)
    cleaned, numbers = np.zeros((len(slices), *(margins[at].shares.size for at in tables))), 0.0
    for value, share in enumerate(margins[column].shares):
        rows = total * share
        if rows >= 1:
            first, second = (Margin(simplex(of[value], rows) / rows, margins[at].ordered) for at, of in tables.items())
            counts = completed(slices[value], [rows * margin.shares for margin in (first, second)])
            clean = denoised(counts, table.std, first, second, rows)
            cleaned[value], numbers = clean.table, numbers + clean.numbers
    std = table.std * math.sqrt(min(1.0, max(numbers, 1.0) / cleaned.size))
    return Measurement(table.clique, np.moveaxis(cleaned, 0, axis), std)
