"""A small table with every kind of column, ways to split it, and encodings of it, for the tests of Fed-TDA."""

from __future__ import annotations

import numpy as np
import pandas as pd
from tests.world import warned_of_empty

from fedsynth.bench.published.tda_sums import MixtureEncoding, MixtureSums, MomentSums
from fedsynth.encoding import encode
from fedsynth.federation.federation import Federation
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.tda import encoding
from fedsynth.methods.tda_sums import Encodings
from fedsynth.models.copula import OneAxis
from fedsynth.models.normal_scores import NormalScores
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Axis, Floats, Grid
from fedsynth.schema.columns import fine_cells

BUDGET = Budget(1.0, 1e-6)
REPLICA_QUERIES = (MomentSums, MixtureSums)
SCHEMA = Schema(
    (
        Categorical("town", ("a", "b", "c", "d"), missing=True),
        Numeric("income", 0.0, 100.0, missing=True),
        Boolean("ill"),
        Numeric("age", 0, 90, integer=True, bins=10),
        Datetime("seen", "2024-01-01", "2025-01-01", unit="D"),
        Categorical("grade", ("low", "middle", "high"), ordered=True),
    )
)


def rows(count: int, seed: int) -> Table:
    """Return rows of dependent columns, some values missing and many incomes zero."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(count)
    income = np.where(z < -0.5, 0.0, np.clip(20 + 15 * z, 0, 100))
    frame = pd.DataFrame(
        {
            "town": pd.Series(np.array(["a", "b", "c", "d"])[np.clip((z * 1.2 + 2).astype(int), 0, 3)], dtype=object),
            "income": pd.Series(income).mask(rng.random(count) < 0.1),
            "ill": rng.random(count) < 1 / (1 + np.exp(2 * z)),
            "age": np.clip(rng.normal(45, 20, count) + 5 * z, 0, 90).astype(int),
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 366, count), "D"),
            "grade": np.array(["low", "middle", "high"])[np.digitize(z + rng.normal(0, 0.5, count), [-0.4, 0.6])],
        }
    )
    frame.loc[rng.random(count) < 0.05, "town"] = None
    return encode(SCHEMA, frame)


def partitions(table: Table) -> dict[str, list[Table]]:
    """Return ways to split the same rows: pooled, with an empty and a one-row site, and one town a site."""
    towns = [table.take(table.codes[0] == code) for code in range(5)]
    return {
        "pooled": [table],
        "empty and one row": [table.take(np.arange(0)), table.take(np.arange(1)), table.take(np.arange(1, len(table)))],
        "one town each": towns,
    }


def exact(tables: list[Table]) -> Federation:
    """Return a federation whose sums have no noise."""
    with warned_of_empty(tables):
        return federate(tables, tables[0].schema, Budget.none(), trust=TrustedServer(), seed=0, queries=REPLICA_QUERIES)


def grids(bins: int) -> list[Grid | None]:
    """Return public cells of the numbers."""
    return [fine_cells(one, bins) if isinstance(one, Numeric | Datetime) else None for one in SCHEMA.columns]


def histograms(table: Table, bins: int) -> list[Floats]:
    """Return the counts of each column in those cells."""
    axes = [Axis(at, None if grid is None else grid.cuts) for at, grid in enumerate(grids(bins))]
    return [counts.astype(float) for counts in table.tables(axes, [(at,) for at in range(len(axes))])]


def scores_of(table: Table, bins: int = 32) -> list[NormalScores]:
    """Return the columns on normal axes, by their histograms."""
    return [NormalScores.of(counts) for counts in histograms(table, bins)]


def encodings(axes: list[NormalScores], bins: int = 32) -> Encodings:
    """Return how sites encode those columns."""
    return tuple(encoding(OneAxis(axis, grid)) for axis, grid in zip(axes, grids(bins), strict=True))


def of_replicas(columns: Encodings) -> tuple[MixtureEncoding, ...]:
    """Return the same encodings as replicas send them."""
    return tuple(MixtureEncoding(column.scores, column.cuts) for column in columns)


def with_mixture(
    columns: Encodings, at: int, scores: list[int], mixture: list[list[float]]
) -> tuple[MixtureEncoding, ...]:
    """Return the encodings with a mixture in place of column ``at``'s cells."""
    changed = MixtureEncoding(np.array(scores), mixture=np.array(mixture, dtype=np.float64))
    plain = of_replicas(columns)
    return (*plain[:at], changed, *plain[at + 1 :])
