"""Partitions of one table over simulated sites, as used in the federated-learning literature.

Every partition assigns a site number from 0 to each row, or -1 to a row that no site gets. ``assign`` divides a table
as the literature does: one more row can move every other one. ``place``, where a partition has it, decides each row's
site by that row alone (:mod:`fedsynth.data.placement`), as the rows of a run must be divided whose split is published:
from random numbers ``at`` in [0, 1) of each row, and a ``seed`` that draws the sites' shares. Results are int64, shape
``(rows,)``. A partition that cannot divide the table over so many sites raises :class:`Unsupported`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported, from_extra, nearest
from fedsynth.rows import Table
from fedsynth.schema import Numeric, Schema

_FORMS = (
    "iid, quantity:A, label-skew:A[:ROWS], capped-label-skew:A[:ROWS], column:NAME, values:NAME, cluster, synthfs:B"
)
_TRIES = 1_000_000
_ROUNDING = 1e-9  # cumulated shares may fall short of 1; without this, a row could go to a last site with share 0
_UMAP_ROWS = 50_000  # UMAP is fitted to at most this many rows, and then embeds the others


@dataclass(frozen=True)
class IID:
    """A partition over simulated sites: random rows in parts of equal size, up to one row (of equal expected size)."""

    def place(self, table: Table, sites: int, seed: int, at: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the site of each row, by ``at``."""
        return np.minimum(at * sites, sites - 1).astype(np.int64)  # at * sites may round up to sites

    def sizes(self, rows: int, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return how many of ``rows`` rows each site gets, shape ``(sites,)``."""
        return np.bincount(np.arange(rows) % sites, minlength=sites)

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row."""
        _enough_rows(table, sites)
        return rng.permutation(np.arange(len(table)) % sites)


@dataclass(frozen=True)
class Quantity:
    """A partition over simulated sites of unequal sizes: each gets random rows, at least one (:meth:`place`: or none).

    Shares are drawn from the symmetric Dirichlet distribution with parameter ``alpha``; a smaller one makes them less
    equal.
    """

    alpha: float

    def place(self, table: Table, sites: int, seed: int, at: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the site of each row, by ``at``."""
        return _by_shares(np.random.default_rng(seed).dirichlet(np.full(sites, self.alpha)), at)

    def sizes(self, rows: int, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw how many of ``rows`` rows each site gets, at least one if there are as many: shape ``(sites,)``."""
        each = int(rows >= sites)
        return each + rng.multinomial(rows - each * sites, rng.dirichlet(np.full(sites, self.alpha)))

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row."""
        _enough_rows(table, sites)
        return rng.permutation(np.repeat(np.arange(sites), self.sizes(len(table), sites, rng)))


@dataclass(frozen=True)
class LabelSkew:
    """A partition over simulated sites with label skew: each class of rows has its own shares of the sites.

    A class is all rows with the same value of the label, the column at position ``column`` of :attr:`Schema.stored
    <fedsynth.schema.schema.Schema.stored>` (default: the last). The sites' shares of a class are drawn from the
    symmetric Dirichlet distribution with parameter ``beta``; a smaller beta gives more skew (Li et al., ICDE 2022,
    arXiv 2102.02079). A site with fewer than ``minimum`` rows takes single rows from the largest sites; ``None`` stands
    for 1 in :meth:`assign`, and for no minimum in :meth:`place`, which cannot keep any.
    """

    beta: float
    column: int = -1
    minimum: int | None = None

    def place(self, table: Table, sites: int, seed: int, at: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the site of each row, by ``at``; shares are drawn for every class that the schema has."""
        label = table.codes[self.column]
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.full(sites, self.beta), table.schema.sizes[self.column])
        site = np.empty(len(table), dtype=np.int64)
        for value in np.unique(label):
            site[label == value] = _by_shares(shares[value], at[label == value])
        return site

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row."""
        minimum = 1 if self.minimum is None else self.minimum
        _enough_rows(table, sites * minimum)
        label = table.codes[self.column]
        site = np.empty(len(table), dtype=np.int64)
        for value in np.unique(label):
            rows = np.flatnonzero(label == value)
            counts = rng.multinomial(len(rows), rng.dirichlet(np.full(sites, self.beta)))
            site[rows] = rng.permutation(np.repeat(np.arange(sites), counts))
        counts = np.bincount(site, minlength=sites)
        while counts.min() < minimum:
            poorest, richest = int(counts.argmin()), int(counts.argmax())
            site[rng.choice(np.flatnonzero(site == richest))] = poorest
            counts[richest] -= 1
            counts[poorest] += 1
        return site


@dataclass(frozen=True)
class CappedLabelSkew:
    """A partition over simulated sites with label skew, in which a full site gets no rows of further classes.

    Classes (:class:`LabelSkew`) are distributed one after the other over the sites that are not full; a site is full
    once it has N / K rows, where N is the number of rows and K the number of sites. The sites' shares of a class are
    drawn from the symmetric Dirichlet distribution with parameter ``beta``. The whole assignment is redrawn, up to a
    million times, until every site has ``minimum`` rows (Li et al., ICDE 2022, arXiv 2102.02079; also used by Fed-TDA
    and the FedBN thesis).
    """

    beta: float
    column: int = -1
    minimum: int = 10

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row."""
        _enough_rows(table, sites * self.minimum)
        classes = np.bincount(table.codes[self.column], minlength=table.schema.sizes[self.column])
        for _ in range(_TRIES):
            counts = self._counts(classes, sites, rng)
            if counts.sum(axis=0).min() >= self.minimum:
                break
        else:
            raise Unsupported(
                f"found no split into {sites} sites of at least {self.minimum} rows; give a larger A, or fewer sites"
            )
        site = np.empty(len(table), dtype=np.int64)
        for value, shares in enumerate(counts):
            rows = np.flatnonzero(table.codes[self.column] == value)
            site[rows] = rng.permutation(np.repeat(np.arange(sites), shares))
        return site

    def _counts(self, classes: NDArray[np.int64], sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows by class and site, shape ``(classes, sites)``; all zero if a draw left a class no site."""
        counts = np.zeros((len(classes), sites), dtype=np.int64)
        for value, rows in enumerate(classes):
            shares = rng.dirichlet(np.full(sites, self.beta)) * (counts.sum(axis=0) < classes.sum() / sites)
            if not shares.sum() > 0:
                return np.zeros_like(counts)
            cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * rows + _ROUNDING).astype(np.int64)
            counts[value] = np.diff(cuts, prepend=0, append=rows)
        return counts


@dataclass(frozen=True)
class ByColumn:
    """A partition over simulated sites by the values of a column: one site per value, or per balanced group of values.

    ``column`` is its position in :attr:`Schema.stored <fedsynth.schema.schema.Schema.stored>`; a numeric column is
    split by its bins. :meth:`assign` assigns values from the commonest to the rarest, each to the site with the fewest
    rows so far; :meth:`place`, which may not count rows, divides the schema's list of values into as many runs of
    nearly equal length as there are sites.
    """

    column: int

    def place(self, table: Table, sites: int, seed: int, at: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the site of each row, by its value."""
        size = table.schema.sizes[self.column]
        _enough_values(table, self.column, size, sites, "in the schema")
        return table.codes[self.column].astype(np.int64) * sites // size

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row; nothing is drawn."""
        codes = table.codes[self.column]
        counts = np.bincount(codes, minlength=table.schema.sizes[self.column])
        present = np.flatnonzero(counts)
        _enough_values(table, self.column, len(present), sites)
        home = np.zeros(len(counts), dtype=np.int64)
        filled = np.zeros(sites, dtype=np.int64)
        for value in present[np.argsort(-counts[present], kind="stable")]:
            home[value] = filled.argmin()
            filled[home[value]] += counts[value]
        assigned: NDArray[np.int64] = home[codes]
        return assigned


@dataclass(frozen=True)
class ByValue:
    """A partition in which each simulated site gets all rows with one value of a column; other rows are dropped.

    The values are the commonest ones, as many as there are sites, and are assigned to sites in the schema's order, as
    in FedTabDiff (arXiv 2401.06263); in :meth:`place`, which may not count rows, they are the first ones of the schema.
    ``column`` is as in :class:`ByColumn`.
    """

    column: int

    def place(self, table: Table, sites: int, seed: int, at: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the site of each row, or -1, by its value."""
        _enough_values(table, self.column, table.schema.sizes[self.column], sites, "in the schema")
        codes = table.codes[self.column].astype(np.int64)
        return np.where(codes < sites, codes, -1)

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row, or -1; nothing is drawn."""
        codes = table.codes[self.column]
        counts = np.bincount(codes, minlength=table.schema.sizes[self.column])
        _enough_values(table, self.column, int(np.count_nonzero(counts)), sites)
        home = np.full(len(counts), -1, dtype=np.int64)
        home[np.sort(np.argsort(-counts, kind="stable")[:sites])] = np.arange(sites)
        assigned: NDArray[np.int64] = home[codes]
        return assigned


@dataclass(frozen=True)
class Cluster:
    """A partition over simulated sites by similarity: k-means in a 2-dimensional UMAP embedding of the encoded rows.

    It is that of FLAIM (arXiv 2310.06447). ``neighbours`` is UMAP's number of neighbours. The codes of all columns are
    used as numbers, unscaled, so columns with many values dominate. Needs ``pip install 'fedsynth[cluster]'``.
    """

    neighbours: int = 15

    def assign(self, table: Table, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the site of each row."""
        _enough_rows(table, max(sites, self.neighbours + 1))
        with from_extra("cluster", "the cluster partition needs UMAP"):
            import umap
            from sklearn.cluster import KMeans
        points = np.stack(table.codes, axis=1).astype(np.float64)
        seed = int(rng.integers(2**31))
        reducer = umap.UMAP(n_neighbors=self.neighbours, min_dist=0.1, random_state=seed, n_jobs=1)
        fitted = np.zeros(len(table), dtype=bool)
        fitted[rng.permutation(len(table))[:_UMAP_ROWS]] = True
        embedding = np.empty((len(table), 2))
        embedding[fitted] = reducer.fit_transform(points[fitted])
        if not fitted.all():
            embedding[~fitted] = reducer.transform(points[~fitted])
        assigned: NDArray[np.int64] = KMeans(sites, n_init=1, random_state=seed).fit_predict(embedding).astype(np.int64)
        return assigned


@dataclass(frozen=True)
class SynthFS:
    """In place of a partition: generated rows (:func:`synthfs`) whose features are skewed by site."""

    beta: float


Partition = IID | Quantity | LabelSkew | CappedLabelSkew | ByColumn | ByValue | Cluster


def parse_partition(text: str, schema: Schema | None, label: str = "") -> Partition | SynthFS:
    """Parse a partition as written on the command line, such as ``iid``, ``label-skew:0.5`` or ``column:NAME``.

    ``label`` names the column of a label skew (default: the last one). ``schema`` resolves column names; without it,
    partitions by a column are refused and ``label`` is ignored. In ``label-skew:A:ROWS``, A is the Dirichlet parameter
    and ROWS the smallest number of rows that the skew leaves a site.

    Raises :class:`Unsupported`, with a list of the forms, for anything else, and :class:`SchemaError` for an unknown
    column.
    """
    name, _, argument = text.partition(":")
    if name in ("column", "values") and argument and schema is not None:
        return (ByColumn if name == "column" else ByValue)(schema.index(argument))
    if name in ("iid", "cluster") and not argument:
        return IID() if name == "iid" else Cluster()
    strength, _, fewest = argument.partition(":")
    try:
        number, minimum = float(strength), int(fewest or 0)
    except ValueError:
        number, minimum = 0.0, 0
    others: dict[str, type[Quantity] | type[SynthFS]] = {"quantity": Quantity, "synthfs": SynthFS}
    skews: dict[str, type[LabelSkew] | type[CappedLabelSkew]] = {
        "label-skew": LabelSkew,
        "capped-label-skew": CappedLabelSkew,
    }
    misplaced = (minimum < 1) if name in skews and fewest else bool(fewest)
    if name not in {**others, **skews} or not (0 < number < np.inf) or misplaced:
        known = ("iid", "cluster", "column", "values", *others, *skews)
        hint = nearest(name, known) if name not in known else ""
        raise Unsupported(
            f"partition {text!r} is not one of {_FORMS}, where A and B are positive numbers and ROWS is the smallest "
            "number of rows of a site" + (f"; {hint}" if hint.startswith("did") else "")
        )
    if name in others:
        return others[name](number)
    skew = skews[name](number, schema.index(label) if label and schema is not None else -1)
    return replace(skew, minimum=minimum) if minimum else skew


def split(table: Table, sites: int, how: Partition | SynthFS, rng: np.random.Generator) -> list[Table]:
    """Split a ``table`` into one table for each site; raises :class:`Unsupported` if the partition cannot."""
    if isinstance(how, SynthFS):
        raise Unsupported("synthfs generates its own rows and cannot split a table; leave out --data")
    if sites < 1:
        raise Unsupported(f"cannot split rows over {sites} sites; ask for at least one")
    assigned = how.assign(table, sites, rng)
    return [table.take(assigned == site) for site in range(sites)]


def synthfs(
    sites: int, beta: float, rng: np.random.Generator, features: int = 10, rows_per_site: int = 500
) -> tuple[Schema, list[Table]]:
    """Generate SynthFS, rows with feature skew and without label skew (FLAIM, arXiv 2310.06447, appendix B).

    Returns the schema and one table for each of ``sites`` sites. Feature j of site k is normal with variance 1 around
    its own mean, drawn from a Zipf law of exponent ``beta`` on 1..40 (a larger one gives less skew); values are binned
    to the integers 0..40. Raises :class:`Unsupported` unless ``beta`` is positive.
    """
    if beta <= 0:
        raise Unsupported(f"synthfs:{beta} has no positive exponent; give a number from 1 (strong skew) to 5 (weak)")
    ranks = np.arange(1, 41)
    weights = ranks**-beta
    means = rng.choice(ranks, size=(sites, features), p=weights / weights.sum())
    schema = Schema(tuple(Numeric(f"x{j}", 0, 40, bins=41, integer=True) for j in range(features)))
    tables = []
    for site in range(sites):
        values = rng.normal(means[site], 1.0, size=(rows_per_site, features))
        tables.append(Table.of(schema, (np.floor(values) + 1).T))
    return schema, tables


def _by_shares(shares: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the share in which each number of [0, 1) falls, when the shares are laid side by side."""
    found: NDArray[np.int64] = np.searchsorted(np.cumsum(shares)[:-1], at, side="right")
    return found


def _enough_values(table: Table, column: int, present: int, sites: int, where: str = "in this table") -> None:
    if present < sites:
        name = table.schema.names[column]
        raise Unsupported(f"column {name!r} has {present} values {where}; ask for at most as many sites")


def _enough_rows(table: Table, needed: int) -> None:
    if len(table) < needed:
        raise Unsupported(
            f"{len(table)} rows are too few for this partition, which needs {needed}; ask for fewer sites"
        )
