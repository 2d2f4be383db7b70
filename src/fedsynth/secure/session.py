"""The session of one secure aggregation, on which all parties agree: turns, members with their keys, and survivors.

Rule 1: an event is checked against the number of members and the widths stated here before it is used. Rule 2:
:attr:`Session.digest` covers the question, the terms, and every member's name and keys; keys, boxes and
    approvals are bound to it, so that nothing fits together between sites that were shown different sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsynth import keys
from fedsynth.errors import Refused
from fedsynth.federation.events import (
    ApprovalAnswer,
    Approve,
    BoxesAnswer,
    Bytes,
    KeysAnswer,
    MaskAnswer,
    PlainAnswer,
    ShareKeys,
    SharesAnswer,
    Unmask,
)
from fedsynth.secure import masking
from fedsynth.secure.graph import SumGraph, neighbours
from fedsynth.secure.shamir import SHARE_BYTES


class Turn(NamedTuple):
    """A turn of secure aggregation: the types of the server's message and of the site's answer.

    ``event`` is ``NoneType`` in the first turn, in which the question goes alone; ``name`` names the turn in messages.
    """

    event: type
    answer: type
    name: str


KEYS, SHARES, MASKED, AGREE, UNMASK = range(5)
TURNS = (
    Turn(type(None), KeysAnswer, "keys"),
    Turn(ShareKeys, BoxesAnswer, "boxes"),
    Turn(MaskAnswer, PlainAnswer, "masked answer"),
    Turn(Approve, ApprovalAnswer, "approval"),
    Turn(Unmask, SharesAnswer, "shares"),
)
"""The protocol, in order; the table of states is in the package's docstring."""

SELF_MASK, MASK_SECRET, PAIR_SEED, FRESH = "self mask", "mask secret", "pair seed", "session"
"""Purposes of the secrets of one sum, under which they are derived and committed to."""


class PairSecrets(NamedTuple):
    """Secrets (32 bytes each) that two sites derive for one secure sum, so that nobody else knows them.

    ``seed`` gives the mask that one of them adds to its answer and the other subtracts. ``seals`` encrypts the box that
    this site sends to the other, ``unseals`` opens the one that it gets.
    """

    seed: keys.SecretBytes
    seals: keys.SecretBytes
    unseals: keys.SecretBytes


ANNOUNCEMENT_BYTES = 2 * keys.KEY_BYTES
BOX_BYTES = 2 * SHARE_BYTES + keys.TAG_BYTES


def commitment(secret: bytes, purpose: str) -> bytes:
    """Return a hash (32 bytes) that commits a site to a ``secret``, so that a wrong one is detected later.

    ``purpose`` says what the secret is for. The protocol of Bonawitz et al. (2017) has no such commitments.
    """
    return keys.digest(purpose, secret)


def sign_keys(identity: bytes, question: str, terms: str, site: str, announcement: bytes) -> bytes:
    """Return a site's signature (64 bytes) of its public keys for one sum, so that no server can invent sites.

    It covers the digest (hex) of the question, the ``terms`` that all members must agree on, the site's name, and what
    it announces: its X25519 key of the run and a commitment, 64 bytes together. ``identity`` is the seed of its signing
    key.
    """
    return keys.sign(identity, "keys", question, terms, site, announcement)


def check_keys(
    identities: Mapping[str, bytes], question: str, terms: str, site: str, announcement: bytes, signature: bytes
) -> None:
    """Raise :class:`Refused` unless ``site`` signed its keys by :func:`sign_keys`, and its X25519 key is usable.

    ``identities`` holds the public identity keys of all known sites by name; ``site`` must be one of them.
    """
    if site not in identities:
        raise Refused(f"{site!r} is not in the roster; add it to the roster, or run without it")
    if not keys.verified(identities[site], signature, "keys", question, terms, site, announcement):
        raise Refused(
            f"the keys of {site!r} are not signed by its identity in the roster under the terms {terms!r}; compare "
            "rosters and terms"
        )
    if not keys.usable(announcement[: keys.KEY_BYTES]):
        raise Refused(f"the public key of {site!r} is invalid; start the run again without that site")


def are_bytes(array: Any, rows: int, width: int) -> bool:
    """Whether ``array`` is an array of ``rows`` byte strings of ``width`` bytes: uint8 of shape (rows, width)."""
    return isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape == (rows, width)


def as_bytes(parts: Sequence[bytes], width: int) -> Bytes:
    """Return byte strings of ``width`` bytes each as an array, uint8 of shape (strings, width)."""
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(parts), width)


@dataclass(frozen=True, eq=False)
class Session:
    """The session of one secure sum, on which all its parties agree: the question, the members and their public keys.

    ``question`` is the digest (hex) of the question; ``terms`` are the settings that all members must share;
    ``members`` are the sites' names in alphabetical order, and ``layout`` gives the graph by which they share masks and
    secrets. ``announcements``, uint8 of shape (members, 64), holds what each member announced
    (:class:`~fedsynth.federation.events.KeysAnswer`). A member's commitment depends on its random salt for the
    question, so that a member which draws another salt is in another session.
    """

    question: str
    terms: str
    members: tuple[str, ...]
    announcements: Bytes
    layout: SumGraph

    @classmethod
    def read(cls, event: ShareKeys, question: str, terms: str, layout: Callable[[int], SumGraph]) -> Session:
        """Return the session that the server's ``event`` of turn 1 starts at a site; signatures are not verified yet.

        ``question`` and ``terms`` are the site's own, and ``layout(number)`` gives the graph for so many members.
        Raises :class:`Refused` for a malformed event.
        """
        members = event.members
        if not members or list(members) != sorted(set(members)):
            raise Refused(
                "the members of a session must be different site names in alphabetical order; install the same "
                "fedsynth everywhere"
            )
        if not are_bytes(event.announcements, len(members), ANNOUNCEMENT_BYTES):
            raise Refused(f"the keys of {len(members)} members must have {ANNOUNCEMENT_BYTES} bytes each")
        return cls(question, terms, members, event.announcements, layout(len(members)))

    def event(self, site: str, signatures: Mapping[str, bytes]) -> ShareKeys:
        """Return the server's event of turn 1 for a member; ``signatures`` holds those of all members' keys by name."""
        neighbours = self.neighbours(site)
        signed = [signatures[self.members[at]] for at in neighbours]
        return ShareKeys(self.members, self.announcements, as_bytes(signed, keys.SIGNATURE_BYTES), neighbours)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the question, the terms, and all members' names and keys, which identifies the sum."""
        return keys.digest("session", self.question, self.terms, *self.members, self._announcements)

    def verify(self, event: ShareKeys, site: str, identities: Mapping[str, bytes]) -> None:
        """Raise :class:`Refused` unless the ``event`` that starts the session is one that ``site`` may take part in.

        All members must be in ``identities`` (public identity keys by name), the neighbours must be those that
        :meth:`neighbours` gives, and they must have signed their keys. The proof in `graph` shows that the neighbours'
        signatures suffice.
        """
        for member in self.members:
            if member not in identities:
                raise Refused(f"{member!r} is not in the roster; add it to the roster, or run without it")
        neighbours = self.neighbours(site)
        if event.neighbours != neighbours:
            raise Refused(
                "the neighbours are not those that the members' keys give this site; install the same fedsynth version"
            )
        if not are_bytes(event.signatures, len(neighbours), keys.SIGNATURE_BYTES):
            raise Refused(f"the signatures of {len(neighbours)} sites must have {keys.SIGNATURE_BYTES} bytes each")
        for at, signature in zip(neighbours, event.signatures, strict=True):
            member = self.members[at]
            check_keys(identities, self.question, self.terms, member, self.announcement(member), signature.tobytes())

    @cached_property
    def _places(self) -> dict[str, int]:
        return {member: at for at, member in enumerate(self.members)}

    def places(self, sites: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of ``sites``, which must be members, in :attr:`members`."""
        return tuple(self._places[site] for site in sites)

    def at(self, places: Sequence[int], what: str) -> list[str]:
        """Return the names of the sites at the positions ``places`` in :attr:`members`.

        Raises :class:`Refused`, in which ``what`` names them, for repeated, unsorted or unknown positions.
        """
        if list(places) != sorted(set(places)) or not all(0 <= at < len(self.members) for at in places):
            raise Refused(f"{what} must be different positions among the session's members, in order")
        return [self.members[at] for at in places]

    def neighbours(self, member: str) -> tuple[int, ...]:
        """Return the sorted positions of a member's neighbours and of itself, which hold the shares of its secrets."""
        return neighbours(self.digest, self._places[member], self.layout)

    def announcement(self, member: str) -> bytes:
        """Return what a member of the sum announced."""
        start = ANNOUNCEMENT_BYTES * self._places[member]
        return self._announcements[start : start + ANNOUNCEMENT_BYTES]

    @cached_property
    def _announcements(self) -> bytes:
        return self.announcements.tobytes()

    def pair(self, private: bytes, owner: str, other: str) -> PairSecrets:
        """Return the secrets that only the members ``owner`` and ``other`` can derive in this secure sum.

        ``private`` is the owner's secret key of the run (X25519, 32 bytes). The three secrets are independent of each
        other and of those of every other sum of the run. Raises :class:`Refused` if the other's public key is invalid.
        """
        first, second = (owner, other) if owner < other else (other, owner)
        public = self.announcement(other)[: keys.KEY_BYTES]
        agreed = keys.agree(private, public, "pair", self.digest, first, second, keys=3)
        seed, one, two = (keys.SecretBytes(agreed[at : at + keys.KEY_BYTES]) for at in range(0, 96, keys.KEY_BYTES))
        return PairSecrets(seed, one, two) if owner == first else PairSecrets(seed, two, one)

    def self_mask_key(self, secret: bytes) -> bytes:
        """Return the key of a site's self-mask, the mask that no other site subtracts, from the secret behind it."""
        return keys.derive(secret, "self mask", self.digest)

    def crypt_seeds(self, secret: bytes, seeds: Bytes, *, encrypt: bool) -> Bytes:
        """Encrypt the seeds of a site's pairwise masks under its mask secret, or decrypt them if ``encrypt`` is false.

        ``seeds`` and the result are uint8 of shape (neighbours, 32). The key stream made from the secret is used for
        these seeds alone: a site has one mask secret a session, and one set of neighbours.
        """
        words = seeds.reshape(-1).copy().view("<u8")
        masking.mask(words, keys.derive(secret, "seeds", self.digest), add=encrypt)
        return words.view(np.uint8).reshape(seeds.shape)

    def approve(self, identity: bytes, survivors: Sequence[str]) -> bytes:
        """Return one site's signature of the list of ``survivors``; ``identity`` is the seed of its signing key."""
        return keys.sign(identity, "survivors", self.digest, keys.digest(*survivors))

    def approved(self, public: bytes, approval: bytes, survivors: bytes) -> bool:
        """Whether the owner of ``public`` signed (:meth:`approve`) the survivors of whose names this is the digest."""
        return keys.verified(public, approval, "survivors", self.digest, survivors)
