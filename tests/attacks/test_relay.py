"""A relay without keys: it replays, forges and rewrites what passes it, and can do no more than drop and delay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from tests.attacks.world import (
    COORDINATOR,
    PARTS,
    SCHEMA,
    SEX,
    answer_in,
    ask,
    counts,
    question,
    read,
    reply_of,
    rewritten,
    sealed,
    secure_sites,
    signed,
    site,
    table,
)
from tests.world import Faulty, changing

from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.simulate import federate
from fedsynth.federation.transport import Message
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import (
    AuditPosition,
    ForeignReply,
    ReplyHead,
    code_of,
    open_reply,
    write_answer,
    write_reply,
)
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget, Cost
from fedsynth.secure.site import SecureSum

VICTIM = "site-002"
TRUSTS: dict[str, Trust] = {
    "local": LocalNoise(),
    "trusted": TrustedServer(),
    "secure": SecureSum(min_honest=2, dropouts=2),
}
each_trust = pytest.mark.parametrize("trust", TRUSTS)

# ---------------------------------------------------------------------------------------------------------------------
# Requests


def of_another(own: AuditPosition) -> AuditPosition:
    return AuditPosition.signed(Keys(bytes([2]) * 32).seed, "site-1", 50, b"c" * 32)


FORGED: dict[str, Callable[[AuditPosition], AuditPosition]] = {
    "made up": lambda own: AuditPosition(9, b"x" * 32, b"x" * 64),
    "another row": lambda own: replace(own, row=own.row + 1),
    "another chain": lambda own: replace(own, chain=b"x" * 32),
    "beyond 2^53": lambda own: replace(own, row=2**60),
    "beyond every row": lambda own: replace(own, row=2**64 - 1),
    "of another site": of_another,
    "without a signature": lambda own: replace(own, signature=bytes(64)),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_b08_a_position_that_the_site_did_not_sign_has_no_effect(forge):
    """1,001 replays of one old question with a wrong position are as many replies and no row.

    Positions were not signed: the site refused the first replay, and from the 1,001st on every secure sum of the hour
    ("too many questions without cost in this hour").
    """
    asked, *_ = secure_sites(3, SecureSum())
    old = question(trust="secure")
    first = ask(asked, old)
    before, data = asked.account.head(), sealed(old, forge(first.seen), asked.name)
    (reply,) = {asked.answer(data).data for _ in range(1001)}
    assert answer_in(reply) == answer_in(first.data)
    assert asked.account.head() == before
    assert ask(asked, question(trust="secure", run="next")).code == "answered"


def test_b08_a_refused_message_takes_one_row_however_often_it_comes():
    """Each repetition took a row, and after 1,000 of them the site opened no secure sum for the rest of the hour."""
    asked, *_ = secure_sites(3, SecureSum())
    old = question(trust="secure")
    ask(asked, old)
    asked.account.close("run")
    before = asked.account.head()[0]
    data = sealed(old, to=asked.name)
    assert {code_of(asked.answer(data).data) for _ in range(1001)} == {"refused"}
    assert asked.account.head()[0] == before + 1
    assert ask(asked, question(trust="secure", run="next")).code == "answered"
    assert asked.account.verify().wrong == ""


def test_b08_refusals_never_use_up_what_questions_without_cost_may_be():
    """A coordinator that signs any number of bad messages fills a bounded number of rows, and asks on as before."""
    asked, *_ = secure_sites(3, SecureSum())
    asked.account.free_an_hour = 50
    for step in range(300):
        assert ask(asked, question(trust="nobody", step=step)).code == "refused"
    assert asked.account.head()[0] == 50
    with asked.account._file.open() as records:
        assert records.execute("SELECT count(*) FROM parts").fetchone() == (50,)
    assert ask(asked, question(trust="secure")).code == "answered"


def test_b08_a_backup_is_noticed_by_what_the_site_signed_and_the_log_has_the_whole_head(caplog):
    """The site's own signature is the one thing that makes it refuse; its steward finds in the log what to copy."""
    asked, backed_up = (site() for _ in range(2))  # the second has the secret and an account without the charge
    seen = ask(asked, question()).seen
    refused = reply_of(backed_up, question(step=1), seen)
    assert read(backed_up, question(step=1), refused).code == "refused"
    assert f"fedsynth account FOLDER --restored {seen}" in caplog.text
    assert f'"lacking":"{seen}"' in list(backed_up.account.export())[-1]
    assert AuditPosition.parse(str(seen)).verified("north", Keys(asked.secret).identity)


def test_b08_a_site_signs_no_refusal_of_what_its_coordinator_did_not_sign():
    """The reply to a spoilt request named the message that it had been; signed, it would refuse any message."""
    asked, message = site(), question()
    good = sealed(message)
    for data in (bytes([good[0] ^ 1]) + good[1:], message.body, b""):
        with pytest.raises(ForeignReply, match="did not sign"):
            read(asked, message, asked.answer(data).data)
    assert asked.account.head()[0] == 0


def test_b08_a_request_that_is_led_to_another_site_is_not_answered_there(caplog):
    """A question was signed for no site in particular: whoever carried it could have another one pay for it."""
    north, south = site(), site(name="south", secret=b"s" * 32)
    reply = south.answer(sealed(question(), to="north")).data
    with pytest.raises(ForeignReply, match="or not for it"):
        read(south, question(), reply)
    assert "the message is for site 'north', and this one is 'south'" in caplog.text
    assert (south.account.head()[0], south.account.spent().rho) == (0, 0)
    assert ask(north, question()).code == ask(south, question()).code == "answered"


# ---------------------------------------------------------------------------------------------------------------------
# Replies


def relayed(change: Callable[[bytes], bytes]) -> Faulty:
    """Return a channel with somebody on the way who changes every reply of one site."""
    return Faulty(changing(lambda message, data: change(data) if message.site == VICTIM else data))


def run(trust: str, relay: Faulty) -> Federation:
    """Return a federation of five sites behind a relay."""
    tables = [table(40, seed) for seed in range(5)]
    return federate(tables, SCHEMA, Budget(2.0, 1e-6), trust=TRUSTS[trust], seed=1, transport=relay)


@each_trust
@pytest.mark.parametrize("part", PARTS)
def test_b08_a_reply_that_was_changed_on_its_way_is_lost_and_not_remembered(trust, part):
    """One byte in any part loses the site this round, and no other: the next question is answered and charged once.

    Replies had no signature: a changed row was remembered for good, and the site refused this run and all later ones.
    """
    relay = relayed(lambda data: rewritten(data, part))
    federation = run(trust, relay)
    first = federation.sum(counts((SEX,)), 0.5)
    assert VICTIM not in first.sites
    assert len(first.sites) == 4
    assert VICTIM in federation.lost
    assert VICTIM not in federation.seen
    relay.rule = Faulty.rule
    assert len(federation.sum(counts((SEX,)), 0.5).sites) == 5
    charges = relay.doors[VICTIM].account.charges()
    assert len({charge["key"] for charge in charges}) == len(charges) == (1 if trust == "secure" else 2)
    assert federation.budget.covers(relay.doors[VICTIM].account.spent())


@each_trust
def test_b08_a_reply_that_a_relay_makes_itself_is_lost_and_not_remembered(trust):
    """With a row beyond all that the site has, it made every site refuse; now it needs the site's own key."""

    def made(data: bytes) -> bytes:
        made_up = AuditPosition(2**60, b"x" * 32, b"x" * 64)
        return write_reply(bytes(32), VICTIM, open_reply(data, VICTIM, None)[0], write_answer("refused", made_up))

    federation = run(trust, relayed(made))
    assert len(federation.sum(counts((SEX,)), 0.5).sites) == 4
    assert VICTIM not in federation.seen


def test_b08_no_reply_stands_for_another_one():
    """A signature covers site, request, message, code, position and answer: nothing of one reply goes into another."""
    north, south = site(), site(table(seed=1), name="south", secret=b"s" * 32)
    first, second = question(), question(step=1)
    key = Keys(north.secret).identity
    here, earlier, other = (
        Message.of("north", key, request, COORDINATOR, AuditPosition()) for request in (first, first, second)
    )
    there = Message.of("south", Keys(south.secret).identity, first, COORDINATOR, AuditPosition())
    mine, before, another = (north.answer(message.data).data for message in (here, earlier, other))
    assert here.reply(mine).code == "answered"
    assert answer_in(mine) == answer_in(before) != answer_in(another)
    cut = len(mine) - len(answer_in(mine))
    foreign = {
        "another site's": south.answer(there.data).data,
        "to another message": another,
        "to an earlier request": before,
        "another answer": mine[:cut] + answer_in(another),
        "another answer with its signature": mine[:64] + another[64:],
        "another head": another[:64] + mine[64:],
        "an earlier request's head": before[:64] + mine[64:],
        "no answer": mine[:cut],
    }
    for what, data in foreign.items():
        reply = here.reply(data)
        assert (reply.code, reply.answer, reply.seen) == ("lost", None, AuditPosition()), what
        with pytest.raises(ForeignReply):  # which files are passed over for, and waited on
            here.own_reply(data)
    assert here.reply(before, recorded=True).code == "answered"
    as_north = signed(Keys(south.secret).seed, "north", ReplyHead(here.digest, first.digest), "refused")
    assert here.reply(as_north).code == "lost"


@pytest.mark.parametrize(("place", "turn"), [({"run": "other"}, 0), ({"step": 7}, 0), ({}, 3)])
def test_b08_a_head_that_tells_another_place_than_its_message_is_refused_before_anything_is_charged(place, turn):
    """Carriers name files after the head, and the site charges by the message: both must say the same."""
    asked = question()
    other = replace(asked, head=msgspec.structs.replace(asked.head, **place), turn=turn)
    other.body = asked.body  # a cached property
    of = site(table())
    assert read(of, asked, of.answer(sealed(other)).data).code == "refused"
    assert of.account.spent() == Cost()
    assert ask(of, asked).code == "answered"
