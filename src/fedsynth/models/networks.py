"""Common parts of all neural networks: their interface, initial weights and the optimiser.

A network is a frozen struct of public hyperparameters, so it can be part of a query; its weights are one flat vector.
Modules with networks import PyTorch only when it is used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.models.encoders import Batch, Layout

if TYPE_CHECKING:
    from fedsynth.privacy.dpsgd import RowLosses

Shapes = tuple[tuple[int, ...], ...]


class Network(Protocol):
    """A network that sites train, with a loss for each single row."""

    def shapes(self, layout: Layout) -> Shapes:
        """Return the shapes of the trained parameters, in order."""

    def initial(self, layout: Layout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return initial weights, flat."""

    def losses(self, layout: Layout, batch: Batch, rng: np.random.Generator) -> RowLosses:
        """Return the loss of each row of a batch; ``rng`` draws each row's own randomness (noise, time)."""


def size_of(shapes: Shapes) -> int:
    """Return the total number of weights."""
    return sum(math.prod(shape) for shape in shapes)


def numbers_of_row(shapes: Shapes) -> int:
    """Return the number of layer inputs and outputs for one row, which training must keep in memory."""
    return sum(sum(shape) for shape in shapes if len(shape) == 2)


def dense(inputs: int, outputs: int) -> Shapes:
    """Return the shapes of a linear layer: its weight (outputs, inputs) and its bias (outputs,)."""
    return (outputs, inputs), (outputs,)


def glorot(shapes: Shapes, rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Return initial weights after Glorot & Bengio (AISTATS 2010): uniform matrices, zero biases."""
    found = []
    for shape in shapes:
        reach = math.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.0
        found.append(rng.uniform(-reach, reach, shape).astype(np.float32))
    return found


class Adam:
    """Adam (Kingma & Ba, arXiv 1412.6980) at the server, in float64 and one operation at a time.

    A run that resumes on another machine thus requests exactly the same weights, unless the server computes gradients
    itself: the gradients of a GAN's fakes differ in the last bits between machines.
    """

    def __init__(self, cells: int, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Start with zero moments."""
        self.learning_rate, self.betas = learning_rate, betas
        self.first, self.second, self.steps = np.zeros(cells), np.zeros(cells), 0

    def step(self, weights: NDArray[np.float32], slope: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the weights after one step against the gradient ``slope``."""
        self.steps += 1
        beta1, beta2 = self.betas
        self.first = beta1 * self.first + (1 - beta1) * slope
        self.second = beta2 * self.second + (1 - beta2) * slope**2
        first, second = self.first / (1 - beta1**self.steps), self.second / (1 - beta2**self.steps)
        moved: NDArray[np.float64] = weights - self.learning_rate * first / (np.sqrt(second) + 1e-8)
        return moved.astype(np.float32)
