"""Requests and replies as files: their names, their frames, and their signatures.

Rule 1: a file is one frame: a magic string, the content's length and SHA-256, and the content. Tools that carry files
    may copy them piece by piece, so the reader waits until a frame is complete. The checksum only tells a half-copied
    file from a complete one; it proves nothing else.
Rule 2: the content is a signature and the encoded struct that it signs. The coordinator signs a request, together with
    its site, its name and the last row that the coordinator saw of the site's audit trail (the numbered record of what
    the site was asked); the site's identity key signs a reply. A reply names the digest of the request's struct, so
    an older reply to the same message is not mistaken for the one to this file.
Rule 3: a name is used once. A message that is sent again after it was refused or given up gets another ``attempt``, so
    no request is ever overwritten, and an old refusal cannot come back. A site replaces only replies in the folder that
    are incomplete or not its own.
Rule 4: that a run has ended is told in the file RUN.end among the requests, and acknowledged in RUN.ended among the
    replies (:mod:`~fedsynth.federation.ending`); both are frames as well, and carry signatures of their own.
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
"""Largest number of bytes by which a file exceeds the message in it."""
_REQUEST = b"fedsynth request file 1\n"  # unlike the start of a request's body, whose bytes 4 to 7 are zero
_REPLY = b"fedsynth reply   file 1\n"
_NOTICE = b"fedsynth notice file  1\n"
_FRAME = struct.Struct("<24sQ32s")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME = re.compile(
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\.(?P<step>[0-9]{6,10})\.(?P<turn>[0-9]{1,4})"
    r"\.(?P<digest>[0-9a-f]{32})\.(?P<attempt>[0-9a-f]{16})"
)


class Unfinished(WireError):
    """Raised for a file that is incomplete (partly copied or truncated) or of another format; read it again later."""


class RequestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Content of a request file, signed by the coordinator: one ``message`` for one site.

    ``fedsynth`` is the server's version, ``site`` the site's name, ``name`` the file's own name without its ending
    (:class:`MessageName`), and ``message`` the request's bytes (uint8;
    :func:`~fedsynth.federation.wire.open_envelope`).
    """

    fedsynth: Annotated[str, msgspec.Meta(max_length=64)]
    site: Annotated[str, msgspec.Meta(max_length=64)]
    name: Annotated[str, msgspec.Meta(max_length=160)]
    message: Bytes


class ReplyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """Content of a reply file, signed by the site.

    ``site`` is the site's name, ``request`` the digest (SHA-256) of the encoded :class:`RequestFile` that it answers,
    and ``message`` the reply's bytes (uint8; :func:`~fedsynth.federation.wire.read_reply`).
    """

    site: Annotated[str, msgspec.Meta(max_length=64)]
    request: Digest
    message: Bytes


# ---------------------------------------------------------------------------------------------------------------------
# Names


@dataclass(frozen=True)
class MessageName:
    """The name of a request or reply file without its ending: which message of which run it holds.

    ``run`` is the run's name, ``step`` numbers the run's questions and ``turn`` the messages of a question, both from
    0, and ``digest`` is the first half of the message's digest (32 hex digits). ``attempt`` (16 random hex digits)
    gives a message that is sent again another file name; it is empty in a name that stands for all files of a message.
    """

    run: str
    step: int
    turn: int
    digest: str
    attempt: str = ""

    @classmethod
    def of(cls, request: Request) -> MessageName:
        """Return the name for the message of a request, with an empty ``attempt``."""
        return cls(request.head.run, request.head.step, request.turn, request.digest[:32])

    @classmethod
    def parse(cls, stem: str) -> MessageName | None:
        """Return the name that ``stem`` spells, a file's name without its ending; ``None`` for any other text."""
        found = _NAME.fullmatch(stem)
        if found is None:
            return None
        name = cls(found["run"], int(found["step"]), int(found["turn"]), found["digest"], found["attempt"])
        return name if str(name) == stem else None

    def __str__(self) -> str:
        """Return the stem; it has at most 136 characters, which every file system allows."""
        return f"{self.run}.{self.step:06d}.{self.turn}.{self.digest}.{self.attempt}"

    @property
    def request(self) -> str:
        """File name of the request: this name and ``.request``."""
        return f"{self}.request"

    @property
    def reply(self) -> str:
        """File name of the reply: this name and ``.reply``."""
        return f"{self}.reply"

    @property
    def without_attempt(self) -> MessageName:
        """The same name with an empty ``attempt``: equal for all files of one message, which may be sent again."""
        return replace(self, attempt="")

    @property
    def said(self) -> str:
        """The message as words for logs, such as ``run r1, step 3, turn 0``."""
        return f"run {self.run}, step {self.step}, turn {self.turn}"


def named(file: str) -> MessageName | None:
    """Return the parts of the name of a request or reply file; ``None`` if ``file`` is the name of any other file."""
    stem, _, kind = file.rpartition(".")
    return MessageName.parse(stem) if kind in ("request", "reply") else None


def run_of(file: str) -> str:
    """Return the run whose end a file among the requests tells, by its name; empty for any other name."""
    run, _, kind = file.rpartition(".")
    return run if kind == "end" and _RUN.fullmatch(run) else ""


# ---------------------------------------------------------------------------------------------------------------------
# Contents


def write_request(
    coordinator: Coordinator, version: str, site: str, name: MessageName, message: bytes
) -> tuple[bytes, bytes]:
    """Return the bytes of a request file, and the digest (SHA-256, 32 bytes) of its struct, which the reply must name.

    ``coordinator`` has the key that signs it; ``version`` is the server's version of fedsynth, ``site`` the site's
    name, ``name`` the file's name, and ``message`` the request as sent to a site
    (:func:`~fedsynth.federation.wire.seal_envelope`).
    """
    body = encode(RequestFile(version, site, str(name), np.frombuffer(message, dtype=np.uint8)))
    return _frame(_REQUEST, coordinator.sign(_REQUEST + body), body), _digest(body)


def read_request(data: bytes, coordinator: bytes) -> tuple[RequestFile, bytes]:
    """Return the content of a request file, and that struct's digest (SHA-256, 32 bytes), which the reply must name.

    ``data`` are the file's bytes; ``coordinator`` (64 bytes) holds the coordinator's public keys. Raises
    :class:`Unfinished` for an incomplete file, and :class:`WireError` for one that this coordinator did not sign.
    """
    signature, body = _unframe(_REQUEST, data)
    if not signed_by(coordinator, signature, _REQUEST + body):
        raise WireError("it is not signed by the coordinator that site.toml names")
    content: RequestFile = decode(body, RequestFile)
    return content, _digest(body)


def write_reply_file(identity: bytes, site: str, request: bytes, message: bytes) -> bytes:
    """Return the bytes of a reply file, signed with the site's identity key, whose seed is ``identity`` (32 bytes).

    ``site`` is the site's name, ``request`` the digest (32 bytes) that :func:`read_request` returned, ``message`` the
    site's reply.
    """
    body = encode(ReplyFile(site, request, np.frombuffer(message, dtype=np.uint8)))
    return _frame(_REPLY, masking.sign(identity, "reply file", _digest(body)), body)


def read_reply_file(data: bytes, key: bytes) -> ReplyFile:
    """Return the content of a reply file, which the owner of the public identity key ``key`` must have signed.

    ``data`` are the file's bytes; ``key`` is the site's (Ed25519, 32 bytes). Raises :class:`Unfinished` for an
    incomplete file, and :class:`WireError` for one that the site did not sign.
    """
    signature, body = _unframe(_REPLY, data)
    if not masking.verified(key, signature, "reply file", _digest(body)):
        raise WireError("it is not signed by the site's identity key in [deployment.peers]")
    content: ReplyFile = decode(body, ReplyFile)
    return content


def write_notice(data: bytes) -> bytes:
    """Return the bytes of a file with the end of a run, or with a site's acknowledgement of it (``data``)."""
    return _frame(_NOTICE, b"", data)


def read_notice(file: bytes) -> bytes:
    """Return what :func:`write_notice` put into a file; raises :class:`Unfinished` for an incomplete or other file."""
    signature, body = _unframe(_NOTICE, file)
    return signature + body


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _frame(magic: bytes, signature: bytes, body: bytes) -> bytes:
    checksum = hashlib.sha256(signature + body).digest()
    return b"".join([_FRAME.pack(magic, len(signature) + len(body), checksum), signature, body])


def _unframe(magic: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the signature and the signed bytes of a complete file."""
    if len(data) < _FRAME.size + SIGNATURE:
        raise Unfinished("it is incomplete; it is read again later")
    found, length, checksum = _FRAME.unpack_from(data)
    content = data[_FRAME.size :]
    if found != magic or len(content) != length or hashlib.sha256(content).digest() != checksum:
        raise Unfinished("it is incomplete, or not a file of this version; it is read again later")
    return content[:SIGNATURE], content[SIGNATURE:]
