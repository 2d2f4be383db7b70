"""Statements say what holds, never more: limit, unit, neighbours, adversary, and all that voids or weakens them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.world import SCHEMA

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import (
    Budget,
    Cost,
    Norms,
    Unit,
    epsilon_of,
    group_epsilon,
    in_full,
    repeated_epsilon,
    require_delta,
    rho_of,
    rounded_up,
)
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import Exact, Gaussian, Laplace
from fedsynth.statement import ForeignPart, Statement
from fedsynth.terms import Terms

DRAFT = replace(SCHEMA, drafted=True)

PLAIN = Statement(Terms(SCHEMA, Budget(1.0, 1e-6), "trusted"), spent=Cost(math.inf, 0.02), exact_releases=0)
PURE = Statement(Terms(SCHEMA, Budget(1.0, 0), "local"), spent=Cost(0.5, 0.1), exact_releases=0)
SIMULATED = replace(PLAIN, simulated=True)


def under(statement: Statement, **terms: Any) -> Statement:
    """Return the statement under terms that differ in some points."""
    return replace(statement, terms=replace(statement.terms, **terms))


def test_a_plain_statement_in_full():
    assert PLAIN.text == (
        "The synthetic data are (1, 1e-06)-differentially private for each row (add or remove one row), against "
        "everyone but the server, which sees the exact counts of every site (proved). "
        "The limit set for the run is (epsilon, delta) = (1, 1e-06); its releases cost epsilon = 0.9 at delta = "
        "1e-06. "
        "A person is protected less if more rows of that person are used (epsilon = 3.294 for 3 rows and epsilon = "
        "13.17 for 10 rows at a site), or rows at more than one site. "
        "Costs add up: all runs on these rows, and on earlier or later versions of them, together cost up to the limit "
        "that each site has set for itself, for the unit that its policy protects. "
        "Choosing a run, a method or a setting by scores computed on real rows is not covered."
    )
    assert PLAIN.headline == "(1, 1e-06)-differentially private"
    assert str(PLAIN) == PLAIN.text
    assert PLAIN.private
    assert PLAIN.publishable


def test_a_simulation_says_first_who_saw_the_rows():
    assert SIMULATED.text == (
        "Whoever ran this saw all rows. Against everybody else, the synthetic data are (1, 1e-06)-differentially "
        "private for each row (add or remove one row; proved). "
        "Deployed at real sites, the trust trusted protects against everyone but the server, which sees the exact "
        "counts of every site, and the trust secure protects against the server together with all sites but those "
        "assumed to be honest. "
        "The limit set for the run is (epsilon, delta) = (1, 1e-06); its releases cost epsilon = 0.9 at delta = "
        "1e-06. "
        "A person is protected less if more rows of that person are used (epsilon = 3.294 for 3 rows and epsilon = "
        "13.17 for 10 rows at a site), or rows at more than one site. "
        "Nothing limits further runs on these rows, or on earlier or later versions of them, and costs add up: 10 such "
        "runs cost epsilon = 3.492, 100 such runs cost epsilon = 13.17 at delta = 1e-06. "
        "Choosing a run, a method or a setting by scores computed on real rows is not covered."
    )
    assert SIMULATED.headline == "(1, 1e-06)-differentially private against everybody except whoever ran this"
    assert SIMULATED.adversary == "everybody except whoever ran this, who saw all rows"
    assert (SIMULATED.publishable, SIMULATED.basis) == (True, "proved")
    for trust, adversary in {
        "local": "the trust local protects against the server and all other sites together, and the trust secure",
        "secure": "Deployed at real sites, the trust secure protects against the server together with",
        "three-servers": "the trust three-servers protects against the coordinator together with one of three servers",
    }.items():
        statement = under(SIMULATED, trust=trust)
        assert statement.text.startswith("Whoever ran this saw all rows. Against everybody else, ")
        assert adversary in statement.text
        assert "against the server" not in statement.sentence
    noisy = replace(SIMULATED, seeded=True)
    assert noisy.sentence.startswith("NOT FOR PUBLICATION: Whoever ran this saw all rows. Against everybody else, ")
    assert "whoever ran" not in PLAIN.text.lower()


def test_only_real_sites_have_accounts_that_limit_further_runs():
    """One frame fitted 100 times: epsilon 13.16 together, and nobody refuses."""
    assert "each site has set" in PLAIN.text
    assert "Nothing limits" not in PLAIN.text
    assert "each site has set" not in SIMULATED.text
    assert SIMULATED.for_runs(1) == pytest.approx(1.0)
    assert SIMULATED.for_runs(100) == pytest.approx(epsilon_of(100 * rho_of(1, 1e-6), 1e-6))
    assert "10 such runs cost epsilon = 10, 100 such runs cost epsilon = 100." in replace(PURE, simulated=True).text
    sampled = replace(SIMULATED, sampled=True)
    assert sampled.for_runs(1) == pytest.approx(1.0, abs=1e-9)
    assert SIMULATED.for_runs(10) < sampled.for_runs(10) < 10 * sampled.for_runs(1)
    assert f"10 such runs cost epsilon = {rounded_up(sampled.for_runs(10))}" in sampled.text
    assert replace(SIMULATED, exact_releases=1).for_runs(2) == repeated_epsilon(Budget.none(), 2) == math.inf
    with pytest.raises(InvalidParameter, match="at least 1 run"):
        SIMULATED.for_runs(0)


@given(st.floats(0.05, 20), st.sampled_from([1e-12, 1e-6, 1e-3, 0.3]), st.integers(1, 200))
@settings(deadline=None)
def test_what_runs_cost_together_is_a_divergence_at_the_limits_order(epsilon, delta, runs):
    """By hand: every run stays below order x rho at the one order at which its releases are counted."""
    budget = Budget(epsilon, delta)
    order = budget.order
    by_hand = order * runs * budget.rho + math.log((order - 1) / order) - math.log(delta * order) / (order - 1)
    assert repeated_epsilon(budget, runs, sampled=True) == pytest.approx(max(0, by_hand))
    assert repeated_epsilon(budget, runs, sampled=True) >= repeated_epsilon(budget, runs) * (1 - 1e-9)


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
    assert statement.conditions == replace(statement, records=10.0).warnings == ()
    assert "differentially private" not in statement.text
    assert json.loads(json.dumps(statement.to_json(), allow_nan=False))["private"] is False


@pytest.mark.parametrize(
    ("statement", "reason", "condition"),
    [
        (replace(PLAIN, seeded=True), "but with noise from a seed", "no reader knows the seed of the noise, who could"),
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


def test_weak_guarantees_are_warned_of_in_the_statement_itself():
    assert PLAIN.warnings == PURE.warnings == replace(PLAIN, records=1e6).warnings == ()
    about = replace(PLAIN, records=1e6 + 1)
    (delta,) = about.warnings
    assert "delta = 1e-06 is above 1 / 1000001, one over about 1,000,001 rows" in delta
    assert f"Weak: {delta}." in about.conditions
    assert "one over the 1,000,001 rows" in under(about, public_sizes=True).text
    (epsilon,) = under(PURE, budget=Budget(20.5, 0)).warnings
    assert "epsilon = 20.5 is above 20" in epsilon
    assert under(PURE, budget=Budget(20.0, 0)).warnings == ()
    assert len(under(replace(PLAIN, records=100.0), budget=Budget(30.0, 0.01001)).warnings) == 2
    (weak,) = under(PLAIN, budget=Budget(1.0, 0.010001)).warnings
    assert "delta = 0.010001 is above 0.01" in weak
    assert about.to_json()["warnings"] == [delta]


def test_a_weak_delta_needs_a_yes_by_name():
    require_delta(0.01, weak_delta=False)
    require_delta(0.999999, weak_delta=True)
    with pytest.raises(InvalidParameter, match=r"delta = 0\.010001 is above 0\.01: .* --weak-delta"):
        require_delta(0.010001, weak_delta=False)


def test_no_number_of_a_guarantee_is_rounded_to_a_better_one():
    """(1, 0.999999) was printed as (1, 1); .9999999 at six digits would be."""
    for delta in (0.999999, 0.9999999999, 9.9999e-7, 1 / 3):
        statement = under(replace(PLAIN, spent=Cost()), budget=Budget(1.0, delta))
        assert statement.headline == f"(1, {delta!r})-differentially private"
        assert float(in_full(delta)) == delta
    assert under(PLAIN, budget=Budget(1.00004, 1e-6)).headline.startswith("(1.001, 1e-06)")


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_a_bound_in_print_is_never_below_the_bound(value, digits):
    said = float(rounded_up(value, digits))
    assert value <= said <= value * (1 + 10 ** (1 - digits)) * (1 + 1e-12)
    assert rounded_up(said, digits) == rounded_up(value, digits)


def test_short_numbers_are_printed_as_they_are():
    assert [rounded_up(value) for value in (1, 0.935, 1.1, 20.5, 0.1, math.inf)] == [
        "1", "0.935", "1.1", "20.5", "0.1", "inf",
    ]  # fmt: skip
    assert [in_full(value) for value in (0, 1e-6, 0.01)] == ["0", "1e-06", "0.01"]


THEIRS = ForeignPart("query", "theirs", "package:Theirs")


@pytest.mark.parametrize(
    ("part", "claim"),
    [
        (THEIRS, "the sensitivity of questions of the kind 'theirs', which package:Theirs declares"),
        (ForeignPart("trust", "trusted", "package:NoNoise"), "the trust 'trusted' adds the noise that it states"),
        (
            ForeignPart("method", "mine", "package:Mine"),
            "that package:Mine, of the method mine, learns about the rows from the questions",
        ),
        (ForeignPart("source", "toy", "package:toy"), "the source package:toy reads each record by itself"),
    ],
)
def test_nothing_of_another_package_is_proved(part, claim):
    for of in (PLAIN, SIMULATED):
        foreign = replace(of, foreign=(part,))
        assert (foreign.basis, foreign.publishable) == ("assumed", False)
        assert foreign.headline.endswith(f"but with parts that are not fedsynth's ({part.place})")
        assert foreign.text.startswith("NOT FOR PUBLICATION: ")
        assert "(proved)" not in foreign.text
        (condition,) = (one for one in foreign.conditions if one.startswith("Assumed, not proved: "))
        assert claim in condition
        assert f"--unproved {part.place}" in condition
        accepted = replace(of, foreign=(replace_part(part, accepted=True),))
        assert (accepted.basis, accepted.publishable) == ("assumed", True)
        assert claim in accepted.text
        assert "accepted the class by name" in accepted.text
        assert "--unproved" not in accepted.text
        assert accepted.to_json()["foreign"][0]["place"] == part.place


def replace_part(part: ForeignPart, **fields: Any) -> ForeignPart:
    """Return the part with other fields."""
    return msgspec.structs.replace(part, **fields)


def test_who_accepted_a_query_depends_on_who_had_the_rows():
    accepted = (replace_part(THEIRS, accepted=True),)
    assert "every site that answered accepted the class" in replace(PLAIN, foreign=accepted).text
    assert "whoever ran this accepted the class" in replace(SIMULATED, foreign=accepted).text


def test_a_trust_that_is_not_built_in_must_be_named():
    with pytest.raises(InvalidParameter, match="'mine' is not built in"):
        under(PLAIN, trust="mine")
    named = replace(PLAIN, foreign=(ForeignPart("trust", "mine", "package:Mine"),))
    assert "against the adversary that the trust 'mine' names" in under(named, trust="mine").sentence


def test_a_ledger_gives_what_a_statement_states():
    ledger = Ledger(Budget(1.0, 1e-6))
    ledger.record(Entry(0, "sum", "counts", Gaussian(0.01), ("a",), 5, Gaussian(0.01).cost(Norms(1, 1))))
    ledger.record(Entry(1, "sum", "counts", Laplace(0.05), ("a",), 5, Laplace(0.05).cost(Norms(1, 1))))
    statement = replace(PLAIN, spent=ledger.spent, exact_releases=ledger.exact_releases)
    assert statement.private
    assert f"cost epsilon = {rounded_up(ledger.epsilon)} at" in statement.text
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
        # What is assumed is said at its place; the noise is as well proved as it was.
        assert f"{TESTED}, given what is assumed below)" in weak.sentence
        assert sum(one.startswith("Assumed, not proved: that ") for one in weak.conditions) == 1
    assert "(proved, given what is assumed below)" in replace(PLAIN, seeded=True).sentence
    assert "ssumed, not proved" not in PLAIN.text


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
    assert f"epsilon = {rounded_up(sampled.for_rows(3))} for 3 rows and epsilon = " in sampled.text
    large = under(sampled, budget=Budget(5.0, 1e-6))  # an order of 6: nothing is known for 10 rows
    assert large.for_rows(10) == math.inf
    assert "for 3 rows at a site)" in large.text
    assert "10 rows" not in large.text
    assert sampled.to_json()["sampled"] is True
    assert replace(sampled, exact_releases=1).conditions == ()
