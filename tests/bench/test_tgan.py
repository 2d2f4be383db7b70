"""Fed-TGAN's replica: weights by hand, and nothing without saying that it is not private."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import InvalidParameter
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Exact

pytest.importorskip("torch")

from fedsynth.bench.published.tgan import FedTGAN, similarity_weights
from fedsynth.encoding import problems


def test_weights_are_the_papers_by_hand():
    """Two sites with opposite values of a category: equal distances, so rows alone count; a third like all is near."""
    left, right, middle = np.array([30.0, 0.0]), np.array([0.0, 10.0]), np.array([15.0, 5.0])
    found = similarity_weights([[left], [right]], [False])
    far = [  # square roots of divergences from the shares (.75, .25)
        math.sqrt(0.5 * math.log2(1 / 0.875) + 0.5 * (0.75 * math.log2(0.75 / 0.875) + 0.25 * math.log2(0.25 / 0.125))),
        math.sqrt(0.5 * math.log2(1 / 0.625) + 0.5 * (0.75 * math.log2(0.75 / 0.375) + 0.25 * math.log2(0.25 / 0.625))),
    ]
    scores = [0.75 * (1 - far[0] / sum(far)), 0.25 * (1 - far[1] / sum(far))]
    expected = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(found, expected)

    ordered = similarity_weights([[left], [right], [middle]], [True])
    pooled = np.array([0.75, 0.25])
    far = [abs(own[0] / own.sum() - pooled[0]) / 2 for own in (left, right, middle)]
    scores = [own.sum() / 60 * (1 - one / sum(far)) for own, one in zip((left, right, middle), far, strict=True)]
    np.testing.assert_allclose(ordered, np.exp(scores) / np.exp(scores).sum())


def test_the_replica_trains_without_noise_and_says_so():
    with pytest.raises(InvalidParameter, match="NOT PRIVATE"):
        FedTGAN()
    held = [random_table(rows, seed) for seed, rows in enumerate((300, 200, 100))]
    federation = federate(held, SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0, exact=True)
    replica = FedTGAN(rounds=2, width=16, depth=1, noise=8, batch=50, learning_rate=2e-3, not_private=True)
    rows = replica.fit(federation).sample(200, 0)
    assert problems(SCHEMA, rows) == []
    assert "NOT PRIVATE" in federation.statement.headline
    assert all(isinstance(entry.release, Exact) for entry in federation.ledger.entries)
    assert [entry.verb for entry in federation.ledger.entries] == ["sum", "each", "average", "average"]
