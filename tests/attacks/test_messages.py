"""Messages made by hand: forged digests, two bytes for one content, bombs, and everything that is no question."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from tests.attacks.world import (
    AGE,
    COORDINATOR,
    DIAGNOSIS,
    SCHEMA,
    SEX,
    answer_in,
    ask,
    converse,
    counts,
    forged,
    framed,
    head_of,
    of_body,
    question,
    read,
    reply_of,
    sealed,
    secure_sites,
    signed,
    site,
    table,
    values,
    with_head,
)

from fedsynth.errors import FedsynthError
from fedsynth.federation.events import Answer, Approve, PlainAnswer
from fedsynth.federation.query import Counts, RecordCount
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import (
    AuditPosition,
    ForeignReply,
    ReplyHead,
    Request,
    WireError,
    decode,
    encode,
    read_reply,
    write_reply,
)
from fedsynth.keys import Keys
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Public
from fedsynth.schema.bins import Axis
from fedsynth.secure.session import MASKED
from fedsynth.secure.site import SecureSum

MEGABYTE = 1 << 20
SIGNING = Keys(bytes(32)).seed
CUT = Counts((Axis(AGE, np.array([10.0, 50.0, 100.0]), np.array([0, 1, 1])),), ((0,),))
"""A question with an array of each kind: cut points, and groups of the cells between them."""


def refused(of: Site, message: Request) -> bool:
    """Whether a site refuses a message and charges nothing for it."""
    before = of.account.spent()
    return ask(of, message).code == "refused" and of.account.spent() == before


@pytest.mark.parametrize("name", ["_memo", "digest", "question", "salt"])
def test_a01_a_server_cannot_choose_the_digest_of_its_question(name):
    """What a question costs and which noise hides it follow from its content; no field of a message overrides that."""
    asked = site()
    paid = question()
    assert ask(asked, paid).answer is not None
    better = question(release=Gaussian(0.01))
    assert refused(asked, with_head(better, {name: paid.question}))
    assert refused(asked, with_head(better, {name: {"digest": paid.question}}))
    assert refused(asked, with_head(better, {"query": {**head_of(better)["query"], name: paid.question}}))


OTHERS = {
    "step": {"step": 1},
    "run": {"run": "other"},
    "price": {"release": Gaussian(2e-4)},
    "law": {"release": Laplace(0.02)},
    "verb": {"verb": "each"},
    "query": {"query": counts((SEX,), (DIAGNOSIS,))},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a01_two_questions_never_share_their_noise(change):
    """Answers to two different questions carry independent noise, so that no difference of theirs is exact.

    Forty cells agree in their noise of 70 with a chance of one in 10^80.
    """
    cells = Counts((Axis(AGE, np.arange(40.0)),), ((0,),))
    asked = site(size_is_public=False)
    fields: dict[str, Any] = {"query": cells, **change}
    if isinstance(change.get("query"), Counts):
        fields["query"] = Counts((Axis(AGE, np.arange(40.0)), Axis(SEX)), ((0,), (1,)))
    first = values(ask(asked, question(cells)))
    spent = asked.account.spent().rho
    second = values(ask(asked, question(**fields)))
    assert asked.account.spent().rho > spent
    assert not np.array_equal(first[:40], second[:40])


def test_a01_the_masks_of_a_secure_sum_serve_one_question():
    """A site masks two vectors with different masks, and takes no event of one question for another."""
    sites = secure_sites(3, SecureSum())
    asked, other = (question(trust="secure", step=step) for step in (0, 1))
    first = converse(sites, asked, MASKED)[MASKED]["site-0"]
    stolen = other.at(MASKED, first.message.event)
    assert refused(sites[0], stolen)
    second = converse(sites, other, MASKED)[MASKED]["site-0"]
    apart = values(first.reply).view(np.uint64) - values(second.reply).view(np.uint64)
    assert np.abs(apart.view(np.int64)).min() > 2**32  # masks of 64 bits; the noise differs by some hundreds


# ---------------------------------------------------------------------------------------------------------------------
# A2: one content, one encoding


def packed(head: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(head)


def other_encodings() -> Iterator[tuple[str, Request]]:
    """Yield other bytes for the question :data:`CUT`, each with the way in which they are no canonical ones."""
    asked = question(CUT)
    head = head_of(asked)
    cuts, groups = CUT.axes[0].cuts, CUT.axes[0].groups
    assert cuts is not None
    assert groups is not None
    arrays = (cuts.tobytes(), groups.tobytes())
    query = head["query"]

    def axis(*items: Any) -> dict[str, Any]:
        return {**head, "query": {**query, "axes": [list(items)]}}

    assert framed(packed(head), *arrays) == asked.frame
    yield "keys in another order", forged(framed(packed(dict(reversed(head.items()))), *arrays))
    plain = packed(head)
    step = plain.index(b"\xa4step") + 5
    wide = plain[:step] + b"\xd3" + bytes(8) + plain[step + 1 :]
    yield "an integer of eight bytes", forged(framed(wide, *arrays))
    price = plain.index(b"\xa3rho\xcb") + 4
    narrow = plain[:price] + b"\xca" + struct.pack(">f", 2.0**-10) + plain[price + 9 :]
    yield "a float of four bytes", forged(framed(narrow, *arrays))
    text = plain.index(b"\xa3run\xa3run") + 4
    yield "a text of a long length", forged(framed(plain[:text] + b"\xd9\x03" + plain[text + 1 :], *arrays))
    twice = bytes([plain[0] + 1]) + plain[1:] + b"\xa4step\x00"
    yield "a key that is there twice", forged(framed(twice, *arrays))
    yield (
        "a default that is left out",
        forged(framed(packed({**head, "query": {k: v for k, v in query.items() if k != "weights"}}), *arrays)),
    )
    yield (
        "a field that is left out",
        forged(framed(packed({k: v for k, v in head.items() if k != "agreement"}), *arrays)),
    )
    yield "an unknown field", forged(framed(packed({**head, "colour": "red"}), *arrays))
    yield "an unknown field of the query", forged(framed(packed({**head, "query": {**query, "x": 1}}), *arrays))
    yield "an integer for a float", forged(framed(packed({**head, "release": {"type": "gaussian", "rho": 1}}), *arrays))
    yield "a list for a struct", forged(framed(packed({**head, "query": list(query.values())}), *arrays))
    yield "bytes behind the head", forged(framed(plain + b"\x00", *arrays))
    yield "bytes behind the arrays", forged(framed(plain, *arrays, bytes(8)))
    yield "bytes behind the question", of_body(asked.body + bytes(1))
    odd = packed({**head, "run": "run" + "n" * (-(4 + len(plain)) % 8 + 1)})  # seven bytes short of a multiple of eight
    yield "padding that is not zero", forged(len(odd).to_bytes(4, "little") + odd + b"\1" * 7 + b"".join(arrays))
    for what, wrong in (
        ("NaN", [np.nan, 50, 100]),
        ("infinity", [10, 50, np.inf]),
        ("a zero with a sign", [-0.0, 50, 100]),
        ("numbers that do not increase", [10, 10, 100]),
    ):
        yield what, forged(framed(plain, np.array(wrong).tobytes(), arrays[1]))
    for name in ("float32", "<f8", "|V8", "f8,f8", "object", "uint64", "", 7, ["float64"]):
        yield f"an array of {name!r}", forged(framed(packed(axis(AGE, [name, [3]], ["int64", [3]])), *arrays))
    for shape in (
        [3, 1],
        [1, 3],
        [-3],
        [2],
        [4],
        [2**40],
        3,
        "3",
        [],
        [3.0],
        [[3]],
        [0, 2**32 - 1, 2**32 - 1],
        [1] * 5,
    ):
        yield f"the shape {shape}", forged(framed(packed(axis(AGE, ["float64", shape], ["int64", [3]])), *arrays))
    yield "cuts and groups swapped", forged(framed(packed(axis(AGE, ["int64", [3]], ["float64", [3]])), *arrays))
    yield "groups below zero", forged(framed(plain, arrays[0], np.array([0, -1, 1]).tobytes()))
    yield "groups beyond any table", forged(framed(plain, arrays[0], np.array([0, 1, 2**62]).tobytes()))
    yield "an axis of too many parts", forged(framed(packed(axis(*query["axes"][0], 1)), *arrays))
    for turn in (1, 2**63, 2**64 - 1):
        yield f"turn {turn}", forged(asked.frame, turn)
    yield "an event where there is none", forged(asked.frame, 0, encode(PlainAnswer(np.zeros(1, dtype=np.int64))))


@pytest.mark.parametrize(("what", "message"), [pytest.param(*one, id=one[0]) for one in other_encodings()])
def test_a02_one_question_has_one_encoding(what, message):
    """Bytes that would mean the same, or nothing, are refused: what was charged is what was read."""
    asked = site()
    assert ask(asked, question(CUT)).answer is not None
    assert refused(asked, message), what


def test_a02_a_choice_has_no_zero_with_a_sign():
    """A zero with a sign is no second way to ask the same, in a head as in an array."""
    from fedsynth.federation.query import Selection

    class Draw(Selection, frozen=True):
        kind: ClassVar[str] = "draw"

    with pytest.raises((WireError, FedsynthError)):
        decode(encode(Draw(1, -0.0)), Draw)


# ---------------------------------------------------------------------------------------------------------------------
# A12: sizes


def peak(action: Any) -> int:
    """Return the largest memory (bytes) that an action takes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many_empty_arrays() -> bytes:
    """Return a head in which a sequence goes on for millions of elements."""
    head = packed({**head_of(question()), "query": {"axes": [[0, None, None]], "tables": [], "weights": []}})
    return head.replace(b"\xa6tables\x90", b"\xa6tables\xdd" + (2**22).to_bytes(4, "big") + b"\x90" * 2**22)


BOMBS = {
    "an array that is not there": lambda: forged(
        framed(
            packed(
                {
                    **head_of(question(CUT)),
                    "query": {"axes": [[2, ["float64", [2**31]], None]], "tables": [[0]], "weights": []},
                }
            )
        )
    ),
    "a sequence without end": lambda: forged(framed(many_empty_arrays())),
    "more than a site reads": lambda: of_body(bytes(20 * MEGABYTE)),
    "a head beyond every head": lambda: forged(framed(bytes(MEGABYTE))),
    "a long name": lambda: with_head(question(), {"run": "x" * 200_000}),
    "a long kind": lambda: with_head(question(), {"kind": "x" * 200_000}),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a12_a_message_takes_no_more_memory_than_it_is_long(bomb):
    """The memory that a message takes at a site is bounded by its length; nothing in it unpacks to more."""
    asked, data = site(), sealed(bomb())
    found: list[bytes] = []
    assert peak(lambda: found.append(asked.answer(data).data)) < 4 * len(data) + 2 * MEGABYTE
    assert len(found[0]) < 400
    assert asked.account.spent().rho == 0


def test_a12_answers_are_no_larger_than_the_policy_allows():
    """The cells of an answer are counted before it is charged, from schema and parameters alone."""
    asked = site(largest_answer=40)
    assert ask(asked, question(counts((DIAGNOSIS,), (SEX, AGE)))).answer is not None
    assert refused(asked, question(counts((DIAGNOSIS, AGE))))
    wide = Counts((Axis(SEX, None, np.array([0, 2**25])),) * 2, ((0, 1),))  # 2^50 cells
    assert refused(site(), question(wide))


def test_a12_messages_that_nobody_signed_are_not_kept():
    """Whoever can reach a site and has no key makes it keep nothing: not a message, not a row of its audit."""
    asked = site()
    stranger = [bytes(64) + bytes(104) + size.to_bytes(4, "little") + bytes(2 * MEGABYTE) for size in range(16)]
    tracemalloc.start()
    try:
        for message in stranger:
            asked.answer(message)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 8 * MEGABYTE
    assert asked.account.head()[0] == 0


@pytest.mark.parametrize("what", ["sessions of secure sums", "public sizes"])
def test_a12_messages_that_cost_nothing_fill_no_disk(what):
    """What costs nothing leaves a bounded number of rows an hour in the account, and so do rejected messages."""
    free: dict[str, Any] = {"trust": "secure"}
    if what == "public sizes":
        asked, number = site(size_is_public=True), 400
        free = {"query": RecordCount(), "verb": "each", "release": Public(), "neighbours": "replace"}
    else:
        (asked, *_), number = secure_sites(3, SecureSum()), 400
    asked.account.free_an_hour = number // 4
    for step in range(number):
        ask(asked, question(**free, run=f"run-{step}"))
    assert asked.account.spent().rho == 0
    assert asked.account.head()[0] <= number // 2 + 1  # one row says that the account counts replaced rows now
    assert len(asked.account.open_runs()) == number // 4


def test_a12_a_reply_brings_no_long_text_to_the_server():
    """A reply holds one code and numbers, no text; the memory that it takes at the server is bounded by its length."""
    asked = question()
    good = signed(SIGNING, "north", ReplyHead("1" * 64, asked.digest), "refused")
    start = len(good) - len(answer_in(good))
    changes = {
        "a text": (start, 7),
        "another kind": (start + 1, 2),
        "padding": (start + 2, 1),
        "a row": (start + 15, 255),
    }
    rest = (asked, "north", Keys(bytes(32)).identity, COORDINATOR.unseal)
    for at, value in changes.values():
        answer = answer_in(good[:at] + bytes([value]) + good[at + 1 :])
        with pytest.raises(WireError, match="not of this version"):
            read_reply(write_reply(SIGNING, "north", ReplyHead("1" * 64, asked.digest), answer), *rest)
    long = signed(SIGNING, "north", ReplyHead("1" * 64, asked.digest), "refused", b"x" * 32 * MEGABYTE)
    with pytest.raises(WireError, match="must not hold an answer"):
        read_reply(long, *rest)


# ---------------------------------------------------------------------------------------------------------------------
# A12: everything that is no question


def mangled() -> Iterator[tuple[str, Request]]:
    """Yield messages that are no questions to this site, each with the way in which it is none."""
    asked = question()
    query = head_of(asked)["query"]

    def tables(*found: Any) -> Request:
        return with_head(asked, {"query": {**query, "tables": list(found)}})

    yield "nothing", of_body(b"")
    yield "zeros", of_body(bytes(100))
    yield "half of a message", of_body(asked.body[:-40])
    yield "a head that is a list", forged(framed(b"\x90"))
    yield "a head that is nothing", forged(framed(b"\xc0"))
    yield "nested beyond any depth", forged(framed(b"\x91" * 100_000))
    yield "a length beyond the end", forged(b"\xff\xff\xff\x7f" + bytes(20))
    yield (
        "text that is no text",
        forged(framed(packed(head_of(asked)).replace(b"\xa3run\xa3run", b"\xa3run\xa3\xff\xfe\xfd"))),
    )
    changes: dict[str, dict[str, Any]] = {
        "a release without a law": {"release": {"rho": 1e-4}},
        "a release of an unknown law": {"release": {"type": "none"}},
        "a cost that is text": {"release": {"type": "gaussian", "rho": "little"}},
        "a cost that is NaN": {"release": {"type": "gaussian", "rho": float("nan")}},
        "a cost without end": {"release": {"type": "gaussian", "rho": float("inf")}},
        "a cost below zero": {"release": {"type": "gaussian", "rho": -1.0}},
        "a cost of zero": {"release": {"type": "gaussian", "rho": 0.0}},
        "a cost too small to be counted": {"release": {"type": "gaussian", "rho": 1e-30}},
        "no noise": {"release": {"type": "exact"}},
        "a public table": {"verb": "each", "release": {"type": "public"}},
        "a deposit that nobody guards": {
            "verb": "deposit",
            "release": {"type": "deposit", "rho": 0.01, "epsilon": 0.0},
        },
        "a deposit with two prices": {"verb": "deposit", "release": {"type": "deposit", "rho": 0.01, "epsilon": 0.1}},
        "a run that is a list": {"run": ["r"]},
        "a run without a name": {"run": ""},
        "a run with a line in its name": {"run": "a\nb"},
        "a trust that is a list": {"trust": ["local"]},
        "a trust that is not accepted": {"trust": "trusted"},
        "a kind that is a number": {"kind": 7},
        "a kind that is code": {"kind": "__import__('os').system"},
        "a module for a kind": {"kind": "os:system"},
        "a verb that does not exist": {"verb": "dump"},
        "a choice among tables": {"verb": "choose", "release": {"type": "exponential", "rho": 0.01}},
        "a step of many digits": {"step": 2**63},
        "a step below zero": {"step": -1},
        "a step that is true": {"step": True},
        "another version": {"version": 2},
        "another schema": {"schema": "0" * 64},
        "a schema that is no digest": {"schema": "Z" * 64},
        "no schema": {"schema": ""},
        "nobody to protect": {"unit": {"rows": 0, "sites": 1}},
        "neighbours that the site does not have": {"neighbours": "replace"},
        "neighbours that nobody has": {"neighbours": "none"},
        "a query that is nothing": {"query": None},
        "a query that is bytes": {"query": b"\x80"},
    }
    for what, change in changes.items():
        yield what, with_head(asked, change)
    for what, found in {
        "no table": (),
        "a table of nothing": ([],),
        "a column that does not exist": ([99],),
        "a column before the first": ([-1],),
        "a column that is text": (["x"],),
        "a column twice": ([0, 0],),
        "a table of tables": ([[0]],),
    }.items():
        yield what, tables(*found)
    yield "an axis of no column", with_head(asked, {"query": {**query, "axes": [[3, None, None]], "tables": [[0]]}})
    yield "weights of no table", with_head(asked, {"query": {**query, "weights": [1, 1]}})
    yield "a weight of zero", with_head(asked, {"query": {**query, "weights": [0]}})
    yield "a weight beyond all", with_head(asked, {"query": {**query, "weights": [65]}})
    yield "cuts of a column without numbers", question(Counts((Axis(SEX, np.array([1.0])),), ((0,),)))
    yield "groups of too few cells", question(Counts((Axis(SEX, None, np.array([0])),), ((0,),)))
    for verb in ("sum", "each"):
        yield f"an event of a secure sum for {verb}", question(verb=verb).at(0, Approve(bytes(32), (0,)))


MANGLED = [pytest.param(*one, id=one[0]) for one in mangled()]


@pytest.mark.parametrize(("what", "message"), MANGLED)
def test_a12_every_message_gets_a_reply_and_a_row(what, message):
    """A site refuses what is no question to it: one row of its audit, no charge, and no word about the reason."""
    asked = site()
    assert ask(asked, message).code == "refused"
    assert (asked.account.head()[0], asked.account.spent().rho) == (1, 0)
    assert asked.account.verify().wrong == ""


def test_a12_errors_are_codes_of_one_length():
    """Nothing tells errors apart but their codes, which have one length: no message can tell them by it."""
    lengths = {len(reply_of(site(), message)) for _, message in mangled()}
    dear = site(budget=type(site().policy.budget)(0.01, 1e-6))
    spent = question(release=Gaussian(1.0))
    assert ask(dear, spent).code == "spent"
    lengths.add(len(reply_of(dear, spent)))
    assert len(lengths) == 1


def test_a12_a_message_that_nobody_signed_is_refused_without_a_row():
    """Signature, body and key belong together; who has no key leaves nothing in the account."""
    asked, message = site(), question()
    good = sealed(message)
    for at in (0, 4, 30, 180, len(good) - len(message.body) - 1, len(good) - 60, len(good) - 1):  # each part
        reply = asked.answer(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]).data
        assert len(reply) < 400
        with pytest.raises(ForeignReply, match="did not sign"):  # it names no message
            read(asked, message, reply)
    assert (asked.account.head()[0], asked.account.spent().rho) == (0, 0)
    with pytest.raises(ForeignReply, match="compare"):
        ask(replace(asked, coordinator=bytes(64)), message)


# ---------------------------------------------------------------------------------------------------------------------
# A12: replies


def test_a12_arrays_of_a_reply_are_integers():
    """A reply brings nothing but arrays of the agreed types, whoever reads it."""
    for name in ("float64", "|V16", "object", "uint8", "int32"):
        frame = framed(packed({"type": "values", "values": [name, [2]]}), bytes(16))
        with pytest.raises(WireError):
            decode(frame, Answer)


def boxes() -> Iterator[tuple[str, bytes]]:
    """Yield sealed answers that are none."""
    yield "empty", b""
    yield "short", bytes(31)
    yield "a point of low order", bytes(100)
    yield "noise", bytes(range(100))


@pytest.mark.parametrize(("what", "box"), [pytest.param(*one, id=one[0]) for one in boxes()])
def test_a12_a_box_that_does_not_open_is_a_lost_reply(what, box):
    """Whatever a site puts into a sealed box, the server has lost that site's answer and nothing else."""
    asked = question(trust="trusted")
    message = Message.of("north", Keys(bytes(32)).identity, asked, COORDINATOR, AuditPosition())
    reply = signed(SIGNING, "north", ReplyHead(message.digest, asked.digest), "answered", box, sealed=True)
    assert message.reply(reply).code == "lost", what


def test_a12_an_honest_question_is_answered():
    """What is refused above is refused for what it is; noise of 7.1 passes the bound once in 10^16 times."""
    asked = site(table(40))
    reply = ask(asked, question(release=Gaussian(0.02)))
    assert abs(values(reply).sum() - 40) < 60
    assert asked.account.spent().rho == 0.02
    assert SCHEMA.digest == asked.rows.schema.digest
    assert ask(asked, question(release=Exact())).code == "refused"
