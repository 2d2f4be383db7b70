"""Statements say what holds, never more: limit, unit, neighbours, adversary, and all that voids or weakens them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.world import SCHEMA

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import Budget, Cost, Norms, Unit, epsilon_of, group_epsilon, rho_of
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import Exact, Gaussian, Laplace
from fedsynth.privacy.statement import Statement
from fedsynth.terms import Terms

DRAFT = replace(SCHEMA, drafted=True)

PLAIN = Statement(Terms(SCHEMA, Budget(1.0, 1e-6), "trusted"), spent=Cost(math.inf, 0.02), exact_releases=0)
PURE = Statement(Terms(SCHEMA, Budget(1.0, 0), "local"), spent=Cost(0.5, 0.1), exact_releases=0)


def under(statement: Statement, **terms: Any) -> Statement:
    """Return the statement under terms that differ in some points."""
    return replace(statement, terms=replace(statement.terms, **terms))


def test_a_plain_statement_in_full():
    assert PLAIN.text == (
        "The synthetic data are (1, 1e-06)-differentially private for each row (add or remove one row), against "
        "everyone but the server, which sees the exact counts of every site (proved). "
        "The limit set for the run is (epsilon, delta) = (1, 1e-06); its releases cost epsilon = 0.8999 at "
        "delta = 1e-06. "
        "A person is protected less if more rows of that person are used (epsilon = 3.294 for 3 rows and epsilon = "
        "13.16 for 10 rows at a site), or rows at more than one site. "
        "Costs add up: all runs on these rows, and on earlier or later versions of them, together cost up to the limit "
        "that each site has set for itself, for the unit that its policy protects. "
        "Choosing a run, a method or a setting by scores computed on real rows is not covered."
    )
    assert PLAIN.headline == "(1, 1e-06)-differentially private"
    assert str(PLAIN) == PLAIN.text
    assert PLAIN.private
    assert PLAIN.publishable


def test_the_guarantee_is_the_limit_and_not_what_was_spent():
    less = replace(PLAIN, spent=Cost(0.1, 0.001))
    assert less.headline == PLAIN.headline
    assert less.sentence == PLAIN.sentence
    assert "its releases cost epsilon = 0.1 at" in less.text


def test_a_pure_statement_has_no_delta():
    assert PURE.headline == "1-differentially private"
    assert "delta" not in PURE.text.replace("differentially", "")
    assert "The limit set for the run is epsilon = 1; its releases cost epsilon = 0.5." in PURE.text


@pytest.mark.parametrize(
    ("trust", "adversary", "basis", "says"),
    [
        ("trusted", "everyone but the server", "proved", "(proved)"),
        ("local", "the server and all other sites together", "proved", "(proved)"),
        ("secure", "the server together with all sites but", "computational", "cannot break the cryptography"),
        ("of-another-package", "'of-another-package'", "assumed", "assumed, not proved"),
    ],
)
def test_each_trust_has_its_adversary(trust, adversary, basis, says):
    statement = under(PLAIN, trust=trust)
    assert adversary in statement.adversary
    assert statement.adversary in statement.sentence
    assert statement.basis == basis
    assert says in statement.sentence


def test_what_a_trust_assumes_is_said():
    assert "Assumption" not in PLAIN.text
    secure = replace(under(PLAIN, trust="secure"), assumption="at least 3 of the 5 sites are honest")
    assert "Assumption: at least 3 of the 5 sites are honest." in secure.conditions


@pytest.mark.parametrize(
    ("unit", "neighbours", "who"),
    [
        (Unit(), "add-remove", "each row (add or remove one row)"),
        (Unit(), "replace", "each row (replace one row by another)"),
        (Unit(5, 1), "add-remove", "each person with up to 5 rows at one site (add or remove all rows of the person)"),
        (
            Unit(5, 2),
            "replace",
            "each person with up to 5 rows at each of up to 2 sites (replace the person's rows by as many others)",
        ),
        (
            Unit(1, 2),
            "add-remove",
            "each person with up to 1 row at each of up to 2 sites (add or remove all rows of the person)",
        ),
    ],
)
def test_unit_and_neighbours_are_named(unit, neighbours, who):
    statement = under(PLAIN, unit=unit, public_sizes=neighbours == "replace")
    assert who in statement.sentence
    public = "how many rows a person has is not protected" in statement.text
    assert statement.to_json()["public_sizes"] == public == (neighbours == "replace")
    assert ("add or remove" in statement.text) == (neighbours == "add-remove")
    assert ("at more than 2 sites" in statement.text) == (unit.sites == 2)


@pytest.mark.parametrize(
    ("epsilon", "rows", "weaker"), [(1, 1, 1.0), (1, 3, 3.29), (1, 5, 5.84), (1, 10, 13.16), (3, 10, 48.99)]
)
def test_a_person_with_several_rows_pays_by_their_square(epsilon, rows, weaker):
    statement = under(PLAIN, budget=Budget(epsilon, 1e-6))
    assert statement.for_rows(rows) == pytest.approx(weaker, abs=0.005)
    assert statement.for_rows(rows) == pytest.approx(epsilon_of(rows**2 * rho_of(epsilon, 1e-6), 1e-6))
    many = under(statement, unit=Unit(rows=4))
    assert many.for_rows(4 * rows) == statement.for_rows(rows)
    assert many.for_rows(4 * rows - 3) == statement.for_rows(rows)  # rounded up to whole units


def test_pure_privacy_of_several_rows_adds_up():
    assert PURE.for_rows(1) == 1
    assert PURE.for_rows(7) == 7
    assert under(PURE, unit=Unit(rows=3)).for_rows(7) == 3
    assert replace(PURE, exact_releases=1).for_rows(1) == math.inf
    with pytest.raises(InvalidParameter, match="at least 1 row"):
        PURE.for_rows(0)


@given(st.integers(1, 100), st.floats(0.05, 10))
@settings(deadline=None)
def test_more_rows_are_never_protected_better(rows, epsilon):
    statement = under(replace(PLAIN, spent=Cost()), budget=Budget(epsilon, 1e-6))
    assert epsilon * (1 - 1e-9) <= statement.for_rows(rows) <= statement.for_rows(rows + 1) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (replace(PLAIN, exact_releases=1), "1 release has no noise"),
        (replace(PLAIN, exact_releases=3, spent=Cost(math.inf, math.inf)), "3 releases have no noise"),
        (under(PLAIN, budget=Budget.none()), "no privacy limit"),
        (replace(under(PLAIN, budget=Budget.none()), exact_releases=2, seeded=True), "2 releases have no noise"),
    ],
)
def test_what_is_not_private_says_nothing_else(statement, says):
    assert not statement.private
    assert not statement.publishable
    assert statement.headline == "NOT PRIVATE"
    assert statement.text.startswith("NOT PRIVATE: ")
    assert says in statement.text
    assert statement.conditions == statement.warnings(10) == ()
    assert "differentially private" not in statement.text
    assert json.loads(json.dumps(statement.to_json(), allow_nan=False))["private"] is False


@pytest.mark.parametrize(
    ("statement", "reason", "condition"),
    [
        (replace(PLAIN, seeded=True), "but with noise from a seed", "a reader who knows the seed can remove it"),
        (under(PLAIN, schema=DRAFT), "a schema drafted from the rows", "delete `draft = true`"),
        (replace(PLAIN, looks_at_other_rows=True), "a split over sites that looks at other rows", "row by row"),
    ],
)
def test_what_must_not_be_published_says_so_first(statement, reason, condition):
    assert statement.private
    assert not statement.publishable
    assert statement.headline.startswith("NOT FOR PUBLICATION: (1, 1e-06)-differentially private")
    assert statement.headline.endswith(reason)
    assert statement.text.startswith("NOT FOR PUBLICATION: ")
    assert condition in statement.text
    assert condition not in PLAIN.text


def test_a_limit_that_was_not_kept_cannot_be_stated():
    with pytest.raises(InvalidParameter, match="of the stated limit"):
        replace(PLAIN, spent=Cost(math.inf, 0.03))
    with pytest.raises(InvalidParameter, match="of the stated limit"):
        replace(PURE, spent=Cost(math.inf, 0.01))  # Gaussian noise under a pure limit


def test_weak_guarantees_are_warned_of():
    assert PLAIN.warnings() == PLAIN.warnings(10**6) == PURE.warnings(10**9) == ()
    (delta,) = PLAIN.warnings(10**6 + 1)
    assert "delta = 1e-06 is above 1 / rows" in delta
    (epsilon,) = under(PURE, budget=Budget(20.5, 0)).warnings(10)
    assert "epsilon = 20.5 is above 20" in epsilon
    assert under(PURE, budget=Budget(20.0, 0)).warnings() == ()
    assert len(under(PLAIN, budget=Budget(30.0, 0.1)).warnings(100)) == 2


def test_a_ledger_gives_what_a_statement_states():
    ledger = Ledger(Budget(1.0, 1e-6))
    ledger.record(Entry(0, "sum", "counts", Gaussian(0.01), ("a",), 5, Gaussian(0.01).cost(Norms(1, 1))))
    ledger.record(Entry(1, "sum", "counts", Laplace(0.05), ("a",), 5, Laplace(0.05).cost(Norms(1, 1))))
    statement = replace(PLAIN, spent=ledger.spent, exact_releases=ledger.exact_releases)
    assert statement.private
    assert f"cost epsilon = {ledger.epsilon:.4g} at" in statement.text
    ledger.record(Entry(2, "sum", "counts", Exact(), ("a",), 5, Exact().cost(Norms(1, 1))))
    assert not replace(PLAIN, spent=ledger.spent, exact_releases=ledger.exact_releases).private


def test_json_has_the_data_and_every_text():
    said = json.loads(json.dumps(under(PLAIN, public_sizes=True).to_json(), allow_nan=False))
    assert said["limit"] == {"epsilon": 1.0, "delta": 1e-6}
    assert said["spent"] == {"epsilon": None, "rho": 0.02}
    assert said["unit"] == {"rows": 1, "sites": 1}
    assert said["private"] is said["publishable"] is said["public_sizes"] is True
    assert said["basis"] == "proved"
    assert " ".join([said["sentence"], *said["conditions"]]) == under(PLAIN, public_sizes=True).text
    assert json.loads(json.dumps(under(PLAIN, budget=Budget.none()).to_json()))["limit"]["epsilon"] is None


def test_exact_accounting_gives_the_guarantee_and_the_limit_stays_beside_it():
    exact = replace(PLAIN, exact=0.935)
    assert exact.headline == "(0.935, 1e-06)-differentially private"
    assert exact.sentence.startswith("The synthetic data are (0.935, 1e-06)-differentially private for each row")
    assert "The limit set for the run is (epsilon, delta) = (1, 1e-06); its releases cost" in exact.text
    assert "That is by zCDP" in exact.text
    assert "That is by Renyi divergences" in replace(exact, sampled=True).text
    assert "exact accounting of Gaussian noise, the only kind in the plan" in exact.text
    assert exact.for_rows(1) == exact.epsilon == 0.935
    assert exact.for_rows(3) == PLAIN.for_rows(3)
    assert (exact.to_json()["exact"], PLAIN.to_json()["exact"]) == (0.935, None)


@pytest.mark.parametrize(("of", "epsilon"), [(PLAIN, 1.1), (PLAIN, 0.0), (PURE, 0.5)])
def test_exact_accounting_that_cannot_be_is_refused(of, epsilon):
    with pytest.raises(InvalidParameter, match="exact epsilon"):
        replace(of, exact=epsilon)


TESTED = "that a row's gradient does not depend on other rows is tested, not proved"


def test_the_weakest_part_is_what_a_guarantee_rests_on():
    """Training is not proved, though the trust model's noise is; nothing published may weaken it in silence."""
    assert replace(PLAIN, sampled=True).basis == "tested"
    secure = replace(under(PLAIN, trust="secure"), sampled=True)
    assert secure.basis == "tested"
    assert f"cannot break the cryptography; {TESTED})" in secure.sentence
    gaps = (replace(secure, seeded=True), under(secure, schema=DRAFT), replace(secure, looks_at_other_rows=True))
    for weak in gaps:
        assert weak.basis == "assumed"
        assert "assumed, not proved" in weak.sentence


def test_samples_of_rows_are_a_condition_and_groups_follow_from_the_limit_alone():
    sampled = replace(PLAIN, sampled=True)
    assert sampled.sentence == PLAIN.sentence.replace("(proved)", f"({TESTED})")
    (condition,) = (
        set(sampled.conditions)
        - set(replace(PLAIN, spent=PLAIN.spent).conditions)
        - {one for one in sampled.conditions if one.startswith("A person")}
    )
    assert condition.startswith("Some noise is sized for random samples of rows")
    assert sampled.for_rows(1) == 1.0
    assert 3.0 < sampled.for_rows(3) == group_epsilon(sampled.limit, 3) < 4
    assert f"epsilon = {sampled.for_rows(3):.4g} for 3 rows and epsilon = " in sampled.text
    large = under(sampled, budget=Budget(5.0, 1e-6))  # an order of 6: nothing is known for 10 rows
    assert large.for_rows(10) == math.inf
    assert "for 3 rows at a site)" in large.text
    assert "10 rows" not in large.text
    assert sampled.to_json()["sampled"] is True
    assert replace(sampled, exact_releases=1).conditions == ()
