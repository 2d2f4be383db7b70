"""Fidelity, likelihood and utility against hand-worked cases and an independent computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.world import contingency

from fedsynth.cliques import all_marginals, downward_closure, maximal, random_workload, weights
from fedsynth.errors import Unsupported
from fedsynth.evaluation.fidelity import likelihood
from fedsynth.evaluation.utility import train_synthetic_test_real
from fedsynth.rows import Table, workload_error
from fedsynth.schema import Categorical, Schema

SCHEMA = Schema((Categorical("a", ("x", "y")), Categorical("b", ("p", "q", "r")), Categorical("c", (0, 1))))


def table(*rows: tuple[int, int, int]) -> Table:
    return Table(SCHEMA, tuple(np.array(column, dtype=np.uint8) for column in zip(*rows, strict=True)))


def random_table(rows: int, seed: int, signal: float = 0.0) -> Table:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, rows), rng.integers(0, 3, rows)
    c = np.where(rng.random(rows) < signal, a ^ (b == 1), rng.integers(0, 2, rows))
    return Table(SCHEMA, tuple(column.astype(np.uint8) for column in (a, b, c)))


def test_workload_error_by_hand():
    real = table((0, 0, 0), (0, 0, 0), (1, 1, 0), (1, 2, 1))
    synthetic = table((0, 0, 0), (1, 1, 1))
    scores = workload_error(real, synthetic, ((0,), (1,), (0, 2)))
    # (0,): equal halves; (1,): |.5-.5| + |.25-.5| + |.25-0|; (0,2): |.5-.5| + |.25-0| + |.25-.5|
    assert scores.per_clique == pytest.approx({(0,): 0.0, (1,): 0.5, (0, 2): 0.5})
    assert scores.mean == pytest.approx(1 / 3)


def test_workload_error_is_that_of_dense_tables_and_its_mean_is_the_headline():
    real, synthetic = random_table(500, 1), random_table(333, 2, signal=0.5)
    workload = all_marginals(3, 2)
    scores = workload_error(real, synthetic, workload)
    for clique in workload:
        dense = np.abs(contingency(real, clique) / 500 - contingency(synthetic, clique) / 333).sum()
        assert scores.per_clique[clique] == pytest.approx(dense)
    assert scores.mean == pytest.approx(np.mean(list(scores.per_clique.values())))
    assert workload_error(real, real, workload).mean < 1e-12
    with pytest.raises(Unsupported, match="rows"):
        workload_error(real, real.take(np.zeros(500, dtype=bool)), workload)


def test_likelihood_plain_and_floored():
    logs = np.log(np.array([0.5, 0.25, 1e-40]))
    score = likelihood(logs, floor=1e-30)
    assert score.nll == pytest.approx(-(np.log(0.5) + np.log(0.25) + np.log(1e-40)) / 3)
    assert score.nll_floored == pytest.approx(-(np.log(0.5) + np.log(0.25) + np.log(1e-30)) / 3)
    assert score.floored_share == pytest.approx(1 / 3)
    with pytest.raises(Unsupported, match="held-out"):
        likelihood(np.array([]))


def test_auc_finds_the_signal_where_there_is_one():
    test = random_table(2000, 3, signal=0.8)
    assert train_synthetic_test_real(random_table(1500, 4, signal=0.8), test, 2, seed=0).auc > 0.85
    assert abs(train_synthetic_test_real(random_table(1500, 4), test, 2, seed=0).auc - 0.5) < 0.1


def test_auc_agrees_with_scikit_learn_for_several_classes():
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    train, test = random_table(400, 5, signal=0.6), random_table(300, 6, signal=0.6)
    ours = train_synthetic_test_real(train, test, 1, seed=7)

    def parts(of: Table) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([of.codes[0], of.codes[2]], axis=1).astype(float), of.codes[1]

    model = GradientBoostingClassifier(max_depth=4, random_state=7).fit(*parts(train))
    expected = roc_auc_score(parts(test)[1], model.predict_proba(parts(test)[0]), multi_class="ovo")
    assert ours.auc == pytest.approx(expected, abs=1e-6)


def test_degenerate_training_and_test_tables():
    test = random_table(200, 8, signal=0.5)
    one_class = test.take(test.codes[2] == 0)
    score = train_synthetic_test_real(one_class, test, 2, seed=0)
    assert score.auc == 0.5
    assert "one class" in score.note
    with pytest.raises(Unsupported, match="one class"):
        train_synthetic_test_real(test, one_class, 2, seed=0)
    missing_class = test.take(test.codes[1] != 2)
    assert 0 <= train_synthetic_test_real(missing_class, test, 1, seed=0).auc <= 1


def test_workloads():
    assert all_marginals(4, 2) == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    drawn = random_workload(10, 3, 20, seed=1)
    assert len(set(drawn)) == 20
    assert all(tuple(sorted(set(q))) == q and len(q) == 3 for q in drawn)
    assert random_workload(10, 3, 20, seed=1) == drawn != random_workload(10, 3, 20, seed=2)
    assert set(random_workload(4, 3, 99, seed=0)) == set(all_marginals(4, 3))
    closure = downward_closure([(0, 1, 2), (1, 3)])
    assert set(closure) == {(0,), (1,), (2,), (3,), (0, 1), (0, 2), (1, 2), (1, 3), (0, 1, 2)}
    assert set(maximal(closure)) == {(0, 1, 2), (1, 3)}
    assert weights([(0,), (0, 1), (3,)], [(0, 1, 2), (1, 3)]) == [1.0, 3.0, 1.0]


@given(st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=4).map(lambda c: tuple(sorted(c))), max_size=12))
@settings(deadline=None)
def test_maximal_cliques_and_weights_are_what_their_definitions_say(cliques):
    distinct = list(dict.fromkeys(cliques))
    assert maximal(cliques) == tuple(c for c in distinct if not any(set(c) < set(other) for other in distinct))
    shared = [float(sum(len(set(one) & set(other)) for other in cliques)) for one in distinct]
    assert weights(distinct, cliques) == shared
