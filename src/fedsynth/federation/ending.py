"""The end of a run, which the coordinator tells the sites, and their acknowledgements of it.

Both hold no rows, cost nothing, and travel like a question and its reply. A site that gets the end of a run closes it:
its stored replies, salts and copy of the rows are deleted, and it is answered nothing more. The message is signed for
this purpose alone, so that neither a relay nor another coordinator can end a run; told again, or told of a run that the
site does not know, it changes nothing. An acknowledgement is signed by the site.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec

from fedsynth import keys
from fedsynth.federation.events import Digest
from fedsynth.federation.question import Name
from fedsynth.federation.wire import SIGNATURE, WireError, decode, encode
from fedsynth.keys import PUBLIC_BYTES, Keys, verified

LARGEST = 4096
"""Most bytes of an end or of an acknowledgement."""
_END = b"fedsynth end of a run 1\n"  # unlike a request's first bytes, which are the length of its head
_ENDED = b"fedsynth run was ended 1\n"


class RunEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the message: the ``run`` of this name has ended; ``coordinator`` are the signer's public keys."""

    run: Name
    coordinator: Annotated[bytes, msgspec.Meta(min_length=PUBLIC_BYTES, max_length=PUBLIC_BYTES)]


class RunEnded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of an acknowledgement: ``site`` has taken the message of which ``end`` is the SHA-256 (32 bytes)."""

    site: Annotated[str, msgspec.Meta(max_length=64)]
    end: Digest


def write_end(coordinator: Keys, run: str) -> bytes:
    """Return the message, the same for all sites, by which ``coordinator`` tells that ``run`` has ended."""
    body = encode(RunEnd(run, coordinator.public))
    return _END + coordinator.sign(_END, body) + body


def is_end(data: bytes) -> bool:
    """Whether a message is meant to tell the end of a run, by its first bytes; any other one is a question."""
    return data.startswith(_END)


def read_end(data: bytes, coordinator: bytes) -> RunEnd:
    """Return the content of a message made by :func:`write_end`.

    Raises :class:`WireError` unless the owner of the public keys ``coordinator`` (64 bytes) signed it.
    """
    signature, body = _parts(_END, data)
    if not verified(coordinator, signature, _END, body):
        raise WireError("the end of a run is incomplete, or not signed by the coordinator that this site answers")
    content: RunEnd = decode(body, RunEnd)
    if content.coordinator != coordinator:
        raise WireError("the end of a run names another coordinator than the one that signed it")
    return content


def write_acknowledgement(identity: bytes, site: str, end: bytes) -> bytes:
    """Return the acknowledgement of the message ``end`` by ``site``; ``identity`` is the seed of its identity key."""
    body = encode(RunEnded(site, hashlib.sha256(end).digest()))
    return _ENDED + keys.sign(identity, _ENDED, body) + body


def acknowledges(data: bytes, end: bytes, site: str, key: bytes) -> bool:
    """Whether ``data`` is the acknowledgement by ``site`` of the message ``end``, signed with its identity ``key``."""
    try:
        signature, body = _parts(_ENDED, data)
        content: Any = decode(body, RunEnded)
    except WireError:
        return False
    if (content.site, content.end) != (site, hashlib.sha256(end).digest()):
        return False
    return keys.verified(key, signature, _ENDED, body)


def _parts(magic: bytes, data: bytes) -> tuple[bytes, bytes]:
    start = len(magic) + SIGNATURE
    if not data.startswith(magic) or not start < len(data) <= LARGEST:
        raise WireError("the message does not tell the end of a run; install the same fedsynth everywhere")
    return data[len(magic) : start], data[start:]
