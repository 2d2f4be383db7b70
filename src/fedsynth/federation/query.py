"""Queries and selections, the requests that a site can answer: structs whose fields are their public parameters.

Rule 1: every record contributes an integer vector that depends on that record and the parameters alone; an answer is
    the sum over records. The sensitivity of a query is thus a bound on the norm of a single record's vector, for every
    value of the parameters; neither rounding nor the order of rows can make a record count for more.
Rule 2: :meth:`Query.check` refuses parameters for which rule 1 would not hold, from schema and parameters alone, before
    anything is charged. Once it has passed, an answer cannot fail for reasons that lie in the rows.
Rule 3: a query sees one site's rows and nothing else; it makes no noise, no I/O and no random draws. Training alone
    (:class:`Training`) draws rows and adds noise, by the :class:`SiteRandomness` that the site hands it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import as_tables
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.plugins import installed, load, named
from fedsynth.privacy.cost import Neighbours, Sensitivity
from fedsynth.privacy.release import MOST_DRAWS, SMALLEST_RATE
from fedsynth.rows import Rows
from fedsynth.schema import Schema
from fedsynth.schema.bins import MOST_CELLS, MOST_COLUMNS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.privacy.noise import RandomBits

Clique = tuple[int, ...]
Weights = NDArray[np.float32]
Position = Annotated[int, msgspec.Meta(ge=0, lt=MOST_COLUMNS)]
Positions = Annotated[tuple[Position, ...], msgspec.Meta(min_length=1, max_length=64)]
Cliques = Annotated[tuple[Positions, ...], msgspec.Meta(max_length=2**16)]
MOST_ROWS = 2**28
"""Largest number of rows of a site for sums other than counts: the bounded integers of queries stay within 64 bits."""


class Extent(NamedTuple):
    """How much the contingency tables of one question show: what a question has, or the most that a plan allows.

    ``columns`` and ``cells`` are the numbers of different columns, and of cells, in all tables together; ``order`` is
    the largest number of axes of one table.
    """

    columns: int
    order: int
    cells: int


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A statistic that is summed over sites: an integer vector, to which noise is added before its release.

    A method asks it by :meth:`Federation.sum <fedsynth.federation.federation.Federation.sum>` and the like. A subclass
    is a frozen struct whose fields are its public parameters. ``kind`` names it in requests, policies and plans.
    """

    kind: ClassVar[str] = ""
    unit: ClassVar[float] = 1.0
    """What stands for one record (or the unit of the statistic) in the integers of an answer."""
    needs_rows: ClassVar[bool] = False
    """Whether single rows are looked at, so that counts (:class:`~fedsynth.rows.Rows`) are not enough."""

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for parameters that do not fit the schema.

        These are all with which one record could change the answer by more than the bound of :meth:`sensitivity`.
        Server and site call this check before anything is charged.
        """

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far any one record moves the answer.

        It holds for all rows, and for all parameters that pass :meth:`check`.
        """
        raise NotImplementedError

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in the answer."""
        raise NotImplementedError

    def extent(self, schema: Schema) -> Extent | None:
        """Return how much the tables of this question show, or ``None`` if it asks for none, as most kinds do."""
        return None

    def noise_of_counts(self, schema: Schema, std: float) -> Iterator[tuple[Clique, float]]:
        """Yield, for columns and pairs of them whose rows the answer counts, the noise's std in a count, in rows.

        Columns are given by their positions in ``schema.stored``, ascending. ``std`` is the noise's standard deviation
        in each number of the flat answer. Most kinds count nothing.
        """
        return iter(())

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return the smallest (at most 0) and the largest number that one record adds to any one cell of the answer."""
        return 0, 1

    def answer_range(self, schema: Schema, rows: int, noise: float) -> tuple[float, float]:
        """Return the smallest and the largest possible value of a cell of a site's answer, to recognise invalid ones.

        The site has at most ``rows`` rows, and the noise in a cell is less than ``noise`` in absolute value.
        """
        low, high = self.row_range(schema)
        return low * rows - noise, high * rows + noise

    def answer(self, rows: Any) -> Integers:
        """Return a site's exact answer for its ``rows``, as flat integers, shape ``(cells,)``.

        ``rows`` are the site's counts (:class:`~fedsynth.rows.Rows`) or, if :attr:`needs_rows`, its table
        (:class:`~fedsynth.rows.Table`).
        """
        raise NotImplementedError

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the parts of a released answer ``flat``, each in its own shape and units, such as a table in records.

        By default there is one part, equal to ``flat``.
        """
        return [flat.astype(np.float64)]

    def stds(self, std: float) -> list[float]:
        """Return the noise's standard deviation in each part of :meth:`split`, if it is ``std`` in the flat answer."""
        return [std]


class RecordCount(Query, frozen=True):
    """Number of records of a site, shape ``(1,)``. Replacing one record by another does not change it."""

    kind: ClassVar[str] = "size"

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return 1 if a record is added or removed, 0 if it is replaced."""
        return Sensitivity(1, 1, 0, 0)

    def cells(self, schema: Schema) -> int:
        """Return 1."""
        return 1

    def answer(self, rows: Rows) -> Integers:
        """Return :attr:`Rows.rows_read`, which includes rows left out of tables because they do not fit the schema."""
        return np.array([rows.rows_read], dtype=np.int64)


def check_tables(schema: Schema, axes: Sequence[Axis], tables: Sequence[Clique], weights: Sequence[int]) -> None:
    """Raise :class:`InvalidParameter` for tables that cannot be counted under the schema.

    These are axes that do not cover all values of their column, tables over axes that do not exist or named twice, and
    another number of weights than of tables, or 0.
    """
    for axis in axes:
        if axis.column >= len(schema.stored):
            raise InvalidParameter(
                f"there is no column {axis.column}; the schema has columns 0 to {len(schema.stored) - 1}"
            )
        column = schema.stored[axis.column]
        axis.check(column.size, column.missing, column.is_number)
    for table in tables:
        if max(table) >= len(axes) or len(set(table)) < len(table):
            raise InvalidParameter(f"invalid table over axes {table}: name each of the {len(axes)} axes at most once")
    if weights and len(weights) != len(tables):
        raise InvalidParameter(f"{len(weights)} weights for {len(tables)} tables; give one each, or none")


class Counts(Query, frozen=True):
    """Contingency tables: table ``i`` counts rows by the axes whose positions in ``axes`` are ``tables[i]``.

    Each of ``axes`` is a column with a partition of its values (:class:`~fedsynth.schema.bins.Axis`). The counts of
    table ``i`` are multiplied by ``weights[i]`` (an integer, 1 to 64) before noise is added, and divided by it
    afterwards. So one query measures tables with different precision: the noise variance in table ``i`` is divided by
    ``weights[i] ** 2``. The default is 1 for each.
    """

    kind: ClassVar[str] = "counts"

    axes: Annotated[tuple[Axis, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    tables: Annotated[Cliques, msgspec.Meta(min_length=1)]
    weights: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=64)], ...], msgspec.Meta(max_length=2**16)] = ()

    @classmethod
    def of(cls, columns: int, cliques: Sequence[Clique], weights: Sequence[int] = ()) -> Counts:
        """Return the query for tables over the values and bins that the schema gives each column.

        ``columns`` is the number of columns in ``schema.stored``. Each of ``cliques`` lists the columns of one table,
        by their positions there.
        """
        return cls(tuple(Axis(column) for column in range(columns)), tuple(map(tuple, cliques)), tuple(weights))

    def check(self, schema: Schema) -> None:
        """Refuse what :func:`check_tables` refuses."""
        check_tables(schema, self.axes, self.tables, self.weights)

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return the bound, by the weights of the tables.

        Adding or removing a record moves one cell of each table i by its weight w_i: sum w_i in L1, and sqrt(sum w_i^2)
        in L2. Replacing it moves at most two cells of table i by w_i each: twice as much in L1, and sqrt(2) times in
        L2.
        """
        weights = self.weights or (1,) * len(self.tables)
        l1, l2 = float(sum(weights)), math.sqrt(sum(weight**2 for weight in weights))
        return Sensitivity(l1, l2, 2 * l1, math.sqrt(2) * l2)

    @property
    def cliques(self) -> list[Clique]:
        """The columns of each table, by their positions in ``schema.stored``."""
        return [tuple(self.axes[at].column for at in table) for table in self.tables]

    def shapes(self, schema: Schema) -> list[tuple[int, ...]]:
        """Return the shape of each table: the number of cells of each of its axes."""
        columns = [schema.stored[axis.column] for axis in self.axes]
        sizes = [axis.size(column.size, column.missing) for axis, column in zip(self.axes, columns, strict=True)]
        return [tuple(sizes[at] for at in table) for table in self.tables]

    def cells(self, schema: Schema) -> int:
        """Return the number of cells of all tables together."""
        return sum(math.prod(shape) for shape in self.shapes(schema))

    def extent(self, schema: Schema) -> Extent:
        """Return the extent of all tables."""
        columns = {column for clique in self.cliques for column in clique}
        return Extent(len(columns), max(map(len, self.tables)), self.cells(schema))

    def noise_of_counts(self, schema: Schema, std: float) -> Iterator[tuple[Clique, float]]:
        """Yield the noise in a count of each column and pair of a table: of a sum, if the table has other columns.

        A table over merged values says nothing of their own numbers of rows.
        """
        for places, shape, noise in zip(self.tables, self.shapes(schema), self.stds(std), strict=True):
            sides = range(len(places))
            single = [(at,) for at in sides if not self.axes[places[at]].merges]
            for kept in (*single, *combinations(sides, 2)):
                added = math.sqrt(math.prod(shape[at] for at in sides if at not in kept))  # a sum of so many cells
                yield tuple(sorted(self.axes[places[at]].column for at in kept)), noise * added

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return 0 and the largest weight."""
        return 0, max(self.weights, default=1)

    def answer(self, rows: Rows) -> Integers:
        """Count all tables, each flattened in C order and times its weight, one after the other."""
        counted = [table.ravel() for table in rows.tables(self.axes, self.tables)]
        if self.weights:
            counted = [table * weight for table, weight in zip(counted, self.weights, strict=True)]
        return np.concatenate(counted)

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the tables in the answer ``flat``, each in its shape and divided by its weight, so in records."""
        tables = as_tables(flat.astype(np.float64), self.shapes(schema))
        weights = self.weights or (1,) * len(tables)
        return [table / weight for table, weight in zip(tables, weights, strict=True)]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviation of the noise in a cell of each table, in records."""
        return [std / weight for weight in self.weights or (1,) * len(self.tables)]


class SiteRandomness(NamedTuple):
    """The randomness that a site gives to a training question (:meth:`Training.trained`).

    ``bits(purpose)`` are secret random bits, which depend on the question and the purpose (a text). ``noisy(values,
    step)`` returns ``values``, the integer sum of training step number ``step``, plus the release's noise, or unchanged
    if the trust model adds the noise or the release has none.
    """

    site: str
    bits: Callable[[str], RandomBits]
    noisy: Callable[[Integers, int], Integers]


class Training(Query, frozen=True):
    """Training steps of a network: rows are sampled at random, and their clipped gradients are added up.

    For a release with noise, each row is sampled independently with probability ``rate`` in each of the :attr:`steps`.
    The release must account for rate and steps (:class:`~fedsynth.privacy.release.SampledGaussian`), or be one without
    noise. The sensitivity is that of one step's sum, given that the record is sampled. ``verb`` is the only verb of a
    federation that may ask it: "sum" if the trust model adds the noise, "average" if the site adds its own in every
    step. ``weights`` is the SHA-256 (hex) of the network's weights, which are sent beside the question.
    """

    verb: ClassVar[str] = ""
    needs_rows: ClassVar[bool] = True

    rate: Annotated[float, msgspec.Meta(ge=SMALLEST_RATE, le=1)]
    weights: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

    @property
    def steps(self) -> int:
        """Number of training steps that the site takes for one answer, each on a new sample of rows."""
        return 1

    @property
    def clipped(self) -> bool:
        """Whether gradients are clipped, which bounds the sensitivity; otherwise no noisy release is possible."""
        return True

    @classmethod
    def require(cls) -> None:
        """Raise :class:`Unsupported` if this machine cannot train; called before anything is charged."""

    def require_rounding(self) -> None:
        """Raise :class:`Unsupported` if this machine rounds in a way that the sensitivity's proof excludes.

        A site calls it before it charges the question. The result does not depend on the site's rows.
        """

    def seconds(self, schema: Schema, rows: int) -> float:
        """Return the seconds that a slow machine takes to train on ``rows`` rows, from public numbers alone.

        A deployed site computes it for a public bound on its rows, and sends its replies to training at multiples of a
        time that is not shorter. If it is 0, they leave at the same times as other replies (``answer_every`` of
        :class:`~fedsynth.federation.policy.Policy`).
        """
        return 0.0

    def answer(self, rows: Any) -> Integers:
        """Raise :class:`Unsupported`: training needs weights and random draws (:meth:`trained`)."""
        raise Unsupported(f"{self.kind!r} is answered by training, not by counting; call trained() with its weights")

    def trained(self, rows: Any, weights: Weights, draws: SiteRandomness) -> Integers:
        """Train on a site's ``rows`` (:class:`~fedsynth.rows.Table`), and return the flat integers of the answer.

        ``weights`` are the network's (float32, flat).
        """
        raise NotImplementedError


class UtilityBound(NamedTuple):
    """Bound on how far one record that is added (or removed) or replaced moves a utility (:class:`Selection`)."""

    add: int
    replace: int

    def of(self, neighbours: Neighbours) -> int:
        """Return the bound for one of the two relations."""
        return self.add if neighbours == "add-remove" else self.replace


class SiteMeasurement(NamedTuple):
    """A noisy measurement that a site makes after it selected a ``candidate`` (an index), for its next selections.

    ``values`` is the answer to :meth:`Selection.look`, with noise of standard deviation ``std`` in each cell. It never
    leaves the site.
    """

    candidate: int
    values: Integers
    std: float


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A selection from public candidates, which each site makes privately on its own rows (the exponential mechanism).

    A method asks for it by :meth:`Federation.choose <fedsynth.federation.federation.Federation.choose>`. A subclass is
    a frozen struct, as for :class:`Query`. It gives each candidate a utility, an integer score on the site's rows;
    candidates with higher utilities are likelier. A subclass keeps utilities below 2^62 in absolute value, for all
    parameters and rows, so that none overflows and no draw fails. A site draws ``steps`` candidates. After each draw
    but the last, it makes a noisy measurement (:meth:`look`) that informs its next draws; ``look_share`` (a fraction,
    below 1) of the selection's price is reserved for these measurements.
    """

    kind: ClassVar[str] = ""
    needs_rows: ClassVar[bool] = False

    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAWS)] = 1
    look_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        if math.copysign(1, self.look_share) < 0:
            raise InvalidParameter("look_share must be positive, or 0 without a minus sign")

    @property
    def candidate_count(self) -> int:
        """Number of candidates."""
        raise NotImplementedError

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for parameters that do not fit the schema.

        These are all with which one record could change a utility by more than the bound of :meth:`span`. Server and
        site call this check before anything is charged.
        """

    def span(self, schema: Schema) -> UtilityBound:
        """Return a bound on how far any one record moves any utility, for all parameters that pass :meth:`check`."""
        raise NotImplementedError

    def utilities(self, rows: Any, looks: Sequence[SiteMeasurement]) -> Integers:
        """Return the utility of each candidate on a site's ``rows``: int64, shape ``(candidates,)``.

        ``rows`` are as in :meth:`Query.answer`.
        ``looks`` are the measurements that the site made after its earlier draws, in order.
        """
        raise NotImplementedError

    def look(self, candidate: int, schema: Schema) -> Query:
        """Return the query that the site measures after it drew ``candidate`` (an index).

        Its sensitivity to a record that is added or removed is 1 in both norms. Raises :class:`Unsupported` for a
        selection of a single step.
        """
        raise Unsupported(f"the selection {self.kind!r} takes only one step; set steps = 1")


AnyQuery = Query | Selection

GROUP = "fedsynth.queries"
"""Entry point group of other packages' queries and selections; used to read transcripts, never by a site."""
BUILT_IN: dict[str, str] = {
    "size": "fedsynth.federation.query:RecordCount",
    "counts": "fedsynth.federation.query:Counts",
    "weighted-counts": "fedsynth.federation.weighted:WeightedCounts",
    "site-distances": "fedsynth.answers.queries:SiteDistances",
    "score-histogram": "fedsynth.answers.queries:ScoreHistogram",
    "interactions": "fedsynth.methods.interactions:Interactions",
    "flaim-scores": "fedsynth.methods.flaim_scores:FLAIMSelection",
    "sketches": "fedsynth.methods.sketch:Sketches",
    "products": "fedsynth.methods.tda_sums:ProductSums",
    "gradient-sum": "fedsynth.deep.training:GradientSum",
    "local-training": "fedsynth.deep.training:LocalTraining",
}
"""Class of each built-in kind; a site imports only the module that a question needs."""
PUBLISHED: dict[str, str] = {
    "moments": "fedsynth.bench.published.tda_sums:MomentSums",
    "mixture-sums": "fedsynth.bench.published.tda_sums:MixtureSums",
}
"""Kinds that only replicas ask which are NOT PRIVATE: known where a run reads its own record of its messages.

A site knows them only if its policy names their classes, as it knows those of other packages.
"""

TABLE_KINDS = ("counts", "interactions", "weighted-counts")
"""Kinds of questions that ask for tables, whose size plans limit (:class:`Extent`)."""

Kinds = Mapping[str, str | type[Query] | type[Selection]]
"""Kinds of questions from other packages, each with its class or ``package.module:Class``."""
NO_OTHERS: Kinds = MappingProxyType({})


def query_class(kind: str, others: Kinds | None = NO_OTHERS) -> type[Query] | type[Selection]:
    """Return the class of a kind of question, built in or named by ``others``, as in a site's policy.

    An unknown kind is refused before anything is imported. If ``others`` is ``None``, those of replicas
    (:data:`PUBLISHED`) and classes that installed packages offer as entry points are found too; this is for reading a
    run's own record of its messages. Raises :class:`Unsupported` for any other kind, and if the class is not of that
    kind.
    """
    if kind in BUILT_IN:
        return _built_in(kind)
    if others is not None and kind in others:
        place = others[kind]
        found = named(place) if isinstance(place, str) else place
    elif others is None and kind in PUBLISHED:
        found = named(PUBLISHED[kind])
    elif others is None and (entry := installed(GROUP, BUILT_IN, kind).get(kind)):
        found = load(entry)
    else:
        raise Unsupported(
            f"no kind of question is named {kind!r} here; install the same fedsynth everywhere, or name the class of a "
            "package that this site trusts in [policy.kinds]"
        )
    return checked_class(found, kind)


def is_built_in(kind: type[Query] | type[Selection]) -> bool:
    """Whether a class of questions is fedsynth's own: the very class that fedsynth has for its kind."""
    place = {**PUBLISHED, **BUILT_IN}.get(kind.kind)
    return place is not None and named(place) is kind


@cache
def _built_in(kind: str) -> type[Query] | type[Selection]:
    return checked_class(named(BUILT_IN[kind]), kind)


def checked_class(found: Any, kind: str) -> type[Query] | type[Selection]:
    """Return ``found`` if it is a query or selection class of this ``kind``, frozen and without unknown fields.

    Raises :class:`Unsupported` otherwise.
    """
    if not (isinstance(found, type) and issubclass(found, Query | Selection) and found.kind == kind):
        raise Unsupported(f"{found!r} is not a query or selection of the kind {kind!r}; correct [policy.kinds]")
    settings = found.__struct_config__
    if not settings.frozen or not settings.forbid_unknown_fields:
        raise Unsupported(f"{found!r} must be frozen and forbid unknown fields, as Query and Selection do")
    return found


LARGEST_WEIGHT = 2.0**10
"""Larger weights are refused: they are an error, or an attempt to make numbers overflow."""


def weights_digest(weights: Weights) -> str:
    """Return the SHA-256 (hex) of ``weights`` as little-endian float32, by which a question names them."""
    return hashlib.sha256(weights.astype("<f4").tobytes()).hexdigest()


def read_weights(query: AnyQuery, schema: Schema, data: bytes | memoryview) -> Weights | None:
    """Return the network's weights (float32, flat) sent beside ``query`` as ``data``; ``None`` if it does not train.

    Raises :class:`InvalidParameter` for weights whose digest or number does not match the question, for weights that
    are not finite or exceed ``LARGEST_WEIGHT``, and for weights sent beside a question that takes none.
    """
    if not isinstance(query, Training):
        if len(data):
            raise InvalidParameter(f"a question of the kind {query.kind!r} takes no weights; send none")
        return None
    if hashlib.sha256(data).hexdigest() != query.weights:
        raise InvalidParameter(
            "the weights differ from those that the question names; send the weights of the question's digest"
        )
    if len(data) != 4 * query.cells(schema):
        raise InvalidParameter(
            f"the network has {query.cells(schema)} weights, but {len(data) // 4} were sent; install the same "
            "fedsynth everywhere"
        )
    weights = np.frombuffer(data, dtype="<f4")
    if not (np.abs(weights) <= LARGEST_WEIGHT).all():  # refuses NaN too, which compares false
        raise InvalidParameter(
            f"weights must be finite and at most {LARGEST_WEIGHT:g} in absolute value; lower the learning rate"
        )
    return weights


def check_cells(query: Query, schema: Schema, largest: int = MOST_CELLS) -> int:
    """Return the number of integers in an answer; raises :class:`InvalidParameter` for 0 or above ``largest``."""
    cells = query.cells(schema)
    if not 0 < cells <= largest:
        raise InvalidParameter(f"an answer of {cells} cells is out of range (1 to {largest}); ask for smaller tables")
    return cells
