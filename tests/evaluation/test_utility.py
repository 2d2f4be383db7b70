"""What learners are taught by synthetic rows, against plain scikit-learn and cases worked by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from tests.public_data import public_data

from fedsynth import encoding
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation.classifier_scores import auc_one_vs_one
from fedsynth.evaluation.features import one_hot, quantiles_and_one_hot, standardised
from fedsynth.evaluation.suites import SUITE_NAMES, find_suite
from fedsynth.evaluation.utility import _score, predictors, scores_by_learner, utility
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

pytest.importorskip("sklearn")

SCHEMA = Schema(
    (Numeric("x", -10, 10, missing=True), Categorical("c", ("a", "b", "c")), Boolean("y"), Numeric("z", -50, 50))
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
    return encoding.encode(SCHEMA, frame(rows, seed, signal))


REAL, FRESH, TEST = table(900, 0), table(900, 1), table(600, 2)


def by_name(scores):
    return {score.name: score for score in scores}


def shuffled(one: Table, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    ways = [rng.permutation(len(one)) for _ in one.codes]
    numbers = {j: values[ways[j]] for j, values in one.numbers.items()}
    return Table(one.schema, tuple(column[way] for column, way in zip(one.codes, ways, strict=True)), numbers)


def by_hand(kind: str) -> Callable[[pd.DataFrame, str], np.ndarray]:
    """Return the features of a suite in plain scikit-learn: scalers fitted on the real frame, target left out."""
    from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

    real = frame(900, 0)

    def matrix(data: pd.DataFrame, target: str) -> np.ndarray:
        parts = []
        for name in data.columns.drop(target):
            if name in ("x", "z") and kind != "codes":
                normal = QuantileTransformer(n_quantiles=30, output_distribution="normal", random_state=0)
                scaler = (normal if kind == "quantiles" else StandardScaler()).fit(real[[name]])
                parts.append(np.nan_to_num(scaler.transform(data[[name]])))
                if name == "x" and kind != "standardised":
                    parts.append(data[["x"]].isna())
            elif kind in ("one-hot", "quantiles"):
                encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(real[[name]])
                parts.append(encoder.transform(data[[name]]))
            else:
                parts.append(encoding.encode(SCHEMA, data).codes[SCHEMA.index(name)][:, None])
        return np.concatenate(parts, axis=1, dtype=float)

    return matrix


def test_suites_are_plain_pipelines_of_scikit_learn():
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score
    from sklearn.naive_bayes import GaussianNB

    train, test = frame(900, 1), frame(600, 2)
    truth = test["y"]

    def guesses(model, kind):
        model.fit(by_hand(kind)(train, "y"), train["y"])
        rows = by_hand(kind)(test, "y")
        return model.predict(rows), model.predict_proba(rows)[:, 1]

    ours = scores_by_learner(REAL, FRESH, TEST, "y", "thesis", 5)
    labels, likely = guesses(RandomForestClassifier(random_state=5), "standardised")
    hard = ours["ROC AUC of hard labels (as published)"]["random forest"]
    assert ours["ROC AUC"]["random forest"] == pytest.approx(roc_auc_score(truth, likely))
    assert hard == pytest.approx(roc_auc_score(truth, labels)) == pytest.approx(balanced_accuracy_score(truth, labels))
    assert hard < ours["ROC AUC"]["random forest"]
    _, likely = guesses(GaussianNB(), "standardised")
    assert ours["ROC AUC"]["naive Bayes"] == pytest.approx(roc_auc_score(truth, likely))

    ours = scores_by_learner(REAL, FRESH, TEST, "y", "fedtabdiff", 5)
    labels, likely = guesses(RandomForestClassifier(random_state=5), "one-hot")
    assert set(ours["accuracy"]) == set(find_suite("fedtabdiff").classifiers)
    assert ours["accuracy"]["random forest"] == pytest.approx(accuracy_score(truth, labels))
    assert ours["macro F1"]["random forest"] == pytest.approx(f1_score(truth, labels, average="macro"))
    assert ours["ROC AUC"]["random forest"] == pytest.approx(roc_auc_score(truth, likely))

    labels, likely = guesses(LogisticRegression(max_iter=2000), "one-hot")
    ours = scores_by_learner(REAL, FRESH, TEST, "y", "default", 5)
    assert ours["ROC AUC"]["logistic regression"] == pytest.approx(roc_auc_score(truth, likely), abs=1e-5)

    _, likely = guesses(GradientBoostingClassifier(n_estimators=100, max_depth=4, random_state=5), "codes")
    ours = scores_by_learner(REAL, FRESH, TEST, "y", "flaim", 5)
    assert ours["ROC AUC"]["gradient boosting"] == pytest.approx(roc_auc_score(truth, likely))


def test_learners_can_be_tuned_as_heterofedsyn_does():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import f1_score

    pytest.importorskip("xgboost")
    forest = {"n_estimators": 20, "max_depth": 6, "min_samples_split": 5, "min_samples_leaf": 2}
    boosting = {"learning_rate": 0.1014, "min_child_weight": 2, "max_depth": 8, "gamma": 0.697}
    suite = find_suite("heterofedsyn").tuned({"random forest": forest, "MLP": {"max_iter": 9}, "XGBoost": boosting})
    assert boosting.items() <= suite.classifiers["XGBoost"](0).get_params().items()
    assert suite.classifiers["MLP"](0).max_iter == 9
    train, test, matrix = frame(900, 1), frame(600, 2), by_hand("quantiles")
    model = RandomForestClassifier(random_state=5, **forest).fit(matrix(train, "y"), train["y"])
    guess = model.predict(matrix(test, "y"))
    ours = scores_by_learner(REAL, FRESH, TEST, "y", suite, 5)["weighted F1"]
    assert ours["random forest"] == pytest.approx(f1_score(test["y"], guess, average="weighted"))
    assert "heterofedsyn" in utility(REAL, FRESH, TEST, "y", suite=suite, repeats=1)[0].note
    with pytest.raises(InvalidParameter, match="no learner 'SVM'"):
        find_suite("heterofedsyn").tuned({"SVM": {}})


def test_regression_is_in_the_units_of_the_label():
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import r2_score, root_mean_squared_error

    train, test, matrix = frame(900, 1), frame(600, 2), by_hand("one-hot")
    guess = LinearRegression().fit(matrix(train, "z"), train["z"]).predict(matrix(test, "z"))
    ours = scores_by_learner(REAL, FRESH, TEST, "z", "fedtabdiff", 0)
    assert ours["RMSE"]["linear regression"] == pytest.approx(root_mean_squared_error(test["z"], guess), rel=1e-6)
    assert ours["R2"]["linear regression"] == pytest.approx(r2_score(test["z"], guess), rel=1e-6)


def test_on_adult_fresh_rows_are_as_good_as_real_ones_and_shuffled_ones_teach_nothing():
    from fedsynth.data.draft import draft_schema
    from fedsynth.data.read import read_frame

    data = read_frame(public_data("adult.csv"))
    adult = encoding.encode(draft_schema(data).schema, data)
    order = np.random.default_rng(0).permutation(len(adult))
    real, fresh, test = (adult.take(order[rows]) for rows in (slice(3000), slice(3000, 6000), slice(6000, 9000)))
    for score in utility(real, fresh, test, "income", repeats=1):
        assert score.synthetic.value == pytest.approx(score.reference.value, abs=0.02)
        assert score.verdict == ("" if "relative" in score.name else "good")
    scores = by_name(utility(real, shuffled(real), test, "income", repeats=1))
    assert scores["ROC AUC"].synthetic.value == pytest.approx(0.5, abs=0.1)
    assert scores["ROC AUC"].reference.value > 0.88
    assert scores["macro F1"].synthetic.value == pytest.approx(0.43, abs=0.02)
    assert scores["macro F1"].verdict == "alarm"


@pytest.mark.parametrize("suite", SUITE_NAMES)
@pytest.mark.parametrize("target", ["y", "z"])
def test_every_suite_learns_from_fresh_rows_and_not_from_shuffled_ones(suite, target):
    if suite == "heterofedsyn":
        pytest.importorskip("xgboost")
    good = by_name(utility(REAL, FRESH, TEST, target, suite=suite, repeats=1))
    bad = by_name(utility(REAL, shuffled(REAL), TEST, target, suite=suite, repeats=1))
    relative = good.pop("ROC AUC relative to real rows", None)
    assert set(good) == ({"R2", "RMSE"} if target == "z" else set(find_suite(suite).scores))
    assert (relative is not None) == ("ROC AUC" in good)
    for name, score in good.items():
        assert score.verdict == "good", (name, score)
        assert score.synthetic.value == pytest.approx(np.mean([one for one, _ in score.details.values()]))
        assert score.reference.value == pytest.approx(np.mean([one for _, one in score.details.values()]))
        assert bad[name].verdict in ("alarm", "review")
        assert (bad[name].synthetic.value > score.synthetic.value) == (name == "RMSE")


def test_the_auc_stands_beside_that_of_real_rows():
    synthetic = table(900, 1, signal=0.5)
    found = by_name(utility(REAL, synthetic, TEST, "y", suite="thesis", repeats=2))
    auc, relative = found["ROC AUC"], found["ROC AUC relative to real rows"]
    assert relative.synthetic.value == pytest.approx((auc.synthetic.value - 0.5) / (auc.reference.value - 0.5))
    assert relative.synthetic.value < 0.95
    assert relative.reference.value == pytest.approx(1.0)
    # The band is that of the AUC, in units of the real rows' gain.
    assert relative.synthetic.high - relative.synthetic.low == pytest.approx(
        (auc.synthetic.high - auc.synthetic.low) / (auc.reference.value - 0.5)
    )
    assert (relative.verdict, relative.says) == ("", auc.says)


def test_nothing_is_relative_to_real_rows_that_teach_nothing():
    mute = shuffled(REAL)
    assert "ROC AUC relative to real rows" not in by_name(utility(mute, FRESH, TEST, "y", suite="thesis", repeats=3))


def test_sides_train_on_equally_many_rows_and_the_note_says_how_many():
    (score, *_) = utility(table(2000, 0), table(300, 1), TEST, "y", repeats=2, max_rows=250)
    assert "250 training rows a side, 600 test rows, 2 draws" in score.note
    (score, *_) = utility(table(2000, 0), table(300, 1), TEST, "y", repeats=1)
    assert "300 training rows a side" in score.note


def test_the_same_seed_gives_the_same_scores():
    quick = find_suite("default").tuned({"random forest": {"n_estimators": 5}, "gradient boosting": {"max_iter": 5}})
    one, two, other = (utility(REAL, FRESH, TEST, "y", suite=quick, repeats=2, seed=seed) for seed in (0, 0, 1))
    assert one == two
    assert one != other


def test_synthetic_rows_of_one_class_score_the_floor_and_alarm():
    lonely = FRESH.take(FRESH.codes[2] == 1)
    scores = by_name(utility(REAL, lonely, TEST, "y", repeats=1))
    assert scores["ROC AUC"].synthetic.value == 0.5
    assert scores["ROC AUC"].verdict == "alarm"
    true = TEST.codes[2].mean()  # the precision of True, found in all rows; the F1 of False is 0
    assert scores["macro F1"].synthetic.value == pytest.approx(2 * true / (1 + true) / 2)
    assert "does not beat guessing y" in scores["ROC AUC"].says
    assert "hold one class only" in scores["ROC AUC"].says


def test_synthetic_rows_of_one_value_predict_it():
    lonely = FRESH.take(np.zeros(50, dtype=int))
    scores = by_name(utility(REAL, lonely, TEST, "z", repeats=1))
    errors = TEST.numbers[3] - FRESH.numbers[3][0]
    assert scores["RMSE"].synthetic.value == pytest.approx(np.sqrt((errors**2).mean()))
    assert scores["R2"].verdict == "alarm"
    assert "one value of the target only" in scores["R2"].says


def test_features_without_spread_leave_a_guess_by_frequency():
    for often in (True, False):
        mute = encoding.encode(SCHEMA, pd.DataFrame({"x": 0.0, "c": "a", "y": [often] * 7 + [not often] * 3, "z": 0.0}))
        found = scores_by_learner(REAL, mute, TEST, "y", "fedtabdiff", 0)
        assert set(found["accuracy"].values()) == {(TEST.codes[2] == often).mean()}
        assert set(found["ROC AUC"].values()) == {0.5}


def test_classes_that_one_side_lacks():
    without_c = FRESH.take(FRESH.codes[1] != 2)
    scores = by_name(utility(REAL, without_c, TEST, "c", repeats=1))
    assert 0.5 < scores["ROC AUC"].synthetic.value < scores["ROC AUC"].reference.value
    assert "lack 1 of the 3 classes" in scores["ROC AUC"].says
    tested = TEST.take(TEST.codes[1] != 2)
    assert by_name(utility(REAL, FRESH, tested, "c", repeats=1))["ROC AUC"].verdict == "good"


def test_auc_by_hand():
    labels = np.array([0, 0, 1, 1])
    probability = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]])
    assert auc_one_vs_one(labels, np.array([0, 1]), probability) == 0.75  # of four pairs, 0.6 against 0.5 is wrong
    # The mass of class 2, which only training rows hold, counts for nobody.
    third = np.array([[0.09, 0.01, 0.9], [0.4, 0.6, 0.0], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    assert auc_one_vs_one(labels, np.array([0, 1, 2]), third) == 0.75
    assert auc_one_vs_one(np.array([0, 1, 2]), np.array([0]), np.ones((3, 1))) == 0.5
    # A row that is all of class 2 lies between 0 and 1; of four pairs, one is a tie.
    between = np.array([[0.9, 0.1, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    assert auc_one_vs_one(labels, np.array([0, 1, 2]), between) == 0.875


def test_auc_of_three_classes_ranks_the_least_likely_rows_too():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    logits = rng.normal(0, 30, (60, 3)) - 60 * (np.arange(3) == 2)  # naive Bayes is as sure as that
    probability = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    expected = roc_auc_score(labels, probability, multi_class="ovo")
    assert auc_one_vs_one(labels, np.arange(3), probability) == pytest.approx(expected, abs=1e-12)


def test_a_missing_class_is_a_class_and_a_missing_number_is_no_label():
    schema = Schema((Categorical("k", ("a", "b"), missing=True), Numeric("v", 0, 10, missing=True)))
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"k": rng.choice(np.array(["a", "b", None], dtype=object), 400)})
    data["v"] = data["k"].map({"a": 2.0, "b": 8.0}) + rng.normal(0, 0.5, 400)
    one = encoding.encode(schema, data)
    assert by_name(utility(one, one, one, "k", repeats=1))["macro F1"].synthetic.value > 0.9
    known = int(data["v"].notna().sum())
    (score, *_) = utility(one, one, one, "v", repeats=1)
    assert f"{known} training rows a side, {known} test rows" in score.note


def test_times_are_regressed_on():
    schema = Schema((Datetime("t", "2020-01-01", "2021-01-01", unit="D"), Categorical("season", (0, 1, 2, 3))))
    rng = np.random.default_rng(0)
    day = rng.integers(0, 360, 500)
    data = pd.DataFrame({"t": pd.Timestamp("2020-01-01") + pd.to_timedelta(day, unit="D"), "season": day // 90})
    one = encoding.encode(schema, data)
    assert by_name(utility(one, one, one, "t", repeats=1))["R2"].synthetic.value > 0.9


def test_constant_columns_and_tiny_tables_do_not_fail():
    schema = Schema(
        (Numeric("n", 5, 5), Categorical("k", ("only",)), Boolean("y"), Numeric("gone", 0, 1, missing=True))
    )
    data = pd.DataFrame({"n": [5.0] * 6, "k": ["only"] * 6, "y": [True, False] * 3, "gone": [None] * 6})
    one = encoding.encode(schema, data)
    suites = set(SUITE_NAMES) - {"heterofedsyn" if find_spec("xgboost") is None else ""}
    for suite in suites:
        for score in utility(one, one, one, "y", suite=suite, repeats=1):
            assert np.isfinite(score.synthetic.value)
            assert score.verdict == ""
            assert "there is no verdict" in score.says
    two = one.take(np.array([0, 1]))
    for suite in suites - {"thesis"}:
        assert all(np.isfinite(score.synthetic.value) for score in utility(two, two, two, "y", suite=suite, repeats=1))
    with pytest.raises(Unsupported, match="needs 5 training rows, not 2"):
        utility(two, two, two, "y", suite="thesis", repeats=1)


def test_a_class_of_one_row_and_many_classes_in_few_rows_do_not_fail():
    schema = Schema((Numeric("v", -5, 5), Categorical("k", tuple(range(25)))))
    rng = np.random.default_rng(0)
    kinds = np.where(np.arange(10_500) == 0, 2, rng.integers(0, 2, 10_500))
    one = encoding.encode(schema, pd.DataFrame({"v": np.clip(rng.normal(kinds, 1), -5, 5), "k": kinds}))
    test = one.take(np.arange(1, 500))
    suite = find_suite("default").tuned({"random forest": {"n_estimators": 2}, "gradient boosting": {"max_iter": 5}})
    assert by_name(utility(one, one, test, "k", suite=suite, repeats=1))["ROC AUC"].verdict == "good"
    few = encoding.encode(schema, pd.DataFrame({"v": np.linspace(-5, 5, 30), "k": np.arange(30) % 25}))
    assert by_name(utility(few, few, few, "k", suite=suite, repeats=1))["ROC AUC"].synthetic.value > 0.5


def test_where_real_rows_teach_nothing_there_is_no_verdict():
    score = _score("y", "ROC AUC", {"one": [(0.55, 0.49), (0.50, 0.53), (0.52, 0.55)]}, 0.5, "", "")
    assert score.reference.low < 0.5 < score.reference.value
    assert score.verdict == ""
    assert "there is no verdict" in score.says
    noisy = _score("y", "accuracy", {"one": [(0.762, 0.778), (0.782, 0.779), (0.766, 0.777)]}, 0.761, "", "")
    assert (noisy.verdict, noisy.reference.low > 0.761) == ("", True)
    assert "draws vary by as much" in noisy.says
    wild = _score("z", "R2", {"one": [(-40.0, 0.8), (-1.0, 0.7), (-9.0, 0.8)]}, 0.0, "", "")
    assert wild.verdict == "alarm"  # noise of the synthetic side excuses nothing


def test_the_verdict_follows_the_share_that_is_kept():
    def verdict(name, synthetic, reference, floor):
        return _score("y", name, {"one": [(synthetic, reference)] * 2}, floor, "", "").verdict

    assert verdict("ROC AUC", 0.87, 0.9, 0.5) == "good"  # 0.37 of 0.40
    assert verdict("ROC AUC", 0.85, 0.9, 0.5) == "review"
    assert verdict("ROC AUC", 0.51, 0.9, 0.5) == "alarm"
    assert verdict("RMSE", 2.4, 2.0, 10.0) == "good"  # 7.6 of 8
    assert verdict("RMSE", 4.0, 2.0, 10.0) == "review"
    assert verdict("RMSE", 9.8, 2.0, 10.0) == "alarm"
    noisy = _score("y", "ROC AUC", {"one": [(0.80, 0.95), (0.80, 0.85)]}, 0.5, "", "")
    assert noisy.verdict == "good"  # 75 % is kept, but the reference's band reaches down to 0.76


def test_what_cannot_be_scored_says_why():
    with pytest.raises(SchemaError, match="no column"):
        utility(REAL, FRESH, TEST, "nobody")
    with pytest.raises(InvalidParameter, match="unknown suite of learners"):
        utility(REAL, FRESH, TEST, "y", suite="kaggle")
    with pytest.raises(Unsupported, match="one class only"):
        utility(REAL, FRESH, TEST.take(TEST.codes[2] == 1), "y")
    schema = Schema((Categorical("id", tuple(range(60))), Boolean("y"), Numeric("v", 0, 1, missing=True)))
    many = encoding.encode(schema, pd.DataFrame({"id": range(60), "y": [True, False] * 30, "v": [0.5] * 59 + [None]}))
    with pytest.raises(Unsupported, match="more than 50"):
        utility(many, many, many, "id")
    with pytest.raises(Unsupported, match="more than 50"):
        scores_by_learner(many, many.take(np.arange(9)), many.take(np.arange(9)), "id", "flaim", 0)
    with pytest.raises(Unsupported, match="target is constant"):
        utility(many, many, many, "v")
    with pytest.raises(Unsupported, match="fewer than 2 rows"):
        utility(many, many.take(np.array([59])), many, "v")
    with pytest.raises(Unsupported, match="fewer than 2 rows"):
        scores_by_learner(many, many, many.take(np.array([59])), "v", "flaim", 0)
    alone = encoding.encode(Schema((Boolean("y"),)), pd.DataFrame({"y": [True, False] * 5}))
    with pytest.raises(Unsupported, match="no other column"):
        utility(alone, alone, alone, "y")


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(Unsupported, match="pip install xgboost-cpu"):
        scores_by_learner(REAL, FRESH, TEST, "y", find_suite("heterofedsyn").tuned({"MLP": {"max_iter": 1}}), 0)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(Unsupported, match="pip install 'fedsynth"):
        utility(REAL, FRESH, TEST, "y")


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


def test_categories_that_real_rows_do_not_hold_have_no_feature_and_of_many_the_commonest_have_one():
    schema = Schema((Categorical("k", tuple(range(150))), Boolean("y")))
    kinds = [*range(149), *range(100)]
    real = encoding.encode(schema, pd.DataFrame({"k": kinds, "y": True}))
    probe = encoding.encode(schema, pd.DataFrame({"k": [3, 99, 100, 149], "y": True}))
    for fit in (one_hot, quantiles_and_one_hot):
        found = fit(real, [0])(probe)
        assert found.shape == (4, 100)
        assert found.sum(axis=1).tolist() == [1, 1, 0, 0]
        assert (found[0, 3], found[1, 99]) == (1, 1)


def test_equal_numbers_are_not_divided_by_the_rounding_of_their_deviation():
    schema = Schema((Numeric("v", 0, 1), Boolean("y")))
    real, probe = (
        encoding.encode(schema, pd.DataFrame({"v": values, "y": True})) for values in ([0.1] * 7, [0.1, 0.6])
    )
    assert real.numbers[0].std() != 0
    assert standardised(real, [0])(probe)[:, 0] == pytest.approx([0, 0.5])


def test_of_a_wide_table_sixty_columns_are_learnt_from_and_it_is_said():
    schema = Schema((Boolean("y"), *(Boolean(f"b{j}") for j in range(80))))
    rng = np.random.default_rng(0)
    wide = Table(schema, tuple(rng.integers(0, 2, 60).astype(np.uint8) for _ in range(81)))
    (score, *_) = utility(wide, wide, wide, "y", suite="flaim", repeats=1)
    assert "60 random columns of 80" in score.note
    assert len(predictors(wide, 3)) == 60
    assert 3 not in predictors(wide, 3)
    assert predictors(REAL, 0) == [1, 2, 3]


def test_a_fixed_learner_is_trained_once_on_rows_that_are_always_the_same():
    made: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        def make(seed: int) -> object:
            made.append(name)
            return find_suite("default").classifiers["logistic regression"](seed)

        return make

    both = replace(find_suite("default"), classifiers={name: counted(name) for name in ("fixed", "drawn")})
    real, synthetic, test = table(120, 0), table(150, 1), table(200, 2)
    once = utility(real, synthetic, test, "y", suite=replace(both, fixed=frozenset({"fixed"})), repeats=3)
    # All 120 real rows take part in each draw, and 120 of the 150 synthetic ones.
    assert (made.count("fixed"), made.count("drawn")) == (3 + 1, 3 + 3)
    always = utility(real, synthetic, test, "y", suite=replace(both, fixed=frozenset()), repeats=3)
    for one, other in zip(once, always, strict=True):
        assert one.synthetic.value == pytest.approx(other.synthetic.value, abs=5e-3)
        for name, both_sides in one.details.items():
            assert both_sides == pytest.approx(other.details[name], abs=1e-3)


def test_a_learner_that_is_tuned_may_draw_at_random():
    suite = find_suite("default").tuned({"gradient boosting": {"max_iter": 5}})
    assert suite.fixed == {"logistic regression", "ridge regression"}


def test_references_of_a_tuned_suite_are_its_own():
    real, synthetic, test = table(120, 0), table(120, 1), table(200, 2)
    plain = utility(real, synthetic, test, "y", repeats=1)
    tuned = find_suite("default").tuned({"gradient boosting": {"max_iter": 1}})
    few = utility(real, synthetic, test, "y", suite=tuned, repeats=1)
    assert few[0].details["gradient boosting"][1] != plain[0].details["gradient boosting"][1]
