"""Tables of many columns, for benchmarks: made ones, which depend on their seed alone, and samples of public ones.

Two made tables have strong relations of every kind between fillers that nothing depends on: columns that are functions
of another, pairs of categories with Cramér's V of about 0.5, correlated numbers with heavy tails and heaps, a rare
class, and a label. Six have few rows for their columns, drawn from hidden factors, from a tree, or mostly
independently; they and the samples are coded: each column has the same few codes for every method.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import DATA

Codes = NDArray[np.int64]
Columns = dict[str, NDArray[np.generic]]

_TIED = 0.5  # Cramér's V of two categories that are tied, if the first is uniform
_BLOCK = 32  # columns of a block
_ZIPF = 8  # values of a filler of categories, at most
_CELLS = 16  # codes of a number: cells of equal width
_REACH = 3.0  # of a made number, in standard deviations; what lies beyond is clipped
_MOST = 20  # distinct integers of a column of codes


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


# ---------------------------------------------------------------------------------------------------------------------
# Coded tables


def factor_60() -> pd.DataFrame:
    """Return the table "factor-60": 5,000 rows, 60 columns that depend on one or two of 5 hidden factors each."""
    return _factors(5_000, 60, factors=5, seed=10)


def factor_120() -> pd.DataFrame:
    """Return the table "factor-120": 6,000 rows, 120 columns that depend on one or two of 10 hidden factors each."""
    return _factors(6_000, 120, factors=10, seed=11)


def tree_50() -> pd.DataFrame:
    """Return the table "tree-50": 2,000 rows, 50 columns, each but the first a noisy function of an earlier one."""
    return _tree(2_000, 50, seed=12)


def tree_80() -> pd.DataFrame:
    """Return the table "tree-80": 6,000 rows, 80 columns, each but the first a noisy function of an earlier one."""
    return _tree(6_000, 80, seed=13)


def sparse_70() -> pd.DataFrame:
    """Return the table "sparse-70": 5,000 rows, 70 columns in 14 pairs of strongly related ones and 42 others."""
    return _sparse(5_000, 70, pairs=14, seed=14)


def sparse_100() -> pd.DataFrame:
    """Return the table "sparse-100": 5,000 rows, 100 columns in 20 pairs of strongly related ones and 60 others."""
    return _sparse(5_000, 100, pairs=20, seed=15)


def covertype_coded() -> pd.DataFrame:
    """Return 5,000 rows of Covertype's balanced sample, coded: 53 columns; the label is ``Cover_Type``."""
    return coded(pd.read_parquet(DATA / "covtype15k.parquet"), 5_000)


def diabetes_coded() -> pd.DataFrame:
    """Return 4,000 rows of Diabetes, coded, without numbers of persons; the label is ``readmitted``."""
    frame = pd.read_parquet(DATA / "diabetes.parquet")
    return coded(frame.drop(columns=["encounter_id", "patient_nbr"]), 4_000)


def census_coded() -> pd.DataFrame:
    """Return 4,000 rows of Census, coded: 41 columns; the label is ``label``."""
    return coded(pd.read_parquet(DATA / "census_income_kdd_30pct.parquet"), 4_000)


def intrusion_coded() -> pd.DataFrame:
    """Return 4,000 rows of Intrusion, coded; the label is ``label``."""
    return coded(pd.read_parquet(DATA / "intrusion.parquet"), 4_000)


def coded(frame: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return so many random rows of ``frame``, always the same, as codes: integers for numbers, text for categories.

    A number of more than 20 distinct values has 16 cells of equal width between its bounds in the whole ``frame``.
    Columns with one value in these rows are left out.
    """
    chosen = np.random.default_rng(0).permutation(len(frame))[:rows]
    found = {}
    for name in frame:
        values = frame[name]
        if pd.api.types.is_numeric_dtype(values) and values.nunique() > _MOST:
            numbers = values.to_numpy(dtype=np.float64)
            codes = _equal_cells(numbers, float(numbers.min()), float(numbers.max()))[chosen]
        else:
            codes = values.to_numpy()[chosen]
        if len(pd.unique(codes)) > 1:
            found[str(name)] = codes
    return pd.DataFrame(found)


def _equal_cells(numbers: NDArray[np.float64], low: float, high: float) -> Codes:
    """Return the cell, from 0, of each number among ``_CELLS`` (16) of equal width from ``low`` to ``high``."""
    return np.clip((numbers - low) / (high - low) * _CELLS, 0, _CELLS - 1).astype(np.int64)


def _observed(latent: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.generic]:
    """Return a column that depends on a standard normal variable: codes of a number, or an unordered category."""
    if rng.random() < 0.5:
        shape = np.exp(0.6 * latent) - 1 if rng.random() < 0.5 else latent
        return _equal_cells(shape, -_REACH, _REACH)
    values = int(rng.integers(2, 9))
    below = np.cumsum(rng.dirichlet(np.full(values, 2.0)))[:-1]
    codes = np.searchsorted(np.quantile(latent, below), latent)
    return _nominal(rng.permutation(values)[codes])


def _nominal(codes: Codes) -> NDArray[np.generic]:
    return np.char.add("value ", codes.astype(str))


def _shuffled(columns: Sequence[NDArray[np.generic]], rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({f"c{at}": columns[place] for at, place in enumerate(rng.permutation(len(columns)))})


def _factors(rows: int, columns: int, factors: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((rows, factors))
    found = []
    for _ in range(columns):
        loads = np.zeros(factors)
        loads[rng.choice(factors, int(rng.integers(1, 3)), replace=False)] = rng.uniform(-1, 1)
        own = rng.uniform(0.3, 1.0)
        latent = (hidden @ loads + own * rng.standard_normal(rows)) / np.sqrt(loads @ loads + own**2)
        found.append(_observed(latent, rng))
    return _shuffled(found, rng)


def _tree(rows: int, columns: int, seed: int) -> pd.DataFrame:
    """Return columns in a random tree: by turns, correlated with the parent, or a function of it in some rows."""
    rng = np.random.default_rng(seed)
    latent = [rng.standard_normal(rows)]
    for at in range(1, columns):
        parent, fresh = latent[rng.integers(max(0, at - 12), at)], rng.standard_normal(rows)
        if at % 2:
            correlation = rng.choice([-1, 1]) * rng.uniform(0.4, 0.95)
            latent.append(correlation * parent + np.sqrt(1 - correlation**2) * fresh)
        else:
            latent.append(np.where(rng.random(rows) < rng.uniform(0.3, 0.9), -np.abs(parent) + 0.8, fresh))
    return _shuffled([_observed((one - one.mean()) / one.std(), rng) for one in latent], rng)


def _sparse(rows: int, columns: int, pairs: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = [_observed(rng.standard_normal(rows), rng) for _ in range(columns - 2 * pairs)]
    for at in range(pairs):
        if at % 2:
            shared, loads = rng.standard_normal(rows), rng.uniform(0.7, 0.95)
            own = np.sqrt(1 - loads**2)
            found += [_observed(loads * shared + own * rng.standard_normal(rows), rng) for _ in range(2)]
        else:
            values = int(rng.integers(3, 9))
            codes = rng.choice(values, rows, p=rng.dirichlet(np.full(values, 3.0)))
            found += [_nominal(codes), _nominal(_tied(codes, int(rng.integers(2, values + 1)), rng))]
    return _shuffled(found, rng)
