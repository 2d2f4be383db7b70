"""A toy source: ``toy://NUMBER`` is a table of so many rows, the same for whoever opens it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd


def open_toy(address: str) -> Path:
    """Return the rows of an address as a source: here a file, written anew."""
    rows = int(address.removeprefix("toy://"))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, rows), "sick": rng.choice(["no", "yes"], rows, p=[0.8, 0.2])})
    file = Path(tempfile.mkdtemp(prefix="toy-")) / "rows.csv"
    frame.to_csv(file, index=False)
    return file
