"""A job's file: what it keeps, what it refuses, and where its paths start."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tests.contract.world import SCHEMA, random_table

from fedsynth.encoding import decode
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported
from fedsynth.federation.transport import InProcess
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Deployment, Job
from fedsynth.runs.run import run_deployed, run_simulated
from fedsynth.secure.site import SecureSum

SIMULATED = Job("oneshot", 1.0, 1e-6, data="rows/a.csv", schema="agreed.toml", sites=2, seed=1, holdout=0.1)
DEPLOYED = Job("oneshot", 1.0, 1e-6, schema="schema.toml", deployment=Deployment("r", ("a", "b"), plan="ab"))


@pytest.mark.parametrize("job", [SIMULATED, DEPLOYED, Job("aim", float("inf"), 0.0, data="demo:rand-hie")])
def test_a_job_survives_its_file(job):
    assert Job.from_toml(job.to_toml()) == job


def test_a_deployed_job_says_nothing_of_a_simulation():
    content = tomllib.loads(DEPLOYED.to_toml())
    assert not {"sites", "partition", "holdout", "seed"} & set(content)
    assert content["deployment"]["sites"] == ["a", "b"]
    with pytest.raises(InvalidParameter, match="holdout only apply to simulated runs"):
        replace(DEPLOYED, holdout=0.2)


def test_each_kind_of_run_refuses_the_job_of_the_other(tmp_path):
    with pytest.raises(Unsupported, match=r"no \[deployment\]"):
        run_deployed(SIMULATED, tmp_path, InProcess([]))
    with pytest.raises(Unsupported, match="one of a deployment"):
        run_simulated(DEPLOYED, tmp_path / "run")


@pytest.mark.parametrize("key", ["zz" * 32, "ab", "", "north"])
def test_a_job_with_a_peer_that_is_no_key_says_which(key):
    job = Job("oneshot", 1, 1e-6, trust="secure", deployment=Deployment("r", ("a", "b", "c"), peers={"b": key}))
    with pytest.raises(FedsynthError, match=r"\[deployment.peers\] b must be an identity key"):
        job.build_trust()


@pytest.mark.parametrize(
    "made", ["made = 3", 'made = "x"', "[[made]]", "[made]\nidentities = 3", '[made]\nidentities = { a = "zz" }']
)
def test_a_run_file_whose_last_section_is_another_is_refused(tmp_path, made):
    job = Job("oneshot", 1, 1e-6, trust="secure", data="table.csv")
    (tmp_path / "run.toml").write_text("\n".join([job.to_file(), made] if "[" in made else [made, job.to_file()]))
    with pytest.raises(FedsynthError, match="identity keys"):
        RunFolder(tmp_path).trust  # noqa: B018


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidParameter, match="seed: expected a whole number of at least 0, not -1"):
        replace(SIMULATED, seed=-1)


@pytest.mark.parametrize("data", ["rows.csv", "demo:rand-hie", "postgresql://host/db?table=t"])
def test_relative_paths_start_at_the_folder_of_the_file(tmp_path, monkeypatch, data):
    (tmp_path / "here" / "run").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    job = replace(SIMULATED, data=data, schema="")
    Path("run", "run.toml").write_text(job.relative_to(Path("run")).to_toml())
    assert Job.load(Path("run", "run.toml")) == job
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = Job.load(Path("..", "here", "run", "run.toml")).data
    assert found == ("../here/rows.csv" if data == "rows.csv" else data)


def test_a_run_is_found_again_with_its_rows_where_both_were_moved(tmp_path, monkeypatch):
    """What a colleague gets in an archive is measured there as it was here."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    decode(SCHEMA, random_table(60, 1), np.random.default_rng(0)).to_csv("rows.csv", index=False)
    SCHEMA.save(Path("agreed.toml"))
    job = replace(SIMULATED, data="rows.csv", holdout=0.0)
    here = run_simulated(job, Path("run"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = RunFolder(tmp_path / "there" / "run")
    assert moved.rows().digest == here.rows.digest
    again = run_simulated(moved.job, tmp_path / "again")
    assert again.synthetic.equals(here.synthetic)


def test_nobody_elses_folder_is_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(FedsynthError, match="is not a run directory, so --force will not replace it"):
        run_simulated(SIMULATED, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


SITES = ("north", "south", "east")


@pytest.mark.parametrize(
    ("sites", "least", "options", "says"),
    [
        (3, 2, {}, "needs 3 of them to its end; set min_sites = 3, or min_honest = 3 under"),
        (5, 3, {}, "set min_sites = 4 to 5, or min_honest = 5 under"),
        (5, 1, {"min_honest": 5}, "set min_sites = 3 to 5$"),
        (3, 2, {"min_honest": 3}, ""),
        (5, 4, {}, ""),
        (5, 4, {"dropouts": 0}, "set min_sites = 5$"),
    ],
)
def test_a_min_sites_without_effect_under_secure_is_refused_with_the_numbers_that_work(sites, least, options, says):
    """Before, the job was accepted, and a run that lost a site ended with exit code 7 all the same."""

    def job(trust: str) -> Job:
        deployment = Deployment("r", tuple(f"site-{at}" for at in range(sites)), min_sites=least)
        return Job("oneshot", 1.0, 1e-6, trust=trust, trust_options=options, deployment=deployment)

    if says:
        with pytest.raises(FedsynthError, match=says):
            job("secure")
    else:
        job("secure")
        trust = job("secure").build_trust()
        assert isinstance(trust, SecureSum)
        trust = trust.with_roster({f"site-{at}": bytes([at]) * 32 for at in range(sites)})
        assert trust.threshold(sites) <= least
    Job("oneshot", 1.0, 1e-6, trust="local", deployment=Deployment("r", SITES, min_sites=2))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("min_sites = 2", r"'min_sites' stands in the section \[deployment.peers\]; .* under \[deployment\]"),
        ("seed = 3", r"'seed' stands in the section \[deployment.peers\]; .* before the first \[section\]"),
        ('schema = "s.toml"', r"'schema' stands in the section \[deployment.peers\]; .* before the first"),
    ],
)
def test_a_line_appended_to_a_job_is_named_with_its_place(tmp_path, line, says):
    """Before: "Expected `str`, got `int` at $.deployment.peers[...]", or that `schema` is no valid name of a site."""
    peers = dict.fromkeys(SITES, "ab" * 32)
    job = Job("oneshot", 1.0, 1e-6, trust="secure", deployment=Deployment("r", SITES, peers=peers))
    (tmp_path / "job.toml").write_text(job.to_file() + line + "\n")
    with pytest.raises(FedsynthError, match=says) as caught:
        Job.load(tmp_path / "job.toml")
    assert "job.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[options]\nrows = 5\n", r"'rows' stands in the section \[options\]; .* before the first"),
        ("[trust_options]\nplan = 5\n", r"'plan' stands in the section \[trust_options\]; .* under \[deployment\]"),
        ("min_sites = 2\n", r"'min_sites' stands before the first section; .* under \[deployment\]"),
        ('[deployment]\nrun = "r"\nsites = ["a"]\nrows = 3\n', r"'rows' stands in the section \[deployment\]"),
    ],
)
def test_a_line_in_another_section_is_named_with_its_place(text, says):
    with pytest.raises(FedsynthError, match=says):
        Job.from_toml('method = "oneshot"\nepsilon = 1.0\ndelta = 1e-6\n' + text)
    sites = '[deployment]\nrun = "r"\nsites = ["rows"]\npeers = {rows = "abab"}\n'
    assert Job.from_toml('method = "oneshot"\nepsilon = 1.0\ndelta = 1e-6\n' + sites).deployment is not None
