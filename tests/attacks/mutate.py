"""Mutated messages at a site and mutated replies at a server, and what must hold of all of them.

A program by itself, so that its memory is its own: ``python -m tests.attacks.mutate SEED MESSAGES``; it prints what it
counted, as JSON, and fails where something does not hold.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import resource
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tests.attacks.world import (
    AGE,
    COORDINATOR,
    DIAGNOSIS,
    SCHEMA,
    SEX,
    aggregator,
    answer_in,
    ask,
    counts,
    framed,
    of_body,
    question,
    reply_of,
    sealed,
    secure_sites,
    signed,
    site,
)

from fedsynth.bench.published.tda_sums import MixtureEncoding, MixtureSums, MomentSums
from fedsynth.errors import FedsynthError
from fedsynth.federation.query import PUBLISHED, AnyQuery, Counts, RecordCount
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.trust import OneMessageSum
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import (
    AuditPosition,
    ForeignReply,
    ReplyHead,
    Request,
    encode,
    open_reply,
    parts_of,
    read_answer,
    read_request,
    write_reply,
)
from fedsynth.keys import Keys, seal
from fedsynth.methods.flaim_scores import GRID, FLAIMSelection, MeasuredTables
from fedsynth.methods.interactions import Interactions
from fedsynth.methods.sketch import Sketches
from fedsynth.methods.tda_sums import Encoding, ProductSums
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import AdaptiveSelection, Deposit, Exponential, Gaussian, Laplace, Public
from fedsynth.schema.bins import Axis
from fedsynth.secure.server import Aggregator
from fedsynth.secure.site import SecureSum

LARGEST_ANSWER = 2**18
RICH = Budget(100.0, 1e-6)
_NUMBERS = (
    0,
    1,
    2,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**64 - 1,
    -1,
)
_FLOATS = (0.0, -0.0, 1e-300, 1e-6, 0.5, 1.0, 1e300, float("inf"), -float("inf"), float("nan"), -1.0)

# ---------------------------------------------------------------------------------------------------------------------
# Valid messages


def queries() -> Iterator[tuple[str, AnyQuery, Any]]:
    """Yield verb, query and release of questions of every kind."""
    cut = Axis(AGE, np.array([20.0, 40.0, 100.0]), np.array([0, 1, 1]))
    columns = (Encoding(np.array([-9, 9])), Encoding(np.arange(5)), Encoding(np.arange(10)))
    price = Gaussian(1e-4)
    yield "sum", counts((SEX,), (DIAGNOSIS, AGE)), price
    yield "sum", Counts((cut, Axis(SEX)), ((0, 1), (1,)), (2, 1)), Laplace(0.01)
    yield "sum", RecordCount(), price
    yield "sum", ProductSums(columns, 10_000), price
    replicas = tuple(MixtureEncoding(column.scores, column.cuts) for column in columns)
    yield "sum", MomentSums(replicas, 10_000), price
    yield "sum", MixtureSums((AGE,), np.linspace(-1, 1, 6).reshape(3, 1, 2)), price
    yield "sum", Interactions((cut, Axis(SEX), Axis(DIAGNOSIS)), ((0, 1), (0, 1, 2)), (2,), (3, 1)), price
    yield "sum", Sketches(((SEX, AGE),), 8, 3), price
    yield "each", counts((SEX,)), Laplace(0.01)
    yield "each", RecordCount(), Public()
    yield "deposit", counts((SEX, AGE)), Deposit(rho=1e-4)
    model: dict[str, Any] = {
        "records": 40,
        "candidates": ((SEX, DIAGNOSIS), (SEX, AGE)),
        "weights": np.array([1, 2]),
        "penalties": np.array([0, 5]),
        "factors": ((SEX,),),
        "potentials": np.array([0.5, -0.5]),
    }
    yield "choose", FLAIMSelection(**model, by_column=np.full(17, GRID // 10)), Exponential(1e-4)
    measured = MeasuredTables(((SEX,),), np.array([20.0, 20.0]), np.array([1.0]), 40.0, 3)
    steps = AdaptiveSelection(Exponential(1e-4), Gaussian(1e-4), 2)
    yield "choose", FLAIMSelection(**model, steps=2, look_share=0.5, measured=measured), steps


@dataclass
class Target:
    """A site, the one trust that it accepts, and valid messages to it."""

    trust: str
    site: Site
    messages: list[Request]


def targets() -> list[Target]:
    """Return a site under each trust with messages of every verb and turn, none of which it has seen."""
    found = []
    for trust in (None, TrustedServer()):
        options: dict[str, Any] = {"budget": RICH, "size_is_public": True, "largest_answer": LARGEST_ANSWER}
        options["kinds"] = PUBLISHED
        asked = site(trust=trust, **options)
        name = "local" if trust is None else "trusted"
        messages = [
            question(query, verb=verb, release=release, trust=name, step=step, neighbours="replace")
            for step, (verb, query, release) in enumerate(queries())
            if verb != "deposit" or trust is not None
        ]
        found.append(Target(name, asked, messages))
    members = secure_sites(3, SecureSum())
    name, asked = "secure", members[0]
    messages = []
    for step in range(2):
        said = talk(members, question(counts((SEX,), (AGE,)), trust="secure", step=step))
        messages += [turn[asked.name][0] for turn in said]
    found.append(Target(name, asked, messages))
    for target in found:
        target.site.account.free_an_hour = 2**31
    return found


def talk(members: Sequence[Site], asked: Request) -> list[dict[str, tuple[Request, bytes]]]:
    """Play the server of a whole secure sum; return messages and replies of each turn."""
    session, doors, turns = aggregator(members, asked), {of.name: of for of in members}, []
    while events := session.ask():
        turn = {}
        for name, event in events.items():
            message = asked.at(session.turn, event)
            reply = ask(doors[name], message)
            assert reply.answer is not None, reply
            turn[name] = message, reply.data
            session.receive(name, reply.answer)
        turns.append(turn)
    return turns


# ---------------------------------------------------------------------------------------------------------------------
# Mutations


class Mutator:
    """Changes bytes at random: blindly, or in the numbers and texts of the heads in them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        """Return a number from 0 below ``n``; 0 for nothing to choose from."""
        return int(self.rng.integers(max(1, n)))

    def blind(self, data: bytes, other: bytes) -> bytes:
        """Return bytes with flips, cuts, insertions, swapped words, or another message's bytes in them."""
        changed = bytearray(data)
        for _ in range(1 + self.below(3)):
            at, length = self.below(len(changed)), 1 + self.below(16)
            match self.below(7):
                case 0 if changed:
                    changed[at] ^= 1 << self.below(8)
                case 1 if changed:
                    changed[at] = self.below(256)
                case 2:
                    del changed[at : at + length]
                case 3:
                    changed[at:at] = self.rng.bytes(length)
                case 4:
                    del changed[at:]
                case 5:
                    start = self.below(len(other))
                    changed[at:] = other[start:]
                case _ if len(changed) >= 16:
                    first, second = (8 * self.below(len(changed) // 8) for _ in range(2))
                    a, b = bytes(changed[first : first + 8]), bytes(changed[second : second + 8])
                    changed[first : first + 8], changed[second : second + 8] = b, a
        return bytes(changed)

    def frame(self, data: bytes) -> bytes:
        """Return a frame with another leaf in its head, or other words in its arrays."""
        (length,) = struct.unpack("<I", data[:4])
        head, start = msgspec.msgpack.decode(data[4 : 4 + length]), 4 + length + -(4 + length) % 8
        arrays = bytearray(data[start:])
        if arrays and self.below(2):
            at = 8 * self.below(len(arrays) // 8)
            if self.below(2):
                arrays[at : at + 8] = struct.pack("<q", self.number(True))
            else:
                arrays[at : at + 8] = struct.pack("<d", _FLOATS[self.below(len(_FLOATS))])
        else:
            head = self.leaf(head)
        return framed(msgspec.msgpack.encode(head)) + bytes(arrays)

    def number(self, signed: bool) -> int:
        """Return a number that is an edge of something, or near to one."""
        found = _NUMBERS[self.below(len(_NUMBERS))] + self.below(3) - 1
        return max(-(2**63), min(found, 2**63 - 1 if signed else 2**64 - 1))

    def leaf(self, value: Any) -> Any:
        """Return a tree with one leaf changed, or one branch gone, twice there or in another's place."""
        match value:
            case dict() if value:
                key = list(value)[self.below(len(value))]
                if not self.below(30):
                    return {name: item for name, item in value.items() if name != key}
                return {**value, key: self.leaf(value[key])}
            case list() if value and self.below(8):
                at = self.below(len(value))
                match self.below(12):
                    case 0:
                        return value[:at] + value[at + 1 :]
                    case 1:
                        return [*value[:at], value[at], *value[at:]]
                    case 2:
                        return value[::-1]
                return [*value[:at], self.leaf(value[at]), *value[at + 1 :]]
            case bool():
                return not value
            case int():
                return value + self.below(5) - 2 if self.below(2) else self.number(False)
            case float():
                return value * 2.0 ** (self.below(9) - 4) if self.below(2) else _FLOATS[self.below(len(_FLOATS))]
            case str():
                texts = (
                    "",
                    "x",
                    "local",
                    "trusted",
                    "secure",
                    "size",
                    "counts",
                    "int64",
                    "float64",
                    "<f8",
                    "0" * 64,
                    "\x00",
                    "ä",
                )
                return texts[self.below(len(texts))]
            case bytes():
                return self.blind(value, value)
        return (None, 0, [], {}, "", [1], {"a": 1})[self.below(7)]


# ---------------------------------------------------------------------------------------------------------------------
# Sites


def check_site(target: Target, data: bytes, seen: Counter[str], asked: dict[str, set[str]]) -> None:
    """Send bytes to a site: the reply is one, and what is answered is charged by its own question's digest."""
    before = target.site.account.spent()
    reply = target.site.answer(data).data
    after = target.site.account.spent()
    code, *_, content = read_answer(open_reply(reply, target.site.name, Keys(target.site.secret).identity)[1])
    seen[code] += 1
    if code != "answered":
        assert not len(content)
        if code != "failed":
            assert after == before, "a message was charged and not answered"
        return
    frame, turn, _ = parts_of(read_request(data, target.site.name, COORDINATOR.public).body)
    digest = hashlib.sha256(frame).hexdigest()
    known = asked.setdefault(target.trust, set())
    free = b"public" in bytes(frame)
    if digest in known or (turn < 2 and target.trust == "secure") or free:
        assert after == before, "a question was charged twice"
    else:
        assert after.rho > before.rho, "a question was answered and not charged"
        known.add(digest)


def mutate_requests(seed: int, number: int) -> Counter[str]:
    """Send mutated messages to sites under every trust, half of them signed after the mutation."""
    mutator, sites = Mutator(seed), targets()
    seen: Counter[str] = Counter()
    asked: dict[str, set[str]] = {}
    charged = [len(target.site.account.charges()) for target in sites]
    for target in sites:  # what the valid messages cost is known before they are changed
        for message in target.messages:
            check = seen.copy()
            if target.trust == "secure":
                asked.setdefault("secure", set()).add(hashlib.sha256(message.frame).hexdigest())
            check_site(target, sealed(message, to=target.site.name), check, asked)
            assert check["answered"] > seen["answered"], (message.head.kind, message.head.verb)
    for at in range(number):
        target = sites[mutator.below(len(sites))]
        message, other = (target.messages[mutator.below(len(target.messages))] for _ in range(2))
        if at % 2:
            data = mutator.blind(*(sealed(one, to=target.site.name) for one in (message, other)))
        else:
            body = message.body
            match mutator.below(4):
                case 0:
                    body = mutator.blind(body, other.body)
                case 1:
                    event = b"" if message.event is None else mutator.frame(encode(message.event))
                    body = body[: 16 + len(message.frame)] + event
                case 2:
                    turn, event = mutator.below(6), body[16 + len(message.frame) :]
                    frame = other.frame if mutator.below(2) else message.frame
                    body = len(frame).to_bytes(8, "little") + frame + turn.to_bytes(8, "little") + event
                case _:
                    frame = mutator.frame(message.frame)
                    body = len(frame).to_bytes(8, "little") + frame + body[8 + len(message.frame) :]
            data = sealed(of_body(body, message.agreement), to=target.site.name)
        check_site(target, data, seen, asked)
    for target, before in zip(sites, charged, strict=True):
        check_account(target, before, asked)
    return seen


def check_account(target: Target, before: int, asked: dict[str, set[str]]) -> None:
    """Verify an account: every charge has a salt and terms, and belongs to one question."""
    account = target.site.account
    assert account.verify().wrong == ""
    with account._file.open() as records:
        rows = records.execute("SELECT key, paid, length(salt), terms FROM questions").fetchall()
    assert all(salt == 32 and terms for _, _, salt, terms in rows)
    charges = account.charges()
    assert len(charges) == sum(paid for _, paid, *_ in rows) >= before
    assert len({charge["key"] for charge in charges}) == len(charges)
    assert abs(sum(charge["cost"].get("rho", 0.0) for charge in charges) - account.spent().rho) < 1e-9


# ---------------------------------------------------------------------------------------------------------------------
# Servers


@dataclass
class Heard:
    """A reply that a server of a sum has yet to hear, and the sum as it stands before."""

    message: Request
    site: Site
    data: bytes
    session: Any


def replies() -> list[Heard]:
    """Return valid replies under every trust, of every turn."""
    found = []
    for target in targets()[:2]:
        for message in target.messages:
            server = OneMessageSum((target.site.name,), lambda total: total, lambda heard: 1.0)
            server.ask()
            found.append(Heard(message, target.site, reply_of(target.site, message), server))
    members = secure_sites(4, SecureSum(min_honest=3, dropouts=1))
    asked = question(counts((SEX,), (AGE,)), trust=SecureSum(min_honest=3, dropouts=1))
    doors, session = {of.name: of for of in members}, aggregator(members, asked)
    while events := session.ask():
        told = {}
        for name, event in events.items():
            message = asked.at(session.turn, event)
            told[name] = message, ask(doors[name], message)
        first = next(iter(told))
        rest = copy.deepcopy(session)
        for name, (_, reply) in told.items():
            assert reply.answer is not None
            if name != first:
                rest.receive(name, reply.answer)
        found.append(Heard(told[first][0], doors[first], told[first][1].data, rest))
        for name, (_, reply) in told.items():
            assert reply.answer is not None
            session.receive(name, reply.answer)
    return found


def resigned(data: bytes, site: str, seed: bytes) -> bytes:
    """Return a changed reply with the signature that the site would have put there."""
    try:
        asked, answer = open_reply(data, site, None)
    except ForeignReply:  # cut before its answer
        return data
    return write_reply(seed, site, asked, bytes(answer))


def mutate_replies(seed: int, number: int) -> Counter[str]:
    """Let servers hear mutated replies: each is an answer, a code or a loss, and the sum goes on or fails by name.

    What was changed after the site signed it is lost, whatever it says.
    """
    mutator, valid = Mutator(seed), replies()
    seen: Counter[str] = Counter()
    for _ in range(number):
        heard, other = (valid[mutator.below(len(valid))] for _ in range(2))
        name, own = heard.site.name, Keys(heard.site.secret).seed
        beside = heard.message.agreement.data
        head = sealed(heard.message, to=name)[: -len(heard.message.body) - len(beside)]
        message = Message(name, Keys(heard.site.secret).identity, heard.message, COORDINATOR, head, bytes(8), beside)
        whole = message.reply(heard.data)
        foreign = bool(mutator.below(2))
        match mutator.below(3):
            case 0:
                data = mutator.blind(heard.data, other.data)
            case 1:
                start = len(heard.data) - len(answer_in(heard.data))
                data = mutator.blind(heard.data[:start], other.data[:start]) + answer_in(heard.data)
            case _:
                body = (
                    mutator.frame(encode(whole.answer))
                    if mutator.below(2)
                    else mutator.blind(encode(whole.answer), b"")
                )
                if whole.sealed:
                    body = b"".join(seal(COORDINATOR.public, bytes(31) + b"s", body, name, heard.message.digest))
                by = bytes(32) if foreign else own
                digests = ReplyHead(message.digest, heard.message.digest)
                data = signed(by, name, digests, "answered", body, sealed=whole.sealed)
        if not foreign:
            data = resigned(data, name, own)
        elif data != heard.data:
            told = message.reply(data)
            assert (told.code, told.answer, told.seen) == ("lost", None, AuditPosition())
        reply = message.reply(data)
        seen[reply.code] += 1
        if reply.answer is None:
            continue
        session = copy.deepcopy(heard.session)
        try:
            session.receive(name, reply.answer)
            seen["heard"] += 1
        except FedsynthError:
            seen["not heard"] += 1
        if isinstance(session, Aggregator):
            try:
                session.ask()
                if session.turn == 5:
                    session.result()
            except FedsynthError:
                seen["sum failed"] += 1
    return seen


def main(seed: int, number: int) -> dict[str, Any]:
    """Run both; return what was counted, and the memory (MB) that it took beyond that of the program itself."""
    logging.disable()
    valid = targets()  # imports what sites import
    assert valid
    assert SCHEMA.digest
    mutate_requests(seed, 50)
    before = resource.getrusage(resource.RUSAGE_SELF)
    requests = mutate_requests(seed, number)
    heard = mutate_replies(seed, number // 2)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "requests": requests,
        "replies": heard,
        "megabytes": (after.ru_maxrss - before.ru_maxrss) / 1024,
        "seconds": after.ru_utime + after.ru_stime,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
