"""A small network over three columns whose loss is a function of the row alone, and the same by plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tests.world import SCHEMA, table

from fedsynth.deep.dpsgd import Tape, flattened, split
from fedsynth.deep.encoders import CellPlaces, Encoder, encode_rows
from fedsynth.deep.gan import Critic
from fedsynth.deep.training import GradientSum, LocalTraining, Sizes, TrainingTask, grid_for
from fedsynth.federation.query import Weights, weights_digest
from fedsynth.rows import Table, concatenate

NETWORK = Critic((8,))
ENCODERS = (
    Encoder(np.zeros(2, dtype=np.int64)),
    Encoder(np.arange(4)),
    Encoder(
        np.zeros(2, dtype=np.int64),
        CellPlaces(np.array([0.0, 50.0]), np.array([50.0, 100.0]), np.array([0.0, 0.5]), np.array([0.5, 0.5])),
    ),
)
"""One column of several tokens: the critic's condition is then no matter of chance."""
TASK = TrainingTask(NETWORK, ENCODERS, 100.0)
SHAPES = NETWORK.shapes(TASK.layout)
START = NETWORK.initial(TASK.layout, np.random.default_rng(0))
CELLS = len(START)
ROWS = table(64, 5)
WIDE = 64.0
"""A clip norm that no row of these reaches."""


def gradient_sum(weights: Weights = START, rate: float = 1.0, clip: float = WIDE) -> GradientSum:
    return GradientSum(rate, weights_digest(weights), NETWORK, ENCODERS, clip, grid_for(clip, CELLS))


def local_training(sizes: Sizes, weights: Weights = START, **fields: Any) -> LocalTraining:
    """Return the question for a round of several updates: on batches of 16, if nothing else is said."""
    usual = {"rate": 1.0, "clip": 0.0, "updates": 12, "batch": 16, "learning_rate": 0.01, "decay": 0.0, "epochs": 0}
    found = {**usual, **fields}
    return LocalTraining(
        found["rate"],
        weights_digest(weights),
        NETWORK,
        ENCODERS,
        found["clip"],
        grid_for(found["clip"], CELLS),
        found["updates"],
        found["batch"],
        found["learning_rate"],
        found["decay"],
        sizes,
        found["epochs"],
    )


def gradient(rows: Table, weights: Weights = START) -> np.ndarray:
    """Return PyTorch's own gradient of the sum of the rows' losses."""
    parameters = [one.requires_grad_() for one in split(weights, SHAPES)]
    losses = NETWORK.losses(TASK.layout, encode_rows(rows, ENCODERS), np.random.default_rng(0))
    losses(Tape(parameters), slice(None)).sum().backward()
    return np.concatenate([one.grad.reshape(-1).double().numpy() for one in parameters])


def central(rows: Table, batches: Sequence[np.ndarray], learning_rate: float, decay: float = 0.0) -> np.ndarray:
    """Return the weights after one step of plain Adam on each of these batches of rows."""
    parameters = [one.requires_grad_() for one in split(START, SHAPES)]
    adam = torch.optim.Adam(parameters, lr=learning_rate, weight_decay=decay)
    losses = NETWORK.losses(TASK.layout, encode_rows(rows, ENCODERS), np.random.default_rng(0))
    for batch in batches:
        adam.zero_grad()
        losses(Tape(parameters), torch.from_numpy(batch)).mean().backward()
        adam.step()
    return flattened(parameters).astype(np.float64)


def parts(rows: Table, *ends: int) -> list[Table]:
    return [rows.take(one) for one in np.split(np.arange(len(rows)), ends)]


def joined(tables: Sequence[Table]) -> Table:
    return concatenate(list(tables))


assert SCHEMA.stored[2].is_number
