"""The same noise twice, and keys that tell of the rows: what a site draws belongs to one question and its terms."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.attacks.world import (
    AGE,
    BUDGET,
    SCHEMA,
    SEX,
    ask,
    converse,
    counts,
    question,
    read,
    reply_of,
    rows_of,
    secure_sites,
    site,
    table,
    values,
)
from tests.world import contingency

from fedsynth.federation.events import MaskAnswer
from fedsynth.federation.query import RecordCount
from fedsynth.federation.site import Site, rows_digest
from fedsynth.federation.wire import ForeignReply, encode, open_reply
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget, Cost, Norms, Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.rows import Table
from fedsynth.secure.session import AGREE, KEYS, MASKED, SHARES, UNMASK
from fedsynth.secure.site import SecureSum

TRUST = SecureSum(min_honest=4, dropouts=1)


def with_terms(sites: list[Site]) -> list[Site]:
    """Return the same sites after their stewards have put another site into their rosters.

    Members of a sum agree on the roster among themselves. Other settings of the trust are in the run's agreement, and a
    change of them is refused before the account is asked.
    """
    before = sites[0].policy.trusts["secure"]
    assert isinstance(before, SecureSum)
    agreed = TRUST.with_roster({**before.roster, "site-9": Keys(b"9" * 32).identity})
    return [replace(of, policy=replace(of.policy, trusts={"secure": agreed})) for of in sites]


def with_rows(of: Site, rows: Table) -> Site:
    """Return the same site after its rows have changed, as a process that pins the rows of a run holds it."""
    return replace(of, rows=rows)


@pytest.mark.parametrize("until", [KEYS, SHARES, MASKED, AGREE, UNMASK])
def test_a06_a_question_has_one_answer_whatever_its_terms_become(until):
    """After a change of terms a site repeats what it said, or refuses: no second sample, no key for two texts."""
    sites = secure_sites(4, TRUST)
    turns = converse(sites, question(trust=TRUST), until)
    assert all(len(turn) == 4 for turn in turns)
    (changed, *_) = with_terms(sites)
    spent = changed.account.spent()
    for turn in turns:
        message, first = turn["site-0"]
        assert ask(changed, message).data == first.data
    assert changed.account.spent() == spent


def test_a06_a_session_does_not_go_on_under_other_terms():
    """A sum that began under one roster is refused under another, at every turn that is still to come."""
    asked = question(trust=TRUST)
    for until in (KEYS, SHARES, MASKED, AGREE):
        sites = secure_sites(4, TRUST)
        more = converse(secure_sites(4, TRUST), asked, UNMASK)  # the events that would come, of another session
        turns = converse(sites, asked, until)
        (changed, *_) = with_terms(sites)
        following = asked.at(until + 1, more[until + 1]["site-0"].message.event)
        before = changed.account.spent()
        assert ask(changed, following).code == "refused"
        assert changed.account.spent() == before
        assert turns


def test_a06_a_site_does_not_sign_its_answer_as_one_to_another_message_of_the_turn():
    """A turn is answered once: to another event, the reply names the message that the answer was made for."""
    sites = secure_sites(4, SecureSum())
    asked = question(trust="secure")
    heard = converse(sites, asked, MASKED + 1)[MASKED]["site-0"]
    event = heard.message.event
    assert isinstance(event, MaskAnswer)
    boxes = event.boxes.copy()
    boxes.flat[0] ^= 1
    other = asked.at(MASKED, msgspec.structs.replace(event, boxes=boxes))
    data = reply_of(sites[0], other)
    with pytest.raises(ForeignReply, match="answers another request"):
        read(sites[0], other, data)
    assert open_reply(data, "site-0", None)[0].message == heard.message.digest
    assert read(sites[0], heard.message, reply_of(sites[0], heard.message)).code == "answered"


def test_a06_a_charge_without_a_reply_is_not_answered_under_other_terms():
    """A crash between charge and reply leaves a question that is answered under its own terms, or not at all."""
    asked, message = site(), question()
    first = values(ask(asked, message))
    with asked.account._file.transaction() as records:  # as if the second transaction had not come
        records.execute("DELETE FROM parts WHERE part != 'agreement'")
    richer = replace(asked, policy=replace(asked.policy, unit=Unit(), budget=Budget(9.0, 1e-6)))
    assert np.array_equal(values(ask(richer, message)), first)  # a limit is no term
    with asked.account._file.transaction() as records:
        records.execute("DELETE FROM parts WHERE part != 'agreement'")
    other = replace(asked, name="south")
    assert ask(other, message).answer is None or not np.array_equal(values(ask(other, message)), first)


def test_a06_another_price_law_unit_or_neighbour_is_another_question():
    """Everything that decides about the noise is in the question or in the terms that it was charged under.

    Ten cells agree in their noise of 50 and more with a chance of one in 10^20.
    """
    asked, ages = site(), counts((AGE,))
    messages = [
        question(ages),
        question(ages, release=Gaussian(2e-4)),
        question(ages, unit=Unit(2, 1), run="pairs"),
        question(ages, unit=Unit(1, 2), run="travellers"),
        question(ages, step=1),
    ]
    noises = [values(ask(asked, message)).tolist() for message in messages]
    assert len({str(noise) for noise in noises}) == len(messages)
    assert asked.account.spent().rho == pytest.approx(1e-4 * (1 + 2 + 1 + 2 + 1))
    public = site(size_is_public=True, account=asked.account)
    again = question(ages)
    assert ask(public, again).data == ask(asked, again).data or ask(public, again).code == "refused"


def test_a07_a_free_message_does_not_tell_whether_rows_changed():
    """What leaves a site without a charge is a function of requests and policy, never of the rows."""
    asked = question(trust="secure")
    first, again = (secure_sites(3, SecureSum()) for _ in range(2))
    for of in (first, again):
        for one in of:
            one.account._entropy = lambda key: b"s" * 32
    again = [with_rows(of, table(len(rows_of(of)) - 1, 9)) for of in again]
    turns = [converse(of, asked, SHARES) for of in (first, again)]
    for before, after in zip(*turns, strict=True):
        assert {name: encode(said.reply.answer) for name, said in before.items()} == {
            name: encode(said.reply.answer) for name, said in after.items()
        }
    assert all(of.account.spent().rho == 0 for of in first)


def test_a07_a_repetition_does_not_tell_whether_rows_changed():
    """The same message gets the same bytes, whether a row was changed, left, or came back in between."""
    asked, message = site(), question()
    replies = [reply_of(with_rows(asked, rows), message) for rows in (table(40), table(39), table(40))]
    assert len(set(replies)) == 1
    assert asked.account.spent().rho == message.head.release.cost(Norms(1, 1)).rho


def test_a07_noise_does_not_depend_on_rows():
    """With the same salt two tables get the same noise: equal noise tells nothing, and differences are the salts'."""

    def noise(rows: int) -> list[int]:
        held = table(rows)
        asked = site(held, account=Book(entropy=lambda key: b"s" * 32))
        exact = contingency(held, [SEX]).ravel()
        return [int(one) for one in values(ask(asked, question())) - exact]

    assert noise(40) == noise(39)


@pytest.mark.parametrize("verb", ["sum", "each"])
def test_a07_a_forgotten_question_gets_other_noise(tmp_path, verb):
    """A backup from before a question is put back, a row changes, and the question comes again: no exact difference.

    The coordinator does not say that it saw more. Six of ten cells of noise of 50 and more agree once in 10^12 times.
    """
    path, asked = tmp_path / "account.sqlite", question(counts((AGE,)), verb=verb)
    of = site(table(40), account=Book(path))
    forgotten = path.read_bytes()
    before = values(ask(of, asked))
    path.write_bytes(forgotten)
    changed = table(39)
    after = values(ask(with_rows(replace(of, account=Book(path), rows_digest=""), changed), asked))
    exact = contingency(table(40), [AGE]).ravel() - contingency(changed, [AGE]).ravel()
    assert not np.array_equal(before - after, exact)
    assert (before - after != exact).sum() >= 5


@pytest.mark.parametrize("verb", ["sum", "each"])
def test_a07_a_refusal_does_not_tell_of_the_rows(verb):
    """Neighbouring tables, an empty one, the same messages: the same codes, lengths and charges."""
    asked = [
        question(verb=verb),
        question(verb=verb, release=Gaussian(BUDGET.rho), step=1),  # more than is left
        question(verb=verb, schema="0" * 64),
        question(counts((SEX,), (SEX,)), verb=verb, step=2),
        question(verb=verb, release=Gaussian(1e3), step=3),
        question(RecordCount(), verb=verb, step=4),
        question(verb=verb),
    ]

    def told(rows: int) -> list[tuple[str, int, Cost, int]]:
        of = site(table(rows))
        seen: list[tuple[str, int, Cost, int]] = []
        for message in asked:
            reply = ask(of, message)
            seen.append((reply.code, len(reply.data), of.account.spent(), of.account.head()[0]))
        return seen

    assert told(40) == told(39) == told(0)
    assert [code for code, *_ in told(40)] == [
        "answered",
        "spent",
        "refused",
        "answered",
        "spent",
        "answered",
        "answered",
    ]


def test_a07_rows_of_a_run_are_named_by_a_keyed_digest():
    """What the account holds of the rows says nothing to whoever lacks the site's secret."""
    held = table()
    asked = site(held)
    ask(asked, question())
    pinned = asked.account.pinned("run")
    assert pinned == rows_digest(asked.secret, held.digest) != held.digest
    assert SCHEMA.digest not in (pinned or "")
