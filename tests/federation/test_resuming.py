"""A run without a seed that was interrupted goes on where it stopped: the same call with the same transcript."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.world import AGE, BUDGET, SCHEMA, SEX, TRUSTS, Faulty, counts, losing, silent, start, table, tables

from fedsynth.encoding import decode
from fedsynth.errors import FedsynthError, SiteLost
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.simulate import federate, secret_file
from fedsynth.federation.transport import InProcess, Recorded, _record, records
from fedsynth.methods.aim import AIM
from fedsynth.methods.flaim import AugFLAIM
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.privsyn import AllMarginals, RandomMarginals
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Schema

METHOD = AugFLAIM(rounds=3, rate=0.8)
ALL = AllMarginals(one_share=0.2)
each_trust = pytest.mark.parametrize("trust", TRUSTS.values(), ids=TRUSTS)


def begin(transcript: Path, trust: Any = TRUSTS["local"], **changes: Any) -> Federation:
    options: dict[str, Any] = {"tables": tables(4), "schema": SCHEMA, "budget": BUDGET, **changes}
    return federate(**options, trust=trust, transcript=transcript)


def sampled(transcript: Path, trust: Any = TRUSTS["local"], method: Any = METHOD, **changes: Any) -> pd.DataFrame:
    """Return rows of the method's synthesizer, drawn as the run draws them."""
    federation = begin(transcript, trust, **changes)
    rows: pd.DataFrame = method.fit(federation).sample(50, federation.rng)
    return rows


def copied(transcript: Path, name: str, size: int | None = None) -> Path:
    """Return a copy of a transcript, cut off after so many bytes, with the secret beside it."""
    copy = transcript.with_name(name)
    copy.write_bytes(transcript.read_bytes()[:size])
    shutil.copyfile(secret_file(transcript), secret_file(copy))
    return copy


def ends(transcript: Path) -> list[int]:
    found = [len(Recorded._MAGIC)]
    for _, data in records(transcript):
        found.append(found[-1] + len(_record(1, data)))
    return found[1:]


class Interrupted(Exception):
    """What stops a run in the middle."""


def interrupt(what: str, done: int, total: int) -> None:
    """Stop the run after its first round: the sizes, the columns of a cohort, its picks and their tables."""
    raise Interrupted(what)


def charged(federation: Federation) -> dict[str, set[int]]:
    """Return the steps that each site's own account was charged for."""
    transport = federation.transport
    assert isinstance(transport, Recorded)
    assert isinstance(transport._transport, InProcess)
    accounts = {name: site.account for name, site in transport._transport._sites.items()}
    return {name: {charge["step"] for charge in account.charges()} for name, account in accounts.items()}


@each_trust
def test_an_interrupted_run_goes_on_and_pays_only_for_what_was_not_answered(trust, tmp_path):
    first = begin(tmp_path / "t", trust, progress=interrupt)
    with pytest.raises(Interrupted):
        METHOD.fit(first)
    before = charged(first)
    last = max(step for steps in before.values() for step in steps)
    assert last >= 2
    expected = sampled(copied(tmp_path / "t", "copy"), trust)
    again = begin(tmp_path / "t", trust)
    assert again.run == first.run
    rows = METHOD.fit(again).sample(50, again.rng)
    assert rows.equals(expected)
    steps = {entry.step for entry in again.ledger.entries}
    assert steps > set(range(last + 1))
    answered = set() if trust.confidential else set(range(last + 1))  # exact answers are recorded by digest alone
    for name, after in charged(again).items():
        assert not after & answered
        assert before[name] | after == {entry.step for entry in again.ledger.entries if name in entry.sites}
    runs = {
        head.run for _, asked in Recorded(InProcess([]), tmp_path / "t")._steps.items() for head, _ in asked.values()
    }
    assert runs == {first.run}


@each_trust
def test_a_run_that_stopped_anywhere_ends_as_if_it_had_not(trust, tmp_path):
    expected = sampled(tmp_path / "t", trust)
    assert sampled(copied(tmp_path / "t", "whole"), trust).equals(expected)
    places = ends(tmp_path / "t")
    for at in range(1, len(places), max(1, len(places) // 12)):
        cut = copied(tmp_path / "t", f"t-{at}", places[at] + at % 3)  # between two records, or within one
        assert sampled(cut, trust).equals(expected), f"cut off after record {at}"
    assert not sampled(tmp_path / "another", trust).equals(expected)


def test_vaults_of_a_run_that_resumes_release_the_same(tmp_path):
    method = AIM(rounds=3)
    with pytest.raises(Interrupted):
        sampled(tmp_path / "t", TRUSTS["trusted"], method, progress=interrupt)
    copy = copied(tmp_path / "t", "copy")
    assert sampled(tmp_path / "t", TRUSTS["trusted"], method).equals(sampled(copy, TRUSTS["trusted"], method))


@pytest.mark.parametrize("seed", [None, 3], ids=["unseeded", "seeded"])
@pytest.mark.parametrize(
    ("changes", "method", "says"),
    [
        ({"budget": Budget(2.0, 1e-6)}, ALL, "another budget or method"),
        ({"budget": Budget(1.0, 0.0)}, ALL, "another budget or method"),
        ({"trust": TRUSTS["trusted"]}, ALL, "another trust"),
        ({"public_sizes": True}, ALL, "another choice of public sizes"),
        ({}, AugFLAIM(rounds=3), "another budget or method"),
        ({}, AllMarginals(one_share=0.1), "another budget or method"),
        ({}, RandomMarginals(one_share=0.2), "another method, or with other options of it"),
    ],
)
def test_a_transcript_of_another_budget_trust_or_method_is_refused(seed, changes, method, says, tmp_path):
    path = tmp_path / "t"
    sampled(path, method=ALL, seed=seed)
    kept = path.read_bytes()
    with pytest.raises(FedsynthError, match=f"t is the transcript of a run .*{says}"):
        sampled(path, method=method, seed=seed, **changes)
    assert path.read_bytes() == kept


def test_a_transcript_over_other_rows_or_another_schema_is_refused(tmp_path):
    path, method = tmp_path / "t", OneShot(bins_share=0.0)
    sampled(path, method=method)
    rng, kept = np.random.default_rng(0), path.read_bytes()
    other = Schema((*SCHEMA.columns[:2], Categorical("age", ("young", "old"))))
    frames = [decode(SCHEMA, rows, rng).assign(age="old") for rows in tables(4)]
    cases: list[dict[str, Any]] = [
        {"schema": other, "tables": frames},
        {"tables": tables(3)},
        {"tables": [*tables(3), table(51, 9)]},
    ]
    for changes in cases:
        with pytest.raises(FedsynthError, match="over other sites or rows, or under another schema"):
            begin(path, **changes)
    sampled(tmp_path / "seeded", method=method, seed=3)
    with pytest.raises(FedsynthError, match=r"with another schema \(step 0\)"):
        sampled(tmp_path / "seeded", method=method, seed=3, **cases[0])
    with pytest.raises(FedsynthError, match="with another name or seed"):
        sampled(tmp_path / "seeded", method=method, seed=4)
    assert path.read_bytes() == kept


def test_a_run_does_not_go_on_without_the_secret_of_its_noise(tmp_path):
    path = tmp_path / "t"
    sampled(path, method=OneShot())
    assert secret_file(path).stat().st_mode & 0o777 == 0o600
    damages: list[Callable[[], Any]] = [lambda: secret_file(path).write_text("{}"), lambda: secret_file(path).unlink()]
    for damage in damages:
        damage()
        with pytest.raises(FedsynthError, match=r"t\.secret is missing or damaged.*the seed if the run had one"):
            begin(path)
    sampled(tmp_path / "seeded", method=OneShot(), seed=3)
    assert not secret_file(tmp_path / "seeded").exists()


def test_a_transcript_without_records_is_the_beginning_of_another_run(tmp_path):
    """Its secret is not used again: the two runs would hide the same answers under the same noise."""
    path = tmp_path / "t"
    first = begin(path)
    assert begin(path).run != first.run
    path.write_bytes(Recorded._MAGIC[:5])
    federation = begin(path)
    query = counts((SEX,), (AGE,))
    released = federation.sum(query, 0.5)
    assert (begin(path).sum(query, 0.5).values == released.values).all()


def test_a_site_that_missed_an_earlier_question_stays_out_of_it_when_the_run_resumes(tmp_path):
    """What was asked later rests on the answers that there were."""
    gone = losing(lambda message: message.site == "site-001" and message.request.head.step == 0)

    def run(transport: Faulty) -> tuple[set[str], set[str]]:
        federation = begin(tmp_path / "t", LocalNoise(), transport=transport)
        return set(federation.each(counts((SEX,)), 0.2)), set(federation.each(counts((AGE,)), 0.2))

    everybody = {"site-000", "site-001", "site-002", "site-003"}
    assert run(Faulty(gone)) == run(Faulty()) == (everybody - {"site-001"}, everybody)


@pytest.mark.parametrize(("name", "turn"), [("trusted", 0), ("local", 0), *(("secure", turn) for turn in range(3))])
def test_a_round_that_too_few_sites_answered_is_made_good_when_they_are_back(name, turn, tmp_path):
    """It was not released, and nobody was told that a site is out: the resumed run is as if none had been lost."""
    trust, query, held = TRUSTS[name], counts((SEX,), (AGE,)), tables(4)
    expected = start(Faulty(), held, trust).sum(query, 0.5)
    network = Faulty(silent({turn: {"site-001"}}))
    for at in (network, Faulty(network.rule, doors=network.doors)):
        with pytest.raises(SiteLost, match="3 sites answered and 4 are required"):
            replace(start(at, held, trust, transcript=tmp_path / "t"), min_sites=4).sum(query, 0.5)
    back = network.back()
    found = replace(start(back, held, trust, transcript=tmp_path / "t"), min_sites=4).sum(query, 0.5)
    assert found.sites == expected.sites
    assert found.values.tolist() == expected.values.tolist()
    assert [len(site.account.charges()) for site in back.doors.values()] == [1] * 4
