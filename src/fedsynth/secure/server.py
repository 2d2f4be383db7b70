"""The server's side of secure aggregation: it relays messages between sites, adds up, and learns only the total.

The sites' privacy does not depend on this code; it is protected by their own side, in `site`.

Rule 1: whatever a site would refuse in another site's message is found here first, so that only the site that sent it
    is lost. Keys and approvals are verified, forms are checked, a self-mask must fit its commitment.
Rule 2: a site's secret comes from the site or, if that is silent, is recovered from the shares that other sites hold.
    If its commitment shows that some shares are wrong, sets of them are left out until the rest gives the committed
    secret (:func:`~fedsynth.secure.shamir.recover`). The mask between a survivor (a site in the sum) and a lost site
    does not cancel. Its seed comes from the survivor or, if that is silent too, from what the lost site
    left with the server in turn 1, encrypted under its mask secret; either way it must fit the survivor's commitment.
    Both sites of a mask commit to its seed. If their commitments differ, one of the two is faulty: a site that
    contradicts several others is left out before anything is masked, and the others stay.
Rule 3: the sum goes on while the threshold of sites remains. It fails, naming a site, if one whose shares open nothing
    falls silent between its masked answer and the end, or if one shared another self-mask than it committed to and does
    not give that, or left other seeds than it committed to where these are needed. If two sites contradict only each
    other and one of them is lost, the sum fails and names both. On a sparse graph, it also fails if a site loses more
    neighbours than the graph is made for. Numbers of the right form are not checked at all, here or anywhere: a site
    may add to a total what it likes, and may send seeds of noise that it did not add.
Rule 4: once the total is complete, the noise that so many survivors do not need is subtracted. That of a survivor which
    fell silent before it told its seeds stays in, and is in the stated deviation.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsynth import keys
from fedsynth.errors import FedsynthError, SiteLost
from fedsynth.federation.events import (
    Answer,
    ApprovalAnswer,
    Approve,
    BoxesAnswer,
    Bytes,
    Event,
    KeysAnswer,
    MaskAnswer,
    PlainAnswer,
    SharesAnswer,
    Unmask,
)
from fedsynth.federation.trust import Released
from fedsynth.secure import masking
from fedsynth.secure.graph import SumGraph
from fedsynth.secure.noise_shares import SEED_BYTES, NoiseShare
from fedsynth.secure.session import (
    ANNOUNCEMENT_BYTES,
    BOX_BYTES,
    KEYS,
    MASK_SECRET,
    PAIR_SEED,
    SELF_MASK,
    TURNS,
    Session,
    are_bytes,
    as_bytes,
    check_keys,
    commitment,
)
from fedsynth.secure.shamir import SHARE_BYTES, from_bytes, recover

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Aggregator:
    """The server's side of one secure sum over ``sites`` (an :class:`~fedsynth.federation.trust.Aggregation`).

    The number of members, the sites that announced their keys in the first turn, decides the rest:
    ``threshold(members)`` of them must stay to the end, ``quorum(members)`` must sign who is in the sum, and
    ``layout(members)`` is the graph by which they share secrets. ``share(members)`` is the share of the noise that each
    adds, of which the parts that are not needed once ``honest(survivors)`` of the sites in the sum are honest are
    subtracted at the end. ``question`` is the question's digest (hex), ``terms`` the text that all members sign, and
    ``identities`` holds public identity keys by site. Memory holds three vectors, for any number of sites, as long as
    their answers are of one length.

    The other attributes are the state: the current ``turn`` (-1 before the first); by site, the valid answers of the
    turns (``keys``, ``boxes``, ``approvals``, ``shares``) and the length of the masked vector (``cells``); the sum of
    masked vectors of each length (``totals``); the ``survivors``, whose answers are in the sum; the ``suspects``,
    positions plus one of members that gave a wrong share; and why the sum cannot be completed (``failure``, empty
    unless it failed).
    """

    question: str
    terms: str
    identities: Mapping[str, bytes]
    sites: tuple[str, ...]
    threshold: Callable[[int], int]
    quorum: Callable[[int], int]
    layout: Callable[[int], SumGraph]
    share: Callable[[int], NoiseShare]
    honest: Callable[[int], int]
    turn: int = -1
    keys: dict[str, KeysAnswer] = field(default_factory=dict)
    boxes: dict[str, BoxesAnswer] = field(default_factory=dict)
    cells: dict[str, int] = field(default_factory=dict)
    totals: dict[int, NDArray[np.uint64]] = field(default_factory=dict)
    approvals: dict[str, ApprovalAnswer] = field(default_factory=dict)
    shares: dict[str, SharesAnswer] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    failure: str = ""
    _session: Session | None = None
    _rows: dict[str, dict[int, int]] = field(default_factory=dict)  # of each sender's neighbours, by their places
    _inside: set[int] = field(default_factory=set)  # places of the survivors
    _signed: bytes = b""

    @property
    def session(self) -> Session:
        """The session of this sum, once the second call of :meth:`ask` has evaluated the answers of the first turn."""
        assert self._session is not None
        return self._session

    def ask(self) -> Mapping[str, Event | None]:
        """Start the next turn, and return the event to send to each remaining site, by the site's name.

        The mapping is empty after the last turn, if no site announced its keys, and once too few sites remain or masks
        cannot be opened, in which case :meth:`result` raises an error.
        """
        self.turn += 1
        if self.turn == KEYS:
            return dict.fromkeys(self.sites)
        if not self.keys or self.failure:
            return {}
        steps = (self._share_keys, self._mask_answer, self._approve, self._unmask, self._finish)
        return steps[self.turn - 1]() if self.turn <= len(steps) else {}

    def receive(self, site: str, answer: Answer) -> None:
        """Take in one site's answer to the last message of :meth:`ask`; masked vectors are added up at once.

        Raises :class:`FedsynthError` for an answer of the wrong form, or one that does not fit the site's signature or
        commitments.
        """
        match answer:
            case _ if type(answer) is not TURNS[self.turn].answer:
                raise self._bad(site)
            case KeysAnswer():
                check_keys(self.identities, self.question, self.terms, site, answer.announcement, answer.signature)
                self.keys[site] = answer
            case BoxesAnswer():
                rows = len(self.session.neighbours(site))
                if not (
                    are_bytes(answer.boxes, rows, BOX_BYTES)
                    and are_bytes(answer.seeds, rows, keys.KEY_BYTES)
                    and are_bytes(answer.commitments, rows, keys.KEY_BYTES)
                    and are_bytes(answer.secrets, 2, keys.KEY_BYTES)
                ):
                    raise self._bad(site)
                self.boxes[site] = answer
            case PlainAnswer():
                if answer.values.ndim != 1 or answer.values.dtype != np.int64:
                    raise self._bad(site)
                vector = answer.values.view(np.uint64)
                total = self.totals.setdefault(vector.size, np.zeros(vector.size, dtype=np.uint64))
                np.add(total, vector, out=total)
                self.cells[site] = vector.size
            case ApprovalAnswer():
                if not self.session.approved(self.identities[site], answer.approval, self._signed):
                    raise FedsynthError(f"site {site} did not sign who is in the sum; it is left out from here on")
                self.approvals[site] = answer
            case SharesAnswer():
                held, out = self._near(site), self._near(site, out=True)
                share, kept = self._noise()
                if not (
                    are_bytes(answer.shares, len(held), SHARE_BYTES)
                    and are_bytes(answer.pairs, len(out), keys.KEY_BYTES)
                    and are_bytes(answer.noise, len(share.parts) - kept, SEED_BYTES)
                ):
                    raise self._bad(site)
                if commitment(answer.own, SELF_MASK) != self._committed(site, SELF_MASK):
                    raise FedsynthError(
                        f"site {site} gave another self-mask than it committed to; its shares are not used"
                    )
                if not all(self._fits(seed.tobytes(), site, at) for seed, at in zip(answer.pairs, out, strict=True)):
                    raise FedsynthError(
                        f"site {site} gave other pairwise masks than it committed to; its shares are not used"
                    )
                self.shares[site] = answer

    def _bad(self, site: str) -> FedsynthError:
        return FedsynthError(
            f"site {site} sent no valid {TURNS[self.turn].name}; install the same fedsynth version everywhere"
        )

    def result(self) -> Released | None:
        """Return the sum over the survivors, with the standard deviation of its noise; ``None`` if no site answered.

        Raises :class:`SiteLost` if too few sites completed all turns, or if the masks of a lost site cannot be opened.
        """
        if self.failure:
            raise SiteLost(self.failure)
        if not self.keys:
            return None
        (total,) = self.totals.values()
        share, kept = self._noise()
        parts = [kept if site in self.shares else len(share.parts) for site in self.survivors]
        return Released(tuple(self.survivors), math.hypot(*map(share.std, parts)), total.view(np.int64))

    def _noise(self) -> tuple[NoiseShare, int]:
        """Return a survivor's share of the noise, and the number of its parts that this many survivors keep."""
        share = self.share(len(self.session.members))
        return share, share.kept(self.honest(len(self.survivors)))

    def _enough(self, present: Collection[str]) -> bool:
        """Whether enough sites completed the last turn; otherwise set the failure."""
        members = len(self.session.members)
        missing = self.threshold(members) - len(present)
        if missing > 0:
            self.failure = (
                f"{len(present)} of {members} sites sent a valid answer in the turn {TURNS[self.turn - 1].name!r} and "
                f"{len(present) + missing} are required: {missing} are missing"
            )
        return missing <= 0

    def _share_keys(self) -> Mapping[str, Event]:
        members = tuple(sorted(self.keys))
        announcements = as_bytes([self.keys[member].announcement for member in members], ANNOUNCEMENT_BYTES)
        self._session = Session(self.question, self.terms, members, announcements, self.layout(len(members)))
        if not self._enough(members):
            return {}
        signatures = {member: keys.signature for member, keys in self.keys.items()}
        return {member: self.session.event(member, signatures) for member in members}

    def _mask_answer(self) -> Mapping[str, Event]:
        if not self._enough(self.boxes):
            return {}
        self.boxes = dict(sorted(self.boxes.items()))
        self._rows = {site: _rows(self.session.neighbours(site)) for site in self.boxes}
        self._leave_out(self._contradictions())
        if not self._enough(self.boxes):
            return {}
        senders = self.session.places(self.boxes)
        events = {}
        for site, at in zip(self.boxes, senders, strict=True):
            near = [self.session.members[place] for place in self._near(site)]
            boxes = np.stack([self.boxes[sender].boxes[self._rows[sender][at]] for sender in near])
            events[site] = MaskAnswer(self.session.digest, senders, boxes)
        return events

    def _contradictions(self) -> dict[str, set[str]]:
        """Return, for each sender, the senders that committed to another seed of the mask between the two."""
        committed = {site: boxes.commitments.tobytes() for site, boxes in self.boxes.items()}
        found: dict[str, set[str]] = {}
        for site, at in zip(self.boxes, self.session.places(self.boxes), strict=True):
            for place, row in self._rows[site].items():
                other = self.session.members[place]
                if place <= at or other not in self.boxes:
                    continue
                back = self._rows[other][at]
                if _row(committed[site], row) != _row(committed[other], back):
                    found.setdefault(site, set()).add(other)
                    found.setdefault(other, set()).add(site)
        return found

    def _leave_out(self, contradictions: dict[str, set[str]]) -> None:
        """Exclude the site that contradicts most others, repeatedly, until none contradicts more than one.

        Honest sites contradict only faulty ones. If two sites contradict only each other, it is unknown which is
        faulty.
        """
        while contradictions:
            worst = max(sorted(contradictions), key=lambda site: len(contradictions[site]))
            if len(contradictions[worst]) < 2:
                return
            logger.warning(
                "site %s committed to other pairwise masks than %d of its neighbours did; it is not in the sum",
                worst,
                len(contradictions[worst]),
            )
            for other in contradictions.pop(worst):
                contradictions[other].discard(worst)
            del self.boxes[worst], self._rows[worst]

    def _approve(self) -> Mapping[str, Event]:
        ((cells, _),) = Counter(self.cells.values()).most_common(1) or [(0, 0)]
        for site, size in self.cells.items():
            if size != cells:
                logger.warning(
                    "site %s answered with %d numbers, most with %d; it is not in the sum", site, size, cells
                )
        self.totals = {size: total for size, total in self.totals.items() if size == cells}
        self.survivors = sorted(site for site, size in self.cells.items() if size == cells)
        if not self._enough(self.survivors):
            return {}
        self._signed = keys.digest(*self.survivors)
        self._inside = set(self.session.places(self.survivors))
        event = Approve(self.session.digest, self.session.places(self.survivors))
        return dict.fromkeys(self.survivors, event)

    def _unmask(self) -> Mapping[str, Event]:
        signers = sorted(self.approvals)
        if not self._enough(signers):
            return {}
        shown = signers[: self.quorum(len(self.session.members))]
        approvals = as_bytes([self.approvals[signer].approval for signer in shown], keys.SIGNATURE_BYTES)
        return dict.fromkeys(signers, Unmask(self.session.digest, self.session.places(shown), approvals))

    def _finish(self) -> Mapping[str, Event]:
        """Take off the survivors' self-masks, the pairwise masks with the other senders, and the excess noise."""
        if not self._enough(self.shares):
            return {}
        (total,) = self.totals.values()
        for sender, at in zip(self.boxes, self.session.places(self.boxes), strict=True):
            if at not in self._inside:
                for survivor, seed in self._pair_seeds(sender, at).items():
                    masking.mask(total, seed, add=survivor > sender)  # what the survivor put on
            elif secret := self._self_mask(sender):
                masking.mask(total, self.session.self_mask_key(secret), add=False)
            if self.failure:
                return {}
        share, kept = self._noise()
        for told in self.shares.values():
            for part, seed in zip(share.parts[kept:], told.noise, strict=True):
                np.subtract(total, part.noise(total.size, seed.tobytes()).view(np.uint64), out=total)
        return {}

    def _near(self, site: str, *, out: bool = False) -> list[int]:
        """Return the positions of a sender's neighbours that sent boxes too, or of those that are not in the sum."""
        near = [at for at in self._rows[site] if self.session.members[at] in self.boxes]
        return [at for at in near if at not in self._inside] if out else near

    def _committed(self, sender: str, purpose: str) -> bytes:
        committed: bytes = self.boxes[sender].secrets[(SELF_MASK, MASK_SECRET).index(purpose)].tobytes()
        return committed

    def _fits(self, seed: bytes, survivor: str, at: int) -> bool:
        """Whether the seed of a pairwise mask is the one that a survivor committed to, for its neighbour at a place."""
        committed: bytes = self.boxes[survivor].commitments[self._rows[survivor][at]].tobytes()
        return committed == commitment(seed, PAIR_SEED)

    def _self_mask(self, sender: str) -> bytes | None:
        if sender in self.shares:
            return self.shares[sender].own
        secret = self._recover(sender, SELF_MASK)
        if secret is None:
            self._failed(sender)
        return secret

    def _pair_seeds(self, sender: str, at: int) -> Mapping[str, bytes]:
        """Return the seeds of a sender's masks with each survivor, from these or else from its mask secret."""
        seeds: dict[str, bytes] = {}
        left: Bytes | None = None
        for place, row in self._rows[sender].items():
            survivor = self.session.members[place]
            if place not in self._inside:
                continue
            if survivor in self.shares:
                told = self._near(survivor, out=True).index(at)
                seeds[survivor] = self.shares[survivor].pairs[told].tobytes()
                continue
            if left is None:
                secret = self._recover(sender, MASK_SECRET)
                if secret is None:
                    self._failed(sender)
                    return {}
                left = self.session.crypt_seeds(secret, self.boxes[sender].seeds, encrypt=False)
            seeds[survivor] = left[row].tobytes()
            if not self._fits(seeds[survivor], survivor, at):
                if self._fits(seeds[survivor], sender, place):
                    self.failure = (
                        f"{sender} and {survivor} committed to different masks between the two: one of them is "
                        "faulty; start another run without it"
                    )
                else:
                    self._failed(sender)
                return {}
        return seeds

    def _recover(self, sender: str, purpose: str) -> bytes | None:
        """Return the sender's secret from the shares that its neighbours gave, if enough of them are correct.

        A wrong share is due to the site that gave it or to the sender that made it. Sites that gave a wrong share
        before are left out first, and included if the other shares are not enough.
        """
        (at,), given = self.session.places([sender]), {}
        for place in self._rows[sender]:
            if told := self.shares.get(self.session.members[place]):
                row = self._near(self.session.members[place]).index(at)
                given[place + 1] = from_bytes(told.shares[row].tobytes())
        committed = self._committed(sender, purpose)
        held = {point: share for point, share in given.items() if share is not None}
        trusted = {point: share for point, share in held.items() if point not in self.suspects}
        for shares in (trusted, held):
            found = recover(
                shares, self.session.layout.threshold, lambda secret: commitment(secret, purpose) == committed
            )
            if found is not None:
                secret, wrong = found
                self.suspects.update(wrong)
                for point in wrong:
                    giver = self.session.members[point - 1]
                    logger.warning("the share of %s that %s gave is wrong: one of them is faulty", sender, giver)
                return secret
        return None

    def _failed(self, sender: str) -> None:
        self.failure = (
            f"the masks of {sender} cannot be opened: its shares do not fit what it signed, or too few sites hold one; "
            "start another run without it"
        )


def _row(committed: bytes, row: int) -> bytes:
    return committed[keys.KEY_BYTES * row : keys.KEY_BYTES * (row + 1)]


def _rows(places: Sequence[int]) -> dict[int, int]:
    """Return the row of each place in messages that have one row for each."""
    return {place: row for row, place in enumerate(places)}
