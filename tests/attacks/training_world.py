"""Questions that train, as a hostile coordinator asks them: any weights, and any release."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.attacks.world import SCHEMA, question

from fedsynth.deep.encoders import BatchLayout, CellPlaces, Encoder
from fedsynth.deep.gan import Critic
from fedsynth.deep.networks import size_of
from fedsynth.deep.training import GradientSum, LocalTraining, grid_for
from fedsynth.encoding import encode
from fedsynth.federation.query import SiteRandomness, Training, Weights, weights_digest
from fedsynth.federation.wire import Request
from fedsynth.privacy.noise import KeyedBits
from fedsynth.privacy.release import SampledGaussian
from fedsynth.rows import Table

NETWORK = Critic((8,))
ENCODERS = (
    Encoder(np.zeros(2, dtype=np.int64)),
    Encoder(np.arange(5)),
    Encoder(np.zeros(1, dtype=np.int64), CellPlaces(np.zeros(1), np.array([100.0]), np.zeros(1), np.ones(1))),
)
"""One column of several tokens: what a row loses is then a function of the row alone."""
LAYOUT = BatchLayout.of(ENCODERS)
CELLS = size_of(NETWORK.shapes(LAYOUT))
WEIGHTS: Weights = np.random.default_rng(0).uniform(-1, 1, CELLS).astype(np.float32)
WEIGHTS[-1] = -30.0  # every row looks false, so that every gradient is as long as the clip norm at least
GRID = grid_for(1.0, CELLS)


def gradient_sum(weights: Weights = WEIGHTS, rate: float = 0.5, clip: float = 1.0) -> GradientSum:
    return GradientSum(rate, weights_digest(weights), NETWORK, ENCODERS, clip, GRID)


def local_training(updates: int = 3, rate: float = 0.5, clip: float = 1.0, batch: int = 0) -> LocalTraining:
    sizes = (("north", 40),)
    digest = weights_digest(WEIGHTS)
    return LocalTraining(rate, digest, NETWORK, ENCODERS, clip, GRID, updates, batch, 0.01, 0.0, sizes)


def training(query: Training | None = None, weights: Weights | None = WEIGHTS, **fields: Any) -> Request:
    """Return the message that asks for a step, or for a round, with these weights beside it."""
    asked = gradient_sum() if query is None else query
    release = SampledGaussian(asked.rate, 2.0, asked.steps)
    request = question(asked, **{"verb": asked.verb, "release": release, **fields})
    return request.at(0, None, b"" if weights is None else weights.tobytes())


def exactly(query: Training, rows: Table, weights: Weights = WEIGHTS) -> NDArray[np.int64]:
    """Return a step's sum without noise, with the same draws for row i whatever the other rows are."""
    found: list[NDArray[np.int64]] = []

    def noisy(values: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        found.append(values)
        return values

    query.check(rows.schema)
    query.trained(rows, weights, SiteRandomness("north", lambda purpose: KeyedBits(bytes(32), purpose.encode()), noisy))
    return found[0]


def only(diagnosis: str, rows: int) -> Table:
    import pandas as pd

    return encode(SCHEMA, pd.DataFrame({"sex": ["m"] * rows, "diagnosis": [diagnosis] * rows, "age": [97.0] * rows}))
