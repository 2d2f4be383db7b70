"""What a learned lookup costs and brings, on made tables: `python -m benchmarks.learned`, about 10 CPU minutes.

A made table has a column a of many values, of which the column b is a function, and two columns that depend on b. Five
sites, secure sums, epsilon 1, delta 1e-6, method auto, five seeds. Without and with `learned = 0.05`: the share of rows
in which b is that of a; the weight (in rows) of values of a whose result is found, and of those of at least four
standard deviations of the noise how much is right; distances in total variation of b and c, b and a number, a and b;
and w3, the mean L1 distance of 64 random 3-way marginals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedsynth as fs
from fedsynth.cliques import random_workload
from fedsynth.encoding import encode
from fedsynth.rows import workload_error
from fedsynth.schema.forms import Lookup

SITES, SEEDS = 5, 5
STD = 26.0  # of the noise in a cell of the learned table, at 5 % of the budget


class Made(NamedTuple):
    """A made table: ``fine`` values of a with frequencies falling as 1 / k^``fall``, ``coarse`` ones of b, ``rows``."""

    fine: int
    coarse: int
    rows: int
    fall: float


TABLES = (
    Made(1000, 50, 50_000, 1.0),
    Made(1000, 50, 200_000, 1.0),
    Made(200, 10, 20_000, 0.5),
    Made(200, 10, 20_000, 1.5),
    Made(50, 4, 5_000, 1.0),
    Made(50, 4, 50_000, 0.0),
)


def rows_of(made: Made, seed: int) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return rows with the columns a, b, c (four values) and x (a number), and which b goes with each a."""
    rng = np.random.default_rng(seed)
    lead = rng.integers(0, made.coarse, made.fine)
    weight = 1 / np.arange(1, made.fine + 1) ** made.fall
    fine = rng.choice(made.fine, made.rows, p=weight / weight.sum())
    shift = rng.normal(size=made.coarse)[lead[fine]]
    c = np.digitize(shift + rng.normal(size=made.rows), [-1, 0, 1])
    x = np.clip(np.round(2 * shift + rng.normal(size=made.rows), 2), -12, 12)
    columns = {
        "a": [f"a{at}" for at in fine],
        "b": [f"b{at}" for at in lead[fine]],
        "c": [f"c{at}" for at in c],
        "x": x,
    }
    return pd.DataFrame(columns), {f"a{at}": f"b{to}" for at, to in enumerate(lead)}


def schema_of(made: Made, learned: bool) -> fs.Schema:
    """Return the schema of a made table, with or without the learned lookup."""
    form = fs.Computed(lookup="a", learned=0.05) if learned else None
    return fs.Schema(
        (
            fs.Categorical("a", tuple(f"a{at}" for at in range(made.fine)), unknown="other"),
            fs.Categorical("b", tuple(f"b{at}" for at in range(made.coarse)), computed=form),
            fs.Categorical("c", ("c0", "c1", "c2", "c3")),
            fs.Numeric("x", -12, 12, decimals=2, bins=24),
        )
    )


def measured(made: Made, seed: int, learned: bool) -> dict[str, float]:
    """Return the figures of one fit."""
    rows, truth = rows_of(made, seed)
    parts = [rows.iloc[at::SITES] for at in range(SITES)]
    synthesizer = fs.fit(parts, schema_of(made, learned), epsilon=1.0, delta=1e-6, trust="secure", seed=seed)
    drawn = synthesizer.sample(made.rows, seed)
    plain = schema_of(made, learned=False)
    real, synthetic = encode(plain, rows), encode(plain, drawn)

    def distance(*clique: int) -> float:
        return workload_error(real, synthetic, (clique,)).mean / 2

    named = drawn.a != "other"
    found = {
        "functional": float((drawn.a[named].map(truth) == drawn.b[named]).mean()),
        "other": float(1 - named.mean()),
        "b x c": distance(1, 2),
        "b x x": distance(1, 3),
        "a x b": distance(0, 1),
        "w3": workload_error(real, synthetic, random_workload(4, 3, 64, 123)).mean,
    }
    if learned:
        form = synthesizer.schema.learned[0].form
        assert isinstance(form, Lookup)
        found |= _weights(rows.a.value_counts(), dict(form.table), truth)
    return found


def _weights(counts: pd.Series[Any], table: Mapping[str, Any], truth: Mapping[str, str]) -> dict[str, float]:
    clear = counts[counts >= 4 * STD]
    right = [value for value, lead in table.items() if truth[value] == lead]
    return {
        "weight found": float(counts.reindex(list(table)).sum() / counts.sum()),
        "right of found": float(counts.reindex(right).sum() / max(1, counts.reindex(list(table)).sum())),
        "right of clear": float(clear.reindex(right).fillna(0).sum() / max(1, clear.sum())),
    }


def main() -> None:
    """Print a line for each table, without and with the lookup: means and standard deviations over seeds."""
    for made in TABLES:
        for learned in (False, True):
            runs = pd.DataFrame([measured(made, seed, learned) for seed in range(SEEDS)])
            shown = (f"{name} {runs[name].mean():.3f} ± {runs[name].std():.3f}" for name in runs)
            print(*made, "learned " if learned else "without", *shown, sep="  ", flush=True)


if __name__ == "__main__":
    main()
