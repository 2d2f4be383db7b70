"""Diffusion over encoded rows: the published equations, clipped gradients, rows that are like those it learnt from."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from scipy.special import ndtr, ndtri  # noqa: E402  (with PyTorch, as all below)

from fedsynth.deep import diffusion  # noqa: E402
from fedsynth.deep.diffusion import Diffusion, TabularDiffusion, ddim, ddpm, draw, time_features  # noqa: E402
from fedsynth.deep.dpsgd import CHUNK, Tape, clipped_sum, flattened, split  # noqa: E402
from fedsynth.deep.encoders import BatchLayout, EncodedBatch, Encoder, codes_of, encode_rows  # noqa: E402
from fedsynth.deep.networks import size_of  # noqa: E402
from fedsynth.encoding import encode, problems  # noqa: E402
from fedsynth.errors import FedsynthError, InvalidParameter  # noqa: E402
from fedsynth.models.adaptive_bins import AdaptiveBins  # noqa: E402
from fedsynth.models.conditions import Is  # noqa: E402
from fedsynth.models.synthesizer import Synthesizer, load  # noqa: E402
from fedsynth.schema import Categorical, Numeric, Schema  # noqa: E402

LAYOUT = BatchLayout((5, 3, 1, 4), (2, 3))  # two categories, a number in one piece, a number of four modes
BOTH = pytest.mark.parametrize("label", [-1, 0])


def some_rows(rows: int, seed: int = 0) -> EncodedBatch:
    rng = np.random.default_rng(seed)
    tokens = np.stack([rng.integers(0, many, rows) for many in LAYOUT.tokens], axis=1)
    return EncodedBatch(tokens, rng.random((rows, len(LAYOUT.numbers))))


# ---------------------------------------------------------------------------------------------------------------------
# FinDiff, written out


class Published(torch.nn.Module):  # type: ignore[name-defined, misc]
    """FinDiff's network: time, label and row are projected, added, and go through a multilayer perceptron."""

    def __init__(self, size: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        nn = torch.nn
        self.time = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
        self.row = nn.Sequential(nn.Linear(size, 64), nn.SiLU(), nn.Linear(64, 64))
        layers = []
        for inputs in (64, *[width] * (depth - 1)):
            layers += [nn.Linear(inputs, width), nn.LeakyReLU(0.4)]
        self.trunk = nn.Sequential(*layers, nn.Linear(width, size))
        self.label = nn.Embedding(classes, 64) if classes else None

    def forward(self, x, times, labels):
        angles = times[:, None].double() * torch.exp(-math.log(10_000) * torch.arange(32, dtype=torch.float64) / 32)
        features = torch.cat([angles.cos(), angles.sin()], dim=1).to(x.dtype)
        hidden = self.row(x) + self.time(features)
        return self.trunk(hidden if self.label is None else hidden + self.label(labels))


def published(network: Diffusion, weights) -> Published:
    classes = LAYOUT.tokens[network.label] if network.label >= 0 else 0
    module = Published(network.dimensions(LAYOUT), network.width, network.depth, classes)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), module.parameters())
    return module


def schedule(network: Diffusion):
    betas = np.linspace(1e-4, 0.02, network.steps) * (1000 / network.steps if network.scaled else 1)
    return betas, np.cumprod(1 - betas)


def drawn_seed(seed: int) -> int:
    return int(np.random.default_rng(seed).integers(1 << 63))


def test_of_the_scaled_schedule_nothing_is_left_at_the_end_and_of_the_other_something():
    assert Diffusion().signal[-1] == pytest.approx(3.8e-5, rel=0.01)
    assert Diffusion(scaled=False).signal[-1] == pytest.approx(6.4e-3, rel=0.01)
    for network in (Diffusion(), Diffusion(scaled=False), Diffusion(steps=1000)):
        np.testing.assert_allclose(network.variances, schedule(network)[0], rtol=1e-12)
    assert np.isfinite(Diffusion(steps=2).signal).all()
    assert (Diffusion(steps=2).signal > 0).all()


@BOTH
def test_forward_pass_and_loss_are_the_published_ones(label):
    network = Diffusion(width=40, depth=3, steps=100, label=label, predicts="noise")
    weights = network.initial(LAYOUT, np.random.default_rng(1))
    assert weights.dtype == np.float32
    assert weights.shape == (size_of(network.shapes(LAYOUT)),)
    module, batch = published(network, weights), some_rows(64)
    table = network.vectors(LAYOUT)
    # each column's own vectors, then the scores
    starts = {1: 0, 3: 3, 0: 7} if label < 0 else {1: 0, 3: 3}  # columns of few tokens first
    x0 = np.concatenate([table[start + batch.tokens[:, at]] for at, start in starts.items()], axis=1)
    x0 = np.concatenate([x0, np.clip(ndtri(batch.places), -5.2, 5.2)], axis=1)

    rng = np.random.default_rng(2)
    times = torch.from_numpy(rng.integers(0, 100, 64))
    eps = torch.from_numpy(rng.standard_normal(x0.shape, dtype=np.float32))
    signal = torch.from_numpy(schedule(network)[1])[times][:, None]
    noisy = (signal.sqrt() * torch.from_numpy(x0) + (1 - signal).sqrt() * eps).float()
    labels = torch.from_numpy(batch.tokens[:, 0])
    expected = (module(noisy, times, labels) - eps).square().mean(1).detach()

    losses = network.losses(LAYOUT, batch, np.random.default_rng(2))
    found = losses(Tape(split(weights, network.shapes(LAYOUT))), slice(None))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    seen = network.outputs(
        Tape(split(weights, network.shapes(LAYOUT))),
        noisy,
        torch.from_numpy(time_features(100)[times.numpy()]),
        labels if label >= 0 else None,
    )
    torch.testing.assert_close(seen, module(noisy, times, labels), rtol=1e-6, atol=1e-6)


@BOTH
def test_a_network_that_predicts_rows_is_judged_column_by_column_and_drawn_by_expected_points(label):
    network = Diffusion(width=24, depth=2, steps=50, label=label, embedding=3)
    batch, weights = some_rows(64), network.initial(LAYOUT, np.random.default_rng(1))
    tape = Tape(split(weights, network.shapes(LAYOUT)))
    columns = {1: (0, 3), 3: (3, 7), 0: (7, 12)} if label < 0 else {1: (0, 3), 3: (3, 7)}
    ends, signal = max(end for _, end in columns.values()), schedule(network)[1]
    table = torch.from_numpy(network.vectors(LAYOUT).copy())

    def told(x, times, labels):
        features = torch.from_numpy(time_features(50)[times])
        return network.outputs(tape, x, features, torch.from_numpy(labels) if label >= 0 else None)

    rng = np.random.default_rng(2)
    times = rng.integers(0, 50, 64)
    points = torch.from_numpy(network.points(LAYOUT, batch))
    eps = torch.from_numpy(rng.standard_normal(points.shape, dtype=np.float32))
    share = torch.from_numpy(signal[times, None]).float()
    outputs = told(share.sqrt() * points + (1 - share).sqrt() * eps, times, batch.tokens[:, 0])
    lost = (outputs[:, ends:] - points[:, -2:]).square().sum(1)
    for at, (begin, end) in columns.items():
        probability = torch.softmax(outputs[:, begin:end], 1)[torch.arange(64), torch.from_numpy(batch.tokens[:, at])]
        lost = lost - probability.log()
    found = network.losses(LAYOUT, batch, np.random.default_rng(2))(tape, slice(None))
    torch.testing.assert_close(found, lost / (len(columns) + 2), rtol=1e-5, atol=1e-5)

    labels = rng.integers(0, 5, 30)
    given = labels if label >= 0 else 30
    path = ddim(network, 10)
    drawn = draw(network, LAYOUT, weights, path, given, np.random.default_rng(3), device="cpu", precision="float32")
    x = torch.randn((30, points.shape[1]), generator=torch.Generator().manual_seed(drawn_seed(3)))
    for at, step in enumerate(path):
        outputs = told(x, np.full(30, step.time), labels)
        parts = [torch.softmax(outputs[:, b:e], 1) @ table[b:e] for b, e in columns.values()]
        clean = torch.cat([*parts, outputs[:, ends:]], 1)
        noise = (x - math.sqrt(signal[step.time]) * clean) / math.sqrt(1 - signal[step.time])
        then = signal[path[at + 1].time] if at + 1 < len(path) else 1.0
        x = math.sqrt(then) * clean + math.sqrt(1 - then) * noise
    np.testing.assert_allclose(drawn.places, ndtr(x[:, -2:].numpy()), atol=1e-5)


def test_tokens_are_drawn_with_the_probabilities_that_the_network_gives():
    network = Diffusion(width=8, depth=1, steps=10)
    layout, rows = BatchLayout((4,), ()), 40_000
    shapes = network.shapes(layout)
    parts = [np.zeros(shape, dtype=np.float32) for shape in shapes]
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    parts[-1][:] = np.log(shares)  # the last bias: whatever the point, these are the logits
    weights = np.concatenate([part.ravel() for part in parts])
    found = draw(network, layout, weights, ddim(network, 5), rows, np.random.default_rng(0), device="cpu")
    counts = np.bincount(found.tokens[:, 0], minlength=4)
    assert (np.abs(counts - rows * shares) < 4.5 * np.sqrt(rows * shares * (1 - shares))).all()


def test_places_at_the_very_ends_have_scores():
    batch = EncodedBatch(np.zeros((2, 4), dtype=np.int64), np.array([[0.0, 1.0], [1.0, 0.5]]))
    points = Diffusion().points(LAYOUT, batch)
    np.testing.assert_array_equal(points[:, -2:], np.array([[-5.2, 5.2], [5.2, 0.0]], dtype=np.float32))


def test_the_highest_place_of_the_last_of_many_tokens_stays_in_it():
    layout = BatchLayout((2**14,), (0,))
    (codes,) = codes_of(EncodedBatch(np.array([[2**14 - 1]]), np.array([[1.0]])), layout)
    assert np.floor(codes[0]) == 2**14 - 1


@BOTH
@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_rows_are_drawn_as_published(sampler, label):
    network = Diffusion(width=24, depth=2, steps=50, label=label, embedding=3, predicts="noise")
    weights = network.initial(LAYOUT, np.random.default_rng(1))
    module, (betas, signal) = published(network, weights), schedule(network)
    labels = np.random.default_rng(5).integers(0, 5, 30)
    path = ddpm(network) if sampler == "ddpm" else ddim(network, 10)
    given = labels if label >= 0 else 30
    found = draw(network, LAYOUT, weights, path, given, np.random.default_rng(3), device="cpu", precision="float32")

    chance = torch.Generator().manual_seed(drawn_seed(3))
    size = network.dimensions(LAYOUT)
    x = torch.randn((30, size), generator=chance)
    times = np.arange(50)[::-1] if sampler == "ddpm" else np.rint(np.linspace(49, 0, 10)).astype(int)
    for at, t in enumerate(times):
        eps = module(x, torch.full((30,), int(t)), torch.from_numpy(labels)).detach()
        if sampler == "ddpm":
            x = (x - betas[t] / math.sqrt(1 - signal[t]) * eps) / math.sqrt(1 - betas[t])
            if t > 0:
                x = x + math.sqrt(betas[t]) * torch.randn((30, size), generator=chance)
        else:
            then = signal[times[at + 1]] if at + 1 < len(times) else 1.0
            clean = (x - math.sqrt(1 - signal[t]) * eps) / math.sqrt(signal[t])
            x = math.sqrt(then) * clean + math.sqrt(1 - then) * eps
    np.testing.assert_allclose(found.places, ndtr(x[:, -2:].numpy()), atol=1e-5)
    starts = {1: (0, 3), 3: (3, 7), 0: (7, 12)} if label < 0 else {1: (0, 3), 3: (3, 7)}
    table = torch.from_numpy(network.vectors(LAYOUT).copy())
    for number, (column, (begin, end)) in enumerate(starts.items()):
        distances = torch.cdist(x[:, 3 * number : 3 * number + 3], table[begin:end])
        assert (found.tokens[:, column] == distances.argmin(1).numpy()).mean() >= 0.95  # ties of float32
    assert (found.tokens[:, 2] == 0).all()
    if label >= 0:
        np.testing.assert_array_equal(found.tokens[:, 0], labels)


def test_a_step_is_the_published_one_to_1e_6():
    network = Diffusion(steps=50)
    betas, signal = schedule(network)
    x, eps = np.random.default_rng(0).normal(size=(2, 100))
    for step in ddpm(network):
        mean = (x - betas[step.time] / np.sqrt(1 - signal[step.time]) * eps) / np.sqrt(1 - betas[step.time])
        np.testing.assert_allclose(step.keep * x + step.remove * eps, mean, rtol=1e-6)
        assert step.add == pytest.approx(math.sqrt(betas[step.time]) if step.time else 0.0, rel=1e-12)
    path = ddim(network, 7)
    assert [step.time for step in path] == [49, 41, 33, 24, 16, 8, 0]
    for step, then in zip(path, [*[signal[one.time] for one in path[1:]], 1.0], strict=True):
        now = signal[step.time]
        clean = (x - np.sqrt(1 - now) * eps) / np.sqrt(now)
        np.testing.assert_allclose(
            step.keep * x + step.remove * eps, np.sqrt(then) * clean + np.sqrt(1 - then) * eps, rtol=1e-6, atol=1e-9
        )
    assert [step.time for step in ddim(network, 1)] == [49]
    assert len(ddim(network, 50)) == 50


def test_token_vectors_are_standard_normal_and_come_from_the_seed_alone():
    layout = BatchLayout((3000, 2000), ())
    table = Diffusion(embedding=4).vectors(layout)
    assert table.shape == (5000, 4)
    assert table.mean() == pytest.approx(0, abs=0.03)
    assert table.std() == pytest.approx(1, abs=0.03)
    assert not np.array_equal(table, Diffusion(embedding=4, seed=1).vectors(layout))
    # on every machine, with every version: of which both ends of a federation have their own
    np.testing.assert_allclose(
        Diffusion().vectors(BatchLayout((2,), ())), ndtri(((PHILOX >> 11) + 0.5) / 2**53).reshape(2, 2), rtol=1e-6
    )


PHILOX = np.random.Philox(key=0).random_raw(4)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients


def gradients(network: Diffusion, losses, parameters, rows: int):
    """Return each row's gradient by PyTorch, one row after the other, flat and in float64."""
    found = []
    for at in range(rows):
        held = [one.detach().clone().requires_grad_() for one in parameters]
        loss = losses(Tape(held), torch.tensor([at]))
        found.append(np.concatenate([one.numpy().ravel() for one in torch.autograd.grad(loss.sum(), held)]))
    return np.array(found, dtype=np.float64)


def clipped(rows, clip):
    return (rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]).sum(0)


@BOTH
def test_clipped_sums_are_those_of_single_rows(label):
    network = Diffusion(width=32, depth=3, steps=100, label=label)
    parameters = split(network.initial(LAYOUT, np.random.default_rng(1)), network.shapes(LAYOUT))
    losses = network.losses(LAYOUT, some_rows(40), np.random.default_rng(2))
    single = gradients(network, losses, parameters, 40)
    for one in (held := [one.detach().clone() for one in parameters]):
        one.requires_grad_()
    losses(Tape(held), torch.arange(40)).sum().backward()
    whole = np.concatenate([one.grad.numpy().ravel() for one in held])
    huge = clipped_sum(losses, parameters, 40, 1e9)
    assert np.linalg.norm(huge - whole) <= 1e-6 * np.linalg.norm(whole)
    small = float(np.median(np.linalg.norm(single, axis=1)))
    for clip in (small, small / 100):
        found = clipped_sum(losses, parameters, 40, clip)
        assert np.linalg.norm(found - clipped(single, clip)) <= 1e-6 * clip * 40
    if label >= 0:
        assert np.abs(huge[-5 * 64 :]).min() > 0  # the table of labels learns


@pytest.mark.parametrize(  # one dimension is a product with a vector; kernels may treat two and three by themselves
    "columns", [LAYOUT, BatchLayout((1,), (0,)), BatchLayout((2,), ()), BatchLayout((1, 1, 1), (0, 1, 2))]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_rows_gradient_depends_on_that_row_alone_bit_for_bit(columns, threads):
    network = Diffusion(width=255, depth=2, steps=100)
    shapes = network.shapes(columns)
    parameters = split(network.initial(columns, np.random.default_rng(1)) * 3, shapes)
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.integers(0, many, CHUNK) for many in columns.tokens], axis=1)
    losses = network.losses(columns, EncodedBatch(tokens, rng.random((CHUNK, len(columns.numbers)))), rng)

    def slopes(chosen):
        tape = Tape(parameters, per_row=True)
        loss = losses(tape, chosen)
        outputs = torch.autograd.grad(loss.sum(), [z for _, _, z in tape.linears])
        return [loss.detach(), *outputs, *(a for _, a, _ in tape.linears)]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        everywhere = slopes(torch.arange(CHUNK))
        for order in (torch.arange(CHUNK).roll(1), torch.arange(CHUNK).flip(0)):
            for one, other in zip(everywhere, slopes(order), strict=True):
                assert torch.equal(one[order], other)
        alone = slopes(torch.full((CHUNK,), 7))
        for one, other in zip(everywhere, alone, strict=True):
            assert torch.equal(one[7].expand_as(other), other)
    finally:
        torch.set_num_threads(before)


@BOTH
@pytest.mark.parametrize("scale", [1e3, 1e12, 1e-30])
def test_hostile_weights_move_a_sum_by_the_clip_at_most(scale, label):
    network = Diffusion(width=16, depth=3, steps=100, label=label)
    rng = np.random.default_rng(4)
    weights = (rng.standard_normal(size_of(network.shapes(LAYOUT))) * scale).astype(np.float32)
    parameters = split(weights, network.shapes(LAYOUT))
    losses = network.losses(LAYOUT, some_rows(CHUNK + 3), np.random.default_rng(2))
    clip = 0.5

    def without(gone):
        kept = torch.tensor([at for at in range(CHUNK + 3) if at != gone])
        return clipped_sum(lambda tape, chosen: losses(tape, kept[chosen]), parameters, CHUNK + 2, clip)

    found = clipped_sum(losses, parameters, CHUNK + 3, clip)
    assert np.isfinite(found).all()
    for gone in (0, 100, CHUNK - 1, CHUNK + 2):
        assert np.linalg.norm(found - without(gone)) <= clip * (1 + 2**-5)


def test_rows_that_fill_a_chunk_add_nothing():
    network = Diffusion(width=16, depth=1)
    parameters = split(network.initial(LAYOUT, np.random.default_rng(1)), network.shapes(LAYOUT))
    losses = network.losses(LAYOUT, some_rows(8), np.random.default_rng(2))
    first = clipped_sum(losses, parameters, 1, 1.0)
    assert np.linalg.norm(first) <= 1 + 1e-6
    np.testing.assert_allclose(
        clipped_sum(losses, parameters, 3, 1.0), clipped(gradients(network, losses, parameters, 3), 1.0), atol=1e-6
    )
    assert not clipped_sum(losses, parameters, 0, 1.0).any()


# ---------------------------------------------------------------------------------------------------------------------
# What it learns


SCHEMA = Schema((Categorical("a", ("w", "x", "y", "z")), Categorical("b", ("p", "q", "r")), Numeric("n", 0, 100)))
ROWS = 4000


def toy_frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a = rng.choice(4, rows, p=[0.4, 0.3, 0.2, 0.1])
    b = np.where(rng.random(rows) < 0.85, a % 3, rng.integers(0, 3, rows))
    n = np.clip(20 + 20 * a + rng.normal(0, 6, rows), 0, 100)
    return pd.DataFrame({"a": np.array(list("wxyz"))[a], "b": np.array(list("pqr"))[b], "n": n})


def toy_axes(table) -> tuple[AdaptiveBins, ...]:
    found = []
    for at, column in enumerate(SCHEMA.stored):
        cells = AdaptiveBins.of(column)
        index = cells.axis(at).places(table.codes[at], table.numbers.get(at))
        cells = replace(cells, counts=np.bincount(index, minlength=len(cells.groups)).astype(float))
        found.append(cells if cells.grid is None else cells.grouped(0, 1))
    return tuple(found)


@cache
def trained(label: int) -> Synthesizer:
    table = encode(SCHEMA, toy_frame(ROWS, 0))
    axes = toy_axes(table)
    encoders = [Encoder.of(one) for one in axes]
    layout, batch = BatchLayout.of(encoders), encode_rows(table, encoders)
    network, rng = Diffusion(width=64, depth=2, label=label), np.random.default_rng(0)
    parameters = [one.requires_grad_() for one in split(network.initial(layout, rng), network.shapes(layout))]
    optimiser = torch.optim.Adam(parameters, lr=5e-3, fused=True)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 400)
    for _ in range(400):
        some = rng.integers(0, ROWS, 256)
        losses = network.losses(layout, EncodedBatch(batch.tokens[some], batch.places[some]), rng)
        optimiser.zero_grad()
        losses(Tape(parameters), slice(None)).mean().backward()
        optimiser.step()
        rates.step()
    shares = axes[label].counts / ROWS if label >= 0 else np.zeros(0)
    return Synthesizer(SCHEMA, axes, TabularDiffusion(network, layout, flattened(parameters), float(ROWS), shares))


@pytest.fixture(scope="module", params=[-1, 0])
def fitted(request) -> Synthesizer:
    return trained(request.param)


@pytest.fixture(scope="module")
def labelled() -> Synthesizer:

    return trained(0)


def distances(frame: pd.DataFrame) -> dict[str, float]:
    """Return how far a frame is from fresh rows: the table of a and b, the correlation of a and n, and n itself."""
    fresh = toy_frame(20_000, 1)
    tables = [pd.crosstab(one["a"], one["b"], normalize=True) for one in (frame, fresh)]
    tables = [one.reindex(index=list("wxyz"), columns=list("pqr"), fill_value=0) for one in tables]
    correlations = [np.corrcoef(one["a"].map("wxyz".index), one["n"])[0, 1] for one in (frame, fresh)]
    points = np.linspace(0, 100, 101)
    shares = [np.searchsorted(np.sort(one["n"]), points) / len(one) for one in (frame, fresh)]
    return {
        "table": float((tables[0] - tables[1]).abs().to_numpy().sum() / 2),
        "correlation": abs(correlations[0] - correlations[1]),
        "number": float(np.abs(shares[0] - shares[1]).max()),
    }


def test_it_learns_how_columns_depend(fitted):
    found = distances(fitted.sample(4000, 3))
    assert found["table"] < 0.13  # independent columns: 0.37
    assert found["correlation"] < 0.06  # 0.96 without
    assert found["number"] < 0.12


def test_25_steps_without_fresh_noise_are_about_as_good_as_500_with(fitted):
    slow = replace(fitted, model=replace(fitted.model, sampler="ddpm"))
    for name, far in distances(slow.sample(4000, 3)).items():
        assert distances(fitted.sample(4000, 3))[name] <= far + 0.08


def test_labels_are_as_frequent_as_their_shares_to_one_row(labelled):
    found = np.bincount(labelled.model.sample(1000, np.random.default_rng(0))[0], minlength=4)
    assert np.abs(found - 1000 * labelled.model.label_shares).max() <= 1


def test_the_same_seed_gives_the_same_rows_across_chunks_and_others_do_not(labelled, monkeypatch):
    monkeypatch.setattr(diffusion, "CHUNK", 64)
    first = labelled.sample(200, 3)
    pd.testing.assert_frame_equal(first, labelled.sample(200, 3))
    assert not first.equals(labelled.sample(200, 4))
    assert first.iloc[:64]["n"].tolist() != first.iloc[64:128]["n"].tolist()


def test_saved_and_loaded_it_samples_the_same_rows(fitted, tmp_path):
    assert isinstance(fitted.model, TabularDiffusion)
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    assert isinstance(again.model, TabularDiffusion)
    assert again.model.network == fitted.model.network
    assert again.model.layout == fitted.model.layout
    np.testing.assert_array_equal(again.model.weights, fitted.model.weights)
    np.testing.assert_array_equal(again.model.label_shares, fitted.model.label_shares)
    pd.testing.assert_frame_equal(again.sample(300, 3), fitted.sample(300, 3))
    assert len(again.sample(seed=0)) == ROWS
    assert problems(SCHEMA, again.sample(500, 0)) == []


def test_evidence_on_the_label_is_exact(labelled):
    drawn = labelled.sample(500, 0, {"a": "z"})
    assert (drawn["a"] == "z").all()
    fresh = toy_frame(20_000, 1)
    assert drawn["n"].mean() == pytest.approx(fresh[fresh["a"] == "z"]["n"].mean(), abs=6)
    evidence, _ = labelled.axes[0].given(SCHEMA.stored[0], Is((3,)))
    sampler = labelled.model.given({0: evidence})
    assert isinstance(sampler, TabularDiffusion)
    np.testing.assert_array_equal(sampler.label_shares, [0, 0, 0, 1])
    unknown = replace(labelled.model, label_shares=np.array([0.5, 0.5, 0.0, 0.0]))
    assert unknown.given({0: evidence}) is None


def test_other_evidence_keeps_rows_that_meet_it(fitted):
    drawn = fitted.sample(300, 0, {"n": (70, 90), "a": "z"})
    assert (drawn["a"] == "z").all()
    assert drawn["n"].between(70, 90).all()


def test_of_a_number_in_one_piece_evidence_says_where_it_lies(fitted):
    free = fitted.sample(20_000, 1)
    kept = free[free["n"].between(30, 50)]
    drawn = fitted.sample(3000, 2, {"n": (30, 50)})
    assert drawn["n"].between(30, 50).all()
    for value in "wxyz":  # not as in all rows
        assert (drawn["a"] == value).mean() == pytest.approx((kept["a"] == value).mean(), abs=0.05)
    assert drawn["n"].mean() == pytest.approx(kept["n"].mean(), abs=0.6)
    with pytest.raises(InvalidParameter, match="no rows"):
        fitted.sample(10, 0, {"n": 33.3})


def test_balanced_rows_have_every_label_alike(labelled):
    assert labelled.sample_balanced("a", 400, 0)["a"].value_counts().tolist() == [100] * 4


def test_weights_that_blow_up_still_give_rows():
    network = Diffusion(width=16, depth=2, steps=50)
    weights = np.full(size_of(network.shapes(LAYOUT)), 1e30, dtype=np.float32)
    model = TabularDiffusion(network, LAYOUT, weights, 10.0, np.zeros(0))
    for codes, many in zip(model.sample(20, np.random.default_rng(0)), LAYOUT.tokens, strict=True):
        assert (np.floor(codes) >= 0).all()
        assert (np.floor(codes) < many).all()


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


def test_networks_out_of_bounds_are_refused():
    for wrong in ({"width": 4}, {"depth": 9}, {"steps": 1}, {"embedding": 17}, {"label": -2}, {"seed": -1}, {"x": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"type": "diffusion", **wrong}, Diffusion)
    assert msgspec.convert(msgspec.to_builtins(Diffusion(width=8)), Diffusion) == Diffusion(width=8)


def test_layouts_without_anything_to_learn_are_refused():
    with pytest.raises(InvalidParameter, match="count from 0"):
        Diffusion(label=4).shapes(LAYOUT)
    with pytest.raises(InvalidParameter, match="nothing to train on"):
        Diffusion(label=0).shapes(BatchLayout((5, 1), ()))


def test_models_that_do_not_fit_together_are_refused(labelled, tmp_path):
    model = labelled.model
    for wrong, match in (
        ({"weights": model.weights[1:]}, "finite float32 weights"),
        ({"weights": model.weights.astype(np.float64)}, "finite float32 weights"),
        ({"label_shares": np.zeros(0)}, "4 non-negative shares"),
        ({"label_shares": np.array([2.0, -1, 0, 0])}, "4 non-negative shares"),
        ({"sampler": "euler"}, "sampler must be"),
        ({"steps": 501}, "sampler must be"),
    ):
        with pytest.raises(InvalidParameter, match=match):
            replace(model, **wrong)
    meta, arrays = model.to_arrays()
    with pytest.raises(InvalidParameter, match="its head does not fit"):
        TabularDiffusion.from_arrays({**meta, "network": {"type": "diffusion", "width": 1}}, arrays)
    assert issubclass(InvalidParameter, FedsynthError)


def test_without_pytorch_the_module_loads_and_says_what_to_install():
    code = (
        "import sys, numpy as np; sys.modules['torch'] = None\n"
        "import fedsynth.models.synthesizer\n"
        "from fedsynth.deep.diffusion import Diffusion, TabularDiffusion, BatchLayout\n"
        "n, l = Diffusion(width=8, depth=1), BatchLayout((2,), ())\n"
        "m = TabularDiffusion(n, l, n.initial(l, np.random.default_rng(0)), 1.0, np.zeros(0))\n"
        "try: m.sample(1, np.random.default_rng(0))\n"
        "except fedsynth.errors.Unsupported as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fedsynth[deep]'" in done.stdout
