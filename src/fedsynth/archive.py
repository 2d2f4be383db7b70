"""Zip archives of JSON and arrays: the format of saved models and of a site's copies of encoded rows (never a pickle).

The head, ``head.json``, is a JSON object that also says which arrays there are, each with dtype, shape and memory
order; every other member holds the bytes of one of them. Time stamps are fixed and names sorted, so equal content has
equal bytes.

Archives come from strangers, so nothing is unpacked before its size is known and bounded. Rule 1: members are stored or
deflated; deflated ones have at most ``MOST_DEFLATED`` bytes together once unpacked, and the head at most ``MOST_HEAD``;
stored ones together no more bytes than the archive. (Larger content is stored.) Rule 2: there are no other members than
the head and the arrays that it names, each once, and an array's member has the length that dtype and shape give. Rule
3: a member is read in parts and never beyond its length, whatever its compressed bytes would unpack to.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError

MOST_DEFLATED = 1 << 25  # bytes of all deflated members, unpacked
MOST_HEAD = 1 << 20  # bytes of a deflated head, unpacked: JSON takes up to 30 times its length in memory
_PART = 1 << 16  # bytes unpacked at a time
_EPOCH = (1980, 1, 1, 0, 0, 0)
_HEAD = "head.json"
_ARRAYS = "arrays"  # entry of the head

_Length = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class _Layout(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Type, shape and memory order of an array."""

    dtype: Literal["<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1"]
    shape: Annotated[tuple[_Length, ...], msgspec.Meta(max_length=32)]
    order: Literal["C", "F"]

    @property
    def length(self) -> int:
        """Number of bytes of the array."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class _Head(msgspec.Struct, frozen=True):
    """What reading an archive needs to know of its head."""

    arrays: dict[str, _Layout]


def pack(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, compress: bool = True) -> bytes:
    """Return the bytes of a zip archive with JSON values (none of the name "arrays") and arrays of integers or floats.

    Without ``compress``, the length depends on ``meta`` and on the names, shapes and dtypes of the arrays, never on the
    values in them. Raises ``ValueError`` for an array of another dtype and for NaN or infinity in ``meta``, and
    ``TypeError`` for other values that JSON lacks.
    """
    layouts = {name: _layout(name, array) for name, array in arrays.items()}
    head = {**meta, _ARRAYS: {name: msgspec.to_builtins(layout) for name, layout in layouts.items()}}
    text = json.dumps(head, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    deflated = sum(layout.length for layout in layouts.values()) <= MOST_DEFLATED - MOST_HEAD
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compresslevel=1) as archive:

        def add(name: str, content: bytes, most: int) -> None:
            how = zipfile.ZIP_DEFLATED if compress and deflated and len(content) <= most else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, how)

        add(_HEAD, text, MOST_HEAD)
        for name in sorted(arrays):
            content = np.asarray(arrays[name], layouts[name].dtype).tobytes(layouts[name].order)
            add(name, content, MOST_DEFLATED)
    return buffer.getvalue()


def _layout(name: str, array: NDArray[Any]) -> _Layout:
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    found = [array.dtype.newbyteorder("<").str, list(array.shape), order]
    try:
        return msgspec.convert(found, _Layout)
    except msgspec.ValidationError as error:
        raise ValueError(f"the array {name!r} has dtype {array.dtype}; convert it to integers or floats") from error


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what :func:`pack` put into the archive ``data``: the JSON values, and the arrays by name.

    Nothing in it is ever executed. The memory needed is bounded by the archive's length and by the module's limits,
    whatever lengths the archive declares. Raises :class:`FedsynthError` for bytes that are no such archive, or a
    damaged one. Values in the arrays may be anything, NaN included: readers check them.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _unpacked(archive, len(data))
    except Exception as error:  # of zipfile, zlib, msgspec, NumPy: whatever hostile bytes make them raise
        raise FedsynthError(
            f"not a fedsynth archive ({error}); pass a file written by fedsynth, such as model.fedsynth of a run"
        ) from error


def _unpacked(archive: zipfile.ZipFile, length: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    members = {info.filename: info for info in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise ValueError("a member occurs twice")
    if any(info.flag_bits & 1 or info.is_dir() for info in members.values()):
        raise ValueError("a member is encrypted or a folder")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members.values()):
        raise ValueError("a member is neither stored nor deflated")
    stored = [info.file_size for info in members.values() if info.compress_type == zipfile.ZIP_STORED]
    deflated = [info.file_size for info in members.values() if info.compress_type == zipfile.ZIP_DEFLATED]
    if sum(stored) > length or sum(deflated) > MOST_DEFLATED:
        raise ValueError("its members are too large for its length")
    head = members.pop(_HEAD)
    if head.compress_type == zipfile.ZIP_DEFLATED and head.file_size > MOST_HEAD:
        raise ValueError("its head is too large")
    text = bytes(_read(archive, head))
    layouts = msgspec.json.decode(text, type=_Head).arrays
    if set(layouts) != set(members):
        raise ValueError("its members are not the arrays that its head names")
    if wrong := sorted(name for name, layout in layouts.items() if members[name].file_size != layout.length):
        raise ValueError(f"the length of {wrong[0]!r} does not fit its shape")
    meta: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    del meta[_ARRAYS]
    arrays = {
        name: np.ndarray(layout.shape, layout.dtype, _read(archive, members[name]), order=layout.order)
        for name, layout in layouts.items()
    }
    return meta, arrays


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytearray:
    """Return a member's content, of the length that it declares; its checksum is compared at its end."""
    content, at = bytearray(member.file_size), 0
    with archive.open(member) as source:
        while part := source.read(_PART):
            content[at : at + len(part)] = part
            at += len(part)
    if at != member.file_size:
        raise ValueError(f"{member.filename!r} is shorter than it declares")
    return content
