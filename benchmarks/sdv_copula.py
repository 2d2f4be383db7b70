r"""SDV's Gaussian copula, without privacy and with all rows in one place, on the tables and by the scores of relations.

    python -m benchmarks.sdv_copula --python OTHER/bin/python --data-dir ../shared/data --seeds 5 --out sdv.csv

``--python`` names the Python of another environment, with ``sdv`` installed: it needs an older pandas. The copula
has no seed of its own; each seed fits it again, and draws as many rows as there are training rows. It gets the columns'
types from the schema, and no bounds but those of the rows. One line of the CSV file has all figures of a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import DATA
from benchmarks.relations import SPEC, findable_kept
from fedsynth.bench.grid import training_and_test
from fedsynth.bench.metrics import FinishedRun, find_metric
from fedsynth.bench.spec import read_spec
from fedsynth.encoding import decode, encode
from fedsynth.rows import Table

_FIT = """
import json, sys, time
import numpy as np, pandas as pd
from sdv.metadata import Metadata
from sdv.single_table import GaussianCopulaSynthesizer
rows, described, out, seed = sys.argv[1:]
np.random.seed(int(seed))
frame = pd.read_csv(rows, keep_default_na=False, na_values={name: [""] for name in json.loads(described)})
metadata = Metadata.load_from_dict({"tables": {"rows": {"columns": json.loads(described)}}, "relationships": []})
began = time.process_time()
copula = GaussianCopulaSynthesizer(metadata)
copula.fit({"rows": frame})
found = copula.sample(num_rows=len(frame))
print(time.process_time() - began)
(found["rows"] if isinstance(found, dict) else found).to_csv(out, index=False)
"""
SITES, EPSILON, DELTA = 10, 1.0, 1e-6  # of the runs beside which the figures stand: they say which pairs are findable


def frame_of(table: Table) -> pd.DataFrame:
    """Return the rows of a table without columns that are computed from others, numbers as they are."""
    frame = decode(table.schema, table.codes, np.random.default_rng(0))
    for at, numbers in table.numbers.items():
        frame[table.schema.stored[at].name] = numbers
    return frame


def copula_rows(python: str, table: Table, seed: int) -> tuple[Table, float]:
    """Return synthetic rows, as many as ``table`` has, and the CPU seconds that the other environment took."""
    described = {
        column.name: {"sdtype": "numerical" if column.is_number else "categorical"} for column in table.schema.stored
    }
    with tempfile.TemporaryDirectory() as folder:
        rows, out = Path(folder, "rows.csv"), Path(folder, "out.csv")
        frame_of(table).to_csv(rows, index=False)
        run = subprocess.run(
            [python, "-W", "ignore", "-c", _FIT, str(rows), json.dumps(described), str(out), str(seed)],
            capture_output=True,
            text=True,
            check=True,
        )
        found = pd.read_csv(out, keep_default_na=False, na_values={name: [""] for name in described})
    return encode(table.schema, found), float(run.stdout.split()[-1])


def figures(name: str, folder: Path, python: str, seed: int) -> Mapping[str, float]:
    """Return the scores of one fit to the training rows of the data set ``name``."""
    spec = read_spec(SPEC.read_text(encoding="utf-8"))
    train, test = training_and_test(spec, name, folder, seed)
    synthetic, seconds = copula_rows(python, train, seed)
    run = FinishedRun(train, synthetic, test, synthetic, target=spec.datasets[name].target, seed=seed, seconds=seconds)
    found: dict[str, float] = {}
    for metric, entry in spec.metrics.items():
        if entry.metric.startswith("benchmarks."):
            value: float | Mapping[str, float] = findable_kept(train, synthetic, SITES, EPSILON, DELTA)
        else:
            value = find_metric(entry.metric or metric)(run, **entry.options)
        parts = value if isinstance(value, Mapping) else {"": value}
        found |= {f"{metric}: {part}" if part else metric: float(one) for part, one in parts.items()}
    return found


def main() -> None:
    """Run every table and seed, append each to the CSV file, and print the means over seeds."""
    spec = read_spec(SPEC.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python in whose environment sdv is installed")
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of the data files")
    parser.add_argument("--tables", default=",".join(spec.datasets), help="names, with commas between")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds: 0, 1, ...")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    given = parser.parse_args()
    lines = []
    for name in given.tables.split(","):
        for seed in range(given.seeds):
            began = time.perf_counter()
            lines.append({"dataset": name, "seed": seed} | dict(figures(name, given.data_dir, given.python, seed)))
            pd.DataFrame(lines).to_csv(given.out, index=False)
            print(f"{name}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
    means = pd.DataFrame(lines).groupby("dataset").mean(numeric_only=True).drop(columns="seed")
    print(means.T.round(3).to_string())


if __name__ == "__main__":
    main()
