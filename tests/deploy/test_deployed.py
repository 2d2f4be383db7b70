"""A deployed run in this process: real sites that answer an approved plan alone, and what its statement says."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import FedsynthError
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.keys import Keys
from fedsynth.methods import find_method
from fedsynth.privacy.book import Book
from fedsynth.proof.prove import prove_run
from fedsynth.runs.dry_run import forecast
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Deployment, Job
from fedsynth.runs.run import run_deployed
from fedsynth.runs.state import COORDINATOR

NAMES = ("east", "north")
SECRET = bytes(range(32))
SITE_SECRETS = {name: bytes([at]) * 32 for at, name in enumerate(NAMES)}
PEERS = {name: Keys(secret).identity.hex() for name, secret in SITE_SECRETS.items()}
DEPLOYMENT = Deployment("r", NAMES, peers=PEERS)
JOB = Job("oneshot", 1.0, 1e-6, schema="schema.toml", trust="local", rows=20, deployment=DEPLOYMENT)


def planned(job: Job) -> Agreement:
    method = job.build_method(SCHEMA)
    limits = find_method(job.method).limits(method, SCHEMA)
    return forecast(job.method, method, job.terms(SCHEMA), sites=2, rows=100, repeats=1, limits=limits).plan


def deployed(folder: Path, job: Job, trust: Trust, plan: Agreement, patch: pytest.MonkeyPatch) -> tuple[Job, InProcess]:
    """Write the server's folder, and return the job under the plan and the sites that approved it."""
    patch.chdir(folder)
    SCHEMA.save(folder / "schema.toml")
    (folder / COORDINATOR).write_text(SECRET.hex())
    (folder / COORDINATOR).chmod(0o600)
    verbs = ("sum", "each", "choose")
    policy = Policy(
        budget=job.budget,
        trusts={trust.name: trust},
        plans={plan.digest: plan},
        verbs=verbs,
        coordinator_sees_exact_counts=trust.name == "trusted",
    )
    key = Keys(SECRET).public
    sites = [Site(name, random_table(80, at), policy, Book(), SITE_SECRETS[name], key) for at, name in enumerate(NAMES)]
    assert job.deployment is not None
    return structs.replace(job, deployment=structs.replace(job.deployed, plan=plan.digest)), InProcess(sites)


@pytest.mark.parametrize("trust", [LocalNoise(), TrustedServer()], ids=["local", "trusted"])
def test_the_statement_of_a_planned_run_is_by_exact_accounting_where_the_plan_is_at_hand(trust, tmp_path, monkeypatch):
    job = structs.replace(JOB, trust=trust.name)
    plan = planned(job)
    job, sites = deployed(tmp_path, job, trust, plan, monkeypatch)
    plan.save(tmp_path / "plan.toml")
    outcome = run_deployed(job, tmp_path, sites)
    assert outcome.statement.exact == plan.guarantee.epsilon == pytest.approx(0.935, abs=0.002)
    assert not outcome.statement.simulated
    assert "the limit that each site has set for itself" in outcome.statement.text
    assert outcome.statement.headline.startswith("(0.93")
    assert not prove_run(RunFolder(outcome.folder)).problems


def test_a_run_under_a_plan_needs_its_file_and_is_run_as_it_was_planned(tmp_path, monkeypatch):
    plan = planned(JOB)
    job, sites = deployed(tmp_path, JOB, LocalNoise(), plan, monkeypatch)
    with pytest.raises(FedsynthError, match="is missing; put the approved plan there"):
        run_deployed(job, tmp_path, sites)
    plan.save(tmp_path / "plan.toml")
    for changes in ({"method": "aim"}, {"trust": "trusted"}, {"rows_per_person": 2}):
        with pytest.raises(FedsynthError, match="run the job as it was planned"):
            run_deployed(structs.replace(job, **changes), tmp_path, sites)
    assert all(not site.account.charges() for site in sites._sites.values())


def test_a_plan_with_private_picks_has_the_limit_as_its_guarantee(tmp_path, monkeypatch):
    trust, job = LocalNoise(), structs.replace(JOB, method="flaim", options={"rounds": 2, "rate": 1.0})
    plan = planned(job)
    job, sites = deployed(tmp_path, job, trust, plan, monkeypatch)
    plan.save(tmp_path / "plan.toml")
    assert run_deployed(job, tmp_path, sites).statement.exact is None


def test_the_file_of_another_plan_stops_the_run_before_it_asks_anything(tmp_path, monkeypatch):
    trust = LocalNoise()
    plan = planned(JOB)
    job, sites = deployed(tmp_path, JOB, trust, plan, monkeypatch)
    structs.replace(plan, sites=7).save(tmp_path / "plan.toml")
    with pytest.raises(FedsynthError, match="put the approved plan there"):
        run_deployed(job, tmp_path, sites)
    assert all(not site.account.charges() for site in sites._sites.values())
