"""The wire format: one content, one encoding; bounded, canonical, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.world import request_of

from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import Answer, PlainAnswer
from fedsynth.federation.query import Counts, RecordCount
from fedsynth.federation.question import QuestionHead
from fedsynth.federation.wire import (
    CODES,
    AuditPosition,
    Code,
    ForeignReply,
    MessageParts,
    ReplyHead,
    Request,
    WireError,
    decode,
    encode,
    parts_of,
    read_question,
    read_reply,
    read_request,
    write_answer,
    write_head,
    write_reply,
)
from fedsynth.keys import Keys, seal
from fedsynth.privacy.cost import Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.schema.bins import Axis

HEAD: dict[str, Any] = {
    "run": "run",
    "step": 0,
    "verb": "sum",
    "release": Gaussian(0.1),
    "trust": "local",
    "schema": "0" * 64,
    "unit": Unit(),
    "neighbours": "add-remove",
}
SEED, KEYS = Keys(b"a" * 32).seed, {name: Keys(name.encode() * 32).identity for name in "ab"}
PUBLIC = KEYS["a"]
QUERY = Counts((Axis(0, np.array([0.5, 1.0]), np.array([0, 1, 1])), Axis(1)), ((0,), (0, 1)), (1, 3))


def request(query: Any = QUERY, **change: Any) -> Request:
    return request_of(query, **{**HEAD, **change})


def asked_under(head: QuestionHead) -> Agreement:
    """Return the agreement that the question names, in place of any."""
    (found,) = (one for one in (request().agreement,) if one.digest == head.agreement)
    return found


def said(asked: Request, code: Code, *content: bytes, sealed: bool = False) -> bytes:
    answer = write_answer(code, AuditPosition(), *content, sealed=sealed)
    return write_reply(SEED, "a", ReplyHead("1" * 64, asked.digest), answer)


def test_the_digest_of_a_message_is_that_of_its_parts_and_of_no_other_bytes():
    """Any bytes have one, also such as no coordinator sends: the site must see that they are not what was signed."""
    body = request().at(3, None).body
    parts = MessageParts.of(body)
    assert MessageParts.read(parts.data) == parts
    assert parts.digest.hex() == request().at(3, None).digest
    assert (parts.question.hex(), int.from_bytes(parts.turn, "little")) == (request().question, 3)
    bodies = [body[:end] for end in range(len(body))] + [body + bytes(count) for count in range(20)]
    bodies += [body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] for at in range(len(body))]
    assert len({MessageParts.of(one).digest for one in bodies}) == len(bodies)
    with pytest.raises(WireError, match="incomplete"):
        MessageParts.read(parts.data[:-1])


def test_a_question_comes_back_as_it_was():
    asked = request()
    read = Request.read(asked.body, asked_under)
    assert read.question == asked.question
    assert read.head.release == Gaussian(0.1)
    assert isinstance(read.query, Counts)
    assert read.query.tables == ((0,), (0, 1))
    np.testing.assert_array_equal(read.query.axes[0].cuts, [0.5, 1.0])
    assert Request.read(asked.at(3, None).body, asked_under).digest == asked.at(3, None).digest


def test_arrays_are_read_only_views_of_the_message():
    read = Request.read(request().body, asked_under).query
    assert isinstance(read, Counts)
    groups = read.axes[0].groups
    assert groups is not None
    assert not groups.flags.writeable
    assert not groups.flags.owndata


@pytest.mark.parametrize(
    "change",
    [
        {"step": 2**31},
        {"run": "x" * 65},
        {"run": "../x"},
        {"run": ""},
        {"verb": "tell"},
        {"release": Gaussian(float("nan"))},
        {"release": Gaussian(float("inf"))},
        {"release": Gaussian(1e-9)},
    ],
)
def test_a_value_is_trusted_only_after_decoding(change):
    with pytest.raises(WireError):
        request(**change)


def test_every_field_is_part_of_the_digest():
    changes: list[dict[str, Any]] = [
        {"run": "other"},
        {"step": 1},
        {"verb": "each"},
        {"release": Gaussian(0.2)},
        {"trust": "secure"},
        {"schema": "1" * 64},
        {"roster": "1" * 64},
        {"method": "aim"},
        {"sites": 2},
        {"unit": Unit(2, 1)},
        {"unit": Unit(1, 2)},
        {"neighbours": "replace"},
    ]
    queries = [
        RecordCount(),
        Counts(QUERY.axes, ((0,), (1, 0)), (1, 3)),
        Counts(QUERY.axes, QUERY.tables, (1, 4)),
        Counts((Axis(0, np.array([0.5, 1.5]), np.array([0, 1, 1])), Axis(1)), QUERY.tables, (1, 3)),
        Counts((Axis(0, np.array([0.5, 1.0]), np.array([0, 0, 1])), Axis(1)), QUERY.tables, (1, 3)),
    ]
    digests = [
        request().question,
        *(request(**one).question for one in changes),
        *(request(q).question for q in queries),
    ]
    assert len(set(digests)) == len(digests)
    assert request().question == request().question


def as_frame(head: bytes, tail: bytes = b"") -> bytes:
    start = struct.pack("<I", len(head)) + head
    return start + bytes(-len(start) % 8) + tail


def parsed(**change: Any) -> Any:
    """Return the head of a frame of values as plain objects, changed."""
    return {"type": "values", "values": ["int64", [2]], **change}


def refused(frame: bytes) -> bool:
    try:
        decode(frame, Answer)
    except WireError:
        return True
    return False


TWO = np.array([1, 2], dtype="<i8").tobytes()


def test_a_frame_that_encode_would_not_write_is_refused():
    good = as_frame(msgspec.msgpack.encode(parsed()), TWO)
    assert good == encode(PlainAnswer(np.array([1, 2])))
    assert not refused(good)
    head = msgspec.msgpack.encode(parsed())
    bad = {
        "keys in another order": as_frame(msgspec.msgpack.encode({"values": ["int64", [2]], "type": "values"}), TWO),
        "an unknown field": as_frame(msgspec.msgpack.encode(parsed(more=1)), TWO),
        "another kind of numbers": as_frame(msgspec.msgpack.encode(parsed(values=["float64", [2]])), TWO),
        "a structured kind": as_frame(msgspec.msgpack.encode(parsed(values=["V16", [1]])), TWO),
        "a shape that is too long": as_frame(msgspec.msgpack.encode(parsed(values=["int64", [3]])), TWO),
        "a shape that is too short": as_frame(msgspec.msgpack.encode(parsed(values=["int64", [1]])), TWO),
        "a huge shape": as_frame(msgspec.msgpack.encode(parsed(values=["int64", [2**31, 2**31]])), TWO),
        "a negative shape": as_frame(msgspec.msgpack.encode(parsed(values=["int64", [-1]])), TWO),
        "a wide integer": as_frame(head.replace(b"\x91\x02", b"\x91\xcc\x02"), TWO),
        "bytes behind": good + bytes(8),
        "padding that is not zero": good[: 4 + len(head)] + b"\1" * (-(4 + len(head)) % 8) + TWO,
        "a head that is cut off": good[:10],
        "nothing": b"",
        "a length beyond the frame": struct.pack("<I", 2**31) + good[4:],
        "a nested bomb": as_frame(b"\x91" * 100_000),
    }
    for what, frame in bad.items():
        assert refused(frame), what


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -0.0])
def test_numbers_are_finite_and_zero_has_no_sign(wrong):
    with pytest.raises(WireError):
        request(Counts((Axis(0, np.array([wrong, 1.0])),), ((0,),)))


def test_a_question_that_is_too_large_is_an_error_of_whoever_asks():
    with pytest.raises(InvalidParameter, match="too large"):
        request(Counts((Axis(0),) * 64, (tuple(range(64)),) * 5000))


def test_unknown_kinds_are_refused():
    frame = request(RecordCount()).frame.replace(b"\xa4size", b"\xa4sizE")
    with pytest.raises(Unsupported):
        read_question(frame)


def test_a_request_comes_apart_again_for_the_site_that_it_is_for():
    coordinator, asked = Keys(bytes(32)), replace(request().at(2, None), weights=b"weights")
    last = AuditPosition(7, b"c" * 32, b"s" * 64)
    agreement = asked.agreement.data
    head = write_head(coordinator, "a", asked, agreement, last, b"attempt!")
    assert len(head) < 400
    data = head + asked.body + agreement + asked.weights
    found = read_request(data, "a", coordinator.public)
    assert (found.message, found.digest) == (asked.digest, hashlib.sha256(head).hexdigest())
    assert (found.head.seen, found.head.attempt, bytes(found.attached)) == (last, b"attempt!", b"weights")
    assert (found.head.run, found.head.step, found.head.turn) == ("run", 0, 2)
    frame, turn, event = parts_of(found.body)
    assert (bytes(frame), turn, bytes(event)) == (asked.frame, 2, b"")
    for cut in (0, 3, 8, 50, len(head) - 1, len(head), len(data) - 8, len(data) - 1):
        with pytest.raises(WireError, match="incomplete"):
            read_request(data[:cut], "a", coordinator.public)
    for at in range(len(data)):
        with pytest.raises(WireError):
            read_request(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "a", coordinator.public)
    with pytest.raises(WireError, match="is for site 'a', and this one is 'b'"):
        read_request(data, "b", coordinator.public)
    with pytest.raises(WireError, match="not signed by the coordinator"):
        read_request(data, "a", Keys(b"x" * 32).public)


def test_a_confidential_answer_opens_for_the_coordinator_alone():
    coordinator, asked = Keys(b"k" * 32), request()
    body = encode(PlainAnswer(np.arange(5)))
    box = b"".join(seal(coordinator.public, b"s" * 32, body, "a", asked.digest))
    assert len(box) == len(body) + 48
    data = said(asked, "answered", box, sealed=True)
    answer = read_reply(data, asked, "a", PUBLIC, coordinator.unseal).answer
    assert isinstance(answer, PlainAnswer)
    np.testing.assert_array_equal(answer.values, np.arange(5))
    with pytest.raises(FedsynthError):
        read_reply(data, asked, "a", PUBLIC, Keys(b"x" * 32).unseal)
    with pytest.raises(FedsynthError):
        coordinator.unseal(box[:-1] + bytes([box[-1] ^ 1]), "a", asked.digest)
    with pytest.raises(FedsynthError):
        coordinator.unseal(box, "b", asked.digest)  # another site's answer
    with pytest.raises(FedsynthError):
        coordinator.unseal(bytes(len(box)), "a", asked.digest)  # a point of low order
    with pytest.raises(FedsynthError):
        coordinator.unseal(box, "a", request(RecordCount()).digest)


def test_replies_name_their_question_and_errors_say_nothing_else():
    asked, unseal = request(), Keys(bytes(32)).unseal
    errors = {code: said(asked, code) for code in CODES[1:]}
    assert len({len(data) for data in errors.values()}) == 1
    for code, data in errors.items():
        assert read_reply(data, asked, "a", PUBLIC, unseal).code == code
        for other in (("b", PUBLIC), ("a", bytes(32)), ("a", KEYS["b"])):
            with pytest.raises(ForeignReply):
                read_reply(data, asked, *other, unseal)
        assert read_reply(data, asked, "a", PUBLIC, unseal, "1" * 64).code == code
        with pytest.raises(ForeignReply):
            read_reply(data, asked, "a", PUBLIC, unseal, "2" * 64)
        with pytest.raises(ForeignReply):
            read_reply(data, request(RecordCount()), "a", PUBLIC, unseal)
        with pytest.raises(ForeignReply):
            read_reply(data + encode(PlainAnswer(np.arange(2))), asked, "a", PUBLIC, unseal)
    wrong = said(asked, "failed", encode(PlainAnswer(np.arange(2))))
    with pytest.raises(WireError, match="must not hold an answer"):
        read_reply(wrong, asked, "a", PUBLIC, unseal)


def test_a_signed_position_of_an_audit_is_a_text_and_comes_back():
    signed = AuditPosition.signed(SEED, "a", 2**53, b"c" * 32)
    assert AuditPosition.parse(f" {signed}\n") == signed
    assert len(str(signed)) < 200  # an audit row keeps it whole
    assert signed.verified("a", PUBLIC)
    for other in (replace(signed, row=1), replace(signed, chain=bytes(32)), replace(signed, signature=bytes(64))):
        assert not other.verified("a", PUBLIC)
    assert not signed.verified("b", PUBLIC)
    assert not signed.verified("a", KEYS["b"])
    assert AuditPosition.signed(SEED, "a", 0, bytes(32)) == AuditPosition()
    for text in (
        "",
        "7",
        "7:a:b",
        str(signed)[:-1],
        f"0{signed}",
        str(signed).replace(":", ":=", 1),
        str(AuditPosition()),
    ):
        with pytest.raises(InvalidParameter, match="ROW:CHAIN:SIGNATURE"):
            AuditPosition.parse(text)
