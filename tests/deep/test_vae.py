"""The autoencoder: minorities that are drawn, TVAE's loss, sums that bound one row, and a toy table learned."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from tests.models.row_sums import HOSTILE, LAYOUT, batch_of, check_alone, check_hostile, check_sums, started  # noqa: E402
from tests.models.toy_table import ROWS, SCHEMA, cells_of, encoded, portrait, toy_frame  # noqa: E402

from fedsynth.deep.dpsgd import Tape, clipped_sum, flattened, split  # noqa: E402
from fedsynth.deep.encoders import BatchLayout, EncodedBatch, encode_rows  # noqa: E402
from fedsynth.deep.networks import size_of  # noqa: E402
from fedsynth.deep.vae import AutoEncoder, TabularVAE  # noqa: E402
from fedsynth.encoding import encode, problems  # noqa: E402
from fedsynth.errors import InvalidParameter, Unsupported  # noqa: E402  (needs torch)
from fedsynth.models.evidence import CodeEvidence  # noqa: E402
from fedsynth.models.synthesizer import Synthesizer, load  # noqa: E402

SMALL = AutoEncoder((16, 12), 6)


def trained(network: AutoEncoder, layout: BatchLayout, rows: EncodedBatch, steps: int, seed: int = 0) -> np.ndarray:
    """Return weights after ``steps`` of Adam on batches of 200 rows."""
    rng = np.random.default_rng(seed)
    parameters = [one.requires_grad_() for one in split(network.initial(layout, rng), network.shapes(layout))]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(steps):
        at = rng.integers(0, len(rows.tokens), 200)
        losses = network.losses(layout, EncodedBatch(rows.tokens[at], rows.places[at]), rng)
        optimiser.zero_grad()
        losses(Tape(parameters), slice(None)).mean().backward()
        optimiser.step()
    return flattened(parameters)


# ---------------------------------------------------------------------------------------------------------------------
# Decoding


def test_a_minority_that_the_latent_does_not_tell_is_drawn_and_argmax_loses_it():
    rng = np.random.default_rng(0)
    layout = BatchLayout((2, 2), ())
    tokens = np.stack([rng.random(2000) < 0.1, rng.random(2000) < 0.5], axis=1).astype(np.int64)
    network = AutoEncoder((16,), 2, factor=1.0)
    weights = trained(network, layout, EncodedBatch(tokens, np.zeros((2000, 0))), 150)
    drawn = TabularVAE(network, layout, weights, 2000.0).sample(4000, rng)
    likeliest = TabularVAE(network, layout, weights, 2000.0, "argmax").sample(4000, rng)
    assert drawn[0].mean() == pytest.approx(0.1, abs=0.03)
    assert likeliest[0].max() == 0
    assert drawn[1].mean() == pytest.approx(0.5, abs=0.06)


def test_another_decoding_and_weights_of_another_network_are_refused():
    weights = SMALL.initial(LAYOUT, np.random.default_rng(0))
    with pytest.raises(InvalidParameter, match="decoding"):
        TabularVAE(SMALL, LAYOUT, weights, 10.0, "best")  # type: ignore[arg-type]
    wrongs: list[np.ndarray] = [weights[1:], np.full_like(weights, np.nan), weights.astype(np.float64)]
    for wrong in wrongs:
        with pytest.raises(InvalidParameter, match="weights"):
            TabularVAE(SMALL, LAYOUT, wrong, 10.0)


# ---------------------------------------------------------------------------------------------------------------------
# The loss


def test_the_loss_is_that_of_tvae_written_with_layers_of_pytorch():
    rows = 50
    losses, parameters = started(SMALL, rows)
    width = 3 + 3 + 5 + 2 + 4
    nn = torch.nn
    encoder = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU())
    mean_head, log_variance_head = nn.Linear(12, 6), nn.Linear(12, 6)
    decoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, width))
    modules = nn.ModuleList([encoder, mean_head, log_variance_head, decoder])
    assert [one.shape for one in modules.parameters()] == [one.shape for one in parameters]
    nn.utils.vector_to_parameters(torch.cat([one.reshape(-1) for one in parameters]), modules.parameters())
    modules.double()

    batch = batch_of(rows)
    noise = torch.from_numpy(np.random.default_rng(2).standard_normal((rows, 6), dtype=np.float32)).double()
    blocks = [nn.functional.one_hot(torch.from_numpy(batch.tokens[:, at]), LAYOUT.tokens[at]) for at in (0, 2, 3, 4)]
    x = torch.cat([torch.from_numpy(2 * batch.places - 1), *blocks], dim=1)
    with torch.no_grad():
        inner = encoder(x)
        mean, log_variance = mean_head(inner), log_variance_head(inner)
        reconstructed = decoder(mean + noise * torch.exp(0.5 * log_variance))
        expected = torch.zeros(rows, dtype=torch.float64)
        for at in range(3):
            error = x[:, at] - torch.tanh(reconstructed[:, at])
            expected += error**2 / 2 / 0.1**2 + math.log(0.1)
        start = 3
        for block in blocks:
            logits = reconstructed[:, start : start + block.shape[1]]
            expected += nn.functional.cross_entropy(logits, block.argmax(dim=1), reduction="none")
            start += block.shape[1]
        expected = 2.0 * expected - 0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp(), dim=1)
        found = losses(Tape(parameters), slice(None))
    np.testing.assert_allclose(found.numpy(), expected.numpy() / 5, rtol=1e-6)


def test_initial_weights_are_those_of_pytorchs_linear_layers():
    network = AutoEncoder((1024,), 256)
    parts = split(network.initial(LAYOUT, np.random.default_rng(0)), network.shapes(LAYOUT))
    for weight, bias in zip(parts[::2], parts[1::2], strict=True):
        reach = 1 / math.sqrt(weight.shape[1])
        for one in (weight, bias):
            assert 0.8 * reach < float(one.abs().max()) <= reach * (1 + 1e-6)
            assert abs(float(one.mean())) < 4 * reach / math.sqrt(3 * one.numel())


def test_columns_of_one_token_and_no_number_are_no_input_and_cost_nothing():
    constant = BatchLayout((1, 1), ())
    network = AutoEncoder((8,), 2)
    losses, parameters = started(network, 30, constant)
    assert np.isfinite(clipped_sum(losses, parameters, 30, 1.0)).all()
    drawn = TabularVAE(network, constant, flattened(parameters), 30.0).sample(7, np.random.default_rng(0))
    assert [one.tolist() for one in drawn] == [[0] * 7] * 2
    more = BatchLayout((*LAYOUT.tokens, 1), LAYOUT.numbers)
    assert SMALL.shapes(more) == SMALL.shapes(LAYOUT)


# ---------------------------------------------------------------------------------------------------------------------
# Clipped sums


def test_clipped_sums_are_autograds_and_those_of_a_loop_over_rows():
    check_sums(SMALL)


@pytest.mark.parametrize(
    "network",
    [SMALL, AutoEncoder(), AutoEncoder((13, 100, 257), 33), AutoEncoder((64, 24), 2), AutoEncoder((3, 50), 3)],
    ids=str,
)
def test_what_a_row_adds_does_not_depend_on_other_rows(network):
    check_alone(network)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_weights_give_bounded_sums(name):
    check_hostile(SMALL, name)


# ---------------------------------------------------------------------------------------------------------------------
# A table


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    table = encode(SCHEMA, toy_frame())
    cells = cells_of(table)
    encoders, layout = encoded(cells)
    network = AutoEncoder((32, 32), 8)
    weights = trained(network, layout, encode_rows(table, encoders), 800)
    return Synthesizer(SCHEMA, cells, TabularVAE(network, layout, weights, float(ROWS)))


def test_a_toy_table_is_learned(fitted):
    real, found = portrait(toy_frame(1)), portrait(fitted.sample(seed=1))
    np.testing.assert_allclose(found["shares"], real["shares"], atol=0.1)
    np.testing.assert_allclose(found["paid"], [0.1, 0.9, 0.1], atol=0.15)
    np.testing.assert_allclose(found["zeros"], [0.8, 0.2, 0.2], atol=0.25)
    assert found["gains"][0] + 5 < found["gains"][1] < found["gains"][2] - 5
    assert found["zeros"][0] > found["zeros"][1:].max() + 0.25


def test_saved_and_loaded_it_draws_the_same_rows(fitted, tmp_path):
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    assert isinstance(again.model, TabularVAE)
    assert again.model.network == fitted.model.network
    assert again.model.weights.tobytes() == fitted.model.weights.tobytes()
    pd.testing.assert_frame_equal(again.sample(5000, 3), fitted.sample(5000, 3))
    assert problems(SCHEMA, again.sample(2000, 4)) == []


def test_rows_meet_conditions_and_what_has_no_token_has_no_rows(fitted):
    rows = fitted.sample(400, 0, {"kind": "b", "gain": (40, 60)})
    assert (rows["kind"] == "b").all()
    assert rows["gain"].between(40, 60).all()
    assert rows["paid"].mean() > 0.7
    assert (fitted.sample(50, 0, {"gain": 0})["gain"] == 0).all()
    assert fitted.model.given({0: CodeEvidence(np.zeros(3))}) is None


def test_rows_are_drawn_in_parts_and_on_the_device_that_is_named(fitted):
    model = fitted.model
    assert [len(one) for one in model.sample(9001, np.random.default_rng(0))] == [9001] * 3
    assert [len(one) for one in model.sample(0, np.random.default_rng(0))] == [0] * 3
    named, auto = (model.sample(100, np.random.default_rng(0), device) for device in ("cpu", "auto"))
    if not torch.cuda.is_available():
        assert all(np.array_equal(one, two) for one, two in zip(named, auto, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# The struct


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": []},
        {"hidden": [4]},
        {"hidden": [2048]},
        {"hidden": [8] * 5},
        {"latent": 1},
        {"latent": 257},
        {"factor": float("nan")},
        {"sigma": 0.0},
        {"depth": 3},
        {"type": "critic"},
    ],
)
def test_networks_that_cannot_be_are_refused_when_read(wrong):
    right = msgspec.to_builtins(AutoEncoder())
    assert msgspec.convert(right, AutoEncoder) == AutoEncoder()
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(right | wrong, AutoEncoder)


def test_the_number_of_weights_is_that_of_the_layers():
    encoder, heads, decoder = 6 * 8 + 8, 2 * (8 * 2 + 2), (2 * 8 + 8) + (8 * 6 + 6)
    assert size_of(AutoEncoder((8,), 2).shapes(BatchLayout((2, 3), (1,)))) == encoder + heads + decoder


def test_models_are_known_without_torch_and_the_extra_is_named_where_it_is_needed(monkeypatch, fitted):
    code = "import sys; from fedsynth.models import synthesizer; assert 'torch' not in sys.modules; print('no torch')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "no torch\n"
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fedsynth.deep.dpsgd")
    with pytest.raises(Unsupported, match=r"pip install 'fedsynth\[deep\]'"):
        fitted.sample(5, 0)
    with pytest.raises(Unsupported, match=r"pip install 'fedsynth\[deep\]'"):
        SMALL.losses(LAYOUT, batch_of(3), np.random.default_rng(0))
