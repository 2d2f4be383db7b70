"""Clusters of a UMAP embedding (FLAIM's sites), kept in files: their digits depend on versions, and they take minutes.

python -m benchmarks.clusters [DATASET ...] [--sites N] [--spec benchmarks/papers/flaim_table2.toml]

``benchmarks/papers/clusters/DATASET-N.npz`` has the digest of the training rows and each row's cluster, one byte a row.
Rows are sorted by their codes, first by the column of the largest variance, so that neighbours share a cluster and the
file is small. Needs the cluster extra.
"""

from __future__ import annotations

import argparse
import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import DATA, ROOT
from fedsynth.bench.grid import training_and_test
from fedsynth.bench.results import pin
from fedsynth.bench.spec import read_spec
from fedsynth.data.partition import Cluster
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.files import read_text
from fedsynth.rows import Table

FOLDER = ROOT / "benchmarks" / "papers" / "clusters"
SPEC = ROOT / "benchmarks" / "papers" / "flaim_table2.toml"
SEED = 0


def rows_digest(table: Table) -> str:
    """Return the digest (16 hex digits) of a table's codes, in the order of its rows."""
    found = hashlib.sha256(repr(table.schema.sizes).encode())
    found.update(np.stack(table.codes, axis=1).astype("<i4").tobytes())
    return found.hexdigest()[:16]


def keep(table: Table, clusters: NDArray[np.integer], file: Path) -> None:
    """Write each row's cluster (0 to 255), shape ``(rows,)``, and the digest of the rows."""
    if len(clusters) != len(table) or clusters.min() < 0 or clusters.max() > 255:
        raise Unsupported(f"{file.name} would need a cluster from 0 to 255 for each of the {len(table)} rows")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        np.savez_compressed(opened, rows=rows_digest(table), clusters=clusters[_sorted(table)].astype(np.uint8))


def kept(table: Table, sites: int, folder: Path = FOLDER) -> NDArray[np.int64]:
    """Return the cluster of each row, shape ``(rows,)``, of the file that was made of these rows.

    Raises :class:`~fedsynth.errors.FedsynthError` if there is none: clusters of other rows are no stand-in.
    """
    digest = rows_digest(table)
    for file in sorted(folder.glob(f"*-{sites}.npz")):
        with np.load(file, allow_pickle=False) as content:
            if str(content["rows"]) == digest:
                found = np.empty(len(table), dtype=np.int64)
                found[_sorted(table)] = content["clusters"]
                return found
    raise FedsynthError(
        f"no clusters for {sites} sites are kept of these {len(table)} rows ({digest}); make them by python -m "
        "benchmarks.clusters"
    )


def _sorted(table: Table) -> NDArray[np.intp]:
    codes = np.stack(table.codes).astype(np.int64)
    return np.lexsort(codes[np.argsort(codes.var(axis=1), kind="stable")])


def make(spec: Path, dataset: str, sites: int, data: Path) -> Path:
    """Cluster the training rows of a data set of a specification, and return the file that keeps the clusters."""
    table, _ = training_and_test(read_spec(read_text(spec)), dataset, data)
    file = FOLDER / f"{dataset}-{sites}.npz"
    keep(table, Cluster().assign(table, sites, np.random.default_rng(SEED)), file)
    return file


def main() -> None:
    """Make the files, each in a process of one thread and one kernel of OpenBLAS."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", metavar="DATASET", help="names in the specification; default: all")
    parser.add_argument("--sites", type=int, default=100, help="number of clusters")
    parser.add_argument("--spec", type=Path, default=SPEC, help="specification")
    given = parser.parse_args()
    pin()
    for dataset in given.datasets or read_spec(read_text(given.spec)).datasets:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            file = pool.submit(make, given.spec, dataset, given.sites, DATA).result()
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
