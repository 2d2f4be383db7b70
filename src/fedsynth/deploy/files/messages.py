"""Requests and replies as files: their names, and the frame and the signature of a request.

Rule 1: tools that carry files may copy them piece by piece, so a reader waits until a file is complete. A request file
    is one frame: a magic string, the content's length and SHA-256, and the content. The checksum only tells a
    half-copied file from a complete one; it proves nothing else.
Rule 2: the content of a request file is a signature of the coordinator and the encoded struct that it signs, the
    request together with its site and the file's name. A reply file holds the reply as the site signed it
    (:func:`~fedsynth.federation.wire.open_reply`): a signature that holds shows that it is complete.
Rule 3: a name is used once. A message that is sent again after it was refused or given up gets another ``attempt``, so
    no request is ever overwritten. A site replaces only replies in the folder that are incomplete or not its own.
Rule 4: that a run has ended is told in the file RUN.end among the requests, and acknowledged in RUN.ended among the
    replies (:mod:`~fedsynth.federation.ending`). Both carry signatures, which show that they are complete.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np

from fedsynth.federation.events import Bytes
from fedsynth.federation.wire import SIGNATURE, Request, WireError, decode, encode
from fedsynth.keys import Keys, verified

OVERHEAD = 4096
"""Largest number of bytes by which a file exceeds the message in it."""
_REQUEST = b"fedsynth request file 1\n"  # unlike the start of a request's body, whose bytes 4 to 7 are zero
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


def write_request(coordinator: Keys, version: str, site: str, name: MessageName, message: bytes) -> bytes:
    """Return the bytes of a request file.

    ``coordinator`` has the key that signs it; ``version`` is the server's version of fedsynth, ``site`` the site's
    name, ``name`` the file's name, and ``message`` the request as sent to a site
    (:func:`~fedsynth.federation.wire.seal_envelope`).
    """
    body = encode(RequestFile(version, site, str(name), np.frombuffer(message, dtype=np.uint8)))
    signature = coordinator.sign(_REQUEST, hashlib.sha256(body).digest())
    checksum = hashlib.sha256(signature + body).digest()
    return b"".join([_FRAME.pack(_REQUEST, len(signature) + len(body), checksum), signature, body])


def read_request(data: bytes, coordinator: bytes) -> RequestFile:
    """Return the content of a request file.

    ``data`` are the file's bytes; ``coordinator`` (64 bytes) holds the coordinator's public keys. Raises
    :class:`Unfinished` for an incomplete file, and :class:`WireError` for one that this coordinator did not sign.
    """
    if len(data) < _FRAME.size + SIGNATURE:
        raise Unfinished("it is incomplete; it is read again later")
    magic, length, checksum = _FRAME.unpack_from(data)
    content = data[_FRAME.size :]
    if magic != _REQUEST or len(content) != length or hashlib.sha256(content).digest() != checksum:
        raise Unfinished("it is incomplete, or not a file of this version; it is read again later")
    signature, body = content[:SIGNATURE], content[SIGNATURE:]
    if not verified(coordinator, signature, _REQUEST, hashlib.sha256(body).digest()):
        raise WireError("it is not signed by the coordinator that site.toml names")
    found: RequestFile = decode(body, RequestFile)
    return found
