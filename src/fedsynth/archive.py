"""Zip archives of JSON and arrays: the format of saved models and of a site's copies of encoded rows (never a pickle).

Time stamps are fixed and names sorted, so equal content has equal bytes if arrays have the same memory order.
"""

from __future__ import annotations

import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,  # of bz2
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_META = "meta.json"


def pack(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, compress: bool = True) -> bytes:
    """Return the bytes of a zip archive with JSON values and arrays, to save a model or encoded rows.

    ``meta`` holds JSON values and ``arrays`` NumPy arrays by name (any shape and numeric dtype). Without ``compress``,
    the length depends on ``meta`` and on the names, shapes and dtypes of the arrays, never on the values in them.
    Raises ``ValueError`` for an array of objects and for NaN or infinity in ``meta``, and ``TypeError`` for other
    values that JSON lacks.
    """
    buffer = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", how, compresslevel=1) as archive:
        text = json.dumps(meta, sort_keys=True, allow_nan=False, separators=(",", ":"))
        archive.writestr(zipfile.ZipInfo(_META, _EPOCH), text, how)
        for name in sorted(arrays):
            item = io.BytesIO()
            np.save(item, arrays[name], allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), item.getvalue(), how)
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what :func:`pack` put into the archive ``data``: the JSON values, and the arrays by name.

    Nothing in it is ever executed. Raises :class:`FedsynthError` for bytes that are no such archive, or a damaged one.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            meta = json.loads(archive.read(_META))
            arrays = {
                name.removesuffix(".npy"): np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
                if name != _META
            }
    except _DAMAGE as error:
        raise FedsynthError(
            f"not a fedsynth archive ({error}); pass a file written by fedsynth, such as model.fedsynth of a run"
        ) from error
    return meta, arrays
