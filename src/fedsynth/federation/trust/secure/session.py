"""What all parties of one secure aggregation agree on: the turns, the members with their keys, and who stayed.

Rule 1: an event is checked against the number of members and the widths stated here before anything is done with it.
Rule 2: :attr:`Session.digest` covers the question, the terms, and every member's name and keys; keys, boxes and
    approvals are bound to it, so that nothing fits together between sites that were shown different sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsynth.errors import Refused
from fedsynth.federation.events import (
    Approval,
    Approve,
    Boxes,
    Bytes,
    Keys,
    MaskAnswer,
    ShareKeys,
    Shares,
    Unmask,
    Values,
)
from fedsynth.federation.trust.secure import masking
from fedsynth.federation.trust.secure.shamir import SHARE_BYTES


class Turn(NamedTuple):
    """A turn of the protocol: the event that a site gets (none in the first), and its answer."""

    event: type
    answer: type
    name: str


KEYS, SHARES, MASKED, AGREE, UNMASK = range(5)
TURNS = (
    Turn(type(None), Keys, "keys"),
    Turn(ShareKeys, Boxes, "boxes"),
    Turn(MaskAnswer, Values, "masked answer"),
    Turn(Approve, Approval, "approval"),
    Turn(Unmask, Shares, "shares"),
)
"""The protocol, in order; the table of states is in the package's docstring."""

ADVERT_BYTES = 3 * masking.KEY_BYTES
BOX_BYTES = 2 * SHARE_BYTES + masking.TAG_BYTES


def commitment(self_mask: bytes) -> bytes:
    """Return what binds a site to the secret of its self-mask, so that a wrong one is noticed (not in the paper)."""
    return masking.digest("self mask", self_mask)


def sign_keys(identity: bytes, question: str, terms: str, site: str, advert: bytes) -> bytes:
    """Return a site's signature under its public keys, for one question under the terms."""
    return masking.sign(identity, "keys", question, terms, site, advert)


def check_keys(
    identities: Mapping[str, bytes], question: str, terms: str, site: str, advert: bytes, signature: bytes
) -> None:
    """Refuse a site that ``identities`` do not name, that signed no such keys, question and terms, or unusable keys."""
    if site not in identities:
        raise Refused(f"{site!r} is not in the roster; add it there, or ask without it")
    if not masking.verified(identities[site], signature, "keys", question, terms, site, advert):
        raise Refused(
            f"the keys of {site!r} are not signed by its identity in the roster under the terms {terms!r}; compare "
            "rosters and terms"
        )
    if not all(masking.usable(advert[start : start + masking.KEY_BYTES]) for start in (0, masking.KEY_BYTES)):
        raise Refused(f"the public keys of {site!r} are unusable; ask the sites again, without it")


def are_bytes(array: Any, rows: int, width: int) -> bool:
    """Whether an array has ``rows`` strings of ``width`` bytes."""
    return isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape == (rows, width)


def as_bytes(parts: Sequence[bytes], width: int) -> Bytes:
    """Return byte strings of ``width`` bytes as an array, shape (strings, width)."""
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(parts), width)


@dataclass(frozen=True, eq=False)
class Session:
    """The members of one sum, sorted, with their signed keys: ``adverts`` (n, 96) and ``signatures`` (n, 64)."""

    question: str
    terms: str
    members: tuple[str, ...]
    adverts: Bytes
    signatures: Bytes

    @classmethod
    def read(cls, event: ShareKeys, question: str, terms: str) -> Session:
        """Return the session that an event begins; refuse an event that is malformed."""
        members = event.members
        if not members or list(members) != sorted(set(members)):
            raise Refused("the members of a session must be different names, in order")
        if not are_bytes(event.adverts, len(members), ADVERT_BYTES):
            raise Refused(f"the keys of {len(members)} members must have {ADVERT_BYTES} bytes each")
        if not are_bytes(event.signatures, len(members), masking.SIGNATURE_BYTES):
            raise Refused(f"the signatures of {len(members)} members must have {masking.SIGNATURE_BYTES} bytes each")
        if event.neighbours != tuple(range(len(members))):
            raise Refused("every member must be a neighbour of every other; install the same fedsynth version")
        return cls(question, terms, members, event.adverts, event.signatures)

    @property
    def event(self) -> ShareKeys:
        """What begins the session at a site."""
        return ShareKeys(self.members, self.adverts, self.signatures, tuple(range(len(self.members))))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the question, the terms, names and keys."""
        return masking.digest("session", self.question, self.terms, *self.members, self.adverts.tobytes())

    def verify(self, identities: Mapping[str, bytes]) -> None:
        """Refuse members that ``identities`` do not name, or that signed no such keys."""
        for member, signature in zip(self.members, self.signatures, strict=True):
            check_keys(identities, self.question, self.terms, member, self.advert(member), signature.tobytes())

    @cached_property
    def _places(self) -> dict[str, int]:
        return {member: at for at, member in enumerate(self.members)}

    def places(self, sites: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of members."""
        return tuple(self._places[site] for site in sites)

    def at(self, places: Sequence[int], what: str) -> list[str]:
        """Return the members at positions; refuse repeated, unsorted and unknown ones."""
        if list(places) != sorted(set(places)) or not all(0 <= at < len(self.members) for at in places):
            raise Refused(f"{what} must be different positions among the session's members, in order")
        return [self.members[at] for at in places]

    def advert(self, member: str) -> bytes:
        """Return a member's public keys and commitment."""
        advert: bytes = self.adverts[self._places[member]].tobytes()
        return advert

    def channel_key(self, member: str) -> bytes:
        """Return the public key that boxes for a member are sealed with."""
        return self.advert(member)[: masking.KEY_BYTES]

    def mask_key(self, member: str) -> bytes:
        """Return the public key that a member's pairwise masks come from."""
        return self.advert(member)[masking.KEY_BYTES : 2 * masking.KEY_BYTES]

    def committed(self, member: str) -> bytes:
        """Return a member's commitment to its self-mask."""
        return self.advert(member)[2 * masking.KEY_BYTES :]

    def seal(self, private: bytes, sender: str, receiver: str, plain: bytes) -> bytes:
        """Return the sender's box for the receiver; ``private`` is the sender's channel key."""
        key = masking.agree(private, self.channel_key(receiver), "box", self.digest, sender, receiver)
        return masking.seal(key, plain, self.digest, sender, receiver)

    def unseal(self, private: bytes, sender: str, receiver: str, box: bytes) -> bytes:
        """Return what a box holds; ``private`` is the receiver's channel key. Refuse a box that does not open."""
        key = masking.agree(private, self.channel_key(sender), "box", self.digest, sender, receiver)
        return masking.unseal(key, box, self.digest, sender, receiver)

    def self_mask_key(self, secret: bytes) -> bytes:
        """Return the key of the mask that comes from the secret of a self-mask."""
        return masking.derive(secret, "self mask", self.digest)

    def pair_key(self, private: bytes, owner: str, other: str) -> bytes:
        """Return the key of the mask that ``owner`` (of the private key) and ``other`` share."""
        first, second = sorted((owner, other))
        return masking.agree(private, self.mask_key(other), "pairwise mask", self.digest, first, second)

    def approve(self, identity: bytes, survivors: Sequence[str]) -> bytes:
        """Return the signature of one site under the sites that are in the sum."""
        return masking.sign(identity, "survivors", self.digest, *survivors)

    def approved(self, public: bytes, approval: bytes, survivors: Sequence[str]) -> bool:
        """Whether the owner of an identity signed these survivors."""
        return masking.verified(public, approval, "survivors", self.digest, *survivors)
