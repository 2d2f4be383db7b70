"""Federated, pooled and local on the same splits, and the tests of their differences."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsynth.data.partition import IID, ByColumn
from fedsynth.errors import InvalidParameter
from fedsynth.evaluation.comparison import (
    ARMS,
    TESTS,
    _holm,
    compare,
    paired,
    student,
    thesis_judge,
    welch,
)
from fedsynth.evaluation.score import Evidence
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.methods import OneShot
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Numeric, Schema

pytest.importorskip("sklearn")
pytest.importorskip("sdmetrics")


def sites_apart(rows=3000, seed=0):
    """Return rows whose sites differ: alone, each knows one region only."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, 3, rows)
    level = rng.integers(0, 4, rows)
    sick = (rng.random(rows) < 0.15 + 0.2 * level).astype(int)
    frame = pd.DataFrame({"region": region, "level": level, "pay": 10.0 * level + 5 * rng.random(rows), "sick": sick})
    schema = Schema(
        (
            Categorical("region", (0, 1, 2)),
            Categorical("level", (0, 1, 2, 3)),
            Numeric("pay", 0, 40, bins=8),
            Categorical("sick", (0, 1)),
        )
    )
    return schema.encode(frame)


def run(**changed):
    settings = {
        "trust": TrustedServer(),
        "sites": 3,
        "partition": ByColumn(0),
        "judge": thesis_judge("sick", max_rows=1500),
        "repeats": 3,
        "seed": 1,
    }
    return compare(sites_apart(), OneShot(), Budget(2.0, 1e-6), **{**settings, **changed})


@pytest.fixture(scope="module")
def comparison():
    return run()


def test_p_values_are_those_of_scipy():
    rng = np.random.default_rng(0)
    one, two = rng.normal(0, 1, 5).tolist(), rng.normal(1, 2, 5).tolist()
    assert student(one, two) == stats.ttest_ind(one, two).pvalue
    assert welch(one, two) == stats.ttest_ind(one, two, equal_var=False).pvalue
    assert paired(one, two) == stats.ttest_rel(one, two).pvalue


@pytest.mark.parametrize("test", TESTS.values())
def test_without_any_spread_arms_are_equal_or_they_are_not(test):
    assert test([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert test([1.0, 1.0], [2.0, 2.0]) == 0.0


def test_holm_by_hand():
    assert _holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert _holm([0.9, 0.8]) == [1.0, 1.0]


def test_federation_of_different_sites_beats_a_site_alone(comparison):
    lines = {line.metric: line for line in comparison.lines}
    columns = lines["column similarity"]
    assert all(f > local for f, local in zip(columns.values["federated"], columns.values["local"], strict=True))
    assert columns.p["local"] < 0.05
    # One sum over three sites is the sum over the pooled rows, with fresh noise.
    assert np.mean(columns.values["federated"]) == pytest.approx(np.mean(columns.values["pooled"]), abs=0.02)
    assert columns.p["pooled"] > 0.05
    assert all(len(line.values[arm]) == 3 for line in comparison.lines for arm in ARMS)


def test_the_reference_is_what_real_rows_score(comparison):
    lines = {line.metric: line for line in comparison.lines}
    assert min(lines["column similarity"].reference) > 0.95
    assert max(lines["propensity MSE"].reference) < 0.02
    utility = [line for line in comparison.lines if "ROC AUC" in line.metric]
    assert utility
    assert all(0.5 < one < 0.95 for line in utility for one in line.reference)


def test_table_and_json_say_the_same(comparison):
    text = str(comparison)
    assert "OneShot, 3 sites, epsilon 2, delta 1e-06, trust trusted, 3 repeats" in text
    content = json.loads(json.dumps(comparison.to_json()))
    for line in content["lines"]:
        row = next(row for row in text.splitlines() if row.startswith(line["metric"]))
        assert f"{np.mean(line['federated']):.3f} ± {np.std(line['federated'], ddof=1):.3f}" in row
    assert "***" in next(row for row in text.splitlines() if row.startswith("column similarity"))


def test_the_same_seed_gives_the_same_comparison():
    judge = thesis_judge("", max_rows=300)
    one, two = (run(judge=judge, repeats=2, partition=IID(), sites=2).to_json() for _ in range(2))
    assert one == two
    assert one != run(judge=judge, repeats=2, partition=IID(), sites=2, seed=2).to_json()


def test_one_repeat_is_no_comparison():
    with pytest.raises(InvalidParameter, match="at least 2"):
        run(repeats=1)


def test_without_a_target_nothing_is_predicted():
    table = sites_apart(400)
    values = thesis_judge("")(Evidence(table, table, table), 0)
    assert not [name for name in values if "ROC" in name]
    assert values["column similarity"] == 1.0
