"""Packs requests and replies as bytes into Flower's records, and reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError

ASK = "query"  # Flower's type of all messages to sites, which do not look at it
NO_APP = "server and sites run the fedsynth that they have installed"  # what the app that Flower wants names as code
BUSY = 4001  # a site's error while it answers a message of another run, beside Flower's own error codes
_FRESH = 16  # random bytes before each part


def pack(name: str, parts: Sequence[bytes]) -> RecordDict:
    """Return a Flower record with the byte strings ``parts`` under ``name``, in order, as arrays of bytes.

    Random bytes precede each part: Flower knows an object by its hash alone, and would delete what an ended run sent
    from under another run that sends the same.
    """
    arrays = {
        f"{at:06d}": Array(np.frombuffer(os.urandom(_FRESH) + part, dtype=np.uint8)) for at, part in enumerate(parts)
    }
    return RecordDict({name: ArrayRecord(arrays)})


def unpack(name: str, content: RecordDict) -> Iterator[bytes]:
    """Yield the byte strings that :func:`pack` put into a Flower record under ``name``, in order.

    Raises ``KeyError`` if there are none, and :class:`FedsynthError` for parts that are not bytes.
    """
    record = content.array_records[name]
    for key in sorted(record):
        part: NDArray[np.uint8] = record[key].numpy()
        if part.dtype != np.uint8 or part.ndim != 1 or len(part) < _FRESH:
            raise FedsynthError(
                f"a part of {name} is not bytes ({part.dtype}, {part.ndim} dimensions); install the same fedsynth "
                "everywhere"
            )
        yield part[_FRESH:].tobytes()
