"""Requests and replies as files: their names, their frames, and the signatures that they carry.

Rule 1: a file is a frame: a magic, the content's length and SHA-256, the content. Carriers copy in pieces; a frame that
    is not whole is waited for. The checksum tells a half-copied file from a whole one and proves nothing else.
Rule 2: the content is a signature and the encoded struct that it signs. Requests are signed by the coordinator, site,
    name and last-seen audit row included; replies by the identity key of the site. A reply names the digest of the
    signed request file, so that an older reply to the same message is not taken for it.
Rule 3: a name is used once. A message that is asked again after it was turned down or given up has another ``attempt``,
    so that no carrier has to overwrite a file, and none can bring an old refusal back.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np

from fedsynth.federation.coordinator import Coordinator, signed_by
from fedsynth.federation.events import Bytes, Digest
from fedsynth.federation.trust.secure import masking
from fedsynth.federation.wire import SIGNATURE, Request, WireError, decode, encode

OVERHEAD = 4096
"""Bytes by which a file is longer than the message in it, at most."""
_REQUEST = b"fedsynth request file 1\n"  # not as the body of a request begins: its bytes 4 to 7 are zero
_REPLY = b"fedsynth reply   file 1\n"
_FRAME = struct.Struct("<24sQ32s")
_NAME = re.compile(
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\.(?P<step>[0-9]{6,10})\.(?P<turn>[0-9]{1,4})"
    r"\.(?P<digest>[0-9a-f]{32})\.(?P<attempt>[0-9a-f]{16})"
)


class Unfinished(WireError):
    """An incomplete file: partly copied, truncated, or of another format."""


class RequestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Content of a request file, signed by the coordinator: a ``message`` for one site, with the file's name."""

    fedsynth: Annotated[str, msgspec.Meta(max_length=64)]
    site: Annotated[str, msgspec.Meta(max_length=64)]
    name: Annotated[str, msgspec.Meta(max_length=160)]
    message: Bytes


class ReplyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Content of a reply file, signed by the site: its reply to the ``request`` file (digest, :func:`read_request`)."""

    site: Annotated[str, msgspec.Meta(max_length=64)]
    request: Digest
    message: Bytes


# ---------------------------------------------------------------------------------------------------------------------
# Names


@dataclass(frozen=True)
class Name:
    """Parts of a file's name: run, step, turn, the first half of the message's digest, and the attempt."""

    run: str
    step: int
    turn: int
    digest: str
    attempt: str = ""

    @classmethod
    def of(cls, request: Request) -> Name:
        """Return the name of a message, without an attempt."""
        return cls(request.head.run, request.head.step, request.turn, request.digest[:32])

    @classmethod
    def parse(cls, stem: str) -> Name | None:
        """Return the name that a file's stem is; ``None`` for any other text."""
        found = _NAME.fullmatch(stem)
        if found is None:
            return None
        name = cls(found["run"], int(found["step"]), int(found["turn"]), found["digest"], found["attempt"])
        return name if str(name) == stem else None

    def __str__(self) -> str:
        """Return the stem, of at most 136 characters, which every file system takes."""
        return f"{self.run}.{self.step:06d}.{self.turn}.{self.digest}.{self.attempt}"

    @property
    def request(self) -> str:
        """The request's file name."""
        return f"{self}.request"

    @property
    def reply(self) -> str:
        """The reply's file name."""
        return f"{self}.reply"

    @property
    def without_attempt(self) -> Name:
        """The name of the message, whichever attempt it is."""
        return replace(self, attempt="")

    @property
    def said(self) -> str:
        """The message in words."""
        return f"run {self.run}, step {self.step}, turn {self.turn}"


def named(file: str) -> Name | None:
    """Return the name of a request's or a reply's file; ``None`` for every other file."""
    stem, _, kind = file.rpartition(".")
    return Name.parse(stem) if kind in ("request", "reply") else None


# ---------------------------------------------------------------------------------------------------------------------
# Contents


def write_request(coordinator: Coordinator, version: str, site: str, name: Name, message: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a request file, and the digest (32 bytes) that its reply names."""
    body = encode(RequestFile(version, site, str(name), np.frombuffer(message, dtype=np.uint8)))
    return _frame(_REQUEST, coordinator.sign(_REQUEST + body), body), _digest(body)


def read_request(data: bytes, coordinator: bytes) -> tuple[RequestFile, bytes]:
    """Return the content of a request file, and the digest that its reply names.

    ``coordinator`` (64 bytes) are the public keys of who may ask. Raises :class:`Unfinished` for a file that is not
    whole, :class:`WireError` for one that nobody of that key signed.
    """
    signature, body = _unframe(_REQUEST, data)
    if not signed_by(coordinator, signature, _REQUEST + body):
        raise WireError("it is not signed by the coordinator that site.toml names")
    content: RequestFile = decode(body, RequestFile)
    return content, _digest(body)


def write_reply_file(identity: bytes, site: str, request: bytes, message: bytes) -> bytes:
    """Return the bytes of a reply file, signed by the seed of the site's identity key."""
    body = encode(ReplyFile(site, request, np.frombuffer(message, dtype=np.uint8)))
    return _frame(_REPLY, masking.sign(identity, "reply file", _digest(body)), body)


def read_reply_file(data: bytes, key: bytes) -> ReplyFile:
    """Return the content of a reply file that the site of this public identity key signed.

    Raises :class:`Unfinished` for a file that is not whole, :class:`WireError` for one that the site did not sign.
    """
    signature, body = _unframe(_REPLY, data)
    if not masking.verified(key, signature, "reply file", _digest(body)):
        raise WireError("it is not signed by the site's identity key, as [deployment.peers] has it")
    content: ReplyFile = decode(body, ReplyFile)
    return content


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _frame(magic: bytes, signature: bytes, body: bytes) -> bytes:
    checksum = hashlib.sha256(signature + body).digest()
    return b"".join([_FRAME.pack(magic, len(signature) + len(body), checksum), signature, body])


def _unframe(magic: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return signature and signed bytes of a whole file."""
    if len(data) < _FRAME.size + SIGNATURE:
        raise Unfinished("it is not whole")
    found, length, checksum = _FRAME.unpack_from(data)
    content = data[_FRAME.size :]
    if found != magic or len(content) != length or hashlib.sha256(content).digest() != checksum:
        raise Unfinished("it is not whole, or not a file of this version")
    return content[:SIGNATURE], content[SIGNATURE:]
