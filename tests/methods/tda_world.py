"""A small table with every kind of column, ways to split it, and encodings of it, for the tests of Fed-TDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedsynth.federation.federation import Federation
from fedsynth.federation.simulation import federate
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.methods.tda import encoding
from fedsynth.models.axis import Axis, Grid, cell_count, cells_of
from fedsynth.models.copula import Cellwise
from fedsynth.privacy.release import Budget
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.table import Table

BUDGET = Budget(1.0, 1e-6)
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
    return SCHEMA.encode(frame)


def partitions(table: Table) -> dict[str, list[Table]]:
    """Return ways to split the same rows: pooled, with an empty and a one-row site, and one town a site."""
    towns = [table.take(table.codes[0] == code) for code in range(5)]
    return {
        "pooled": [table],
        "empty and one row": [table.take(np.arange(0)), table.take(np.arange(1)), table.take(np.arange(1, len(table)))],
        "one town each": towns,
    }


def exact(tables: list[Table]) -> Federation:
    return federate(tables, tables[0].schema, BUDGET, trust=TrustedServer(), seed=0, exact=True)


def axes_of(table: Table, bins: int = 32) -> list[Axis]:
    return [
        Axis.of(np.bincount(cells_of(table, at, bins), minlength=cell_count(column, bins)).astype(float))
        for at, column in enumerate(table.schema.columns)
    ]


def encodings(axes: list[Axis], bins: int = 32) -> list[dict[str, Any]]:
    return [
        encoding(Cellwise(axis, Grid.of(column, bins) if isinstance(column, Numeric | Datetime) else None))
        for axis, column in zip(axes, SCHEMA.columns, strict=True)
    ]
