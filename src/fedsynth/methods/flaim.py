"""FLAIM: AIM where every round asks a few sites, and each site picks privately what to measure.

Source: Maddock, Cormode & Maple, KDD 2024 (arXiv 2310.06447), with these corrections: scores in records
against a public scale (one record then moves a norm by one, whatever the site's size); local steps are paid
for (2s - 1 measurements, not s); sums are normalised by the sites' public or bought sizes, never by a noisy
sum's own total; proxies are averaged over all rounds; a site may be capped to R rounds, and the noise is
sized for R.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from fedsynth.axes import MOST_CELLS, Axis, Floats, Integers
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import MOST_ROWS, Cliques, Counts, Look, Query, Rows, Selection, Span
from fedsynth.methods.measure import (
    NOISE_L1,
    fit_noisy,
    fits,
    measurements,
    positive,
    shares,
    site_records,
    table_of,
)
from fedsynth.workload import Clique, Workload, all_marginals, downward_closure, weights

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Sum
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.synthesizer import GraphicalSynthesizer
    from fedsynth.schema import Schema

GRID = 2**24
"""Parts of a record in which scores are counted, and parts of all records in which shares are."""
MOST_WEIGHT = 255
MOST_PENALTY = 2**59
_MOST_POTENTIAL = 1e12
_MOST_RECORDS = 2.0**48
_BLOCK = 2**20  # cells, or rows times tables, that are held at once
_MOST_LOOKED_UP = 2**24  # cells of tables whose rows are looked up one by one

# ---------------------------------------------------------------------------------------------------------------------
# What a site computes


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """What a site fits the model to again between two of its draws, beside its own noisy looks.

    ``values`` holds the tables of ``cliques`` one after the other, in records of the whole federation (``total``), and
    ``stds`` the standard deviation of each one's noise. A fit takes at most ``iterations`` steps.
    """

    cliques: Annotated[Cliques, msgspec.Meta(min_length=1)]
    values: Floats
    stds: Floats
    total: Annotated[float, msgspec.Meta(ge=1, le=_MOST_RECORDS)]
    iterations: Annotated[int, msgspec.Meta(ge=1, le=1000)]

    @classmethod
    def of(cls, measured: Sequence[Measurement], total: float, iterations: int) -> Measured:
        """Return what is sent of noisy tables."""
        values = _flat([m.values for m in measured])
        stds = np.array([m.std for m in measured])
        return cls(tuple(m.clique for m in measured), values, stds, total, iterations)

    def check(self, sizes: Sequence[int]) -> None:
        """Raise :class:`InvalidParameter` for tables that no model of these columns can be fitted to."""
        _check_cliques(self.cliques, sizes)
        if self.values.shape != (sum(_cells(sizes, q) for q in self.cliques),) or len(self.stds) != len(self.cliques):
            raise InvalidParameter("measured tables need one value for each cell, and one standard deviation each")
        if not (np.abs(self.values).max() <= _MOST_RECORDS and 1e-6 <= self.stds.min() <= self.stds.max() <= 1e12):
            raise InvalidParameter("measured tables or their standard deviations are out of range")

    def measurements(self, sizes: Sequence[int]) -> list[Measurement]:
        """Return the tables with their noise."""
        from fedsynth.models.estimate import Measurement

        tables = _tables(self.values, self.cliques, sizes)
        return [
            Measurement(q, table, float(std)) for q, table, std in zip(self.cliques, tables, self.stds, strict=True)
        ]


class Scores(Selection, frozen=True, kw_only=True, dict=True):
    """How badly a model fits a site's own rows, candidate by candidate, beyond noise and the site's own heterogeneity.

    u(q) = w_q D_q - penalty_q - tau_q, where D_q is the sum over all cells of | G count - n S_q |, in parts of
    1 / G record (G = 2^24): ``records`` (n) is the site's public number of records, fixed whatever its rows, and S_q
    the model's share of each cell as an integer, rint(G share). Penalties are on the same grid, weights included. tau
    is the site's distance from all sites: from shares ``by_column`` (of every column, one after the other) the sum
    over the candidate's columns of v_q D_j, with v_q = max(1, w_q / |q| rounded); from shares ``by_candidate`` w_q
    times the same distance. Without either it is zero. See arXiv 2310.06447, section 4.

    The model is the product of exp(``potentials``), one table after the other, over the columns of ``factors``.
    With ``steps`` above 1, ``measured`` is what the model was fitted to.

    Sensitivity: the integers S, w, v and penalty are functions of parameters and schema alone, computed before a row is
    looked at. A record adds 1 to one cell of each table, so that | G count - n S | moves by at most G in that
    cell and not at all in the others: each D moves by at most G, exactly, and u(q) by at most
    G (w_q + |q| v_q) with ``by_column``, 2 G w_q with ``by_candidate``, G w_q without; by twice that where a
    record is replaced. This holds for every value of the parameters that passes :meth:`check`.

    Range: with at most 2^28 rows, n <= 2^28 and sum S <= 2^25, a D is at most G 2^28 + 2^28 2^25 = 3 * 2^52. Weights
    are at most 255, and |q| v_q at most 255 + |q| / 2 <= 287 for the 64 columns of a clique at most, so that
    w D and tau are both between 0 and 287 * 3 * 2^52 < 0.85 * 2^62. Penalties are below 2^59 = 2^62 / 8, so
    that every score stays within 2^62: nothing overflows, and a draw never fails.
    """

    kind: ClassVar[str] = "flaim-scores"

    records: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
    candidates: Annotated[Cliques, msgspec.Meta(min_length=1)]
    weights: Integers
    penalties: Integers
    factors: Annotated[Cliques, msgspec.Meta(min_length=1)]
    potentials: Floats
    by_column: Integers | None = None
    by_candidate: Integers | None = None
    measured: Measured | None = None

    @property
    def candidate_count(self) -> int:
        """Number of candidates."""
        return len(self.candidates)

    @property
    def needs_rows(self) -> bool:
        """Single rows are looked at."""
        return True

    def check(self, schema: Schema) -> None:
        """Refuse what scores could not be made of whatever the rows, and models too large to be evaluated."""
        self._prepared(schema)

    def span(self, schema: Schema) -> Span:
        """Return how far one record moves any one score: see the proof above."""
        moved = self.weights
        if self.by_column is not None:
            layout = self._prepared(schema).candidates
            moved = moved + layout.members.sum(axis=0) * self._column_weights(layout)
        if self.by_candidate is not None:
            moved = moved + self.weights
        largest = GRID * int(moved.max())
        return Span(largest, 2 * largest)

    def utilities(self, rows: Rows, looks: Sequence[Look]) -> Integers:
        """Return the score of each candidate; after looks, against the model fitted to them too."""
        prepared = self._prepared(rows.schema)
        layout = prepared.candidates
        model = prepared.shares if not looks else _shares(self._adapted(prepared.model, looks), self.candidates)
        expected = [model] if self.by_candidate is None else [model, self.by_candidate]
        wrong, *apart = layout.distances(rows, self.records, expected)
        scores = self.weights * wrong - self.penalties
        if apart:
            scores -= self.weights * apart[0]
        if self.by_column is not None:
            (by_column,) = prepared.columns.distances(rows, self.records, [self.by_column])
            scores -= self._column_weights(layout) * (by_column[layout.columns] * layout.members).sum(axis=0)
        return scores

    def look(self, candidate: int, schema: Schema) -> Query:
        """Return the contingency table of a candidate that was drawn."""
        return table_of(self.candidates[candidate])

    def _column_weights(self, layout: _Layout) -> Integers:
        """What stands for the mean over a candidate's columns: its weight over their number, an integer from 1."""
        count = layout.members.sum(axis=0)
        found: Integers = np.maximum(1, (2 * self.weights + count) // (2 * count))
        return found

    @cached_property
    def _content(self) -> bytes:
        """SHA-256 of everything that sites share of these parameters: all but the number of records."""
        from fedsynth.federation.wire import encode

        return hashlib.sha256(encode(msgspec.structs.replace(self, records=1))).digest()

    def _prepared(self, schema: Schema) -> _Prepared:
        return _prepare(_Key(self._content, schema.digest, self, schema))

    def _checked(self, sizes: Sequence[int]) -> None:
        """Raise :class:`InvalidParameter` unless the model can be evaluated, and scores be made of it."""
        _check_cliques(self.candidates, sizes)
        _check_cliques(self.factors, sizes)
        count, cells = len(self.candidates), sum(_cells(sizes, q) for q in self.candidates)
        if cells > MOST_CELLS:
            raise InvalidParameter(f"candidates of {cells} cells are too large (at most {MOST_CELLS}); ask for fewer")
        for what, values, low, high in (
            ("weights", self.weights, 1, MOST_WEIGHT),
            ("penalties", self.penalties, 1 - MOST_PENALTY, MOST_PENALTY - 1),
        ):
            if values.shape != (count,) or not (low <= values.min() and values.max() <= high):
                raise InvalidParameter(f"{what} of {count} candidates are {count} integers from {low} to {high}")
        if self.potentials.shape != (sum(_cells(sizes, q) for q in self.factors),):
            raise InvalidParameter("the model's potentials are not one for each cell of its factors")
        if np.abs(self.potentials).max() > _MOST_POTENTIAL:
            raise InvalidParameter(f"the model's potentials are at most {_MOST_POTENTIAL:g}")
        _check_model(sizes, self.factors)
        if self.by_column is not None and self.by_candidate is not None:
            raise InvalidParameter("shares of all sites are given by column or by candidate, not by both")
        _check_shares(self.by_column, [(j,) for j in range(len(sizes))], sizes)
        _check_shares(self.by_candidate, self.candidates, sizes)
        if (self.steps > 1) != (self.measured is not None):
            raise InvalidParameter("several steps need what the model was fitted to, and one step needs it not")
        if self.measured is not None:
            self.measured.check(sizes)
            held = [frozenset(q) for q in self.measured.cliques]
            if any(len(q) > 1 and not any(table.issuperset(q) for table in held) for q in self.factors):
                raise InvalidParameter("every factor of the model must lie in a measured table")
            _check_model(sizes, self.measured.cliques)

    def _adapted(self, model: MarkovRandomField, looks: Sequence[Look]) -> MarkovRandomField:
        """Return the model fitted, at this site, to the global measurements and to its own noisy looks.

        A look that would make the model too large is left out.
        """
        from fedsynth.models.estimate import Measurement

        assert self.measured is not None
        tables = self.measured.measurements(model.sizes)
        factor = self.measured.total / self.records
        for look in looks:
            q = self.candidates[look.candidate]
            if fits(model.sizes, [m.clique for m in tables], q, 8 * MOST_CELLS / 2**20):
                values = look.values.reshape([model.sizes[j] for j in q]).astype(np.float64) * factor
                tables.append(Measurement(q, values, max(look.std, 1e-6) * factor))
        return fit_noisy(model.sizes, tables, self.measured.total, self.measured.iterations, model, one_cohort=False)


@dataclass(frozen=True)
class _Key:
    """Scores by content: those of sites of other numbers of records find the same evaluation."""

    content: bytes
    schema_digest: str
    scores: Scores = field(compare=False)
    schema: Schema = field(compare=False)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """The checked model, and its share of each candidate's cells, one candidate after the other, in parts of GRID."""

    model: MarkovRandomField
    shares: Integers
    candidates: _Layout
    columns: _Layout


@lru_cache(maxsize=2)
def _prepare(key: _Key) -> _Prepared:
    """Check parameters and evaluate the model on every candidate, once for all sites of a process that share both."""
    from fedsynth.models.mrf import MarkovRandomField

    scores, sizes = key.scores, key.schema.sizes
    scores._checked(sizes)
    total = 1.0 if scores.measured is None else scores.measured.total
    model = MarkovRandomField(sizes, total, scores.factors, _tables(scores.potentials, scores.factors, sizes))
    columns = [(j,) for j in range(len(sizes))]
    return _Prepared(
        model, _shares(model, scores.candidates), _Layout.of(scores.candidates, sizes), _Layout.of(columns, sizes)
    )


@dataclass(frozen=True, eq=False)
class _Layout:
    """Tables laid one after the other: ``starts`` (tables,) says where each begins, ``cells`` how long all are.

    Table t is over the columns ``columns[:, t]`` where ``members[:, t]`` is 1 (it is 0 beyond the table's order), with
    the steps ``strides[:, t]`` along them.
    """

    cliques: tuple[Clique, ...]
    sizes: Integers
    starts: Integers
    columns: Integers
    members: Integers
    strides: Integers

    @classmethod
    def of(cls, cliques: Sequence[Clique], sizes: Sequence[int]) -> _Layout:
        """Return the layout of the tables of ``cliques``."""
        shape = max(map(len, cliques)), len(cliques)
        columns, members, strides = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        for at, q in enumerate(cliques):
            columns[: len(q), at], members[: len(q), at] = q, 1
            strides[: len(q), at] = np.cumprod([1, *(sizes[j] for j in reversed(q))])[:-1][::-1]
        cells = np.array([_cells(sizes, q) for q in cliques])
        return cls(tuple(cliques), cells, np.cumsum(cells) - cells, columns, members, strides)

    def distances(self, rows: Rows, records: int, expected: Sequence[Integers]) -> list[Integers]:
        """Return the sum over cells of | GRID count - records S | of each table, for each S of ``expected``.

        Every cell is visited, whether it occurs or not, or else every row; which, and how long it takes, depends on
        the numbers of cells and rows alone.
        """
        cells, visits = int(self.sizes.sum()), len(rows) * len(self.cliques)
        if cells <= _MOST_LOOKED_UP and visits <= min(cells, _BLOCK):
            return self._by_row(rows, records, expected)
        return self._by_cell(rows, records, expected)

    def _by_cell(self, rows: Rows, records: int, expected: Sequence[Integers]) -> list[Integers]:
        """Visit all cells, a block of tables at a time."""
        axes = [Axis(column) for column in range(len(rows.schema.columns))]
        found: list[list[Integers]] = [[] for _ in expected]
        first = 0
        while first < len(self.cliques):
            start = int(self.starts[first])
            last = max(first + 1, int(np.searchsorted(self.starts + self.sizes, start + _BLOCK, side="right")))
            counts = np.concatenate([table.ravel() for table in rows.tables(axes, self.cliques[first:last])])
            counts *= GRID
            for whole, distances in zip(expected, found, strict=True):
                apart = whole[start : start + len(counts)] * records
                np.subtract(counts, apart, out=apart)
                np.abs(apart, out=apart)
                distances.append(np.add.reduceat(apart, self.starts[first:last] - start))
            first = last
        return [np.concatenate(distances) for distances in found]

    def _by_row(self, rows: Any, records: int, expected: Sequence[Integers]) -> list[Integers]:
        """Visit the cells of the rows, the last row of each cell for all: of the other cells the sum is known.

        A cell without rows adds records S, so that a table's distance is that of no rows, records sum S, and what the
        cells that occur differ from it.
        """
        codes = np.stack([column.astype(np.int64) for column in rows.codes])
        places = np.zeros((len(self.cliques), len(rows)), dtype=np.int64) + self.starts[:, None]
        for columns, strides in zip(self.columns, self.strides, strict=True):
            places += codes[columns] * strides[:, None]
        cells = int(self.sizes.sum())
        counts = GRID * np.bincount(places.ravel(), minlength=cells)[places]
        visit = np.arange(places.size).reshape(places.shape)
        last = np.empty(cells, dtype=np.int64)
        last[places] = visit
        occurs = last[places] == visit
        found = []
        for whole in expected:
            apart = whole[places] * records
            changed = (np.abs(counts - apart) - apart) * occurs
            found.append(records * np.add.reduceat(whole, self.starts) + changed.sum(axis=1))
        return found


def _shares(model: MarkovRandomField, cliques: Sequence[Clique]) -> Integers:
    """Return the model's share of each cell of ``cliques``, one after the other, in parts of GRID."""
    answers = model.marginals(cliques)
    return on_grid([answers[q] / model.total for q in cliques])


def on_grid(shares: Sequence[Floats]) -> Integers:
    """Return tables of shares as integers in parts of ``GRID``, one after the other."""
    return np.rint(np.clip(np.nan_to_num(_flat(shares)), 0.0, 1.0) * GRID).astype(np.int64)


def _flat(tables: Sequence[Floats]) -> Floats:
    """Return tables one after the other; no zero has a sign, as the wire requires."""
    return np.concatenate([table.ravel() for table in tables]) + 0.0


def _tables(flat: Floats, cliques: Sequence[Clique], sizes: Sequence[int]) -> list[Floats]:
    shapes = [tuple(sizes[j] for j in q) for q in cliques]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def _cells(sizes: Sequence[int], clique: Clique) -> int:
    return math.prod(sizes[j] for j in clique)


def _check_cliques(cliques: Sequence[Clique], sizes: Sequence[int]) -> None:
    for q in cliques:
        if q[-1] >= len(sizes) or any(a >= b for a, b in itertools.pairwise(q)):
            raise InvalidParameter(f"a clique is made of columns below {len(sizes)}, in increasing order, not of {q}")


def _check_model(sizes: Sequence[int], factors: Sequence[Clique]) -> None:
    from fedsynth.models.junction_tree import junction_tree_cells

    cells = junction_tree_cells(sizes, factors)
    if cells > MOST_CELLS:
        raise InvalidParameter(f"a model of {cells} cells is too large (at most {MOST_CELLS}); use a smaller one")


def _check_shares(found: Integers | None, cliques: Sequence[Clique], sizes: Sequence[int]) -> None:
    """Refuse shares that are not integers in parts of GRID, whose sums are twice a whole at most."""
    if found is None:
        return
    cells = [_cells(sizes, q) for q in cliques]
    if found.shape != (sum(cells),) or not (found.min() >= 0 and found.max() <= GRID):
        raise InvalidParameter(f"shares of all sites are one integer from 0 to {GRID} for each cell")
    if np.add.reduceat(found, np.cumsum([0, *cells[:-1]])).max() > 2 * GRID:
        raise InvalidParameter("shares of all sites add up to more than rounding explains")


# ---------------------------------------------------------------------------------------------------------------------
# The server's side


@dataclass
class Rounds:
    """The server's side of a run: what is measured so far, in records of the whole federation, and the model of it."""

    federation: Federation
    records: dict[str, float]
    total: float
    measured: list[Measurement] = field(default_factory=list)
    model: MarkovRandomField | None = None

    def measure(self, cohort: Federation, per_site: Mapping[str, Sequence[Clique]], share_each: float) -> None:
        """Sum each clique over the sites of ``cohort`` that picked it; one noisy table per distinct clique."""
        queries = {q: table_of(q) for picked in per_site.values() for q in picked}
        asked = {site: [queries[q] for q in dict.fromkeys(picked)] for site, picked in per_site.items() if picked}
        if asked:
            self._remember(cohort.sums(asked, share_each))

    def measure_together(self, cohort: Federation, cliques: Sequence[Clique], share: float) -> None:
        """Sum all ``cliques`` over the whole cohort in one question, for ``share`` together."""
        self._remember([cohort.sum(Counts.of(len(self.federation.schema.columns), cliques), share)])

    def refit(self, iterations: int) -> MarkovRandomField:
        """Fit the model to everything measured so far, starting from the last one."""
        sizes = self.federation.schema.sizes
        self.model = fit_noisy(sizes, self.measured, self.total, iterations, self.model, one_cohort=False)
        return self.model

    def _remember(self, sums: Sequence[Sum]) -> None:
        """Scale each sum, and its noise, from its sites' records to all records, so that the fit weighs it rightly."""
        for released in sums:
            self.measured += measurements(released, self.total / sum(self.records[site] for site in released.sites))


@dataclass(frozen=True)
class Settings:
    """What all FLAIM variants share.

    Parameters
    ----------
    workload
        Marginals that matter; ``None``: all pairs of columns.
    rounds, rate
        T rounds, in each of which a site takes part with probability ``rate``.
    steps
        Local steps s: marginals that a site picks per round.
    cap
        R: rounds that a site may join at most (``None``: all T). Noise is sized for R rounds instead of T.
    measure_share, size_share
        Shares of the budget for measuring (selection gets the rest), and for sites' sizes where they are not
        public.
    max_megabytes, iterations, final_iterations
        As for AIM.
    """

    workload: Workload | None = None
    rounds: int = 10
    rate: float = 0.1
    steps: int = 1
    cap: int | None = None
    measure_share: float = 0.9
    size_share: float = 0.01
    max_megabytes: float = 80.0
    iterations: int = 50
    final_iterations: int = 500

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(measure_share=self.measure_share, size_share=self.size_share)
        positive(
            rounds=self.rounds,
            rate=self.rate,
            steps=self.steps,
            cap=self.cap,
            max_megabytes=self.max_megabytes,
            iterations=self.iterations,
            final_iterations=self.final_iterations,
        )

    @property
    def joined(self) -> int:
        """Rounds that the worst-placed record is charged for."""
        return self.rounds if self.cap is None else min(self.cap, self.rounds)


def _start(federation: Federation, settings: Settings) -> tuple[Rounds, float]:
    """Return the empty run, over the sites that said how many records they have, and the share that is left to it."""
    records, spent = site_records(federation, settings.size_share)
    federation = replace(federation, sites=tuple(site for site in federation.sites if site in records))
    return Rounds(federation, records, sum(records.values())), 1 - spent


def _pick(
    cohort: Federation,
    run: Rounds,
    settings: Settings,
    candidates: Sequence[Clique],
    share_pick: float,
    share_look: float,
    *,
    by_column: Integers | None = None,
    by_candidate: Integers | None = None,
) -> dict[str, list[Clique]]:
    """Let every site of the cohort pick ``settings.steps`` candidates on its own rows."""
    from fedsynth.federation.vault import integer_weights

    model = run.model
    assert model is not None
    workload = settings.workload or all_marginals(len(model.sizes), min(2, len(model.sizes)))
    steps = settings.steps
    share_looks = (steps - 1) * share_look
    share = steps * share_pick + share_looks
    # The noise is added once to the sum over all sites that pick the same candidate: between one of them
    # and the whole expected cohort. Which is unknown beforehand; the geometric mean of both shares the
    # noise out.
    std = cohort.std(table_of(candidates[0]), share_look, 1)
    crowd = max(1.0, settings.rate * len(run.federation.sites)) ** 0.5
    noise = NOISE_L1 * std / crowd * np.array([_cells(model.sizes, q) for q in candidates])
    weight = integer_weights(np.array(weights(candidates, workload)))
    shared = Scores(
        steps=steps,
        look_share=share_looks / share,
        records=1,
        candidates=tuple(candidates),
        weights=weight,
        penalties=np.rint(np.minimum(GRID * weight * noise, MOST_PENALTY / 2)).astype(np.int64),
        factors=model.factors,
        potentials=_flat(model.potentials),
        by_column=by_column,
        by_candidate=by_candidate,
        measured=None if steps == 1 else Measured.of(run.measured, run.total, settings.iterations),
    )
    of_records: dict[int, Scores] = {}
    asked = {}
    for site in cohort.sites:
        records = min(round(run.records[site]), MOST_ROWS)
        asked[site] = of_records.setdefault(records, msgspec.structs.replace(shared, records=records))
    picks = cohort.choose(asked, share)
    return {site: [candidates[index] for index in indices] for site, indices in picks.items()}


def _candidates(run: Rounds, settings: Settings, smallest: int, done: float) -> list[Clique]:
    """Return the workload's closure from order ``smallest`` up, as far as the model may grow at ``done`` of 1."""
    model = run.model
    assert model is not None
    workload = settings.workload or all_marginals(len(model.sizes), min(2, len(model.sizes)))
    closure = [q for q in downward_closure(workload) if len(q) >= smallest]
    limit = settings.max_megabytes * done
    return [q for q in closure if fits(model.sizes, model.cliques, q, limit)]


def _together(run: Rounds, picks: Mapping[str, list[Clique]], megabytes: float) -> dict[str, list[Clique]]:
    """Return the picks that one model can hold: those of most sites first, each while all still fit.

    Every site picked what fits alone; together their cliques could close cycles of any size.
    """
    model = run.model
    assert model is not None
    votes = Counter(q for chosen in picks.values() for q in set(chosen))
    held = list(model.cliques)
    for q, _ in votes.most_common():
        if fits(model.sizes, held, q, megabytes):
            held.append(q)
    return {site: [q for q in chosen if q in held] for site, chosen in picks.items()}


def _ones(federation: Federation) -> list[Clique]:
    return [(j,) for j in range(len(federation.schema.sizes))]


def _result(run: Rounds, name: str, settings: Settings) -> GraphicalSynthesizer:
    from fedsynth.models.synthesizer import GraphicalSynthesizer

    model = run.refit(settings.final_iterations)
    cliques = [list(m.clique) for m in run.measured if len(m.clique) > 1]
    info = {"method": name, "cap": settings.cap, "cliques": cliques}
    return GraphicalSynthesizer(run.federation.schema, model, info)


# ---------------------------------------------------------------------------------------------------------------------
# The methods


@dataclass(frozen=True)
class FLAIM(Settings):
    """FLAIM as first stated: every site scores candidates by the model's error on its own rows alone."""

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend the federation's budget, and return the generator."""
        ones = _ones(federation)
        run, share = _start(federation, self)
        share_measure = self.measure_share * share / (self.joined * (2 * self.steps - 1) + len(ones))
        share_pick = (1 - self.measure_share) * share / (self.joined * self.steps)

        for t in range(self.rounds):
            if not run.federation.available(self.cap):
                break
            cohort = run.federation.cohort(self.rate, self.cap)
            if t == 0:
                run.measure_together(cohort, ones, share_measure * len(ones))
                run.refit(self.iterations)
            candidates = _candidates(run, self, 1, (t + 1) / self.rounds)
            picks = _pick(cohort, run, self, candidates, share_pick, share_measure)
            run.measure(cohort, _together(run, picks, self.max_megabytes), share_measure)
            run.refit(self.iterations)
            federation.progress("FLAIM rounds", t + 1, self.rounds)
        return _result(run, "flaim", self)


@dataclass(frozen=True)
class AugFLAIM(Settings):
    """FLAIM with heterogeneity taken out of the scores, by a private proxy.

    Every round re-measures the 1-way marginals over its cohort. A candidate's score is then reduced by how
    far the site's own 1-way marginals are from those of all.
    """

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend the federation's budget, and return the generator."""
        ones = _ones(federation)
        run, share = _start(federation, self)
        share_measure = self.measure_share * share / (self.joined * (2 * self.steps - 1 + len(ones)))
        share_pick = (1 - self.measure_share) * share / (self.joined * self.steps)

        for t in range(self.rounds):
            if not run.federation.available(self.cap):
                break
            cohort = run.federation.cohort(self.rate, self.cap)
            run.measure_together(cohort, ones, share_measure * len(ones))
            model = run.refit(self.iterations)
            # The model's own 1-ways are those of all rounds, combined by inverse variance and denoised by
            # the fit.
            proxy = _shares(model, ones)
            candidates = _candidates(run, self, 2, (t + 1) / self.rounds)
            if candidates:
                picks = _pick(cohort, run, self, candidates, share_pick, share_measure, by_column=proxy)
                run.measure(cohort, _together(run, picks, self.max_megabytes), share_measure)
            federation.progress("AugFLAIM rounds", t + 1, self.rounds)
        return _result(run, "augflaim", self)


@dataclass(frozen=True)
class AugFLAIMOracle(Settings):
    """NOT PRIVATE: FLAIM with heterogeneity taken out by the exact marginals of all sites, which nobody has.

    A yardstick for :class:`AugFLAIM`. Sites refuse it unless their policy allows exact releases, and the
    ledger says that nothing is guaranteed.
    """

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.federation.federation import EXACT

        ones = _ones(federation)
        run, share = _start(federation, self)
        share_measure = self.measure_share * share / (self.joined * (2 * self.steps - 1) + len(ones))
        share_pick = (1 - self.measure_share) * share / (self.joined * self.steps)
        workload = self.workload or all_marginals(len(ones), min(2, len(ones)))
        closure = downward_closure(workload)
        tables = federation.sum(Counts.of(len(ones), closure), EXACT).tables
        truth = {q: table / max(1.0, table.sum()) for q, table in zip(closure, tables, strict=True)}

        for t in range(self.rounds):
            if not run.federation.available(self.cap):
                break
            cohort = run.federation.cohort(self.rate, self.cap)
            if t == 0:
                run.measure_together(cohort, ones, share_measure * len(ones))
                run.refit(self.iterations)
            candidates = _candidates(run, self, 1, (t + 1) / self.rounds)
            proxy = on_grid([truth[q] for q in candidates])
            picks = _pick(cohort, run, self, candidates, share_pick, share_measure, by_candidate=proxy)
            run.measure(cohort, _together(run, picks, self.max_megabytes), share_measure)
            run.refit(self.iterations)
            federation.progress("AugFLAIM (oracle) rounds", t + 1, self.rounds)
        return _result(run, "augflaim-oracle", self)


@dataclass(frozen=True)
class RandomFLAIM(Settings):
    """FLAIM without selection: the server draws one candidate a round, uniformly, for all sites of the cohort."""

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend the federation's budget, and return the generator."""
        ones = _ones(federation)
        run, share = _start(federation, self)
        share_measure = share / (self.joined + len(ones))

        for t in range(self.rounds):
            if not run.federation.available(self.cap):
                break
            cohort = run.federation.cohort(self.rate, self.cap)
            if t == 0:
                run.measure_together(cohort, ones, share_measure * len(ones))
                run.refit(self.iterations)
            candidates = _candidates(run, self, 1, (t + 1) / self.rounds)
            drawn = candidates[int(federation.rng.integers(len(candidates)))]
            run.measure_together(cohort, [drawn], share_measure)
            run.refit(self.iterations)
            federation.progress("RandomFLAIM rounds", t + 1, self.rounds)
        return _result(run, "randomflaim", self)


@dataclass(frozen=True)
class FedNaiveBayes:
    """The 1-way marginals of one cohort and nothing else: columns become independent. The floor for all the others.

    ``rate`` is the probability with which a site takes part; ``size_share`` the share of the budget for
    sites' sizes.
    """

    rate: float = 0.1
    size_share: float = 0.01

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend the federation's budget, and return the generator."""
        settings = Settings(rate=self.rate, size_share=self.size_share)
        run, share = _start(federation, settings)
        run.measure_together(run.federation.cohort(self.rate), _ones(federation), share)
        return _result(run, "fednaivebayes", settings)
