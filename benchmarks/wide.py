"""Made tables of many columns, for benchmarks: strong relations of every kind between fillers that nothing depends on.

Both tables have columns that are functions of another, pairs of categories with Cramér's V of about 0.5, correlated
numbers with heavy tails and heaps, a rare class, and a label. They depend on the seed alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Columns = dict[str, NDArray[np.generic]]

_TIED = 0.5  # Cramér's V of two categories that are tied, if the first is uniform
_BLOCK = 32  # columns of a block
_ZIPF = 8  # values of a filler of categories, at most


def made_wide() -> pd.DataFrame:
    """Return the table "made-wide": 7,000 rows, 50 columns, of which 18 are fillers; the label is ``status``."""
    return _made(7_000, 50, blocks=1, seed=0)


def made_wide_100() -> pd.DataFrame:
    """Return the table "made-wide-100": 20,000 rows, 100 columns, of which 36 are fillers; the label is ``status``."""
    return _made(20_000, 100, blocks=2, seed=1)


def _made(rows: int, columns: int, blocks: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found: Columns = {}
    for block in range(blocks):
        suffix = f"_{block + 1}" if block else ""
        found |= {f"{name}{suffix}": values for name, values in _block(rows, rng).items()}
    fillers = {f"filler_{at}": _filler(at, rows, rng) for at in range(columns - _BLOCK * blocks)}
    every = found | fillers
    return pd.DataFrame({name: every[name] for name in rng.permutation(list(every)).tolist()})


def _block(rows: int, rng: np.random.Generator) -> Columns:
    """Return 32 columns of a made loan book."""
    risk = rng.standard_normal(rows)
    sub = np.argsort(np.argsort(risk)) * 35 // rows
    letters = np.array(list("ABCDEFG"))
    wealth = rng.standard_normal(rows)
    amount = np.clip(np.exp(9 + 0.7 * wealth + 0.4 * rng.standard_normal(rows)), 500, 100_000)
    amount = np.where(rng.random(rows) < 0.5, amount.round(-3), amount.round(-2))
    balance = np.where(rng.random(rows) < 0.15, 0.0, (amount * rng.beta(5, 2, rows)).round(2))
    rate = (5 + 0.6 * sub + rng.normal(0, 1, rows)).clip(5).round(2)
    income = np.exp(10.5 + 0.5 * wealth + 0.5 * rng.standard_normal(rows)).round(-2)
    lines = rng.negative_binomial(4, 0.28, rows)
    settled = np.maximum(lines - rng.binomial(1, 0.2, rows), 0)
    state = _zipf(20, rows, rng)
    job = rng.integers(0, 8, rows)
    household = rng.integers(0, 4, rows)
    age = np.clip(rng.gamma(9, 5, rows) + 3, 18, 95).astype(np.int64)
    channel = rng.integers(0, 3, rows)
    terrain = rng.integers(0, 6, rows)
    odds = -2.2 + 1.1 * risk - 0.5 * wealth
    late = rng.random(rows) < 1 / (1 + np.exp(-odds))
    return {
        "grade": letters[sub // 5],
        "sub_grade": np.char.add(letters[sub // 5], (sub % 5 + 1).astype(str)),
        "interest": rate,
        "amount": amount,
        "balance": balance,
        "instalment": (amount * (0.028 + rate / 1200)).round(2),
        "paid": np.maximum(amount - balance, 0).round(2),
        "income": income,
        "debt_to_income": (100 * balance / income).clip(0, 300).round(1),
        "open_lines": lines,
        "settled_lines": settled,
        "all_lines": lines + rng.poisson(6, rows),
        "state": np.char.add("state ", state.astype(str)),
        "region": np.array(["north", "south", "east", "west"])[state % 4],
        "job": np.char.add("job ", job.astype(str)),
        "industry": np.char.add("industry ", _tied(job, 6, rng).astype(str)),
        "education": np.char.add("level ", _tied(job, 5, rng).astype(str)),
        "household": np.char.add("household ", household.astype(str)),
        "marital": np.char.add("marital ", _tied(household, 4, rng).astype(str)),
        "home": np.array(["rent", "own", "mortgage"])[_tied(household, 3, rng)],
        "age": age,
        "age_group": np.array(["young", "middle", "old"])[np.digitize(age, [35, 60])],
        "experience": np.maximum(age - 18 - rng.integers(0, 20, rows), 0),
        "channel": np.array(["branch", "web", "broker"])[channel],
        "device": np.array(["none", "phone", "desktop"])[_tied(channel, 3, rng)],
        "fraud": late & (rng.random(rows) < 0.2),
        **{f"terrain_{at}": terrain == at for at in range(5)},
        "status": np.where(late, np.where(rng.random(rows) < 0.4, "default", "late"), "paid"),
    }


def _tied(codes: Codes, values: int, rng: np.random.Generator) -> Codes:
    """Return codes below ``values``: by probability 0.5 a function of ``codes``, otherwise uniform."""
    return np.where(rng.random(len(codes)) < _TIED, codes % values, rng.integers(0, values, len(codes)))


def _zipf(values: int, rows: int, rng: np.random.Generator) -> Codes:
    share = 1 / np.arange(1, values + 1)
    return rng.choice(values, rows, p=share / share.sum())


def _filler(at: int, rows: int, rng: np.random.Generator) -> NDArray[np.generic]:
    """Return a column that nothing depends on: numbers of two shapes and categories of two sizes, by turns."""
    if at % 4 == 0:
        return rng.normal(50, 12, rows).round(1)
    if at % 4 == 1:
        return np.char.add("kind ", _zipf(3 + at % _ZIPF, rows, rng).astype(str))
    if at % 4 == 2:
        return np.where(rng.random(rows) < 0.4, 0.0, rng.exponential(200, rows).round(2))
    return rng.random(rows) < 0.1 + 0.4 * rng.random()
