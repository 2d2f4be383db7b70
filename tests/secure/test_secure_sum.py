"""A secure sum: exact whoever drops out, and a faulty site loses itself alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from tests.secure.secure_world import (
    NORMS,
    QUESTION,
    RELEASE,
    Asked,
    aggregator,
    anew,
    converse,
    exact,
    members,
    released,
)

from fedsynth import keys
from fedsynth.errors import FedsynthError, InvalidParameter, Refused, SiteLost, Unsupported
from fedsynth.federation.events import Answer, ApprovalAnswer, BoxesAnswer, Event, KeysAnswer, PlainAnswer, ShareKeys
from fedsynth.federation.wire import encode
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import noise_std
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Release
from fedsynth.secure.session import AGREE, BOX_BYTES, KEYS, MASKED, SHARES, TURNS, UNMASK, Session, as_bytes, sign_keys
from fedsynth.secure.shamir import NO_SHARE, SHARE_BYTES, to_bytes
from fedsynth.secure.site import KEY, SecureSum


@pytest.mark.parametrize("number", [1, 2, 3, 5, 10])
def test_the_sum_is_exact_and_its_noise_is_the_sites_alone(number):
    releases: list[Release] = [Exact(), RELEASE, Laplace(0.5)]
    for release in releases:
        sites = members(number, release=release)
        result, trust = released(sites), sites[0].trust
        kept = trust.share(release, NORMS, number).kept(trust.honest(number))
        shares = [site.noise(kept) for site in sites]
        assert (result.values == exact(sites) + np.sum(shares, axis=0)).all()
        assert any(share.any() for share in shares) == (release != Exact())
        assert result.std == pytest.approx(trust.std(release, NORMS, number))
        assert result.sites == tuple(site.name for site in sites)
        assert all(site.computed == 1 for site in sites)


def test_the_trust_says_what_its_turns_are():
    trust = SecureSum()
    assert (trust.name, trust.confidential, trust.pooled) == ("secure", False, True)
    assert trust.turns == 5
    assert members(5)[0].trust.assumption == "at least 3 of the 5 sites are honest"


@pytest.mark.parametrize("turn", [KEYS, SHARES, MASKED, AGREE, UNMASK])
def test_sites_that_drop_out_at_any_turn_leave_an_exact_sum(turn):
    sites = members(10, release=Exact())  # 4 may collude, 8 must stay
    gone = {"site-002", "site-007"}
    result = released(sites, lost={turn: gone})
    inside = sites if turn >= AGREE else [site for site in sites if site.name not in gone]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()
    assert [site.computed for site in sites] == [int(turn > MASKED or site.name not in gone) for site in sites]
    assert result.std == 0


@pytest.mark.parametrize("release", [RELEASE, Laplace(0.5)])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_the_noise_left_is_what_the_survivors_need(release, gone):
    """10 sites, of which 4 may collude: 6, 5 or 4 honest ones are left, and theirs is what the release promises."""
    sites = members(10, release=release)
    out = {f"site-{k:03d}" for k in range(gone)}
    result = released(sites, lost={MASKED: out})
    inside = [site for site in sites if site.name not in out]
    honest = 10 - gone - 4
    share = sites[0].trust.share(release, NORMS, 10)
    assert share.honest == (6, 5, 4)
    assert share.kept(honest) == gone + 1
    assert (result.values == exact(inside) + np.sum([site.noise(gone + 1) for site in inside], axis=0)).all()
    assert result.std == pytest.approx(noise_std(release, NORMS) * math.sqrt(len(inside) / honest))


def test_the_noise_of_a_survivor_that_falls_silent_before_it_tells_its_seeds_stays_in():
    sites = members(10)
    silent = {"site-003", "site-008"}
    result = released(sites, lost={UNMASK: silent})
    assert len(result.sites) == 10
    noise = [site.noise(3 if site.name in silent else 1) for site in sites]
    assert (result.values == exact(sites) + np.sum(noise, axis=0)).all()
    variance = noise_std(RELEASE, NORMS) ** 2
    assert result.std == pytest.approx(math.sqrt(8 * variance / 6 + 2 * variance / 4))


def test_seeds_of_another_form_lose_the_site_alone():
    sites = members(10)
    rows: list[Any] = [np.zeros((1, 32), np.uint8), np.zeros((3, 32), np.uint8), np.zeros((2, 31), np.uint8)]

    def faulty(at: int, name: str, answer: Any) -> Any:
        return structs.replace(answer, noise=rows[0]) if (at, name) == (UNMASK, "site-004") else answer

    while rows:
        server, turns = converse(anew(sites), answer=faulty)
        assert set(server.survivors) - set(turns[UNMASK]) == {"site-004"}
        result = server.result()
        assert result is not None
        assert len(result.sites) == 10
        rows.pop(0)


def test_sites_lost_at_every_turn():
    sites = members(30, SecureSum(min_honest=25), release=Exact())  # 5 may collude, 18 must stay
    lost = {turn: {f"site-{3 * turn + k:03d}" for k in range(2)} for turn in range(5)}
    result = released(sites, lost=lost)
    out = lost[KEYS] | lost[SHARES] | lost[MASKED]
    inside = [site for site in sites if site.name not in out]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()


@pytest.mark.parametrize("turn", [SHARES, MASKED, AGREE, UNMASK])
def test_with_one_more_lost_the_sum_stops_and_says_how_many_are_missing(turn):
    gone = {"site-000", "site-004", "site-009"}
    with pytest.raises(SiteLost, match=rf"7 of 10 .* turn '{TURNS[turn].name}' and 8 are required: 1 are missing"):
        released(members(10), lost={turn: gone})


def test_a_sum_that_stopped_asks_nobody_any_more():
    server, turns = converse(members(10), lost={MASKED: {"site-000", "site-004", "site-009"}})
    assert len(turns) == MASKED + 1
    assert not server.ask()
    assert not server.ask()


def test_nobody_at_all_is_no_sum():
    sites = members(3)
    server, turns = converse(sites, lost={KEYS: {site.name for site in sites}})
    assert turns == [{}]
    assert not server.ask()
    assert server.result() is None


def test_a_site_may_be_a_new_process_for_every_message():
    expected = released(members(4)).values
    kept = {site.name: site.events for site in members(4)}

    class Forgetful(Asked):
        def answer(self, turn: int, event: Event | None) -> Answer:
            fresh = next(site for site in members(4) if site.name == self.name)
            fresh.events = kept[self.name]
            return fresh.answer(turn, event)

    sites = [Forgetful(**{name: getattr(site, name) for name in site.__dataclass_fields__}) for site in members(4)]
    assert (released(sites).values == expected).all()
    assert all(len(events) == 3 for events in kept.values())


@pytest.mark.parametrize("dies_at", range(1, 21, 3))
def test_a_sum_whose_server_died_resumes_to_the_same_bits(dies_at):
    expected = released(members(4)).values
    recorded: dict[tuple[str, int], Answer] = {}
    sites, sent = members(4), []

    def record(turn: int, name: str, answer: Answer) -> Answer:
        sent.append(name)
        if len(sent) == dies_at:
            raise ConnectionError("the server's process ended here")
        return recorded.setdefault((name, turn), answer)

    with pytest.raises(ConnectionError):
        converse(sites, answer=record)
    result = released(sites, answer=lambda turn, name, answer: recorded.get((name, turn), answer))
    assert (result.values == expected).all()


def test_another_question_or_another_salt_has_unrelated_keys_masks_and_noise():
    sites = members(5)
    others = [anew(sites, digest=keys.digest("another").hex()), anew(sites, salt=b"other salt")]
    announcements, secrets, masked, noise = [], [], [], []
    for asked in [sites, *others]:
        server, turns = converse(asked)
        secrets.append([row.tobytes() for row in turns[SHARES]["site-000"][1].secrets])
        announcements.append(turns[KEYS]["site-000"][1].announcement)
        masked.append(turns[MASKED]["site-000"][1].values)
        noise.append(asked[0].noise())
        result = server.result()
        assert result is not None
        assert (result.values == exact(asked) + np.sum([site.noise(1) for site in asked], axis=0)).all()
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert announcements[first][:32] == announcements[second][:32]  # the key of the run
        assert announcements[first][32:] != announcements[second][32:]
        assert not set(secrets[first]) & set(secrets[second])  # commitments to the self-mask and to the mask secret
        assert not (masked[first] == masked[second]).any()
        assert (noise[first] != noise[second]).any()


def test_neighbouring_tables_differ_in_the_released_sum_by_one_record_alone():
    """Keys, masks and noise do not look at the rows: the released sum moves by the record and nothing else."""
    sites, fewer = members(4), members(4)
    fewer[0].exact = fewer[0].exact.copy()
    fewer[0].exact[[2, 7]] -= 1
    (before, after), (first, second) = (released(sites), released(fewer)), (converse(sites)[1], converse(fewer)[1])
    assert np.flatnonzero(before.values - after.values).tolist() == [2, 7]
    for turn in (KEYS, SHARES, AGREE, UNMASK):
        for name, (_, answer) in first[turn].items():
            assert bytes_of(answer) == bytes_of(second[turn][name][1])


def bytes_of(answer: Answer) -> list[bytes]:
    return [part if isinstance(part, bytes) else part.tobytes() for part in structs.astuple(answer)]


# ------------------------------------------------------------------------------------------- one faulty site of many


def garbage(rows: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(rows).integers(0, 256, (rows, width), dtype=np.uint8)


def signed(site: Asked, announcement: bytes, terms: str = "") -> KeysAnswer:
    return KeysAnswer(
        announcement, sign_keys(site.identity, QUESTION, terms or site.trust.terms, site.name, announcement)
    )


def at_one_peer(answer: BoxesAnswer, site: Asked) -> BoxesAnswer:
    boxes = answer.boxes.copy()
    boxes[3, -1] ^= 1
    return structs.replace(answer, boxes=boxes)


def boxes_of(sent: BoxesAnswer, boxes: NDArray[np.uint8]) -> BoxesAnswer:
    return structs.replace(sent, boxes=boxes)


def any_boxes(rows: int) -> BoxesAnswer:
    return BoxesAnswer(garbage(rows, BOX_BYTES), garbage(rows, 32), garbage(rows, 32), garbage(2, 32))


def flip(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    copy = array.copy()
    copy[:, -1] ^= 1
    return copy


IN, OUT = True, False
FAULTS: dict[str, tuple[int, Callable[[Any, Asked], Any], bool]] = {
    "another message in place of keys": (KEYS, lambda sent, site: PlainAnswer(np.zeros(3, dtype=np.int64)), OUT),
    "keys without a signature": (KEYS, lambda sent, site: KeysAnswer(sent.announcement, bytes(64)), OUT),
    "keys of others": (KEYS, lambda sent, site: KeysAnswer(sent.announcement[::-1], sent.signature), OUT),
    "keys under other terms": (KEYS, lambda sent, site: signed(site, sent.announcement, "others"), OUT),
    "an unusable key": (KEYS, lambda sent, site: signed(site, bytes(32) + sent.announcement[32:]), OUT),
    "too few boxes": (SHARES, lambda sent, site: boxes_of(sent, sent.boxes[:4]), OUT),
    "short boxes": (SHARES, lambda sent, site: boxes_of(sent, sent.boxes[:, 1:]), OUT),
    "too few seeds": (SHARES, lambda sent, site: structs.replace(sent, seeds=sent.seeds[1:]), OUT),
    "short commitments": (SHARES, lambda sent, site: structs.replace(sent, commitments=sent.commitments[:, 1:]), OUT),
    "seeds that are none": (SHARES, lambda sent, site: structs.replace(sent, seeds=flip(sent.seeds)), IN),
    "commitments to none": (SHARES, lambda sent, site: structs.replace(sent, commitments=flip(sent.commitments)), OUT),
    "one secret committed to": (SHARES, lambda sent, site: structs.replace(sent, secrets=sent.secrets[:1]), OUT),
    "another message in place of boxes": (SHARES, lambda sent, site: ApprovalAnswer(bytes(64)), OUT),
    "boxes that open nowhere": (SHARES, lambda sent, site: boxes_of(sent, garbage(5, BOX_BYTES)), IN),
    "a box that opens not at one peer": (SHARES, at_one_peer, IN),
    "too short an answer": (MASKED, lambda sent, site: PlainAnswer(sent.values[:-1]), OUT),
    "too long an answer": (MASKED, lambda sent, site: PlainAnswer(np.append(sent.values, 0)), OUT),
    "no answer at all": (MASKED, lambda sent, site: PlainAnswer(sent.values[:0]), OUT),
    "an answer of another form": (MASKED, lambda sent, site: PlainAnswer(sent.values.reshape(2, -1)), OUT),
    "another message in place of the answer": (MASKED, lambda sent, site: any_boxes(5), OUT),
    "a forged approval": (AGREE, lambda sent, site: ApprovalAnswer(bytes(64)), IN),
    "another message in place of the approval": (
        AGREE,
        lambda sent, site: PlainAnswer(np.zeros(3, dtype=np.int64)),
        IN,
    ),
    "another self-mask": (UNMASK, lambda sent, site: structs.replace(sent, own=bytes(32)), IN),
    "too few shares": (UNMASK, lambda sent, site: structs.replace(sent, shares=sent.shares[1:]), IN),
    "short shares": (UNMASK, lambda sent, site: structs.replace(sent, shares=sent.shares[:, 1:]), IN),
    "wrong shares": (UNMASK, lambda sent, site: structs.replace(sent, shares=flip(sent.shares)), IN),
    "shares that are none": (UNMASK, lambda sent, site: structs.replace(sent, shares=garbage(5, SHARE_BYTES)), IN),
    "pairs that nobody asked for": (UNMASK, lambda sent, site: structs.replace(sent, pairs=garbage(1, 32)), IN),
    "another message in place of shares": (UNMASK, lambda sent, site: ApprovalAnswer(bytes(64)), IN),
}


@pytest.mark.parametrize("bad", ["site-000", "site-001", "site-004"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_malformed_message_loses_at_most_its_site(fault, bad):
    turn, change, stays = FAULTS[fault]
    sites = members(5, release=Exact())  # 4 must stay

    def faulty(at: int, name: str, answer: Answer) -> Answer:
        changed: Answer = change(answer, sites[int(bad[-1])]) if (at, name) == (turn, bad) else answer
        return changed

    server, turns = converse(sites, answer=faulty)
    result = server.result()
    assert result is not None
    heard = turns[turn]
    assert (bad in heard) == fault.startswith(
        (
            *("boxes that", "a box that", "seeds that", "commitments to", "wrong shares", "shares that"),
            *("too short", "too long", "no answer"),
        )
    )
    inside = [site for site in sites if stays or site.name != bad]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()


def test_the_length_that_most_sites_answer_with_is_the_answers(caplog):
    sites = members(10, release=Exact())
    for k in (0, 3):
        sites[k].exact = sites[k].exact[: 20 + k]
    result = released(sites)
    inside = [site for k, site in enumerate(sites) if k not in (0, 3)]
    assert (result.values == exact(inside)).all()
    assert "site-000 answered with 20 numbers, most with 26" in caplog.text
    assert "site-003 answered with 23 numbers" in caplog.text


@pytest.mark.parametrize("boxes", ["nowhere", "not at one peer", "with wrong shares", "with shares of another field"])
@pytest.mark.parametrize("turn", [SHARES, MASKED, AGREE, UNMASK])
def test_a_site_whose_boxes_are_bad_and_that_falls_silent_stops_nobody_before_its_answer_is_in(boxes, turn):
    sites = members(5, release=Exact())  # 4 must stay, and 4 shares open a secret
    bad = sites[1]

    def faulty(at: int, name: str, answer: Any) -> Any:
        if (at, name) != (SHARES, bad.name):
            return answer
        if boxes == "nowhere":
            return boxes_of(answer, garbage(5, BOX_BYTES))
        if boxes == "not at one peer":
            return at_one_peer(answer, bad)
        share = NO_SHARE if boxes == "with shares of another field" else to_bytes(np.arange(9, dtype=np.uint64))
        session = Session.read(sent[SHARES], QUESTION, bad.trust.terms, bad.trust.layout)
        pairs = [session.pair(bad.run_key(KEY), bad.name, peer) for peer in session.members]
        return boxes_of(answer, as_bytes([keys.encrypted(pair.seals, 2 * share) for pair in pairs], BOX_BYTES))

    sent: dict[int, Any] = {}

    def watch(at: int, name: str, event: Any) -> Any:
        return sent.setdefault(at, event) if at == SHARES else event

    run: Callable[[], Any] = lambda: released(sites, answer=faulty, event=watch, lost={turn: {bad.name}})  # noqa: E731
    if turn <= MASKED:
        inside = [site for site in sites if site is not bad]
        result = run()
        assert result.sites == tuple(site.name for site in inside)
        assert (result.values == exact(inside)).all()
    else:  # its masked answer is in the total, and nobody can take its self-mask off
        with pytest.raises(SiteLost, match="masks of site-001 cannot be opened"):
            run()


def test_a_sum_fails_by_name_where_neither_shares_nor_all_survivors_take_a_mask_off():
    sites = members(10, SecureSum(min_honest=9))  # 1 may collude, 6 must stay

    def faulty(at: int, name: str, answer: Any) -> Any:
        return boxes_of(answer, garbage(10, BOX_BYTES)) if (at, name) == (SHARES, "site-001") else answer

    with pytest.raises(SiteLost, match="masks of site-001 cannot be opened"):
        released(sites, answer=faulty, lost={MASKED: {"site-001"}, UNMASK: {"site-002"}})


@pytest.mark.parametrize("silent", [set(), {"site-000"}, {"site-001", "site-004"}])
def test_pairwise_masks_come_off_by_what_survivors_say_or_else_by_what_their_owner_left(silent):
    """One site says other seeds than it committed to, and others fall silent: shares open the lost site's seeds."""
    sites = members(10, SecureSum(min_honest=9), release=Exact())  # 1 may collude, 6 shares open a secret

    def lying(at: int, name: str, answer: Any) -> Any:
        wrong = structs.replace(answer, pairs=flip(answer.pairs)) if (at, name) == (UNMASK, "site-002") else answer
        assert at != UNMASK or answer.pairs.shape == (1, 32)
        return wrong

    server, turns = converse(sites, answer=lying, lost={MASKED: {"site-003"}, UNMASK: silent})
    assert "site-002" not in turns[UNMASK]
    result = server.result()
    assert result is not None
    assert (result.values == exact(site for site in sites if site.name != "site-003")).all()


def test_seeds_that_do_not_fit_what_the_other_site_committed_to_fail_the_sum_by_name():
    """Lost sites' seeds are believed only where they are those of the masks that survivors have put on."""
    sites = members(10, SecureSum(min_honest=9))

    def faulty(at: int, name: str, answer: Any) -> Any:
        return structs.replace(answer, seeds=flip(answer.seeds)) if (at, name) == (SHARES, "site-003") else answer

    with pytest.raises(SiteLost, match="masks of site-003 cannot be opened"):
        released(sites, answer=faulty, lost={MASKED: {"site-003"}, UNMASK: {"site-002"}})
    result = released(members(10, SecureSum(min_honest=9), release=Exact()), answer=faulty, lost={MASKED: {"site-003"}})
    assert (result.values == exact(site for site in sites if site.name != "site-003")).all()


@pytest.mark.parametrize("many_sites", [False, True])
def test_a_site_that_commits_to_other_masks_than_its_neighbours_loses_itself_alone(many_sites, caplog):
    """Its word against that of an honest site which is lost would otherwise stop the sum, in the honest site's name."""
    sites = many() if many_sites else members(10, SecureSum(min_honest=9), release=Exact())

    def faulty(at: int, name: str, answer: Any) -> Any:
        lies = (at, name) == (SHARES, "site-002")
        return structs.replace(answer, commitments=flip(answer.commitments)) if lies else answer

    server, turns = converse(sites, answer=faulty, lost={MASKED: {"site-003"}, UNMASK: {"site-001"}})
    assert set(turns[SHARES]) - set(turns[MASKED]) == {"site-002", "site-003"}
    result = server.result()
    assert result is not None
    inside = [site for site in sites if site.name not in ("site-002", "site-003")]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()
    assert caplog.text.count("site-002 committed to other pairwise masks than") == 1


def test_where_two_sites_contradict_each_other_alone_both_stay_and_a_sum_that_fails_names_both():
    sites = members(10, SecureSum(min_honest=9), release=Exact())

    def faulty(at: int, name: str, answer: Any) -> Any:
        if (at, name) != (SHARES, "site-002"):
            return answer
        commitments = answer.commitments.copy()
        commitments[3, -1] ^= 1
        return structs.replace(answer, commitments=commitments)

    result = released(sites, answer=faulty, lost={MASKED: {"site-001"}})
    assert (result.values == exact(site for site in sites if site.name != "site-001")).all()
    with pytest.raises(SiteLost, match="site-003 and site-002 committed to different masks"):
        released(anew(sites), answer=faulty, lost={MASKED: {"site-003"}})


def test_too_many_contradictions_stop_a_sum_before_anything_is_masked():
    sites = members(5)  # 4 must stay

    def faulty(at: int, name: str, answer: Any) -> Any:
        lies = at == SHARES and name in {"site-000", "site-001"}
        wrong = garbage(5, 32) if name == "site-000" else garbage(5, 32)[::-1].copy()
        return structs.replace(answer, commitments=wrong) if lies else answer

    server, turns = converse(sites, answer=faulty)
    assert len(turns) == SHARES + 1
    with pytest.raises(SiteLost, match="3 of 5 sites sent a valid answer"):
        server.result()


@pytest.mark.parametrize("silent_at", [MASKED, AGREE, UNMASK])
@pytest.mark.parametrize("liars", [1, 2])
def test_wrong_shares_are_left_out_as_long_as_a_threshold_is_right(silent_at, liars, caplog):
    sites = members(12, SecureSum(min_honest=11), release=Exact())  # 1 may collude, 7 must stay
    lying, silent = {f"site-{2 * k:03d}" for k in range(liars)}, {"site-001", "site-003"}

    def liar(at: int, name: str, answer: Any) -> Any:
        return structs.replace(answer, shares=flip(answer.shares)) if at == UNMASK and name in lying else answer

    lost = {silent_at: silent, UNMASK: silent | {"site-005"}}  # survivors alone cannot take off pairwise masks
    result = released(sites, answer=liar, lost=lost)
    inside = [site for site in sites if silent_at > MASKED or site.name not in silent]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()
    assert all(f"that {name} gave is wrong" in caplog.text for name in lying)
    assert caplog.text.count("is wrong") == liars  # a site is caught once, and its shares are left out from there on


def test_with_too_many_wrong_shares_the_sum_fails_by_name():
    sites = members(5)

    def liar(at: int, name: str, answer: Any) -> Any:
        return structs.replace(answer, shares=flip(answer.shares)) if (at, name) == (UNMASK, "site-000") else answer

    with pytest.raises(SiteLost, match=r"masks of site-004 cannot be opened.*start another run"):
        released(sites, answer=liar, lost={AGREE: {"site-004"}})


def test_a_site_whose_share_was_wrong_once_is_heard_again_where_shares_are_scarce(caplog):
    sites = members(10, SecureSum(min_honest=9), release=Exact())  # 1 may collude, 6 shares open a secret
    silent = {"site-001", "site-007"}

    def faulty(at: int, name: str, answer: Any) -> Any:
        if at != UNMASK:
            return answer
        shares = answer.shares.copy()
        if name == "site-000":
            shares[1, -1] ^= 1  # of the secret of site-001
        if name == "site-003":
            shares[7] = np.frombuffer(NO_SHARE, dtype=np.uint8)  # of site-007: 6 are left, that of site-000 included
        return structs.replace(answer, shares=shares)

    result = released(sites, answer=faulty, lost={MASKED: silent, UNMASK: silent | {"site-005"}})
    assert (result.values == exact(site for site in sites if site.name not in silent)).all()
    assert caplog.text.count("the share of site-001 that site-000 gave is wrong") == 1


# ------------------------------------------------------------------------------------------------------ many sites


def many() -> list[Asked]:
    """80 sites of which 8 may collude: each has 28 neighbours, and 24 shares open a secret."""
    return members(80, SecureSum(min_honest=72), release=Exact())


def names(*places: int) -> set[str]:
    return {f"site-{place:03d}" for place in places}


@pytest.mark.parametrize("turn", [KEYS, SHARES, MASKED, AGREE, UNMASK])
def test_a_sum_over_many_sites_is_exact_whoever_drops_out(turn):
    sites, gone = many(), names(0, 7, 33, 79)
    server, turns = converse(sites, lost={turn: gone})
    result = server.result()
    assert result is not None
    inside = sites if turn >= AGREE else [site for site in sites if site.name not in gone]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()
    size = 80 - 4 * (turn == KEYS)
    found = sites[0].trust.layout(size)
    assert not found.complete
    assert {len(boxes.boxes) for _, boxes in turns[SHARES].values()} == {found.degree + 1}
    assert {len(event.signatures) for event, _ in turns[SHARES].values()} == {found.degree + 1}
    assert {len(event.approvals) for event, _ in turns[UNMASK].values()} == {sites[0].trust.quorum(size)}
    assert all(len(event.boxes) <= found.degree + 1 for event, _ in turns[MASKED].values())


def test_many_sites_that_drop_out_at_every_turn_leave_an_exact_sum():
    """A lost site's masks come off although neighbours of it, which have put them on, fall silent afterwards."""
    sites = members(80, SecureSum(min_honest=72, dropouts=7), release=Exact())
    lost = {SHARES: names(1), MASKED: names(2, 40), AGREE: names(3), UNMASK: names(4, 41, 42)}
    result = released(sites, lost=lost)
    inside = [site for site in sites if site.name not in names(1, 2, 40)]
    assert result.sites == tuple(site.name for site in inside)
    assert (result.values == exact(inside)).all()


def test_the_noise_of_many_sites_is_that_of_any_secure_sum():
    sites = members(80, SecureSum(min_honest=72), cells=4)
    result = released(sites, lost={MASKED: names(5)})
    share, trust = sites[0].trust.share(RELEASE, NORMS, 80), sites[0].trust
    kept = share.kept(trust.honest(79))
    inside = [site for site in sites if site.name != "site-005"]
    assert (result.values == exact(inside) + np.sum([site.noise(kept) for site in inside], axis=0)).all()
    assert result.std == pytest.approx(share.std(kept) * math.sqrt(79))


def test_too_many_lost_neighbours_of_one_site_fail_the_sum_by_name():
    sites = many()
    server, _ = converse(sites, SHARES)
    near = [server.session.members[at] for at in server.session.neighbours("site-010")]
    silent = {"site-010", *[name for name in near if name != "site-010"][:5]}  # 23 shares are left, and 24 must be
    with pytest.raises(SiteLost, match=r"masks of site-0\d\d cannot be opened"):
        released(many(), lost={UNMASK: silent})
    fewer = silent - {max(silent - {"site-010"})}
    result = released(many(), lost={UNMASK: fewer})
    assert (result.values == exact(sites)).all()


def test_wrong_shares_among_many_sites_are_left_out(caplog):
    sites = many()
    server, _ = converse(sites, SHARES)
    near = [server.session.members[at] for at in server.session.neighbours("site-010")]
    liar = next(name for name in near if name != "site-010")

    def lying(at: int, name: str, answer: Any) -> Any:
        return structs.replace(answer, shares=flip(answer.shares)) if (at, name) == (UNMASK, liar) else answer

    result = released(many(), answer=lying, lost={UNMASK: {"site-010"}})
    assert (result.values == exact(sites)).all()
    assert f"the share of site-010 that {liar} gave is wrong" in caplog.text


def test_masked_words_travel_as_they_are():
    """They look random, so that nothing is tried to make them shorter: eight bytes a cell, and a head."""
    masked: Any = converse(members(3, cells=100_000, release=Exact()))[1][MASKED]["site-000"][1]
    assert 800_000 < len(encode(masked)) < 800_100


def test_a_pair_of_sites_agrees_on_keys_once_a_run(monkeypatch):
    """However many sums a run has, and whatever their sessions: X25519 once for each pair, in either direction."""
    sites = members(6, release=Exact(), run=b"a run of its own")
    shared: dict[tuple[bytes, bytes], bytes] = {}
    monkeypatch.setattr(keys, "_shared", shared)
    released(sites)
    first = dict(shared)
    assert len(first) == 6 * 7 // 2  # a site's box for itself included
    for question in (b"b", b"c"):
        assert (released(anew(sites, digest=keys.digest(question).hex())).values == exact(sites)).all()
    assert shared == first
    released(anew(sites, run=b"another run"))
    assert len(shared) == 2 * len(first)
    monkeypatch.setattr(keys, "_MOST_SHARED", 3)  # a full store is emptied and filled anew
    assert (released(anew(sites, run=b"a third run")).values == exact(sites)).all()
    assert len(shared) <= 3


# -------------------------------------------------------------------------------------------------------- the numbers


def test_thresholds_are_those_of_the_paper():
    for number in range(1, 41):
        roster = {f"s{k}": bytes([k]) * 32 for k in range(number)}
        for least in {None, 1, (number + 2) // 3, number}:
            for dropouts in (None, 0, 2):
                trust = SecureSum(least, dropouts, roster)
                assert trust.colluding == number - (least or number // 2 + 1)
                for present in range(1, number + 1):
                    threshold = trust.threshold(present)
                    honest = trust.honest(threshold)
                    assert 1 <= threshold <= present
                    assert 2 * threshold > present + min(trust.colluding, present - 1)  # theorem 6.5
                    assert dropouts is None or present - threshold <= dropouts
                    assert honest == 1 or threshold - trust.colluding >= honest


def test_a_sum_that_all_sites_stay_in_has_the_noise_of_all_honest_ones_whatever_dropouts_are_allowed():
    roster = {f"s{k}": bytes([k]) * 32 for k in range(20)}
    whole = Gaussian(1e-4).sigma(NORMS.l2)
    for dropouts, parts in ((None, 5), (3, 4), (1, 2), (0, 1)):
        trust = SecureSum(14, dropouts, roster)
        assert trust.std(Gaussian(1e-4), NORMS, 20) == pytest.approx(whole * math.sqrt(20 / 14))
        share = trust.share(Gaussian(1e-4), NORMS, 20)
        assert len(share.parts) == parts
        fewest = trust.honest(trust.threshold(20))
        assert share.std(len(share.parts)) == pytest.approx(whole / math.sqrt(fewest))


def test_a_small_cohort_is_as_noisy_as_under_local_noise():
    trust = members(5)[0].trust
    for number in (1, 2, 3):
        assert trust.honest(number) == 1
        assert trust.std(RELEASE, NORMS, number) == RELEASE.sigma(NORMS.l2) * math.sqrt(number)


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
        SecureSum().std(RELEASE, NORMS, 2)


def test_laplace_noise_that_has_no_shares_is_added_whole_by_every_site():
    trust = members(5, release=Laplace(1e-3))[0].trust
    whole = noise_std(Laplace(1e-3), Norms(5, 5))
    assert trust.std(Laplace(1e-3), Norms(5, 5), 5) == pytest.approx(whole * math.sqrt(5))
    assert trust.std(Laplace(1e-3), Norms(1, 1), 5) < whole


def test_sites_of_other_terms_are_lost_by_name():
    """Each member relies on the noise of all others, so that it must know under which terms they add it."""
    sites = members(5, release=Exact())
    stricter = replace(sites[2].trust, min_honest=2)
    sites[2] = replace(sites[2], trust=stricter)
    server = aggregator(sites)
    server.ask()
    with pytest.raises(FedsynthError, match=r"site-002.*compare rosters and terms"):
        server.receive("site-002", sites[2].answer(KEYS, None))
    result = released(sites)
    assert result.sites == ("site-000", "site-001", "site-003", "site-004")
    with pytest.raises(SiteLost):
        released(members(5), server=aggregator(sites, stricter))


def test_a_key_swapped_in_one_sites_roster_keeps_it_out_of_sums_even_where_the_swapped_site_is_absent():
    """The swapped site takes no part, so that no signature of its own could tell; its fellows' rosters do."""
    sites = members(5, release=Exact())
    swapped = {**sites[2].trust.roster, "site-004": keys.Keys(b"coordinator's own key for site-4").identity}
    sites[2] = replace(sites[2], trust=sites[2].trust.with_roster(swapped))
    present = sites[:4]
    server = aggregator(present)
    server.ask()
    with pytest.raises(FedsynthError, match=r"site-002.*compare rosters and terms"):
        server.receive("site-002", sites[2].answer(KEYS, None))
    # A server that passes the others' keys on to it all the same is refused by the site itself.
    fellows = aggregator(present)
    for name in fellows.ask():
        if name != "site-002":
            fellows.receive(name, next(site for site in sites if site.name == name).answer(KEYS, None))
    event = fellows.ask()["site-000"]
    assert isinstance(event, ShareKeys)
    session = Session.read(event, sites[2].digest, sites[2].trust.terms, sites[2].trust.layout)
    with pytest.raises(Refused, match="compare rosters and terms"):
        session.verify(event, "site-000", sites[2].trust.roster)
    with pytest.raises(Refused):
        sites[2].answer(SHARES, event)
    assert released(present).sites == ("site-000", "site-001", "site-003")
