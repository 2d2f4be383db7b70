"""What travels in a turn beside the question: events to sites, and the answers that sites give; data alone.

A sum under one message has no event, and :class:`Values` for an answer. The five turns of a secure sum (Bonawitz et
al., CCS 2017, doi 10.1145/3133956.3133982) have one event and one answer each. Events name a member's neighbours and
answers carry seeds of noise shares, so that sparser graphs and the removal of excess noise need no other messages.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Members = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(min_length=1, max_length=2**14)]
Places = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**14)], ...], msgspec.Meta(max_length=2**14)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class Event_(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """What all events and answers have in common: nothing but their form."""


class ShareKeys(Event_, tag="share-keys"):
    """Turn 1, to members: everybody's signed public keys, ``adverts`` (n, 96) and ``signatures`` (n, 64)."""

    members: Members
    adverts: Bytes
    signatures: Bytes


class MaskAnswer(Event_, tag="mask-answer"):
    """Turn 2: the boxes for this site (s, width), from the senders at ``senders`` in the roster with ``roster`` digest."""

    roster: Digest
    senders: Places
    boxes: Bytes


class Approve(Event_, tag="approve"):
    """Turn 3: the members whose masked answers are in the sum."""

    roster: Digest
    survivors: Places


class Unmask(Event_, tag="unmask"):
    """Turn 4: the ``signers`` that approved these survivors, their ``approvals`` (n, 64), and the boxes once more."""

    roster: Digest
    survivors: Places
    signers: Places
    approvals: Bytes
    senders: Places
    boxes: Bytes


class Values(Event_, tag="values"):
    """An answer's integers, flat; masked ones in a secure sum."""

    values: NDArray[np.int64]


class Keys(Event_, tag="keys"):
    """Turn 0 of a secure sum: public keys with the commitment to the self-mask (96 bytes), signed."""

    advert: Annotated[bytes, msgspec.Meta(min_length=96, max_length=96)]
    signature: Signature


class Boxes(Event_, tag="boxes"):
    """Turn 1: a box for every member, (n, width)."""

    boxes: Bytes


class Approval(Event_, tag="approval"):
    """Turn 3: a signature under the survivors."""

    approval: Signature


class Shares(Event_, tag="shares"):
    """Turn 4: of each sender the share that takes its masks off, (s, 33)."""

    shares: Bytes


Event = ShareKeys | MaskAnswer | Approve | Unmask
Answer = Values | Keys | Boxes | Approval | Shares
