"""A classifier over simulated sites, against plain PyTorch, scikit-learn and cases worked by hand."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation.augmentation.rows import append_rows, append_sufficient_classes, hold_out
from fedsynth.evaluation.augmentation.scores import ClassifierScores, TrainingCurve, majority, score
from fedsynth.evaluation.features import labels, public_features
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

torch = pytest.importorskip("torch")

from fedsynth.evaluation.augmentation import training  # noqa: E402  (needs torch)
from fedsynth.evaluation.augmentation.training import (  # noqa: E402
    Examples,
    PublishedMLP,
    SaneMLP,
    StepInput,
    by_rows,
    fedavg,
    fedmix,
    fedprox,
    train,
    uniform_as_in_published_code,
)

SCHEMA = Schema((Numeric("x", -4, 4), Numeric("z", -4, 4), Categorical("c", ("a", "b")), Categorical("y", (0, 1, 2))))
SMALL = SaneMLP(widths=(16,), rounds=4, steps=3, batch=32)


def table(rows: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> Table:
    """Three clusters on a line, told apart by x, with noise in z and c."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, rows)
    x = np.clip(2.5 * (y - 1) + rng.normal(0, 0.7, rows), -4, 4)
    z, c = np.clip(rng.normal(0, 1, rows), -4, 4), np.array(["a", "b"])[rng.integers(0, 2, rows)]
    return encode(SCHEMA, pd.DataFrame({"x": x, "z": z, "c": c, "y": y}))


def rows_of(one: Table) -> Examples:
    return Examples(torch.from_numpy(public_features(one, "y")), torch.from_numpy(labels(one, "y")))


def weights(model) -> list[np.ndarray]:
    return [value.numpy().copy() for value in model.state_dict().values()]


def trained(sites, algorithm, learner, weighting=by_rows, seed=0) -> list[list[np.ndarray]]:
    """Return the global weights before the first round and after each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = learner.network(sites[0].x.shape[1], 3)
        rounds = training.federated_rounds(model, sites, 3, algorithm, learner, weighting, np.random.default_rng(seed))
        return [weights(model), *(weights(model) for _ in rounds)]


def same(one, two) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def distance(one, two) -> float:
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(one, two, strict=True))))


@dataclass(frozen=True)
class LinearSGD:
    """A linear classifier trained by plain gradient descent: its steps can be worked by hand."""

    rounds: int = 3
    learning_rate: float = 0.5

    def network(self, inputs, classes):
        return torch.nn.Sequential(torch.nn.Linear(inputs, classes))

    def optimiser(self, parameters):
        return torch.optim.SGD(parameters, lr=self.learning_rate)

    def batches(self, rows, rng):
        yield torch.arange(rows)


# ---------------------------------------------------------------------------------------------------------------------
# Algorithms


@pytest.mark.parametrize(
    "learner", [SaneMLP(rounds=3, steps=4, batch=32), PublishedMLP(widths=(32, 16), rounds=3, epochs=1)]
)
def test_fedavg_of_one_site_and_one_epoch_is_plain_training_bit_for_bit(learner):
    site = rows_of(table(100, 0))
    ours = trained([site], fedavg(), learner)
    order = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = learner.network(4, 3)
        for step in range(3):
            adam, options = (
                (torch.optim.Adam, {"weight_decay": 1e-5, "lr": 1e-3})
                if isinstance(learner, PublishedMLP)
                else (torch.optim.AdamW, {"weight_decay": 1e-2, "lr": 3e-3})
            )
            optimiser = adam(model.parameters(), fused=True, **options)
            model.train()
            shuffled = torch.from_numpy(order.permutation(100))
            for chosen in shuffled.split(learner.batch):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(site.x[chosen]), site.y[chosen]).backward()
                optimiser.step()
            assert same(weights(model)[:2], ours[step + 1][:2])
            # Counts of batches aside, which are no weights.
            moving = [w for w in weights(model) if w.dtype == np.float32]
            assert same(moving, [w for w in ours[step + 1] if w.dtype == np.float32])


def test_sites_weighted_by_their_rows_take_the_pooled_gradient_step():
    parts = [table(30, 0, (0,)), table(90, 1, (1, 2)), table(60, 2)]
    sites, pooled = [rows_of(part) for part in parts], rows_of(concatenate(parts))
    ours = trained(sites, fedavg(), LinearSGD())
    central = trained([pooled], fedavg(), LinearSGD())
    assert distance(ours[0], central[0]) == 0
    for one, two in zip(ours[1:], central[1:], strict=True):
        assert distance(one, two) < 1e-5
    uniform = trained(sites, fedavg(), LinearSGD(), uniform_as_in_published_code)
    assert distance(uniform[1], central[1]) > 1e-2


def test_weights_average_exactly():
    states = [
        {"w": torch.tensor([1.0, 2.0]), "batches": torch.tensor(7)},
        {"w": torch.tensor([5.0, -2.0]), "batches": torch.tensor(9)},
    ]
    found = training.average(states, by_rows([1, 3]))
    assert found["w"].tolist() == [4.0, -1.0]
    assert found["w"].dtype == torch.float32
    assert found["batches"].item() == 7
    assert training.average(states, uniform_as_in_published_code([1, 3]))["w"].tolist() == [3.0, 0.0]


@pytest.mark.parametrize("learner", [SMALL, PublishedMLP(widths=(32, 16), rounds=2, batch=32)])
def test_fedprox_without_mu_is_fedavg_bit_for_bit(learner):
    sites = [rows_of(table(50, 0, (0, 1))), rows_of(table(40, 1, (2,)))]
    without, plain = trained(sites, fedprox(0.0), learner), trained(sites, fedavg(), learner)
    assert all(same(one, two) for one, two in zip(without, plain, strict=True))
    assert not same(trained(sites, fedprox(0.05), learner)[-1], plain[-1])


def test_a_larger_mu_keeps_sites_nearer_to_the_global_weights():
    sites = [rows_of(table(64, 0, (0,)))]
    learner = replace(SMALL, rounds=1, steps=40, weight_decay=0.0)
    moved = []
    for mu in (0.0, 1.0, 100.0):
        before, after = trained(sites, fedprox(mu), learner)
        moved.append(distance(before, after))
    # The first step knows no distance yet, so that even a huge mu leaves some way.
    assert moved[0] > moved[1] > moved[2] > 0
    assert moved[2] < 0.05 * moved[0]


def test_fedprox_adds_half_mu_times_the_squared_distance():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    batch = rows_of(table(20, 0))
    anchor = torch.nn.utils.parameters_to_vector(model.parameters()).detach() + 0.1
    plain = fedavg().loss(StepInput(model, batch, anchor, None))
    proximal = fedprox(0.4).loss(StepInput(model, batch, anchor, None))
    assert float((proximal - plain).detach()) == pytest.approx(0.2 * 0.01 * 15, rel=1e-4)


def test_fedmix_loss_of_a_linear_model_is_the_one_worked_by_hand():
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(3, 4)), rng.normal(size=3)
    x, y = rng.normal(size=(5, 4)), np.array([0, 1, 2, 1, 0])
    mean_x, mean_y = rng.normal(size=4), np.array([0.2, 0.5, 0.3])
    share = 0.3
    logits = (1 - share) * x @ w.T + b
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.eye(3)[y]
    own = -np.log(p[np.arange(5), y]).mean()
    theirs = -(np.log(p) @ mean_y).mean()
    slope = ((p - truth) @ w @ mean_x).mean()
    model = torch.nn.Sequential(torch.nn.Linear(4, 3)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(w))
        model[0].bias.copy_(torch.from_numpy(b))
    mean = Examples(torch.from_numpy(mean_x)[None], torch.from_numpy(mean_y)[None])
    step = StepInput(model, Examples(torch.from_numpy(x), torch.from_numpy(y)), torch.empty(0), mean)
    expected = (1 - share) * own + share * theirs + share * (1 - share) * slope
    assert float(fedmix(share).loss(step).detach()) == pytest.approx(expected, rel=1e-12)
    assert float(fedmix(0.0).loss(step).detach()) == pytest.approx(float(fedavg().loss(step).detach()), rel=1e-12)


def test_fedmix_is_mixup_to_first_order():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    mean = Examples(torch.randn(1, 4, dtype=torch.float64), torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64))

    def error(share: float) -> float:
        logits = model((1 - share) * x + share * mean.x)
        exact = (1 - share) * torch.nn.functional.cross_entropy(logits, y)
        exact = exact + share * torch.nn.functional.cross_entropy(logits, mean.y.expand(6, -1))
        return abs(float((exact - fedmix(share).loss(StepInput(model, Examples(x, y), torch.empty(0), mean))).detach()))

    assert error(0.02) == pytest.approx(error(0.04) / 4, rel=0.2)  # what is left is of second order


def test_published_means_are_of_so_many_rows_and_no_fewer():
    sites = [rows_of(table(23, 0)), rows_of(table(4, 1)), rows_of(table(10, 2))]
    means = training.published_means(sites, 3, 5, np.random.default_rng(0))
    assert means.x.shape == (6, 4)
    assert means.y.shape == (6, 3)
    shares = means.y.numpy()
    assert np.allclose(shares.sum(axis=1), 1)
    assert np.allclose(np.rint(shares * 5), shares * 5, atol=1e-5)
    whole = training.published_means(sites[2:], 3, 10, np.random.default_rng(0))
    assert np.allclose(whole.x[0].numpy(), sites[2].x.numpy().mean(axis=0), atol=1e-6)
    with pytest.raises(Unsupported, match="lower rows_per_mean"):
        training.published_means(sites[1:2], 3, 5, np.random.default_rng(0))


def test_options_that_cannot_be_are_refused():
    with pytest.raises(InvalidParameter, match="mu"):
        fedprox(-1.0)
    with pytest.raises(InvalidParameter, match="share"):
        fedmix(1.0)
    with pytest.raises(InvalidParameter, match="steps"):
        SaneMLP(steps=0)
    with pytest.raises(InvalidParameter, match="epochs"):
        PublishedMLP(epochs=0)
    with pytest.raises(InvalidParameter, match="share"):
        hold_out([table(10, 0)], 0.0, np.random.default_rng(0))


def test_every_row_is_in_one_batch_and_no_batch_has_a_single_row():
    for rows in (1, 2, 31, 32, 33, 64, 65, 97):
        parts = training.one_pass(rows, 32, np.random.default_rng(rows))
        assert sorted(torch.cat(parts).tolist()) == list(range(rows))
        assert rows == 1 or min(map(len, parts)) > 1
        assert max(map(len, parts)) <= 33


def test_sane_sites_take_as_many_steps_whatever_their_rows():
    for rows in (1, 20, 64, 200):
        parts = list(SaneMLP(steps=7).batches(rows, np.random.default_rng(0)))
        assert len(parts) == 7
        assert {len(part) for part in parts[: rows // 64]} <= {64}
    parts = list(PublishedMLP(epochs=3, batch=10).batches(25, np.random.default_rng(0)))
    assert [len(part) for part in parts] == [10, 10, 5] * 3


# ---------------------------------------------------------------------------------------------------------------------
# Learners and training


def test_the_published_classifier_is_the_paper_s():
    layers = list(PublishedMLP().network(20, 2))
    assert [type(layer).__name__ for layer in layers[:4]] == ["Linear", "BatchNorm1d", "ReLU", "Dropout"]
    assert [layer.out_features for layer in layers if isinstance(layer, torch.nn.Linear)] == [512, 256, 128, 64, 2]
    assert {layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)} == {0.5}
    first, scale = (next(layers[at].parameters()).detach() for at in (0, 1))
    assert float(first.std()) == pytest.approx(0.01, rel=0.05)
    assert float(scale.std()) == pytest.approx(0.02, rel=0.2)
    assert float(scale.mean()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("algorithm", [fedavg(), fedprox(), fedmix()], ids=lambda one: one.name)
def test_a_seed_reproduces_the_course_and_leaves_torch_alone(algorithm):
    sites, test = [table(40, 0, (0, 1)), table(60, 1, (1, 2))], table(100, 9)
    learner = PublishedMLP(widths=(16,), rounds=3, batch=32)
    state = torch.random.get_rng_state()
    one, two, other = (train(sites, test, "y", algorithm=algorithm, learner=learner, seed=seed) for seed in (3, 3, 4))
    assert one == two
    assert one != other
    assert len(one.test) == 3
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("algorithm", [fedavg(), fedprox(), fedmix()], ids=lambda one: one.name)
@pytest.mark.parametrize("learner", [SMALL, PublishedMLP(widths=(16,), rounds=4, batch=32)])
def test_sites_without_rows_or_with_one_class_take_part_as_they_can(algorithm, learner):
    sites = [table(0, 0), table(30, 1, (0,)), table(30, 2, (1,)), table(30, 3, (2,))]
    course = train(sites, table(60, 9), "y", algorithm=algorithm, learner=learner, seed=0)
    assert np.isfinite([astuple(scores) for scores in course.test]).all()
    without = train(sites[1:], table(60, 9), "y", algorithm=algorithm, learner=learner, seed=0)
    assert course == without


def test_where_nobody_has_rows_there_is_nothing_to_train():
    with pytest.raises(Unsupported, match="no site has rows"):
        train([table(0, 0)], table(9, 1), "y", algorithm=fedavg(), learner=SMALL, seed=0)


def test_tables_of_another_schema_are_refused():
    wider = Schema((Numeric("x", -8, 8), *SCHEMA.columns[1:]))
    other = Table(wider, table(9, 1).codes, table(9, 1).numbers)
    for sites, test, held in (
        ([other], table(9, 1), ()),
        ([table(9, 0)], other, ()),
        ([table(9, 0)], table(9, 1), [other]),
    ):
        with pytest.raises(SchemaError, match="agreed one"):
            train(sites, test, "y", algorithm=fedavg(), learner=SMALL, seed=0, held=held)


def test_one_row_is_enough_for_all_but_batchnorm():
    sites = [table(1, 0), table(30, 1)]
    train(sites, table(60, 9), "y", algorithm=fedavg(), learner=SMALL, seed=0)
    with pytest.raises(Unsupported, match="BatchNorm"):
        train(sites, table(60, 9), "y", algorithm=fedavg(), learner=PublishedMLP(rounds=1), seed=0)


def test_a_site_whose_values_nobody_else_has_changes_no_other_s_features():
    common = table(20, 0)
    odd = encode(SCHEMA, pd.DataFrame({"x": [4.0, 4.0], "z": [-4.0, -4.0], "c": ["b", "b"], "y": [2, 2]}))
    together = public_features(concatenate([common, odd]), "y")
    assert np.array_equal(together[:20], public_features(common, "y"))
    assert np.array_equal(together[20:], public_features(odd, "y"))


def test_informative_synthetic_rows_help_a_skewed_split_by_every_algorithm():
    sites = [table(60, 0, (0,)), table(60, 1, (1,)), table(60, 2, (2,))]
    test, synthetic = table(500, 9), table(120, 8)
    learner = SaneMLP(widths=(16,), rounds=8, steps=10, batch=16)
    for algorithm in (fedavg(), fedprox(), fedmix()):
        plain, helped = (
            train(rows, test, "y", algorithm=algorithm, learner=learner, seed=0).last
            for rows in (sites, append_rows(sites, synthetic))
        )
        assert helped.accuracy > plain.accuracy + 0.1
        assert helped.accuracy > 0.85


def test_the_example_of_the_documentation_runs_and_shows_a_gain():
    page = (Path(__file__).parents[3] / "docs" / "augmentation.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(code, "docs/augmentation.md", "exec"), scope)
    rows = scope["append_rows"](scope["sites"], scope["synthetic"])
    plain, helped = (
        train(one, scope["test"], "grade", algorithm=fedavg(), learner=scope["learner"], seed=1)
        for one in (scope["sites"], rows)
    )
    assert helped.last.accuracy > plain.last.accuracy + 0.1
    assert scope["course"].selected.accuracy > scope["majority"](rows, scope["test"], "grade").accuracy + 0.2


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fedsynth.evaluation.augmentation.training")
    with pytest.raises(Unsupported, match=r"pip install 'fedsynth\[deep\]'"):
        importlib.import_module("fedsynth.evaluation.augmentation.training")


# ---------------------------------------------------------------------------------------------------------------------
# Features


def test_features_follow_from_the_public_schema_alone():
    schema = Schema(
        (
            Numeric("even", 0, 10, missing=True),
            Numeric("doubling", 0, 8, edges=(0, 1, 2, 4, 8)),
            Numeric("whole", 0, 2, integer=True),
            Numeric("constant", 3, 3),
            Datetime("when", "2026-01-01", "2026-01-03"),
            Boolean("flag", missing=True),
            Categorical("y", ("n", "p")),
        ),
    )
    frame = pd.DataFrame(
        {
            "even": [0.0, 10.0, 5.0, np.nan],
            "doubling": [0.0, 1.0, 6.0, 8.0],
            "whole": [0, 1, 2, 1],
            "constant": [3.0] * 4,
            "when": ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-02"],
            "flag": [True, False, None, True],
            "y": ["n", "p", "n", "p"],
        }
    )
    found = public_features(encode(schema, frame), "y")
    root = np.sqrt(3)
    expected = [
        [-root, 0, -root, -root, -root, -root, 0, 1, 0],
        [root, 0, -root / 2, 0, -root, 0, 1, 0, 0],
        [0, 0, root * 0.75, root, -root, root, 0, 0, 1],
        [0, 1, root, 0, -root, 0, 0, 1, 0],
    ]
    assert found.dtype == np.float32
    # A column of one value has no place to be; its feature is the same for all rows.
    assert len(np.unique(found[:, 4])) == 1
    varying = [0, 1, 2, 3, 5, 6, 7, 8]
    assert np.allclose(found[:, varying], np.array(expected)[:, varying], atol=1e-6)
    uniform = encode(schema, pd.concat([frame.iloc[:1]] * 1001).assign(even=np.linspace(0, 10, 1001)))
    assert public_features(uniform, "y")[:, 0].mean() == pytest.approx(0, abs=1e-5)
    assert public_features(uniform, "y")[:, 0].var() == pytest.approx(1, abs=0.01)


def test_codes_alone_and_numeric_targets_are_refused():
    bare = Table(SCHEMA, table(5, 0).codes)
    with pytest.raises(Unsupported, match="encode the rows"):
        public_features(bare, "y")
    with pytest.raises(Unsupported, match="encode the rows"):
        append_rows([table(5, 0)], bare)
    with pytest.raises(Unsupported, match="categorical target"):
        labels(table(5, 0), "x")
    lonely = Schema((Categorical("y", (0, 1)),))
    with pytest.raises(Unsupported, match="only column"):
        public_features(encode(lonely, pd.DataFrame({"y": [0, 1]})), "y")


# ---------------------------------------------------------------------------------------------------------------------
# Rows that sites train on


def test_hold_out_splits_each_site_s_rows_and_loses_none():
    sites = [table(50, 0), table(0, 1), table(11, 2)]
    kept, held = hold_out(sites, 0.2, np.random.default_rng(0))
    assert [len(one) for one in held] == [10, 0, 2]
    for site, one, two in zip(sites, kept, held, strict=True):
        assert sorted(concatenate([one, two]).numbers[0]) == sorted(site.numbers[0])


def test_every_site_gets_all_synthetic_rows():
    sites, synthetic = [table(5, 0), table(0, 1)], table(7, 2)
    for site, together in zip(sites, append_rows(sites, synthetic), strict=True):
        assert len(together) == len(site) + 7
        assert np.array_equal(together.numbers[0][len(site) :], synthetic.numbers[0])
    other = Schema((Numeric("x", -4, 5), *SCHEMA.columns[1:]))
    with pytest.raises(SchemaError, match="different schemas"):
        append_rows([Table(other, table(3, 0).codes, table(3, 0).numbers)], synthetic)


def test_the_notebook_s_rule_adds_classes_of_which_there_are_enough():
    def of(counts: tuple[int, int, int]) -> Table:
        whole = table(400, 5)
        y = labels(whole, "y")
        return whole.take(np.concatenate([np.flatnonzero(y == one)[:many] for one, many in enumerate(counts)]))

    sites, synthetic = [of((10, 0, 2)), of((0, 6, 3)), of((1, 1, 1))], of((8, 7, 3))
    found = append_sufficient_classes(sites, synthetic, "y")
    # All sites hold 11, 7, 6. Lacking: (1, 7, 4), (11, 1, 3), (10, 6, 5); there are 8, 7, 3.
    expected = [(18, 7, 2), (0, 13, 6), (1, 8, 1)]
    assert [tuple(np.bincount(labels(one, "y"), minlength=3)) for one in found] == expected


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def test_the_three_ways_of_reporting_are_told_apart():
    test = tuple(
        ClassifierScores(*values) for values in ((0.5, 0.9, 0.1, 0.5), (0.9, 0.2, 0.3, 0.6), (0.6, 0.4, 0.2, 0.4))
    )
    held = tuple(
        ClassifierScores(*values) for values in ((0.2, 0.1, 0.9, 0.3), (0.1, 0.8, 0.9, 0.2), (0.3, 0.8, 0.1, 0.3))
    )
    course = TrainingCurve(test, held)
    assert course.last == ClassifierScores(0.6, 0.4, 0.2, 0.4)
    assert course.selected == ClassifierScores(0.6, 0.2, 0.1, 0.5)
    assert course.published_maximum_over_test_rounds == ClassifierScores(0.9, 0.9, 0.3, 0.6)
    with pytest.raises(Unsupported, match="held out"):
        TrainingCurve(test).selected  # noqa: B018  (the property raises)


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_are_scikit_learn_s(classes):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(classes)
    truth = rng.integers(0, classes, 200)
    probability = np.round(rng.dirichlet(np.ones(classes), 200) + 0.3 * np.eye(classes)[truth], 1)  # with ties
    probability /= probability.sum(axis=1, keepdims=True)
    found, guess = score(truth, probability), probability.argmax(axis=1)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(truth, guess))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(truth, guess, average="macro"))
    assert found.weighted_f1 == pytest.approx(metrics.f1_score(truth, guess, average="weighted"))
    expected = (
        metrics.roc_auc_score(truth, probability[:, 1])
        if classes == 2
        else metrics.roc_auc_score(truth, probability, multi_class="ovr", average="macro")
    )
    assert found.auc == pytest.approx(expected)


def test_classes_that_no_row_holds_change_no_score():
    truth = np.array([0, 0, 2, 2, 2])
    probability = np.array([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.2, 0.1, 0.7], [0.3, 0.1, 0.6], [0.5, 0.1, 0.4]])
    found = score(truth, probability)
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.macro_f1 == pytest.approx((0.5 + 0.8) / 2)
    assert found.auc == pytest.approx(1.0)  # of class 2, as of two classes
    with pytest.raises(Unsupported, match="a single class"):
        score(np.zeros(3, dtype=np.int64), probability[:3])
    with pytest.raises(InvalidParameter, match="diverged"):
        score(truth, np.where(probability > 0.6, np.nan, probability))


def test_the_majority_is_a_floor():
    test = table(300, 9)
    found = majority([table(50, 0, (1,)), table(20, 1, (0, 2))], test, "y")
    share = float((labels(test, "y") == 1).mean())
    assert found.accuracy == pytest.approx(share)
    assert found.auc == pytest.approx(0.5)
    assert found.macro_f1 == pytest.approx(2 * share / (1 + share) / 3)
