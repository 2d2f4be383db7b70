"""The wire format: how questions, events (messages of a trust model's protocol) and answers become bytes, and back.

Rule 1: a frame is a head (msgpack of a typed struct, at most 256 KiB) and arrays as raw bytes: C order, little endian,
    each padded with zeros to a multiple of eight. Nothing is compressed, and nothing in it is ever executed.
Rule 2: one content has one encoding. What was decoded is encoded again and compared, so that a frame's content and its
    hash always agree. Numbers must be finite, and zero must have no sign: other frames are refused, not repaired.
Rule 3: lengths are checked before anything is read; the type of every sequence and of every number in a head sets a
    bound for it.
Rule 4: a question may take several messages, one for each turn (round of messages) of the trust model's protocol. Noise
    and charge belong to the question, whose digest the receiver computes. A message is encoded and hashed once for all
    sites and attempts. A request is a message with a head that the coordinator signs for one site and one attempt; the
    head holds the digests of everything that follows it. Sites have the coordinator's public key in their own files.
Rule 5: an error at a site is reported by one of four codes and nothing else; the length of a reply does not depend on
    its numbers. ``void`` in place of ``failed`` tells nothing more: the audit row that every reply names already shows
    whether a question was charged.
    Message digests and reply signatures are over digests of the parts, so that a record of a complete run can hold
    these in place of the parts.
Rule 6: a site stores each answer once and signs a reply with it at each sending, to the one request that came, and
    besides it the position of its audit log that the answer names. A server heeds and remembers nothing of a reply
    whose signature does not hold, or that is to another request, and a site heeds no position but its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

import fedsynth
from fedsynth import keys
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import Answer, Digest, Event, Signature
from fedsynth.federation.query import NO_OTHERS, AnyQuery, Kinds, query_class
from fedsynth.federation.question import VERSION, Name, Number, QuestionHead

LARGEST_HEAD = 2**18
LARGEST_MESSAGE = 2**28
"""Largest reply to any request, in bytes. Messages to a site are limited by its policy, to 16 MiB by default."""
SIGNATURE = 64
DIGEST = 32
ATTEMPT = 8
LARGEST_REQUEST_HEAD = 1024
LARGEST_AGREEMENT = 2**16
NO_MESSAGE = "0" * 2 * DIGEST
"""Digest (hex) that a reply names if what came is no request of the coordinator to the site: it answers no message."""

Code = Literal["answered", "refused", "spent", "failed", "void"]
CODES: tuple[Code, ...] = get_args(Code)

_LENGTH = struct.Struct("<I")
_DTYPES: dict[str, str] = {"int64": "<i8", "int32": "<i4", "float64": "<f8", "float32": "<f4", "uint8": "|u1"}
_NAMES = {np.dtype(name): name for name in _DTYPES}  # looked up: a dtype works out its name anew each time
_reading = threading.local()


class WireError(FedsynthError):
    """Bytes that are not a valid message of this version of the wire format."""


class ForeignReply(WireError):
    """Bytes that are not the site's reply to a message: incomplete, not signed by the site, or to another message."""


# ---------------------------------------------------------------------------------------------------------------------
# Frames


def encode(value: Any) -> bytes:
    """Encode a struct (``msgspec.Struct``) as a frame: a msgpack head, then its arrays in the order of the head.

    Raises :class:`InvalidParameter` for a head of more than 256 KiB, and ``TypeError`` for content that cannot be sent.
    """
    arrays: list[NDArray[Any]] = []

    def lay_down(item: Any) -> Any:
        if isinstance(item, np.ndarray) and item.dtype in _NAMES:
            arrays.append(np.ascontiguousarray(item, dtype=_DTYPES[_NAMES[item.dtype]]))
            return _describe(item)
        raise TypeError(f"a {type(item).__name__} cannot be sent; send numbers, texts and arrays of numbers")

    head = msgspec.msgpack.encode(value, enc_hook=lay_down)
    if len(head) > LARGEST_HEAD:
        raise InvalidParameter(
            f"a question of {len(head)} bytes without its arrays is too large; ask for fewer tables: leave "
            "columns out of the schema, or choose a method that measures fewer"
        )
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(head)), head, bytes(-(4 + len(head)) % 8)]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % 8)]
    return b"".join(parts)


def decode(data: bytes | memoryview, kind: Any) -> Any:
    """Decode a frame to a struct of class ``kind``; arrays are read-only views of ``data``.

    Raises :class:`WireError` for anything that :func:`encode` would not have written.
    """
    view = memoryview(data)
    head = _frame_head(view)
    end = 4 + len(head)
    start = end + -end % 8
    arrays = _Arrays(view, start)
    outer = getattr(_reading, "arrays", None)
    _reading.arrays = arrays
    try:
        value = _decoder(kind).decode(head)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(
            f"the frame's head is not of this version ({error}); install the same fedsynth everywhere"
        ) from error
    finally:
        _reading.arrays = outer
    if arrays.at != len(view) or any(view[end:start]):
        raise WireError("the frame has bytes that its head does not describe; install the same fedsynth everywhere")
    if msgspec.msgpack.encode(value, enc_hook=_describe) != head:
        raise WireError("the frame is not in its canonical form; install the same fedsynth everywhere")
    return value


def _frame_head(view: memoryview) -> memoryview:
    if len(view) < 4:
        raise WireError("the frame is incomplete; send it again")
    (length,) = _LENGTH.unpack(view[:4])
    if length > min(LARGEST_HEAD, len(view) - 4):
        raise WireError("the frame's head is incomplete or too large; send it again")
    return view[4 : 4 + length]


@dataclass
class _Arrays:
    """Reader of a frame's arrays, in the order in which its head names them."""

    view: memoryview
    at: int

    def take(self, wanted: Any, described: Any) -> NDArray[Any]:
        if type(described) is not list or len(described) != 2:
            raise WireError("an array must be described by its type and shape; install the same fedsynth everywhere")
        name, shape = described
        if name != _name_of(wanted):
            raise WireError(f"an array has the wrong type {str(name)[:20]}; install the same fedsynth everywhere")
        if type(shape) is not list or len(shape) > 4 or not all(type(n) is int and 0 <= n < 2**32 for n in shape):
            raise WireError("an array must have at most four dimensions, each below 2^32")
        count = 1
        for n in shape:
            count *= n
        dtype = np.dtype(_DTYPES[name])
        size = count * dtype.itemsize
        end = self.at + size + -size % 8
        if end > len(self.view) or any(self.view[self.at + size : end]):
            raise WireError("an array is incomplete; send the message again")
        array = np.frombuffer(self.view, dtype=dtype, count=count, offset=self.at).reshape(shape)
        array.flags.writeable = False
        if dtype.kind == "f" and not _is_plain(array):
            raise WireError("numbers must be finite, and zero must not be negative")
        self.at = end
        return array


@lru_cache(maxsize=64)
def _name_of(wanted: Any) -> str:
    """Return the dtype's name of an annotated, possibly optional array."""
    array = next((one for one in get_args(wanted) if get_origin(one) is np.ndarray), wanted)
    return str(np.dtype(get_args(get_args(array)[1])[0]).name)


def _is_plain(array: NDArray[Any]) -> bool:
    return bool(np.isfinite(array).all()) and not bool((np.signbit(array) & (array == 0)).any())


def _describe(item: Any) -> Any:
    return [_NAMES[item.dtype], list(item.shape)]


def _take(wanted: Any, described: Any) -> Any:
    return _reading.arrays.take(wanted, described)


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_take)


# ---------------------------------------------------------------------------------------------------------------------
# Messages


class _HeadFrame(msgspec.Struct, frozen=True):
    kind: str


def read_question(frame: bytes | memoryview, others: Kinds | None = NO_OTHERS) -> tuple[QuestionHead, AnyQuery]:
    """Decode the head and the query of a question from its frame.

    ``others`` are the kinds of queries that are known beyond the built-in ones (default: none; ``None``: all
    installed). Raises :class:`WireError` for invalid bytes, :class:`~fedsynth.errors.Unsupported` for unknown kinds.
    """
    try:
        kind = msgspec.msgpack.decode(_frame_head(memoryview(frame)), type=_HeadFrame).kind
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(
            f"the question is not of this version ({error}); install the same fedsynth everywhere"
        ) from error
    typed: Any = decode(frame, _head_of(query_class(kind, others)))
    fields = {name: getattr(typed, name) for name in QuestionHead.__struct_fields__}
    query = cast("AnyQuery", fields.pop("query"))
    return QuestionHead(query=msgspec.Raw(b""), **fields), query


@lru_cache(maxsize=64)
def _head_of(query: type[AnyQuery]) -> type[msgspec.Struct]:
    """Return a head class whose query has the given class, so that head and query are decoded in one pass."""
    return msgspec.defstruct(
        f"Head[{query.__name__}]",
        [
            (name, query if name == "query" else QuestionHead.__annotations__[name])
            for name in QuestionHead.__struct_fields__
        ],
        frozen=True,
        forbid_unknown_fields=True,
        namespace={"__module__": QuestionHead.__module__},
    )


Agreed = Callable[[QuestionHead], Agreement]
"""Finds the agreement that a question names."""


@dataclass(eq=False)
class Request:
    """One message of a question to one or more sites, as the server makes it and a site reads it.

    ``frame`` holds the encoded question, of which ``head`` and ``query`` are the content, and ``agreement`` is the one
    that it names. Under a trust model with several turns, the question is sent in each ``turn``, numbered from 0, with
    another ``event`` (:mod:`~fedsynth.federation.events`). ``weights`` are a network's weights as bytes, attached to
    the message of the turn in which a site reads its rows. ``signature`` is for compute servers (:func:`sign_request`),
    and ``None`` for all other messages.
    """

    head: QuestionHead
    query: AnyQuery
    agreement: Agreement
    frame: bytes
    turn: int = 0
    event: Event | None = None
    weights: bytes = b""
    signature: bytes | None = None

    @classmethod
    def of(cls, query: AnyQuery, agreement: Agreement, **fields: Any) -> Request:
        """Return the first message of a question about ``query`` in the run of an ``agreement``.

        ``fields`` are ``run``, ``step``, ``verb`` and ``release`` of :class:`QuestionHead`. Raises :class:`WireError`
        for values that no site would accept, and :class:`InvalidParameter` for a question that is too large.
        """
        kind = type(query)
        typed = _head_of(kind)(query=query, kind=kind.kind, version=VERSION, agreement=agreement.digest, **fields)
        frame = encode(typed)
        head, read = read_question(frame, {kind.kind: kind})  # decoding validates the values
        return cls(head, read, agreement, frame)

    @cached_property
    def question(self) -> str:
        """SHA-256 (hex) of the question, the same in all turns: it is charged once under this digest."""
        return hashlib.sha256(self.frame).hexdigest()

    @cached_property
    def body(self) -> bytes:
        """The message's bytes: the question, the turn and its event."""
        event = b"" if self.event is None else encode(self.event)
        return _LENGTH.pack(len(self.frame)) + bytes(4) + self.frame + struct.pack("<Q", self.turn) + event

    @cached_property
    def digest(self) -> str:
        """Digest (hex) of this message (:class:`MessageParts`): its key in accounts, transcripts and names of files."""
        return MessageParts.of(self.body).digest.hex()

    @cached_property
    def attached(self) -> bytes:
        """SHA-256 of :attr:`weights`."""
        return hashlib.sha256(self.weights).digest()

    def at(self, turn: int, event: Event | None, weights: bytes = b"") -> Request:
        """Return the message of another ``turn`` of the same question, with its ``event`` and with ``weights``."""
        return Request(self.head, self.query, self.agreement, self.frame, turn, event, weights)

    @classmethod
    def read(cls, body: bytes | memoryview, agreed: Agreed, others: Kinds | None = NO_OTHERS) -> Request:
        """Return the message of a body; ``others`` is as in :func:`read_question`, whose errors it raises.

        ``agreed`` returns the agreement that the question names, or raises an error if the reader does not know it.
        Signature and weights are not part of the body and are left empty.
        """
        frame, turn, event = parts_of(body)
        head, query = read_question(frame, others)
        return cls(head, query, agreed(head), bytes(frame), turn, decode(event, Event) if len(event) else None)


def agreed_in(known: Mapping[str, Agreement]) -> Agreed:
    """Return what finds an agreement among those ``known`` by digest; it raises :class:`WireError` for any other."""

    def find(head: QuestionHead) -> Agreement:
        if head.agreement not in known:
            raise WireError("the question names an agreement that did not come with it")
        return known[head.agreement]

    return find


class MessageParts(NamedTuple):
    """What the digest of a message (:attr:`Request.body`) is made of; any bytes have such parts, a few of them short.

    ``lengths`` are the message's first 8 bytes, ``question`` is the SHA-256 of the question's frame, ``turn`` has 8
    bytes, and ``event`` is the SHA-256 of the event's frame. The digest is the SHA-256 of the four, joined: no two
    messages have the same without a collision, since only shorter messages have shorter ``lengths`` or ``turn``.
    """

    lengths: bytes
    question: bytes
    turn: bytes
    event: bytes

    @classmethod
    def of(cls, body: bytes | memoryview) -> MessageParts:
        """Return the parts of the bytes of a message."""
        view = memoryview(body)
        end = 8 + int.from_bytes(view[:4], "little")
        frame, event = (hashlib.sha256(part).digest() for part in (view[8:end], view[end + 8 :]))
        return cls(bytes(view[:8]), frame, bytes(view[end : end + 8]), event)

    @classmethod
    def read(cls, data: bytes) -> MessageParts:
        """Return the parts of a message that is not short, from the bytes that :attr:`data` has written."""
        if len(data) != 2 * 8 + 2 * DIGEST:
            raise WireError("the parts of a message are incomplete; restore the transcript from the backup")
        return cls(data[:8], data[8 : 8 + DIGEST], data[8 + DIGEST : 16 + DIGEST], data[16 + DIGEST :])

    @property
    def data(self) -> bytes:
        """The parts, joined."""
        return b"".join(self)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the parts: the message's digest."""
        return hashlib.sha256(b"".join(self)).digest()


def parts_of(body: bytes | memoryview) -> tuple[memoryview, int, memoryview]:
    """Split a message (:attr:`Request.body`) into the question's frame, the turn and the event's frame, as views.

    The event's frame is empty in turn 0. Raises :class:`WireError` for a truncated body.
    """
    view = memoryview(body)
    if len(view) < 16:
        raise WireError("the request is incomplete; send it again")
    (length,) = _LENGTH.unpack(view[:4])
    if any(view[4:8]) or length > len(view) - 16:
        raise WireError("the request is incomplete; send it again")
    (turn,) = struct.unpack("<Q", view[8 + length : 16 + length])
    return view[8 : 8 + length], turn, view[16 + length :]


# ---------------------------------------------------------------------------------------------------------------------
# Requests that travel


@dataclass(frozen=True)
class AuditPosition:
    """A row of a site's audit log, signed by the site: the last one that a server has seen in the site's replies.

    The server hands it back with each request, and the site compares it with its own log, to notice that its log was
    restored from an old backup. ``row`` is the row's number, 0 for none; ``chain`` is the head of the log's hash chain
    at that row, and ``signature`` the site's, of its name, the number and the head.
    """

    row: Annotated[int, msgspec.Meta(ge=0)] = 0
    chain: Digest = bytes(DIGEST)
    signature: Signature = bytes(SIGNATURE)

    @classmethod
    def signed(cls, seed: bytes, site: str, row: int, chain: bytes) -> AuditPosition:
        """Return the position, signed with the ``seed`` of the identity key of ``site``; row 0, none, is not signed."""
        return cls(row, chain, keys.sign(seed, *cls(row, chain)._parts(site))) if row else cls()

    def verified(self, site: str, identity: bytes) -> bool:
        """Whether ``site``, the owner of the public key ``identity`` (32 bytes), signed this position."""
        return keys.verified(identity, self.signature, *self._parts(site))

    def _parts(self, site: str) -> tuple[str | bytes, ...]:
        return "audit position", site, self.row.to_bytes(8), self.chain

    def __str__(self) -> str:
        """Return ``ROW:CHAIN:SIGNATURE``, the last two in base64 (RFC 4648, section 5, without padding)."""
        parts = (base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (self.chain, self.signature))
        return ":".join([str(self.row), *parts])

    @classmethod
    def parse(cls, text: str) -> AuditPosition:
        """Return the position that ``text`` spells, unverified; raises :class:`InvalidParameter` for any other text."""
        row, *parts = text.strip().split(":")
        try:
            chain, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts)
            found = cls(int(row), chain, signature)
            sound = 0 < found.row < 2**62 and (len(chain), len(signature)) == (DIGEST, SIGNATURE)
            if sound and str(found) == text.strip():
                return found
        except (ValueError, binascii.Error):
            pass
        raise InvalidParameter(
            f"{text[:40]!r} is not the signed head of an audit, ROW:CHAIN:SIGNATURE; copy it whole from the site's log "
            "or from the server's state/seen.json"
        )


class RequestHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What the coordinator signs of a request, apart from the bytes that follow: about 230 bytes.

    ``to`` is the name of the site that is asked, ``fedsynth`` the server's version, and ``attempt`` tells a request
    from the same message sent before. ``run``, ``step`` and ``turn`` are the message's, for carriers, which do not
    decode it. ``message`` is the digest of the message (:attr:`Request.digest`) and ``size`` its number of bytes. After
    the message comes the run's agreement, if the site may not have it, and then a network's weights; ``attached`` is
    the digest of both (:func:`_beside`). ``seen`` is the last row of the site's audit log that the server has seen.
    """

    to: Annotated[str, msgspec.Meta(max_length=64)]
    fedsynth: Annotated[str, msgspec.Meta(max_length=64)]
    attempt: Annotated[bytes, msgspec.Meta(min_length=ATTEMPT, max_length=ATTEMPT)]
    run: Name
    step: Number
    turn: Number
    message: Digest
    size: Annotated[int, msgspec.Meta(ge=0)]
    attached: Digest
    seen: AuditPosition


class Received(NamedTuple):
    """A request whose signature, addressee and contents have been verified.

    ``digest`` (hex) is the request's, which the reply names beside the message's own, ``body`` the message
    (:attr:`Request.body`), ``agreement`` the run's agreement, empty if the site has it, and ``attached`` a network's
    weights, if the question trains one. Weights are not recorded in a run's transcript, since a resumed run computes
    them again.
    """

    head: RequestHead
    digest: str
    body: memoryview
    agreement: memoryview
    attached: memoryview

    @property
    def message(self) -> str:
        """Digest (hex) of the message."""
        return self.head.message.hex()


def write_head(
    coordinator: keys.Keys, to: str, request: Request, agreement: bytes, seen: AuditPosition, attempt: bytes
) -> bytes:
    """Return the signed head of a request; the message and what is attached to it follow.

    The parameters are those of :class:`RequestHead`; ``agreement`` is empty if the site has it. The message is hashed
    once for all sites and attempts. Raises :class:`InvalidParameter` for an agreement of more than 64 KiB.
    """
    if len(agreement) > LARGEST_AGREEMENT:
        raise InvalidParameter(
            f"the run's agreement has {len(agreement)} bytes, and sites read at most {LARGEST_AGREEMENT}; give the "
            "method shorter options"
        )
    place = (request.head.run, request.head.step, request.turn)
    contents = (bytes.fromhex(request.digest), len(request.body), _beside(agreement, request.attached))
    head = encode(RequestHead(to, fedsynth.__version__, attempt, *place, *contents, seen))
    return b"".join([_LENGTH.pack(len(head)), _LENGTH.pack(len(agreement)), head, coordinator.sign("request", head)])


def _beside(agreement: bytes | memoryview, weights: bytes) -> bytes:
    """Return the digest of an agreement and of a network's weights, of which ``weights`` is the SHA-256."""
    return hashlib.sha256(hashlib.sha256(agreement).digest() + weights).digest()


def read_request(data: bytes | memoryview, site: str, coordinator: bytes) -> Received:
    """Return a request to ``site``, verified; the message in it is not decoded (:meth:`Request.read`).

    ``coordinator`` (64 bytes) holds the coordinator's public keys. Raises :class:`WireError` for incomplete bytes, for
    a head that this coordinator did not sign or addressed to another site, and for a message or weights that are not
    those of the head. The server's version is not checked.
    """
    view = memoryview(data)
    length, size = struct.unpack("<II", view[:8]) if len(view) >= 8 else (LARGEST_REQUEST_HEAD, 0)
    start = 8 + length + SIGNATURE
    if length >= LARGEST_REQUEST_HEAD or start > len(view) or size > LARGEST_AGREEMENT:
        raise WireError("the request is incomplete, or of another version of fedsynth; send it again")
    signed = bytes(view[8 : 8 + length])
    if not keys.verified(coordinator, bytes(view[start - SIGNATURE : start]), "request", signed):
        raise WireError(
            "the message is not signed by the coordinator that this site answers; compare [coordinator] key"
        )
    head: RequestHead = decode(signed, RequestHead)
    if head.to != site:
        raise WireError(
            f"the message is for site {head.to!r}, and this one is {site!r}: register its key under that name, carry "
            "its files to that site, or correct site.toml"
        )
    middle, end = start + head.size, start + head.size + size
    body, agreement, attached = view[start:middle], view[middle:end], view[end:]
    beside = _beside(agreement, hashlib.sha256(attached).digest())
    if end > len(view) or (MessageParts.of(body).digest, beside) != (head.message, head.attached):
        raise WireError("the request is incomplete, or was changed on its way; send it again")
    return Received(head, hashlib.sha256(view[:start]).hexdigest(), body, agreement, attached)


# ---------------------------------------------------------------------------------------------------------------------
# Replies


_ANSWER = struct.Struct(f"<B?6xQ{DIGEST}s{SIGNATURE}s")
_REPLY = struct.Struct(f"<{DIGEST}s{DIGEST}s{SIGNATURE}s")


class StoredAnswer(NamedTuple):
    """A site's answer to a message, as its account stores it: the content, or the ``code`` of why there is none.

    ``seen`` is the row of the site's audit log in which the message was charged or refused. ``content`` is the encoded
    answer, or with ``sealed`` a box, an answer encrypted for the coordinator by :func:`~fedsynth.keys.seal`.
    """

    code: Code
    seen: AuditPosition
    sealed: bool
    content: memoryview


def write_answer(code: Code, seen: AuditPosition, *content: bytes, sealed: bool = False) -> bytes:
    """Return the bytes of a :class:`StoredAnswer`; ``content`` comes in any number of parts, none without an answer."""
    return b"".join([_ANSWER.pack(CODES.index(code), sealed, seen.row, seen.chain, seen.signature), *content])


def read_answer(data: bytes | memoryview) -> StoredAnswer:
    """Return the content of bytes made by :func:`write_answer`; raise :class:`WireError` for any other bytes."""
    view = memoryview(data)
    if len(view) < _ANSWER.size:
        raise WireError("the answer is incomplete; run the same command again")
    code, sealed, row, chain, signature = _ANSWER.unpack(view[: _ANSWER.size])
    if code >= len(CODES) or view[1] > 1 or any(view[2:8]) or row >= 2**62:
        raise WireError("the answer is not of this version; install the same fedsynth everywhere")
    if code and len(view) > _ANSWER.size:
        raise WireError("a reply with an error must not hold an answer; install the same fedsynth everywhere")
    return StoredAnswer(CODES[code], AuditPosition(row, chain, signature), sealed, view[_ANSWER.size :])


class ReplyHead(NamedTuple):
    """What a reply answers: the digests (hex) of the request, and of the message that the answer was made for.

    That is the message of the request, unless the turn had been answered before, to another message: a server accepts
    no such reply. Both are :data:`NO_MESSAGE` for bytes that are no request of the coordinator to the site. A running
    exchange compares both. A record of it is compared by ``message`` alone: a resumed run makes other requests of the
    same message, and a stranger who verifies a transcript has only the messages.
    """

    request: str
    message: str


UNKNOWN = ReplyHead(NO_MESSAGE, NO_MESSAGE)
"""What a reply answers if what came is no request of the coordinator to the site."""


@dataclass(eq=False)
class Reply:
    """A site's decoded reply, held by the server: an ``answer``, or the code of the reason why there is none.

    ``digest`` (hex) is that of the message that it answers. If a transport got no reply at all, ``code`` is ``lost``,
    and ``lost`` says why. ``seen`` is the last row of the site's audit log, and ``sealed`` says whether the answer came
    encrypted. ``rejected`` is set if the answer proves malformed: such a reply counts as no answer and is not recorded.
    ``data`` are the reply's bytes.
    """

    site: str
    digest: str
    code: Code | Literal["lost"]
    answer: Answer | None = None
    seen: AuditPosition = field(default_factory=AuditPosition)
    sealed: bool = False
    lost: str = ""
    rejected: bool = False
    data: bytes = b""


Unseal = Callable[[bytes | memoryview, str, str], bytes]


def sign_request(coordinator: keys.Keys, body: bytes) -> bytes:
    """Return the coordinator's signature (64 bytes) of a message (:attr:`Request.body`) for compute servers.

    They get the message without a head; sites take no message by this signature.
    """
    return coordinator.sign("deposit", hashlib.sha256(body).digest())


def is_signed(body: bytes | memoryview, signature: bytes, coordinator: bytes) -> bool:
    """Whether the owner of the public keys ``coordinator`` (64 bytes) signed a message by :func:`sign_request`."""
    return keys.verified(coordinator, signature, "deposit", hashlib.sha256(body).digest())


def write_reply(seed: bytes, site: str, asked: ReplyHead, answer: bytes | memoryview) -> bytes:
    """Return the reply of ``site`` to the request ``asked``: both digests, a signature, and the ``answer``.

    ``seed`` (32 bytes) is that of the site's identity key. The signature covers the site's name, both digests, and of
    the answer (:func:`write_answer`) code and audit row, and the SHA-256 of its content, so the reply answers this one
    request and no other.
    """
    signature = keys.sign(seed, *_signed(site, asked, *_split(answer)))
    return b"".join([_REPLY.pack(bytes.fromhex(asked.request), bytes.fromhex(asked.message), signature), answer])


def open_reply(data: bytes | memoryview, site: str, identity: bytes | None) -> tuple[ReplyHead, memoryview]:
    """Return what a reply that ``site`` has signed answers, and the bytes of its answer (:func:`read_answer`).

    ``identity`` (32 bytes) is the site's public identity key; with ``None``, the signature is not verified, for records
    of a run whose sites' keys the reader does not have. Raises :class:`ForeignReply` for incomplete bytes, and for a
    reply that this site did not sign.
    """
    view = memoryview(data)
    if not _REPLY.size <= len(view) <= LARGEST_MESSAGE:
        raise ForeignReply("the reply is incomplete or too large; run the same command again")
    answer = view[_REPLY.size :]
    return _opened(view, site, identity, *_split(answer)), answer


def _opened(view: memoryview, site: str, identity: bytes | None, head: bytes, content: bytes) -> ReplyHead:
    """Return what a reply answers, given its first bytes, its answer's ``head`` and the digest of the ``content``."""
    request, message, signature = _REPLY.unpack(view[: _REPLY.size])
    asked = ReplyHead(request.hex(), message.hex())
    if not (identity is None or keys.verified(identity, signature, *_signed(site, asked, head, content))):
        raise ForeignReply(
            f"the reply is not signed by the identity key of {site}: it was changed on its way, or the site has "
            "another key than the roster"
        )
    return asked


def _split(answer: bytes | memoryview) -> tuple[bytes, bytes]:
    """Return the head of an answer's bytes (code and audit row), and the SHA-256 of its content."""
    view = memoryview(answer)
    return bytes(view[: _ANSWER.size]), hashlib.sha256(view[_ANSWER.size :]).digest()


def _signed(site: str, asked: ReplyHead, head: bytes, content: bytes) -> tuple[str | bytes, ...]:
    return "reply", site, asked.request, asked.message, head, content


def without_content(reply: bytes) -> bytes:
    """Return a reply with the SHA-256 in place of its answer's content, for a record; its signature still holds."""
    return reply[: _REPLY.size] + b"".join(_split(memoryview(reply)[_REPLY.size :]))


def read_without_content(data: bytes, site: str, identity: bytes | None) -> tuple[ReplyHead, StoredAnswer]:
    """Return what a reply made by :func:`without_content` answers, and its code and audit row, without content.

    ``identity`` is as in :func:`open_reply`. Raises :class:`ForeignReply` for bytes that are no such reply, or that the
    site did not sign, and :class:`WireError` for an answer that is invalid.
    """
    view = memoryview(data)
    end = _REPLY.size + _ANSWER.size
    if len(view) != end + DIGEST:
        raise ForeignReply("the reply without content is incomplete; restore the transcript from the backup")
    head = bytes(view[_REPLY.size : end])
    return _opened(view, site, identity, head, bytes(view[end:])), read_answer(head)


def read_reply(
    data: bytes, request: Request, site: str, identity: bytes | None, unseal: Unseal, sent: str | None = None
) -> Reply:
    """Decode the reply of ``site`` to ``request``; raise :class:`ForeignReply` for bytes that are no such reply.

    ``identity`` is as in :func:`open_reply`. ``unseal(box, site, digest)`` opens a confidential answer
    (:meth:`Keys.unseal <fedsynth.keys.Keys.unseal>`); its errors are passed on. ``sent`` is the digest (hex) of the
    request's signed head; without it, the reply may be to any request of the same message, for records. Raises
    :class:`WireError` for an answer that the site signed but that is invalid.
    """
    asked, body = open_reply(data, site, identity)
    if asked.message == NO_MESSAGE:
        raise ForeignReply(
            f"{site} was sent something that its coordinator did not sign, or not for it; compare name and "
            "[coordinator] key of its site.toml"
        )
    if asked.message != request.digest or sent not in (None, asked.request):
        raise ForeignReply("the reply answers another request; run the same command again")
    found = read_answer(body)
    if found.code != "answered":
        return Reply(site, request.digest, found.code, seen=found.seen, data=data)
    frame = unseal(found.content, site, request.digest) if found.sealed else found.content
    answer: Answer = decode(frame, Answer)
    return Reply(site, request.digest, "answered", answer, found.seen, found.sealed, data=data)


def code_of(data: bytes) -> Code:
    """Return the code of a site's own reply (such as ``refused``); raise :class:`WireError` for invalid bytes."""
    return read_answer(data[_REPLY.size :]).code
