"""What all sites of one secure sum must agree on: who takes part, by which keys, and who stayed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Refused
from fedsynth.federation.trust import masking
from fedsynth.federation.wire import Request

KEYS, SHARES, MASKED, AGREE, UNMASK = range(5)
"""The turns of a secure sum."""

ADVERT_BYTES = 3 * masking.KEY_BYTES


def as_bytes(parts: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return byte strings of equal length as an array, shape (strings, length)."""
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(parts), -1)


def commitment(self_mask: bytes) -> bytes:
    """Return what binds a site to the secret of its self-mask, so that a wrong share is noticed (not in the paper)."""
    return hashlib.sha256(b"fedsynth self mask" + self_mask).digest()


@dataclass(frozen=True, eq=False)
class Roster:
    """The members of one session, sorted, with their signed keys: ``adverts`` (n, 96) and ``signatures`` (n, 64)."""

    question: str
    members: tuple[str, ...]
    adverts: NDArray[np.uint8]
    signatures: NDArray[np.uint8]

    @classmethod
    def read(cls, request: Request) -> Roster:
        """Return the roster that a request brings; refuse one that is none."""
        members = request.stage.get("members")
        if not isinstance(members, list) or not members or members != sorted({str(member) for member in members}):
            raise Refused("the members of a session must be different names, in order")
        adverts = byte_rows(request, "adverts", len(members), ADVERT_BYTES)
        signatures = byte_rows(request, "signatures", len(members), masking.SIGNATURE_BYTES)
        return cls(request.question, tuple(members), adverts, signatures)

    @property
    def stage(self) -> dict[str, Any]:
        """The public data that every later turn carries."""
        return {"members": list(self.members), "adverts": self.adverts, "signatures": self.signatures}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the question, names and keys: what keys, boxes and approvals are bound to."""
        sha = hashlib.sha256(f"{self.question} {len(self.members)}".encode())
        for member in self.members:
            sha.update(len(member.encode()).to_bytes(8) + member.encode())
        sha.update(self.adverts.tobytes())
        return sha.digest()

    def verify(self, identities: Mapping[str, bytes], terms: str) -> None:
        """Refuse a member that ``identities`` do not name, or that signed no such keys, question and terms."""
        for member, signature in zip(self.members, self.signatures, strict=True):
            if member not in identities:
                raise Refused(f"{member!r} is not in this site's roster; add it there, or ask without it")
            signed = ("keys", self.question, terms, member, self.advert(member))
            if not masking.verified(identities[member], signature.tobytes(), *signed):
                raise Refused(
                    f"the keys of {member!r} are not signed by the identity in this site's roster under the terms "
                    f"{terms!r}; compare rosters and terms"
                )

    def advert(self, member: str) -> bytes:
        """Return a member's public keys and commitment."""
        advert: bytes = self.adverts[self.members.index(member)].tobytes()
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

    def pair_key(self, private: bytes, owner: str, other: str) -> bytes:
        """Return the key of the mask that ``owner`` (of the private key) and ``other`` share."""
        first, second = sorted((owner, other))
        return masking.agree(private, self.mask_key(other), "pairwise mask", self.digest, first, second)

    def approve(self, identity: bytes, survivors: Sequence[str]) -> bytes:
        """Return the signature of one site under the sites that are in the sum."""
        return masking.sign(identity, "survivors", self.digest, *survivors)

    def check_approvals(
        self, request: Request, survivors: Sequence[str], identities: Mapping[str, bytes], required: int
    ) -> None:
        """Refuse unless ``required`` different survivors signed these very survivors."""
        signers = indices(request, "signers", self)
        approvals = byte_rows(request, "approvals", len(signers), masking.SIGNATURE_BYTES)
        if len(signers) < required or not set(signers) <= set(survivors):
            raise Refused(f"{len(signers)} sites agreed on who is in the sum and {required} must; ask them again")
        for member, signature in zip(signers, approvals, strict=True):
            if not masking.verified(identities[member], signature.tobytes(), "survivors", self.digest, *survivors):
                raise Refused(f"{member!r} did not agree on these survivors; the server shows sites different ones")


def byte_rows(request: Request, name: str, rows: int, width: int) -> NDArray[np.uint8]:
    """Return an array of a stage, shape (rows, width); refuse anything else."""
    array = request.stage.get(name)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.shape != (rows, width):
        raise Refused(f"{name} must be {rows} times {width} bytes; install the same fedsynth version everywhere")
    return array


def indices(request: Request, name: str, roster: Roster) -> list[str]:
    """Return the members that a list of positions stands for; refuse repeated, unsorted and unknown ones."""
    positions = request.stage.get(name)
    if (
        not isinstance(positions, list)
        or not all(type(at) is int and 0 <= at < len(roster.members) for at in positions)
        or positions != sorted(set(positions))
    ):
        raise Refused(f"{name} must be different positions in the session's roster, in order")
    return [roster.members[at] for at in positions]
