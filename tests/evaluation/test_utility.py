"""What learners are taught by synthetic rows, against plain scikit-learn and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsynth.errors import SchemaError, Unsupported
from fedsynth.evaluation.suites import SUITES, one_hot, quantiles_and_one_hot, standardised
from fedsynth.evaluation.utility import auc, taught, train_synthetic_test_real, utility
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.table import Table

pytest.importorskip("sklearn")

SCHEMA = Schema(
    (
        Numeric("x", -10, 10, missing=True),
        Categorical("c", ("a", "b", "c")),
        Boolean("y"),
        Numeric("z", -50, 50),
    )
)


def frame(rows: int, seed: int, signal: float = 2.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(0, 2, rows), -10, 10)
    c = rng.integers(0, 3, rows)
    y = rng.random(rows) < 1 / (1 + np.exp(-signal * (x / 2 + (c == 1) - 0.3)))
    z = np.clip(3 * x + 4 * c + rng.normal(0, 1, rows), -50, 50)
    x = np.where(rng.random(rows) < 0.05, np.nan, x)
    return pd.DataFrame({"x": x, "c": np.array(["a", "b", "c"])[c], "y": y, "z": z})


def table(rows: int, seed: int, signal: float = 2.0) -> Table:
    return SCHEMA.encode(frame(rows, seed, signal))


REAL, FRESH, TEST = table(900, 0), table(900, 1), table(600, 2)


def by_name(scores):
    return {score.name: score for score in scores}


def shuffled(one: Table, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    ways = [rng.permutation(len(one)) for _ in one.codes]
    columns = tuple(column[way] for column, way in zip(one.codes, ways, strict=True))
    return Table(one.schema, columns, {j: values[ways[j]] for j, values in one.numbers.items()})


# ---------------------------------------------------------------------------------------------------------------------
# Against scikit-learn by itself


def test_a_suite_is_a_plain_pipeline_of_scikit_learn():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score

    def matrix(data: pd.DataFrame) -> np.ndarray:
        known = frame(900, 0)[["x", "z"]]
        x = ((data["x"] - known["x"].mean()) / known["x"].std(ddof=0)).fillna(0)
        z = (data["z"] - known["z"].mean()) / known["z"].std(ddof=0)
        return np.stack([x, data["c"].map({"a": 0, "b": 1, "c": 2}), z], axis=1)

    train, test = frame(900, 1), frame(600, 2)
    model = RandomForestClassifier(random_state=5).fit(matrix(train), train["y"])
    truth, guess = test["y"], model.predict(matrix(test))
    ours = taught(REAL, FRESH, TEST, "y", "thesis", 5)
    expected = roc_auc_score(truth, model.predict_proba(matrix(test))[:, 1])
    assert ours["ROC AUC"]["random forest"] == pytest.approx(expected, abs=0.01)
    hard = ours["ROC AUC of hard labels (as published)"]["random forest"]
    assert hard == pytest.approx(roc_auc_score(truth, guess), abs=0.01)
    assert hard == pytest.approx(balanced_accuracy_score(truth, guess), abs=0.01)
    assert hard < ours["ROC AUC"]["random forest"]

    diffusion = taught(REAL, FRESH, TEST, "y", "fedtabdiff", 5)
    assert set(diffusion) == {"accuracy", "macro F1", "ROC AUC"}
    assert set(diffusion["accuracy"]) == set(SUITES["fedtabdiff"].classifiers)
    assert diffusion["accuracy"]["random forest"] == pytest.approx(accuracy_score(truth, guess), abs=0.02)
    assert diffusion["macro F1"]["random forest"] == pytest.approx(f1_score(truth, guess, average="macro"), abs=0.02)


def test_regression_is_in_the_units_of_the_label():
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import r2_score, root_mean_squared_error

    def matrix(data: pd.DataFrame) -> np.ndarray:
        x = data["x"].fillna(frame(900, 0)["x"].mean())
        parts = [x, data["x"].isna(), data["c"] == "b", data["c"] == "c", data["y"]]
        return np.stack(parts, axis=1).astype(float)

    train, test = frame(900, 1), frame(600, 2)
    guess = LinearRegression().fit(matrix(train), train["z"]).predict(matrix(test))
    ours = taught(REAL, FRESH, TEST, "z", "fedtabdiff", 0)
    assert ours["RMSE"]["linear regression"] == pytest.approx(root_mean_squared_error(test["z"], guess), rel=1e-6)
    assert ours["R2"]["linear regression"] == pytest.approx(r2_score(test["z"], guess), rel=1e-6)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("target", ["y", "z"])
def test_every_suite_learns_from_fresh_rows_and_not_from_shuffled_ones(suite, target):
    if suite == "heterofedsyn":
        pytest.importorskip("xgboost")
    good = by_name(utility(REAL, FRESH, TEST, target, suite=suite, repeats=1))
    bad = by_name(utility(REAL, shuffled(REAL), TEST, target, suite=suite, repeats=1))
    assert set(good) == ({"R2", "RMSE"} if target == "z" else set(SUITES[suite].scores))
    for name, score in good.items():
        assert score.verdict == "good", (name, score)
        assert score.synthetic.value == pytest.approx(np.mean([one for one, _ in score.details.values()]))
        assert score.reference.value == pytest.approx(np.mean([one for _, one in score.details.values()]))
        assert bad[name].verdict in ("alarm", "look")
        worse = bad[name].synthetic.value - score.synthetic.value
        assert (worse > 0) == (name == "RMSE")


def test_sides_train_on_equally_many_rows_and_the_note_says_how_many():
    (score, *_) = utility(table(2000, 0), table(300, 1), TEST, "y", repeats=2, max_rows=250)
    assert "250 training rows a side, 600 test rows, 2 draws" in score.note
    (score, *_) = utility(table(2000, 0), table(300, 1), TEST, "y", repeats=1)
    assert "300 training rows a side" in score.note


def test_the_same_seed_gives_the_same_scores():
    one, two, other = (utility(REAL, FRESH, TEST, "y", repeats=2, seed=seed) for seed in (0, 0, 1))
    assert one == two
    assert one != other


# ---------------------------------------------------------------------------------------------------------------------
# Edges


def test_synthetic_rows_of_one_class_score_the_floor_and_alarm():
    lonely = FRESH.take(FRESH.codes[2] == 1)
    scores = by_name(utility(REAL, lonely, TEST, "y", repeats=1))
    assert scores["ROC AUC"].synthetic.value == 0.5
    assert scores["ROC AUC"].verdict == "alarm"
    assert "no more about y than a guess" in scores["ROC AUC"].says


def test_classes_that_one_side_lacks():
    without_c = FRESH.take(FRESH.codes[1] != 2)
    scores = by_name(utility(REAL, without_c, TEST, "c", repeats=1))
    assert 0.5 < scores["ROC AUC"].synthetic.value < scores["ROC AUC"].reference.value
    tested = TEST.take(TEST.codes[1] != 2)
    assert by_name(utility(REAL, FRESH, tested, "c", repeats=1))["ROC AUC"].verdict == "good"


def test_auc_by_hand():
    labels = np.array([0, 0, 1, 1])
    probability = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]])
    assert auc(labels, np.array([0, 1]), probability) == 0.75  # of four pairs, 0.6 against 0.5 is wrong
    # The mass of class 2, which only training rows hold, counts for nobody.
    third = np.array([[0.09, 0.01, 0.9], [0.4, 0.6, 0.0], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    assert auc(labels, np.array([0, 1, 2]), third) == 0.75
    assert auc(np.array([0, 1, 2]), np.array([0]), np.ones((3, 1))) == 0.5


def test_a_missing_class_is_a_class_and_a_missing_number_is_no_label():
    schema = Schema((Categorical("k", ("a", "b"), missing=True), Numeric("v", 0, 10, missing=True)))
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"k": rng.choice(np.array(["a", "b", None], dtype=object), 400)})
    data["v"] = data["k"].map({"a": 2.0, "b": 8.0}) + rng.normal(0, 0.5, 400)
    one = schema.encode(data)
    assert by_name(utility(one, one, one, "k", repeats=1))["macro F1"].synthetic.value > 0.9
    known = int(data["v"].notna().sum())
    (score, *_) = utility(one, one, one, "v", repeats=1)
    assert f"{known} training rows a side, {known} test rows" in score.note


def test_times_are_regressed_on():
    schema = Schema((Datetime("t", "2020-01-01", "2021-01-01", unit="D"), Categorical("season", (0, 1, 2, 3))))
    rng = np.random.default_rng(0)
    day = rng.integers(0, 360, 500)
    data = pd.DataFrame({"t": pd.Timestamp("2020-01-01") + pd.to_timedelta(day, unit="D"), "season": day // 90})
    one = schema.encode(data)
    assert by_name(utility(one, one, one, "t", repeats=1))["R2"].synthetic.value > 0.9


def test_constant_columns_and_tiny_tables_do_not_fail():
    schema = Schema(
        (Numeric("n", 5, 5), Categorical("k", ("only",)), Boolean("y"), Numeric("gone", 0, 1, missing=True))
    )
    data = pd.DataFrame({"n": [5.0] * 6, "k": ["only"] * 6, "y": [True, False] * 3, "gone": [None] * 6})
    one = schema.encode(data)
    for suite in ("default", "flaim", "fedtabdiff"):
        for score in utility(one, one, one, "y", suite=suite, repeats=1):
            assert np.isfinite(score.synthetic.value)
            assert score.verdict == ""
            assert "nothing can be said" in score.says
    two = one.take(np.array([0, 1]))
    assert all(np.isfinite(score.synthetic.value) for score in utility(two, two, two, "y", repeats=1))


def test_what_cannot_be_scored_says_why():
    with pytest.raises(SchemaError, match="no column"):
        utility(REAL, FRESH, TEST, "nobody")
    with pytest.raises(Unsupported, match="no suite named"):
        utility(REAL, FRESH, TEST, "y", suite="kaggle")
    with pytest.raises(Unsupported, match="one class only"):
        utility(REAL, FRESH, TEST.take(TEST.codes[2] == 1), "y")
    schema = Schema((Categorical("id", tuple(range(60))), Boolean("y"), Numeric("v", 0, 1, missing=True)))
    many = schema.encode(pd.DataFrame({"id": range(60), "y": [True, False] * 30, "v": [0.5] * 59 + [None]}))
    with pytest.raises(Unsupported, match="more than 50"):
        utility(many, many, many, "id")
    with pytest.raises(Unsupported, match="one value of the target"):
        utility(many, many, many, "v")
    with pytest.raises(Unsupported, match="fewer than 2 rows"):
        utility(many, many.take(np.array([59])), many, "v")


# ---------------------------------------------------------------------------------------------------------------------
# Features


def test_features_are_fitted_on_real_rows_only():
    columns = [0, 1, 3]
    for fit in (standardised, one_hot, quantiles_and_one_hot):
        encode = fit(REAL, columns)
        assert (encode(TEST)[:50] == encode(TEST.take(np.arange(50)))).all(), fit
        assert np.isfinite(encode(TEST)).all()
    assert one_hot(REAL, columns)(TEST).shape == (600, 1 + 1 + 3 + 1)
    normal = quantiles_and_one_hot(REAL, columns)(REAL)[:, -1]
    assert abs(normal.mean()) < 0.05
    assert normal.std() == pytest.approx(1, abs=0.05)


def test_one_class_teaches_nothing_to_the_quick_look_either():
    lonely = FRESH.take(FRESH.codes[2] == 1)
    found = train_synthetic_test_real(lonely, TEST, 2, seed=0)
    assert (found.auc, found.trained_on) == (0.5, len(lonely))
    assert "one class" in found.note
