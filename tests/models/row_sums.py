"""What every network's losses must hold to, so that clipped sums of their gradients bound what one row can do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedsynth.deep.dpsgd import CHUNK, RowLosses, Tape, clipped_sum, split
from fedsynth.deep.encoders import BatchLayout, EncodedBatch
from fedsynth.deep.networks import Network

LAYOUT = BatchLayout((3, 1, 5, 2, 4), (0, 1, 4))
"""Categories and numbers, one of them without modes."""
HOSTILE = {
    "thousand": lambda size, rng: rng.choice([-1e3, 1e3], size),
    "huge": lambda size, rng: rng.choice([-3e38, 3e38, 1e30], size),
    "tiny": lambda size, rng: rng.choice([-1e-42, 1e-38, 0.0], size),
    "mixed": lambda size, rng: rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30, size),
}


def batch_of(rows: int, seed: int = 0, layout: BatchLayout = LAYOUT) -> EncodedBatch:
    rng = np.random.default_rng(seed)
    tokens = np.stack([rng.integers(0, tokens, rows) for tokens in layout.tokens], axis=1)
    return EncodedBatch(tokens, rng.random((rows, len(layout.numbers))))


def started(network: Network, rows: int, layout: BatchLayout = LAYOUT) -> tuple[RowLosses, list[torch.Tensor]]:
    weights = network.initial(layout, np.random.default_rng(1))
    losses = network.losses(layout, batch_of(rows, layout=layout), np.random.default_rng(2))
    return losses, split(weights, network.shapes(layout))


def gradient(losses: RowLosses, parameters: Sequence[torch.Tensor], rows: slice | torch.Tensor) -> np.ndarray:
    """Return PyTorch's own gradient of the sum of the losses of rows, flat, in float64."""
    trained = [one.clone().requires_grad_() for one in parameters]
    found = torch.autograd.grad(losses(Tape(trained), rows).sum(), trained)
    return np.asarray(torch.cat([one.reshape(-1) for one in found]).double().numpy())


def assert_near(found: np.ndarray, expected: np.ndarray, error: float = 1e-6) -> None:
    """Compare two vectors: they may differ by ``error`` of the expected one's norm."""
    assert np.linalg.norm(found - expected) <= error * np.linalg.norm(expected)


def check_sums(network: Network, layout: BatchLayout = LAYOUT) -> None:
    """Hold the clipped sum to autograd's gradient, and to a loop over rows that are clipped one by one."""
    rows = CHUNK + 40
    losses, parameters = started(network, rows, layout)
    whole = gradient(losses, parameters, slice(None))
    assert_near(clipped_sum(losses, parameters, rows, 1e9), whole)
    alone = [gradient(losses, parameters, torch.tensor([row])) for row in range(rows)]
    norms = np.array([np.linalg.norm(one) for one in alone])
    clip = float(np.median(norms))
    looped = np.sum([one * min(1.0, clip / norm) for one, norm in zip(alone, norms, strict=True)], axis=0)
    found = clipped_sum(losses, parameters, rows, clip)
    assert (norms > clip).sum() > rows / 3
    assert_near(found, looped)
    assert np.linalg.norm(looped - whole) > 1e-3 * np.linalg.norm(whole)


def watched(losses: RowLosses, parameters: Sequence[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
    """Return all that a row adds to a clipped sum: its loss, and inputs and slopes of each layer."""
    tape = Tape(parameters, per_row=True)
    loss = losses(tape, rows)
    slopes = torch.autograd.grad(loss.sum(), [z for _, _, z in tape.linears])
    return [loss.detach(), *(a for _, a, _ in tape.linears), *slopes]


def check_alone(network: Network, layout: BatchLayout = LAYOUT) -> None:
    """Hold what a row adds to the same bits, whatever the other rows of its chunk are and wherever it stands."""
    losses, parameters = started(network, 2000, layout)
    rng = np.random.default_rng(3)
    rows = torch.arange(CHUNK)
    before = watched(losses, parameters, rows)
    for place in (0, 1, 47, 300, CHUNK - 1):
        others = torch.from_numpy(rng.integers(0, 2000, CHUNK))
        others[place] = 5
        after = watched(losses, parameters, others)
        assert all(torch.equal(one[5], two[place]) for one, two in zip(before, after, strict=True))
    turned = torch.from_numpy(rng.permutation(CHUNK))
    after = watched(losses, parameters, turned)
    assert all(torch.equal(one[turned], two) for one, two in zip(before, after, strict=True))


def check_hostile(network: Network, name: str, layout: BatchLayout = LAYOUT) -> None:
    """Hold sums to finite numbers, and the last row's share to the clip norm, whatever the weights are."""
    rows, clip = CHUNK + 3, 0.5
    shapes = network.shapes(layout)
    size = sum(int(np.prod(shape)) for shape in shapes)
    with np.errstate(over="ignore"):
        weights = HOSTILE[name](size, np.random.default_rng(4)).astype(np.float32)
    parameters = split(weights, shapes)
    batch = batch_of(rows, layout=layout)
    with_it = clipped_sum(network.losses(layout, batch, np.random.default_rng(5)), parameters, rows, clip)
    without = EncodedBatch(batch.tokens[:-1], batch.places[:-1])
    less = clipped_sum(network.losses(layout, without, np.random.default_rng(5)), parameters, rows - 1, clip)
    assert np.isfinite(with_it).all()
    assert np.linalg.norm(with_it - less) <= clip * (1 + 2.0**-5)
