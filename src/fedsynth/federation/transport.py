"""Transports, which carry requests to sites and replies back through one method, ``exchange``.

Replies are yielded one by one, so that a sum over many sites needs memory for two answers only.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol

import fedsynth
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.query import Kinds
from fedsynth.federation.question import QuestionHead
from fedsynth.federation.site import Site
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import (
    ATTEMPT,
    DIGEST,
    AuditPosition,
    ForeignReply,
    MessageParts,
    Reply,
    Request,
    WireError,
    agreed_in,
    parts_of,
    read_question,
    read_reply,
    read_request,
    without_content,
    write_head,
)
from fedsynth.files import writing
from fedsynth.keys import Keys

_HEAD = struct.Struct(">BQI")
_Known = tuple[QuestionHead, Agreement]
DROPPED = "it dropped out before the run was resumed"
"""Why a reply is lost that a resumed run does not ask for again."""


@dataclass(frozen=True, eq=False)
class Message:
    """One request addressed to one site, as a transport carries it.

    ``identity`` is the site's public identity key (32 bytes), with which the reply must be signed, and ``coordinator``
    holds the keys that open it. ``head`` is the signed head of this sending of ``request``, with its ``attempt`` (8
    bytes), and ``agreement`` the run's agreement as bytes, or empty if the site has it. The message itself is shared by
    all sites.
    """

    site: str
    identity: bytes
    request: Request
    coordinator: Keys
    head: bytes
    attempt: bytes
    agreement: bytes

    @classmethod
    def of(
        cls,
        site: str,
        identity: bytes,
        request: Request,
        coordinator: Keys,
        seen: AuditPosition,
        attempt: bytes | None = None,
        *,
        agreed: bool = False,
    ) -> Message:
        """Return a new sending of ``request`` to the site of this name, signed by the coordinator.

        ``seen`` is the last row of the site's audit log that the server knows; it is sent along. ``attempt`` is random
        if it is ``None``. With ``agreed``, the site has the run's agreement, which otherwise goes beside the message.
        """
        attempt = os.urandom(ATTEMPT) if attempt is None else attempt
        agreement = b"" if agreed else request.agreement.data
        head = write_head(coordinator, site, request, agreement, seen, attempt)
        return cls(site, identity, request, coordinator, head, attempt, agreement)

    @property
    def data(self) -> bytes:
        """The request as bytes to send, put together anew each time."""
        return b"".join([self.head, self.request.body, self.agreement, self.request.weights])

    @property
    def size(self) -> int:
        """Number of bytes of :attr:`data`."""
        return len(self.head) + len(self.request.body) + len(self.agreement) + len(self.request.weights)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the signed head, which the reply must name beside the message's digest."""
        return hashlib.sha256(self.head).hexdigest()

    def as_sent(self, data: bytes) -> Message:
        """Return the earlier sending of this message that ``data`` holds; raises :class:`WireError` for others."""
        found = read_request(data, self.site, self.coordinator.public)
        if (found.message, found.head.fedsynth) != (self.request.digest, fedsynth.__version__):
            raise WireError("the request is of another message, or of another version of fedsynth")
        start = len(data) - len(found.body) - len(found.agreement) - len(found.attached)
        return replace(self, head=data[:start], attempt=found.head.attempt, agreement=bytes(found.agreement))

    def reply(self, data: bytes, *, recorded: bool = False) -> Reply:
        """Parse a site's reply to this message from its bytes; what is no valid reply of the site counts as lost.

        A ``recorded`` reply may be to an earlier request of the same message.
        """
        try:
            return self.own_reply(data, recorded=recorded)
        except ForeignReply as error:
            return self.lost(str(error))

    def own_reply(self, data: bytes, *, recorded: bool = False) -> Reply:
        """Do the work of :meth:`reply`, but raise :class:`~fedsynth.federation.wire.ForeignReply` for foreign bytes.

        These are bytes that the site did not sign as its reply to this message; a transport may wait for the site's
        own. An invalid answer that the site signed counts as lost.
        """
        sent = None if recorded else self.digest
        try:
            return read_reply(data, self.request, self.site, self.identity, self.coordinator.unseal, sent)
        except ForeignReply:
            raise
        except FedsynthError as error:
            return self.lost(str(error))

    def lost(self, why: str) -> Reply:
        """Return a placeholder, with the code ``lost`` and the reason, for a reply that did not come."""
        return Reply(self.site, self.request.digest, "lost", lost=why)


class Transport(Protocol):
    """Carries requests to sites and replies back."""

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Send each message to its site; yield one reply per message, in the order of the messages.

        For a site that does not reply in time it yields :meth:`Message.lost`. If people carry the messages as files,
        the transport may instead raise :class:`~fedsynth.errors.Incomplete` until all replies are there.
        """


class InProcess:
    """A transport to ``sites`` in this process, for simulations and tests; messages are encoded as on a network."""

    def __init__(self, sites: Sequence[Site]) -> None:
        """Take the sites; their names must differ, or :class:`FedsynthError` is raised."""
        self._sites = {site.name: site for site in sites}
        if len(self._sites) != len(sites):
            raise FedsynthError("two sites share a name; give each its own")

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, in the order given."""
        return tuple(self._sites)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield the reply of each message's site."""
        for message in messages:
            yield message.reply(self._sites[message.site].answer(message.data).data)


class Recorded:
    """A transport with a memory on disk: it records a run's messages in a transcript, to resume the run from it.

    Every request is appended to the transcript and synced before it is sent, and every accepted answer before the next
    one is read. A run restarted with the same file gets the recorded answers, so that only unanswered rounds reach a
    site; a rejected answer is requested again. Of confidential answers (exact counts for a trusted server) only the
    fact that the site answered is recorded, and they are requested again; the site has stored its reply and charges
    nothing.

    A resumed run repeats the recorded course. If a site has no recorded answer to a question, or to one of its turns,
    that the run has completed, the site dropped out there and is not asked again: the other sites were told that it is
    out, and later questions depend on the recorded answers. Replies are recorded with their signatures, which are
    verified when they are read. They name the message beside the request that was made of it then, and are found by the
    message.
    """

    _MAGIC = b"fedsynth transcript 1\n"
    KINDS: ClassVar[dict[int, str]] = {
        1: "question",
        2: "answer",
        3: "withheld",
        4: "released",
        5: "agreement",
        6: "message",
        7: "signed",
    }
    _QUESTION, _ANSWER, _WITHHELD, _RELEASED, _AGREEMENT, _MESSAGE, _SIGNED = KINDS

    def __init__(self, transport: Transport, path: Path, kinds: Kinds | None = None) -> None:
        """Read the transcript at ``path``, if it exists, and append to it from now on.

        ``transport`` carries the messages. ``kinds`` are the kinds of questions from other packages that the transcript
        may hold, with their classes; ``None``: all installed ones. Raises :class:`FedsynthError` for a file that is no
        transcript of this version, or is damaged.
        """
        self._transport = transport
        self._kinds = kinds
        self._path = path
        self._known: dict[tuple[str, str], bytes] = {}
        self._withheld: set[tuple[str, str]] = set()
        self._questions: dict[str, str] = {}  # digest of a message -> digest of its question
        self._reached: dict[str, int] = {}  # turn, by question
        self._steps: dict[int, dict[str, _Known]] = {}  # questions, by step
        self._agreed: dict[str, Agreement] = {}
        self._released: dict[str, bytes] = {}
        self._resume()
        self._last = max(self._steps, default=-1)  # the step at which the run stopped

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.sites

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield the recorded reply to each message or, if there is none, a live one, which is then recorded.

        Raises :class:`FedsynthError` if a resumed run sends other questions than those recorded.
        """
        asked = list(messages)
        self._refuse_another_run([message.request for message in asked if message.request.turn == 0])
        for message in asked:
            self._ask(message.request)
        live = self._transport.exchange([message for message in asked if not self._settled(message)])
        for message in asked:
            recorded = self._known.get((message.site, message.request.digest))
            if recorded is not None:
                yield replace(
                    message.reply(recorded, recorded=True), seen=AuditPosition()
                )  # the account may be gone, as in a simulation
            elif self._past(message):
                yield message.lost(DROPPED)
            else:
                reply = next(live)
                yield reply
                self._record(reply)

    def released(self, question: str, release: bytes) -> bytes:
        """Record the release of a question, once, and return the release recorded first; both are encoded bytes.

        ``question`` is the question's digest (hex). A site that was lost may answer when the run is resumed; the sum
        would then be another one, with other noise: two releases for one charge. The release recorded first is
        therefore used again. Under a trusted server, whose sites' answers are not recorded, the transcript has no other
        copy of the sum.
        """
        if question not in self._released:
            self._append(self._RELEASED, bytes.fromhex(question) + release)
            self._released[question] = release
        return self._released[question]

    def start_sums_over(self) -> None:
        """Restart unreleased sums from their first turn, for the sites of a resumed simulation, which remember none.

        It is called once, before the first exchange.
        """
        asked = self._steps.get(self._last, {})
        over = {key for key, (head, _) in asked.items() if head.verb in ("sum", "average")} - self._released.keys()
        self._known = {key: reply for key, reply in self._known.items() if self._questions[key[1]] not in over}
        self._reached = {question: turn for question, turn in self._reached.items() if question not in over}

    def _settled(self, message: Message) -> bool:
        return (message.site, message.request.digest) in self._known or self._past(message)

    def _past(self, message: Message) -> bool:
        """Whether the run continued without this site's answer to this turn."""
        request = message.request
        if (message.site, request.digest) in self._withheld:
            return False
        return request.head.step < self._last or self._reached.get(request.question, 0) > request.turn

    def _refuse_another_run(self, requests: Sequence[Request]) -> None:
        """Refuse other questions at a step than those recorded.

        All questions of a step are recorded before any is sent, so a crash can leave some out only at the last step.
        """
        for step, now in _by_step(requests).items():
            then = self._steps.get(step, {}) if step <= self._last else now
            if then.keys() - now.keys() or (step < self._last and now.keys() - then.keys()):
                raise FedsynthError(
                    f"{self._path} is the transcript of a run {_difference(then, now)} (step {step}); resume with the "
                    "settings that run began with, or give this run another path"
                )

    def _ask(self, request: Request) -> None:
        if request.digest not in self._questions:
            if request.head.agreement not in self._agreed:
                self._append(self._AGREEMENT, request.agreement.data)
                self._agreed[request.head.agreement] = request.agreement
            self._append(self._QUESTION, request.body)
            self._note(request)

    def _note(self, request: Request) -> None:
        self._questions[request.digest] = request.question
        self._steps.setdefault(request.head.step, {})[request.question] = (request.head, request.agreement)
        self._reached[request.question] = max(request.turn, self._reached.get(request.question, 0))

    def _record(self, reply: Reply) -> None:
        if reply.code != "answered" or reply.rejected:
            return  # not an answer: a resumed run asks again
        key = f"{reply.site} {reply.digest}".encode()
        if reply.sealed:
            self._append(self._WITHHELD, key)
        else:
            self._append(self._ANSWER, key + b"\n" + reply.data)

    def _append(self, kind: int, data: bytes) -> None:
        with writing(self._path), self._path.open("ab") as file:
            file.write(_record(kind, data))
            file.flush()
            os.fsync(file.fileno())

    def _resume(self) -> None:
        """Read every complete record, and truncate one that a crash left incomplete."""
        with writing(self._path):
            self._path.touch()
        with writing(self._path), self._path.open("r+b") as file:
            was_begun = file.read(len(self._MAGIC))
            if not self._MAGIC.startswith(was_begun):
                raise FedsynthError(
                    f"{self._path} is not a transcript of this version; resume the run with the fedsynth that began "
                    "it, or give the run another name or path"
                )
            if was_begun != self._MAGIC:
                file.seek(0)
                file.write(self._MAGIC)
            good = file.tell()
            for kind, data in _whole(file, self._path):
                try:
                    self._remember(kind, data)
                except (WireError, InvalidParameter, UnicodeDecodeError) as error:
                    raise _damaged(self._path) from error
                good = file.tell()
            file.truncate(good)

    def _remember(self, kind: int, data: bytes) -> None:
        if kind == self._QUESTION:
            self._note(Request.read(data, agreed_in(self._agreed), self._kinds))
        elif kind == self._AGREEMENT:
            agreement = Agreement.read(data)
            self._agreed[agreement.digest] = agreement
        elif kind == self._ANSWER:
            site, digest, reply = recorded_answer(data)
            self._known[site, digest] = reply
        elif kind == self._RELEASED:
            self._released.setdefault(data[:DIGEST].hex(), data[DIGEST:])
        elif kind == self._WITHHELD:
            site, _, digest = data.decode().partition(" ")
            self._withheld.add((site, digest))
        elif kind in (self._MESSAGE, self._SIGNED):
            raise FedsynthError(f"{self._path} is the transcript of a complete run, which cannot be resumed")
        else:
            raise _damaged(self._path)


def _by_step(requests: Iterable[Request]) -> dict[int, dict[str, _Known]]:
    """Return the distinct questions, by step and digest."""
    found: dict[int, dict[str, _Known]] = {}
    for request in requests:
        found.setdefault(request.head.step, {})[request.question] = (request.head, request.agreement)
    return found


_DIFFERENCES = (
    {"run": "name or seed", "release": "budget or method"},
    {
        "schema": "schema",
        "trust": "trust",
        "trust_options": "settings of the trust",
        "unit": "unit of protection",
        "public_sizes": "choice of public sizes",
        "roster": "sites or keys",
        "slots": "plan",
    },
)
"""What another run is said to differ in, by field of a question's head and of the agreement."""


def _difference(then: Mapping[str, _Known], now: Mapping[str, _Known]) -> str:
    """Describe how a recorded run differs from the resumed one, as far as the questions show it."""
    after = next(iter(now.values()))
    before = next(iter(then.values()), after)
    differing = [
        said
        for one, other, names in zip(before, after, _DIFFERENCES, strict=True)
        for name, said in names.items()
        if getattr(one, name) != getattr(other, name)
    ]
    return f"with another {', '.join(differing)}" if differing else "of another method, or with other options of it"


def was_begun(path: Path) -> bool:
    """Return whether the transcript at ``path`` holds at least one complete message or release."""
    return path.is_file() and path.stat().st_size > len(Recorded._MAGIC) and any(True for _ in records(path))


def records(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the complete records of the transcript at ``path``: their kind and bytes.

    Kinds are "agreement" (:attr:`Agreement.data <fedsynth.federation.agreement.Agreement.data>`, before the first
    question that names it), "question" (a message, :attr:`Request.body <fedsynth.federation.wire.Request.body>`),
    "answer", "withheld" (a confidential answer, without its content) and "released" (the question's digest and the
    sum). That of a complete run may have digests in place of contents (:func:`conclude`): "message"
    (:attr:`MessageParts.data <fedsynth.federation.wire.MessageParts.data>`) and "signed", an answer of which the reply
    is :func:`~fedsynth.federation.wire.without_content`. Raises :class:`FedsynthError` for another file or a damaged
    record.
    """
    kinds = Recorded.KINDS
    with path.open("rb") as file:
        if file.read(len(Recorded._MAGIC)) != Recorded._MAGIC:
            raise FedsynthError(f"{path} is not a transcript of this version; read it with the fedsynth that wrote it")
        for kind, data in _whole(file, path):
            if kind not in kinds:  # to stop here would hide what follows
                raise _damaged(path)
            yield kinds[kind], data


def conclude(transcript: Path, concluded: Path, trust: Trust) -> None:
    """Write the transcript of a complete run anew, without what only a resumed run needs: synced, and much smaller.

    Of sums that only come out whole, masked answers and the keys and shares behind them show nothing: their records
    keep the digests that messages and signatures of replies are over, so that whoever verifies the run still sees that
    each site has signed its reply to each message, to which question it belongs, and from which audit row. All other
    records stay as they are.
    """
    masked = trust.pooled and trust.sums is not None and trust.sums.turns > 1
    known: dict[str, Agreement] = {}
    brief: set[str] = set()  # digests of the messages of such sums
    with writing(concluded), concluded.open("wb") as file:
        file.write(Recorded._MAGIC)
        for kind, data in records(transcript):
            code = next(number for number, name in Recorded.KINDS.items() if name == kind)
            if kind == "agreement":
                known[hashlib.sha256(data).hexdigest()] = Agreement.read(data)
            elif kind == "question" and masked:
                request = Request.read(data, agreed_in(known), None)
                if request.head.verb in ("sum", "average"):
                    brief.add(request.digest)
                    if request.turn:
                        code, data = Recorded._MESSAGE, MessageParts.of(data).data
            elif kind == "answer":
                site, digest, reply = recorded_answer(data)
                if digest in brief:
                    code, data = Recorded._SIGNED, f"{site} {digest}\n".encode() + without_content(reply)
            file.write(_record(code, data))
        file.flush()
        os.fsync(file.fileno())


def recorded_requests(path: Path) -> Iterator[Request]:
    """Yield the messages in the transcript at ``path``, in the order in which they were first sent.

    Of a concluded transcript, those are left out of which only digests are kept (:func:`conclude`).
    """
    known: dict[str, Agreement] = {}
    for kind, data in records(path):
        if kind == "agreement":
            known[hashlib.sha256(data).hexdigest()] = Agreement.read(data)
        elif kind == "question":
            yield Request.read(data, agreed_in(known), None)


def recorded_turns(path: Path) -> set[tuple[int, int]]:
    """Return the steps and turns of the messages in the transcript at ``path``: each is one exchange of its run."""
    steps: dict[str, int] = {}
    found = set()
    for kind, data in records(path):
        if kind == "question":
            head, _ = read_question(parts_of(data)[0], None)
            steps[MessageParts.of(data).question.hex()] = head.step
        if kind in ("question", "message"):
            parts = MessageParts.of(data) if kind == "question" else MessageParts.read(data)
            found.add((steps[parts.question.hex()], int.from_bytes(parts.turn, "little")))
    return found


def recorded_answer(data: bytes) -> tuple[str, str, bytes]:
    """Return site, digest of the message, and reply of an "answer" record; the reply of a "withheld" one is empty."""
    key, _, reply = data.partition(b"\n")
    site, _, digest = key.decode().partition(" ")
    return site, digest, reply


def _record(kind: int, data: bytes) -> bytes:
    """Encode a record: kind, length, checksum of the data, checksum of these three, and the data."""
    head = _HEAD.pack(kind, len(data), zlib.crc32(data))
    return head + zlib.crc32(head).to_bytes(4, "big") + data


def _whole(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield kind and bytes of each record from here on, except an incomplete last one.

    A damaged record is an error: treating it as the file's end would lose answers of sites and releases.
    """
    while len(head := file.read(_HEAD.size + 4)) == _HEAD.size + 4:
        if zlib.crc32(head[: _HEAD.size]).to_bytes(4, "big") != head[_HEAD.size :]:
            break
        kind, length, checksum = _HEAD.unpack(head[: _HEAD.size])
        data = file.read(length)
        if zlib.crc32(data) != checksum:
            break
        yield kind, data
    if any(file.read()):  # after a power cut, an incomplete record is followed by nothing or by zeros
        raise _damaged(path)


def _damaged(path: Path) -> FedsynthError:
    return FedsynthError(
        f"{path} is damaged, or another version of fedsynth wrote parts of it; restore it from the backup, resume the "
        "run with the fedsynth that began it, or give it another name or path and pay again"
    )
