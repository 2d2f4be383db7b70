"""The masks of a secure sum: 64-bit words of a cipher stream, added modulo 2^64, so that a masked number is uniform.

The cipher is AES-256-CTR of the `cryptography` package; a mask's key serves that mask alone (:mod:`fedsynth.keys`).
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_CHUNK = 1 << 14  # words: stream and sum stay in the second-level cache
_ZEROS = bytes(8 * _CHUNK)


def mask(total: NDArray[np.uint64], key: bytes, *, add: bool) -> None:
    """Add the mask of ``key`` to ``total`` in place, modulo 2^64; with ``add`` false, subtract it.

    The mask is the AES-256-CTR stream of ``key`` (32 secret bytes), one 64-bit word for each element of ``total``.
    """
    operation = np.add if add else np.subtract
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    size = min(_CHUNK, total.size)
    buffer = bytearray(8 * size + 15)  # update_into asks for a block more than it fills
    words = np.frombuffer(buffer, dtype="<u8", count=size)
    zeros = memoryview(_ZEROS)
    for start in range(0, total.size, _CHUNK):
        part = total[start : start + _CHUNK]
        stream.update_into(zeros[: 8 * part.size], buffer)
        operation(part, words[: part.size], out=part)
