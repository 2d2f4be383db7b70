"""An evaluation and a run directory for the tests of the report: every kind of column, and ugly names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedsynth.evaluation.plot_data import plot_data
from fedsynth.evaluation.report import Evaluation
from fedsynth.evaluation.score import Estimate, Family, Score, Verdict
from fedsynth.privacy.cost import Budget, Norms
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import noise_for
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Column, Datetime, Numeric, Schema
from fedsynth.statement import Statement
from fedsynth.terms import Terms

SCRIPT = "<script>alert(1)</script>"
QUOTES = "\"& ' > <img src=x onerror=alert(1)>"
LONG = "a_very_long_name_" * 20
LIMIT = Budget(1.0, 1e-6)
UNICODE = "Größe 身長 الطول 👩‍⚕️"


def columns() -> tuple[Column, ...]:
    return (
        Numeric("age", 0, 120, bins=24, integer=True),
        Categorical(SCRIPT, ("f", "m", QUOTES)),
        Categorical(QUOTES, tuple(f"{SCRIPT}{at}" for at in range(30)), missing=True),
        Numeric(LONG, -5.0, 5.0, bins=10, missing=True),
        Categorical(UNICODE, ("ja", "はい", LONG), ordered=True),
        Boolean("smokes", missing=True),
        Datetime("seen", "2020-01-01", "2024-01-01", bins=16, unit="D"),
    )


def table(schema: Schema, rows: int, seed: int, tilt: float = 0.0) -> Table:
    """Return rows whose columns all lean on one hidden value; ``tilt`` shifts them."""
    rng = np.random.default_rng(seed)
    hidden = rng.beta(2, 3 - tilt, rows)
    values = []
    for column in schema.stored:
        size = column.size - column.missing
        share = np.clip(0.5 * hidden + 0.5 * rng.random(rows), 0, 1 - 1e-9)
        gone = column.missing & (rng.random(rows) < 0.1)
        if isinstance(column, Numeric | Datetime):
            edges = np.asarray(column.bin_edges, dtype=np.float64)
            values.append(np.where(gone, np.nan, np.floor(edges[0] + share * (edges[-1] - edges[0]))))
        else:
            values.append(np.where(gone, column.size - 1, (share * size).astype(np.int64)))
    return Table.of(schema, values)


def score(
    family: Family,
    name: str,
    value: float,
    reference: float,
    *,
    best: float | None = None,
    verdict: Verdict = "",
    details: Mapping[str, tuple[float, float]] | None = None,
    band: float = 0.01,
) -> Score:
    return Score(
        family,
        name,
        Estimate(value, value - band, value + band),
        Estimate(reference, reference - band, reference + band),
        "the same number of other real rows",
        best,
        "a note of this score",
        details or {},
        verdict,
        f"What {name} says." if verdict else "",
    )


def evaluation(names: Sequence[Column] = (), *, target: str = "smokes", holdout: int = 500) -> Evaluation:
    """Return an evaluation with scores of all three families, or without utility if there is no target."""
    schema = Schema(tuple(names) or columns())
    real, synthetic = table(schema, 2000, 1), table(schema, 1800, 2, 0.6)
    classifiers = {"logistic regression": (0.87, 0.89), "random forest": (0.86, 0.90), "MLP": (math.nan, 0.88)}
    similarity = {name: (0.9 + at / 1000, 0.99) for at, name in enumerate(schema.names)}
    utility = (
        score("utility", "accuracy", 0.80, 0.84, best=1.0),
        score("utility", "ROC AUC", 0.865, 0.895, best=1.0, details=classifiers),
    )
    return Evaluation(
        (
            score("fidelity", "column similarity", 0.93, 0.99, best=1.0, details=similarity),
            score("fidelity", "pair similarity", 0.91, 0.97, best=1.0),
            score("fidelity", "Wasserstein distance", math.nan, 0.001, best=0.0, band=math.nan),
            score("fidelity", "log-cluster (20 clusters)", -4.5, -6.0),
            *(utility if target else ()),
            score("privacy", "DCR hold-out share", 0.503, 0.5, best=0.5, verdict="good"),
            score("privacy", "exact matches", 0.02, 0.015, best=0.0, verdict="review", band=math.nan),
            score("privacy", "membership inference: DOMIAS", 0.51, 0.5, best=0.5, verdict="good"),
        ),
        plot_data(real, synthetic),
        {"real": 2000, "synthetic": 1800, "holdout": holdout},
        target,
        ("300 random pairs of 1,770 were judged.",),
    )


def ledger(rounds: int = 3, sites: int = 4, budget: Budget = LIMIT, spent: float = 1.0) -> Ledger:
    """Return the account of a run that spends part of its budget in equal rounds."""
    book = Ledger(budget)
    names = tuple(f"site-{at:03d}" for at in range(sites))
    for step in range(rounds):
        release = noise_for(budget, spent / rounds)
        book.record(Entry(step, "sum", "counts", release, names, 100, release.cost(Norms(1, 1)), 12.5))
    return book


def run_directory(
    folder: Path, book: Ledger, rows: int = 7, *, said: Mapping[str, Any] | None = None, **job: Any
) -> Path:
    """Write what the report reads of a run; ``said`` changes its statement, ``job`` its run.toml."""
    folder.mkdir(parents=True)
    settings = {"method": "oneshot", "epsilon": 1.0, "delta": 1e-6, "data": "a.csv", "schema": "agreed.toml"}
    settings |= {"sites": 4, "partition": "label-skew:0.5", "trust": "trusted", "format": "csv"} | job
    kept = {name: value for name, value in settings.items() if value is not None}
    told = dict(said or {})
    agreed = {name: told.pop(name) for name in ("unit", "public_sizes") if name in told}
    schema = Schema((Categorical("name", ("a", "b")),), drafted=told.pop("schema_draft", False))
    terms = Terms(schema, book.budget, str(settings["trust"]), **agreed)
    statement = Statement(terms, spent=book.spent, exact_releases=book.exact_releases, **told)
    account = {**book.to_json(), "statement": statement.to_json()}
    made = {"fedsynth": "0.1.0", "numpy": "2.0", "schema_digest": "ab" * 32, "rows_digest": "cd" * 32}
    (folder / "run.toml").write_text(tomli_w.dumps({**kept, "made": made}), encoding="utf-8")
    (folder / "ledger.json").write_text(json.dumps(account), encoding="utf-8")
    lines = ["name,age", *(f'"two\nlines {at}",{at}' for at in range(rows))]
    (folder / "synthetic.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
