"""Messages made by hand: forged digests, arrays of strange types, bombs, and everything that is no question."""

from __future__ import annotations

import contextlib
import io
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.attacks.world import (
    CHEAP,
    DIAGNOSIS,
    SEX,
    ask,
    converse,
    forged,
    question,
    secure_sites,
    site,
    values,
    zipped,
)

from fedsynth.errors import FedsynthError
from fedsynth.federation.audit import AuditLog, verify
from fedsynth.federation.trust.roster import MASKED
from fedsynth.federation.trust.secure_sum import SecureSum
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Gaussian

MEGABYTE = 1 << 20


def digest_of(request: Request) -> dict[str, str]:
    """Return a digest as the sender of the next message would like it to be computed."""
    assert request.question
    return {"digest": request._memo["digest"]}


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the sender's own digest is believed: any question is answered exactly and free",
)
def test_a01_a_server_cannot_choose_the_digest_of_its_question():
    """What a question costs and which noise hides it follow from its content; no field of a message overrides that."""
    asked = site()
    paid = question(cliques=[[SEX]])
    assert not ask(asked, paid).error
    spent = asked.ledger.spent()
    exact = question(release=Gaussian(1e9), cliques=[[SEX, DIAGNOSIS]])
    reply = ask(asked, forged(exact, _memo=digest_of(paid)))
    truth = asked.table.counts([SEX, DIAGNOSIS]).ravel()
    free = reply.values is not None and asked.ledger.spent() == spent
    assert not (free and np.array_equal(values(reply), truth))


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the sender's own digest is believed: two questions share their noise"
)
def test_a01_two_questions_never_share_their_noise():
    """Answers to two different questions carry independent noise, so that their difference is not exact."""
    asked = site()
    paid = question(cliques=[[SEX]])
    first, second = ask(asked, paid), ask(asked, forged(question(cliques=[[DIAGNOSIS]]), _memo=digest_of(paid)))
    if second.values is not None:
        truth = asked.table.counts([SEX]).ravel() - asked.table.counts([DIAGNOSIS]).ravel()[:2]
        assert not np.array_equal(values(first) - second.values[:2], truth)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the sender's own digest is believed: two vectors share their masks"
)
def test_a01_the_masks_of_a_secure_sum_serve_one_question():
    """A site masks two different vectors with different masks, so that no difference of messages is one site's own."""
    sites = secure_sites(3, SecureSum())
    asked = question(trust="secure", cliques=[[SEX]])
    message, reply = converse(sites, asked, MASKED)["site-0"]
    nobody = forged(message, params={"cliques": [[DIAGNOSIS]]}, _memo=digest_of(asked))
    other = ask(sites[0], nobody)
    if other.values is not None:
        truth = sites[0].table.counts([SEX]).ravel() - sites[0].table.counts([DIAGNOSIS]).ravel()[:2]
        assert not np.array_equal(values(reply) - other.values[:2], truth)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="all structured dtypes of one width have one digest: two questions, one charge, one noise",
)
def test_a02_two_questions_that_read_differently_have_different_digests():
    """Every byte of a message that a query can read is part of what is charged and of what noise is bound to."""
    asked = site()
    paid = question(cliques=[[SEX]])
    record = np.array([SEX, DIAGNOSIS], dtype="<i4")
    # The same eight bytes, read as two columns or as three.
    layouts = [np.dtype("<i4,<i4"), np.dtype("<i2,<i2,<i4")]
    cliques = [forged(paid, {"c": record.view(layout)}, params={"cliques": {"__array__": "c"}}) for layout in layouts]
    replies = [ask(asked, message) for message in cliques]
    answered = [reply for reply in replies if reply.values is not None]
    assert asked.ledger.spent() == pytest.approx(CHEAP.rho * len(answered))


def bomb(size: int) -> bytes:
    """Return a question with an array of ``size`` zero bytes in it."""
    request = question(cliques=[[SEX]])
    return forged(request, {"zeros": np.zeros(size, dtype=np.uint8)}, own={"zeros": {"__array__": "zeros"}})


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="an archive unpacks to whatever its sender likes")
def test_a12_a_message_cannot_unpack_to_more_than_its_limit():
    """The memory that a message takes at a site is bounded by its length and by the policy's largest message."""
    size = 128 * MEGABYTE
    message = bomb(size)
    assert len(message) < MEGABYTE
    asked = site()
    tracemalloc.start()
    try:
        with contextlib.suppress(FedsynthError):
            ask(asked, message)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 * MEGABYTE


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a reply's reason has no largest length")
def test_a12_a_reply_brings_no_long_text_to_the_server():
    """The memory and the log lines that a reply takes at the server are bounded, whatever a site sends."""
    head = {"site": "north", "digest": "0" * 64, "error": "Refused", "reason": "x" * 32 * MEGABYTE}
    data = zipped({"meta.json": json.dumps({**head, "confidential": False}).encode()})
    assert len(data) < MEGABYTE
    try:
        reply = Reply.from_bytes(data)
    except FedsynthError:
        return
    assert len(reply.reason) < 10_000


def mangled() -> Iterator[tuple[str, bytes]]:
    """Yield messages that are no questions, each with the way in which it is none."""
    asked = question(cliques=[[SEX]])

    def with_array(array: NDArray[Any]) -> bytes:
        return forged(asked, {"c": array}, params={"cliques": {"__array__": "c"}})

    yield "not an archive", b"\x00" * 100
    yield "half of a message", asked.to_bytes()[:-40]
    yield "no head", zipped({})
    yield "a head that is a list", zipped({"meta.json": b"[]"})
    yield "an unknown field", forged(asked, colour="red")
    yield "a field that is missing", zipped({"meta.json": b'{"run": "r"}'})
    yield "a release without a law", forged(asked, release={"rho": 1e-4})
    yield "a release of an unknown law", forged(asked, release={"kind": "none"})
    yield "a cost that is text", forged(asked, release={"kind": "gaussian", "rho": "little"})
    yield "a stage with NaN", forged(asked, stage={"x": float("nan")})
    yield "a parameter that is NaN", forged(asked, params={"cliques": [[SEX]], "x": float("nan")})
    yield "a list of own parameters", forged(asked, own=[1])
    yield "a stage that is a list", forged(asked, turn=0, stage=[1])
    yield "a run that is a list", forged(asked, run=["r"])
    yield "a column that does not exist", forged(asked, params={"cliques": [[99]]})
    yield "a column that is text", forged(asked, params={"cliques": [["x"]]})
    yield "an empty clique", forged(asked, params={"cliques": [[]]})
    yield "a parameter too many", forged(asked, params={"cliques": [[SEX]], "more": 1})
    yield "a trust that is a list", forged(asked, trust=["local"])
    yield "text for an array", with_array(np.array([["x"]]))
    yield "a structured array", with_array(np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]))
    yield "a task that is a number", forged(asked, task=7)
    yield "a step of many digits", forged(asked, step=10**400)
    yield "noise too wide to draw", forged(asked, release={"kind": "gaussian", "rho": 1e-30})


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="messages that cannot be decoded or digested raise out of the site"
)
def test_a12_no_message_raises_out_of_a_site(tmp_path):
    """A site answers every message, of whatever bytes, with a reply; and each leaves a line in the audit log."""
    asked = site(audit=AuditLog(tmp_path / "audit.jsonl"))
    raised = {}
    sent = 0
    for what, message in mangled():
        sent += 1
        try:
            ask(asked, message)
        except Exception as error:
            raised[what] = type(error).__name__
    assert raised == {}
    assert verify(tmp_path / "audit.jsonl").lines == sent


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a question is charged before its reply's digest fails, so no line is written",
)
def test_a12_nothing_is_charged_that_no_line_tells_of(tmp_path):
    """Every charge to the site's account has a line in the audit log."""
    log = tmp_path / "audit.jsonl"
    log.touch(mode=0o600)
    for what, message in mangled():
        asked = site(audit=AuditLog(log), ledger=SiteLedger())
        before = verify(log).lines
        try:
            ask(asked, message)
        except Exception as error:
            told = type(error).__name__
        else:
            told = "answered"
        assert asked.ledger.spent() == 0 or verify(log).lines > before, (what, told)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the class of any exception leaves the site")
def test_a12_a_bad_message_is_not_told_how_it_failed():
    """The errors that leave a site are three codes of one length, so that no message can tell them by their length."""
    codes = set()
    for _, message in mangled():
        try:
            codes.add(ask(site(), message).error)
        except Exception as error:
            codes.add(type(error).__name__)
    codes.discard("")
    assert len(codes) <= 3
    assert len({len(code) for code in codes}) <= 1


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a reply brings arrays of any type")
def test_a12_arrays_of_a_reply_are_flat_integers():
    """A reply brings nothing but flat arrays of the agreed types, whoever reads it."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3, dtype=[("a", "<i8"), ("b", "<f8")]), allow_pickle=False)
    head = {"site": "north", "digest": "0" * 64, "error": "", "reason": "", "confidential": False}
    data = zipped({"meta.json": json.dumps(head).encode(), "values.npy": buffer.getvalue()})
    try:
        reply = Reply.from_bytes(data)
    except FedsynthError:
        return
    assert values(reply).dtype == np.int64
