"""A run whose rows lie in a real PostgreSQL: the same rows as from a file, and a report that notices changed ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import tomli_w
from tests.contract.world import SCHEMA, random_table
from tests.data import postgres

from fedsynth.deploy.job import Job, rows_of_run, run_job
from fedsynth.deploy.site_config import create_state, is_exposed, load_rows, load_site_config, open_site
from fedsynth.errors import FedsynthError

pytest.importorskip("adbc_driver_postgresql", reason="the driver of the extra [sql] is not installed")
pytestmark = pytest.mark.skipif(postgres.binaries() is None, reason="no PostgreSQL server is installed here")


@contextlib.contextmanager
def people(monkeypatch: pytest.MonkeyPatch, frame: pd.DataFrame) -> Iterator[postgres.Server]:
    """A server with the rows of a frame in the table ``people``."""
    with postgres.server(fsync="off") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        columns = ", ".join(f"{name} text" for name in SCHEMA.names)
        rows = ", ".join("(" + ", ".join(f"'{value}'" for value in row) + ")" for row in frame.itertuples(index=False))
        server.run(f"CREATE TABLE people ({columns}); INSERT INTO people VALUES {rows}")
        yield server


def test_a_site_reads_its_table_once_a_run(tmp_path, monkeypatch):
    frame = SCHEMA.decode(random_table(50, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    with people(monkeypatch, frame) as server:
        content = {
            "site": {"name": "north"},
            "source": {"data": server.uri("table=people"), "schema": "schema.toml"},
            "policy": {"budget": {"epsilon": 1, "delta": 1e-6}, "trusts": {"local": {}}},
            "flower": {"superlink": "127.0.0.1:9"},
        }
        (tmp_path / "site.toml").write_text(tomli_w.dumps(content))
        config = load_site_config(tmp_path)
        create_state(config)
        first = open_site(config, "monday").table.digest
        server.run("DELETE FROM people WHERE ctid IN (SELECT ctid FROM people LIMIT 1)")
        assert open_site(config, "monday").table.digest == first
        assert len(load_rows(config, SCHEMA)) == 49  # what a check of the site sees
        assert len(open_site(config, "tuesday").table) == 49
        assert is_exposed(config.cache) is False


def test_a_simulation_reads_a_database_table(tmp_path, monkeypatch):
    frame = SCHEMA.decode(random_table(300, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    with people(monkeypatch, frame) as server:
        job = Job(
            "oneshot", 1.0, 1e-6, data=server.uri("table=people"), schema=str(tmp_path / "schema.toml"), sites=3, seed=0
        )
        run_job(job, tmp_path / "run")
        _, found = rows_of_run(tmp_path / "run")
        assert sum(len(site) for site in found.sites) == 300
        server.run("DELETE FROM people WHERE ctid IN (SELECT ctid FROM people LIMIT 1)")
        with pytest.raises(FedsynthError, match="no longer holds the rows"):
            rows_of_run(tmp_path / "run")
