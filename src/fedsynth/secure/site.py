"""Secure aggregation at a site, and the trust model: the server sees totals, and nothing of any single site.

Rule 1: nobody but the members of the site's own roster (names and identity keys) takes part, each by keys signed with
    its identity (against a server that invents sites) and under the same terms: that roster, and the numbers of sites
    that may collude or drop out (:attr:`SecureSum.terms`). These are the sites' own, never an event's.
Rule 2: everything derives from the site's secret, the question and its random salt; the site keeps the first session,
    the first boxes and the first survivors that it took, and acts on no other. So a site has one noise, one masked
    vector and one set of survivors a question: the same noise in two sums of different sites would give one site's
    vector away by their difference. A question that failed for good is asked anew as another question.
Rule 3: keys, boxes and signatures are bound to the session, that is the question, the terms and all members' keys.
Rule 4: of every neighbour that sent boxes, a site gives either what takes off the self-mask (its answer is in the sum)
    or what takes off its pairwise masks (it is not), never both; and only after enough sites signed the same survivors
    (:meth:`SecureSum.quorum`), so that all sites which give anything give it for one set of them.
Rule 5: neighbours follow from the members and their keys (`graph`), and a site exchanges nothing with anybody else.
Rule 6: the key that sites agree by lasts for a run, and never leaves in any form. What a sum opens, seeds of pairwise
    masks and the two secrets that are shared, is derived anew for each session, from the agreed secret or from the
    question's salt, by HKDF under names of its own, and so independent of what any other session derives, and of the
    boxes' keys. For salts it is enough that HKDF is a pseudo-random function. For agreed secrets we take it for a
    random oracle, under the gap Diffie-Hellman assumption: a key serves a whole run, and colluding sites may sign keys
    that they made of it, or copied, and see what their pairs derive. The names of both sites, and by the session's
    digest all keys, are in what is derived. Commitments are hashes of 32 such bytes. A mask secret does not make masks,
    as the paper's private key does. It encrypts their seeds, which a site leaves with the server in turn 1, so that the
    server can decrypt them when the site is lost, even where a neighbour that put the same masks on falls silent too.
    Shares of the mask secret are handed out, and given, under the same rules as the paper's, and what
    they open is the same: the site's pairwise masks of this sum.
Rule 7: the question is charged before the masked vector leaves, and after all that can be refused in that turn.

Beyond the paper, so that one faulty site does not stop the others:

Rule 8: a site that cannot open the box of a sender goes on without that share. Masks need public keys alone, so that
    nothing that it sends before turn 4 depends on the share, and there it sends :data:`NO_SHARE` in its place. The
    adversary sees what it would see had the site's share been lost on its way, that is less; and that a box does not
    open is known to whoever made or changed it. It is no oracle: a site takes one set of boxes a session.
Rule 9: in turn 4 a survivor also gives its own self-mask, and its pairwise mask with each sender that is not in the
    sum, so that shares are needed for silent sites only. Privacy is what it was. By then a quorum signed one set U, and
    honest sites act on no other (:meth:`SecureSum.quorum`). Hand the adversary at once all that shares could ever open
    for it: the self-mask of every site in U, the mask secret of every other sender. Both disclosures follow from these.
    Yet the vector of an honest site in U stays under its pairwise masks with the other honest ones of U, of whose mask
    secrets no honest site gives a share; that of an honest sender outside U stays under its self-mask, of which none
    does either; and the colluding sites alone hold too few shares. What is left to learn is the total of the honest
    sites in U, which the release is made for; on a sparse graph that takes the proof in `graph`.
Rule 10: there a survivor also tells the seeds of the parts of its noise that so many survivors do not need, and of no
    other. At most c sites collude, so |U| - c of U or more are honest; each keeps the parts that suffice among so many
    (:class:`~fedsynth.secure.noise_shares.NoiseShare`), or more, where it falls silent before it tells. All honest
    sites that tell anything act on the same U (rule 9), which is fixed after the masked answers and has t sites
    or more; each tells once, for the U that it signed first. So the total of the honest sites in U holds the noise
    that the release promises, whoever drops out and when. Seeds are derived one by one from the site's secret, the
    salt, the question and the session, so that those which are told say nothing of the others. Noise of senders
    outside U is never told: their answers stay under their self-masks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
from typing_extensions import override

from fedsynth import keys
from fedsynth.errors import InvalidParameter, Refused, Unsupported
from fedsynth.federation.events import (
    Answer,
    ApprovalAnswer,
    Approve,
    BoxesAnswer,
    Event,
    KeysAnswer,
    MaskAnswer,
    PlainAnswer,
    ShareKeys,
    SharesAnswer,
    Unmask,
)
from fedsynth.federation.trust import SiteTurn, SumProtocol, Trust, roster_digest
from fedsynth.federation.wire import decode, encode
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers
from fedsynth.secure import masking
from fedsynth.secure.graph import COMPLETE, SECURITY_BITS, TRIES_BITS, SumGraph, layout
from fedsynth.secure.noise_shares import SEED_BYTES, NoiseShare, share_of
from fedsynth.secure.server import Aggregator
from fedsynth.secure.session import (
    BOX_BYTES,
    FRESH,
    MASK_SECRET,
    MASKED,
    PAIR_SEED,
    SELF_MASK,
    TURNS,
    Session,
    are_bytes,
    as_bytes,
    commitment,
    sign_keys,
)
from fedsynth.secure.shamir import NO_SHARE, SHARE_BYTES, split, to_bytes, uniform

KEY = "agreement key"
"""Purpose of the key of a run that a site agrees with others by, one X25519 for each pair and run."""

_Kept = TypeVar("_Kept", ShareKeys, MaskAnswer, Approve)


class _Held(NamedTuple):
    """What a site holds of a neighbour: shares of its two secrets, and the seed of the mask between the two."""

    self_mask: keys.SecretBytes
    mask_secret: keys.SecretBytes
    seed: keys.SecretBytes


@dataclass(frozen=True, eq=False)
class SecureSum(Trust, SumProtocol):
    """Trust model of secure aggregation: the server sees sums over sites, and no site's own answer.

    Each site adds its share of the noise before it masks its answer. The guarantee holds against the server together
    with all but ``min_honest`` sites of the federation. Each site adds noise for the fewest honest sites that can be
    left in a sum. Once the sites in the sum are known, noise that so many sites do not need is subtracted: a sum over s
    sites then has s / :meth:`honest` (s) times the variance of a trusted server's, more where some dropped out, and up
    to s times for small Gaussian noise and for Laplace noise of a scale above 4096, of which nothing is subtracted
    (:mod:`~fedsynth.secure.noise_shares`). Where so few take part that a site can count on nobody else, it adds the
    whole noise itself, as under :class:`~fedsynth.federation.local.LocalNoise`.

    Parameters
    ----------
    min_honest
        Number of sites that follow the protocol and do not collude with the server; ``None``: more than half of all.
    dropouts
        Number of sites of one sum that may fail before it is complete; ``None``: as many as the protocol can bear. The
        lower it is, the less noise sites add only for it to be subtracted later. Where a sum over more than 64 sites
        runs on a sparse graph (:meth:`layout`), that is made for so many failures, or for a twentieth of the members if
        ``None``: where more sites fail, the sum may fail too.
    roster
        Every site's name and public identity key. A simulation fills it in; a deployed site's policy holds its own
        copy.
    """

    min_honest: int | None = None
    dropouts: int | None = None
    roster: Mapping[str, bytes] = field(default_factory=dict)
    name: ClassVar[str] = "secure"
    confidential: ClassVar[bool] = False
    pooled: ClassVar[bool] = True
    turns: ClassVar[int] = len(TURNS)
    reads: ClassVar[int] = MASKED

    def __post_init__(self) -> None:
        if self.min_honest is not None and not (self.min_honest >= 1 and self.min_honest % 1 == 0):
            raise InvalidParameter(
                "min_honest must be a whole number of at least 1, since a site trusts itself, not "
                f"{self.min_honest} (--trust-set)"
            )
        if self.dropouts is not None and not (self.dropouts >= 0 and self.dropouts % 1 == 0):
            raise InvalidParameter(f"dropouts must be a whole number of at least 0, not {self.dropouts} (--trust-set)")
        if len(set(self.roster.values())) < len(self.roster):
            raise InvalidParameter("two sites of the roster share an identity key; each needs its own")
        if self.roster and self.colluding < 0:
            raise InvalidParameter(
                f"min_honest is {self.min_honest}, but the federation has only {len(self.roster)} sites; lower "
                "min_honest (--trust-set), or add sites"
            )

    @override
    def with_roster(self, roster: Mapping[str, bytes]) -> SecureSum:
        return replace(self, roster=dict(roster))

    @property
    def colluding(self) -> int:
        """Largest number of the federation's sites that may collude with the server; the others must be honest.

        Raises :class:`Unsupported` for a trust model that does not know the sites yet (:meth:`with_roster`).
        """
        if not self.roster:
            raise Unsupported("SecureSum has no roster; call with_roster(names and public identity keys of all sites)")
        size = len(self.roster)
        return size - (size // 2 + 1 if self.min_honest is None else self.min_honest)

    @property
    @override
    def assumption(self) -> str:
        size = len(self.roster)
        honest, found = f"at least {size - self.colluding} of the {size} sites are honest", self.layout(size)
        if found.complete:
            return honest
        return (
            f"{honest}; each shares masks with {found.degree} neighbours, so that a server which tries 2^{TRIES_BITS} "
            f"graphs of them learns more than the sum with probability 2^-{SECURITY_BITS}"
        )

    @cached_property
    @override
    def terms(self) -> str:
        """How many sites may collude and drop out, and the roster, as text that all members of a sum must agree on.

        Each member signs this text with its keys: each relies on the others' shares of noise, and on a roster in which
        nobody swapped a key. Whoever swaps one site's key at another has to keep all honest sites with an unchanged
        roster out of that site's sums.
        """
        dropouts = "as many as the protocol bears" if self.dropouts is None else self.dropouts
        roster = roster_digest(self.roster)
        return f"{self.colluding} of {len(self.roster)} may collude, {dropouts} may drop out, roster {roster}"

    def threshold(self, members: int) -> int:
        """Return t, how many of the ``members`` sites that begin a sum must stay in it to the end.

        On complete graphs (:meth:`layout`) t shares open a site's secret. If c of the members collude, 2t > members + c
        makes any two sets of t sites have an honest one in common. So no two sets of survivors, the sites whose answers
        are in the sum, can both find t signatures (Bonawitz et al. 2017, theorem 6.5).
        """
        least = self.quorum(members)
        return least if self.dropouts is None else max(least, members - self.dropouts)

    def quorum(self, members: int) -> int:
        """Return how many of ``members`` sites must sign the same survivors before a site gives shares of secrets.

        An honest site signs one set of survivors a session. Two sets with q signatures each would have 2q - members
        signers in common, at least, who signed both and thus collude; if c members collude and 2q > members + c, these
        would be more than c. So honest sites give shares for one set, if for any, and q = (members + c) // 2 + 1
        signatures are enough: nobody needs to see more. That does not depend on the graph, nor on who verified whose
        keys of this session: the survivors' signatures are verified by the identity keys of the roster.
        """
        return (members + min(self.colluding, members - 1)) // 2 + 1  # the site that asks this is honest

    def layout(self, members: int) -> SumGraph:
        """Return the graph by which the ``members`` sites of a sum share masks and secrets with their neighbours.

        It is complete up to :data:`COMPLETE` members, and sparse beyond where the bound on colluding sites allows for
        it (:func:`~fedsynth.secure.graph.layout`); it never bears more dropouts than :meth:`threshold` allows.
        """
        threshold = self.threshold(members)
        found = None
        if members > COMPLETE:
            dropouts = -(-members // 20) if self.dropouts is None else self.dropouts
            found = layout(members, min(self.colluding, members - 1), min(dropouts, members - threshold))
        return found or SumGraph(members, members - 1, threshold, members - threshold)

    def honest(self, sites: int) -> int:
        """Return the least number of honest sites among ``sites`` in a sum, 1 or more: an honest site counts itself."""
        return max(1, sites - self.colluding)

    def share(self, release: Release, norms: Norms, members: int) -> NoiseShare:
        """Return the share of the noise that each site adds in a sum that begins with ``members`` sites.

        It is enough for any number of sites that the sum can end with. Raises :class:`Unsupported` for a release that
        is not a noisy sum.
        """
        return share_of(release, norms, self.honest(self.threshold(members)), self.honest(members))

    @override
    def std(self, release: Release, norms: Norms, sites: int) -> float:
        share = self.share(release, norms, sites)
        return share.std(share.kept(self.honest(sites))) * math.sqrt(sites)

    @override
    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> Aggregator:
        self.share(release, norms, len(sites))  # some noise cannot be shared
        return Aggregator(
            digest,
            self.terms,
            self.roster,
            tuple(sites),
            self.threshold,
            self.quorum,
            self.layout,
            partial(self.share, release, norms),
            self.honest,
        )

    @override
    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        if not 0 <= turn < len(TURNS) or type(event) is not TURNS[turn].event:
            raise Refused(
                f"turn {turn} of a secure sum takes no such event; install the same fedsynth version everywhere"
            )
        match event:
            case ShareKeys():
                return self._share_keys(site, event)
            case MaskAnswer():
                return self._mask_answer(site, event)
            case Approve():
                return self._approve(site, event)
            case Unmask():
                return self._unmask(site, event)
            case None:
                announcement = _announcement(site)
                return KeysAnswer(
                    announcement, sign_keys(site.identity, site.digest, self.terms, site.name, announcement)
                )

    def _share_keys(self, site: SiteTurn, event: ShareKeys) -> BoxesAnswer:
        session = Session.read(event, site.digest, self.terms, self.layout)
        _check_member(site, session)
        session.verify(event, site.name, self.roster)
        _check_own_key(site, session)
        _take(site, "members or keys", event)
        neighbours = session.neighbours(site.name)
        points = [at + 1 for at in neighbours]
        shared = []
        for purpose in (SELF_MASK, MASK_SECRET):
            bits = site.bits(f"coefficients {purpose} {session.digest.hex()}")
            shared.append(split(_secret(site, session, purpose), points, uniform(bits, session.layout.threshold - 1)))
        private = site.run_key(KEY)
        pairs = [session.pair(private, site.name, session.members[at]) for at in neighbours]
        plains = [b"".join(map(to_bytes, shares)) for shares in zip(*shared, strict=True)]
        boxes = [keys.encrypted(pair.seals, plain) for pair, plain in zip(pairs, plains, strict=True)]
        seeds = as_bytes([pair.seed for pair in pairs], keys.KEY_BYTES)
        commitments = [commitment(pair.seed, PAIR_SEED) for pair in pairs]
        return BoxesAnswer(
            as_bytes(boxes, BOX_BYTES),
            session.crypt_seeds(_secret(site, session, MASK_SECRET), seeds, encrypt=True),
            as_bytes(commitments, keys.KEY_BYTES),
            as_bytes(
                [commitment(_secret(site, session, purpose), purpose) for purpose in (SELF_MASK, MASK_SECRET)],
                keys.KEY_BYTES,
            ),
        )

    def _session(self, site: SiteTurn, digest: bytes) -> Session:
        event = _taken(site, "members or keys", ShareKeys)
        session = Session.read(event, site.digest, self.terms, self.layout)
        if session.digest != digest:
            raise Refused("the session began with other members or keys; start another run")
        _check_own_key(site, session)
        return session

    def _open(self, site: SiteTurn, session: Session, event: MaskAnswer) -> dict[str, _Held]:
        """Return this site's secrets with every neighbour that sent boxes; without shares if a box does not open.

        Refuses boxes in the wrong number, without this site's own, and too few senders or boxes that open.
        """
        all_senders = session.at(event.senders, "senders")
        neighbours = session.neighbours(site.name)
        near = set(neighbours) & set(event.senders)
        senders = [session.members[at] for at in sorted(near)]
        if not are_bytes(event.boxes, len(senders), BOX_BYTES):
            raise Refused(f"the boxes of {len(senders)} senders must have {BOX_BYTES} bytes each")
        if site.name not in senders:
            raise Refused("this site's own box is missing; start another run")
        private = site.run_key(KEY)
        opened: dict[str, _Held] = {}
        good = 0
        boxes = event.boxes.tobytes()
        for start, sender in zip(range(0, len(boxes), BOX_BYTES), senders, strict=True):
            pair, plain = session.pair(private, site.name, sender), 2 * NO_SHARE
            with contextlib.suppress(Refused):
                key = pair.seals if sender == site.name else pair.unseals
                plain = keys.decrypted(key, boxes[start : start + BOX_BYTES])
                good += 1
            shares = keys.SecretBytes(plain[:SHARE_BYTES]), keys.SecretBytes(plain[SHARE_BYTES:])
            opened[sender] = _Held(*shares, pair.seed)
        _require(good, len(neighbours), session.layout.threshold)
        _require(len(all_senders), len(session.members), self.threshold(len(session.members)))
        return opened

    def _mask_answer(self, site: SiteTurn, event: MaskAnswer) -> PlainAnswer:
        session = self._session(site, event.session)
        senders = self._open(site, session, event)
        _take(site, "boxes", event)
        share = self.share(site.release, site.norms, len(session.members))  # may raise: before there is a charge
        total = share.add_to(site.statistic(), _seeds(site, session, range(len(share.parts)))).view(np.uint64)
        masking.mask(total, session.self_mask_key(_secret(site, session, SELF_MASK)), add=True)
        for sender, held in senders.items():
            if sender != site.name:
                masking.mask(total, held.seed, add=site.name < sender)
        return PlainAnswer(total.view(np.int64))

    def _approve(self, site: SiteTurn, event: Approve) -> ApprovalAnswer:
        """Sign the set of survivors: enough of the sites that sent shares, including this one."""
        session = self._session(site, event.session)
        senders = session.at(_taken(site, "boxes", MaskAnswer).senders, "senders")
        survivors = session.at(event.survivors, "survivors")
        required = self.threshold(len(session.members))
        if site.name not in survivors or not set(survivors) <= set(senders):
            raise Refused("the sum must include this site, and only sites that sent shares; start another run")
        if len(survivors) < required:
            raise Refused(
                f"{len(survivors)} of {len(session.members)} sites are left and this site requires {required}, "
                f"of which {self.colluding} may collude; restart the missing sites"
            )
        neighbours = session.neighbours(site.name)
        near, least = len(set(neighbours) & set(event.survivors)), session.layout.threshold
        if near < least:
            raise Refused(
                f"{near} of {len(neighbours)} neighbours are left, and {least} must be; restart the missing sites"
            )
        _take(site, "survivors", event)
        return ApprovalAnswer(session.approve(site.identity, survivors))

    def _unmask(self, site: SiteTurn, event: Unmask) -> SharesAnswer:
        session = self._session(site, event.session)
        survivors = session.at(_taken(site, "survivors", Approve).survivors, "survivors")
        self._check_approvals(session, event, survivors)
        opened = self._open(site, session, _taken(site, "boxes", MaskAnswer))
        inside = set(survivors)
        shares = [held.self_mask if sender in inside else held.mask_secret for sender, held in opened.items()]
        pairs = [held.seed for sender, held in opened.items() if sender not in inside]
        share = self.share(site.release, site.norms, len(session.members))
        excess = _seeds(site, session, range(share.kept(self.honest(len(survivors))), len(share.parts)))
        return SharesAnswer(
            bytes(_secret(site, session, SELF_MASK)),
            as_bytes(shares, SHARE_BYTES),
            as_bytes(pairs, keys.KEY_BYTES),
            as_bytes(excess, SEED_BYTES),
        )

    def _check_approvals(self, session: Session, event: Unmask, survivors: Sequence[str]) -> None:
        """Refuse unless enough different survivors signed exactly this set of survivors."""
        signers, required = session.at(event.signers, "signers"), self.quorum(len(session.members))
        if not are_bytes(event.approvals, len(signers), keys.SIGNATURE_BYTES):
            raise Refused(f"the approvals of {len(signers)} sites must have {keys.SIGNATURE_BYTES} bytes each")
        if len(signers) < required or not set(signers) <= set(survivors):
            raise Refused(f"{len(signers)} sites agreed on who is in the sum, and {required} must; start the run again")
        signed = keys.digest(*survivors)
        for signer, approval in zip(signers, event.approvals, strict=True):
            if not session.approved(self.roster[signer], approval.tobytes(), signed):
                raise Refused(
                    f"{signer!r} signed another list of the sites in the sum, so the server shows sites different "
                    "lists; ask the coordinator to explain this before another run"
                )


def _announcement(site: SiteTurn) -> bytes:
    """Return this site's public key of the run, and a commitment that differs between sessions with different salts."""
    return keys.public_key(site.run_key(KEY)) + commitment(site.key(FRESH), FRESH)


def _secret(site: SiteTurn, session: Session, purpose: str) -> bytes:
    """Return one of the two secrets that a site shares, :data:`SELF_MASK` or :data:`MASK_SECRET`, of one session.

    A site has one session per question. But an account restored from a backup may have forgotten it and start another
    one under the same salt. If both had the same secrets, the server could learn one in each session, and so both.
    """
    return site.key(f"{purpose} {session.digest.hex()}")


def _seeds(site: SiteTurn, session: Session, parts: range) -> list[bytes]:
    """Return the seeds of some parts of a site's noise, each independent of all others."""
    return [site.key(f"part {at} of the noise {session.digest.hex()}") for at in parts]


def _check_member(site: SiteTurn, session: Session) -> None:
    if site.name not in session.members:
        raise Refused("this site's key is missing or differs from the one that it sent; start another run")


def _check_own_key(site: SiteTurn, session: Session) -> None:
    _check_member(site, session)
    if session.announcement(site.name) != _announcement(site):
        raise Refused("this site's key is missing or differs from the one that it sent; start another run")


def _require(present: int, of: int, required: int) -> None:
    if present < required:
        raise Refused(
            f"this site can open the shares of {present} of {of} sites, and it requires {required}; restart the "
            "missing sites, and start the run again without those whose shares are broken"
        )


def _take(site: SiteTurn, part: str, event: Event) -> None:
    """Store an event durably, for as long as the session; refuse a different one for the same part."""
    said = encode(event)
    if site.first(part, said) != said:
        raise Refused(f"this session has continued with other {part}; start another run")


def _taken(site: SiteTurn, part: str, kind: type[_Kept]) -> _Kept:
    """Return the stored event; refuse if there is none yet."""
    said = site.said(part)
    if said is None:
        raise Refused(f"this session has no {part} yet; install the same fedsynth version everywhere")
    kept: _Kept = decode(said, kind)
    return kept
