"""B11: a coordinator sends no agreement, another one than it names, or one that no honest coordinator could write.

A run is answered under the agreement that its first question named, and under no other. What a site cannot read of an
agreement is refused before anything is charged.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from msgspec import structs
from tests.attacks.world import BUDGET, CHEAP, COORDINATOR, SCHEMA, ask, question, read, sealed, site, with_head
from tests.world import agreed, last_reason

from fedsynth.errors import InvalidParameter
from fedsynth.federation.agreement import Agreement, PlannedQuestion
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.trust import roster_digest
from fedsynth.federation.wire import LARGEST_AGREEMENT, AuditPosition, Reply, Request
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.secure.site import SecureSum

HONEST = agreed(schema=SCHEMA.digest, sites=3, budget=BUDGET)


def asked(agreement: Agreement = HONEST, step: int = 0, run: str = "run") -> Request:
    """Return a question under an agreement."""
    return question(plan=agreement, step=step, run=run)


def beside(of: Site, request: Request, attached: bytes) -> Reply:
    """Send a question with any bytes in the place of its agreement."""
    return read(of, request, of.answer(sealed(request, agreement=attached)).data)


def test_b11_a_site_keeps_the_agreement_with_the_run_until_it_ends():
    of = site()
    assert ask(of, asked()).code == "answered"
    assert of.account.agreed("run") == HONEST.data
    assert beside(of, asked(step=1), b"").code == "answered"
    assert len(of.account.charges()) == 2
    of.account.close("run", "the coordinator")
    assert of.account.agreed("run") == b""
    assert beside(of, asked(step=2), b"").code == beside(of, asked(step=2), HONEST.data).code == "refused"


@pytest.mark.parametrize(
    "attached",
    [
        b"",
        b"\x80",
        HONEST.data[:-1],
        HONEST.data + b"\0",
        structs.replace(HONEST, sites=4).data,
        bytes(LARGEST_AGREEMENT),
    ],
    ids=["none", "empty", "cut", "longer", "another", "zeros"],
)
def test_b11_what_is_not_the_agreement_that_is_named_is_refused(attached):
    of = site()
    assert beside(of, asked(), attached).code == "refused"
    assert not of.account.charges()
    assert of.account.agreed("run") == b""
    assert ask(of, asked()).code == "answered"


def test_b11_a_run_does_not_change_its_agreement():
    """Or the price of a person with one row would be charged for one with three, and a plan be exchanged midway."""
    of = site()
    assert ask(of, asked()).code == "answered"
    for other in (
        structs.replace(HONEST, unit=Unit(rows=3)),
        structs.replace(HONEST, method="aim"),
        structs.replace(HONEST, slots=(PlannedQuestion("sum", "counts", "gaussian", 1.0, 9, 3, 3, 999),)),
    ):
        assert ask(of, asked(other, step=1)).code == "refused"
        assert "under another agreement" in last_reason(of)
        assert beside(of, asked(other, step=1), b"").code == "refused"
        assert beside(of, asked(other, step=1), HONEST.data).code == "refused"
    assert len(of.account.charges()) == 1
    assert ask(of, asked(structs.replace(HONEST, method="aim"), run="another")).code == "answered"


def written(**changes: Any) -> bytes:
    """Return the bytes of an agreement with other contents, which no constructor has looked at."""
    return msgspec.msgpack.encode({**msgspec.to_builtins(HONEST), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "0" * 63},
        {"trust": 3},
        {"trust": "trusted\x1b[8m"},
        {"trust_options": {"\x1b[2J": 1}},
        {"method": "aim\x1b[2J\x1b[Hnorth: epsilon 0.1 of 5"},
        {"method": "aim\n  nothing was asked"},
        {"roster": "0" * 64 + "\n"},
        {"slot": [{"verb": "sum", "kind": "size\x1b[1A", "release": "gaussian", "price": 1.0, "times": 1}]},
        {"trust_options": {"min_honest": "x"}},
        {"sites": 0},
        {"sites": True},
        {"public_sizes": 1},
        {"budget": {"epsilon": float("nan"), "delta": 0.0}},
        {"budget": {"epsilon": -1.0, "delta": 0.0}},
        {"unit": {"rows": 0, "sites": 1}},
        {"unit": {"rows": 1, "sites": -1}},
        {"unit": {"rows": 1.5, "sites": 1}},
        {"slot": [{"verb": "sum", "kind": "size", "release": "gaussian", "price": -1.0, "times": 1}]},
        {"slot": [{"verb": "sum", "kind": "size", "release": "gaussian", "price": 1.0, "times": 0}]},
        {"slot": [{"verb": "sum", "kind": "counts", "release": "gaussian", "price": 1.0, "times": 1}]},
        {"options": 3},
        {"further": 1},
        {"fedsynth_plan": 2},
        {"method": None},
    ],
    ids=str,
)
def test_b11_an_agreement_is_trusted_only_after_decoding(changes):
    data = written(**changes)
    with pytest.raises(InvalidParameter):
        Agreement.read(data)
    of = site()
    hostile = with_head(asked(), {"agreement": hashlib.sha256(data).hexdigest()})
    assert beside(of, hostile, data).code == "refused"
    assert "agreement is not" in last_reason(of)
    assert not of.account.charges()


def test_b11_an_agreement_has_one_encoding():
    assert Agreement.read(HONEST.data) == Agreement.read(written()) == HONEST
    turned = dict(reversed(msgspec.to_builtins(HONEST).items()))
    for data in (HONEST.data + b"\xc0", msgspec.msgpack.encode(turned), msgspec.json.encode(HONEST)):
        with pytest.raises(InvalidParameter):
            Agreement.read(data)


def test_b11_no_agreement_fills_the_disk():
    """Its size counts as stored, and a larger one than 64 KiB is not sent."""
    long = structs.replace(HONEST, options={"note": "x" * 60_000})
    assert ask(site(), asked(long)).code == "answered"
    of = site(largest_stored=60_000)
    assert ask(of, asked(long)).code == "refused"
    assert "largest_stored" in last_reason(of)
    assert ask(of, asked()).code == "answered"
    request = asked(structs.replace(HONEST, options={"note": "x" * 2**16}))
    with pytest.raises(InvalidParameter, match="sites read at most"):
        Message.of("north", bytes(32), request, COORDINATOR, AuditPosition())


def test_b11_a_run_is_held_to_its_plan_where_any_plan_may_come():
    """The statement of a run gives the epsilon of its plan, whether sites approved it or not."""
    slots = (PlannedQuestion("sum", "counts", "gaussian", CHEAP.rho, 2, 3, 2, 1000),)
    of, plan = site(), structs.replace(HONEST, slots=slots)
    assert [ask(of, asked(plan, step)).code for step in range(3)] == ["answered", "answered", "refused"]
    assert "no free slot" in last_reason(of)
    dear = question(plan=plan, step=4, release=Gaussian(2 * CHEAP.rho))
    assert ask(of, dear).code == ask(of, question(plan=plan, step=5, verb="each")).code == "refused"
    assert len(of.account.charges()) == 2


def test_b11_a_policy_is_held_to_whatever_was_agreed():
    of = site(methods=frozenset({"oneshot"}), min_cohort=3)
    assert ask(of, asked()).code == "refused"
    assert "its method '' is not oneshot" in last_reason(of)
    assert ask(of, asked(structs.replace(HONEST, method="oneshot", sites=2))).code == "refused"
    assert "min_cohort is 3" in last_reason(of)
    assert ask(of, asked(structs.replace(HONEST, method="oneshot"))).code == "answered"


def test_b11_a_site_refuses_a_run_of_other_sites_or_keys_than_its_roster_has():
    roster = {"north": Keys(bytes(range(32))).identity, "south": Keys(bytes(32)).identity}
    of = site(trust=SecureSum().with_roster(roster))
    for other in ({**roster, "south": Keys(b"1" * 32).identity}, {"north": roster["north"]}):
        run = structs.replace(HONEST, trust="secure", roster=roster_digest(other))
        assert ask(of, asked(run)).code == "refused"
        assert "other sites or keys" in last_reason(of)
    assert ask(of, asked(structs.replace(run, roster=roster_digest(roster)))).code == "answered"
