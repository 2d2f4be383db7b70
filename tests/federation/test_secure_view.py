"""What a server and colluding sites see of a secure sum, and what a site refuses when they cheat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.contract.world import SCHEMA, random_table
from tests.federation.secure_world import (
    BUDGET,
    MOVED,
    PAIR,
    RELEASE,
    ask,
    converse,
    federation,
    members,
    noise_of,
    trust_of,
)

from fedsynth.errors import FedsynthError, Refused
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site, _Desk
from fedsynth.federation.task import marginals
from fedsynth.federation.trust import masking
from fedsynth.federation.trust.roster import AGREE, MASKED, SHARES, UNMASK, Roster
from fedsynth.federation.trust.secure_session import SecureSession
from fedsynth.federation.trust.shamir import PRIME, combine, weights_at_zero
from fedsynth.federation.trust.shares import gaussian_share
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.release import Budget, Exact, Gaussian

MANY: dict[str, Any] = {"cliques": [[0, 1, 2, 3]] * 80}  # 9,600 cells
MANY_CELLS = 9_600


def masked_vectors(sites: Sequence[Site], request: Request) -> dict[str, NDArray[np.uint64]]:
    _, turns = converse(sites, request)
    vectors = {}
    for name, (_, reply) in turns[MASKED].items():
        assert reply.values is not None
        vectors[name] = reply.values.view(np.uint64)
    return vectors


def total(vectors: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    result = vectors[0].copy()
    for vector in vectors[1:]:
        result += vector
    return result


def uniform(words: NDArray[np.uint64]) -> bool:
    """Chi-square over bytes: with some 300 checks below 10^-6 a false alarm in 3,000 sets of seeds."""
    return bool(stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-6)


def test_what_a_site_sends_is_uniform_and_differs_between_sessions():
    sites = members(5)
    first, second = (masked_vectors(sites, replace(ask(Exact(), **MANY), step=step, _memo={})) for step in (0, 1))
    names = list(first)
    for name in names:
        assert uniform(first[name])
        assert uniform(np.subtract(first[name], second[name]))  # the same answer, under unrelated masks
        for other in names[: names.index(name)]:
            assert uniform(np.subtract(first[name], first[other]))
            assert uniform(total([first[name], first[other]]))
    for out in names:  # all but one of them: still nothing
        assert uniform(total([first[name] for name in names if name != out]))
    assert uniform(total(list(first.values())))  # self-masks hide even the sum until enough sites unmask it
    assert not uniform(marginals.answer(sites[0].table, **MANY).view(np.uint64))  # the check can fail


def left_of(
    target: Site, colluders: Sequence[Site], request: Request, session: SecureSession, turns: list[Any]
) -> NDArray[np.uint64]:
    """Take off a site's masked vector whatever its colluding peers and the server can know together."""
    assert session.roster is not None
    roster: Roster = session.roster
    left: NDArray[np.uint64] = turns[MASKED][target.name][1].values.view(np.uint64).copy()
    for peer in colluders:  # they know the masks that they share with it
        key = roster.pair_key(_Desk(peer, request).key("mask key"), peer.name, target.name)
        (masking.subtract_mask if target.name < peer.name else masking.add_mask)(left, key)
    # the server was given the shares of its self-mask, since it is in the sum
    row = list(session.boxes).index(target.name)
    shares = {
        roster.members.index(name) + 1: int.from_bytes(reply.parts["shares"][row].tobytes())
        for name, (_, reply) in turns[UNMASK].items()
    }
    masking.subtract_mask(left, masking.derive(combine(shares), "self mask", roster.digest))
    return left


def test_all_others_and_the_server_together_learn_the_answer_under_one_share_of_noise():
    """The documented bound: one share has 1/honest of the variance, so a record costs honest times rho there."""
    sites = members(5)
    request = ask(Gaussian(0.002), **MANY)
    session, turns = converse(sites, request)
    honest = trust_of(sites[0]).honest(5)
    assert honest == 2
    left = left_of(sites[0], sites[1:], request, session, turns).view(np.int64)
    noise = left - marginals.answer(sites[0].table, **MANY)
    assert (noise == noise_of(sites[0], request, honest, MANY_CELLS)).all()
    sensitivity = marginals.sensitivity(SCHEMA, **MANY)
    share = gaussian_share(Gaussian(0.002), sensitivity, honest)
    assert share == pytest.approx(Gaussian(0.002).sigma(sensitivity) / math.sqrt(honest))
    spread = noise.astype(np.float64) ** 2
    assert abs(spread.mean() - share**2) < 5 * share**2 * math.sqrt(2 / MANY_CELLS)
    # standardised, it is the normal law that a discrete Gaussian of this width is (sigma > 100)
    assert stats.kstest(noise / share, "norm").pvalue > 1e-4


def test_with_the_honest_minimum_left_colluders_learn_the_release_and_no_single_site():
    sites = members(5)  # 3 must be honest, 2 may collude
    request = ask(Gaussian(0.002), **MANY)
    session, turns = converse(sites, request)
    honest, colluders = sites[:3], sites[3:]
    left = {site.name: left_of(site, colluders, request, session, turns) for site in honest}
    for words in left.values():
        assert uniform(words)
    first, second, third = left.values()
    assert uniform(total([first, second]))
    assert uniform(total([second, third]))
    together = total([first, second, third]).view(np.int64)
    noise = together - np.sum([marginals.answer(site.table, **MANY) for site in honest], axis=0)
    whole = Gaussian(0.002).sigma(marginals.sensitivity(SCHEMA, **MANY))
    spread = noise.astype(np.float64) ** 2
    assert abs(spread.mean() - 1.5 * whole**2) < 5 * 1.5 * whole**2 * math.sqrt(2 / MANY_CELLS)  # 3 shares of a half
    assert spread.mean() > whole**2


def test_shares_of_the_colluders_alone_open_nothing_before_the_unmasking():
    sites = members(5)
    session, turns = converse(sites, until=MASKED)
    roster = session.roster
    assert roster is not None
    target = sites[0]
    shares = {}
    for peer in sites[3:]:
        at = roster.members.index(peer.name)
        channel = _Desk(peer, ask()).key("channel key")
        key = masking.agree(channel, roster.channel_key(target.name), "box", roster.digest, target.name, peer.name)
        box = turns[SHARES][target.name][1].parts["boxes"][at].tobytes()
        shares[at + 1] = int.from_bytes(masking.unseal(key, box, roster.digest, target.name, peer.name)[:33])
    opened = sum(w * s for w, s in zip(weights_at_zero(list(shares)), shares.values(), strict=True)) % PRIME
    assert opened != int.from_bytes(_Desk(target, ask()).key("self mask"))
    other = {name: reply for name, (_, reply) in turns[SHARES].items()}["site-001"].parts["boxes"][4].tobytes()
    with pytest.raises(Refused, match="changed on its way"):  # nor can they open a box between two others
        masking.unseal(key, other, roster.digest, "site-001", sites[4].name)


# ---------------------------------------------------------------------------------------------- what a site refuses


def with_stage(message: Request, **change: Any) -> Request:
    return message.at(message.turn, {**message.stage, **change})


def other_session(turn: int) -> dict[str, tuple[Request, Reply]]:
    _, turns = converse(members(5), replace(ask(), step=1, _memo={}))
    return turns[turn]


def swapped(array: NDArray[Any], first: int, second: int) -> NDArray[Any]:
    copy = array.copy()
    copy[[first, second]] = copy[[second, first]]
    return copy


def flipped(array: NDArray[Any], row: int) -> NDArray[Any]:
    copy = array.copy()
    copy[row, 0] ^= 1
    return copy


def invented(message: Request) -> Request:
    """A sixth site, of the server's making, with keys of its own properly signed by itself."""
    secret = bytes([9]) * 32
    advert = masking.public_key(masking.derive(secret, "a")) * 2 + bytes(32)
    terms = trust_of(members(5)[0]).terms
    signature = masking.sign(masking.identity_seed(secret), "keys", message.question, terms, "site-009", advert)
    rows = lambda name, row: np.vstack([message.stage[name], np.frombuffer(row, dtype=np.uint8)])  # noqa: E731
    return with_stage(
        message,
        members=[*message.stage["members"], "site-009"],
        adverts=rows("adverts", advert),
        signatures=rows("signatures", signature),
    )


def smaller(message: Request, out: int) -> Request:
    keep = [at for at in range(5) if at != out]
    return with_stage(
        message,
        members=[message.stage["members"][at] for at in keep],
        adverts=message.stage["adverts"][keep],
        signatures=message.stage["signatures"][keep],
    )


CHEATS: dict[str, tuple[int, Callable[[Request], Request], str]] = {
    "an invented site": (SHARES, invented, "'site-009' is not in this site's roster"),
    "keys of the server's": (
        SHARES,
        lambda m: with_stage(m, adverts=flipped(m.stage["adverts"], 3)),
        "'site-003' are not signed",
    ),
    "keys under another name": (
        SHARES,
        lambda m: with_stage(
            m, adverts=swapped(m.stage["adverts"], 2, 3), signatures=swapped(m.stage["signatures"], 2, 3)
        ),
        "'site-002' are not signed",
    ),
    "keys of another session": (
        SHARES,
        lambda m: with_stage(
            m, **{k: other_session(SHARES)["site-000"][0].stage[k] for k in ("adverts", "signatures")}
        ),
        "'site-000' are not signed",
    ),
    "a roster without the site": (SHARES, lambda m: smaller(m, 0), "own key is missing"),
    "a site twice": (
        SHARES,
        lambda m: with_stage(m, members=["site-000", "site-000", "site-002", "site-003", "site-004"]),
        "different names",
    ),
    "keys cut short": (SHARES, lambda m: with_stage(m, adverts=m.stage["adverts"][:, :95]), "times 96 bytes"),
    "another roster than before": (MASKED, lambda m: smaller(m, 4), "began with another roster"),
    "a forged box": (MASKED, lambda m: with_stage(m, boxes=flipped(m.stage["boxes"], 2)), "changed on its way"),
    "exchanged boxes": (MASKED, lambda m: with_stage(m, boxes=swapped(m.stage["boxes"], 2, 3)), "changed on its way"),
    "boxes of another session": (
        MASKED,
        lambda m: with_stage(m, boxes=other_session(MASKED)["site-000"][0].stage["boxes"]),
        "changed on its way",
    ),
    "the same sender twice": (MASKED, lambda m: with_stage(m, senders=[0, 1, 1, 3, 4]), "different positions"),
    "a sender that is none": (MASKED, lambda m: with_stage(m, senders=[0, 1, 2, 3, 5]), "different positions"),
    "too few senders": (
        MASKED,
        lambda m: with_stage(m, senders=[0, 1, 2], boxes=m.stage["boxes"][:3]),
        "3 of 5 sites sent shares and this site requires 4",
    ),
    "its own box missing": (
        MASKED,
        lambda m: with_stage(m, senders=[1, 2, 3, 4], boxes=m.stage["boxes"][1:]),
        "own box is missing",
    ),
    "too few survivors": (AGREE, lambda m: with_stage(m, survivors=[0, 1, 2]), "3 of 5 sites are left .* requires 4"),
    "survivors without the site": (AGREE, lambda m: with_stage(m, survivors=[1, 2, 3, 4]), "this one must be"),
    "no survivors at all": (AGREE, lambda m: with_stage(m, survivors=None), "different positions"),
    "other survivors than agreed": (
        UNMASK,
        lambda m: with_stage(m, survivors=[0, 1, 2, 3]),
        "went on with other survivors",
    ),
    "too few approvals": (
        UNMASK,
        lambda m: with_stage(m, signers=[0, 1, 2], approvals=m.stage["approvals"][:3]),
        "3 sites agreed .* 4 must",
    ),
    "an approval twice": (UNMASK, lambda m: with_stage(m, signers=[0, 1, 1, 3, 4]), "different positions"),
    "a forged approval": (
        UNMASK,
        lambda m: with_stage(m, approvals=flipped(m.stage["approvals"], 4)),
        "'site-004' did not agree",
    ),
    "boxes of other senders": (
        UNMASK,
        lambda m: with_stage(m, senders=[0, 1, 2, 3], boxes=m.stage["boxes"][:4]),
        "went on with other senders",
    ),
    "a turn that there is not": (UNMASK, lambda m: m.at(5, m.stage), "turns 0 to 4 only"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_server_is_refused(cheat):
    turn, change, says = CHEATS[cheat]
    sites = members(5)

    def cheating(at: int, name: str, message: Request) -> Request:
        return change(message) if (at, name) == (turn, "site-000") else message

    with pytest.raises(Refused, match=says):
        converse(sites, change=cheating)
    if turn <= MASKED:
        assert sites[0].ledger.spent() == 0  # a refusal costs nothing


def test_a_question_has_one_roster_one_masked_vector_and_one_set_of_survivors():
    """The same noise in sums over two sets of sites would give one site's noisy answer away by their difference."""
    sites = members(10)  # 8 must stay
    _, turns = converse(sites)
    door = sites[0]
    for turn in turns:  # the same message again has the same bytes, and costs nothing
        message, reply = turn["site-000"]
        assert door.answer(message).to_bytes() == reply.to_bytes()
    assert door.ledger.spent() == RELEASE.rho
    two_sums = with_stage(turns[AGREE]["site-000"][0], survivors=[0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert "other survivors" in door.answer(two_sums).reason
    masked = turns[MASKED]["site-000"][0]
    fewer = with_stage(masked, senders=masked.stage["senders"][:9], boxes=masked.stage["boxes"][:9])
    assert "other senders" in door.answer(fewer).reason
    smaller_roster = with_stage(
        turns[SHARES]["site-000"][0],
        members=masked.stage["members"][:9],
        adverts=masked.stage["adverts"][:9],
        signatures=masked.stage["signatures"][:9],
    )
    assert "other roster" in door.answer(smaller_roster).reason


def test_a_server_that_shows_sites_different_survivors_gets_nothing():
    sites = members(10)  # any two sets of 8 share an honest site
    doors = {site.name: site for site in sites}
    session, turns = converse(sites, until=MASKED)
    assert session.roster is not None
    approvals: dict[str, NDArray[np.uint8]] = {}
    shown = {name: [*range(8), 8] if at < 5 else [*range(8), 9] for at, name in enumerate(doors) if at < 8}
    for name, survivors in shown.items():
        message = turns[MASKED][name][0].at(AGREE, {**session.roster.stage, "survivors": survivors})
        approvals[name] = doors[name].answer(message).parts["approval"]
    for name, survivors in shown.items():
        before = turns[MASKED][name][0]
        message = before.at(
            UNMASK,
            {
                **before.stage,
                "survivors": survivors,
                "signers": [*range(8)],
                "approvals": np.stack([*approvals.values()]),
            },
        )
        reply = doors[name].answer(message)
        assert reply.error == "Refused"
        assert "did not agree on these survivors" in reply.reason
        assert not reply.parts


def test_turns_out_of_order_are_refused():
    _, turns = converse(members(5))
    fresh = {site.name: site for site in members(5)}["site-000"]
    for turn in (MASKED, AGREE, UNMASK):
        assert "another roster" in fresh.answer(turns[turn]["site-000"][0]).reason
    assert fresh.answer(turns[SHARES]["site-000"][0]).error == ""
    for turn in (AGREE, UNMASK):
        assert "sent nothing" in fresh.answer(turns[turn]["site-000"][0]).reason
    assert fresh.ledger.spent() == 0


@pytest.mark.parametrize(("at", "says"), [(SHARES, "own key is missing or not"), (MASKED, "another roster")])
def test_other_rows_are_another_session(at, says):
    """A site that corrects its rows between two messages has other keys, so the session stops."""
    sites = members(5)

    def corrected(turn: int, name: str, message: Request) -> Request:
        if (turn, name) == (at, "site-001"):
            object.__setattr__(sites[1], "table", random_table(27, 99))
        return message

    with pytest.raises(Refused, match=says):
        converse(sites, change=corrected)


def test_a_site_that_sent_no_shares_can_be_no_survivor_and_one_that_is_none_cannot_approve():
    sites = members(10)  # 8 must stay
    doors = {site.name: site for site in sites}
    trust = trust_of(sites[0])
    session = trust.session(ask(), list(doors), MOVED, lambda exact: pytest.fail("no server noise"))
    while (messages := session.ask()) and session.turn < UNMASK:
        for name, message in messages.items():
            if name == "site-009" and session.turn == SHARES:
                continue
            reply = doors[name].answer(message)
            session.hear(reply)
            if (name, session.turn) == ("site-000", MASKED):
                everybody = message.at(AGREE, {**message.stage, "survivors": list(range(10))})
                assert "only sites that sent shares" in doors[name].answer(everybody).reason
    message = messages["site-000"]
    assert session.roster is not None
    colluder = session.roster.approve(_Desk(doors["site-009"], ask()).identity, session.survivors)
    approvals = np.vstack([message.stage["approvals"], np.frombuffer(colluder, dtype=np.uint8)])
    outsider = with_stage(message, signers=[*message.stage["signers"], 9], approvals=approvals)
    assert "sites agreed on who is in the sum" in doors["site-000"].answer(outsider).reason
    assert doors["site-000"].answer(message).error == ""


def test_sites_that_were_shown_different_rosters_share_no_mask():
    """Whatever differs, the question, a member or a key, nothing that sites derive from their keys fits together."""
    session, turns = converse(members(5), until=SHARES)
    roster, message = session.roster, turns[SHARES]["site-000"][0]
    assert roster is not None
    others = [
        Roster.read(smaller(message, 4)),
        Roster.read(with_stage(message, adverts=flipped(message.stage["adverts"], 4))),
        replace(roster, question=ask(Exact()).question),
        replace(roster, members=(*roster.members[:4], "site-005")),
    ]
    digests = {other.digest for other in [roster, *others]}
    keys = {other.pair_key(bytes(31) + b"k", "site-000", "site-001") for other in [roster, *others]}
    assert len(digests) == len(keys) == 5


def test_sites_of_different_terms_do_not_add_up():
    sites = members(5)
    stricter = replace(trust_of(sites[0]), min_honest=2)
    sites[2] = replace(sites[2], policy=Policy(BUDGET, {"secure": stricter}, exact=True))
    with pytest.raises(Refused, match="compare rosters and terms"):
        federation(sites).sum(marginals, RELEASE, **PAIR)


def test_a_site_without_budget_sends_no_masked_answer():
    sites = members(5, budget=Budget(0.05, 1e-6))
    with pytest.raises(FedsynthError, match="data steward"):
        federation(sites).sum(marginals, RELEASE, **PAIR)
    assert {site.ledger.spent() for site in sites} == {0.0}
