"""Rows, questions of every kind, and what pandas, numpy and scipy answer to them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from fedsynth.answers.declared import Declared, read_declared
from fedsynth.answers.questions import Answer
from fedsynth.schema import Boolean, Categorical, Numeric, Schema

WARDS = ("cardiology", "medicine", "surgery")
SCHEMA = Schema(
    (
        Categorical("ward", WARDS, missing=True),
        Categorical("sex", ("f", "m")),
        Boolean("smoker", missing=True),
        Numeric("age", 0, 110, bins=11, integer=True),
        Numeric("nights", 0, 60, integer=True, missing=True),
        Numeric("bill", 0, 60_000, decimals=2),
        Categorical("readmitted", ("no", "yes")),
    )
)
CONTENT: dict[str, Any] = {
    "question": [
        {"kind": "share", "name": "share", "of": "readmitted=yes", "among": "ward=cardiology & age>=50"},
        {"kind": "count", "name": "all"},
        {"kind": "count", "name": "count", "among": "age>70 & smoker=true"},
        {"kind": "cross", "name": "cross", "columns": ["ward", "age"], "among": "sex=f"},
        {"kind": "mean", "name": "mean", "column": "nights", "among": "age>70"},
        {"kind": "total", "name": "total", "column": "nights", "among": "ward=surgery"},
        {"kind": "quantile", "name": "quantile", "column": "bill", "at": [0.25, 0.5, 0.9]},
        {"kind": "correlation", "name": "correlation", "columns": ["nights", "age", "bill"]},
        {"kind": "regression", "name": "slope", "outcome": "nights", "covariates": ["age", "ward"]},
        {"kind": "regression", "name": "odds", "outcome": "readmitted=yes", "covariates": ["age", "sex"]},
        {"kind": "survival", "name": "survival", "time": "nights", "event": "readmitted=yes", "at": [3, 5, 10, 30]},
    ],
    "cuts": {"age": [40, 60, 75]},
}
DECLARED: Declared = read_declared(CONTENT)
GROUPS = ("below 40", "40 to below 60", "60 to below 75", "75 and more")


def declared(*names: str, **more: Any) -> Declared:
    """Return the declared questions of these names alone."""
    return read_declared({**CONTENT, "question": [of for of in CONTENT["question"] if of["name"] in names], **more})


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    """Return rows whose columns depend on each other, some of them with missing values."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(WARDS, count, p=[0.3, 0.5, 0.2])
    age = np.clip(rng.normal(np.where(ward == "cardiology", 68, 52), 16), 0, 110).astype(int)
    nights = np.clip(rng.gamma(1.5, 1 + age / 25), 0, 60).astype(int)
    risk = 1 / (1 + np.exp(3.5 - 0.035 * age))
    return pd.DataFrame(
        {
            "ward": pd.Series(ward).mask(rng.random(count) < 0.05),
            "sex": rng.choice(["f", "m"], count),
            "smoker": pd.Series(rng.random(count) < 0.3).astype("boolean").mask(rng.random(count) < 0.1),
            "age": age,
            "nights": pd.Series(nights).astype("Int64").mask(rng.random(count) < 0.05),
            "bill": np.minimum((400 + 650 * nights) * rng.lognormal(0.1, 0.4, count), 60_000).round(2),
            "readmitted": np.where(rng.random(count) < risk, "yes", "no"),
        }
    )


def pooled(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[float, float]]:
    """Return what the rows answer to each question, and how far rounding to cells may move the answer."""
    known = frame.dropna(subset=["nights"])
    old = frame[frame.age > 70]
    found: dict[tuple[str, str], tuple[float, float]] = {
        ("share", ""): (frame[(frame.ward == "cardiology") & (frame.age >= 50)].readmitted.eq("yes").mean(), 1e-12),
        ("all", ""): (len(frame), 1e-9),
        ("count", ""): (int((old.smoker.fillna(False)).sum()), 1e-9),
        ("mean", ""): (old.nights.mean(), 0.01),
        ("total", ""): (frame[frame.ward == "surgery"].nights.sum(), 5),
    }
    of_women = frame[frame.sex == "f"]
    group = pd.cut(of_women.age, [-1, 39, 59, 74, 200], labels=list(GROUPS)).astype(str)
    for ward, ages in itertools.product((*WARDS, "missing"), GROUPS):
        inside = (of_women.ward.fillna("missing") == ward) & (group == ages)
        found["cross", f"ward {ward}, age {ages}"] = (inside.mean(), 1e-12)
    for level in (0.25, 0.5, 0.9):
        value = float(frame.bill.quantile(level))
        found["quantile", f"{100 * level:g} %"] = (value, 0.02 * value)
    for first, second in itertools.combinations(("nights", "age", "bill"), 2):
        found["correlation", f"{first}, {second}"] = (
            known[first].astype(float).corr(known[second].astype(float)),
            2e-3,
        )
    found |= {("slope", name): (value, 5e-3 * max(1, abs(value))) for name, value in slopes(frame)[0].items()}
    found |= {("odds", name): (value, 1e-5) for name, value in log_odds(frame).items()}
    found |= {
        ("survival", f"{time}"): (value, 1e-9) for time, value in surviving(frame).items() if time in (3, 5, 10, 30)
    }
    return found


def slopes(frame: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
    """Return ordinary least squares of nights on age and ward, and the coefficients' standard errors."""
    known = frame.dropna(subset=["nights", "ward"])
    indicators = [(known.ward == ward).to_numpy(float) for ward in WARDS[1:]]
    design = np.stack([np.ones(len(known)), known.age.to_numpy(float), *indicators], axis=1)
    outcome = known.nights.to_numpy(float)
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ outcome
    left = outcome - design @ coefficients
    errors = np.sqrt(np.diag(inverse) * (left @ left) / (len(known) - 4))
    names = ("age", "ward=medicine", "ward=surgery")
    return dict(zip(names, coefficients[1:], strict=True)), dict(zip(names, errors[1:], strict=True))


def log_odds(frame: pd.DataFrame) -> dict[str, float]:
    """Return the coefficients of a logistic regression of readmission on groups of age and on sex."""
    group = np.digitize(frame.age, [40, 60, 75])
    columns = [
        np.ones(len(frame)),
        *((group == at).astype(float) for at in (1, 2, 3)),
        (frame.sex == "m").to_numpy(float),
    ]
    design, outcome = np.stack(columns, axis=1), (frame.readmitted == "yes").to_numpy(float)

    def loss(beta: np.ndarray) -> tuple[float, np.ndarray]:
        scores = design @ beta
        gradient = design.T @ (1 / (1 + np.exp(-scores)) - outcome)
        return float(np.logaddexp(0, scores).sum() - outcome @ scores), gradient

    best = minimize(loss, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-7})
    return dict(zip((*(f"age={name}" for name in GROUPS[1:]), "sex=m"), best.x[1:], strict=True))


def surviving(frame: pd.DataFrame) -> dict[int, float]:
    """Return Kaplan and Meier's estimate at each time, the first of which holds 0 and 1."""
    known = frame.dropna(subset=["nights"])
    time, died = np.maximum(known.nights.to_numpy(int), 1), (known.readmitted == "yes").to_numpy()
    value, found = 1.0, {}
    for at in range(1, 31):
        value *= 1 - (died & (time == at)).sum() / (time >= at).sum()
        found[at] = float(value)
    return found


def labelled(answers: Any) -> dict[tuple[str, str], Answer]:
    """Return answers by question and label."""
    return {(answer.question, answer.label): answer for answer in answers}
