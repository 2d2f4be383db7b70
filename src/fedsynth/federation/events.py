"""The messages of a turn besides the question: events from the server to sites, and the sites' answers.

A sum in one turn has no event and is answered by :class:`Values`. The five turns of a secure sum (Bonawitz et al., CCS
2017, doi 10.1145/3133956.3133982) have one event (none in turn 0) and one answer each. A site exchanges boxes and masks
with its neighbours alone; it counts as its own neighbour.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Members = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(min_length=1, max_length=2**14)
]
Places = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**14)], ...], msgspec.Meta(max_length=2**14)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Secret = Digest
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Common base of all events and answers."""


class ShareKeys(Message, frozen=True, tag="share-keys"):
    """Turn 1: everybody's public keys, ``adverts`` (n, 64), of sorted ``members``.

    ``neighbours`` are the positions of the k members with which the receiver exchanges boxes and masks, itself
    included; ``signatures`` (k, 64) are those members' signatures.
    """

    members: Members
    adverts: Bytes
    signatures: Bytes
    neighbours: Places


class MaskAnswer(Message, frozen=True, tag="mask-answer"):
    """Turn 2, to a member of the ``session`` (digest): the members that sent boxes, and the boxes for it, (s, 88).

    The boxes are those of the receiver's neighbours among the members at ``senders``.
    """

    session: Digest
    senders: Places
    boxes: Bytes


class Approve(Message, frozen=True, tag="approve"):
    """Turn 3: the positions of the members whose masked answers are in the sum."""

    session: Digest
    survivors: Places


class Unmask(Message, frozen=True, tag="unmask"):
    """Turn 4: a quorum of signatures (k, 64) of the survivors, by the members at ``signers``."""

    session: Digest
    signers: Places
    approvals: Bytes


class Values(Message, frozen=True, tag="values"):
    """An answer's integers, flat; masked ones in a secure sum."""

    values: NDArray[np.int64]


class Dealt(Message, frozen=True, tag="dealt"):
    """A site's tables for three servers: ``keys`` (3, 112), the two secrets of each server, sealed for it; signed.

    ``body`` is the third share, encrypted under a secret that two of the servers have, ``digest`` its SHA-256; the
    other shares are made of secrets alone.
    """

    keys: Bytes
    digest: Digest
    signature: Signature
    body: Bytes


class Keys(Message, frozen=True, tag="keys"):
    """Turn 0 of a secure sum: the run's public key, and a commitment that the question's salt decides; signed."""

    advert: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
    signature: Signature


class Boxes(Message, frozen=True, tag="boxes"):
    """Turn 1, a row for every neighbour: a box (k, 88) that holds a share of each of the sender's two secrets.

    ``seeds`` (k, 32) are the seeds of the masks that the sender shares with the neighbours, encrypted under its mask
    secret; ``commitments`` (k, 32) are to these seeds, and ``secrets`` (2, 32) to the self-mask and to the mask secret.
    """

    boxes: Bytes
    seeds: Bytes
    commitments: Bytes
    secrets: Bytes


class Approval(Message, frozen=True, tag="approval"):
    """Turn 3: a signature of the set of survivors."""

    approval: Signature


class Shares(Message, frozen=True, tag="shares"):
    """Turn 4: the secrets that remove the masks and the excess noise from the total.

    ``own`` is the site's own self-mask. ``shares`` (s, 36) hold a share for each neighbouring sender: of its self-mask
    if it is in the sum, else of its mask secret. ``pairs`` (d, 32) are the seeds of the masks that the site shares with
    senders outside the sum. ``noise`` (p, 32) are the seeds of those parts of its noise that the number of survivors
    makes unnecessary.
    """

    own: Secret
    shares: Bytes
    pairs: Bytes
    noise: Bytes


Event = ShareKeys | MaskAnswer | Approve | Unmask
Answer = Values | Dealt | Keys | Boxes | Approval | Shares
