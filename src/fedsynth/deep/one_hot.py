"""Rows as real vectors, as in TVAE and CTGAN (Xu et al., arXiv 1907.00503).

A vector has one scalar from -1 to 1 for each number (its scaled place), followed by a one-hot block for each column
with more than one token (:mod:`fedsynth.deep.encoders`); a column with one token has no information and no block.
Networks output scalars before a tanh, and blocks as logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.deep.encoders import BatchLayout, EncodedBatch
from fedsynth.deep.networks import Shapes, dense
from fedsynth.models.evidence import Evidence, RejectionSampler, Sampler
from fedsynth.privacy.device import Device
from fedsynth.privacy.device import device as device_of
from fedsynth.schema.bins import Floats, Integers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedsynth.deep.dpsgd import Tape

MOST_LAYERS = 4
Widths = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=8, le=1024)], ...], msgspec.Meta(min_length=1, max_length=MOST_LAYERS)
]
"""Widths of hidden layers, in the order from a network's input."""

_FARTHEST = 1e30  # bound of outputs: their differences stay finite in float32
_AT_ONCE = 4096  # rows sampled together


class OneHot(NamedTuple):
    """Layout of a row as a real vector, as in CTGAN: scalars for numbers, then a one-hot block for each column.

    A vector has ``numbers`` scalars from -1 to 1, then a block of ``sizes[i]`` entries, one for each token, for the
    column at position ``columns[i]``.
    """

    numbers: int
    columns: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, layout: BatchLayout) -> OneHot:
        """Return where scalars and one-hot blocks lie in the vectors of encoded rows."""
        columns = tuple(at for at, tokens in enumerate(layout.tokens) if tokens > 1)
        return cls(len(layout.numbers), columns, tuple(layout.tokens[at] for at in columns))

    @property
    def hot(self) -> int:
        """Total length of all one-hot blocks of a vector."""
        return sum(self.sizes)

    @property
    def width(self) -> int:
        """Length of a vector."""
        return self.numbers + self.hot

    @property
    def starts(self) -> list[int]:
        """Start of each one-hot block of a vector, relative to the start of the first block."""
        return list(itertools.accumulate(self.sizes, initial=0))[:-1]

    def blocks(self, x: Any) -> list[Any]:
        """Return views ``(rows, size)`` of the one-hot blocks of vectors ``(rows, width)``, an array or tensor."""
        hot = x[:, self.numbers :]
        if isinstance(hot, np.ndarray):
            return [hot[:, at : at + size] for at, size in zip(self.starts, self.sizes, strict=True)]
        return list(hot.split(self.sizes, 1))  # the gradient is then one tensor, not one for each block


def require_torch() -> None:
    """Raise :class:`~fedsynth.errors.Unsupported`, with the package to install, if PyTorch is missing."""
    import fedsynth.deep.dpsgd  # noqa: F401  (its import raises the error)


class RowVectors:
    """Rows of a ``batch`` as real vectors (:class:`OneHot`), made on request: all at once would exhaust the memory.

    Calling the object with rows (a slice or tensor of positions) and a device returns their vectors, a float32 tensor
    of shape ``(rows, width)``. ``coded`` is the layout of the vectors; ``tokens``, shape ``(rows, blocks)``, holds the
    token of each row's one-hot blocks; ``hot``, of the same shape, the position of each block's 1, counted from the
    start of the first block; ``scalars``, shape ``(rows, numbers)``, are from -1 to 1.
    """

    def __init__(self, layout: BatchLayout, batch: EncodedBatch) -> None:
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
    """Return vectors: ``scalars``, followed by ``size`` entries that are 1 at the positions ``hot`` and 0 elsewhere."""
    x = scalars.new_zeros(len(scalars), scalars.shape[1] + size)
    x[:, : scalars.shape[1]] = scalars
    return x.scatter_(1, hot + scalars.shape[1], 1.0)


def layers(widths: Sequence[int]) -> Shapes:
    """Return the shapes of the parameters of consecutive linear layers.

    ``widths`` are the number of inputs of the first layer, then the number of outputs of each.
    """
    return tuple(shape for pair in itertools.pairwise(widths) for shape in dense(*pair))


def perceptron(tape: Tape, at: int, x: Tensor, many: int, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``many`` linear layers with parameters from position ``at`` on, each followed by ``activation``."""
    for layer in range(many):
        x = activation(tape.linear(at + 2 * layer, x))
    return x


def linear_default(shapes: Shapes, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return PyTorch's default initial weights of linear layers, float32: uniform within +-1 / sqrt(inputs)."""
    parts = []
    for weight, bias in zip(shapes[::2], shapes[1::2], strict=True):
        reach = 1 / math.sqrt(max(1, weight[1]))
        parts += [rng.uniform(-reach, reach, weight).ravel(), rng.uniform(-reach, reach, bias)]
    return np.concatenate(parts).astype(np.float32)


def computing(
    weights: NDArray[np.float32], shapes: Shapes, forward: Callable[..., Tensor], device: Device
) -> Callable[..., NDArray[np.float32]]:
    """Return a function that evaluates a trained network on NumPy arrays: float32 in, float32 out, without gradients.

    Outputs lie between +-1e30, and NaN gives 0: weights of a hostile file may make a network overflow.

    The function computes ``forward(tape, *tensors)`` with the flat ``weights``, split by ``shapes``. ``device`` "auto"
    is the configured device (:mod:`fedsynth.privacy.device`). Raises :class:`~fedsynth.errors.Unsupported` if PyTorch,
    or a GPU that was named, is missing.
    """
    require_torch()
    import torch

    from fedsynth.deep.dpsgd import Tape, split

    name = device_of(device)
    tape = Tape(split(weights, shapes, name))

    def compute(*inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            outputs = forward(tape, *(torch.from_numpy(array).to(name) for array in inputs))
            found: NDArray[np.float32] = outputs.nan_to_num(0.0).clamp(-_FARTHEST, _FARTHEST).cpu().numpy()
        return found

    return compute


def drawn(
    coded: OneHot, layout: BatchLayout, outputs: NDArray[np.float32], rng: np.random.Generator | None
) -> Integers:
    """Draw a token for each column of each row from a network's ``outputs``, shape ``(rows, width)``.

    Returns int64, shape ``(rows, columns)``. Tokens are drawn from the softmax of their block; without ``rng``, the
    largest logit is taken. Columns without a block get token 0.
    """
    tokens = np.zeros((len(outputs), len(layout.tokens)), dtype=np.int64)
    for at, logits in zip(coded.columns, coded.blocks(outputs), strict=True):
        if rng is None:
            tokens[:, at] = logits.argmax(axis=1)
            continue
        below = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64), axis=1)
        tokens[:, at] = (below < rng.random((len(logits), 1)) * below[:, -1:]).sum(axis=1)
    return tokens


def in_parts(rows: int, draw: Callable[[int], EncodedBatch]) -> EncodedBatch:
    """Draw ``rows`` encoded rows in parts, to bound the memory; ``draw(many)`` returns ``many`` (at most 4096)."""
    parts = [draw(min(_AT_ONCE, rows - start)) for start in range(0, max(rows, 1), _AT_ONCE)]
    return EncodedBatch(
        np.concatenate([part.tokens for part in parts]), np.concatenate([part.places for part in parts])
    )


def kept(model: Sampler, layout: BatchLayout, evidence: Mapping[int, Evidence]) -> RejectionSampler | None:
    """Return a rejection sampler of a network's rows; ``None`` if ``evidence`` excludes all tokens of some column."""
    if any(not known.likelihood(np.arange(layout.tokens[at])).any() for at, known in evidence.items()):
        return None
    return RejectionSampler(model, evidence)


def places_of(scalars: Any) -> Floats:
    """Convert a network's ``scalars`` (-1 to 1) to places of numbers (0 to 1), float64; NaN gives 0.5."""
    found: Floats = np.clip((np.nan_to_num(scalars.astype(np.float64)) + 1) / 2, 0, 1)
    return found
