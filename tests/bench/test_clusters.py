"""Clusters of rows that are kept in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks import ROOT, clusters
from benchmarks.as_published import kept_clusters
from tests.public_data import FOLDER, public_data

from fedsynth.bench.grid import training_and_test
from fedsynth.bench.spec import read_spec
from fedsynth.data.partition import Cluster
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema


def made_rows(seed: int, rows: int = 2000) -> Table:
    rng = np.random.default_rng(seed)
    sizes = (50, 3, 20)
    schema = Schema(tuple(Categorical(f"c{at}", tuple(range(size))) for at, size in enumerate(sizes)))
    return Table(schema, tuple(rng.integers(0, size, rows).astype(np.uint8) for size in sizes))


def test_kept_clusters_are_those_of_the_same_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_rows(0)
    found = (table.codes[0].astype(int) // 10) * 20 + table.codes[2]  # 100 clusters
    clusters.keep(table, found, tmp_path / "made-100.npz")
    clusters.keep(made_rows(1), found, tmp_path / "another-100.npz")
    assert (clusters.kept(table, 100, tmp_path) == found).all()
    assert (tmp_path / "made-100.npz").stat().st_size < 2000, "less than a byte a row"
    for other in (made_rows(2), table.take(np.arange(len(table))[::-1]), table.take(np.arange(1999))):
        with pytest.raises(FedsynthError, match="no clusters for 100 sites are kept of these"):
            clusters.kept(other, 100, tmp_path)
    with pytest.raises(FedsynthError, match="no clusters for 5 sites"):
        clusters.kept(table, 5, tmp_path)
    with pytest.raises(Unsupported, match="0 to 255"):
        clusters.keep(table, found * 3, tmp_path / "more-300.npz")
    monkeypatch.setattr("benchmarks.as_published.kept", lambda table, sites: clusters.kept(table, sites, tmp_path))
    parts = kept_clusters(table, 100, np.random.default_rng(5))
    assert [len(part) for part in parts] == np.bincount(found, minlength=100).tolist()
    assert (parts[41].codes[2] == 1).all()


@pytest.mark.slow
def test_the_command_keeps_the_clusters_of_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("umap")
    monkeypatch.setattr(clusters, "FOLDER", tmp_path)
    spec = tmp_path / "made.toml"
    spec.write_text(
        '[datasets.visits]\nfile = "demo:rand-hie"\nrows = 300\ndrop = ["physical_limitation"]\n[metrics.likelihood]\n'
        '[[grid]]\nmethods = "oneshot"\n'
    )
    file = clusters.make(spec, "visits", 7, tmp_path)
    table, _ = training_and_test(read_spec(spec.read_text()), "visits", tmp_path)
    expected = Cluster().assign(table, 7, np.random.default_rng((0,)))
    assert (clusters.kept(table, 7, file.parent) == expected).all()


def test_kept_clusters_are_small() -> None:
    assert sum(file.stat().st_size for file in clusters.FOLDER.glob("*")) < 400_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flaim_table2", "distaim_table"])
def test_clusters_are_kept_of_the_rows_of_every_data_set(name: str) -> None:
    spec = read_spec((ROOT / "benchmarks" / "papers" / f"{name}.toml").read_text())
    for dataset, described in spec.datasets.items():
        public_data(described.file)
        table, _ = training_and_test(spec, dataset, FOLDER)
        assert len(np.unique(clusters.kept(table, 100))) == 100
