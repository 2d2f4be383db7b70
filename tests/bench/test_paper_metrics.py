"""Metrics as single papers compute them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.metrics import (
    disclosure,
    distances_to_rows,
    fidelity_by_class,
    heterogeneity,
    kernel_likelihood,
    site_augmentation,
)

from fedsynth.bench.metrics import FinishedRun
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Categorical, Numeric, Schema

SCHEMA = Schema((Numeric("x", 0.0, 100.0, bins=10), Categorical("c", ("a", "b")), Categorical("secret", ("no", "yes"))))


def table(x: list[float], c: list[int], secret: list[int]) -> Table:
    codes = [np.array(column, dtype=np.uint8) for column in (np.minimum(np.array(x) // 10, 9), c, secret)]
    return Table(SCHEMA, tuple(codes), {0: np.array(x)})


def test_distances_are_those_computed_by_hand() -> None:
    training = table([0.0, 10.0, 20.0, 30.0], [0, 1, 0, 1], [0, 0, 1, 1])
    holdout = table([12.0, 22.0, 32.0, 42.0], [1, 0, 1, 0], [0, 1, 1, 1])  # as many: every draw is all training rows
    synthetic = table([10.0, 33.0], [1, 1], [0, 1])
    scale = np.std([0.0, 10.0, 20.0, 30.0])
    found = distances_to_rows(FinishedRun(training, synthetic, holdout, fresh=synthetic))
    assert found["min"] == 0.0
    assert found["training"] == pytest.approx((0 + 3 / scale) / 2, rel=1e-5)
    assert found["hold-out"] == pytest.approx((2 / scale + 1 / scale) / 2, rel=1e-5)
    assert found["share"] == 0.5


def test_independent_rows_are_as_close_to_training_rows_as_to_others_and_copies_closer() -> None:
    rng = np.random.default_rng(0)
    rows = [table(rng.uniform(0, 100, 2000).tolist(), *rng.integers(0, 2, (2, 2000)).tolist()) for _ in range(3)]
    assert distances_to_rows(FinishedRun(rows[0], rows[1], rows[2]))["share"] == pytest.approx(0.5, abs=0.04)
    assert distances_to_rows(FinishedRun(rows[0], rows[0], rows[2]))["share"] > 0.95


def test_attackers_find_a_column_that_follows_from_another_and_only_then() -> None:
    rng = np.random.default_rng(0)
    c = rng.integers(0, 2, 1500)
    x, free = rng.uniform(0, 100, 1500), rng.integers(0, 2, 1500)
    follows, independent = (table(x.tolist(), c.tolist(), secret.tolist()) for secret in (c, free))
    options: dict[str, Any] = {"sensitive": "secret", "known": ["x", "c"], "size": 1}
    found = disclosure(FinishedRun(follows, follows, follows), **options)
    assert set(found) == {"RF", "SVM", "NB", "KNN", "LR", "ENS", "DUM", "RMEAN"}
    assert found["SVM"] == pytest.approx(0.75, abs=0.05)  # by c always right, by x half the time
    assert found["RMEAN"] == pytest.approx(np.mean([found[name] for name in ("RF", "SVM", "NB", "KNN", "LR", "ENS")]))
    assert disclosure(FinishedRun(independent, follows, follows), **options)["SVM"] == pytest.approx(0.5, abs=0.05)


def test_the_kernel_likelihood_of_a_normal_law_is_that_law_widened_by_the_kernel() -> None:
    schema = Schema(
        (Numeric("x", -500, 500, bins=1000), Numeric("z", -500, 500, bins=1000), Categorical("c", ("a", "b")))
    )
    rng = np.random.default_rng(0)

    def drawn(rows: int) -> Table:
        values = [rng.normal(0, 50, rows), rng.normal(0, 80, rows)]
        return Table.of(schema, [*values, np.zeros(rows, dtype=np.uint8)])

    real, synthetic, test = drawn(10), drawn(4000), drawn(4000)
    entropy = np.log(2 * np.pi * np.e * 50 * 80)  # nats, of the two normal columns; a constant column has none
    found = kernel_likelihood(FinishedRun(real, synthetic, test, fresh=synthetic))
    assert found == pytest.approx(entropy, abs=0.08)


def test_rows_of_one_class_are_faithful_to_that_class_alone() -> None:
    rng = np.random.default_rng(0)

    def of(low: float, secret: int) -> Table:
        return table(rng.uniform(low, low + 50, 2000).tolist(), rng.integers(0, 2, 2000).tolist(), [secret] * 2000)

    found = fidelity_by_class(FinishedRun(concatenate([of(0, 0), of(50, 1)]), of(50, 1), of(0, 0), target="secret"))
    assert found["yes"] > 0.95
    assert found["no"] < 0.7


def test_sites_of_equal_rows_do_not_differ_and_of_disjoint_ones_by_as_much_as_they_lack() -> None:
    one, other = table([5.0] * 30, [0] * 30, [0] * 30), table([95.0] * 10, [1] * 10, [1] * 10)
    everything = concatenate([one, other])
    run = FinishedRun(everything, everything, sites=(one, other), workload=((0,), (0, 1)))
    assert heterogeneity(run) == pytest.approx({"mean": (0.5 + 1.5) / 2, "weighted": 0.75 * 0.5 + 0.25 * 1.5})
    assert heterogeneity(replace(run, sites=(everything,) * 2)) == {"mean": 0.0, "weighted": 0.0}


def test_synthetic_rows_help_sites_that_know_one_class_only() -> None:
    rng = np.random.default_rng(0)

    def of(secrets: tuple[int, ...], rows: int = 300) -> Table:
        secret = rng.choice(secrets, rows)
        return table(
            (rng.uniform(0, 60, rows) + 40 * secret).tolist(), rng.integers(0, 2, rows).tolist(), secret.tolist()
        )

    run = FinishedRun(of((0, 1)), of((0, 1), 2000), of((0, 1)), sites=(of((0,)), of((1,))), target="secret")
    found = site_augmentation(run)
    assert found["own rows, ROC AUC"] == 0.5
    assert found["with synthetic rows, ROC AUC"] > 0.8
