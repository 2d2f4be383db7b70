"""A made table whose columns have the shapes that bins of one width lose: zeros, tails, few values, dates in order."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedsynth.encoding import encode
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

ROWS = 7000
DOSES = (0.125, 0.25, 0.5, 1.0, 3.3333)  # a float column has no other values, and the schema does not know them
ACCOUNTS = tuple(str(9_007_199_254_740_993 + 10_000_019 * k) for k in range(6))  # above 2^53: no double holds them
SCHEMA = Schema(
    (
        Numeric("gain", 0.0, 1e5, missing=True),
        Numeric("tenure", 0, 72, integer=True),
        Numeric("monthly", 0.0, 200.0, decimals=2),
        Numeric("total", 0.0, 20_000.0, decimals=2),
        Numeric("spend", 0.0, 1e6),
        Numeric("dose", 0.0, 10.0),
        Datetime("start", "2000-01-01", "2030-01-01", unit="D"),
        Datetime("end", "2000-01-01", "2030-01-01", unit="D"),
        Categorical("account", ACCOUNTS),
        Categorical("region", ("north", "east", "south", "west", "abroad")),
        Categorical("plan", ("month", "year", "two years")),
        Boolean("left"),
    )
)


def shapes(seed: int, rows: int = ROWS) -> pd.DataFrame:
    """Return such rows: real numbers are written in full, and the bounds of the schema are far from most of them."""
    rng = np.random.default_rng(seed)
    tenure = rng.integers(0, 73, rows)
    plan = np.digitize(tenure / 72 + rng.normal(0, 0.35, rows), [0.45, 0.8])
    monthly = np.round(np.clip(18 + 100 * rng.beta(1.3, 1.5, rows), 18, 118), 2)
    total = np.round(tenure * monthly * (1 + rng.normal(0, 0.03, rows)), 2)
    spend = np.minimum(np.exp(np.log(48) + 1.7 * rng.standard_normal(rows)), 1e6)
    dose = rng.choice(DOSES, rows, p=[0.1, 0.3, 0.35, 0.2, 0.05])
    zero = rng.random(rows) < np.where(plan == 0, 0.9, 0.68)
    gain = np.where(zero, 0.0, np.minimum(np.exp(5 + 1.2 * rng.standard_normal(rows)), 1e5))
    start = np.datetime64("2015-01-01") + np.round(3000 * rng.beta(1.5, 1.2, rows)).astype(int)
    account = rng.choice(len(ACCOUNTS), rows, p=[0.4, 0.25, 0.15, 0.1, 0.07, 0.03])
    region = np.where(rng.random(rows) < 0.5, account % 4, rng.integers(0, 5, rows))
    score = 1.2 - tenure / 18 - 1.3 * plan + 1.5 * (dose >= 1) + 1.0 * zero + monthly / 60 + rng.logistic(0, 0.7, rows)
    return pd.DataFrame(
        {
            "gain": np.where(rng.random(rows) < 0.03, np.nan, gain),
            "tenure": tenure,
            "monthly": monthly,
            "total": np.maximum(total, 0.0),
            "spend": spend,
            "dose": dose,
            "start": start.astype("datetime64[s]"),
            "end": (start + np.minimum(rng.exponential(400, rows), 3000).astype(int)).astype("datetime64[s]"),
            "account": np.array([int(text) for text in ACCOUNTS])[account],
            "region": np.array(["north", "east", "south", "west", "abroad"])[region],
            "plan": np.array(["month", "year", "two years"])[plan],
            "left": score > 0,
        }
    )


def at_sites(seed: int, sites: int) -> dict[str, Table]:
    """Return the rows at so many sites, each with its share of them."""
    table = encode(SCHEMA, shapes(seed))
    return {f"s{k}": table.take(np.arange(k, len(table), sites)) for k in range(sites)}
