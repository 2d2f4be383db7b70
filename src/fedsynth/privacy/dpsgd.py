"""Clipped gradient sums of DP-SGD in one pass: what a row adds to them at most.

DP-SGD (Abadi et al., arXiv 1607.00133) adds up the gradients of sampled rows, each clipped to an L2 norm of C, and adds
Gaussian noise. For networks of linear layers and embeddings that use each weight once a row, the gradient of one row
with respect to a layer z = W a + b is the outer product of g = dL/dz and a: its squared norm is |g|^2 (|a|^2 + 1), and
|g|^2 for an embedding (Goodfellow, arXiv 1510.01799; Lee & Kifer, arXiv 2009.03106). One forward and one backward pass
to the layers' outputs therefore give every row's norm, and the clipped sum is one product of matrices for each layer.

How far one row moves the sum. Let C be the clip norm (2^-30 to 2^20) and u = 2^-24, the unit roundoff of float32. Sums
and products of matrices in float32 may be made in any order: n products are added up with an error of at most
n u / (1 - n u) times the sum of their absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).

1. *A row's share* is s a^T, with s = f g rounded to float32, and g and a as the floats that were computed. The factor
   f = min(1, C / norm) is made from norms in float32; layers hold at most 2^16 numbers of a row, so that their product
   is too small by a part of 2^-9 (1 + 2^-6) at most, and what underflows is made up for. So the share is at most
   C (1 + 2^-8), whatever a hostile server sent for weights. Rows with anything that is not finite, or with a norm above
   2^64, have f = 0; of all others f is a normal number, and underflow in s adds less than 2^-40 C.
2. *Rows by themselves.* The g and a of one row depend neither on other rows nor on its position: all products are of
   two matrices of the same shape, ``CHUNK`` rows (the last ones padded), none mixes rows, and one thread computes them
   all. (Several threads split a layer's outputs between them and may round the last numbers of a part otherwise, which
   weights of a hostile server enlarge to many times C.) What a row draws for itself (noise, time) is fresh for each
   question, unknown to the server, and independent of all other rows', so that two neighbouring tables can be compared
   with the same draws for the rows that they share.
3. *Blocks.* The shares of a block, ``BLOCK`` = b rows, are added up in float32. As a vector of all weights the sum is
   off by at most b u / (1 - b u) times the sum of the b shares' norms: less than 2^-8 (1 + 2^-7) C; underflow adds less
   than 2^-40 C. The sum of the two blocks of a chunk is off by at most 2^-14 C.
4. *Which blocks change.* Rows come in an order that is uniformly random and secret. A random order of n + 1 rows
   becomes a random order of n rows if one row is taken out and the last one put into its place: each of the n! orders
   arises from exactly n + 1 others. So two neighbouring tables can be compared with orders that correspond in this way.
   Then all blocks but two, that of the row and the last one, are the same, bit for bit. (In the order of the table all
   blocks after the row would change, and errors of them all would add up.) So the errors of two blocks and two chunks,
   before and after, are what rounding adds: 4 (2^-8 (1 + 2^-7) + 2^-14) C < 2^-6 (1 + 2^-5) C.
5. *Chunks* are added up in float64, first those of a part of 2^10 to 2^16 rows, then the parts: r rows, with P in a
   part, lose at most (P / 2 + r / (2 P) + 1) r 2^-53 C (1 + 2^-7), less than 2^-8 (1 + 2^-6) C up to 2^28 rows, in each
   of two neighbouring sums.
6. *The grid.* Rounding to multiples of 2^-f moves each of d coordinates by at most 1/2 in both.

Steps 1, 4 and 5 add up to less than C (1 + 2^-5). So neighbouring integer sums are at most 2^f C (1 + 2^-5) + sqrt(d)
apart in L2, the sensitivity of :class:`~fedsynth.methods.training.NetworkTraining`, for each pair of draws and orders
that correspond. Averaging over such pairs makes the two laws of a release no easier to tell apart, because Renyi
divergences are quasi-convex: the price of a row that is sampled holds as if the draws and the order were fixed.

That the rows of a product of fixed shape do not depend on each other is a property of the library that multiplies: it
was tested on CPUs only, and sites under a budget therefore stay on the CPU unless their steward names a GPU
(:func:`~fedsynth.privacy.device.device`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported

try:
    import torch
    from torch import Tensor
    from torch.nn.functional import linear
except ImportError as error:
    raise Unsupported("training networks needs PyTorch; pip install 'fedsynth[deep]'") from error

CHUNK = 512
"""Rows of every product of a layer: the numbers of one row then depend on that row alone."""
BLOCK = 256
"""Rows whose shares are added up by one product of matrices, in float32: half of ``CHUNK``."""
_LARGEST = 2.0**128  # squared norm of a gradient, and of what goes into a layer: that of no network which learns
_UNDERFLOW = 2.0**-108  # that 2^16 squares may lose in float32, and more


class Tape:
    """One forward pass over ``parameters``, each of which may be used once a row.

    With ``per_row`` the parameters are constants, and inputs and outputs of layers are kept for
    :func:`clipped_sum`; without, the pass is PyTorch's own, for plain training and for drawing.
    """

    def __init__(self, parameters: Sequence[Tensor], *, per_row: bool = False) -> None:
        """Begin a pass."""
        self.parameters = parameters
        self.per_row = per_row
        self.linears: list[tuple[int, Tensor, Tensor]] = []
        self.embeddings: list[tuple[int, Tensor, Tensor]] = []

    def linear(self, at: int, x: Tensor) -> Tensor:
        """Return ``x`` (rows, inputs) times the weight at ``at`` (outputs, inputs) plus the bias at ``at + 1``."""
        weight, bias = self.parameters[at], self.parameters[at + 1]
        narrow = self.per_row and 1 in weight.shape
        z: Tensor = _by_row(x, weight, bias) if narrow else linear(x, weight, bias)
        if self.per_row:
            z = self._watched(z)
            self.linears.append((at, x.detach(), z))
        return z

    def embed(self, at: int, index: Tensor) -> Tensor:
        """Return the rows ``index`` (rows,) of the table at ``at`` (tokens, width), which is trained."""
        z = self.parameters[at][index]
        if self.per_row:
            z = self._watched(z)
            self.embeddings.append((at, index, z))
        return z

    @staticmethod
    def _watched(z: Tensor) -> Tensor:
        return z if z.requires_grad else z.requires_grad_()


def _by_row(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return a linear layer of one input or one output without a product of matrix and vector.

    Such products take rows in blocks that depend on the number of threads, and a row's last bits on its place in them.
    """
    return (x * weight).sum(1, keepdim=True) + bias if len(weight) == 1 else x * weight.T + bias


class RowLosses(Protocol):
    """A network: the loss of each of the rows of one chunk, shape ``(rows,)``."""

    def __call__(self, tape: Tape, rows: Tensor) -> Tensor:
        """Return the losses of the rows at these positions."""


def clipped_sum(losses: RowLosses, parameters: Sequence[Tensor], rows: int, clip: float) -> NDArray[np.float64]:
    """Return the sum over ``rows`` rows of their gradients, each clipped to the norm ``clip``: flat, shape ``(d,)``.

    ``losses(tape, chosen)`` gives the losses of the rows at the positions ``chosen`` (an int64 tensor of ``CHUNK``
    entries on the CPU, of which the last may repeat a row). All else is computed where the parameters are. The rows of
    a release must stand in a random order.
    """
    with one_thread():
        return _clipped_sum(losses, [one.detach() for one in parameters], rows, clip)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread and in full float32, and take numbers below the normal range for zero, within the block.

    With several threads a row's last bits depend on its position. Products of matrices could otherwise be made of
    shorter floats, if this process asked PyTorch for them. Numbers below the normal range take much longer than others,
    so that a hostile server could tell by the time whether a row has some value.
    """
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def _clipped_sum(losses: RowLosses, constants: Sequence[Tensor], rows: int, clip: float) -> NDArray[np.float64]:
    where = constants[0].device
    sizes = [one.numel() for one in constants]
    flat = torch.from_numpy(np.zeros(sum(sizes))).to(where)
    total = [part.view(one.shape) for part, one in zip(flat.split(sizes), constants, strict=True)]
    for start in range(0, rows, CHUNK):
        held = min(CHUNK, rows - start)
        chosen = torch.arange(start, start + CHUNK).clamp_(max=rows - 1)
        tape = Tape(constants, per_row=True)
        loss = losses(tape, chosen)
        outputs = [z for _, _, z in (*tape.linears, *tape.embeddings)]
        slopes = torch.autograd.grad(loss.sum(), outputs)
        linears, embeddings = slopes[: len(tape.linears)], slopes[len(tape.linears) :]

        inputs = _squared_norms([a for _, a, _ in tape.linears])
        squared = (_squared_norms(linears) * (inputs + 1)).sum(0)
        if embeddings:
            squared += _squared_norms(embeddings).sum(0)
        good = torch.isfinite(loss.detach()) & (squared <= _LARGEST) & (inputs <= _LARGEST).all(0)  # nan is not
        factor = torch.where(good, clip / squared.sqrt().clamp_min(clip), 0.0).float()[:, None]
        factor[held:] = 0.0
        bad = None if good.all() else ~good[:, None]

        for (at, a, _), g in zip(tape.linears, linears, strict=True):
            scaled = g * factor
            if bad is not None:  # zero times what is not finite is no number
                scaled, a = scaled.masked_fill_(bad, 0.0), a.masked_fill(bad, 0.0)
            weight = scaled[:BLOCK].T @ a[:BLOCK]
            if held > BLOCK:
                weight += scaled[BLOCK:].T @ a[BLOCK:]
            bias = scaled[:BLOCK].sum(0) + scaled[BLOCK:].sum(0)
            for own, part in ((total[at], weight), (total[at + 1], bias)):
                own.add_(part) if start else own.copy_(part)
        for (at, index, _), g in zip(tape.embeddings, embeddings, strict=True):
            scaled = g * factor
            if bad is not None:
                scaled = scaled.masked_fill_(bad, 0.0)
            total[at].index_add_(0, index, scaled.double())
    found: NDArray[np.float64] = flat.cpu().numpy()
    return found


def _squared_norms(layers: Sequence[Tensor]) -> Tensor:
    """Return the squared L2 norm of each row at each layer in float64, shape ``(layers, rows)``: from norms in float32.

    One that overflows is infinite, and what underflows is made up for.
    """
    norms = torch.stack([torch.linalg.vector_norm(one, dim=1) for one in layers])
    found: Tensor = norms.double().square_().add_(_UNDERFLOW)
    return found


def on_grid(values: NDArray[np.float64], bits: int, largest: int) -> NDArray[np.int64]:
    """Return the integers nearest to ``2^bits`` times the values, none beyond ``largest`` in size."""
    found: NDArray[np.int64] = np.rint(np.clip(np.ldexp(values, bits), -largest, largest)).astype(np.int64)
    return found


def split(flat: NDArray[Any], shapes: Sequence[tuple[int, ...]], where: str = "cpu") -> list[Tensor]:
    """Return a flat vector as float32 tensors of these shapes, copied to the device ``where``."""
    values = torch.from_numpy(np.array(flat, dtype=np.float32)).to(where)
    sizes = [math.prod(shape) for shape in shapes]
    return [one.reshape(shape) for one, shape in zip(values.split(sizes), shapes, strict=True)]


def flattened(parameters: Sequence[Tensor]) -> NDArray[np.float32]:
    """Return parameters as one flat vector."""
    found: NDArray[np.float32] = torch.cat([one.detach().reshape(-1) for one in parameters]).cpu().numpy()
    return found


def poisson(rows: int, rate: float, words: Callable[[int], NDArray[np.uint64]]) -> NDArray[np.int64]:
    """Return the positions of the rows drawn, each independently with probability ``rate`` (rounded down to 2^-53)."""
    threshold = np.uint64(math.floor(rate * 2.0**53))
    drawn: NDArray[np.int64] = np.flatnonzero((words(rows) >> np.uint64(11)) < threshold)
    return drawn
