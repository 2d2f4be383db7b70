"""Real processes with certificates from a real enrolment: a run of three sites, and `fedsynth deploy try`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from tests.contract.world import SCHEMA, random_table
from tests.deploy.test_enrolment import SITES, Federation, found, told

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.deploy.flower.local import LocalFlower, wait_for
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import open_account
from fedsynth.encoding import decode
from fedsynth.runs.job import Job

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Three sites with rows, enrolled by the commands, that answer any plan."""
    federation = found(tmp_path_factory.mktemp("enrolled"))
    for at, name in enumerate(SITES):
        federation.join(name)
        home = federation.home(name)
        decode(SCHEMA, random_table(60, at), np.random.default_rng(0)).to_csv(home / "rows.csv", index=False)
        policy = (home / "site.toml").read_text()
        (home / "site.toml").write_text(
            policy.replace('# plans = "any"', 'plans = "any"').replace("# rows_are_persons", "rows_are_persons")
        )
    roster = federation.admit(*SITES)["roster"]
    for name in SITES:
        told("site", "join", federation.admission(name), federation.home(name), "--fingerprint", roster)
    told("deploy", "admit", federation.root, *(federation.home(name) / f"{name}.signed" for name in SITES))
    decode(SCHEMA, random_table(90, 9), np.random.default_rng(0)).to_csv(federation.place / "test.csv", index=False)
    return federation


def test_enrolled_sites_make_a_secure_sum_over_tls(enrolled, tmp_path):
    """The certificates, node keys and roster of the commands are all that the processes need."""
    homes = {name: enrolled.home(name) for name in SITES}
    local = LocalFlower(tmp_path, enrolled.root, enrolled.root / "server", homes)
    try:
        local.start()
        run_id = local.control.start()
        assert local.finish(run_id) == "finished:completed", local.log("server")
    finally:
        local.stop()
    job = Job.load(enrolled.root / "job.toml")
    assert job.deployment is not None
    run = enrolled.root / "runs" / job.deployment.run
    assert tomllib.loads((run / "run.toml").read_text())["made"]["lost_sites"] == []
    assert json.loads((run / "ledger.json").read_text())["statement"]["trust"] == "secure"
    for name in SITES:
        assert open_account(load_site_config(enrolled.home(name))).spent().rho > 0


def command(enrolled: Federation, out: Path, *more: str) -> list[str]:
    """Return the command that rehearses."""
    program = [sys.executable, "-c", "from fedsynth.cli.app import main; main()"]
    data = ["--data", str(enrolled.place / "test.csv"), "--out", str(out)]
    return [*program, "deploy", "try", str(enrolled.root), *data, *more]


def left(place: Path) -> list[str]:
    """Return the processes whose environment or command names a place."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        # This process's own environment names no place below.
        if str(place / "fedsynth-rehearsal-").encode() in said:
            found.append(said.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def test_a_rehearsal_leaves_a_result_and_touches_no_real_site(enrolled, tmp_path):
    spent = {name: open_account(load_site_config(enrolled.home(name))).head() for name in SITES}
    place = tmp_path / "tmp"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}
    out = tmp_path / "out"
    done = subprocess.run(
        command(enrolled, out, "--partition", "quantity:2"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "exchanges" in done.stdout
    assert {"synthetic.csv", "model.fedsynth", "ledger.json", "run.toml"} <= {path.name for path in out.iterdir()}
    assert list(place.iterdir()) == []
    assert left(place) == []
    assert spent == {name: open_account(load_site_config(enrolled.home(name))).head() for name in SITES}
    assert not (enrolled.root / "runs" / "rehearsal").exists()

    again = subprocess.run(command(enrolled, out), env=environment, capture_output=True, text=True, check=False)
    assert (again.returncode, "--force" in again.stderr) == (8, True)

    job = enrolled.root / "job.toml"
    text = job.read_text()
    try:  # what ends the run at the server ends the rehearsal, with the code that simulate has for it
        job.write_text(text + "\n[trust_options]\nmin_honest = 9\n")
        failed = subprocess.run(
            command(enrolled, tmp_path / "none"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        job.write_text(text)
    assert (failed.returncode, "min_honest is 9" in failed.stderr) == (2, True), failed.stderr
    assert not (tmp_path / "none").exists()
    assert left(place) == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.chaos), signal.SIGTERM])
def test_a_rehearsal_that_is_interrupted_ends_everything(enrolled, tmp_path, number):
    place = tmp_path / "tmp"
    place.mkdir()
    process = subprocess.Popen(
        command(enrolled, tmp_path / "out"), env={**os.environ, "TMPDIR": str(place)}, stdout=subprocess.DEVNULL
    )
    wait_for("the nodes", lambda: any("serve" in one for one in left(place)), 120)
    time.sleep(1)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert left(place) == []
    assert list(place.iterdir()) == []
    assert not (tmp_path / "out").exists()
