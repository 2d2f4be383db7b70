"""What travels and what is written down: resumption, confidential answers, lengths, rejected replies."""

from __future__ import annotations

import weakref
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.world import (
    AGE,
    BUDGET,
    REGION,
    SEX,
    TRUSTS,
    Ask,
    Faulty,
    changing,
    counts,
    exact,
    losing,
    scores,
    silent,
    start,
    table,
    tables,
)

from fedsynth.errors import FedsynthError, Refused, SiteLost
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import RecordCount
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message, Recorded, _record, records
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import AuditPosition, Reply, ReplyHead, encode, open_reply, write_answer, write_reply
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget
from fedsynth.secure.session import AGREE, MASKED, SHARES, UNMASK
from fedsynth.secure.site import SecureSum

QUERY = counts((SEX,), (REGION, AGE))
each_trust = pytest.mark.parametrize("trust", TRUSTS.values(), ids=TRUSTS)


def run(federation: Federation) -> list[NDArray[Any]]:
    """Use every verb that the trust has, and return all that was released."""
    found: list[NDArray[Any]] = [federation.sum(QUERY, 0.2).values]
    found += [one.values for one in federation.each(RecordCount(), 0.1).values()]
    found += [np.array(drawn) for drawn in federation.choose(scores(), 0.2).values()]
    pairs = {site: [counts((SEX,)), counts((AGE,))] for site in federation.sites[:3]}
    found += [one.values for one in federation.sums(pairs, 0.1)]
    if federation.trust.confidential:
        vault = federation.deposit(counts((SEX, REGION)), 0.3)
        found += vault.open(counts((SEX,)), 0.1)[0] + vault.open(counts((SEX, REGION)), 0.2)[0]
    return found


def same(first: list[NDArray[Any]], second: list[NDArray[Any]]) -> bool:
    """Whether two runs released the same bits."""
    return len(first) == len(second) and all(map(np.array_equal, first, second))


# ---------------------------------------------------------------------------------------------------------------------
# Resumption


@each_trust
def test_a_run_that_died_anywhere_resumes_to_the_same_bits_and_pays_once(trust, tmp_path):
    held = tables(4)
    whole = Faulty()
    uninterrupted = start(whole, held, trust)
    expected = run(uninterrupted)
    assert len(whole.sent) == 4 * trust.turns + 4 + 4 + 6 * trust.turns + 4 * trust.confidential
    for dies_at in range(0, len(whole.sent), 1 if trust.turns == 1 else 5):
        path = tmp_path / f"transcript-{dies_at}"
        network = Faulty(dies_at=dies_at)
        with pytest.raises(ConnectionError):
            run(start(network, held, trust, transcript=path))
        again = network.back()
        resumed = start(again, held, trust, transcript=path)
        assert same(run(resumed), expected)
        assert again.rho == pytest.approx(whole.rho)
        assert resumed.ledger.to_json() == uninterrupted.ledger.to_json()  # of messages, too: each is counted once
        if not trust.confidential:  # exact answers are asked for again, and are free
            assert len(again.sent) == len(whole.sent) - dies_at


@each_trust
def test_a_complete_run_is_read_from_its_transcript_alone(trust, tmp_path):
    held = tables(4)
    network = Faulty()
    expected = run(start(network, held, trust, transcript=tmp_path / "t"))
    spent = network.rho
    if trust.confidential:
        assert same(run(start(network.back(), held, trust, transcript=tmp_path / "t")), expected)
        assert network.rho == spent
        return
    unreachable = Faulty(losing(lambda message: True))
    assert same(run(start(unreachable, held, trust, transcript=tmp_path / "t")), expected)
    assert not unreachable.sent


def test_an_interrupted_sum_of_a_trusted_server_is_asked_again_and_free(tmp_path):
    network = Faulty(dies_at=3)
    with pytest.raises(ConnectionError):
        start(network, trust=TrustedServer(), transcript=tmp_path / "t").sum(QUERY, 0.5)
    before = network.rho
    again = network.back()
    start(again, trust=TrustedServer(), transcript=tmp_path / "t").sum(QUERY, 0.5)
    assert len(again.sent) == 5
    assert before == pytest.approx({site: 0.5 * BUDGET.rho * (site < "site-003") for site in again.doors})
    assert again.rho == pytest.approx(dict.fromkeys(again.doors, 0.5 * BUDGET.rho))


@pytest.mark.parametrize("name", ["trusted", "local"])
def test_a_site_that_was_lost_and_is_back_does_not_get_a_second_release(name, tmp_path):
    """Two sums of different sites under different noise would be two releases for one charge."""
    network = Faulty(silent({0: {"site-002"}}))
    federation = start(network, trust=TRUSTS[name], transcript=tmp_path / "t")
    first = federation.sum(QUERY, 0.5)
    assert "site-002" not in first.sites
    again = start(network.back(), trust=TRUSTS[name], transcript=tmp_path / "t").sum(QUERY, 0.5)
    assert (again.values == first.values).all()
    assert (again.sites, again.std) == (first.sites, first.std)
    # What is asked from then on, it is asked too.
    later = start(network.back(), trust=TRUSTS[name], transcript=tmp_path / "t")
    later.sum(QUERY, 0.5)
    assert "site-002" in later.sum(counts((AGE,)), 0.5).sites


def test_a_site_that_was_lost_and_is_back_is_in_no_vault_that_was_filled_without_it(tmp_path):
    query = counts((SEX, AGE))
    network = Faulty(silent({0: {"site-002"}}))
    vault = start(network, trust=TrustedServer(), transcript=tmp_path / "t").deposit(query, 0.5)
    (first,), _ = vault.open(query, 0.3)
    back = start(network.back(), trust=TrustedServer(), transcript=tmp_path / "t").deposit(query, 0.5)
    assert (back.open(query, 0.3)[0][0] == first).all()
    fewer = Faulty(silent({0: {"site-001"}}), doors=network.doors)
    with pytest.raises(SiteLost, match="site-001"):  # the noise would hide another total
        start(fewer, trust=TrustedServer(), transcript=tmp_path / "t").deposit(query, 0.5)


def test_a_site_that_missed_a_turn_of_a_secure_sum_stays_out_when_the_run_resumes(tmp_path):
    held = tables(8)  # 7 of whom must stay
    lost = silent({SHARES: {"site-003"}})
    expected = start(Faulty(lost), held, SecureSum()).sum(QUERY, 0.5)
    for dies_at in (17, 18):  # after 8 keys and 8 boxes: before or after the first masked answer
        network = Faulty(lost, dies_at=dies_at)
        with pytest.raises(ConnectionError):
            start(network, held, SecureSum(), transcript=tmp_path / str(dies_at)).sum(QUERY, 0.5)
        back = network.back()
        resumed = start(back, held, SecureSum(), transcript=tmp_path / str(dies_at)).sum(QUERY, 0.5)
        assert resumed.sites == expected.sites
        assert (resumed.values == expected.values).all()
        assert "site-003" not in {message.site for message in back.sent}
        assert network.rho["site-003"] == 0


@pytest.mark.parametrize("turn", [SHARES, MASKED, AGREE, UNMASK])
def test_a_secure_sum_that_stopped_for_want_of_sites_goes_on_when_they_are_back(turn, tmp_path):
    network = Faulty(silent({turn: {"site-001", "site-002"}}))
    with pytest.raises(SiteLost, match=r"site-001, site-002: .*; restart what is missing"):
        start(network, trust=SecureSum(), transcript=tmp_path / "t").sum(QUERY, 0.5)
    resumed = start(network.back(), trust=SecureSum(), transcript=tmp_path / "t").sum(QUERY, 0.5)
    assert (resumed.values == start(trust=SecureSum()).sum(QUERY, 0.5).values).all()
    assert network.rho == pytest.approx(dict.fromkeys(network.doors, 0.5 * BUDGET.rho))


def test_a_transcript_cut_off_by_a_crash_resumes_and_a_foreign_file_is_left_alone(tmp_path):
    path, network = tmp_path / "t", Faulty()

    def ask(through: Faulty) -> list[list[int]]:
        federation = start(through, tables(2), transcript=path)
        return [federation.sum(counts((column,)), 0.2).values.tolist() for column in (SEX, REGION, AGE)]

    def contents() -> list[tuple[str, bytes]]:
        """Return the records, with each answer in place of the reply, which names the request of then."""
        found = [(kind, data, data.partition(b"\n")) for kind, data in records(path)]
        return [
            (kind, key + bytes(open_reply(reply, "", None)[1]) if kind == "answer" else data)
            for kind, data, (key, _, reply) in found
        ]

    whole, before = ask(network), contents()
    kept = path.read_bytes()
    for cut in (1, 30, len(kept) // 2, len(kept) - 3):
        path.write_bytes(kept[:cut])
        assert ask(network.back()) == whole
        assert contents() == before
    assert network.rho == pytest.approx(dict.fromkeys(network.doors, 0.6 * BUDGET.rho))
    foreign = tmp_path / "foreign"
    foreign.write_text("somebody's only copy of their notes")
    with pytest.raises(FedsynthError, match="not a transcript"):
        Recorded(InProcess([]), foreign)
    assert foreign.read_text() == "somebody's only copy of their notes"


@each_trust
def test_a_site_may_be_a_new_process_for_every_message(trust, tmp_path):
    """All that a site knows of a run is in its account."""

    def anew(message: Message, ask: Ask) -> Reply:
        network.doors = {name: _stored(site, tmp_path) for name, site in network.doors.items()}
        return ask(message)

    held = tables(3)
    expected = run(start(Faulty(), held, trust))
    network = Faulty(anew)
    assert same(run(start(network, held, trust)), expected)
    assert all(len(list(tmp_path.glob(f"{name}.sqlite"))) == 1 for name in network.doors)


def _stored(site: Site, folder: Path) -> Site:
    return replace(site, account=Book(folder / f"{site.name}.sqlite", entropy=site.account._entropy))


_PLUGIN = """
from fedsynth.federation.query import RecordCount

class Twice(RecordCount, frozen=True):
    kind = "twice-the-size"

    def answer(self, rows):
        return 2 * super().answer(rows)
"""


def test_questions_of_another_package_are_asked_and_resumed(tmp_path, monkeypatch):
    """The simulated sites answer queries of other packages that the run names, and no others."""
    (tmp_path / "twice.py").write_text(_PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    query = import_module("twice").Twice()

    with pytest.raises(Refused):
        start().sum(query, 0.5)
    network = Faulty()
    options: dict[str, Any] = {"budget": Budget.none(), "queries": [type(query)], "transcript": tmp_path / "t"}
    rows = sum(len(held) for held in tables(5))
    assert start(network, **options).sum(query, 1.0).values.tolist() == [2 * rows]
    again = network.back()
    assert start(again, **options).sum(query, 1.0).values.tolist() == [2 * rows]
    assert not again.sent


# ---------------------------------------------------------------------------------------------------------------------
# Rejected answers


@pytest.mark.parametrize("trust", ["local", "trusted"])
def test_a_rejected_answer_is_left_out_named_and_asked_for_again(trust, tmp_path, caplog):
    def spoilt(message: Message, data: bytes) -> bytes:
        reply = message.reply(data)
        if message.site != "site-001":
            return data
        assert isinstance(reply.answer, PlainAnswer)
        numbers = reply.answer.values.copy()
        numbers[0] = 2**61
        seed = Keys(network.doors[message.site].secret).seed
        answer = write_answer("answered", AuditPosition(), encode(PlainAnswer(numbers)))
        return write_reply(seed, message.site, ReplyHead(message.digest, reply.digest), answer)

    def stops(message: Message, ask: Ask) -> Reply:
        reply = changing(spoilt)(message, ask)
        if len(network.sent) == 5:
            raise ConnectionError("the server's process ended here")
        return reply

    network = Faulty(stops)
    with pytest.raises(ConnectionError):
        start(network, trust=TRUSTS[trust], transcript=tmp_path / "t").sum(QUERY, 0.5)
    assert "site-001 is left out of this round: it sent numbers out of the possible range" in caplog.text
    again = network.back()
    found = start(again, trust=TRUSTS[trust], transcript=tmp_path / "t").sum(QUERY, 0.5)
    assert found.sites == tuple(network.doors)
    if trust == "local":
        assert [message.site for message in again.sent] == ["site-001", "site-004"]
    assert network.rho == pytest.approx(dict.fromkeys(network.doors, 0.5 * BUDGET.rho))


@each_trust
@pytest.mark.parametrize("answer", [b"", b"nonsense", bytes(200)], ids=["nothing", "nonsense", "zeros"])
def test_a_reply_that_is_none_counts_as_a_dropout(trust, answer):
    network = Faulty(changing(lambda message, data: answer if message.site == "site-001" else data))
    federation = start(network, trust=trust, budget=Budget.none())
    found = federation.sum(QUERY, 1.0)
    held = tables(5)
    assert found.sites == ("site-000", "site-002", "site-003", "site-004")
    assert (found.values == exact(QUERY, [held[0], *held[2:]])).all()
    assert federation.lost == ["site-001"]


@pytest.mark.parametrize("turn", range(5))
def test_an_answer_of_another_turn_is_a_dropout(turn):
    kept: dict[int, bytes] = {}

    def confused(message: Message, data: bytes) -> bytes:
        if message.site != "site-001":
            return data
        kept.setdefault(message.request.turn, data)
        return kept[0] if message.request.turn == turn and turn else b"" if message.request.turn == turn else data

    federation = start(Faulty(changing(confused)), trust=SecureSum(), budget=Budget.none())
    found = federation.sum(QUERY, 1.0)
    held = tables(5)
    inside = held if turn > MASKED else [held[0], *held[2:]]
    assert (found.values == exact(QUERY, inside)).all()
    assert "site-001" in federation.lost


# ---------------------------------------------------------------------------------------------------------------------
# What can be read from messages


def test_the_length_of_a_message_says_nothing_about_rows():
    def lengths(trust: Any, rows: int) -> list[tuple[str, int, int]]:
        network = Faulty()
        run(start(network, [table(rows, rows + k) for k in range(3)], trust))
        return [
            (reply.site, len(message.data), len(reply.data))
            for message, reply in zip(network.sent, network.replies, strict=True)
        ]

    for trust in (TRUSTS["trusted"], TRUSTS["secure"]):
        assert lengths(trust, 0) == lengths(trust, 1) == lengths(trust, 1000)
    # Noisy sums travel in questions of their own only where a method sends them back; none of these does.
    assert lengths(LocalNoise(), 0) == lengths(LocalNoise(), 1) == lengths(LocalNoise(), 1000)


def windows(values: NDArray[np.int64], number: int = 2) -> list[bytes]:
    """Return every run of so many neighbouring counts as bytes, but for zeros, which stand everywhere."""
    found = [values[at : at + number] for at in range(len(values) - number + 1)]
    return [part.astype("<i8").tobytes() for part in found if part.all()]


@pytest.mark.parametrize("deposits", [False, True])
def test_exact_counts_are_sealed_and_stand_in_no_file(deposits, tmp_path):
    held = tables(3, rows=3000)
    query = counts((SEX, REGION), (AGE,))
    network = Faulty()
    federation = start(network, held, TrustedServer(), transcript=tmp_path / "t")
    if deposits:
        federation.deposit(query, 0.5).open(query, 0.5)
    else:
        released = federation.sum(query, 0.5)
    transcript = (tmp_path / "t").read_bytes()
    assert len(network.replies) == 3
    for rows, reply in zip(held, network.replies, strict=True):
        counted = query.answer(rows)
        assert reply.sealed
        assert isinstance(reply.answer, PlainAnswer)
        assert (reply.answer.values == counted).all()  # the coordinator reads them
        for part in windows(counted):
            assert part not in reply.data
            assert part not in transcript
    for part in windows(exact(query, held)):
        assert part not in transcript
    kinds = [kind for kind, _ in records(tmp_path / "t")]
    assert kinds == ["agreement", "question", "withheld", "withheld", "withheld", "released"]
    if not deposits:  # but the sum with its noise does
        assert released.values.astype("<i8").tobytes() in transcript


@each_trust
def test_an_answer_of_each_site_is_noisy_before_it_is_recorded(trust, tmp_path):
    held = tables(3, rows=3000)
    start(Faulty(), held, trust, transcript=tmp_path / "t").each(counts((SEX, REGION), (AGE,)), 0.5)
    transcript = (tmp_path / "t").read_bytes()
    for rows in held:
        assert not any(part in transcript for part in windows(counts((SEX, REGION), (AGE,)).answer(rows), 4))


def test_no_message_of_a_secure_sum_holds_a_sites_noisy_answer():
    held = tables(5, rows=3000)
    query = counts((SEX, REGION), (AGE,))
    network = Faulty()
    start(network, held, SecureSum(), Budget.none()).sum(query, 1.0)  # not even where there is no noise
    everything = b"".join([*(message.data for message in network.sent), *(reply.data for reply in network.replies)])
    for rows in held:
        assert not any(part in everything for part in windows(query.answer(rows)))
    local = Faulty()
    start(local, held, LocalNoise(), Budget.none()).sum(query, 1.0)
    assert all(
        reply.data.count(query.answer(rows).tobytes()) == 1 for rows, reply in zip(held, local.replies, strict=True)
    )


def test_two_sites_cannot_share_a_name():
    federation = start(network := Faulty(), tables(1))
    (site,) = network.doors.values()
    assert federation.transport.sites == ("site-000",)
    with pytest.raises(FedsynthError, match="share a name"):
        InProcess([site, site])


def test_records_of_a_file_that_is_no_transcript(tmp_path):
    (tmp_path / "t").write_bytes(b"something else")
    with pytest.raises(FedsynthError, match="not a transcript"):
        list(records(tmp_path / "t"))


def test_a_record_of_an_unknown_kind_does_not_hide_those_after_it(tmp_path):
    federation = start(Faulty(), tables(2), LocalNoise(), transcript=tmp_path / "t")
    federation.sum(counts((SEX,)), 0.5)
    before = list(records(tmp_path / "t"))
    with (tmp_path / "t").open("ab") as file:
        file.write(_record(9, b"of a later version"))
    found = records(tmp_path / "t")
    assert [next(found) for _ in before] == before
    with pytest.raises(FedsynthError, match="another version of fedsynth wrote parts"):
        next(found)


def test_a_sum_keeps_no_answer_once_it_is_added(monkeypatch):
    living: list[int] = []
    answers: list[weakref.ref[Any]] = []
    read = Message.reply

    def reply(message: Message, data: bytes) -> Any:
        found = read(message, data)
        assert isinstance(found.answer, PlainAnswer)
        answers.append(weakref.ref(found.answer.values))
        living.append(sum(answer() is not None for answer in answers))
        return found

    monkeypatch.setattr(Message, "reply", reply)
    start(None, tables(8), LocalNoise(), transport=InProcess).sum(counts((SEX, REGION)), 0.5)
    assert len(living) == 8
    assert max(living) <= 3
