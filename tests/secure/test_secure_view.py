"""What a server and colluding sites see of a secure sum, and what a site refuses when they cheat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from scipy import stats
from tests.secure.secure_world import NORMS, QUESTION, Asked, aggregator, anew, converse, exact, members

from fedsynth import keys
from fedsynth.errors import FedsynthError, Refused
from fedsynth.federation.events import Approve, MaskAnswer, PlainAnswer, ShareKeys, Unmask
from fedsynth.federation.wire import encode
from fedsynth.keys import decrypted
from fedsynth.privacy.release import Exact, Gaussian
from fedsynth.secure import graph, masking
from fedsynth.secure.session import AGREE, KEYS, MASK_SECRET, MASKED, SELF_MASK, SHARES, UNMASK, Session, sign_keys
from fedsynth.secure.shamir import PRIME, SHARE_BYTES, from_bytes, recover
from fedsynth.secure.site import KEY, SecureSum, _secret

CELLS = 9_600
OTHER = keys.digest("another question").hex()


def masked_vectors(sites: Sequence[Asked]) -> dict[str, NDArray[np.uint64]]:
    turns: Any = converse(sites)[1]
    return {name: answer.values.view(np.uint64) for name, (_, answer) in turns[MASKED].items()}


def total(vectors: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    result = vectors[0].copy()
    for vector in vectors[1:]:
        result += vector
    return result


def uniform(words: NDArray[np.uint64]) -> bool:
    """Chi-square over bytes: with some 300 checks below 10^-6 a false alarm in 3,000 sets of seeds."""
    return bool(stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-6)


def test_what_a_site_sends_is_uniform_and_differs_between_sessions():
    sites = members(5, cells=CELLS, release=Exact())
    first, second = masked_vectors(sites), masked_vectors(anew(sites, salt=b"other salt"))
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
    assert not uniform(sites[0].exact.view(np.uint64))  # the check can fail


def seed(session: Session, owner: Asked, other: Asked) -> bytes:
    """Return the seed of the mask between two sites, as only they can know it."""
    return session.pair(owner.run_key(KEY), owner.name, other.name).seed


def share_of(answer: Any, row: int) -> NDArray[np.uint64]:
    return words(answer.shares[row].tobytes())


def left_of(target: Asked, colluders: Sequence[Asked], session: Session, turns: Any) -> NDArray[np.uint64]:
    """Take off a site's masked vector whatever its colluding peers and the server can know together."""
    left: NDArray[np.uint64] = turns[MASKED][target.name][1].values.view(np.uint64).copy()
    for peer in colluders:  # they know the masks that they share with it
        masking.mask(left, seed(session, peer, target), add=target.name > peer.name)
    # the server was given its self-mask, since it is in the sum, and shares that open it too
    row = list(session.members).index(target.name)
    answers = {session.members.index(name) + 1: answer for name, (_, answer) in turns[UNMASK].items()}
    own = answers[row + 1].own
    shares = {point: share_of(answer, row) for point, answer in answers.items()}
    assert recover(shares, len(shares), lambda secret: True) == (own, ())
    masking.mask(left, session.self_mask_key(own), add=False)
    return left


def told(turns: Any, site: Asked) -> NDArray[np.int64]:
    """Return the noise of the parts whose seeds a site told in turn 4: what is known of it from then on."""
    share = site.trust.share(site.release, NORMS, len(site.trust.roster))
    seeds = [seed.tobytes() for seed in turns[UNMASK][site.name][1].noise]
    excess = replace(share, parts=share.parts[len(share.parts) - len(seeds) :])
    return excess.add_to(np.zeros(site.exact.size, dtype=np.int64), seeds)


def of_variance(noise: NDArray[np.int64], variance: float) -> bool:
    spread = noise.astype(np.float64) ** 2
    return bool(abs(spread.mean() - variance) < 5 * variance * math.sqrt(2 / noise.size))


def test_all_others_and_the_server_together_learn_the_answer_under_the_parts_that_it_keeps():
    """The documented bound: they have 1/honest of the variance, so a record costs honest times rho there."""
    sites = members(5, cells=CELLS, release=Gaussian(5e-5))
    server, turns = converse(sites)
    honest = sites[0].trust.honest(5)
    assert honest == 3
    left = left_of(sites[0], sites[1:], server.session, turns).view(np.int64) - told(turns, sites[0])
    noise = left - sites[0].exact
    assert (noise == sites[0].noise(1)).all()
    kept = Gaussian(5e-5).sigma(NORMS.l2) / math.sqrt(honest)
    assert of_variance(noise, kept**2)
    # standardised, it is the normal law that a discrete Gaussian of this width is (sigma > 100 without its share)
    assert stats.kstest((noise + np.random.default_rng(0).random(CELLS) - 0.5) / kept, "norm").pvalue > 1e-4


@pytest.mark.parametrize("number", [5, 10])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_with_the_honest_minimum_left_colluders_learn_the_release_and_no_single_site(number, gone):
    """Sites drop out, all of them honest; what the others keep is the whole noise of the release, and no less."""
    sites = members(number, cells=CELLS, release=Gaussian(5e-5))
    gone = min(gone, number - sites[0].trust.threshold(number))
    colluding = sites[0].trust.colluding
    honest, colluders = sites[gone : number - colluding], sites[number - colluding :]
    server, turns = converse(sites, lost={MASKED: {site.name for site in sites[:gone]}})
    left = {}
    for site in honest:
        words = left_of(site, colluders, server.session, turns)
        for out in sites[:gone]:  # whose mask keys are opened, so that their pairwise masks come off
            masking.mask(words, seed(server.session, out, site), add=site.name > out.name)
        left[site.name] = words
        assert uniform(words)
    first, second, *_ = left.values()
    if len(honest) > 2:
        assert uniform(total([first, second]))
    noise = total(list(left.values())).view(np.int64) - exact(honest)
    noise -= np.sum([told(turns, site) for site in honest], axis=0)
    whole = Gaussian(5e-5).sigma(NORMS.l2)
    assert of_variance(noise, whole**2)
    assert (noise == np.sum([site.noise(1 + gone) for site in honest], axis=0)).all()


def test_a_site_tells_seeds_once_for_one_set_of_survivors_and_after_the_masked_answers():
    sites = members(10)  # 8 must stay
    server, played = converse(sites, lost={AGREE: {"site-009"}})
    turns: Any = played
    door = sites[0]
    event, answer = turns[UNMASK][door.name]
    share = door.trust.share(door.release, NORMS, 10)
    assert len(share.parts) == 3
    assert len(answer.noise) == 2  # all ten answers are in the sum
    for site in sites[:9]:
        assert not any(
            seed.tobytes() in encode(answered[site.name][1]) for answered in turns[:UNMASK] for seed in answer.noise
        )
    with pytest.raises(Refused, match="other survivors"):  # fewer survivors: other parts would have to be told
        door.answer(AGREE, structs.replace(turns[AGREE][door.name][0], survivors=tuple(range(8))))
    assert encode(door.answer(UNMASK, event)) == encode(answer)
    seeds = {seed.tobytes() for site in sites[:9] for seed in turns[UNMASK][site.name][1].noise}
    assert len(seeds) == 18
    assert not seeds & {
        _secret(site, server.session, purpose) for site in sites for purpose in (SELF_MASK, MASK_SECRET)
    }
    assert not seeds & {site.run_key(KEY) for site in sites}


def test_no_site_tells_seeds_while_others_were_shown_other_survivors():
    """If some honest sites believed in ten survivors and others in eight, the first would tell what the eight need."""
    sites = members(10)
    digest = converse(sites, MASKED)[0].session.digest
    shown = {at: tuple(range(10 if at < 4 else 8)) for at in range(8)}
    signed: list[Any] = [sites[at].answer(AGREE, Approve(digest, shown[at])) for at in range(8)]
    approvals = np.stack([np.frombuffer(answer.approval, dtype=np.uint8) for answer in signed])
    for at in range(8):
        alike = tuple(other for other in shown if shown[other] == shown[at])
        with pytest.raises(Refused, match="4 sites agreed on who is in the sum, and 8 must"):
            sites[at].answer(UNMASK, Unmask(digest, alike, approvals[list(alike)]))
        with pytest.raises(Refused, match="signed another list of the sites"):
            sites[at].answer(UNMASK, Unmask(digest, tuple(range(8)), approvals))


def test_a_site_that_is_not_in_the_sum_stays_hidden_although_all_its_pairwise_masks_come_off():
    """The server drops a masked answer that it has: it is given the pairwise masks, and no share of the self-mask."""
    sites = members(5, cells=CELLS, release=Exact())  # 2 may collude
    late = sites[2]
    kept: list[Any] = []

    def drop(turn: int, name: str, answer: Any) -> Any:
        if (turn, name) == (MASKED, late.name):
            kept.append(answer)
            return PlainAnswer(answer.values[:-1])  # so that it counts as lost
        return answer

    server, turns = converse(sites, answer=drop)
    session, answers = server.session, {name: answer for name, (_, answer) in turns[UNMASK].items()}
    assert server.survivors == [site.name for site in sites if site is not late]
    left = kept[0].values.view(np.uint64).copy()
    for site in (site for site in sites if site is not late):
        assert answers[site.name].pairs.shape == (1, 32)
        key = answers[site.name].pairs[0].tobytes()
        assert key == seed(session, late, site)
        masking.mask(left, key, add=late.name > site.name)
    assert uniform(left)
    masking.mask(left, session.self_mask_key(_secret(late, session, SELF_MASK)), add=False)
    assert (left.view(np.int64) == late.exact).all()  # the self-mask was all that was left
    mask_secret, self_mask = _secret(late, session, MASK_SECRET), _secret(late, session, SELF_MASK)
    row = session.members.index(late.name)
    shares = {session.members.index(name) + 1: share_of(answer, row) for name, answer in answers.items()}
    assert recover(shares, len(shares), lambda secret: True) == (mask_secret, ())
    left_behind = turns[SHARES][late.name][1].seeds
    opened = session.crypt_seeds(mask_secret, left_behind, encrypt=False)
    assert [row.tobytes() for row in opened] == [seed(session, late, site) for site in sites]
    assert recover(shares, 1, self_mask.__eq__) is None


def test_a_survivor_gives_its_own_self_mask_and_no_mask_secret():
    sites = members(5)
    server, turns = converse(sites)
    session = server.session
    for site in sites:
        answer: Any = turns[UNMASK][site.name][1]
        assert answer.own == _secret(site, session, SELF_MASK)
        assert answer.pairs.shape == (0, 32)
        said = answer.shares.tobytes()
        assert not any(_secret(peer, session, MASK_SECRET) in said or peer.run_key(KEY) in said for peer in sites)


def words(data: bytes) -> NDArray[np.uint64]:
    share = from_bytes(data)
    assert share is not None
    return share


def test_the_two_secrets_of_a_site_and_the_secrets_of_two_sessions_are_shared_independently():
    """Were they shared by one polynomial but for the secret, each share would give away the secrets' difference."""
    sites = members(5)
    others = [
        replace(site, events={}, trust=replace(site.trust, min_honest=4)) for site in sites
    ]  # also 4 of 5 open it
    shared = []
    for asked in (sites, others):
        server, turns = converse(asked, SHARES)
        boxes = turns[SHARES]["site-000"][1].boxes
        pairs = [server.session.pair(asked[0].run_key(KEY), "site-000", site.name) for site in asked]
        plains = [keys.decrypted(pair.seals, box.tobytes()) for pair, box in zip(pairs, boxes, strict=True)]
        shared += [[words(plain[part : part + SHARE_BYTES]) for plain in plains] for part in (0, SHARE_BYTES)]
    for first, second in ((0, 1), (0, 2), (1, 3)):
        moved = np.array([(a + PRIME - b) % PRIME for a, b in zip(shared[first], shared[second], strict=True)])
        assert all(len(set(column)) == 5 for column in moved.T)


def test_shares_of_the_colluders_alone_open_nothing_before_the_unmasking():
    sites = members(5)
    server, turns = converse(sites, MASKED)
    session, sent = server.session, {name: answer for name, (_, answer) in turns[SHARES].items()}
    target = sites[0]
    shares = {}
    for peer in sites[3:]:
        at = session.members.index(peer.name)
        box = sent[target.name].boxes[at].tobytes()
        plain = keys.decrypted(session.pair(peer.run_key(KEY), peer.name, target.name).unseals, box)
        shares[at + 1] = words(plain[:SHARE_BYTES])
    opened = recover(shares, len(shares), lambda secret: True)
    assert opened is None or opened[0] != _secret(target, session, SELF_MASK)
    box = sent["site-001"].boxes[4].tobytes()
    for other in ("site-001", "site-004"):  # nor can they open a box between two others
        pair = session.pair(sites[3].run_key(KEY), sites[3].name, other)
        for key in (pair.seals, pair.unseals):
            with pytest.raises(Refused, match="changed on its way"):
                keys.decrypted(key, box)


# ---------------------------------------------------------------------------------------------- what a site refuses


def other_session(turn: int) -> Any:
    """Return what site-000 is sent in the same turn of another question."""
    return converse(members(5, digest=OTHER))[1][turn]["site-000"][0]


def swapped(array: NDArray[Any], first: int, second: int) -> NDArray[Any]:
    copy = array.copy()
    copy[[first, second]] = copy[[second, first]]
    return copy


def flipped(array: NDArray[Any], *rows: int) -> NDArray[Any]:
    copy = array.copy()
    copy[list(rows), 0] ^= 1
    return copy


def invented(event: ShareKeys) -> ShareKeys:
    """A sixth site, of the server's making, with keys of its own properly signed by itself."""
    secret = bytes([9]) * 32
    announcement = keys.public_key(keys.derive(secret, "a")) + bytes(32)
    terms = members(5)[0].trust.terms
    signature = keys.sign(keys.Keys(secret).seed, "keys", QUESTION, terms, "site-009", announcement)
    return ShareKeys(
        (*event.members, "site-009"),
        np.vstack([event.announcements, np.frombuffer(announcement, dtype=np.uint8)]),
        np.vstack([event.signatures, np.frombuffer(signature, dtype=np.uint8)]),
        tuple(range(6)),
    )


def unusable(event: ShareKeys) -> ShareKeys:
    """A colluding site signs a key with which everybody would have the same masks."""
    site = members(5)[4]
    announcements, signatures = event.announcements.copy(), event.signatures.copy()
    announcements[4, :32] = 0
    signature = keys.sign(site.identity, "keys", QUESTION, site.trust.terms, site.name, announcements[4].tobytes())
    signatures[4] = np.frombuffer(signature, dtype=np.uint8)
    return structs.replace(event, announcements=announcements, signatures=signatures)


def smaller(event: ShareKeys, out: int) -> ShareKeys:
    keep = [at for at in range(len(event.members)) if at != out]
    names = tuple(event.members[at] for at in keep)
    return ShareKeys(names, event.announcements[keep], event.signatures[keep], tuple(range(len(keep))))


def to(change: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
    return lambda event: structs.replace(event, **change(event))


CHEATS: dict[str, tuple[int, Callable[[Any], Any], str]] = {
    "an invented site": (SHARES, invented, "'site-009' is not in the roster"),
    "keys of the server's": (
        SHARES,
        to(lambda e: {"announcements": flipped(e.announcements, 3)}),
        "'site-003' are not signed",
    ),
    "keys under another name": (
        SHARES,
        to(lambda e: {"announcements": swapped(e.announcements, 2, 3), "signatures": swapped(e.signatures, 2, 3)}),
        "'site-002' are not signed",
    ),
    "keys of another session": (SHARES, lambda e: other_session(SHARES), "'site-000' are not signed"),
    "keys that all know": (SHARES, unusable, "public key of 'site-004' is invalid"),
    "members without the site": (SHARES, lambda e: smaller(e, 0), "key is missing"),
    "a site twice": (
        SHARES,
        to(lambda e: {"members": ("site-000", "site-000", "site-002", "site-003", "site-004")}),
        "different site names",
    ),
    "members out of order": (
        SHARES,
        to(lambda e: {"members": e.members[::-1]}),
        "different site names in alphabetical order",
    ),
    "keys cut short": (SHARES, to(lambda e: {"announcements": e.announcements[:, :63]}), "must have 64 bytes"),
    "too few keys": (SHARES, to(lambda e: {"announcements": e.announcements[:4]}), "must have 64 bytes"),
    "signatures cut short": (SHARES, to(lambda e: {"signatures": e.signatures[:, :63]}), "must have 64 bytes"),
    "too many signatures": (SHARES, to(lambda e: {"signatures": e.signatures[[0, 0, 1, 2, 3, 4]]}), "must have 64"),
    "a neighbour missing": (SHARES, to(lambda e: {"neighbours": (0, 1, 2, 3)}), "neighbours are not those"),
    "a neighbour that is none": (SHARES, to(lambda e: {"neighbours": (0, 1, 2, 3, 5)}), "neighbours are not those"),
    "the event of another turn": (
        SHARES,
        lambda e: MaskAnswer(bytes(32), (), e.announcements[:0]),
        "takes no such event",
    ),
    "no event": (MASKED, lambda e: None, "takes no such event"),
    "another session than before": (MASKED, lambda e: other_session(MASKED), "began with other members or keys"),
    "two forged boxes": (
        MASKED,
        to(lambda e: {"boxes": flipped(e.boxes, 2, 3)}),
        "open the shares of 3 of 5 sites, .* 4",
    ),
    "exchanged boxes": (
        MASKED,
        to(lambda e: {"boxes": swapped(e.boxes, 2, 3)}),
        "open the shares of 3 of 5 sites, .* 4",
    ),
    "boxes of another session": (MASKED, to(lambda e: {"boxes": other_session(MASKED).boxes}), "0 of 5 sites"),
    "boxes cut short": (MASKED, to(lambda e: {"boxes": e.boxes[:, :87]}), "must have 88 bytes"),
    "a box missing": (MASKED, to(lambda e: {"boxes": e.boxes[:4]}), "must have 88 bytes"),
    "the same sender twice": (MASKED, to(lambda e: {"senders": (0, 1, 1, 3, 4)}), "different positions"),
    "senders out of order": (MASKED, to(lambda e: {"senders": (1, 0, 2, 3, 4)}), "different positions"),
    "a sender that is none": (MASKED, to(lambda e: {"senders": (0, 1, 2, 3, 5)}), "different positions"),
    "too few senders": (
        MASKED,
        to(lambda e: {"senders": (0, 1, 2), "boxes": e.boxes[:3]}),
        "open the shares of 3 of 5 sites, .* requires 4",
    ),
    "its own box missing": (
        MASKED,
        to(lambda e: {"senders": (1, 2, 3, 4), "boxes": e.boxes[1:]}),
        "own box is missing",
    ),
    "too few survivors": (AGREE, to(lambda e: {"survivors": (0, 1, 2)}), "3 of 5 sites are left .* requires 4"),
    "survivors without the site": (AGREE, to(lambda e: {"survivors": (1, 2, 3, 4)}), "must include this site"),
    "no survivors at all": (AGREE, to(lambda e: {"survivors": ()}), "must include this site"),
    "a survivor twice": (AGREE, to(lambda e: {"survivors": (0, 1, 1, 3, 4)}), "different positions"),
    "a survivor that is none": (AGREE, to(lambda e: {"survivors": (0, 1, 2, 3, 5)}), "different positions"),
    "survivors of another session": (AGREE, lambda e: other_session(AGREE), "began with other members or keys"),
    "approvals of another session": (UNMASK, lambda e: other_session(UNMASK), "began with other members or keys"),
    "approvals to another question": (
        UNMASK,
        to(lambda e: {"approvals": other_session(UNMASK).approvals}),
        "'site-000' signed another list of the sites",
    ),
    "too few approvals": (
        UNMASK,
        to(lambda e: {"signers": (0, 1, 2), "approvals": e.approvals[:3]}),
        "3 sites agreed .* 4 must",
    ),
    "an approval twice": (UNMASK, to(lambda e: {"signers": (0, 1, 1, 3)}), "different positions"),
    "an approval missing": (UNMASK, to(lambda e: {"approvals": e.approvals[:3]}), "must have 64 bytes"),
    "approvals cut short": (UNMASK, to(lambda e: {"approvals": e.approvals[:, :63]}), "must have 64 bytes"),
    "a forged approval": (
        UNMASK,
        to(lambda e: {"approvals": flipped(e.approvals, 3)}),
        "'site-003' signed another list of the sites",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_server_is_refused(cheat):
    turn, change, says = CHEATS[cheat]
    sites = members(5)

    def cheating(at: int, name: str, event: Any) -> Any:
        return change(event) if (at, name) == (turn, "site-000") else event

    with pytest.raises(Refused, match=says):
        converse(sites, event=cheating)
    if turn <= MASKED:
        assert sites[0].computed == 0  # a refusal costs nothing
    kept = len(sites[0].events)
    assert kept == max(0, turn - SHARES)  # nor does it commit the site to anything
    _, turns = converse(anew(sites), UNMASK)
    for at in range(turn, UNMASK + 1):  # the honest server's event is still taken
        event, answer = turns[at]["site-000"]
        assert encode(sites[0].answer(at, event)) == encode(answer)


@pytest.mark.parametrize("turn", [-1, 5, 2**31])
def test_a_turn_that_there_is_not_is_refused(turn):
    sites = members(5)
    _, turns = converse(sites)
    for event in (None, turns[UNMASK]["site-000"][0]):
        with pytest.raises(Refused, match=f"turn {turn} of a secure sum takes no such event"):
            sites[0].answer(turn, event)


def test_a_question_has_one_session_one_masked_vector_and_one_set_of_survivors():
    """The same noise in sums over two sets of sites would give one site's noisy answer away by their difference."""
    sites = members(10)  # 8 must stay
    turns: Any = converse(sites)[1]
    door = sites[0]
    for turn, messages in enumerate(turns):  # the same event again has the same answer
        event, answer = messages[door.name]
        assert encode(door.answer(turn, event)) == encode(answer)
    events = [messages[door.name][0] for messages in turns]
    with pytest.raises(Refused, match="other survivors"):
        door.answer(AGREE, structs.replace(events[AGREE], survivors=tuple(range(9))))
    fewer = structs.replace(events[MASKED], senders=tuple(range(9)), boxes=events[MASKED].boxes[:9])
    with pytest.raises(Refused, match="other boxes"):
        door.answer(MASKED, fewer)
    with pytest.raises(Refused, match="other boxes"):
        door.answer(MASKED, structs.replace(events[MASKED], boxes=flipped(events[MASKED].boxes, 3)))
    with pytest.raises(Refused, match="other members or keys"):
        door.answer(SHARES, smaller(events[SHARES], 9))


def test_a_server_that_shows_sites_different_survivors_gets_nothing():
    sites = members(10)  # any two sets of 8 share an honest site
    digest = converse(sites, MASKED)[0].session.digest
    shown = [((*range(8), 8 if at < 5 else 9), site) for at, site in enumerate(sites[:8])]
    signed: list[Any] = [site.answer(AGREE, Approve(digest, survivors)) for survivors, site in shown]
    approvals = np.stack([np.frombuffer(answer.approval, dtype=np.uint8) for answer in signed])
    for _, site in shown:
        with pytest.raises(Refused, match="signed another list of the sites"):
            site.answer(UNMASK, Unmask(digest, tuple(range(8)), approvals))


def test_turns_out_of_order_are_refused():
    _, turns = converse(members(5))
    fresh = members(5)[0]
    for turn in (MASKED, AGREE, UNMASK):
        with pytest.raises(Refused, match="no members or keys yet"):
            fresh.answer(turn, turns[turn]["site-000"][0])
    fresh.answer(SHARES, turns[SHARES]["site-000"][0])
    with pytest.raises(Refused, match="no boxes yet"):
        fresh.answer(AGREE, turns[AGREE]["site-000"][0])
    with pytest.raises(Refused, match="no survivors yet"):
        fresh.answer(UNMASK, turns[UNMASK]["site-000"][0])
    assert fresh.computed == 0


@pytest.mark.parametrize("change", [{"salt": b"other salt"}, {"digest": OTHER}])
@pytest.mark.parametrize("turn", [SHARES, MASKED, AGREE, UNMASK])
def test_another_salt_or_question_is_another_session(turn, change):
    sites = members(5)

    def restarted(at: int, name: str, event: Any) -> Any:
        if (at, name) == (turn, "site-001"):
            vars(sites[1]).update(change)
        return event

    with pytest.raises(Refused, match=r"key is missing or differs|other members or keys|are not signed"):
        converse(sites, event=restarted)


def test_a_site_that_sent_no_boxes_can_be_no_survivor_and_one_that_is_none_cannot_approve():
    sites = members(10)  # 8 must stay
    door, outsider = sites[0], sites[9]

    def everybody(at: int, name: str, event: Any) -> Any:
        if (at, name) == (AGREE, door.name):
            with pytest.raises(Refused, match="only sites that sent shares"):
                door.answer(at, structs.replace(event, survivors=tuple(range(10))))
        if (at, name) == (UNMASK, door.name):
            colluder = server.session.approve(outsider.identity, server.survivors)
            approvals = np.vstack([event.approvals, np.frombuffer(colluder, dtype=np.uint8)])
            with pytest.raises(Refused, match="sites agreed on who is in the sum"):
                door.answer(at, structs.replace(event, signers=(*event.signers, 9), approvals=approvals))
        return event

    server = aggregator(sites)
    converse(sites, event=everybody, lost={SHARES: {outsider.name}}, server=server)
    result = server.result()
    assert result is not None
    assert len(result.sites) == 9


def test_sites_that_were_shown_different_sessions_share_no_mask():
    """Whatever differs, question, terms, a member or a key, nothing that sites derive from their keys fits together."""
    server, turns = converse(members(5), SHARES)
    session, layout = server.session, members(5)[0].trust.layout
    event: Any = turns[SHARES]["site-000"][0]
    others = [
        Session.read(smaller(event, 4), QUESTION, session.terms, layout),
        Session.read(
            structs.replace(event, announcements=flipped(event.announcements, 4)), QUESTION, session.terms, layout
        ),
        replace(session, question=OTHER),
        replace(session, terms="others"),
        replace(session, members=(*session.members[:4], "site-005")),
    ]
    digests = {other.digest for other in [session, *others]}
    pairs = [other.pair(bytes(31) + b"k", "site-000", "site-001") for other in [session, *others]]
    keys = {pair.seed for pair in pairs}
    assert len({key for pair in pairs for key in pair}) == 18
    selves = {other.self_mask_key(bytes(32)) for other in [session, *others]}
    assert len(digests) == len(keys) == len(selves) == 6
    copied = replace(
        session, announcements=session.announcements[[0, 1, 1, 3, 4]]
    )  # site-002 says that the keys of site-001 are its own
    assert len({copied.pair(bytes(31) + b"k", "site-000", peer).seed for peer in ("site-001", "site-002")}) == 2


def test_a_site_that_may_not_be_charged_sends_no_masked_answer():
    class Spent(Asked):
        def statistic(self) -> NDArray[np.int64]:
            raise FedsynthError("the data steward allows no more")

    sites = [Spent(**{name: getattr(site, name) for name in site.__dataclass_fields__}) for site in members(5)]
    with pytest.raises(FedsynthError, match="data steward"):
        converse(sites)


# ------------------------------------------------------------------------------------------------------- many sites


def many(**of_each: Any) -> list[Asked]:
    """80 sites of which 8 may collude: each has 28 neighbours, and 24 shares open a secret."""
    return members(80, SecureSum(min_honest=72), **of_each)


def test_a_coalition_among_many_sites_learns_the_release_and_no_part_of_it():
    """Eight sites and the server: what is left of every honest vector is uniform, and so is every part of the sum."""
    sites = many(cells=CELLS, release=Gaussian(5e-5))
    colluders, honest, lost = sites[:8], sites[10:], sites[8:10]
    server, turns = converse(sites, lost={MASKED: {site.name for site in lost}})
    session, left = server.session, {}
    near = {site.name: {session.members[at] for at in session.neighbours(site.name)} for site in sites}
    for site in honest:
        words_left: NDArray[np.uint64] = turns[MASKED][site.name][1].values.view(np.uint64).copy()
        for peer in [*colluders, *lost]:  # their masks are known, or are opened
            if peer.name in near[site.name]:
                masking.mask(words_left, seed(session, peer, site), add=site.name > peer.name)
        masking.mask(words_left, session.self_mask_key(turns[UNMASK][site.name][1].own), add=False)
        left[site.name] = words_left
        assert uniform(words_left)
    names = list(left)
    order = sorted(names, key=lambda name: graph.ring(session.digest, 80)[1][session.members.index(name)])
    for part in (names[:1], names[:35], names[::2], names[1:], order[:20], order[:35], order[10:60]):
        assert uniform(total([left[name] for name in part]))
    noise = total(list(left.values())).view(np.int64) - exact(honest)
    noise -= np.sum([told(turns, site) for site in honest], axis=0)
    share = sites[0].trust.share(Gaussian(5e-5), NORMS, 80)
    kept = share.kept(sites[0].trust.honest(78))
    assert (noise == np.sum([site.noise(kept) for site in honest], axis=0)).all()
    assert of_variance(noise, len(honest) * share.std(kept) ** 2)


def test_a_coalition_among_many_sites_holds_too_few_shares_of_every_other():
    sites = many()
    session = converse(sites, SHARES)[0].session
    for site in sites[8:]:
        held = [at for at in session.neighbours(site.name) if at < 8]
        assert len(held) < session.layout.threshold


def other_graph(event: ShareKeys) -> ShareKeys:
    """The neighbours that the site would have among the same members, had another one signed other keys."""
    sites = many()
    chosen = keys.digest("keys of the server's choice") * 2
    announcements = event.announcements.copy()
    announcements[79] = np.frombuffer(chosen, dtype=np.uint8)
    trust = sites[0].trust
    read = structs.replace(event, announcements=announcements)
    neighbours = Session.read(read, QUESTION, trust.terms, trust.layout).neighbours("site-000")
    assert neighbours != event.neighbours
    return structs.replace(event, neighbours=neighbours)


def all_of_them(event: ShareKeys) -> ShareKeys:
    """All members as neighbours, so that more of them would hold shares of the site's secrets."""
    signatures = np.zeros((80, 64), dtype=np.uint8)
    signatures[list(event.neighbours)] = event.signatures
    return structs.replace(event, neighbours=tuple(range(80)), signatures=signatures)


def of_others(event: MaskAnswer) -> MaskAnswer:
    """Boxes of more senders than are neighbours, to have shares of all of them."""
    return structs.replace(event, boxes=np.vstack([event.boxes, event.boxes[:3]]))


def near_only(count: int) -> Callable[[Any], Any]:
    """Survivors of whom only so many are neighbours of the site, itself included."""

    def change(event: Approve) -> Approve:
        session = converse(many(), SHARES)[0].session
        assert session.digest == event.session
        near = [at for at in session.neighbours("site-000") if at]
        out = set(near[count - 1 :])
        return structs.replace(event, survivors=tuple(at for at in event.survivors if at not in out))

    return change


MANY_CHEATS: dict[str, tuple[int, Callable[[Any], Any], str]] = {
    "neighbours of another graph": (SHARES, other_graph, "neighbours are not those"),
    "all members for neighbours": (SHARES, all_of_them, "neighbours are not those"),
    "an unsigned neighbour": (
        SHARES,
        to(lambda e: {"signatures": flipped(e.signatures, 5)}),
        "are not signed by its identity",
    ),
    "a signature missing": (SHARES, to(lambda e: {"signatures": e.signatures[1:]}), "29 sites must have 64 bytes"),
    "a member that is in no roster": (
        SHARES,
        to(lambda e: {"members": (*e.members[:79], "site-999")}),
        "'site-999' is not in the roster",
    ),
    "boxes of more sites": (MASKED, of_others, "must have 88 bytes"),
    "six forged boxes": (
        MASKED,
        to(lambda e: {"boxes": flipped(e.boxes, *range(6))}),
        "open the shares of 23 of 29 sites",
    ),
    "too few senders in all": (
        MASKED,
        lambda e: fewer_senders(e, 44),
        "shares of 44 of 80 sites, .* requires 45|of 29 sites",
    ),
    "too few neighbours among the survivors": (AGREE, near_only(23), "23 of 29 neighbours are left, and 24 must be"),
    "too few survivors": (AGREE, to(lambda e: {"survivors": e.survivors[:44]}), "44 of 80 .* requires 45"),
    "too few approvals": (
        UNMASK,
        to(lambda e: {"signers": e.signers[:44], "approvals": e.approvals[:44]}),
        "44 sites agreed .* 45 must",
    ),
}


def fewer_senders(event: MaskAnswer, count: int) -> MaskAnswer:
    """As few senders as that, the neighbours first."""
    session = converse(many(), SHARES)[0].session
    near = set(session.neighbours("site-000"))
    others = [at for at in range(80) if at not in near]
    return structs.replace(event, senders=tuple(sorted([*near, *others[: count - len(near)]])))


@pytest.mark.parametrize("cheat", MANY_CHEATS)
def test_a_server_that_cheats_one_of_many_sites_is_refused(cheat):
    turn, change, says = MANY_CHEATS[cheat]
    sites = many()

    def cheating(at: int, name: str, event: Any) -> Any:
        return change(event) if (at, name) == (turn, "site-000") else event

    with pytest.raises(Refused, match=says):
        converse(sites, event=cheating)
    assert len(sites[0].events) == max(0, turn - SHARES)  # a refusal does not commit the site to anything
    if turn <= MASKED:
        assert sites[0].computed == 0


def test_sites_that_are_shown_different_members_have_different_graphs_and_no_box_opens():
    """Members and keys decide the graph: who is shown others has other neighbours, and other keys with them."""
    sites = many()
    for site in sites[:2]:
        site.answer(0, None)
    session = converse(many(), SHARES)[0].session
    events = {}
    for out in (78, 79):
        keep = [at for at in range(80) if at != out]
        names = tuple(session.members[at] for at in keep)
        shown = replace(
            session, members=names, announcements=session.announcements[keep], layout=sites[0].trust.layout(79)
        )
        keys = {name: answer.signature for name, (_, answer) in converse(many(), 0)[1][0].items()}
        events[out] = shown, keys
    first, second = (shown for shown, _ in events.values())
    boxes = {}
    for at, (shown, keys) in enumerate(events.values()):
        answer: Any = sites[at].answer(SHARES, shown.event(sites[at].name, keys))
        boxes[at] = answer.boxes
    assert first.neighbours("site-000") != second.neighbours("site-000")
    for at in first.neighbours("site-000"):
        peer = sites[session.members.index(first.members[at])]
        row = first.neighbours("site-000").index(at)
        pair = second.pair(peer.run_key(KEY), peer.name, "site-000")
        with pytest.raises(Refused, match="changed on its way"):
            decrypted(pair.unseals, boxes[0][row].tobytes())


def test_two_sets_of_survivors_among_many_sites_cannot_both_be_signed():
    """Half of the sites are shown one set, half another: neither half is enough, with eight signatures twice."""
    sites = many()
    digest = converse(sites, MASKED)[0].session.digest
    shown = {at: tuple(range(80) if at < 37 else range(1, 80)) for at in range(1, 80)}
    approvals: dict[int, Any] = {at: sites[at].answer(AGREE, Approve(digest, shown[at])) for at in shown}
    session = converse(many(), SHARES)[0].session
    for survivors in (tuple(range(80)), tuple(range(1, 80))):
        signed = {at: approvals[at].approval for at in shown if shown[at] == survivors}
        for at in range(72, 80):  # the colluders sign everything
            signed[at] = session.approve(sites[at].identity, [session.members[place] for place in survivors])
        signers = tuple(sorted(signed))
        assert 40 < len(signers) < sites[1].trust.quorum(80)
        rows = np.stack([np.frombuffer(signed[at], dtype=np.uint8) for at in signers])
        other = next(at for at in shown if shown[at] != survivors and at < 72)
        same = next(at for at in shown if shown[at] == survivors)
        for at in (same, other):
            with pytest.raises(Refused, match="sites agreed on who is in the sum, and 45 must"):
                sites[at].answer(UNMASK, Unmask(digest, signers, rows))
        more = (*signers, *(at for at in shown if at not in signers))[:45]
        stolen = np.vstack([rows, np.zeros((45 - len(rows), 64), dtype=np.uint8)])[np.argsort(more)]
        with pytest.raises(Refused, match="signed another list of the sites"):
            sites[same].answer(UNMASK, Unmask(digest, tuple(sorted(more)), stolen))


def test_no_site_is_asked_for_both_shares_of_a_member():
    """Once for the survivors that it signed: a self-mask's share for these, a mask secret's for others, never both."""
    sites = many()
    turns: Any = converse(sites, lost={MASKED: {"site-079"}})[1]
    door = next(site for site in sites if len(turns[UNMASK][site.name][1].pairs))
    event, answer = turns[AGREE][door.name][0], turns[UNMASK][door.name][1]
    with pytest.raises(Refused, match="other survivors"):
        door.answer(AGREE, structs.replace(event, survivors=event.survivors[1:]))
    with pytest.raises(Refused, match="other survivors"):
        door.answer(AGREE, structs.replace(event, survivors=tuple(range(80))))
    boxes = turns[MASKED][door.name][0]
    opened = door.trust._open(door, converse(many(), SHARES)[0].session, boxes)
    said = answer.shares.tobytes()
    inside = {f"site-{at:03d}" for at in event.survivors}
    for sender, held in opened.items():
        assert (held.self_mask in said) == (sender in inside)
        assert (held.mask_secret in said) == (sender not in inside)
    assert encode(door.answer(UNMASK, turns[UNMASK][door.name][0])) == encode(answer)


def test_what_one_sum_opens_says_nothing_of_another_sum_of_the_run():
    """The keys of the run are the same; seeds and secrets of two questions are not, nor follow from one another."""
    first, second = members(5, release=Exact()), members(5, digest=OTHER, release=Exact())
    lost = {MASKED: {"site-004"}}
    (one, opened), (two, hidden) = converse(first, lost=lost), converse(second)
    assert [announcement[:32] for announcement in announcements(opened)] == [
        announcement[:32] for announcement in announcements(hidden)
    ]
    told_now = {row.tobytes() for _, answer in opened[UNMASK].values() for row in answer.pairs}
    assert told_now == {seed(one.session, first[4], site) for site in first[:4]}
    known = [_secret(first[4], one.session, MASK_SECRET), *told_now]  # all that is opened of the lost site
    later = {seed(two.session, second[4], site) for site in second[:4]}
    assert not later & told_now
    left: Any = hidden[SHARES]["site-004"][1].seeds
    for secret in known:
        assert not {row.tobytes() for row in two.session.crypt_seeds(secret, left, encrypt=False)} & later
    everything = b"".join(
        encode(part) for turns in (opened, hidden) for turn in turns for part in turn["site-000"] if part
    )
    assert not any(site.run_key(KEY) in everything for site in first)


def announcements(turns: Any) -> list[bytes]:
    return [answer.announcement for _, answer in turns[0].values()]


def test_a_site_whose_backup_forgot_a_session_opens_nothing_of_it_in_another():
    """A backup with the salt of a question, but not its session: the server asks once more, among other sites.

    The first session opened the site's self-mask; in the second it falls silent, and its mask secret is opened.
    """
    sites = members(12, SecureSum(min_honest=12))
    target = sites[0]
    first, turns = converse(sites[:6])
    restored = replace(target, events={})
    second, _ = converse([restored, *sites[6:]], lost={MASKED: {target.name}})
    opened = second._recover(target.name, MASK_SECRET)
    assert opened == _secret(target, second.session, MASK_SECRET)
    assert second._recover(target.name, SELF_MASK) is None
    sent: Any = {turn: turns[turn][target.name][1] for turn in (SHARES, MASKED, UNMASK)}
    assert sent[UNMASK].own == _secret(target, first.session, SELF_MASK)
    seeds = {}
    for secret in (opened, _secret(target, first.session, MASK_SECRET)):
        left = first.session.crypt_seeds(secret, sent[SHARES].seeds, encrypt=False)
        seeds[secret] = [row.tobytes() for row in left]
    known = [seed(first.session, target, site) for site in sites[:6]]
    assert not set(seeds[opened]) & set(known)
    assert seeds[_secret(target, first.session, MASK_SECRET)] == known  # these would have been opened as well


def test_a_colluder_that_signs_the_public_key_of_an_honest_site_learns_nothing_of_its_masks():
    """All three agree on the same secret by X25519; what pairs derive from it has their names in it."""
    sites = members(5)
    keys = {name: answer for name, (_, answer) in converse(sites, KEYS)[1][KEYS].items()}
    thief, honest, other = sites[0], sites[1], sites[2]
    copied = keys[honest.name].announcement[:32] + keys[thief.name].announcement[32:]
    signature = sign_keys(thief.identity, QUESTION, thief.trust.terms, thief.name, copied)
    keys[thief.name] = structs.replace(keys[thief.name], announcement=copied, signature=signature)
    announcements = np.frombuffer(b"".join(answer.announcement for answer in keys.values()), dtype=np.uint8).reshape(
        5, 64
    )
    session = Session(QUESTION, thief.trust.terms, tuple(keys), announcements, thief.trust.layout(5))
    sent: Any = other.answer(
        SHARES, session.event(other.name, {name: answer.signature for name, answer in keys.items()})
    )
    private = other.run_key(KEY)
    shown, hidden = (session.pair(private, other.name, of.name) for of in (thief, honest))
    assert not {shown.seed, shown.seals, shown.unseals} & {hidden.seed, hidden.seals, hidden.unseals}
    assert len({row.tobytes() for row in sent.commitments}) == 5


def test_a_key_of_the_run_is_no_key_for_another_question():
    """A server that shows, for one question, the signed keys of another question of the run is refused."""
    sites, others = members(5), members(5, digest=OTHER)
    theirs: Any = converse(others, 0)[1][0]["site-003"][1]

    def replayed(at: int, name: str, event: Any) -> Any:
        if at != SHARES:
            return event
        keys, signatures = event.announcements.copy(), event.signatures.copy()
        keys[3], signatures[3] = (
            np.frombuffer(part, dtype=np.uint8) for part in (theirs.announcement, theirs.signature)
        )
        return structs.replace(event, announcements=keys, signatures=signatures)

    with pytest.raises(Refused, match="keys of 'site-003' are not signed"):
        converse(sites, event=replayed)
