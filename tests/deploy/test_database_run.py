"""A run whose rows lie in a real PostgreSQL: the same rows as from a file, and a report that notices changed ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from tests.contract.world import SCHEMA, random_table
from tests.data import postgres
from tests.world import request_of

from fedsynth.data.read import write_frame
from fedsynth.deploy.host.checks import check_site
from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.rows import load_rows
from fedsynth.deploy.host.state import answer, create_state, open_account, open_site, site_secret
from fedsynth.encoding import decode
from fedsynth.errors import FedsynthError
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.query import Counts
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import AuditPosition, Reply
from fedsynth.keys import Keys
from fedsynth.platforms import is_exposed
from fedsynth.privacy.cost import ONE_ROW
from fedsynth.privacy.release import Gaussian
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated

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


COORDINATOR = Keys(bytes(32))
KEY = bytes(32)


def ask(config: SiteConfig, run: str = "r", step: int = 0, rho: float = 1e6) -> Reply:
    """Put a question to a deployed site; at the usual price the noise is gone."""
    request = request_of(
        Counts.of(len(SCHEMA.columns), [(0, 1), (2,)]),
        run=run,
        step=step,
        verb="sum",
        release=Gaussian(rho),
        trust="local",
        schema=SCHEMA.digest,
        unit=ONE_ROW,
        neighbours="add-remove",
    )
    message = Message.of("north", Keys(site_secret(config)).identity, request, COORDINATOR, AuditPosition())
    return message.reply(answer(config, [message.data]).replies[0])


def write(home: Path, source: dict[str, Any]) -> None:
    """Write the file of a site with this source."""
    home.mkdir(exist_ok=True)
    content = {
        "site": {"name": "north"},
        "source": {**source, "rows_are_persons": True},
        "coordinator": {"key": COORDINATOR.public.hex()},
        "policy": {
            "budget": {"epsilon": 1e8, "delta": 1e-6},
            "per_run": {"epsilon": 1e8, "delta": 1e-6},
            "trusts": {"local": {}},
            "plans": "any",
        },
        "flower": {"superlink": "127.0.0.1:9"},
    }
    (home / "site.toml").write_text(tomli_w.dumps(content))


def test_a_site_reads_its_table_once_a_run(tmp_path, monkeypatch):
    frame = decode(SCHEMA, random_table(50, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    with people(monkeypatch, frame) as server:
        write(tmp_path, {"data": server.uri("table=people"), "schema": "schema.toml"})
        config = load_site_config(tmp_path)
        create_state(config)
        assert ask(config, "monday").code == "answered"
        first = open_account(config).pinned("monday")
        server.run("DELETE FROM people WHERE ctid IN (SELECT ctid FROM people LIMIT 1)")
        with open_site(config).rows.opened("monday") as rows:
            assert (open_account(config).pinned("monday"), len(rows)) == (first, 50)
        assert len(load_rows(config, SCHEMA, KEY)) == 49  # what a check of the site sees
        assert ask(config, "tuesday").code == "answered"
        with open_site(config).rows.opened("tuesday") as rows:
            assert len(rows) == 49
        assert not any(is_exposed(path) for path in config.copies.iterdir() if path.suffix == ".rows")


def test_rows_that_are_counted_where_they_are_give_the_same_sums(tmp_path, monkeypatch):
    frame = decode(SCHEMA, random_table(50, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    with people(monkeypatch, frame) as server:
        address = server.uri("table=people")
        found = []
        for way in ("data", "counted", "streamed"):
            home = tmp_path / way
            how = {} if way == "data" else {way: True}
            write(home, {"data": address, "schema": str(tmp_path / "schema.toml"), **how})
            config = load_site_config(home)
            create_state(config)
            reply = ask(config)
            assert isinstance(reply.answer, PlainAnswer)
            found.append(reply.answer.values)
            wrong = {one.name: one.found for one in check_site(config) if one.state == "failure"}
            assert set(wrong) == {"root certificates", "node key"}, wrong
        np.testing.assert_array_equal(found[0], found[1])  # the noise is gone at this price
        np.testing.assert_array_equal(found[0], found[2])
        assert not config.copies.exists()
        server.run("DELETE FROM people WHERE ctid IN (SELECT ctid FROM people LIMIT 1)")
        assert ask(config, step=1).code == "answered"  # of the table as it is now: versions are not compared
        first = ask(config)
        assert isinstance(first.answer, PlainAnswer)
        np.testing.assert_array_equal(first.answer.values, found[1])  # a repeated question has its first answer
        assert ask(config, "another").code == "answered"
        assert ask(load_site_config(tmp_path / "data"), step=1).code == "answered"


_SEEN = "CREATE VIEW seen AS SELECT * FROM people; GRANT SELECT ON seen TO reader"
BROKEN = {
    "dropped": ("DROP VIEW seen", _SEEN),
    "of-fewer-columns": (
        "DROP VIEW seen; CREATE VIEW seen AS SELECT c0, c1 FROM people; GRANT SELECT ON seen TO reader",
        f"DROP VIEW seen; {_SEEN}",
    ),
    "of-another-type": (
        "DROP VIEW seen; CREATE VIEW seen AS SELECT c0, c1, c2, now() - now() AS c3 FROM people; "
        "GRANT SELECT ON seen TO reader",
        f"DROP VIEW seen; {_SEEN}",
    ),
    "not-to-be-read": ("REVOKE SELECT ON seen FROM reader", "GRANT SELECT ON seen TO reader"),
}
"""How a table may stop being readable, and what mends it."""


def test_a_table_that_cannot_be_read_in_its_database_costs_nothing(tmp_path, monkeypatch):
    frame = decode(SCHEMA, random_table(50, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    with people(monkeypatch, frame) as server:
        server.run(f"CREATE ROLE reader LOGIN; ALTER ROLE reader PASSWORD $pw${postgres.PASSWORD}$pw$; {_SEEN}")
        sites = []
        for way in ("copied", "counted", "streamed"):
            address = {"data": server.uri("table=seen", "reader"), "schema": str(tmp_path / "schema.toml")}
            write(tmp_path / way, {**address, **({} if way == "copied" else {way: True})})
            sites.append(load_site_config(tmp_path / way))
            create_state(sites[-1])
        for what, (breaks, mends) in BROKEN.items():
            server.run(breaks)
            assert [ask(config, what, rho=1e-3).code for config in sites] == ["failed"] * 3, what
            assert [open_account(config).spent(what).rho for config in sites] == [0] * 3
            server.run(mends)
            assert [ask(config, what, rho=1e-3).code for config in sites] == ["answered"] * 3, what


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_that_is_never_held_gives_the_same_sums(tmp_path, suffix):
    frame = decode(SCHEMA, random_table(50, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    write_frame(frame, tmp_path / f"rows{suffix}")
    found: list[Any] = []
    for how in ({}, {"streamed": True}):
        home = tmp_path / f"site{len(found)}"
        write(home, {"data": str(tmp_path / f"rows{suffix}"), "schema": str(tmp_path / "schema.toml"), **how})
        config = load_site_config(home)
        create_state(config)
        reply = ask(config)
        assert isinstance(reply.answer, PlainAnswer)
        found.append(reply.answer.values)
        wrong = {one.name: one.found for one in check_site(config) if one.state == "failure"}
        assert set(wrong) == {"root certificates", "node key"}, wrong
    np.testing.assert_array_equal(found[0], found[1])
    assert not config.copies.exists()
    assert not config.cache.exists()
    (tmp_path / f"rows{suffix}").unlink()
    assert ask(config, step=1).code == "failed"
    assert open_account(config).spent("r").rho == pytest.approx(1e6)  # a file that is gone costs nothing


def test_a_simulation_reads_a_database_table(tmp_path, monkeypatch):
    frame = decode(SCHEMA, random_table(300, 0), np.random.default_rng(0))
    SCHEMA.save(tmp_path / "schema.toml")
    with people(monkeypatch, frame) as server:
        job = Job(
            "oneshot", 1.0, 1e-6, data=server.uri("table=people"), schema=str(tmp_path / "schema.toml"), sites=3, seed=0
        )
        run_simulated(job, tmp_path / "run")
        found = RunFolder(tmp_path / "run").rows()
        assert sum(len(site) for site in found.sites) == 300
        server.run("DELETE FROM people WHERE ctid IN (SELECT ctid FROM people LIMIT 1)")
        with pytest.raises(FedsynthError, match="no longer holds the rows"):
            RunFolder(tmp_path / "run").rows()
