"""A sum that only comes out whole: sites mask their answers, and the masks cancel in the sum and nowhere else.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS
2017 (doi 10.1145/3133956.3133982, figure 4), with the parts against a malicious server. This file is a site's end,
`secure_session` the server's. One turn of messages for each round of the paper:

    0 keys     each site signs fresh public keys                                        (AdvertiseKeys)
    1 shares   each site seals a share of its two secrets for every other site          (ShareKeys)
    2 masked   each site sends answer + share of the noise + masks                      (MaskedInputCollection)
    3 agree    each site signs which sites' answers are in the sum                      (ConsistencyCheck)
    4 unmask   each site gives the shares that remove what is left of the masks         (Unmasking)

Rule 1: nobody but the members of the site's own roster takes part, each by keys signed with its identity (against a
    server that invents sites) and under the same terms. These numbers are the sites' own, never a request's.
Rule 2: everything derives from the site's secret and the question; the ledger holds the site to the first roster, the
    first set of senders and the first set of survivors that it was shown for it. So a site has one noise, one masked
    vector and one set of survivors a question: the same noise in two sums of different sites would give one site's
    vector away by their difference. A question that failed for good is asked anew as another question.
Rule 3: keys, boxes and signatures are bound to the question and the whole roster: sites that were shown different
    rosters cannot open each other's boxes.
Rule 4: of every member, a site gives either the share of the self-mask (its answer is in the sum) or the share of the
    key of its pairwise masks (it is not), never both; and only after enough others signed the same survivors.
Rule 5: the ledger is charged before the masked vector leaves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedsynth.errors import InvalidParameter, Refused, Unsupported
from fedsynth.federation.trust import Arrays, Counts, Desk
from fedsynth.federation.trust import masking as m
from fedsynth.federation.trust.roster import (
    AGREE,
    KEYS,
    MASKED,
    SHARES,
    Roster,
    as_bytes,
    byte_rows,
    commitment,
    indices,
)
from fedsynth.federation.trust.secure_session import SecureSession
from fedsynth.federation.trust.shamir import COEFFICIENT_BYTES, PRIME, SHARE_BYTES, split, to_bytes
from fedsynth.federation.trust.shares import add_share, share_std
from fedsynth.federation.wire import Request
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release, Sensitivity


@dataclass(frozen=True, eq=False)
class SecureSum:
    """The server sees sums over sites and nothing else; each site adds its share of the noise before it masks.

    The guarantee holds against the server together with all but ``min_honest`` sites of the roster. Noise is sized
    for the honest sites that are certain to be in a sum (:meth:`honest`), so a sum over s sites has s / honest times
    the variance of a trusted server's. Where so few take part that a site can count on nobody else, it adds the
    whole noise itself, as under :class:`LocalNoise`.

    Parameters
    ----------
    min_honest
        Sites of the roster that follow the protocol and do not work with the server; ``None``: more than half.
    dropouts
        Sites of one sum that may fail before it is complete; fewer make the noise smaller. ``None``: as many as the
        protocol can bear.
    roster
        Every site's name and public identity key (:func:`~fedsynth.federation.trust.masking.identity`). A simulation
        fills it in; a deployed site's policy holds its own copy.
    """

    min_honest: int | None = None
    dropouts: int | None = None
    roster: Mapping[str, bytes] = field(default_factory=dict)
    name: str = "secure"
    confidential: bool = False
    turns: int = 5

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        if self.min_honest is not None and self.min_honest < 1:
            raise InvalidParameter(f"min_honest must be at least 1, not {self.min_honest}: a site trusts itself")
        if self.dropouts is not None and self.dropouts < 0:
            raise InvalidParameter(f"dropouts must be at least 0, not {self.dropouts}")
        if len(set(self.roster.values())) < len(self.roster):
            raise InvalidParameter("two sites of the roster share an identity key; each needs its own")
        if self.roster and self.colluding < 0:
            raise InvalidParameter(f"min_honest is {self.min_honest}, of {len(self.roster)} sites in the roster")

    def among(self, roster: Mapping[str, bytes]) -> SecureSum:
        """Return the trust among these sites: their names and public identity keys."""
        return replace(self, roster=dict(roster))

    @property
    def colluding(self) -> int:
        """Sites of the roster that may work together with the server."""
        if not self.roster:
            raise Unsupported("SecureSum has no roster; call among(names and public identity keys of all sites)")
        size = len(self.roster)
        return size - (size // 2 + 1 if self.min_honest is None else self.min_honest)

    @property
    def assumption(self) -> str:
        """What the guarantee rests on, in words."""
        size = len(self.roster)
        return f"holds if at least {size - self.colluding} of the {size} sites are honest"

    @property
    def terms(self) -> str:
        """What all members must agree on: signed with the keys, since each relies on the others' shares of noise."""
        dropouts = "as many as the protocol bears" if self.dropouts is None else self.dropouts
        return f"{self.colluding} of {len(self.roster)} may collude, {dropouts} may drop out"

    def threshold(self, members: int) -> int:
        """Return how many of ``members`` sites must stay to the end, and how many shares open a secret.

        With c of them colluding, 2t > members + c makes any two sets of t sites share an honest one, so that no two
        sets of survivors can both find t signatures (the paper's theorem 6.5).
        """
        colluding = min(self.colluding, members - 1)  # the site that asks this is honest
        least = (members + colluding) // 2 + 1
        return least if self.dropouts is None else max(least, members - self.dropouts)

    def honest(self, members: int) -> int:
        """Return how many honest sites are certain to be in any sum that comes out of a session of ``members``."""
        return max(1, self.threshold(members) - self.colluding)

    def std(self, release: Release, sensitivity: Sensitivity, sites: int) -> float:
        """Return the noise's standard deviation in each cell of a sum that all of ``sites`` sites stay in."""
        return share_std(release, sensitivity, self.honest(sites)) * float(np.sqrt(sites))

    def session(
        self,
        request: Request,
        sites: Sequence[str],
        sensitivity: Sensitivity,
        bits: Callable[[Counts], RandomBits],
    ) -> SecureSession:
        """Return the server's end of one sum; the server adds no noise. Raises :class:`Unsupported` before it asks."""
        self.std(request.release, sensitivity, len(sites))  # some noise cannot be shared
        return SecureSession(
            request,
            tuple(sites),
            self.threshold,
            lambda members: share_std(request.release, sensitivity, self.honest(members)),
        )

    def vault(self, contributions: Iterable[Counts]) -> Counts:
        """Refuse: a secure sum opens sums, and holds nothing."""
        raise Unsupported("SecureSum opens sums only and has nobody to hold exact ones; use FLAIM, or TrustedServer")

    def answer(self, request: Request, desk: Desk) -> Arrays:
        """Return a site's message of one turn, or raise :class:`Refused`."""
        if request.turn == KEYS:
            return self._keys(request, desk)
        roster = self._roster(request, desk)
        if request.turn == SHARES:
            return self._shares(roster, desk)
        if request.turn == MASKED:
            return self._masked(request, roster, desk)
        if request.turn == AGREE:
            return self._agree(request, roster, desk)
        return self._unmask(request, roster, desk)

    def _keys(self, request: Request, desk: Desk) -> Arrays:
        """Turn 0: fresh public keys and a commitment to the self-mask, signed."""
        advert = _advert(desk)
        signature = m.sign(desk.identity, "keys", request.question, self.terms, desk.name, advert)
        return {"advert": as_bytes([advert])[0], "signature": as_bytes([signature])[0]}

    def _roster(self, request: Request, desk: Desk) -> Roster:
        """Return the session's members; refuse unless they are the site's own roster's, signed, and the first shown."""
        roster = Roster.read(request)
        if request.turn == SHARES:
            roster.verify(self.roster, self.terms)
            if desk.name not in roster.members or roster.advert(desk.name) != _advert(desk):
                raise Refused("the site's own key is missing or not the one that it sent; ask the sites again")
            _hold(desk, "roster", roster.digest)
        elif desk.said("roster") != roster.digest:
            raise Refused("the session began with another roster; ask anew, as another attempt or run")
        return roster

    def _shares(self, roster: Roster, desk: Desk) -> Arrays:
        """Turn 1: a box for every member, with its shares of the self-mask and of the key of the pairwise masks."""
        members = roster.members
        others = self.threshold(len(members)) - 1
        shared = [
            split(desk.key(purpose), len(members), _coefficients(desk, f"{purpose} {roster.digest.hex()}", others))
            for purpose in ("self mask", "mask key")
        ]
        channel = desk.key("channel key")
        boxes = []
        for at, member in enumerate(members):
            key = m.agree(channel, roster.channel_key(member), "box", roster.digest, desk.name, member)
            plain = b"".join(to_bytes(shares[at]) for shares in shared)
            boxes.append(m.seal(key, plain, roster.digest, desk.name, member))
        return {"boxes": as_bytes(boxes)}

    def _open(self, request: Request, roster: Roster, desk: Desk) -> dict[str, tuple[bytes, bytes]]:
        """Return every sender's two shares for this site; refuse boxes that are not theirs, or not enough of them."""
        senders = indices(request, "senders", roster)
        boxes = byte_rows(request, "boxes", len(senders), 2 * SHARE_BYTES + m.TAG_BYTES)
        if desk.name not in senders:
            raise Refused("this site's own box is missing; ask the sites again")
        if len(senders) < self.threshold(len(roster.members)):
            raise Refused(
                f"{len(senders)} of {len(roster.members)} sites sent shares and this site requires "
                f"{self.threshold(len(roster.members))}; bring the sites back"
            )
        channel = desk.key("channel key")
        opened = {}
        for member, box in zip(senders, boxes, strict=True):
            key = m.agree(channel, roster.channel_key(member), "box", roster.digest, member, desk.name)
            plain = m.unseal(key, box.tobytes(), roster.digest, member, desk.name)
            opened[member] = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
            if any(int.from_bytes(share) >= PRIME for share in opened[member]):
                raise Refused(f"a share of {member} is no element of the field; start the run again without it")
        _hold(desk, "senders", hashlib.sha256(boxes.tobytes()).digest() + json.dumps(senders).encode())
        return opened

    def _masked(self, request: Request, roster: Roster, desk: Desk) -> Arrays:
        """Turn 2: the answer with this site's share of the noise, under all masks."""
        senders = self._open(request, roster, desk)
        exact, sensitivity = desk.statistic()
        noisy = add_share(exact, request.release, sensitivity, self.honest(len(roster.members)), desk.bits("share"))
        total = noisy.astype(np.int64, copy=True).view(np.uint64)  # masked in place, and may be the task's own array
        m.add_mask(total, m.derive(desk.key("self mask"), "self mask", roster.digest))
        private = desk.key("mask key")
        for member in senders:
            if member != desk.name:
                apply = m.add_mask if desk.name < member else m.subtract_mask
                apply(total, roster.pair_key(private, desk.name, member))
        return {"values": total.view(np.int64)}

    def _survivors(self, request: Request, roster: Roster, desk: Desk) -> list[str]:
        """Return the sites that are to be in the sum; refuse any but enough of those that sent shares, and itself."""
        survivors = indices(request, "survivors", roster)
        required = self.threshold(len(roster.members))
        senders = _senders(desk)
        if desk.name not in survivors or not set(survivors) <= set(senders):
            raise Refused("only sites that sent shares can be in the sum, and this one must be; ask the sites again")
        if len(survivors) < required:
            raise Refused(
                f"{len(survivors)} of {len(roster.members)} sites are left and this site requires {required}, "
                f"of which {self.colluding} may collude; bring the sites back"
            )
        _hold(desk, "survivors", json.dumps(survivors).encode())
        return survivors

    def _agree(self, request: Request, roster: Roster, desk: Desk) -> Arrays:
        """Turn 3: this site's signature under the sites that are in the sum."""
        survivors = self._survivors(request, roster, desk)
        return {"approval": as_bytes([roster.approve(desk.identity, survivors)])[0]}

    def _unmask(self, request: Request, roster: Roster, desk: Desk) -> Arrays:
        """Turn 4: of each sender the share of its self-mask if it is in the sum, else of its pairwise masks' key."""
        survivors = self._survivors(request, roster, desk)
        roster.check_approvals(request, survivors, self.roster, self.threshold(len(roster.members)))
        opened = self._open(request, roster, desk)
        given = [shares[0] if member in survivors else shares[1] for member, shares in opened.items()]
        return {"shares": as_bytes(given)}


def _advert(desk: Desk) -> bytes:
    """Return this site's public keys for boxes and for masks, and the commitment to its self-mask."""
    keys = [m.public_key(desk.key(purpose)) for purpose in ("channel key", "mask key")]
    return b"".join([*keys, commitment(desk.key("self mask"))])


def _coefficients(desk: Desk, purpose: str, count: int) -> list[int]:
    data = desk.bits(f"coefficients {purpose}").words(count * COEFFICIENT_BYTES // 8).astype("<u8").tobytes()
    parts = [data[start : start + COEFFICIENT_BYTES] for start in range(0, len(data), COEFFICIENT_BYTES)]
    return [int.from_bytes(part) % PRIME for part in parts]


def _senders(desk: Desk) -> list[str]:
    held = desk.said("senders")
    if held is None:
        raise Refused("this site has sent nothing in this session; ask the sites again")
    senders: list[str] = json.loads(held[32:])
    return senders


def _hold(desk: Desk, part: str, value: bytes) -> None:
    """Refuse a second story of the same session."""
    if desk.first(part, value) != value:
        raise Refused(f"this session went on with other {part}; ask anew, as another attempt or run")
