"""Messages that go with a question in a trust model's protocol: events from the server, and the sites' answers.

A turn is one message to each site and its answer. A sum in one turn has no event and is answered by
:class:`PlainAnswer`.

A secure sum (Bonawitz et al., CCS 2017, doi 10.1145/3133956.3133982) takes five turns, each with one event (none in
turn 0) and one answer. Its members are the sites that answered turn 0, sorted by name; places are positions in this
list, and arrays of bytes (uint8) have one row for each member or neighbour that they are about, in the order of places.
A member's neighbours are those members with which it has masks in common (random numbers that one adds to its answer
and the other subtracts), and itself. It exchanges masks and boxes (encrypted shares) with them alone. A site has two
secrets in each sum, its self-mask and its mask secret, of which its neighbours get Shamir shares.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError

Bytes = NDArray[np.uint8]
Members = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(min_length=1, max_length=2**14)
]
Places = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**14)], ...], msgspec.Meta(max_length=2**14)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Secret = Digest
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class ProtocolMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Base class of the messages of a trust model's protocol: events (from the server) and answers (from a site).

    Their text is the name of their class alone: some hold exact counts, or secrets that only the server may see.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class ShareKeys(ProtocolMessage, frozen=True, tag="share-keys"):
    """Event of turn 1: all members' public keys, and who the receiver's neighbours are.

    ``announcements``, of shape (n, 64), hold each member's public key of the run (X25519) and its commitment
    (:class:`KeysAnswer`). ``neighbours`` are the places of the receiver's k neighbours; ``signatures``, of shape (k,
    64), are those members' signatures of their keys.
    """

    members: Members
    announcements: Bytes
    signatures: Bytes
    neighbours: Places


class MaskAnswer(ProtocolMessage, frozen=True, tag="mask-answer"):
    """Event of turn 2: the encrypted shares that the receiver's neighbours sent to it (:class:`BoxesAnswer`).

    ``session`` is the digest of the sum's members and keys, here and in later events. ``senders`` are the places of all
    that sent boxes. ``boxes``, of shape (s, 88), are those for the receiver, from its s neighbours among the senders.
    """

    session: Digest
    senders: Places
    boxes: Bytes


class Approve(ProtocolMessage, frozen=True, tag="approve"):
    """Event of turn 3: the places of the members whose masked answers are in the sum, to sign."""

    session: Digest
    survivors: Places


class Unmask(ProtocolMessage, frozen=True, tag="unmask"):
    """Event of turn 4: proof that enough members agree on who is in the sum.

    ``approvals``, of shape (k, 64), are the signatures (:class:`ApprovalAnswer`) of the members at the places
    ``signers``.
    """

    session: Digest
    signers: Places
    approvals: Bytes


class PlainAnswer(ProtocolMessage, frozen=True, tag="values"):
    """A site's answer as flat integers, shape ``(cells,)``: exact or noisy counts, or the candidates that it selected.

    In turn 2 of a secure sum, random masks are added to the answer, modulo 2^64.
    """

    values: NDArray[np.int64]


class DealtShares(ProtocolMessage, frozen=True, tag="dealt"):
    """A site's tables in secret shares for three compute servers: its answer to a request for a deposit.

    Each table is the sum of three shares (modulo 2^64), of which each server gets two. The first two shares are derived
    from one secret each. The third, encrypted under a third secret, is ``body``, and ``digest`` is the SHA-256 of
    ``body``. ``keys``, of shape (3, 112), are encrypted boxes, one for each server, with the secrets of its two shares.
    ``signature`` is the site's, of the boxes and the digest (:mod:`~fedsynth.servers.shares`).
    """

    keys: Bytes
    digest: Digest
    signature: Signature
    body: Bytes


class KeysAnswer(ProtocolMessage, frozen=True, tag="keys"):
    """Answer of turn 0: the site's public key of the run, and a commitment, signed.

    ``announcement`` is the key (X25519, 32 bytes) and the commitment (32 bytes). The commitment is a hash of a secret
    derived from the question and its salt; that secret is never revealed, and the commitment only makes sums with
    different salts distinct. ``signature`` is by the site's identity key, and binds both to the question and the trust
    model's terms.
    """

    announcement: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
    signature: Signature


class BoxesAnswer(ProtocolMessage, frozen=True, tag="boxes"):
    """Answer of turn 1: encrypted shares of the site's two secrets for its k neighbours.

    The first secret, the self-mask, gives the mask on the site's answer that it has in common with nobody; the second
    is the mask secret. ``boxes``, of shape (k, 88), are Shamir shares of both, encrypted for each neighbour. ``seeds``,
    of shape (k, 32), are the seeds of the masks that the site has in common with each neighbour; they are encrypted
    under the mask secret, so that they can be recovered if the site is lost. ``commitments``, of shape (k, 32), are
    hashes of these seeds, and ``secrets``, of shape (2, 32), hashes of the self-mask and of the mask secret.
    """

    boxes: Bytes
    seeds: Bytes
    commitments: Bytes
    secrets: Bytes


class ApprovalAnswer(ProtocolMessage, frozen=True, tag="approval"):
    """Answer of turn 3: the site's signature of the set of members in the sum."""

    approval: Signature


class SharesAnswer(ProtocolMessage, frozen=True, tag="shares"):
    """Answer of turn 4: secrets that remove masks and excess noise from the sum.

    ``own`` is the site's self-mask. ``shares``, of shape (s, 36), hold one share for each of the s neighbours that sent
    boxes: of the neighbour's self-mask if that neighbour is in the sum, else of its mask secret. ``pairs``, of shape
    (d, 32), are the seeds of the masks that the site has in common with the d neighbours that sent boxes but are not in
    the sum. ``noise``, of shape (p, 32), are the seeds of parts of the site's noise that are subtracted again: sites
    add enough noise for the fewest honest sites that could be left, and this sum has more.
    """

    own: Secret
    shares: Bytes
    pairs: Bytes
    noise: Bytes


Event = ShareKeys | MaskAnswer | Approve | Unmask
Answer = PlainAnswer | DealtShares | KeysAnswer | BoxesAnswer | ApprovalAnswer | SharesAnswer


def values_of(site: str, answer: Answer) -> NDArray[np.int64]:
    """Return the integers (int64, flat) in a site's ``answer``; raises :class:`FedsynthError` if it has none."""
    if not isinstance(answer, PlainAnswer) or answer.values.ndim != 1:
        raise FedsynthError(f"site {site} sent no numbers; install the same fedsynth version everywhere")
    return answer.values
