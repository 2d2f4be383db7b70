"""Makes sdmetrics.json: small tables, and the values that SDMetrics itself computes on them.

`fedsynth.evaluation.similarity` follows SDMetrics' definitions and does not import it; a test compares both to 1e-9.
The values in the repository come from SDMetrics 0.32.0 with pandas 2.3.3. To make them again, in an environment of
its own::

    python3 -m venv sdmetrics-env
    sdmetrics-env/bin/pip install sdmetrics==0.32.0
    sdmetrics-env/bin/python tests/evaluation/golden/make.py

What SDMetrics leaves undefined (an empty column, the correlation of a constant) is not in the file.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import sdmetrics
from sdmetrics.column_pairs import ContingencySimilarity, CorrelationSimilarity
from sdmetrics.single_column import (
    CategoryCoverage,
    KSComplement,
    MissingValueSimilarity,
    RangeCoverage,
    TVComplement,
)

Values = dict[str, list[Any]]
COLUMNS = {"age": "number", "pay": "number", "flat": "number", "job": "category", "city": "category", "well": "boolean"}


def table(rows: int, seed: int, *, slope: float, gaps: float, cities: str) -> Values:
    """Return columns that lean on one another: `pay` has a heavy tail and gaps, `flat` may be a constant."""
    draw = random.Random(seed)
    found: Values = {name: [] for name in COLUMNS}
    for _ in range(rows):
        age = draw.randint(18, 90)
        found["age"].append(age)
        pay = round(slope * age + math.exp(draw.gauss(3, 1.5)), 2)
        found["pay"].append(None if draw.random() < gaps else pay)
        found["flat"].append(5.0 if slope == 4 else round(5 + draw.gauss(0, 1), 3))
        found["job"].append(None if draw.random() < gaps / 2 else ("cook", "nurse", "clerk")[age // 30 - (age == 90)])
        found["city"].append(draw.choice(cities))
        found["well"].append(draw.random() < 0.3 + age / 200)
    return found


CASES = {
    "another law": (
        table(160, 1, slope=4, gaps=0.1, cities="abcd"),
        table(120, 2, slope=1, gaps=0.3, cities="abbbe"),
    ),
    "the same law": (
        table(150, 3, slope=3, gaps=0.1, cities="abcd"),
        table(150, 4, slope=3, gaps=0.1, cities="abcd"),
    ),
    "nothing in common": (
        table(40, 5, slope=2, gaps=0.0, cities="ab"),
        table(25, 6, slope=90, gaps=0.5, cities="cd"),
    ),
    "few rows": (table(3, 7, slope=3, gaps=0.0, cities="a"), table(2, 8, slope=3, gaps=0.0, cities="ab")),
    "itself": (table(50, 9, slope=3, gaps=0.2, cities="abc"),) * 2,
}


def scores(real: pd.DataFrame, synthetic: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return SDMetrics' values by what they measure, and by column or pair."""
    numbers = [name for name, kind in COLUMNS.items() if kind == "number"]
    found: dict[str, dict[str, float]] = {name: {} for name in ("similarity", "coverage", "missing", "pairs")}
    for name in COLUMNS:
        one, two = real[name], synthetic[name]
        found["similarity"][name] = (KSComplement if name in numbers else TVComplement).compute(one, two)
        spread = name in numbers and one.nunique() > 1
        found["coverage"][name] = (RangeCoverage if spread else CategoryCoverage).compute(one, two)
        found["missing"][name] = MissingValueSimilarity.compute(one, two)
    for pair in itertools.combinations(COLUMNS, 2):
        frames = real[list(pair)].copy(), synthetic[list(pair)].copy()
        cut = [name for name in pair if name in numbers]
        if len(cut) == 2:
            if any(frame[name].nunique() == 1 for frame in frames for name in pair):
                continue
            value = CorrelationSimilarity.compute(*frames)
        else:
            value = ContingencySimilarity.compute(*frames, continuous_column_names=cut or None)
        found["pairs"][" × ".join(pair)] = value
    return {
        what: {name: float(value) for name, value in values.items() if math.isfinite(value)}
        for what, values in found.items()
    }


def main() -> None:
    """Write the file beside this script."""
    warnings.simplefilter("ignore")  # pandas on SDMetrics' assignments, SciPy on p-values that nobody reads
    cases = {
        name: {"real": real, "synthetic": synthetic, "scores": scores(pd.DataFrame(real), pd.DataFrame(synthetic))}
        for name, (real, synthetic) in CASES.items()
    }
    content = {"sdmetrics": sdmetrics.__version__, "pandas": pd.__version__, "columns": COLUMNS, "cases": cases}
    place = Path(__file__).with_name("sdmetrics.json")
    place.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    print(f"{place.name}: {len(cases)} tables, SDMetrics {sdmetrics.__version__}, pandas {pd.__version__}")


if __name__ == "__main__":
    main()
