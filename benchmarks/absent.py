"""The price of columns that one of three sites lacks: mean total variation distance of pairs, by method.

    python -m benchmarks.absent --out benchmarks/results/absent.csv

Adult as ten categories (ages and hours in tenths of their range) is dealt to three sites at random; one of them then
lacks none, one or four of the columns, in which all its rows are missing. Runs are at epsilon 1 and delta 1e-6, under
``secure``, and ``aim`` under ``trusted``. Pairs are compared over the cells in which neither value is missing, with all
real rows before anything was taken from them, and as many synthetic rows. The file is the table of the page: means and
standard deviations of five seeds.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import DATA
from fedsynth.encoding import encode
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import find_method
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum

COLUMNS: tuple[str, ...] = (
    "age",
    "workclass",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
)
COLUMNS += ("hours-per-week", "income>50K")
TRUSTS: dict[str, type[Trust]] = {"secure": SecureSum, "trusted": TrustedServer}
METHODS = {"auto": "secure", "oneshot": "secure", "fedchowliu": "secure", "aim": "trusted"}
LACKING = ("occupation", "workclass", "marital-status", "hours-per-week")
SITES = 3
HEADER = {
    "absent": "columns absent",
    "pairs": "all pairs",
    "touched": "pairs with them",
    "missing": "largest error of a missing share",
}


def rows() -> pd.DataFrame:
    """Return Adult's rows with ten columns of at most 16 values."""
    frame = pd.read_parquet(DATA / "adult_discrete.parquet", columns=list(COLUMNS))
    for name in ("age", "hours-per-week"):
        frame[name] = frame[name] * 10 // (frame[name].max() + 1)
    return frame


def distance(real: Table, synthetic: Table, pair: tuple[int, int]) -> float:
    """Return the total variation distance of a pair over cells in which no value is missing: the last code of each."""
    counts = []
    for table in (real, synthetic):
        first, second = (table.codes[at].astype(np.int64) for at in pair)
        rows_of, columns_of = (table.schema.sizes[at] for at in pair)
        cells = np.bincount(first * columns_of + second, minlength=rows_of * columns_of)
        counts.append(cells.reshape(rows_of, columns_of)[:-1, :-1])
    one, other = (table / table.sum() for table in counts)
    return float(np.abs(one - other).sum() / 2)


def measure(method: str, lacking: int, seed: int) -> dict[str, object]:
    """Return the figures of one run: distances of all pairs, of those that the site lacks, and missing shares."""
    frame = rows()
    schema = Schema(tuple(Categorical(name, tuple(sorted(set(frame[name]))), missing=True) for name in COLUMNS))
    site = np.random.default_rng(seed).integers(0, SITES, len(frame))
    parts = [frame[site == at] for at in range(SITES)]
    parts[0] = parts[0].assign(**dict.fromkeys(LACKING[:lacking]))
    trust = TRUSTS[METHODS[method]]()
    federation = federate(parts, schema, Budget(1, 1e-6), trust=trust, seed=seed)
    made = find_method(method).kind().fit(federation)
    real, synthetic = encode(schema, frame), made.sample_table(len(frame), seed)
    found = {pair: distance(real, synthetic, pair) for pair in itertools.combinations(range(len(COLUMNS)), 2)}
    at = [COLUMNS.index(name) for name in LACKING[:lacking]]
    touched = [value for pair, value in found.items() if {*pair} & {*at}]
    shares = [float(np.mean(synthetic.codes[one] == schema.sizes[one] - 1)) for one in at]
    gone = float(np.mean(site == 0))
    return {
        "method": method,
        "trust": METHODS[method],
        "absent": lacking,
        "seed": seed,
        "pairs": np.mean(list(found.values())),
        "touched": np.mean(touched) if touched else np.nan,
        "missing": max((abs(share - gone) for share in shares), default=np.nan),
    }


def told(values: pd.Series[float]) -> str:
    """Return the mean and the standard deviation as text."""
    return f"{values.mean():.4f} ± {values.std():.4f}" if values.notna().all() else ""


def main() -> None:
    """Run all methods and write a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = []
    for method, lacking, seed in itertools.product(given.methods.split(","), (0, 1, 4), range(given.seeds)):
        found.append(measure(method, lacking, seed))
        print(found[-1], flush=True)
    frame = pd.DataFrame(found)
    groups = frame.groupby(["method", "trust", "absent"], sort=False)[["pairs", "touched", "missing"]]
    shown = groups.agg(told)
    shown.reset_index().rename(columns=HEADER).to_csv(given.out, index=False, lineterminator="\n")
    print(given.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
