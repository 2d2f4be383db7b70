"""Rows as real vectors, as in TVAE and CTGAN (Xu et al., arXiv 1907.00503).

A vector has one scalar from -1 to 1 for each number (its place within its mode), followed by a one-hot block for each
column with more than one token; a column with one token has no information and no block. Networks output scalars
before a tanh, and blocks as logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.encoders import Batch, Layout
from fedsynth.models.evidence import Evidence, Kept, Sampler
from fedsynth.models.networks import Shapes, dense, size_of
from fedsynth.privacy.device import Device
from fedsynth.privacy.device import device as device_of
from fedsynth.schema.bins import Floats, Integers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedsynth.privacy.dpsgd import Tape

MOST_LAYERS = 4
Widths = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=8, le=1024)], ...], msgspec.Meta(min_length=1, max_length=MOST_LAYERS)
]
"""Widths of hidden layers, in the order from a network's input."""

_AT_ONCE = 4096  # rows sampled together


class OneHot(NamedTuple):
    """Layout of a row's vector: ``numbers`` scalars, then a block of ``sizes[i]`` for each column ``columns[i]``."""

    numbers: int
    columns: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout) -> OneHot:
        """Return the vector layout for rows with this layout."""
        columns = tuple(at for at, tokens in enumerate(layout.tokens) if tokens > 1)
        return cls(len(layout.numbers), columns, tuple(layout.tokens[at] for at in columns))

    @property
    def hot(self) -> int:
        """Total length of all blocks."""
        return sum(self.sizes)

    @property
    def width(self) -> int:
        """Length of a vector."""
        return self.numbers + self.hot

    @property
    def starts(self) -> list[int]:
        """Start of each block, relative to the start of the first block."""
        return list(itertools.accumulate(self.sizes, initial=0))[:-1]

    def blocks(self, x: Any) -> list[Any]:
        """Return a view of each block of vectors, shape ``(rows, size)``."""
        return [
            x[:, self.numbers + at : self.numbers + at + size] for at, size in zip(self.starts, self.sizes, strict=True)
        ]


def require_torch() -> None:
    """Raise :class:`~fedsynth.errors.Unsupported`, with the package to install, if PyTorch is missing."""
    import fedsynth.privacy.dpsgd  # noqa: F401  (its import raises the error)


class Vectors:
    """Rows of a batch as vectors, computed on request, since one-hot vectors of all rows would exhaust the memory.

    ``tokens`` has a column for each block; ``hot`` has the positions of their ones among all blocks.
    """

    def __init__(self, layout: Layout, batch: Batch) -> None:
        """Store tokens and scalars; raises :class:`~fedsynth.errors.Unsupported` if PyTorch is missing."""
        require_torch()
        import torch

        self.coded = OneHot.of(layout)
        self.tokens = torch.from_numpy(batch.tokens[:, list(self.coded.columns)])
        self.hot = self.tokens + torch.tensor(self.coded.starts, dtype=torch.int64)
        self.scalars = torch.from_numpy((2 * batch.places - 1).astype(np.float32))

    def __call__(self, rows: slice | Tensor, device: torch.device) -> Tensor:
        """Return the vectors of these rows, shape ``(rows, width)``, float32."""
        return written(self.scalars[rows], self.hot[rows], self.coded.hot).to(device)


def written(scalars: Tensor, hot: Tensor, size: int) -> Tensor:
    """Return ``scalars`` (rows, numbers) followed by ``size`` zeros, with ones at the positions ``hot``."""
    x = scalars.new_zeros(len(scalars), scalars.shape[1] + size)
    x[:, : scalars.shape[1]] = scalars
    return x.scatter_(1, hot + scalars.shape[1], 1.0)


def layers(widths: Sequence[int]) -> Shapes:
    """Return the shapes of consecutive linear layers, starting with ``widths[0]`` inputs."""
    return tuple(shape for pair in itertools.pairwise(widths) for shape in dense(*pair))


def perceptron(tape: Tape, at: int, x: Tensor, many: int, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``many`` linear layers to ``x``, each followed by an activation; parameters start at position ``at``."""
    for layer in range(many):
        x = activation(tape.linear(at + 2 * layer, x))
    return x


def linear_default(shapes: Shapes, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return PyTorch's default initial weights, flat: weights and biases uniform within 1 / sqrt(inputs)."""
    parts = []
    for weight, bias in zip(shapes[::2], shapes[1::2], strict=True):
        reach = 1 / math.sqrt(max(1, weight[1]))
        parts += [rng.uniform(-reach, reach, weight).ravel(), rng.uniform(-reach, reach, bias)]
    return np.concatenate(parts).astype(np.float32)


def computing(
    weights: NDArray[np.float32], shapes: Shapes, forward: Callable[..., Tensor], device: Device
) -> Callable[..., NDArray[np.float32]]:
    """Return a function of float32 arrays that evaluates ``forward(tape, *tensors)`` of a trained network.

    ``device`` "auto" is the configured device (:mod:`fedsynth.privacy.device`).
    """
    require_torch()
    import torch

    from fedsynth.privacy.dpsgd import Tape, split

    name = device_of(device)
    tape = Tape(split(weights, shapes, name))

    def compute(*inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            found: NDArray[np.float32] = (
                forward(tape, *(torch.from_numpy(array).to(name) for array in inputs)).cpu().numpy()
            )
        return found

    return compute


def drawn(coded: OneHot, layout: Layout, outputs: NDArray[np.float32], rng: np.random.Generator | None) -> Integers:
    """Return a token for each column from a network's ``outputs``, shape ``(rows, columns)``.

    Tokens are drawn from the softmax of their block; without ``rng``, the largest logit is taken.
    """
    tokens = np.zeros((len(outputs), len(layout.tokens)), dtype=np.int64)
    for at, logits in zip(coded.columns, coded.blocks(outputs), strict=True):
        if rng is None:
            tokens[:, at] = logits.argmax(axis=1)
            continue
        below = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64), axis=1)
        tokens[:, at] = (below < rng.random((len(logits), 1)) * below[:, -1:]).sum(axis=1)
    return tokens


def in_parts(rows: int, draw: Callable[[int], Batch]) -> Batch:
    """Draw ``rows`` rows, a few thousand at a time."""
    parts = [draw(min(_AT_ONCE, rows - start)) for start in range(0, max(rows, 1), _AT_ONCE)]
    return Batch(np.concatenate([part.tokens for part in parts]), np.concatenate([part.places for part in parts]))


def kept(model: Sampler, layout: Layout, evidence: Mapping[int, Evidence]) -> Kept | None:
    """Return a rejection sampler of a network's rows; ``None`` if the evidence excludes all tokens of some column."""
    if any(not known.likelihood(np.arange(layout.tokens[at])).any() for at, known in evidence.items()):
        return None
    return Kept(model, evidence)


def check_weights(weights: NDArray[np.float32], shapes: Shapes) -> None:
    """Raise :class:`InvalidParameter` for weights that do not fit a network with these shapes."""
    if weights.shape != (size_of(shapes),) or weights.dtype != np.float32 or not np.isfinite(weights).all():
        raise InvalidParameter(
            f"the network needs {size_of(shapes)} finite float32 weights, not {weights.shape} of {weights.dtype}; "
            "fit it again"
        )


def places_of(scalars: Any) -> Floats:
    """Return the places (0 to 1) of scalars (-1 to 1); 0.5 for NaN."""
    found: Floats = np.clip((np.nan_to_num(scalars.astype(np.float64)) + 1) / 2, 0, 1)
    return found
