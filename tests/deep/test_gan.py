"""Critic and generator: sums that bound one row, gradients of fakes, and a toy table learned from sums alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from tests.models.row_sums import (  # noqa: E402
    HOSTILE,
    LAYOUT,
    assert_near,
    batch_of,
    check_alone,
    check_hostile,
    check_sums,
    started,
)
from tests.models.toy_table import ROWS, SCHEMA, cells_of, encoded, portrait, toy_frame  # noqa: E402

from fedsynth.deep.dpsgd import Tape, clipped_sum, split  # noqa: E402
from fedsynth.deep.encoders import BatchLayout, EncodedBatch, encode_rows  # noqa: E402
from fedsynth.deep.gan import TAU, Adversaries, Critic, Generator, TabularGAN, draw_conditions, shares_of  # noqa: E402
from fedsynth.deep.networks import Adam  # noqa: E402
from fedsynth.deep.one_hot import OneHot  # noqa: E402
from fedsynth.encoding import encode, problems  # noqa: E402
from fedsynth.errors import InvalidParameter  # noqa: E402  (needs torch)
from fedsynth.models.adaptive_bins import AdaptiveBins  # noqa: E402
from fedsynth.models.evidence import CodeEvidence  # noqa: E402
from fedsynth.models.synthesizer import Synthesizer, load  # noqa: E402
from fedsynth.schema import Categorical  # noqa: E402

SMALL, MAKER = Critic((16, 12)), Generator(5, (16, 12))
CODED = OneHot.of(LAYOUT)
SHARES = np.concatenate([np.array(one) for one in ([0.5, 0.5, 0], [0.2] * 5, [0.9, 0.1], [0.1, 0.2, 0.3, 0.4])])


def adversaries(layout: BatchLayout = LAYOUT, shares: np.ndarray = SHARES, clip: float = 1e6, **options) -> Adversaries:
    rng = np.random.default_rng(0)
    return Adversaries(
        SMALL, MAKER, layout, shares, clip, SMALL.initial(layout, rng), MAKER.initial(layout, rng), **options
    )


# ---------------------------------------------------------------------------------------------------------------------
# The critic at a site


def test_clipped_sums_are_autograds_and_those_of_a_loop_over_rows():
    check_sums(SMALL)


@pytest.mark.parametrize("network", [SMALL, Critic(), Critic((13, 100, 257)), Critic((64, 2, 3))], ids=str)
def test_what_a_row_adds_does_not_depend_on_other_rows(network):
    check_alone(network)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_weights_give_bounded_sums(name):
    check_hostile(SMALL, name)


def test_a_rows_loss_is_that_of_its_own_token_of_a_column_drawn_evenly():
    rows = 4000
    losses, parameters = started(SMALL, rows)
    tape = Tape(parameters, per_row=True)
    found = losses(tape, slice(None)).detach().numpy()
    x = tape.linears[0][1].numpy()
    batch = batch_of(rows)
    np.testing.assert_array_equal(x[:, :3], (2 * batch.places - 1).astype(np.float32))
    hot, condition = x[:, 3:17], x[:, 17:]
    assert ((hot == 1) | (hot == 0)).all()
    assert (hot.sum(axis=1) == 4).all()
    assert (condition.sum(axis=1) == 1).all()
    assert ((condition == 0) | (hot == 1)).all()
    columns = np.add.reduceat(condition, [0, 3, 8, 10], axis=1).mean(axis=0)
    np.testing.assert_allclose(columns, 0.25, atol=0.03)
    starts = np.array([0, 3, 8, 10])
    np.testing.assert_array_equal(np.flatnonzero(hot[7]), starts + batch.tokens[7][[0, 2, 3, 4]])

    nn = torch.nn
    critic = nn.Sequential(nn.Linear(31, 16), nn.LeakyReLU(0.2), nn.Linear(16, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
    nn.utils.vector_to_parameters(torch.cat([one.reshape(-1) for one in parameters]), critic.parameters())
    with torch.no_grad():
        score = critic.double()(torch.from_numpy(x).double())
        expected = nn.functional.binary_cross_entropy_with_logits(score, torch.ones_like(score), reduction="none")
    np.testing.assert_allclose(found, expected[:, 0].numpy(), rtol=1e-6)


def test_a_table_without_tokens_to_tell_has_no_conditions():
    layout = BatchLayout((1, 1), (0,))
    check_sums(SMALL, layout)
    found = adversaries(layout, np.zeros(0), fakes=20)
    before = found.generator_weights
    found.step(np.zeros(len(found.critic_weights)), np.random.default_rng(0))
    assert not np.array_equal(before, found.generator_weights)
    drawn = TabularGAN(MAKER, layout, found.generator_weights, np.zeros(0), 5.0).sample(9, np.random.default_rng(0))
    assert [one.shape for one in drawn] == [(9,), (9,)]


# ---------------------------------------------------------------------------------------------------------------------
# Conditions


def test_conditions_are_drawn_by_column_and_then_by_share():
    hot = draw_conditions(CODED, SHARES, 60_000, np.random.default_rng(0))[:, 0]
    found = np.bincount(hot, minlength=14) / 60_000
    np.testing.assert_allclose(found, SHARES / 4, atol=0.006)
    assert found[2] == 0


def test_shares_are_those_of_released_counts():
    cells = [AdaptiveBins.of(Categorical(name, tuple("abc"))) for name in "xyz"]
    cells[0] = replace(cells[0], counts=np.array([3.0, 1.0, 0.0]))
    cells[1] = replace(cells[1], counts=np.zeros(3))
    cells[2] = replace(cells[2], groups=np.zeros(3, dtype=np.int64))
    np.testing.assert_allclose(shares_of(cells), [0.75, 0.25, 0, 1 / 3, 1 / 3, 1 / 3])
    assert shares_of(cells[2:]).shape == (0,)


# ---------------------------------------------------------------------------------------------------------------------
# The server


def reference(model: Adversaries, rng: np.random.Generator) -> list[np.ndarray]:
    """Return losses of fakes for the critic and the generator, with both networks' weights, by plain PyTorch."""
    functional = torch.nn.functional
    of_critic = [one.double().requires_grad_() for one in split(model.critic_weights, SMALL.shapes(LAYOUT))]
    of_maker = [one.double().requires_grad_() for one in split(model.generator_weights, MAKER.shapes(LAYOUT))]
    noise = torch.from_numpy(rng.standard_normal((model.fakes, 5), dtype=np.float32)).double()
    hot = torch.from_numpy(draw_conditions(CODED, SHARES, model.fakes, rng))
    condition = functional.one_hot(hot[:, 0], 14).double()
    gumbel = torch.from_numpy(rng.gumbel(size=(model.fakes, 17)).astype(np.float32)).double()
    x = torch.cat([noise, condition], 1)
    for at in (0, 2):
        z = x @ of_maker[at].T + of_maker[at + 1]
        z = (z - z.mean(1, keepdim=True)) / torch.sqrt(z.var(1, keepdim=True, unbiased=False) + 1e-5)
        x = torch.cat([torch.relu(z), x], 1)
    outputs = x @ of_maker[4].T + of_maker[5]
    parts, own = [torch.tanh(outputs[:, :3])], torch.zeros(model.fakes, dtype=torch.float64)
    for start, size in ((0, 3), (3, 5), (8, 2), (10, 4)):
        block = slice(3 + start, 3 + start + size)
        parts.append(torch.softmax((outputs[:, block] + gumbel[:, block]) / TAU, 1))
        chosen = (hot[:, 0] >= start) & (hot[:, 0] < start + size)
        own[chosen] = functional.cross_entropy(outputs[chosen][:, block], hot[chosen, 0] - start, reduction="none")
    h = torch.cat([*parts, condition], 1)
    for at in (0, 2):
        h = functional.leaky_relu(h @ of_critic[at].T + of_critic[at + 1], 0.2)
    score = (h @ of_critic[4].T + of_critic[5])[:, 0]
    fooled = functional.binary_cross_entropy_with_logits(score, torch.ones_like(score))
    caught = functional.binary_cross_entropy_with_logits(score, torch.zeros_like(score))
    critic = torch.autograd.grad(caught, of_critic, retain_graph=True)
    maker = torch.autograd.grad(fooled + own.mean(), of_maker)
    return [torch.cat([one.reshape(-1) for one in part]).numpy() for part in (critic, maker)]


def test_gradients_at_the_server_are_those_of_ctgans_losses_written_out():
    model = adversaries(fakes=300)
    critic, maker = reference(model, np.random.default_rng(3))
    found = model.critic_fake_gradient(np.random.default_rng(3))
    assert_near(found, critic)
    found = model.generator_gradient(np.random.default_rng(3))
    assert_near(found, maker)


def test_gradients_of_fakes_are_clipped_as_those_of_rows_are():
    found = adversaries(clip=1e-3).critic_fake_gradient(np.random.default_rng(3))
    assert 0 < np.linalg.norm(found) <= 1e-3 * (1 + 1e-6)


def test_adam_is_that_of_pytorch():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(50).astype(np.float32)
    other = torch.from_numpy(weights.copy()).requires_grad_()
    theirs, ours = torch.optim.Adam([other], lr=0.01, betas=(0.5, 0.9)), Adam(50, 0.01, (0.5, 0.9))
    for _ in range(20):
        gradient = rng.standard_normal(50)
        other.grad = torch.from_numpy(gradient.astype(np.float32))
        theirs.step()
        weights = ours.step(weights, gradient)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, other.detach().numpy(), atol=1e-6)


def test_a_step_moves_both_networks_and_is_the_same_from_the_same_seed():
    real = np.random.default_rng(1).standard_normal(len(SMALL.initial(LAYOUT, np.random.default_rng(0))))
    one, two = adversaries(), adversaries()
    start = one.critic_weights, one.generator_weights
    for model in (one, two):
        rng = np.random.default_rng(5)
        for _ in range(3):
            returned = model.step(real, rng)
        assert returned is model.critic_weights
    assert one.critic_weights.tobytes() == two.critic_weights.tobytes()
    assert one.generator_weights.tobytes() == two.generator_weights.tobytes()
    assert not np.array_equal(one.critic_weights, start[0])
    assert not np.array_equal(one.generator_weights, start[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": float("inf")},
        {"fakes": 0},
        {"rate": -1.0},
        {"shares": SHARES[1:]},
        {"shares": -SHARES},
        {"shares": np.append(SHARES[:-4], np.zeros(4))},
    ],
    ids=str,
)
def test_adversaries_that_cannot_be_are_refused(wrong):
    with pytest.raises(InvalidParameter):
        adversaries(**wrong)


# ---------------------------------------------------------------------------------------------------------------------
# A table


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    table = encode(SCHEMA, toy_frame())
    cells = cells_of(table)
    encoders, layout = encoded(cells)
    rows, rng = encode_rows(table, encoders), np.random.default_rng(0)
    critic, generator, clip, expected = Critic((64, 64)), Generator(16, (64, 64)), 10.0, 400
    model = Adversaries(
        critic,
        generator,
        layout,
        shares_of(cells),
        clip,
        critic.initial(layout, rng),
        generator.initial(layout, rng),
        rate=2e-3,
    )
    for _ in range(600):
        at = np.flatnonzero(rng.random(ROWS) < expected / ROWS)
        losses = critic.losses(layout, EncodedBatch(rows.tokens[at], rows.places[at]), rng)
        parameters = split(model.critic_weights, critic.shapes(layout))
        model.step(clipped_sum(losses, parameters, len(at), clip) / expected, rng)
    return Synthesizer(SCHEMA, cells, TabularGAN(generator, layout, model.generator_weights, model.shares, float(ROWS)))


def test_a_toy_table_is_learned_from_sums_of_the_critic_alone(fitted):
    found = portrait(fitted.sample(seed=1))
    np.testing.assert_allclose(found["shares"], [0.5, 0.3, 0.2], atol=0.12)
    np.testing.assert_allclose(found["paid"], [0.1, 0.9, 0.1], atol=0.2)
    assert found["zeros"][0] > 0.6
    assert found["zeros"][1:].max() < 0.4
    assert found["gains"][0] + 5 < found["gains"][2]


def test_fakes_have_the_tokens_of_their_conditions(fitted):
    model = fitted.model
    assert isinstance(model, TabularGAN)
    for place, (at, token) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]):
        shares = np.full(7, 1e-12)
        shares[place] = 1.0
        alone = replace(model, shares=shares).sample(3000, np.random.default_rng(0))
        usual = (np.floor(model.sample(3000, np.random.default_rng(0))[at]) == token).mean()
        # A third of the conditions are this one; those of other columns leave the token free.
        assert (np.floor(alone[at]) == token).mean() > usual
    hot = draw_conditions(OneHot.of(model.layout), model.shares, 4096, _after_noise(model))
    codes = model.sample(4096, np.random.default_rng(0))
    starts = np.array([0, 3, 5])
    column = np.searchsorted(starts, hot[:, 0], side="right") - 1
    tokens = np.floor(np.stack(codes, axis=1))[np.arange(4096), column]
    assert (tokens == hot[:, 0] - starts[column]).mean() > 0.9


def _after_noise(model: TabularGAN) -> np.random.Generator:
    """Return the generator of seed 0 as it stands where the model draws its conditions."""
    rng = np.random.default_rng(0)
    rng.standard_normal((4096, model.network.noise), dtype=np.float32)
    return rng


def test_saved_and_loaded_it_draws_the_same_rows(fitted, tmp_path):
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    assert isinstance(again.model, TabularGAN)
    assert again.model.network == fitted.model.network
    assert again.model.weights.tobytes() == fitted.model.weights.tobytes()
    assert again.model.shares.tobytes() == fitted.model.shares.tobytes()
    pd.testing.assert_frame_equal(again.sample(5000, 3), fitted.sample(5000, 3))
    assert problems(SCHEMA, again.sample(2000, 4)) == []


def test_rows_meet_conditions_and_what_has_no_token_has_no_rows(fitted):
    rows = fitted.sample(300, 0, {"kind": "b", "gain": 0})
    assert (rows["kind"] == "b").all()
    assert (rows["gain"] == 0).all()
    assert fitted.model.given({1: CodeEvidence(np.zeros(2))}) is None


@pytest.mark.parametrize("wrong", [{"hidden": []}, {"hidden": [4]}, {"noise": 1}, {"noise": 257}, {"pac": 10}])
def test_networks_that_cannot_be_are_refused_when_read(wrong):
    right = msgspec.to_builtins(Generator())
    assert msgspec.convert(right, Generator) == Generator()
    assert msgspec.convert(msgspec.to_builtins(Critic()), Critic | Generator) == Critic()
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(right | wrong, Generator)
