"""The arms of a comparison on the same splits, and the tests of their differences."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsynth.bench.metrics import FinishedRun, likeness
from fedsynth.cli import app as cli
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter
from fedsynth.evaluation.comparison import TESTS, Comparison, compared, paired, student, welch
from fedsynth.evaluation.score import holm
from fedsynth.schema import Categorical, Numeric, Schema

pytest.importorskip("sklearn")


def sites_apart(rows=3000, seed=0):
    """Return rows whose sites differ, and their schema: alone, each knows one region only."""
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
    return frame, schema


def run(folder, monkeypatch, capsys, **changed):
    """Return what ``fedsynth compare`` prints, and the values that it writes."""
    frame, schema = sites_apart()
    frame.to_csv(folder / "people.csv", index=False)
    schema.save(folder / "people.toml")
    settings = {
        "data": folder / "people.csv",
        "schema": folder / "people.toml",
        "epsilon": 2,
        "delta": 1e-6,
        "sites": 3,
        "partition": "column:region",
        "repeats": 3,
        "seed": 1,
        "out": folder / "values.json",
        **changed,
    }
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["fedsynth", "compare", *options, "--force"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = capsys.readouterr()
    assert stopped.value.code == 0, said.err
    return said.out, json.loads((folder / "values.json").read_text())


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
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_federation_of_different_sites_beats_a_site_alone(tmp_path, monkeypatch, capsys):
    text, content = run(tmp_path, monkeypatch, capsys, target="sick")
    lines = {line["metric"]: line for line in content["lines"]}
    columns = lines["column similarity"]
    assert all(f > local for f, local in zip(columns["federated"], columns["local"], strict=True))
    assert columns["p"]["local"] < 0.05
    # One sum over three sites is the sum over the pooled rows, with fresh noise.
    assert np.mean(columns["federated"]) == pytest.approx(np.mean(columns["pooled"]), abs=0.02)
    assert columns["federated"] != columns["pooled"]
    assert columns["p"]["pooled"] > 0.05
    assert all(len(line[arm]) == 3 for line in content["lines"] for arm in ("federated", "pooled", "local"))

    assert min(columns["real rows"]) > 0.95
    assert max(lines["propensity MSE"]["real rows"]) < 0.02
    utility = [line for name, line in lines.items() if "ROC AUC" in name]
    assert utility
    assert all(0.5 < one < 0.95 for line in utility for one in line["real rows"])

    assert "auto, 3 sites, epsilon 2, delta 1e-06, trust secure, 3 repeats" in text
    for line in content["lines"]:
        row = next(row for row in text.splitlines() if row.startswith(line["metric"]))
        assert f"{np.mean(line['federated']):.3f} ± {np.std(line['federated'], ddof=1):.3f}" in row
    assert "***" in next(row for row in text.splitlines() if row.startswith("column similarity"))
    assert content["note"] in text
    assert "computed from real rows, and no guarantee covers them" in content["note"]


def test_the_same_seed_gives_the_same_comparison(tmp_path, monkeypatch, capsys):
    changed = {"repeats": 2, "partition": "iid", "sites": 2}
    one, two, three = (run(tmp_path, monkeypatch, capsys, **changed, seed=seed)[1]["lines"] for seed in (1, 1, 2))
    assert one == two
    assert one != three
    assert not [line for line in one if "ROC" in line["metric"]], "without a target nothing is predicted"


def test_values_are_compared_arm_by_arm_and_adjusted_over_the_metrics():
    near, far = [1.0, 1.1, 0.9], [5.0, 5.1, 4.9]
    found = {
        arm: [{"a": a, "b": b} for a, b in zip(*both, strict=True)]
        for arm, both in {"federated": (near, near), "pooled": (near, far), "local": (far, far)}.items()
    }
    comparison = compared("setting", found, [{"a": 0.0, "b": 0.0}] * 3, student)
    assert isinstance(comparison, Comparison)
    a, b = comparison.lines
    assert a.p["pooled"] == 1.0
    assert b.p["pooled"] == pytest.approx(2 * student(near, far))
    assert a.p["local"] == b.p["local"] == pytest.approx(2 * student(near, far))
    assert a.reference == (0.0, 0.0, 0.0)


def test_one_repeat_is_no_comparison():
    once = {arm: [{"a": 1.0}] for arm in ("federated", "pooled", "local")}
    with pytest.raises(InvalidParameter, match="at least 2 repeats"):
        compared("setting", once, [{"a": 0.0}])


def test_rows_are_like_themselves():
    frame, schema = sites_apart(400)
    table = encode(schema, frame)
    assert likeness(FinishedRun(table, table, table))["column similarity"] == 1.0
