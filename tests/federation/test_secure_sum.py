"""A secure sum: exact whoever drops out, opaque to the server, and refused where somebody cheats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contract.world import SCHEMA, random_table
from tests.federation.secure_world import (
    BUDGET,
    MOVED,
    PAIR,
    RELEASE,
    Failing,
    ask,
    exact,
    federation,
    members,
    noise_of,
    trust_of,
)

from fedsynth.errors import FedsynthError, InvalidParameter, SiteLost, Unsupported
from fedsynth.federation.simulation import federate
from fedsynth.federation.task import marginals, size
from fedsynth.federation.transport import Addressed, InProcess, Recorded
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.trust.roster import AGREE, KEYS, MASKED, SHARES, UNMASK
from fedsynth.federation.trust.secure_sum import SecureSum
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Exact, Gaussian, Laplace


@pytest.mark.parametrize("number", [1, 2, 3, 5, 10])
def test_the_sum_is_exact_and_its_noise_is_the_sites_alone(number):
    sites = members(number)
    trust = trust_of(sites[0])
    assert (federation(sites).sum(marginals, Exact(), **PAIR).values == exact(sites)).all()
    for release in (RELEASE, Laplace(0.5)):
        noisy = federation(sites).sum(marginals, release, **PAIR)
        shares = [noise_of(site, ask(release), trust.honest(number)) for site in sites]
        assert (noisy.values == exact(sites) + np.sum(shares, axis=0)).all()
        assert any(share.any() for share in shares)
        assert noisy.std == pytest.approx(trust.std(release, MOVED, number))


@pytest.mark.parametrize("turn", [KEYS, SHARES, MASKED, AGREE, UNMASK])
def test_sites_that_drop_out_at_any_turn_leave_an_exact_sum(turn):
    sites = members(10)  # 4 may collude, 8 must stay
    gone = {"site-002", "site-007"}
    transport = Failing(sites, {turn: gone})
    result = federation(sites, transport).sum(marginals, Exact(), **PAIR)
    inside = sites if turn >= AGREE else [site for site in sites if site.name not in gone]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()
    charged = [site.name for site in sites if site.ledger.charges()]
    assert charged == [site.name for site in sites if turn > MASKED or site.name not in gone]


def test_one_site_lost_at_each_turn():
    sites = members(30, SecureSum(min_honest=25))  # 5 may collude, 18 must stay
    lost = {turn: {f"site-{3 * turn + k:03d}" for k in range(2)} for turn in range(5)}
    result = federation(sites, Failing(sites, lost)).sum(marginals, Exact(), **PAIR)
    out = lost[KEYS] | lost[SHARES] | lost[MASKED]
    inside = [site for site in sites if site.name not in out]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()


@pytest.mark.parametrize("turn", [SHARES, MASKED, AGREE, UNMASK])
def test_with_one_more_lost_the_sum_stops_and_says_how_many_are_missing(turn):
    sites = members(10)
    transport = Failing(sites, {turn: {"site-000", "site-004", "site-009"}})
    with pytest.raises(SiteLost, match=r"7 of 10 sites went through .* 8 are required: 1 are missing"):
        federation(sites, transport).sum(marginals, RELEASE, **PAIR)


def test_nobody_at_all_is_lost_too():
    sites = members(3)
    with pytest.raises(SiteLost, match="resumes"):
        federation(sites, Failing(sites, {KEYS: {site.name for site in sites}})).sum(size, RELEASE)


def test_sums_of_different_groups_share_their_exchanges():
    sites = members(5)

    class Counting(InProcess):
        exchanges = 0

        def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
            self.exchanges += 1
            return super().exchange(requests)

    transport = Counting(sites)
    asked = {site.name: [{"label": "all"}, {"label": site.name[:6] + str(k % 2)}] for k, site in enumerate(sites)}
    results = federation(sites, transport).sums(size, Exact(), asked)
    assert transport.exchanges == 5
    assert [(one.values.tolist(), len(one.sites)) for one in results] == [([170], 5), ([102], 3), ([68], 2)]


def test_a_site_may_be_a_new_process_for_every_message(tmp_path):
    expected = federation(members(4)).sum(marginals, RELEASE, **PAIR).values

    class Forgetful(InProcess):
        def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
            for one in requests:
                name, request = one[0], Request.from_bytes(one[1].to_bytes())
                fresh = InProcess(members(4, folder=tmp_path))
                yield from (Reply.from_bytes(reply.to_bytes()) for reply in fresh.exchange([(name, request)]))

    sites = members(4, folder=tmp_path)
    assert (federation(sites, Forgetful(sites)).sum(marginals, RELEASE, **PAIR).values == expected).all()
    assert {site.ledger.spent() for site in sites} == {RELEASE.rho}


# ------------------------------------------------------------------------------------------------------ resumption


@pytest.mark.parametrize("dies_at", range(1, 21, 2))
def test_a_run_that_died_within_a_sum_resumes_to_the_same_bits_and_pays_once(dies_at, tmp_path):
    expected = federation(members(4)).sum(marginals, RELEASE, **PAIR).values
    sites = members(4)
    with pytest.raises(ConnectionError):
        federation(sites, Recorded(Failing(sites, {}, dies_at), tmp_path / "t")).sum(marginals, RELEASE, **PAIR)
    rest = Failing(sites, {})
    again = federation(sites, Recorded(rest, tmp_path / "t")).sum(marginals, RELEASE, **PAIR)
    assert (again.values == expected).all()
    assert rest.sent == 20 - (dies_at - 1)
    assert {site.ledger.spent() for site in sites} == {RELEASE.rho}
    assert (
        federation(sites, Recorded(InProcess([]), tmp_path / "t")).sum(marginals, RELEASE, **PAIR).values == expected
    ).all()


@pytest.mark.parametrize("dies_at", [17, 18])  # after 8 keys and 8 shares: before or after the first masked answer
def test_a_site_that_missed_a_turn_stays_out_when_the_run_resumes(dies_at, tmp_path):
    lost = {SHARES: {"site-003"}}
    sites = members(8)
    expected = federation(members(8), Failing(members(8), lost)).sum(marginals, RELEASE, **PAIR)
    with pytest.raises(ConnectionError):
        federation(sites, Recorded(Failing(sites, lost, dies_at), tmp_path / "t")).sum(marginals, RELEASE, **PAIR)
    back = Failing(sites, {})
    resumed = federation(sites, Recorded(back, tmp_path / "t")).sum(marginals, RELEASE, **PAIR)
    assert resumed.sites == expected.sites
    assert (resumed.values == expected.values).all()
    assert "site-003" not in {name for name, _ in back.seen}


def test_a_turn_has_a_digest_of_its_own_and_shares_the_question():
    first, other = ask().at(SHARES, {"members": ["a"]}), ask().at(SHARES, {"members": ["b"]})
    later = ask().at(MASKED, {"members": ["a"], "boxes": np.arange(3, dtype=np.uint8)})
    assert {one.question for one in (ask(), first, other, later)} == {ask().digest}
    assert len({one.digest for one in (ask(), first, other, later)}) == 4
    again = Request.from_bytes(later.to_bytes())
    assert (again.digest, again.question, again.turn) == (later.digest, later.question, MASKED)
    np.testing.assert_array_equal(again.stage["boxes"], [0, 1, 2])
    anew = Request.from_bytes(ask().again(2).to_bytes())
    assert (anew.attempt, anew.question) == (2, ask().again(2).question)
    assert anew.question != ask().question


def test_a_sum_that_stopped_for_want_of_sites_goes_on_when_they_are_back(tmp_path):
    sites = members(5)
    lost = {MASKED: {"site-001", "site-002"}}
    with pytest.raises(SiteLost, match="start the run again"):
        federation(sites, Recorded(Failing(sites, lost), tmp_path / "t")).sum(marginals, RELEASE, **PAIR)
    resumed = federation(sites, Recorded(Failing(sites, {}), tmp_path / "t")).sum(marginals, RELEASE, **PAIR)
    assert (resumed.values == federation(members(5)).sum(marginals, RELEASE, **PAIR).values).all()
    assert {site.ledger.spent() for site in sites} == {RELEASE.rho}


def test_a_sum_that_failed_for_good_is_another_question_with_fresh_noise_charged_again():
    sites = members(5)  # 4 must stay
    first = {"site-003", "site-004"}

    class Flaky(Failing):
        def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
            asked = list(requests)
            self.lost = {AGREE: first} if asked[0][1].attempt == 0 else {}
            return super().exchange(asked)

    run = federation(sites, Flaky(sites, {}), attempts=2)
    result = run.sum(marginals, RELEASE, **PAIR)
    again = ask().again(1)
    assert again.question != ask().question
    noise = [noise_of(site, again, trust_of(site).honest(5)) for site in sites]
    assert (result.values == exact(sites) + np.sum(noise, axis=0)).all()
    assert (noise[0] != noise_of(sites[0], ask(), 2)).any()
    assert run.ledger.rho == pytest.approx(2 * RELEASE.rho)
    assert {round(site.ledger.spent(), 9) for site in sites} == {2 * RELEASE.rho}


# ------------------------------------------------------------------------------------- what a server does with nonsense


@pytest.mark.parametrize(
    ("turn", "name", "says"),
    [
        (KEYS, "advert", "no valid advert"),
        (SHARES, "boxes", "no valid boxes"),
        (MASKED, "values", "no masked answer"),
        (UNMASK, "shares", "no valid shares"),
    ],
)
def test_a_message_that_is_none_is_a_dropout_and_named(turn, name, says, caplog):
    class Broken(InProcess):
        def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
            for reply, (_, request) in zip(super().exchange(asked := list(requests)), asked, strict=True):
                if request.turn == turn and reply.site == "site-001":
                    yield replace(reply, values=None, parts={**reply.parts, name: np.zeros(3, dtype=np.uint8)})
                else:
                    yield reply

    sites = members(3)  # all of whom have to stay
    if turn == KEYS:  # nobody counts on it yet
        assert federation(sites, Broken(sites)).sum(marginals, RELEASE, **PAIR).sites == ("site-000", "site-002")
    else:
        with pytest.raises(SiteLost, match="1 are missing"):
            federation(sites, Broken(sites)).sum(marginals, RELEASE, **PAIR)
    assert f"site-001 sent {says}" in caplog.text


def test_a_wrong_share_is_noticed():
    class Lying(InProcess):
        def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
            for reply, (_, request) in zip(super().exchange(asked := list(requests)), asked, strict=True):
                if request.turn == UNMASK and reply.site == "site-001":
                    shares = reply.parts["shares"].copy()
                    shares[:, -1] ^= 1
                    yield replace(reply, parts={"shares": shares})
                else:
                    yield reply

    sites = members(3)
    with pytest.raises(FedsynthError, match=r"give another one|do not fit together"):
        federation(sites, Lying(sites)).sum(marginals, RELEASE, **PAIR)


# -------------------------------------------------------------------------------------------------------- the numbers


def test_thresholds_are_those_of_the_paper():
    for number in range(1, 41):
        roster = {f"s{k}": bytes([k]) * 32 for k in range(number)}
        for least in {None, 1, (number + 2) // 3, number}:
            for dropouts in (None, 0, 2):
                trust = SecureSum(least, dropouts, roster)
                assert trust.colluding == number - (least or number // 2 + 1)
                for present in range(1, number + 1):
                    threshold, honest = trust.threshold(present), trust.honest(present)
                    assert 1 <= threshold <= present
                    assert 2 * threshold > present + min(trust.colluding, present - 1)  # theorem 6.5
                    assert dropouts is None or present - threshold <= dropouts
                    assert honest == 1 or threshold - trust.colluding >= honest


def test_fewer_dropouts_mean_less_noise():
    roster = {f"s{k}": bytes([k]) * 32 for k in range(20)}
    stds = [SecureSum(14, dropouts, roster).std(Gaussian(1e-4), MOVED, 20) for dropouts in (None, 3, 0)]
    whole = Gaussian(1e-4).sigma(MOVED)
    assert stds == pytest.approx([whole * math.sqrt(20 / honest) for honest in (14 - 6, 17 - 6, 20 - 6)])


def test_a_small_cohort_is_as_noisy_as_under_local_noise():
    sites = members(5)
    trust = trust_of(sites[0])
    for number in (1, 2, 3):
        assert trust.honest(number) == 1
        assert trust.std(RELEASE, MOVED, number) == RELEASE.sigma(MOVED) * math.sqrt(number)


def test_numbers_that_cannot_be_are_refused():
    roster = {"a": bytes(32), "b": b"b" * 32}
    wrong: list[dict[str, Any]] = [
        {"min_honest": 0},
        {"min_honest": 3, "roster": roster},
        {"dropouts": -1},
        {"roster": {"a": bytes(32), "b": bytes(32)}},
    ]
    for numbers in wrong:
        with pytest.raises(InvalidParameter):
            SecureSum(**numbers)
    with pytest.raises(Unsupported, match="roster"):
        SecureSum().std(RELEASE, MOVED, 2)


def test_noise_that_cannot_be_shared_is_said_before_anybody_is_asked():
    sites = members(5)
    run = federation(sites, InProcess([]))
    with pytest.raises(Unsupported, match="use Gaussian"):
        run.sum(marginals, Laplace(1e-4), **PAIR)
    assert run.ledger.rho == 0


def test_there_is_no_vault_and_the_guarantee_names_its_assumption():
    tables = [random_table(30, k) for k in range(5)]
    run = federate(tables, SCHEMA, BUDGET, trust=SecureSum(), seed=0)
    with pytest.raises(Unsupported, match="opens sums only"):
        run.deposit([(0,)], 0.1)
    run.sum(size, RELEASE)
    assert "holds if at least 3 of the 5 sites are honest" in run.ledger.guarantee
    assert "holds if" in json.dumps(run.ledger.to_json())
    local = federate(tables, SCHEMA, BUDGET, trust=LocalNoise(), seed=0)
    assert "holds if" not in local.ledger.guarantee


def test_neighbouring_tables_differ_in_the_released_sum_by_one_record_alone():
    """Everything else that leaves is bound to the rows by keys: the sum moves by the record, the noise is fresh."""
    whole = members(4)
    gone = [replace(whole[0], table=whole[0].table.take(np.arange(len(whole[0].table)) > 0)), *whole[1:]]
    honest = trust_of(whole[0]).honest(4)
    sums = []
    for sites in (whole, gone):
        fresh = [replace(site, ledger=SiteLedger()) for site in sites]
        released = federation(fresh).sum(marginals, RELEASE, **PAIR).values
        sums.append(released - np.sum([noise_of(site, ask(), honest) for site in fresh], axis=0))
    assert np.abs(sums[0] - sums[1]).sum() == 2  # one cell of each of the two tables: the declared sensitivity
    assert (noise_of(whole[0], ask(), honest) != noise_of(gone[0], ask(), honest)).any()
