"""Common parts of all neural networks: their interface, initial weights and the optimiser.

A network is a frozen struct of public hyperparameters, so it can be part of a query; its weights are one flat vector.
Modules with networks import PyTorch only when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.deep.encoders import BatchLayout, EncodedBatch
from fedsynth.errors import InvalidParameter

if TYPE_CHECKING:
    from fedsynth.deep.dpsgd import RowLosses

Shapes = tuple[tuple[int, ...], ...]


class Network(Protocol):
    """Interface of a neural network that sites train: public hyperparameters, with a loss for each single row.

    A query for training (:class:`fedsynth.deep.training.NetworkTraining`) contains the network; sites receive the
    weights beside it and compute the losses of their own encoded rows, of a ``layout``.
    """

    def shapes(self, layout: BatchLayout) -> Shapes:
        """Return the shapes of the trained parameters, in the order in which the flat vector of weights holds them."""

    def initial(self, layout: BatchLayout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return random initial weights as one flat vector, float32."""

    def losses(self, layout: BatchLayout, batch: EncodedBatch, rng: np.random.Generator) -> RowLosses:
        """Return a function of the parameters that computes the loss of each row of ``batch``, for training.

        ``rng`` draws each row's own randomness (noise, time) here, once. The result takes a
        :class:`~fedsynth.deep.dpsgd.Tape` (a forward pass with certain parameters) and positions in the batch (a slice
        or tensor), and returns the losses of these rows, shape ``(rows,)``. Raises
        :class:`~fedsynth.errors.Unsupported` if PyTorch is missing.
        """


def size_of(shapes: Shapes) -> int:
    """Return the total number of weights in parameters of these ``shapes``."""
    return sum(math.prod(shape) for shape in shapes)


def numbers_of_row(shapes: Shapes) -> int:
    """Return the number of layer inputs and outputs for one row, which training must keep in memory."""
    return sum(sum(shape) for shape in shapes if len(shape) == 2)


def dense(inputs: int, outputs: int) -> Shapes:
    """Return the shapes of a linear layer's parameters: weight ``(outputs, inputs)`` and bias ``(outputs,)``."""
    return (outputs, inputs), (outputs,)


def glorot(shapes: Shapes, rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Return initial parameters, float32, after Glorot & Bengio (AISTATS 2010): uniform matrices, zero biases."""
    found = []
    for shape in shapes:
        reach = math.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.0
        found.append(rng.uniform(-reach, reach, shape).astype(np.float32))
    return found


class Adam:
    """The Adam optimiser (Kingma & Ba, arXiv 1412.6980) at the server, with equal results on every machine.

    ``betas`` are the decay rates of both moments, which start at zero and are kept between steps; ``decay`` times the
    weights is added to the gradient. Results are equal because it computes in float64, one operation at a time. A run
    that resumes on another machine thus sends exactly the same weights to sites, unless the server computes gradients
    itself: the gradients of a GAN's fakes differ in the last bits between machines.
    """

    def __init__(
        self, cells: int, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.0
    ) -> None:
        """Start with zero moments."""
        self.learning_rate, self.betas, self.decay = learning_rate, betas, decay
        self.first, self.second, self.steps = np.zeros(cells), np.zeros(cells), 0

    def step(self, weights: NDArray[np.float32], slope: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the weights after one step against the gradient ``slope``; both have shape ``(cells,)``."""
        self.steps += 1
        beta1, beta2 = self.betas
        slope = slope + self.decay * weights if self.decay else slope
        self.first = beta1 * self.first + (1 - beta1) * slope
        self.second = beta2 * self.second + (1 - beta2) * slope**2
        first, second = self.first / (1 - beta1**self.steps), self.second / (1 - beta2**self.steps)
        moved: NDArray[np.float64] = weights - self.learning_rate * first / (np.sqrt(second) + 1e-8)
        return moved.astype(np.float32)


def check_weights(weights: NDArray[np.float32], shapes: Shapes) -> None:
    """Raise :class:`InvalidParameter` unless ``weights`` are a flat, finite float32 vector that fits ``shapes``."""
    if weights.shape != (size_of(shapes),) or weights.dtype != np.float32 or not np.isfinite(weights).all():
        raise InvalidParameter(
            f"the network needs {size_of(shapes)} finite float32 weights, not {weights.shape} of {weights.dtype}; "
            "fit it again"
        )


def read_weights(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the array "weights" of a saved model, unchecked; raises :class:`InvalidParameter` if it is missing."""
    if "weights" not in arrays:
        raise InvalidParameter("the array 'weights' is missing")
    return arrays["weights"]
