"""Packs requests and replies as bytes into Flower's records, and reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from flwr.app import ConfigRecord, RecordDict

from fedsynth.errors import FedsynthError

ASK = "query"  # Flower's type of all messages to sites, which do not look at it
NO_APP = "server and sites run the fedsynth that they have installed"  # what the app that Flower wants names as code
BUSY = 4001  # a site's error while it answers a message of another run, beside Flower's own error codes
_FRESH = 16  # random bytes before each piece
_PIECE = 1 << 22  # bytes of a piece: what one request of Flower's carries
_LENGTH = 8  # bytes of a part's length, before it
_BYTES = "bytes"


def pack(name: str, parts: Sequence[bytes]) -> RecordDict:
    """Return a Flower record with the byte strings ``parts`` under ``name``, in order.

    Flower sends each record of a message in a request of its own, beside two for what holds them: so all parts go in
    one record, or one for each 4 MiB. Random bytes precede each: Flower knows an object by its hash alone, and would
    delete what an ended run sent from under another run that sends the same.
    """
    content = b"".join(len(part).to_bytes(_LENGTH, "big") + part for part in parts)
    pieces = [content[start : start + _PIECE] for start in range(0, max(1, len(content)), _PIECE)]
    return RecordDict(
        {f"{name}-{at:06d}": ConfigRecord({_BYTES: os.urandom(_FRESH) + piece}) for at, piece in enumerate(pieces)}
    )


def unpack(name: str, content: RecordDict) -> Iterator[bytes]:
    """Yield the byte strings that :func:`pack` put into a Flower record under ``name``, in order.

    Raises ``KeyError`` if there are none, and :class:`FedsynthError` for other content.
    """
    records = content.config_records
    keys = sorted(key for key in records if key.startswith(f"{name}-"))
    if not keys:
        raise KeyError(name)
    whole = bytearray()
    for key in keys:
        piece = records[key].get(_BYTES)
        if not isinstance(piece, bytes):
            raise _unreadable(name)
        whole += piece[_FRESH:]
    start = 0
    while start < len(whole):
        begin = start + _LENGTH
        start = begin + int.from_bytes(whole[start:begin], "big")
        if start > len(whole):
            raise _unreadable(name)
        yield bytes(whole[begin:start])


def _unreadable(name: str) -> FedsynthError:
    return FedsynthError(f"the {name} in a message are not whole; install the same fedsynth everywhere")
