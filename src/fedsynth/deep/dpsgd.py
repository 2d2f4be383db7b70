"""Clipped gradient sums of DP-SGD in one pass, with a proof of how much one row can change them.

DP-SGD (Abadi et al., arXiv 1607.00133) sums the gradients of sampled rows, each clipped to an L2 norm of C, and adds
Gaussian noise. In a network of linear layers and embeddings that uses each weight once per row, the gradient of one row
with respect to a layer z = W a + b is the outer product of g = dL/dz and a. Its squared norm is |g|^2 (|a|^2 + 1), and
|g|^2 for an embedding (Goodfellow, arXiv 1510.01799; Lee & Kifer, arXiv 2009.03106). One forward and one backward pass
to the layers' outputs therefore give every row's norm, and the clipped sum is one matrix product for each layer.

The change of the sum by one row. Let C be the clip norm (2^-30 to 2^20) and u = 2^-24, the unit roundoff of float32.
Sums and matrix products in float32 may be evaluated in any order: a sum of n products has an error of at most
n u / (1 - n u) times the sum of their absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).

1. *A row's contribution* is s a^T, with s = f g rounded to float32, and g and a as the floats that were computed. The
   factor f = min(1, C / norm) is computed from norms in float32. The inputs and outputs of all layers are at most 2^16
   numbers of a row, so the computed product of norms is too small by a relative error of at most 2^-9 (1 + 2^-6), and
   underflow is compensated. So the contribution is at most C (1 + 2^-9 (1 + 2^-5)), whatever weights a hostile server
   sent. Rows with any non-finite number, or with a norm above 2^64, have f = 0; for all others f is a normal number,
   and underflow in s adds less than 2^-40 C.
2. *Independence of rows.* The g and a of one row depend neither on other rows nor on its position: forward and
   backward pass are on ``CHUNK`` rows (the last ones padded), no operation mixes rows, and one thread computes all.
   (Several threads split a layer's outputs between them and may round the last numbers of a part differently, which
   weights of a hostile server enlarge to many times C.) A row's own random draws (noise, time) are fresh for each
   question, unknown to the server, and independent of those of all other rows, so two neighbouring tables can be
   compared with the same draws for the rows that they share. That all positions are rounded alike is not proved: it
   depends on the processor and its libraries. Code that computes 6 or 32 rows at once may round the rows that remain
   differently, and code for few columns every other row. So ``CHUNK`` is a multiple of 48 and of 64, no product has
   fewer than 16 columns, and a site tries random rows with the network in question before it answers
   (:func:`equal_positions`).
3. *Blocks.* The contributions of a block of ``BLOCK`` = b rows are summed in float32. As a vector of all weights, the
   sum has an error of at most b u / (1 - b u) times the sum of the b contributions' norms: less than .005 C, also with
   what underflow adds, less than 2^-40 C. The sum of the two blocks of a chunk has an error of at most 2^-14 C.
4. *Changed blocks.* Rows come in an order that is uniformly random and secret. A random order of n + 1 rows becomes a
   random order of n rows if one row is removed and the last row is put into its place: each of the n! orders arises
   from exactly n + 1 others. So two neighbouring tables can be compared with orders that correspond in this way. Then
   all blocks except two, that of the row and the last one, are the same, bit for bit. (In the order of the table, all
   blocks after the row would change, and the errors of all of them would add up.) So the errors of two blocks and two
   chunks, before and after, are the contribution of rounding: 4 (.005 + 2^-14) C < .0203 C.
5. *Chunks* are summed in float64, first those of a part of 2^10 to 2^16 rows, then the parts. For r rows, with P in a
   part, the error is at most (P / 2 + r / (2 P) + 1) r 2^-53 C (1 + 2^-7), less than 2^-8 (1 + 2^-6) C up to 2^28 rows,
   in each of two neighbouring sums.
6. *The grid.* Rounding to multiples of 2^-f moves each of d coordinates by at most 1/2 (in units of 2^-f) in both sums.

Steps 1, 4 and 5 add up to less than C (1 + 2^-5). So neighbouring integer sums are at most 2^f C (1 + 2^-5) + sqrt(d)
apart in L2, the sensitivity of :class:`~fedsynth.deep.training.NetworkTraining`, for each pair of corresponding draws
and orders. Averaging over such pairs makes the two laws of a release no easier to distinguish, because Renyi
divergences are quasi-convex: the privacy cost of releases on sampled rows (:mod:`~fedsynth.privacy.sampling`) holds as
if the draws and the order were fixed.

Step 2 was tested on CPUs only, so sites compute clipped sums on the CPU unless "cuda" is asked for by name
(:func:`~fedsynth.privacy.device.device`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import from_extra

with from_extra("deep", "training networks needs PyTorch"):
    import torch
    from torch import Tensor
    from torch.nn.functional import linear, pad

CHUNK = 576
"""Rows of a forward and backward pass: a multiple of 48 and 64, so that a row's results depend on that row alone."""
BLOCK = 288
"""Rows whose contributions are summed by one matrix product in float32: half of ``CHUNK``."""
_WIDTH = 16  # inputs and outputs of a product, at least
_LARGEST = 2.0**128  # largest squared norm of a gradient or layer input; networks that learn stay far below
_UNDERFLOW = 2.0**-108  # more than 2^16 squares can lose to underflow in float32


class Tape:
    """One forward pass of a network with ``parameters``; the network may use each of them only once per row.

    With ``per_row``, the parameters are constants, and inputs and outputs of layers are recorded for
    :func:`clipped_sum`. Without it, the pass is ordinary PyTorch, for plain training and for sampling. The records are
    ``linears`` and ``embeddings``: for each layer, the position of its weight among the parameters, its input and its
    output.
    """

    def __init__(self, parameters: Sequence[Tensor], *, per_row: bool = False) -> None:
        """Start a pass with these parameters."""
        self.parameters = parameters
        self.per_row = per_row
        self.linears: list[tuple[int, Tensor, Tensor]] = []
        self.embeddings: list[tuple[int, Tensor, Tensor]] = []

    def linear(self, at: int, x: Tensor) -> Tensor:
        """Return x W^T + b for the weight W, ``(outputs, inputs)``, at the position ``at``, and the bias after it."""
        weight, bias = self.parameters[at], self.parameters[at + 1]
        if not self.per_row:
            return linear(x, weight, bias)
        z = self._watched(_wide_linear(x, weight, bias))
        self.linears.append((at, x.detach(), z))
        return z

    def embed(self, at: int, index: Tensor) -> Tensor:
        """Return the rows ``index``, shape ``(rows,)``, of the embedding table at the position ``at``."""
        z = self.parameters[at][index]
        if self.per_row:
            z = self._watched(z)
            self.embeddings.append((at, index, z))
        return z

    @staticmethod
    def _watched(z: Tensor) -> Tensor:
        return z if z.requires_grad else z.requires_grad_()


def _wide_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return a linear layer computed with at least ``_WIDTH`` inputs and outputs, zeros if there are fewer.

    Products with few columns have kernels of their own, in which the rounding of a row depends on its position: those
    with a vector on the number of threads, those with two or three columns, before AVX2, on odd and even rows.
    """
    outputs, inputs = weight.shape
    if outputs >= _WIDTH and inputs >= _WIDTH:
        return linear(x, weight, bias)
    rows, columns = max(0, _WIDTH - outputs), max(0, _WIDTH - inputs)
    z = linear(pad(x, (0, columns)), pad(weight, (0, columns, 0, rows)), pad(bias, (0, rows)))
    return z[:, :outputs].contiguous()


class RowLosses(Protocol):
    """The per-row losses of a network, as :func:`clipped_sum` calls them for one chunk of rows after another."""

    def __call__(self, tape: Tape, rows: Tensor) -> Tensor:
        """Return the losses of the rows at these positions, shape ``(rows,)``, from a pass on ``tape``."""


def clipped_sum(losses: RowLosses, parameters: Sequence[Tensor], rows: int, clip: float) -> NDArray[np.float64]:
    """Return the sum of ``rows`` gradients of single rows, each clipped to L2 norm ``clip``: float64, shape ``(d,)``.

    ``losses`` is called with chunks of ``CHUNK`` = 576 positions (int64 on the CPU), of which the last ones may repeat
    a row. The d coordinates are those of the ``parameters``, in order; everything else is computed on their device. The
    rows of a release must be in a random order, and ``clip`` between 2^-30 and 2^20: the module's bound on the change
    of the sum by one row rests on both. A row with a non-finite or enormous gradient counts as 0.
    """
    with one_thread():
        return _clipped_sum(losses, [parameter.detach() for parameter in parameters], rows, clip)


@contextmanager
def one_thread() -> Iterator[None]:
    """A context manager: PyTorch uses one thread and full float32 precision, and flushes subnormal numbers to zero.

    Clipped sums are computed in it. With several threads, the last bits of a row's result depend on its position.
    Matrix products could otherwise use shorter floats, if this process configured PyTorch to do so. Subnormal numbers
    take much longer than others, so a hostile server could learn from the time whether a row has some value. Threads
    and precision are restored on exit.
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


def equal_positions(losses: RowLosses, parameters: Sequence[Tensor], orders: Sequence[Tensor]) -> bool:
    """Whether this machine computes the same numbers for a row, bit for bit, wherever it stands in a chunk.

    ``CHUNK`` rows of made-up data are computed in order and in each of ``orders`` (permutations of their positions).
    The bound on the change of a clipped sum by one row rests on equal numbers; equal ones here are evidence for it, not
    a proof.
    """
    constants = [parameter.detach() for parameter in parameters]

    def numbers(order: Tensor) -> list[Tensor]:
        tape, slopes, factor = _pass(losses, constants, order, 1.0)
        return [*(part.detach() for _, a, z in tape.linears for part in (a, z)), *slopes, factor]

    with one_thread():
        found = numbers(torch.arange(CHUNK))
        return all(
            torch.equal(one[order.to(one.device)], other)
            for order in orders
            for one, other in zip(found, numbers(order), strict=True)
        )


def _clipped_sum(losses: RowLosses, constants: Sequence[Tensor], rows: int, clip: float) -> NDArray[np.float64]:
    where = constants[0].device
    sizes = [constant.numel() for constant in constants]
    flat = torch.from_numpy(np.zeros(sum(sizes))).to(where)
    total = [part.view(constant.shape) for part, constant in zip(flat.split(sizes), constants, strict=True)]
    for start in range(0, rows, CHUNK):
        held = min(CHUNK, rows - start)
        chosen = torch.arange(start, start + CHUNK).clamp_(max=rows - 1)
        tape, slopes, factor = _pass(losses, constants, chosen, clip)
        linears, embeddings = slopes[: len(tape.linears)], slopes[len(tape.linears) :]
        factor = factor[:held]
        bad = None if factor.all() else factor == 0

        for (at, a, _), g in zip(tape.linears, linears, strict=True):
            scaled, a = g[:held] * factor, a[:held]
            if bad is not None:  # zero times a non-finite number is NaN
                scaled, a = scaled.masked_fill_(bad, 0.0), a.masked_fill(bad, 0.0)
            weight = scaled[:BLOCK].T @ a[:BLOCK]
            bias = scaled[:BLOCK].sum(0)
            if held > BLOCK:
                weight += scaled[BLOCK:].T @ a[BLOCK:]
                bias += scaled[BLOCK:].sum(0)
            for own, part in ((total[at], weight), (total[at + 1], bias)):
                own.add_(part) if start else own.copy_(part)
        for (at, index, _), g in zip(tape.embeddings, embeddings, strict=True):
            scaled = g[:held] * factor
            if bad is not None:
                scaled = scaled.masked_fill_(bad, 0.0)
            total[at].index_add_(0, index[:held], scaled.double())
    found: NDArray[np.float64] = flat.cpu().numpy()
    return found


def _pass(
    losses: RowLosses, constants: Sequence[Tensor], chosen: Tensor, clip: float
) -> tuple[Tape, Sequence[Tensor], Tensor]:
    """Return a chunk's forward pass, the gradients of its layers' outputs, and the factor that clips each row.

    Gradients are those of linear layers, then of embeddings; factors have shape ``(rows, 1)``, 0 for rows without a
    usable gradient.
    """
    tape = Tape(constants, per_row=True)
    loss = losses(tape, chosen)
    outputs = [z for _, _, z in (*tape.linears, *tape.embeddings)]
    slopes = torch.autograd.grad(loss.sum(), outputs)
    linears, embeddings = slopes[: len(tape.linears)], slopes[len(tape.linears) :]

    inputs = _squared_norms([a for _, a, _ in tape.linears])
    squared = (_squared_norms(linears) * (inputs + 1)).sum(0)
    if embeddings:
        squared += _squared_norms(embeddings).sum(0)
    good = torch.isfinite(loss.detach()) & (squared <= _LARGEST) & (inputs <= _LARGEST).all(0)  # false for NaN
    return tape, slopes, torch.where(good, clip / squared.sqrt().clamp_min(clip), 0.0).float()[:, None]


def _squared_norms(layers: Sequence[Tensor]) -> Tensor:
    """Return the squared L2 norm of each row at each layer in float64, shape ``(layers, rows)``, from float32 norms.

    Overflow gives infinity, and underflow is compensated, as step 1 of the module's proof needs.
    """
    norms = torch.stack([torch.linalg.vector_norm(layer, dim=1) for layer in layers])
    found: Tensor = norms.double().square_().add_(_UNDERFLOW)
    return found


def on_grid(values: NDArray[np.float64], bits: int, largest: int) -> NDArray[np.int64]:
    """Return the integers nearest to 2^bits times the ``values``, clipped to [-``largest``, ``largest``]."""
    found: NDArray[np.int64] = np.rint(np.clip(np.ldexp(values, bits), -largest, largest)).astype(np.int64)
    return found


def split(flat: NDArray[Any], shapes: Sequence[tuple[int, ...]], where: str = "cpu") -> list[Tensor]:
    """Split a ``flat`` vector of weights into float32 tensors of these ``shapes`` on the device ``where``."""
    values = torch.from_numpy(np.array(flat, dtype=np.float32)).to(where)
    sizes = [math.prod(shape) for shape in shapes]
    return [part.reshape(shape) for part, shape in zip(values.split(sizes), shapes, strict=True)]


def flattened(parameters: Sequence[Tensor]) -> NDArray[np.float32]:
    """Return ``parameters``, in order, as one flat float32 vector on the CPU; the inverse of :func:`split`."""
    found: NDArray[np.float32] = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).cpu().numpy()
    return found


def poisson(rows: int, rate: float, words: Callable[[int], NDArray[np.uint64]]) -> NDArray[np.int64]:
    """Return the positions of a Poisson sample of ``rows`` rows: int64, ascending, shape ``(drawn,)``.

    Each row is drawn independently with probability ``rate``, rounded down to a multiple of 2^-53. ``words(n)`` returns
    n uniform 64-bit words.
    """
    threshold = np.uint64(math.floor(rate * 2.0**53))
    drawn: NDArray[np.int64] = np.flatnonzero((words(rows) >> np.uint64(11)) < threshold)
    return drawn
