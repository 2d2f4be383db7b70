"""The same noise twice, and keys that tell of the rows: what a site draws belongs to one question and its terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.attacks.world import Message, ask, converse, question, secure_sites, site, table, values

from fedsynth.federation.site import Site
from fedsynth.federation.trust.roster import MASKED, SHARES
from fedsynth.federation.trust.secure_sum import SecureSum
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Gaussian

BEFORE, AFTER = SecureSum(min_honest=4, dropouts=1), SecureSum(min_honest=4, dropouts=0)


def with_terms(sites: list[Site], terms: SecureSum) -> list[Site]:
    """Return the same sites after their stewards have changed the terms of secure sums in their policies."""
    before = sites[0].policy.trusts["secure"]
    assert isinstance(before, SecureSum)
    agreed = terms.among(before.roster)
    return [replace(of, policy=replace(of.policy, trusts={"secure": agreed})) for of in sites]


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="noise is keyed without the terms: other terms give the same words another scale, uncharged",
)
def test_a06_a_question_has_one_answer_whatever_its_terms_become():
    """A site never answers one question twice with different noise: after a change of terms, it repeats or refuses."""
    sites = secure_sites(4, BEFORE)
    message, first = converse(sites, question(trust="secure", cliques=[[0]]), MASKED)["site-0"]
    (changed, *_) = with_terms(sites, AFTER)
    second = ask(changed, message)
    assert second.values is None or (values(second) == values(first)).all()
    assert changed.ledger.spent() <= sites[0].ledger.spent()


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="keys are bound to the question and not to the terms: two plain texts under one key and nonce",
)
def test_a06_no_key_seals_two_different_boxes():
    """A key and nonce of a sealed box serve one plain text: other terms mean other keys, or no box at all."""
    asked = question(trust="secure", cliques=[[0]])
    sites = secure_sites(4, BEFORE)

    def shares(of: list[Site]) -> Message | None:
        try:
            return converse(of, asked, SHARES)["site-0"]
        except AssertionError:  # refused
            return None

    first, second = shares(sites), shares(with_terms(sites, AFTER))
    assert first is not None
    if second is not None:
        same_keys = (first[0].stage["adverts"] == second[0].stage["adverts"]).all()
        same_boxes = (first[1].parts["boxes"] == second[1].parts["boxes"]).all()
        assert not same_keys or same_boxes


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="keys of the first turn derive from the digest of the rows"
)
def test_a07_a_free_message_does_not_tell_whether_rows_changed():
    """What leaves a site without a charge is a function of requests and policy, never of the rows."""
    (asked, *_) = secure_sites(3, SecureSum())
    request = question(trust="secure", cliques=[[0]])
    adverts = []
    fewer = asked.table.take(np.arange(1, len(asked.table)))
    for rows in (asked.table, fewer, asked.table):
        reply = ask(replace(asked, table=rows), request)
        adverts.append(reply.parts["advert"].tobytes())
    assert asked.ledger.spent() == 0
    assert adverts[0] == adverts[1] == adverts[2]


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="a refusal quotes what was spent, and changed rows are charged again"
)
def test_a07_a_refusal_does_not_tell_whether_rows_changed():
    """A site that is out of budget says the same to the same messages, whether its rows changed between them or not."""
    request, too_much = question(cliques=[[0]]), question(release=Gaussian(1e3), step=1, cliques=[[0]])

    def refusal(rows: tuple[int, ...]) -> tuple[str, str]:
        ledger = SiteLedger()
        for number in rows:
            ask(site(table(number), ledger=ledger), request)
        reply = ask(site(table(rows[-1]), ledger=ledger), too_much)
        return reply.error, reply.reason

    assert refusal((40, 40)) == refusal((40, 39))
