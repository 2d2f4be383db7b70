"""One site that sends nonsense among honest ones, and a site's own files after a disk has damaged them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tests.attacks.world import CHEAP, SCHEMA, SEX, ask, counts, question, signed, site, table
from tests.world import Ask, Faulty

from fedsynth import keys
from fedsynth.errors import FedsynthError, SiteLost
from fedsynth.federation.events import Answer, ApprovalAnswer, BoxesAnswer, KeysAnswer, PlainAnswer, SharesAnswer
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.simulate import _secret, federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.trust import Trust, sums_of
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import NO_MESSAGE, Code, Reply, ReplyHead, encode
from fedsynth.methods.oneshot import OneShot
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget
from fedsynth.secure.session import AGREE, KEYS, MASKED, SHARES, UNMASK, sign_keys
from fedsynth.secure.site import SecureSum

ROWS = 100  # of each of five sites
FAULTY = "site-002"
SECURE = SecureSum(min_honest=5, dropouts=2)
TRUSTS: dict[str, Trust] = {"local": LocalNoise(), "trusted": TrustedServer(), "secure": SECURE}
SEED = 1
Fault = Callable[[Site, Message, Reply], bytes]


def five(trust: Trust, fault: Fault, link: Faulty | None = None, **options: Any) -> Federation:
    """Return a federation of five sites, of which one's replies go through ``fault``, as bytes."""
    tables = [table(ROWS, seed) for seed in range(5)]
    link = link or Faulty()

    def faulty(message: Message, ask: Ask) -> Reply:
        reply = ask(message)
        return message.reply(fault(link.doors[FAULTY], message, reply)) if message.site == FAULTY else reply

    link.rule = faulty
    options = {"transport": link, "seed": SEED, **options}
    return federate(tables, SCHEMA, Budget(20.0, 1e-6), trust=trust, **options)


def honest(of: Site, message: Message, reply: Reply) -> bytes:
    return reply.data


def replied(
    message: Message, code: Code, *body: bytes, site: str = FAULTY, digest: str = "", sealed: bool = False
) -> bytes:
    asked = ReplyHead(message.digest, digest or message.request.digest)
    return signed(keys.Keys(_secret(SEED, FAULTY)).seed, site, asked, code, *body, sealed=sealed)


def instead(message: Message, answer: Answer) -> bytes:
    """Return another answer in an honest form."""
    return replied(message, "answered", encode(answer))


def in_first_cell(number: int) -> Fault:
    """Return the fault of a site that puts a number into the first cell of every answer."""

    def fault(of: Site, message: Message, reply: Reply) -> bytes:
        assert isinstance(reply.answer, PlainAnswer)
        return instead(message, PlainAnswer(np.concatenate([[number], reply.answer.values[1:]]).astype(np.int64)))

    return fault


@pytest.mark.parametrize("trust", ["local", "trusted"])
@pytest.mark.parametrize("number", [2**62, -(2**62), 2**63 - 1, -(2**63), 2**40])
def test_a16_one_site_does_not_spoil_a_sum(trust, number):
    """A site whose counts are beyond what its rows can hold is lost by name, and the sum is that of the others."""
    federation = five(TRUSTS[trust], in_first_cell(number))
    result = federation.sum(counts((SEX,), (SEX,)), 0.5)
    assert result.sites == tuple(f"site-{k:03d}" for k in (0, 1, 3, 4))
    assert abs(result.tables[0].sum() - 4 * ROWS) < 50
    assert federation.lost == [FAULTY]


def test_a16_one_site_does_not_spoil_a_table():
    """A method goes on without the site, round by round."""
    federation = five(LocalNoise(), in_first_cell(2**62))
    found = OneShot(iterations=20).fit(federation)
    assert isinstance(found.model, MarkovRandomField)
    assert FAULTY in federation.lost
    assert 3 * ROWS < len(found.sample(seed=0)) < 6 * ROWS


def told(of: Site, message: Message, reply: Reply) -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "zeros", bytes(1000)
    yield "half of it", reply.data[: len(reply.data) // 2]
    yield "one byte more", reply.data + b"\0"
    body = encode(reply.answer)
    yield "another site's", replied(message, "answered", body, site="site-001")
    yield "to another question", replied(message, "answered", body, digest="1" * 64)
    yield "to no message", replied(message, "refused", digest=NO_MESSAGE)
    yield "signed by another", signed(bytes(32), FAULTY, ReplyHead(message.digest, message.request.digest), "refused")
    yield "no answer", replied(message, "answered", b"")
    yield "a box of zeros", replied(message, "answered", bytes(90), sealed=True)
    yield "an error with an answer", replied(message, "failed", body)
    yield "a failure", replied(message, "failed")
    for shape in ((0,), (1,), (10**6,), (2, 2), (0, 2**31), ()):
        yield (
            f"the shape {shape}",
            instead(message, PlainAnswer(np.zeros(shape if 2**31 not in shape else 0, dtype=np.int64))),
        )
    yield "keys", instead(message, KeysAnswer(bytes(64), bytes(64)))
    yield (
        "boxes",
        instead(
            message, BoxesAnswer(*(np.zeros(shape, dtype=np.uint8) for shape in ((5, 88), (5, 32), (5, 32), (2, 32))))
        ),
    )
    yield "an approval", instead(message, ApprovalAnswer(bytes(64)))
    rows = [np.zeros(shape, dtype=np.uint8) for shape in ((5, 33), (0, 32), (1, 32))]
    yield "shares", instead(message, SharesAnswer(bytes(32), *rows))


KINDS = [
    "nothing", "zeros", "half of it", "one byte more", "another site's", "to another question", "no answer",
    "to no message", "signed by another",
    "a box of zeros", "an error with an answer", "a failure", "the shape (0,)", "the shape (1,)",
    "the shape (1000000,)", "the shape (2, 2)", "keys", "boxes", "an approval", "shares",
]  # fmt: skip


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("what", KINDS)
def test_a16_bytes_that_are_no_reply_lose_one_site(trust, what):
    """Whatever a site sends, in whatever turn, the sum is that of the others; a site that is silent counts as lost."""
    for turn in range(sums_of(TRUSTS[trust]).turns):
        if (what, turn) in (("keys", KEYS), ("boxes", SHARES), ("approval", AGREE), ("shares", UNMASK)):
            continue  # of the right form: see below

        def fault(of: Site, message: Message, reply: Reply, turn: int = turn) -> bytes:
            if message.request.turn != turn or reply.answer is None:
                return reply.data
            return dict(told(of, message, reply))[what]

        federation = five(TRUSTS[trust], fault)
        result = federation.sum(counts((SEX,)), 0.5)
        assert abs(result.values.sum() - len(result.sites) * ROWS) < 50
        assert FAULTY in federation.lost
        assert (FAULTY in result.sites) == (trust == "secure" and turn > MASKED)


def corrupted(turn: int, change: Callable[[Any], Answer]) -> Fault:
    def fault(of: Site, message: Message, reply: Reply) -> bytes:
        if message.request.turn != turn or reply.answer is None:
            return reply.data
        return instead(message, change(reply.answer))

    return fault


def without_a_key(of: Site, message: Message, reply: Reply) -> bytes:
    """Sign keys of which one is no usable point."""
    if message.request.turn != KEYS:
        return reply.data
    assert isinstance(reply.answer, KeysAnswer)
    announcement = bytes(keys.KEY_BYTES) + reply.answer.announcement[keys.KEY_BYTES :]
    seed, terms = keys.Keys(of.secret).seed, of.policy.trusts["secure"].terms
    return instead(
        message, KeysAnswer(announcement, sign_keys(seed, message.request.question, terms, of.name, announcement))
    )


def flipped(data: bytes) -> bytes:
    return bytes(255 - byte for byte in data)


FAULTS = {
    "keys": corrupted(KEYS, lambda said: KeysAnswer(flipped(said.announcement), said.signature)),
    "signature": corrupted(KEYS, lambda said: KeysAnswer(said.announcement, flipped(said.signature))),
    "unusable-key": without_a_key,
    "boxes": corrupted(SHARES, lambda said: structs.replace(said, boxes=said.boxes ^ 255)),
    "too few boxes": corrupted(SHARES, lambda said: structs.replace(said, boxes=said.boxes[1:])),
    "approval": corrupted(AGREE, lambda said: ApprovalAnswer(flipped(said.approval))),
    "shares": corrupted(UNMASK, lambda said: structs.replace(said, shares=said.shares ^ 255)),
    "self-mask": corrupted(UNMASK, lambda said: structs.replace(said, own=flipped(said.own))),
    "pairs": corrupted(UNMASK, lambda said: structs.replace(said, pairs=np.zeros((1, 32), dtype=np.uint8))),
    "noise": corrupted(UNMASK, lambda said: structs.replace(said, noise=np.zeros((9, 32), dtype=np.uint8))),
}


def test_five_honest_sites_come_out():
    """The faults here are what loses a site, if one is lost."""
    for trust in TRUSTS.values():
        federation = five(trust, honest)
        result = federation.sum(counts((SEX,)), 0.5)
        assert abs(result.values.sum() - 5 * ROWS) < 50
        assert len(result.sites) == 5
        assert federation.lost == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a16_one_site_does_not_stop_a_secure_sum(fault):
    """A malformed message of a secure sum costs its sender its place, as silence would, and nobody else."""
    federation = five(SECURE, fault)
    result = federation.sum(counts((SEX,)), 0.5)
    assert abs(result.values.sum() - len(result.sites) * ROWS) < 50
    assert len(result.sites) >= 4


def test_a16_a_resumed_run_does_not_read_a_bad_reply_again(tmp_path):
    """A run that bad messages stopped comes out when it is started again and the sites have been mended."""
    link = Faulty()
    told = []
    for fault in (corrupted(KEYS, lambda said: KeysAnswer(flipped(said.announcement), said.signature)), honest):
        federation = five(SECURE, fault, link, transcript=tmp_path / "transcript")
        try:
            told.append(federation.sum(counts((SEX,)), 0.5).sites)
        except SiteLost:
            told.append(())
    assert told[0] == told[1] == tuple(f"site-{k:03d}" for k in (0, 1, 3, 4))  # the others have heard that it is out


def test_a16_what_was_released_without_a_site_stays_so_when_a_run_is_resumed(tmp_path):
    """A resumed run does not read a bad reply again, nor release a second sum once the site has been mended."""
    link = Faulty()
    heard = []
    for fault in (in_first_cell(2**62), honest):
        federation = five(LocalNoise(), fault, link, transcript=tmp_path / "transcript")
        heard.append(len(federation.sum(counts((SEX,)), 0.5).sites))
    assert heard == [4, 4]
    assert len(set(link.rho.values())) == 1


# ---------------------------------------------------------------------------------------------------------------------
# A17: the site's own files


@pytest.fixture(scope="module")
def spent_account(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file of an account with charges, replies, a secret and a rejected message."""
    path = tmp_path_factory.mktemp("account") / "account.sqlite"
    of = site(account=Book(path))
    for step in range(5):
        assert ask(of, question(step=step)).answer is not None
    ask(of, question(schema="0" * 64))
    of.account.first("", "site", bytes(32))
    return path.read_bytes()


def test_a17_a_damaged_account_is_not_believed(tmp_path, spent_account):
    """An account with a changed bit says so, or says what was spent; no question is answered a second time."""
    path = tmp_path / "account.sqlite"
    path.write_bytes(spent_account)
    spent = Book(path).spent()
    first = ask(site(account=Book(path)), question()).data
    told = {"as it was": 0, "damaged": 0}
    for at in np.random.default_rng(0).integers(0, len(spent_account), 100):
        bad = bytearray(spent_account)
        bad[at] ^= 8
        path.write_bytes(bad)
        try:
            account = Book(path)
            assert account.spent() == spent, at
            reply = ask(site(account=account), question())
        except FedsynthError:
            told["damaged"] += 1
            continue
        assert reply.answer is None or reply.data == first, at
        told["as it was"] += 1
    assert min(told.values()) > 0


def test_a17_verification_finds_every_changed_charge(tmp_path, spent_account):
    """The steward's check names an account whose rows, totals or replies were changed."""
    path = tmp_path / "account.sqlite"
    path.write_bytes(spent_account)
    assert Book(path).verify().wrong == ""
    rho = str(CHEAP.rho).encode()
    at, missed = spent_account.find(rho), []
    while at >= 0:
        path.write_bytes(spent_account[:at] + bytes([spent_account[at] ^ 1]) + spent_account[at + 1 :])
        try:
            if not Book(path).verify().wrong:
                missed.append(at)
        except FedsynthError:
            pass
        at = spent_account.find(rho, at + 1)
    assert missed == []


def test_a17_a_site_whose_account_is_damaged_answers_nothing(tmp_path, spent_account):
    """A site that cannot read its account gives no answer, and nothing raises out of it."""
    path = tmp_path / "account.sqlite"
    path.write_bytes(spent_account)
    of = site(account=Book(path))
    path.write_bytes(spent_account[:1024] + bytes(len(spent_account) - 1024))
    assert ask(of, question(step=9)).code == "failed"
    assert replace(of).name == "north"
