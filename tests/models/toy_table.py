"""A small table whose columns depend on one another, with a number that is zero in half of the rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedsynth.deep.encoders import BatchLayout, Encoder, check_encoders
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Numeric, Schema

SCHEMA = Schema((Categorical("kind", ("a", "b", "c")), Boolean("paid"), Numeric("gain", 0.0, 100.0)))
ROWS = 4000


def toy_frame(seed: int = 0) -> pd.DataFrame:
    """Return rows: `paid` follows `kind` nine times in ten; `gain` is zero in 80 % of kind a, in 20 % of the others."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    paid = (kind == 1) ^ (rng.random(ROWS) < 0.1)
    zero = rng.random(ROWS) < np.array([0.8, 0.2, 0.2])[kind]
    gain = np.where(zero, 0.0, np.clip(rng.normal(30 + 20 * kind, 8, ROWS), 1, 100))
    return pd.DataFrame({"kind": np.array(list("abc"))[kind], "paid": paid, "gain": gain})


def cells_of(table: Table) -> tuple[AdaptiveBins, ...]:
    """Return the columns' cells with exact counts; of the number, zero and one mode above."""
    found = []
    for at, column in enumerate(SCHEMA.stored):
        cells = AdaptiveBins.of(column)
        fine = cells.axis(at).places(table.codes[at], table.numbers.get(at))
        counts = np.bincount(fine, minlength=len(cells.groups)).astype(np.float64)
        cells = cells.updated(counts, 0.0, float(ROWS))
        found.append(cells if cells.grid is None else cells.grouped(ROWS / 10, 2))
    return tuple(found)


def encoded(cells: tuple[AdaptiveBins, ...]) -> tuple[tuple[Encoder, ...], BatchLayout]:
    encoders = tuple(Encoder.of(one) for one in cells)
    check_encoders(encoders, SCHEMA)
    return encoders, BatchLayout.of(encoders)


def portrait(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return what depends on `kind` (a, b, c): its own shares, shares of `paid` and of zeros, mean gains above zero."""
    by = [frame[frame["kind"] == kind] for kind in "abc"]
    return {
        "shares": np.array([len(one) for one in by]) / len(frame),
        "paid": np.array([one["paid"].astype(float).mean() for one in by]),
        "zeros": np.array([(one["gain"] == 0).mean() for one in by]),
        "gains": np.array([one["gain"][one["gain"] > 0].mean() for one in by]),
    }
