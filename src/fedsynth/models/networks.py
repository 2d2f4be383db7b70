"""What all networks have in common: public numbers that say what is trained, and losses of single rows.

A network is a frozen struct of public numbers, so that it travels in a question; its weights are one flat vector. No
module of a network imports PyTorch before it is used.
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
    """A network that sites train: what it is, and what it loses on each row."""

    def shapes(self, layout: Layout) -> Shapes:
        """Return the shapes of the parameters that are trained, in their order."""

    def initial(self, layout: Layout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return the weights to start from, flat."""

    def losses(self, layout: Layout, batch: Batch, rng: np.random.Generator) -> RowLosses:
        """Return the loss of each row of a batch; ``rng`` is for what each row draws by itself (noise, time)."""


def size_of(shapes: Shapes) -> int:
    """Return the number of weights."""
    return sum(math.prod(shape) for shape in shapes)


def numbers_of_row(shapes: Shapes) -> int:
    """Return how many numbers go into the layers for one row, and come out of them: what training must hold of it."""
    return sum(sum(shape) for shape in shapes if len(shape) == 2)


def dense(inputs: int, outputs: int) -> Shapes:
    """Return the shapes of a linear layer: its weight (outputs, inputs) and its bias."""
    return (outputs, inputs), (outputs,)


def glorot(shapes: Shapes, rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Return initial weights after Glorot & Bengio (AISTATS 2010): uniform matrices, biases of zero."""
    found = []
    for shape in shapes:
        reach = math.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.0
        found.append(rng.uniform(-reach, reach, shape).astype(np.float32))
    return found


class Adam:
    """Adam (Kingma & Ba, arXiv 1412.6980) at the server, in doubles and one operation an element.

    So a run that resumes on another machine asks for the very same weights, unless the server computes slopes of its
    own: those of a GAN's fakes have other last bits on another machine.
    """

    def __init__(self, cells: int, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """Start with no moments."""
        self.learning_rate, self.betas = learning_rate, betas
        self.first, self.second, self.steps = np.zeros(cells), np.zeros(cells), 0

    def step(self, weights: NDArray[np.float32], slope: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the weights after one step against ``slope``."""
        self.steps += 1
        one, two = self.betas
        self.first = one * self.first + (1 - one) * slope
        self.second = two * self.second + (1 - two) * slope**2
        first, second = self.first / (1 - one**self.steps), self.second / (1 - two**self.steps)
        moved: NDArray[np.float64] = weights - self.learning_rate * first / (np.sqrt(second) + 1e-8)
        return moved.astype(np.float32)
