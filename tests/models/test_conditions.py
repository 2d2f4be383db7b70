"""Rows under conditions: as frequent as the model says, for every kind of model, and refused where there are none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare, kstest

from fedsynth import encoding
from fedsynth.bench.published.mixture import Mixture, TwoAxes
from fedsynth.encoding import encode, problems
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork, GivenNetwork
from fedsynth.models.conditions import Between, parse_conditions, read_conditions
from fedsynth.models.copula import Copula, OneAxis
from fedsynth.models.evidence import CodeEvidence, RejectionSampler
from fedsynth.models.gum import GradualRows, GradualUpdate
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.normal_scores import NormalScores
from fedsynth.models.ranked import RankedGroups
from fedsynth.models.structure import Structure
from fedsynth.models.synthesizer import Synthesizer, load, own_bins
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.columns import fine_cells

SCHEMA = Schema(
    (
        Categorical("sex", ("female", "male")),
        Categorical("town", ("a", "b", "c"), missing=True),
        Numeric("age", 0, 90, bins=9, integer=True),
        Numeric("income", 0.0, 100.0, bins=5, missing=True),
        Datetime("seen", "2024-01-01", "2024-12-31", unit="D", bins=6),
        Numeric("price", 0.0, 10.0, decimals=2, bins=4),
    )
)
ROWS = 20_000


def potentials(factors: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(0, 0.8, [SCHEMA.sizes[c] for c in factor]) for factor in factors]


def graphical() -> Synthesizer:
    factors: list[tuple[int, ...]] = [(0, 1), (1, 2), (0, 3), (2, 4), (3, 5), (0, 2)]
    return Synthesizer(SCHEMA, own_bins(SCHEMA), MarkovRandomField(SCHEMA.sizes, 1000.0, factors, potentials(factors)))


def gradual() -> Synthesizer:
    model = graphical().model
    assert isinstance(model, MarkovRandomField)
    cliques = [*((c,) for c in range(6)), *itertools.combinations(range(6), 2)]
    update = GradualUpdate(SCHEMA.sizes, {c: np.array(model.marginal(c)) for c in cliques}, 40)
    return Synthesizer(SCHEMA, own_bins(SCHEMA), GradualRows(update, 1000.0))


def network() -> Synthesizer:
    rng = np.random.default_rng(2)
    columns = []
    for column in SCHEMA.stored:
        cells = AdaptiveBins.of(column)
        cells = cells.updated(1000 * rng.dirichlet(np.ones(len(cells.groups))), 1.0, 1000.0)
        columns.append(cells.grouped(30.0, 6))
    parents = ((), (0,), (0, 1), (2,), (2, 3), (4,))
    sizes = [one.size for one in columns]
    tables = [
        rng.dirichlet(np.ones(sizes[at]), [sizes[p] for p in own] or None) if own else rng.dirichlet(np.ones(sizes[at]))
        for at, own in enumerate(parents)
    ]
    model = BayesianNetwork(Structure((0, 1, 2, 3, 4, 5), parents), tuple(tables), 1000.0)
    return Synthesizer(SCHEMA, tuple(columns), model)


def copula(paper: bool = False) -> Synthesizer:
    rng = np.random.default_rng(3)
    margins: list[OneAxis | TwoAxes] = []
    for column in SCHEMA.stored:
        grid = fine_cells(column, 64) if isinstance(column, Numeric | Datetime) else None
        cells = column.size if grid is None else len(grid) + column.missing
        margins.append(OneAxis(NormalScores.of(0.2 + rng.random(cells)), grid))
    if paper:
        mixture = Mixture(np.array([0.4, 0.6]), np.array([20.0, 70.0]), np.array([5.0, 10.0]))
        age = SCHEMA.stored[3]
        assert isinstance(age, Numeric)
        margins[3] = TwoAxes(mixture, NormalScores.of(np.array([0.3, 0.5, 0.2])), fine_cells(age, 64))
    latents = sum(one.latents for one in margins)
    root = rng.normal(size=(latents, latents))
    covariance = root @ root.T + latents / 2 * np.eye(latents)
    correlation = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    return Synthesizer(SCHEMA, tuple(margins), Copula.of(margins, correlation, 1000.0))


def ranked() -> Synthesizer:
    field = graphical().model
    assert isinstance(field, MarkovRandomField)
    chain = np.array([0.0, 0.8, 0.5, -0.6])
    axes = tuple(AdaptiveBins.of_bins(column) for column in SCHEMA.stored)
    return Synthesizer(SCHEMA, axes, RankedGroups(field, (2, 3, 4, 5), (9, 5, 6, 4), (-1, 0, 1, 2), chain))


MAKERS = {
    "graphical": graphical,
    "ranked": ranked,
    "gradual": gradual,
    "network": network,
    "copula": copula,
    "paper": lambda: copula(True),
}
CONDITIONS = [
    {"sex": "female"},
    {"town": None},
    {"age": (25, 43)},
    {"age": 40},
    {"income": None},
    {"income": (12.5, 61.0)},
    {"seen": ("2024-03-05", "2024-08-20")},
    {"price": (2.345, 6.015)},
    {"sex": "male", "income": (30.0, 200.0), "town": "b"},
    {"age": (0, 50), "seen": ("2024-02-01", "2024-09-30"), "price": (1.0, 9.0)},
]


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest) -> tuple[Synthesizer, pd.DataFrame]:
    """A synthesizer of one kind, and many rows of it."""
    fitted = MAKERS[request.param]()
    return fitted, fitted.sample(400_000 if request.param != "gradual" else 150_000, 0)


def meets(frame: pd.DataFrame, conditions: dict[str, object]) -> np.ndarray:
    held = np.ones(len(frame), dtype=bool)
    for name, value in conditions.items():
        column = frame[name]
        if value is None:
            held &= column.isna().to_numpy()
        elif isinstance(value, tuple):
            ends = [pd.Timestamp(end) if isinstance(end, str) else end for end in value]
            held &= column.between(ends[0], ends[1]).fillna(False).to_numpy(dtype=bool)
        else:
            held &= (column == value).fillna(False).to_numpy(dtype=bool)
    return held


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
def test_rows_under_conditions_are_those_that_meet_them_among_all_rows(made, conditions):
    fitted, everything = made
    rows = 5000 if isinstance(fitted.model, GradualRows) else ROWS
    frame = fitted.sample(rows, 1, conditions)
    assert len(frame) == rows
    assert meets(frame, conditions).all()
    assert problems(SCHEMA, frame) == []
    assert frame.dtypes.tolist() == everything.dtypes.tolist()
    among = everything[meets(everything, conditions)]
    assert len(among) > 300
    given, seen = encode(SCHEMA, frame), encoding.encode(SCHEMA, among)
    # Gradual updates copy rows and aim at pairs alone: what they say of three columns differs from run to run.
    slack = 0.02 if isinstance(fitted.model, GradualRows) else 0.004
    for a, b in itertools.combinations(range(6), 2):
        shape = SCHEMA.sizes[a] * SCHEMA.sizes[b]
        counts, others = (np.bincount(table.flat_codes((a, b)), minlength=shape) for table in (given, seen))
        tolerance = 5 * np.sqrt(others + 1) / len(among) + 5 * np.sqrt(counts + 1) / rows + slack
        assert (np.abs(counts / rows - others / len(among)) < tolerance).all(), (a, b)
    for at, name in ((2, "age"), (3, "income"), (5, "price")):
        one, other = given.numbers[at], seen.numbers[at]
        one, other = one[~np.isnan(one)], other[~np.isnan(other)]
        if len(one):
            spread = math.sqrt(one.var() / len(one) + other.var() / len(other)) + 0.003 * (other.max() - other.min())
            assert one.mean() == pytest.approx(other.mean(), abs=5 * spread), name


def test_frequencies_under_a_condition_are_those_of_the_joint_table():
    fitted = graphical()
    assert isinstance(fitted.model, MarkovRandomField)
    joint = fitted.model.marginal((1, 2))
    table = fitted.sample_table(ROWS, 0, {"town": "b", "age": (20, 59)})
    expected = joint[1, 2:6] / joint[1, 2:6].sum() * ROWS
    assert chisquare(np.bincount(table.codes[2], minlength=9)[2:6], expected).pvalue > 1e-3
    # Part of a bin counts for its part: ages 25 to 29 are half of the third bin.
    table = fitted.sample_table(ROWS, 0, {"town": "b", "age": (25, 39)})
    expected = joint[1, 2:4] * [0.5, 1.0]
    assert chisquare(np.bincount(table.codes[2])[2:4], expected / expected.sum() * ROWS).pvalue > 1e-3
    ages = np.bincount(table.numbers[2].astype(int))[25:30]
    assert chisquare(ages).pvalue > 1e-3


def test_a_networks_frequencies_are_those_of_its_tables():
    fitted = network()
    assert isinstance(fitted.model, BayesianNetwork)
    first, second, third = fitted.model.conditionals[:3]
    wanted = np.zeros(fitted.model.sizes[2])
    wanted[0] = 1.0  # evidence below both: the posterior of what lies above
    found = fitted.model.given({2: CodeEvidence(wanted)})
    assert isinstance(found, GivenNetwork)
    codes = found.sample(ROWS, np.random.default_rng(0))
    posterior = first[:, None] * second * third[:, :, 0]
    counts = np.bincount(codes[0].astype(int) * len(second[0]) + codes[1], minlength=posterior.size)
    assert chisquare(counts, posterior.ravel() / posterior.sum() * ROWS).pvalue > 1e-3
    assert (codes[2] == 0).all()


def test_a_network_too_large_for_its_tree_draws_and_keeps(monkeypatch):
    fitted, exact = network(), network().sample_table(ROWS, 0, {"age": (25, 43), "town": "b"})
    monkeypatch.setattr("fedsynth.models.bayes_net._MOST_CELLS", 1)
    assert isinstance(fitted.model.given({1: CodeEvidence(np.ones(len(fitted.axes)))}), RejectionSampler)
    table = fitted.sample_table(ROWS, 0, {"age": (25, 43), "town": "b"})
    for at in range(6):
        counts, others = (np.bincount(one.codes[at], minlength=SCHEMA.sizes[at]) for one in (table, exact))
        assert np.abs(counts - others).max() < 5 * math.sqrt(ROWS / 2)


def test_a_copulas_numbers_under_a_condition_have_the_conditional_distribution():
    margins = [OneAxis(NormalScores.of(np.ones(200)), None) for _ in range(3)]
    correlation = np.array([[1.0, 0.8, 0.5], [0.8, 1.0, 0.6], [0.5, 0.6, 1.0]])
    schema = Schema(tuple(Categorical(name, tuple(range(200))) for name in "abc"))
    model = Copula.of(margins, correlation, 1.0)
    regions = {0: margins[0].axis, 1: margins[1].axis}
    evidence = {at: margins[at].given(schema.stored[at], _code(150))[0] for at in regions}
    found = model.given(evidence)
    assert found is not None
    points = found.sample(5000, np.random.default_rng(0))
    # Both are nearly fixed, so that the third is normal given them.
    fixed = np.array([points[0][:, 0].mean(), points[1][:, 0].mean()])
    weights = np.linalg.solve(correlation[:2, :2], correlation[:2, 2])
    deviation = math.sqrt(1 - weights @ correlation[:2, 2])
    assert kstest((points[2][:, 0] - weights @ fixed) / deviation, "norm").pvalue > 1e-3


def _code(code: int):
    from fedsynth.models.conditions import Is

    return Is((code,))


@pytest.mark.parametrize("name", MAKERS)
def test_saved_and_loaded_it_draws_the_same_rows_under_conditions(name, tmp_path):
    fitted = MAKERS[name]()
    fitted.save(tmp_path / "m")
    again = load(tmp_path / "m")
    for conditions in ({}, {"sex": "female", "age": (30, 44)}):
        one, other = (made.sample(300, 7, conditions) for made in (fitted, again))
        pd.testing.assert_frame_equal(one, other)
    pd.testing.assert_frame_equal(fitted.sample_balanced("town", 99, 2), again.sample_balanced("town", 99, 2))


@pytest.mark.parametrize("name", MAKERS)
def test_every_model_draws_balanced_rows(name):
    frame = MAKERS[name]().sample_balanced("town", 4000, 0)
    counts = frame["town"].fillna("missing").value_counts()
    assert counts.tolist() == [1000] * 4
    assert set(frame["town"].iloc[:200].fillna("missing")) == {"a", "b", "c", "missing"}  # shuffled


def ruled_out() -> list[Synthesizer]:
    """Models of two columns in which y is never seen, and never with p: by their potentials, tables and shares."""
    schema = Schema((Categorical("one", ("x", "y")), Categorical("two", ("p", "q"))))
    table = np.array([[30.0, 70.0], [0.0, 0.0]])
    field = MarkovRandomField((2, 2), 100.0, [(0, 1)], [np.array([[0.0, 0.0], [-1e3, -1e3]])])
    cells = tuple(AdaptiveBins.of(column) for column in schema.stored)
    bayes = BayesianNetwork(Structure((0, 1), ((), (0,))), (np.array([1.0, 0.0]), np.full((2, 2), 0.5)), 100.0)
    update = GradualUpdate((2, 2), {(0,): table.sum(1), (1,): table.sum(0), (0, 1): table}, 5)
    margins = (OneAxis(NormalScores.of(np.array([1.0, 0.0])), None), OneAxis(NormalScores.of(np.ones(2)), None))
    return [
        Synthesizer(schema, own_bins(schema), field),
        Synthesizer(schema, cells, bayes),
        Synthesizer(schema, own_bins(schema), GradualRows(update, 100.0)),
        Synthesizer(schema, margins, Copula.of(margins, np.eye(2), 100.0)),
    ]


@pytest.mark.parametrize("fitted", ruled_out(), ids=lambda one: one.model.kind)
def test_what_a_model_rules_out_is_an_error_that_says_so(fitted):
    with pytest.raises(InvalidParameter, match="has no rows with one = 'y', two = 'p'; drop a condition"):
        fitted.sample(10, 0, {"one": "y", "two": "p"})
    assert set(fitted.sample(50, 0, {"two": "p"})["one"]) == {"x"}
    assert set(fitted.sample_balanced("one", 20, 0)["one"]) == {"x"}


def test_a_real_number_by_itself_has_no_probability():
    with pytest.raises(InvalidParameter, match="give an interval around it"):
        graphical().sample(10, 0, {"income": 12.5})
    assert (graphical().sample(10, 0, {"price": 1.25})["price"] == 1.25).all()  # of two decimals there are 1001


def test_rows_that_are_hardly_ever_kept_are_an_error_that_says_what_to_do():
    schema = Schema((Categorical("one", ("x", "y")), Categorical("two", ("p", "q"))))
    tables: dict[tuple[int, ...], np.ndarray] = {(0,): np.array([1e5, 3.0]), (1,): np.array([1e5, 3.0])}
    fitted = Synthesizer(schema, own_bins(schema), GradualRows(GradualUpdate((2, 2), tables, 2), 100.0))
    with pytest.raises(InvalidParameter, match=r"fewer than one in 10,000: drop a condition, widen"):
        fitted.sample(50, 0, {"one": "y", "two": "q"})
    correlation = np.array([[1.0, -0.99], [-0.99, 1.0]])
    margins = tuple(OneAxis(NormalScores.of(np.array([9.0, 1.0])), None) for _ in range(2))
    copula = Synthesizer(schema, margins, Copula.of(margins, correlation, 100.0))
    with pytest.raises(InvalidParameter, match="fewer than one in 10,000"):
        copula.sample(50, 0, {"one": "y", "two": "q"})


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"sexe": "female"}, "no column 'sexe' in the schema; did you mean 'sex'"),
        ({"sex": "femal"}, "'femal' is not listed; the column has female, male"),
        ({"sex": None}, "is missing; the column has female, male"),
        (
            {"sex": ("female", "male")},
            "is no interval of values; only numbers, times and listed integers .* give a list",
        ),
        ({"sex": []}, "lists no value"),
        ({"sex": ["female", "femal"]}, "'femal' is not listed; the column has female, male"),
        ({"town": "z"}, r"the column has a, b, c or missing \(None\)"),
        ({"age": None}, "is missing; the column has values from 0 to 90"),
        ({"age": 91}, r"lies outside \[0, 90\]; the column has values from 0 to 90"),
        ({"age": (91, 120)}, r"lies outside \[0, 90\]"),
        ({"age": (40, 30)}, "put the lower end first"),
        ({"age": 30.5}, "is not an integer"),
        ({"age": "old"}, "is not a number"),
        ({"age": (1, 2, 3)}, r"a value or \(low, high\)"),
        ({"income": ("", 3.0)}, "has a missing end"),
        ({"price": (1.001, 1.004)}, "no value meets the condition"),
        ({"seen": "yesterday"}, "is not a time; the column has values from 2024-01-01 to 2024-12-31"),
    ],
)
def test_conditions_that_the_schema_does_not_know_are_refused(conditions, said):
    with pytest.raises(SchemaError, match=said):
        graphical().sample(10, 0, conditions)


def test_an_end_of_an_interval_may_lie_beyond_the_bounds():
    frame = graphical().sample(500, 0, {"age": (80, math.inf), "income": (-5.0, 20.0)})
    assert frame["age"].min() >= 80
    assert frame["income"].max() <= 20


def test_values_are_read_as_in_a_table():
    other = Schema((Categorical("a", ("x",), unknown="other"), Boolean("b", missing=True)))
    model = MarkovRandomField(other.sizes, 10.0, [(0, 1)], [np.zeros((2, 3))])
    fitted = Synthesizer(other, own_bins(other), model)
    assert set(fitted.sample(50, 0, {"a": "other", "b": "yes"})["b"]) == {True}
    assert fitted.sample(50, 0, {"b": "NA"})["b"].isna().all()
    with pytest.raises(SchemaError, match="the column has x, other"):
        fitted.sample(50, 0, {"a": "anything"})


def test_conditions_written_as_text():
    texts = ["sex=female", "age=30..40", "income=..20", "price=3..", "seen=2024-02-01..2024-03-01", "town="]
    found = parse_conditions(SCHEMA, texts)
    assert found == {
        "sex": "female",
        "age": ("30", "40"),
        "income": (None, "20"),
        "price": ("3", None),
        "seen": ("2024-02-01", "2024-03-01"),
        "town": "",
    }
    frame = copula().sample(200, 0, found)
    assert frame["town"].isna().all()
    assert frame["age"].between(30, 40).all()
    with pytest.raises(InvalidParameter, match="has no '='"):
        parse_conditions(SCHEMA, ["sex"])
    with pytest.raises(InvalidParameter, match="twice"):
        parse_conditions(SCHEMA, ["age=1..2", "age=3"])
    with pytest.raises(SchemaError, match="no column 'x'"):
        parse_conditions(SCHEMA, ["x=1"])


def test_lists_open_ends_and_intervals_of_listed_integers():
    schema = Schema(
        (
            Categorical("score", (3, -1, 0, 2, 1)),
            Categorical("a=b", ("x=y", "z..w", "z")),
            Numeric("n", 0, 9, integer=True),
        )
    )
    texts = ["score=-1..1", "a=b=x=y", "n=3.."]
    assert parse_conditions(schema, texts) == {"score": ("-1", "1"), "a=b": "x=y", "n": ("3", None)}
    assert parse_conditions(schema, ["a=b=z..w"]) == {"a=b": "z..w"}
    model = MarkovRandomField(schema.sizes, 10.0, [(0, 1), (1, 2)], [np.zeros((5, 3)), np.zeros((3, 10))])
    fitted = Synthesizer(schema, own_bins(schema), model)
    frame = fitted.sample(500, 0, {**parse_conditions(schema, texts), "a=b": ["x=y", "z"]})
    assert set(frame["score"]) == {-1, 0, 1}
    assert set(frame["a=b"]) == {"x=y", "z"}
    assert frame["n"].min() == 3
    assert set(fitted.sample(500, 0, {"score": (1, None)})["score"]) == {1, 2, 3}
    with pytest.raises(SchemaError, match=r"no value of 'score' lies in \(7, None\); it lists 3, -1, 0, 2, 1"):
        fitted.sample(5, 0, {"score": (7, None)})
    with pytest.raises(SchemaError, match="has an end that is no number"):
        fitted.sample(5, 0, {"score": ("one", None)})


def test_an_end_left_out_is_the_bound_in_the_columns_own_time_zone():
    schema = Schema((Datetime("at", "2024-01-01", "2024-01-03", unit="h", timezone="Asia/Tokyo"),))
    found = read_conditions(schema, parse_conditions(schema, ["at=..2024-01-02T00:00Z"]))[0]
    assert isinstance(found, Between)
    assert found.low == schema.stored[0].bin_edges[0]  # type: ignore[union-attr]


def test_no_conditions_are_the_same_rows():
    assert isinstance(graphical().sample_table(10, 0), Table)
    for maker in MAKERS.values():
        pd.testing.assert_frame_equal(maker().sample(50, 3), maker().sample(50, 3, {}))
