"""Advice before a run: made tables, runs over fewer rows that stand for more, verdicts, and the search for epsilon."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.public_data import public_data

from fedsynth.cliques import all_marginals, random_workload
from fedsynth.data.draft import draft_schema
from fedsynth.data.partition import split
from fedsynth.data.read import read_frame
from fedsynth.datasets import patients_schema
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import Method
from fedsynth.methods.bayes import FedChowLiu
from fedsynth.methods.mst import MST
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.privsyn import FedPrivSyn
from fedsynth.methods.tda import FedTDA
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table, workload_error
from fedsynth.runs import plan as module
from fedsynth.runs.dry_run import likely_rows
from fedsynth.runs.plan import EPSILONS, SHAPES, PlannedRun, advise, epsilon_for, trial
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.terms import Terms

SCHEMA = Schema(
    (
        Numeric("age", 0.0, 1.0),
        Categorical("job", tuple(range(8))),
        Numeric("pay", 0.0, 1.0, bins=16),
        Categorical("sex", ("x", "y")),
        Categorical("town", tuple(range(12))),
    )
)
PLANNED = PlannedRun(Terms(SCHEMA, Budget(1.0, 1e-6), "trusted"), 8000, 4)


def planned_with(**terms: Any) -> PlannedRun:
    """Return the planned run with other numbers, or under terms that differ in some points."""
    planned = dataclasses.replace(PLANNED, **{name: terms.pop(name) for name in ("rows", "partition") if name in terms})
    return dataclasses.replace(planned, terms=dataclasses.replace(planned.terms, **terms))


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


# ---------------------------------------------------------------------------------------------------------------------
# Made tables


def dependence(table: Table, rng: np.random.Generator) -> float:
    """Return the mean L1 distance of pairs from those of the same columns shuffled."""
    shuffled = Table(table.schema, tuple(rng.permutation(codes) for codes in table.codes))
    return workload_error(table, shuffled, all_marginals(len(table.codes), 2)).mean


def test_made_tables_depend_as_their_shape_says_and_are_skewed():
    rng = np.random.default_rng(0)
    depends: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    for shape, strength in SHAPES.items():
        for seed in range(6):
            table = likely_rows(SCHEMA, 5000, strength, np.random.default_rng(seed))
            assert len(table) == 5000
            assert table.schema == SCHEMA
            assert set(table.numbers) == {0, 2}
            depends[shape].append(dependence(table, rng))
    independent, typical, strong = (np.mean(depends[shape]) for shape in ("independent", "typical", "strong"))
    assert independent < 0.8 * typical < 0.8 * strong
    uniform = Table(SCHEMA, tuple(rng.integers(0, size, 5000) for size in SCHEMA.sizes))
    assert workload_error(table, uniform, all_marginals(5, 1)).mean > 0.5


def test_a_made_table_of_fewer_rows_is_drawn_from_the_same_law():
    few, many = (likely_rows(SCHEMA, rows, SHAPES["typical"], np.random.default_rng(3)) for rows in (5_000, 50_000))
    assert workload_error(few, many, all_marginals(5, 1)).mean < 0.08
    other = likely_rows(SCHEMA, 50_000, SHAPES["typical"], np.random.default_rng(4))
    assert workload_error(other, many, all_marginals(5, 1)).mean > 0.3


# ---------------------------------------------------------------------------------------------------------------------
# Fewer rows that stand for more


@given(st.floats(0.01, 20), st.sampled_from([0.0, 1e-9, 1e-5]), st.integers(1, 1000))
@settings(unhurried, max_examples=60)
def test_noise_is_as_large_a_share_of_fewer_rows(epsilon, delta, factor):
    planned = planned_with(rows=1000 * factor, budget=Budget(epsilon, delta))
    budget = planned.at(1000).budget
    if delta:
        assert math.sqrt(budget.rho) * 1000 == pytest.approx(
            math.sqrt(planned.terms.budget.rho) * planned.rows, rel=1e-6
        )
    else:
        assert budget.epsilon * 1000 == pytest.approx(epsilon * planned.rows)
    assert (budget.delta, planned.at(planned.rows)) == (delta, planned.terms)


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (OneShot(), Budget(1.0, 1e-6)),
        (FedChowLiu(), Budget(0.1, 1e-6)),
        (FedChowLiu(), Budget(0.5, 0.0)),
        (FedTDA(), Budget(1.0, 1e-6)),
        (MST(), Budget(0.5, 0.0)),
    ],
)
def test_fewer_rows_at_equal_noise_predict_the_errors_of_all_rows(monkeypatch, method, budget):
    planned = planned_with(rows=32_000, budget=budget)
    errors = {}
    for most in (10**9, 1):  # all rows, and an eighth of them
        monkeypatch.setattr(module, "_VALUES", most)
        monkeypatch.setattr(module, "_FEWEST", 4000)
        assert planned.made_rows == (32_000 if most > 1 else 4000)
        trials = [trial(planned, method, shape, seed) for shape in ("typical", "strong") for seed in range(3)]
        errors[most] = [(one.one_way, one.two_way, one.resolution.crossing or math.nan) for one in trials]
    (one, two, std), (one_of_few, two_of_few, std_of_few) = (np.median(of, axis=0) for of in errors.values())
    assert std_of_few == pytest.approx(std, rel=0.05)  # in rows of the planned run
    assert one_of_few == pytest.approx(one, rel=0.5, abs=0.01)  # medians of six trials
    assert two_of_few == pytest.approx(two, rel=0.4)


def test_what_draws_of_rows_take_is_taken_off():
    assert module._at_all_rows(0.4, 0.8, 1 / 16) == pytest.approx(0.1)  # draws alone: 1 / sqrt(rows)
    assert module._at_all_rows(0.4, 0.4, 1 / 16) == 0.4  # noise and model alone
    assert module._at_all_rows(0.4, 0.3, 1 / 16) == 0.4
    assert module._at_all_rows(0.4, 2.0, 1 / 16) == pytest.approx(0.1)
    assert 0.1 < module._at_all_rows(0.4, 0.5, 1 / 16) < 0.4


# ---------------------------------------------------------------------------------------------------------------------
# The search


@given(st.lists(st.floats(0.001, 1.9), min_size=len(EPSILONS), max_size=len(EPSILONS)), st.data())
@settings(unhurried, max_examples=100)
def test_a_smaller_error_never_gets_a_smaller_epsilon(errors, data):
    """Whatever noise makes of the errors that are measured."""
    of = dict(zip(EPSILONS, errors, strict=True))
    wanted = sorted(data.draw(st.lists(st.floats(0.01, 1.99), min_size=2, max_size=6)))
    found = [epsilon_for(of.__getitem__, one)[0] for one in wanted]
    for smaller, larger in itertools.pairwise(found):  # errors that were wanted; None: no epsilon is enough
        assert smaller is None or (larger is not None and smaller >= larger)


def test_the_search_finds_the_epsilon_of_a_known_law():
    asked = []

    def error(epsilon: float) -> float:
        asked.append(epsilon)
        return 0.02 + 0.1 / epsilon

    found, words = epsilon_for(error, 0.12)
    assert found == pytest.approx(1.0, rel=0.01)
    assert words == "epsilon 1"
    assert len(asked) <= 6
    assert epsilon_for(error, 0.01) == (None, "not by epsilon 64, where it is 0.02: the method's own")
    assert epsilon_for(error, 1.99)[0] is not None
    assert epsilon_for(lambda epsilon: 0.001, 0.01) == (EPSILONS[0], "epsilon 0.03125 or less")


def test_advice_says_which_epsilon_an_error_needs():
    found = {
        wanted: advise(PLANNED, {"oneshot": OneShot()}, wanted=wanted, tables=1).methods[0] for wanted in (0.05, 0.2)
    }
    assert found[0.05].epsilon is not None
    assert found[0.2].epsilon is not None
    assert found[0.05].epsilon > found[0.2].epsilon
    planned = planned_with(budget=Budget(found[0.2].epsilon, 1e-6))
    errors = [trial(planned, OneShot(), "typical", seed).two_way for seed in range(8)]  # .15 to .27
    assert np.mean(errors) == pytest.approx(0.2, rel=0.25)


# ---------------------------------------------------------------------------------------------------------------------
# Verdicts


def test_a_hundred_rows_at_a_tenth_of_an_epsilon_are_noise():
    planned = planned_with(rows=100, budget=Budget(0.1, 1e-6))
    found = advise(planned, {"oneshot": OneShot(), "tda": FedTDA(), "mst": MST()}, tables=2)
    assert (found.rows, found.made_rows, found.tables, found.complete) == (100, 100, 6, True)
    for one in found.methods:
        assert one.verdict.startswith("the table would be noise")
        assert one.resolution is not None
        assert max(one.resolution.crossing or 0, one.resolution.value or 0) > 100


def test_many_rows_hold_their_columns_and_what_the_method_models():
    planned = planned_with(rows=200_000)
    found = advise(planned, {"oneshot": OneShot(), "fednaivebayes": naive()}, tables=1)
    verdict = {one.method: one.verdict for one in found.methods}
    assert verdict["oneshot"] == "columns and their dependence hold"
    assert verdict["fednaivebayes"] == "columns by themselves hold; dependence between them is lost"
    assert [one.method for one in found.methods] == ["oneshot", "fednaivebayes"]  # the smaller error first


def test_made_rows_that_break_a_rule_are_in_the_error_and_no_warning_of_the_advice(caplog):
    schema = patients_schema()
    planned = planned_with(schema=schema, rows=2000)
    assert advise(planned, {"tda": FedTDA()}, tables=3).complete
    assert caplog.text == ""
    trial(planned, FedTDA(), "independent", 2)  # one of the nine; warned of wherever the run is somebody's own
    assert "broke a rule" in caplog.text


def naive() -> Method:
    from fedsynth.methods import find_method

    found: Method = find_method("fednaivebayes").kind()
    return found


def test_the_smallest_cell_is_twice_the_noise_of_a_pair():
    method = OneShot(bins_share=0.0)
    (found,) = advise(PLANNED, {"oneshot": method}, tables=1).methods
    rows = likely_rows(SCHEMA, 8000, SHAPES["typical"], np.random.default_rng(0))
    federation = federate([rows], SCHEMA, PLANNED.terms.budget, trust=TrustedServer(), seed=0)
    pairs = all_marginals(5, 2)
    alone = federation.std(Counts.of(5, pairs), method.pair_share)  # by weights, which come close to the share
    assert found.resolution is not None
    assert found.resolution.crossing == pytest.approx(2 * alone, rel=0.05)


@dataclasses.dataclass(frozen=True)
class NeedsVault:
    """A method that is not registered, so that nobody knows beforehand that it needs a vault."""

    def fit(self, federation):
        federation.require_vault()


def test_what_cannot_run_says_why_and_the_others_go_on():
    found = advise(planned_with(trust="local"), {"undeclared": NeedsVault(), "oneshot": OneShot()}, tables=1)
    ran, refused = found.methods
    assert (ran.method, refused.method, refused.tables, refused.two_way) == ("oneshot", "undeclared", 0, None)
    assert (ran.trust, refused.trust) == ("local", "local")
    assert "trusted" in refused.verdict
    assert found.complete


def test_a_method_runs_under_a_trusted_server_if_it_does_not_run_under_the_planned_trust():
    found = advise(planned_with(trust="local"), {"mst": MST(), "oneshot": OneShot()}, tables=1)
    assert {advice.method: advice.trust for advice in found.methods} == {"mst": "trusted", "oneshot": "local"}
    assert all(advice.tables == 3 for advice in found.methods)


def test_no_run_begins_after_the_time_is_over():
    found = advise(PLANNED, {"oneshot": OneShot(), "tda": FedTDA()}, tables=2, seconds=1e-9, wanted=0.1)
    assert not found.complete
    assert [one.tables for one in found.methods] == [1, 1]
    assert {one.search for one in found.methods} == {"the time was over before the search"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": 0}, "at least 1"),
        ({"rows": 3}, "fewer --sites"),
        ({"budget": Budget.none()}, "without noise"),
        ({"partition": "synthfs:1"}, "cannot split a table"),
        ({"partition": "quantity"}, "not one of"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes, says):
    with pytest.raises((InvalidParameter, Unsupported), match=says):
        planned_with(**changes)


@pytest.mark.parametrize("options", [{"wanted": 0.0}, {"wanted": 2.0}, {"tables": 0}, {"seconds": 0.0}])
def test_impossible_wishes_are_refused(options):
    with pytest.raises(InvalidParameter, match="positive"):
        advise(PLANNED, {"oneshot": OneShot()}, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Real rows


@pytest.mark.parametrize(
    ("name", "budget"),
    [  # a file once; the other pairs take a minute
        ("bank.parquet", Budget(0.2, 1e-6)),
        pytest.param("bank.parquet", Budget(1.0, 1e-6), marks=pytest.mark.slow),
        pytest.param("adult.csv", Budget(0.2, 1e-6), marks=pytest.mark.slow),
        pytest.param("adult.csv", Budget(1.0, 1e-6), marks=pytest.mark.slow),
    ],
)
def test_errors_on_real_rows_lie_in_the_predicted_range(name, budget):
    frame = read_frame(public_data(name)).sample(20_000, random_state=0).reset_index(drop=True)
    schema = draft_schema(frame).schema
    table = encode(schema, frame)
    planned = PlannedRun(Terms(schema, budget, "trusted"), len(table), 5)
    methods: dict[str, Method] = {"oneshot": OneShot(), "fedprivsyn": FedPrivSyn(), "tda": FedTDA(), "mst": MST()}
    found = advise(planned, methods, tables=3, seconds=500)
    columns = len(schema.columns)
    workloads = [random_workload(columns, order, 64, 0) for order in (1, 2)]
    for one in found.methods:
        rng = np.random.default_rng(1)
        sites = split(table, planned.sites, planned.dealing(), rng)
        federation = federate(sites, schema, budget, trust=TrustedServer(), seed=1)
        synthetic = methods[one.method].fit(federation).sample_table(len(table), rng)
        for predicted, workload in zip((one.one_way, one.two_way), workloads, strict=True):
            assert predicted is not None
            measured = workload_error(table, synthetic, workload).mean
            assert predicted.low <= measured <= predicted.high, (one.method, predicted, measured)
