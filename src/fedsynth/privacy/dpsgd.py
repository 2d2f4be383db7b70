"""Clipped gradient sums of DP-SGD in one pass: what a row adds to them at most.

DP-SGD (Abadi et al., arXiv 1607.00133) adds up the gradients of sampled rows, each clipped to an L2 norm of C, and adds
Gaussian noise. For networks of linear layers and embeddings that use each weight once a row, the gradient of one row
with respect to a layer z = W a + b is the outer product of g = dL/dz and a: its squared norm is |g|^2 (|a|^2 + 1), and
|g|^2 for an embedding (Goodfellow, arXiv 1510.01799; Lee & Kifer, arXiv 2009.03106). One forward and one backward pass
to the layers' outputs therefore give every row's norm, and the clipped sum is one product of matrices for each layer.

How far one row moves the sum. A row's share of the sum is f g a^T with g and a as the floats that were computed, and
f = min(1, C / norm) from their norm in float64, so that it is at most C (1 + 2^-40) whatever a hostile server sent for
weights; rows with anything that is not finite have f = 0. The g and a of one row depend neither on other rows nor on
its position: all products are of two matrices of the same shape, ``CHUNK`` rows (the last ones padded), none mixes
rows, and one thread computes them all. (Several threads split a layer's outputs between them and may round the last
numbers of a part otherwise, which weights of a hostile server enlarge to many times C.) What a row draws for itself
(noise, time) is fresh for each question, unknown to the server, and independent of all other rows', so that two
neighbouring tables can be compared with the same draws for the rows that they share. The sum itself is made in float64:
adding up r rows in chunks loses at most (CHUNK + r / (2 CHUNK)) r 2^-53 C, less than 2^-6 C up to 2^28 rows, in each of
two neighbouring sums. Rounding to the grid 2^-f moves each of d coordinates by at most 1/2 in both. So neighbouring
integer sums are at most 2^f C (1 + 2^-5) + sqrt(d) apart in L2: the sensitivity of
:class:`~fedsynth.methods.training.NetworkTraining`. That the rows of a product of fixed shape do not depend on each
other is a property of the library that multiplies: it was tested on CPUs only, and sites under a budget therefore stay
on the CPU unless their steward names a GPU (:func:`~fedsynth.privacy.device.device`).
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
"""Rows of every product: the numbers of one row then depend on that row alone."""


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
    entries on the CPU, of which the last may repeat a row). All else is computed where the parameters are.
    """
    with one_thread():
        return _clipped_sum(losses, [one.detach() for one in parameters], rows, clip)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, and take numbers below the normal range for zero, while the block lasts.

    With several threads a row's last bits depend on its position. Numbers below the normal range take much
    longer than others, so that a hostile server could tell by the time whether a row has some value.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def _clipped_sum(losses: RowLosses, constants: Sequence[Tensor], rows: int, clip: float) -> NDArray[np.float64]:
    where = constants[0].device
    total = [torch.zeros(one.shape, dtype=torch.float64, device=where) for one in constants]
    for start in range(0, rows, CHUNK):
        held = min(CHUNK, rows - start)
        chosen = torch.arange(start, start + CHUNK).clamp_(max=rows - 1)
        tape = Tape(constants, per_row=True)
        loss = losses(tape, chosen)
        outputs = [z for _, _, z in (*tape.linears, *tape.embeddings)]
        slopes = torch.autograd.grad(loss.sum(), outputs)
        linears, embeddings = slopes[: len(tape.linears)], slopes[len(tape.linears) :]

        squared = torch.zeros(CHUNK, dtype=torch.float64, device=where)
        wide = []
        for (_, a, _), g in zip(tape.linears, linears, strict=True):
            a64, g64 = a.double(), g.double()
            squared += g64.square().sum(1) * (a64.square().sum(1) + 1)
            wide.append((a64, g64))
        for g in embeddings:
            squared += g.double().square().sum(1)
        norm = squared.sqrt()
        factor = (clip / norm.clamp_min(clip)) * (torch.arange(CHUNK, device=where) < held)
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss.detach()))
        factor[bad] = 0.0

        for (at, _, _), (a64, g64) in zip(tape.linears, wide, strict=True):
            scaled = g64 * factor[:, None]
            if bad.any():  # zero times what is not finite is no number
                scaled[bad], a64[bad] = 0.0, 0.0
            total[at].addmm_(scaled.T, a64)
            total[at + 1] += scaled.sum(0)
        for (at, index, _), g in zip(tape.embeddings, embeddings, strict=True):
            scaled = g.double() * factor[:, None]
            scaled[bad] = 0.0
            total[at].index_add_(0, index, scaled)
    found: NDArray[np.float64] = torch.cat([one.reshape(-1) for one in total]).cpu().numpy()
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
