"""A made table of a telephone company's customers, with values that hang on each other as real ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsynth.schema import (
    Boolean,
    Categorical,
    Computed,
    Datetime,
    Identifier,
    Numeric,
    Rule,
    Schema,
    Stored,
)

SERVICES = ("security", "backup", "tv")
SCHEMA = Schema(
    (
        Identifier("customer", "C-######"),
        Numeric("tenure", 1, 72, integer=True, bins=24),
        Categorical("internet", ("no", "dsl", "fiber")),
        *(Categorical(name, ("none", "no", "yes")) for name in SERVICES),
        Numeric("monthly", 18, 120, decimals=2),
        Numeric("total", 0, 9000, decimals=2, stored=Stored(ratio=("total", "tenure"), lower=15, upper=125)),
        Categorical("contract", ("month", "year")),
        Datetime("begin", "2018-01-01", "2023-01-01", unit="D"),
        Datetime(
            "end",
            "2018-01-01",
            "2024-01-01",
            unit="D",
            stored=Stored(difference=("end", "begin"), unit="day", lower=0, upper=365),
        ),
        Numeric("days", 0, 365, integer=True, computed=Computed(difference=("end", "begin"), unit="day")),
        Boolean("online", computed=Computed(lookup="internet", table={"no": False, "dsl": True, "fiber": True})),
    ),
    rules=(
        *(Rule({"internet": ["no"], name: ["no", "yes"]}) for name in SERVICES),
        *(Rule({"internet": ["dsl", "fiber"], name: ["none"]}) for name in SERVICES),
    ),
)


def customers(rows: int, seed: int) -> pd.DataFrame:
    """Return what sites hold: neither identifiers nor computed columns; no row breaks a rule or a bound."""
    rng = np.random.default_rng(seed)
    tenure = np.clip(np.round(rng.gamma(1.2, 30, rows)), 1, 72).astype(int)
    internet = rng.choice(["no", "dsl", "fiber"], rows, p=[0.22, 0.34, 0.44])
    monthly = np.select([internet == "no", internet == "dsl"], [20, 45], 75) + rng.normal(0, 4, rows)
    frame: dict[str, Any] = {"tenure": tenure, "internet": internet}
    for name in SERVICES:
        takes = rng.random(rows) < 0.2 + 0.4 * tenure / 72
        frame[name] = np.where(internet == "no", "none", np.where(takes, "yes", "no"))
        monthly += 8 * (frame[name] == "yes")
    frame["monthly"] = np.clip(np.round(monthly, 2), 18, 120)
    frame["total"] = np.round(tenure * frame["monthly"] * rng.uniform(0.97, 1.03, rows), 2)
    frame["contract"] = np.where(rng.random(rows) < np.clip(1 - tenure / 60, 0.1, 0.9), "month", "year")
    begin = pd.Series(pd.Timestamp("2018-01-01") + pd.to_timedelta(rng.integers(0, 1500, rows), unit="D"))
    frame["begin"] = begin
    frame["end"] = begin + pd.to_timedelta(np.minimum(rng.exponential(30, rows).astype(int), 364), unit="D")
    return pd.DataFrame(frame)


def broken(frame: pd.DataFrame) -> dict[str, int]:
    """Return by hand how many rows of a published table break what the schema says."""
    found = {
        "end before begin": pd.to_datetime(frame["end"]) < pd.to_datetime(frame["begin"]),
        "days": (pd.to_datetime(frame["end"]) - pd.to_datetime(frame["begin"])).dt.days != frame["days"],
        "online": (frame["internet"] != "no") != frame["online"],
        "ratio": ~(frame["total"] / frame["tenure"]).between(14.99, 125.01),
        "customer": frame["customer"].duplicated(),
    }
    found |= {name: (frame["internet"] == "no") != (frame[name] == "none") for name in SERVICES}
    return {name: int(mask.sum()) for name, mask in found.items() if mask.any()}


def write(folder: Path, rows: int, seed: int) -> tuple[Path, Path]:
    customers(rows, seed).to_csv(folder / "customers.csv", index=False)
    SCHEMA.save(folder / "customers.toml")
    return folder / "customers.csv", folder / "customers.toml"
