"""Diffusion models of encoded rows: FinDiff, and the network that the sites of FedTabDiff train.

Sattarov et al., FinDiff (arXiv 2309.01472) and FedTabDiff (arXiv 2401.06263), after denoising diffusion (Ho et al.,
arXiv 2006.11239). The network works on points: a row's point consists of the fixed random vector of each token
(:mod:`fedsynth.deep.encoders`), and the normal score (standard normal quantile) of each place. As published, a network
learns to predict the noise in a noisy point; rows are sampled by removing noise step by step from pure noise, and a
category is decoded to the token with the nearest vector. By default the network here predicts the row itself, as
probabilities of tokens and normal scores (as in Dieleman et al., arXiv 2211.15089, and in DP-FinDiff's decoder): it
represents frequent values from the start and needs a fraction of the training steps. DDIM (Song et al., arXiv
2010.02502) samples in 25 steps instead of 500.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.deep.encoders import BatchLayout, EncodedBatch, SavedLayout, codes_of
from fedsynth.deep.networks import Shapes, check_weights, dense, glorot, read_weights
from fedsynth.errors import InvalidParameter
from fedsynth.models.evidence import Evidence, RejectionSampler, Sampler
from fedsynth.models.saved import DrawnColumn, Total, read_floats, read_head
from fedsynth.privacy.device import Device
from fedsynth.privacy.device import device as device_of

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from fedsynth.deep.dpsgd import RowLosses, Tape

Array = NDArray[np.float64]
Precision = Literal["auto", "float32"]

FEATURES = 64
"""Length of the feature vector of a time, and smallest width at which row, time and label are added.

A wider row has the next power of two as its width: through a narrower layer its noise would not be visible, and sampled
rows would lie far from all real ones.
"""
FIRST, LAST = 1e-4, 0.02  # noise variance of the first and the last step, for 1000 steps
REACH = 5.2  # bound of normal scores: about ndtri(1e-7), as in scikit-learn's quantile transformer
SLOPE = 0.4  # of LeakyReLU below zero
CHUNK = 4096  # rows sampled together
_MOST_VARIANCE = 0.999  # largest noise variance of one step, reached when there are few steps
_FARTHEST = 1e6  # bound of the coordinates of a sampled point
_DISTANCES = 1 << 22  # distances held at a time
_FASTER = 2.0  # bfloat16 is used if it is this many times as fast as float32: a large factor makes the choice stable


class Diffusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="diffusion"):
    """Public hyperparameters of a denoising network (FinDiff, FedTabDiff), which sites train.

    The network has ``depth`` hidden layers of ``width``. There are ``steps`` steps of diffusion, with noise variances
    from 1e-4 to 0.02, times 1000 / steps and at most 0.999 if ``scaled`` (otherwise, with fewer than 1000 steps, the
    last one keeps some signal, which sampling ignores). Token vectors have ``embedding`` numbers each and are drawn
    from ``seed``. The token of the column at position ``label`` is given to the network instead of being denoised (-1:
    no label). The network ``predicts`` the "row", or the "noise" as published. It implements
    :class:`~fedsynth.deep.networks.Network`.
    """

    width: Annotated[int, msgspec.Meta(ge=8, le=2048)] = 256
    depth: Annotated[int, msgspec.Meta(ge=1, le=8)] = 4
    steps: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 500
    scaled: bool = True
    embedding: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    label: Annotated[int, msgspec.Meta(ge=-1, le=1 << 16)] = -1
    seed: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    predicts: Literal["row", "noise"] = "row"

    def shapes(self, layout: BatchLayout) -> Shapes:
        """Return the shapes of the parameters, in order.

        These are weight and bias of each linear layer: two for the time (step of diffusion), two for the row's point,
        ``depth`` hidden layers, and the last layer. A label adds a table of trained vectors, one per token of its
        column. Raises :class:`InvalidParameter` for a label position beyond the columns, and if no column is left to
        denoise.
        """
        if self.label >= len(layout.tokens):
            raise InvalidParameter(
                f"label {self.label} is not one of {len(layout.tokens)} columns; count from 0, or give -1 for no label"
            )
        size = self.dimensions(layout)
        if not size:
            raise InvalidParameter(
                "every column except the label has only one value, so there is nothing to train on; add columns"
            )
        wide = max(FEATURES, 1 << (size - 1).bit_length())
        outputs = size if self.predicts == "noise" else self.logits(layout) + len(layout.numbers)
        widths = (wide, *[self.width] * self.depth, outputs)
        trunk = [shape for inputs, outputs in itertools.pairwise(widths) for shape in dense(inputs, outputs)]
        table = ((layout.tokens[self.label], wide),) if self.label >= 0 else ()
        return (
            *dense(FEATURES, wide),
            *dense(wide, wide),
            *dense(size, wide),
            *dense(wide, wide),
            *trunk,
            *table,
        )

    def initial(self, layout: BatchLayout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return initial parameters: weights Glorot uniform, biases zero, and vectors of a label's tokens N(0, 1)."""
        shapes = self.shapes(layout)
        layers = shapes[: 10 + 2 * self.depth]
        tables = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes[len(layers) :]]
        return np.concatenate([part.ravel() for part in (*glorot(layers, rng), *tables)])

    def losses(self, layout: BatchLayout, batch: EncodedBatch, rng: np.random.Generator) -> RowLosses:
        """Return the function that computes the rows' losses, each with its own time (uniform) and noise.

        For a network that predicts noise, the loss is the mean squared error over the dimensions of the row's point.
        For one that predicts rows, it is the mean over token vectors and numbers of the cross-entropy of a token and
        the squared error of a number's normal score.
        """
        from fedsynth.deep import dpsgd  # noqa: F401  (imported first: its error tells what to install)

        # isort: split
        import torch

        size, rows = self.dimensions(layout), len(batch.tokens)
        times = rng.integers(0, self.steps, rows)
        noise = rng.standard_normal((rows, size), dtype=np.float32)
        signal = self.signal[times, None]
        points = self.points(layout, batch)
        noisy = np.sqrt(signal).astype(np.float32) * points
        noisy += np.sqrt(1 - signal).astype(np.float32) * noise
        eps, x, features = (torch.from_numpy(array) for array in (noise, noisy, time_features(self.steps)[times]))
        labels = torch.from_numpy(np.ascontiguousarray(batch.tokens[:, self.label])) if self.label >= 0 else None
        tokens = torch.from_numpy(batch.tokens[:, self.embedded(layout)])
        scores = torch.from_numpy(points[:, size - len(layout.numbers) :])
        columns = tokens.shape[1] + scores.shape[1]

        def of(tape: Tape, rows: slice | Tensor) -> Tensor:
            device = tape.parameters[0].device
            known = None if labels is None else labels[rows].to(device)
            found = self.outputs(tape, x[rows].to(device), features[rows].to(device), known)
            if self.predicts == "noise":
                return (found - eps[rows].to(device)).square().mean(1)
            by_block, guessed = self.by_block(layout, found)
            lost = (guessed - scores[rows].to(device)).square().sum(1)
            chunk_tokens = tokens[rows].to(device)
            for block, logits in zip(self.blocks(layout), by_block, strict=True):
                own = chunk_tokens[:, block.first : block.first + block.columns, None]
                lost = lost - logits.log_softmax(2).gather(2, own).sum((1, 2))
            return lost / columns

        return of

    def outputs(self, tape: Tape, x: Tensor, features: Tensor, labels: Tensor | None) -> Tensor:
        """Return the network's output for noisy points ``x``: their noise, or logits of tokens and normal scores.

        ``x`` has shape ``(rows, dimensions)``, as has predicted noise. A network that predicts rows returns one logit
        per token of each column in :meth:`embedded`, then one score per number. ``features`` are those of the rows'
        times (:func:`time_features`), shape ``(rows, 64)`` or ``(1, 64)``; ``labels`` are the rows' tokens of the label
        column.
        """
        from torch.nn.functional import leaky_relu, silu

        hidden = tape.linear(6, silu(tape.linear(4, x))) + tape.linear(2, silu(tape.linear(0, features)))
        if labels is not None:
            hidden = hidden + tape.embed(10 + 2 * self.depth, labels)
        for at in range(8, 8 + 2 * self.depth, 2):
            hidden = leaky_relu(tape.linear(at, hidden), SLOPE)
        return tape.linear(8 + 2 * self.depth, hidden)

    def points_of(self, layout: BatchLayout, outputs: Tensor, vectors: Tensor) -> Tensor:
        """Return the points of predicted rows: means of tokens' ``vectors`` by probability, and normal scores."""
        from torch import bmm, cat

        parts = []
        by_block, scores = self.by_block(layout, outputs)
        for block, logits in zip(self.blocks(layout), by_block, strict=True):
            table = vectors[block.begin : block.end].reshape(block.columns, block.tokens, self.embedding)
            parts.append(bmm(logits.softmax(2).transpose(0, 1), table).transpose(0, 1).flatten(1))
        return cat([*parts, scores], 1)

    def blocks(self, layout: BatchLayout) -> list[TokenBlock]:
        """Return the columns with token vectors in blocks of as many tokens each, in the order of :meth:`embedded`."""
        found: list[TokenBlock] = []
        for size, group in itertools.groupby(layout.tokens[at] for at in self.embedded(layout)):
            first, begin = (found[-1].first + found[-1].columns, found[-1].end) if found else (0, 0)
            found.append(TokenBlock(first, len(list(group)), size, begin))
        return found

    def by_block(self, layout: BatchLayout, outputs: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the logits of each block, ``(rows, columns, tokens)``, and the scores, ``(rows, numbers)``."""
        blocks = self.blocks(layout)
        sizes = [block.end - block.begin for block in blocks]
        *parts, scores = outputs.split([*sizes, len(layout.numbers)], 1)  # one tensor of gradients, not one for each
        return [
            part.unflatten(1, (block.columns, block.tokens)) for part, block in zip(parts, blocks, strict=True)
        ], scores

    def logits(self, layout: BatchLayout) -> int:
        """Return the number of logits in an output: one for each token of the columns in :meth:`embedded`."""
        return sum(layout.tokens[at] for at in self.embedded(layout))

    @property
    def variances(self) -> Array:
        """Variance of the noise added in each step (beta in Ho et al.), shape ``(steps,)``."""
        scale = 1000 / self.steps if self.scaled else 1.0
        found: Array = np.minimum(np.linspace(FIRST * scale, LAST * scale, self.steps), _MOST_VARIANCE)
        return found

    @property
    def signal(self) -> Array:
        """Share of a noisy row's variance that is signal, by step (alpha-bar in Ho et al.): ``(steps,)``."""
        found: Array = np.cumprod(1 - self.variances, dtype=np.float64)
        return found

    def embedded(self, layout: BatchLayout) -> list[int]:
        """Return the positions of columns with token vectors, fewest tokens first.

        These are the columns of two or more tokens, except the label.
        """
        found = [at for at, many in enumerate(layout.tokens) if many > 1 and at != self.label]
        return sorted(found, key=lambda at: layout.tokens[at])

    def dimensions(self, layout: BatchLayout) -> int:
        """Return the dimension of points: a vector for each column in :meth:`embedded`, a score per number."""
        return self.embedding * len(self.embedded(layout)) + len(layout.numbers)

    def vectors(self, layout: BatchLayout) -> NDArray[np.float32]:
        """Return the fixed random vectors of tokens, ``(tokens, embedding)``, by :meth:`embedded`; equal everywhere."""
        return _vectors(self.logits(layout), self.embedding, self.seed)

    def points(self, layout: BatchLayout, batch: EncodedBatch) -> NDArray[np.float32]:
        """Return encoded rows as points ``(rows, dimensions)``: vectors of tokens, then scores within +-5.2."""
        from scipy.special import ndtri

        columns = self.embedded(layout)
        sizes = np.array([layout.tokens[at] for at in columns], dtype=np.int64)
        index = batch.tokens[:, columns] + (np.cumsum(sizes) - sizes)
        found = np.empty((len(index), self.dimensions(layout)), dtype=np.float32)
        split = self.embedding * len(columns)
        found[:, :split] = self.vectors(layout)[index].reshape(len(index), split)
        found[:, split:] = np.clip(ndtri(batch.places), -REACH, REACH)
        return found


@lru_cache(8)
def _vectors(tokens: int, width: int, seed: int) -> NDArray[np.float32]:
    """Return vectors of N(0, 1) by inversion of random bits, because NumPy's own normal sampler may change."""
    from scipy.special import ndtri

    bits = np.random.Philox(key=seed).random_raw(tokens * width)
    found: NDArray[np.float32] = ndtri(((bits >> 11) + 0.5) * 2.0**-53).astype(np.float32).reshape(tokens, width)
    found.flags.writeable = False
    return found


@lru_cache(8)
def time_features(steps: int) -> NDArray[np.float32]:
    """Return all steps' features of time, ``(steps, 64)``: cosines and sines at frequencies from 1 to about 1e-4."""
    half = FEATURES // 2
    angles = np.arange(steps)[:, None] * 10_000.0 ** (-np.arange(half) / half)
    found: NDArray[np.float32] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found.flags.writeable = False
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Sampling


class TokenBlock(NamedTuple):
    """Columns with the same number of tokens, which a network processes together.

    They are consecutive in the order of :meth:`Diffusion.embedded`, from number ``first`` on; the first token's
    position among those of all embedded columns is ``begin``.
    """

    first: int
    columns: int
    tokens: int
    begin: int

    @property
    def end(self) -> int:
        """Position at which the next block begins."""
        return self.begin + self.columns * self.tokens


class DenoisingStep(NamedTuple):
    """One denoising step of a sampler: x becomes ``keep`` x + ``remove`` (predicted noise) + ``add`` (fresh noise).

    ``time`` is the step of diffusion, from 0, to which the network's prediction refers.
    """

    time: int
    keep: float
    remove: float
    add: float


def ddpm(network: Diffusion) -> list[DenoisingStep]:
    """Return all steps of the DDPM sampler (Ho et al.), from the noisiest to time 0, which adds no noise."""
    beta, signal = network.variances, network.signal
    keep = 1 / np.sqrt(1 - beta)
    remove = -keep * beta / np.sqrt(1 - signal)
    add = np.append(0.0, np.sqrt(beta[1:]))
    return [DenoisingStep(at, keep[at], remove[at], add[at]) for at in reversed(range(network.steps))]


def ddim(network: Diffusion, steps: int) -> list[DenoisingStep]:
    """Return ``steps`` evenly spaced steps (at most all) of the DDIM sampler (Song et al., eta = 0).

    No fresh noise is added. A single step leads from the noisiest time to the row.
    """
    times = np.unique(np.linspace(0, network.steps - 1, steps).round().astype(np.int64))[::-1]
    if steps == 1:
        times = np.array([network.steps - 1])
    now = network.signal[times]
    then = np.append(now[1:], 1.0)
    keep = np.sqrt(then / now)
    remove = np.sqrt(1 - then) - keep * np.sqrt(1 - now)
    return [DenoisingStep(int(at), keep[step], remove[step], 0.0) for step, at in enumerate(times)]


def draw(
    network: Diffusion,
    layout: BatchLayout,
    weights: NDArray[np.float32],
    steps: Sequence[DenoisingStep],
    labels: NDArray[np.int64] | int,
    rng: np.random.Generator,
    *,
    device: Device = "auto",
    precision: Precision = "auto",
) -> EncodedBatch:
    """Sample encoded rows from a trained network, by denoising random points in these ``steps``.

    ``labels`` are the tokens of the label column, which the network reads and does not draw, one for each row to
    sample; for a network without a label, the number of rows. ``device`` "auto" is the configured device
    (:mod:`fedsynth.privacy.device`). ``precision`` "auto" evaluates the network in bfloat16 if that is at least twice
    as fast. The same ``rng`` gives the same rows on the same machine, in the same precision. Raises
    :class:`~fedsynth.errors.Unsupported` if PyTorch, or a GPU that was named, is missing.
    """
    from fedsynth.deep.dpsgd import Tape, split  # imported first: its error tells what to install

    # isort: split
    import torch
    from scipy.special import ndtr

    where = device_of(device)
    kind = torch.bfloat16 if precision == "auto" and bfloat16_is_faster(where) else torch.float32
    tape = Tape([part.to(kind) for part in split(weights, network.shapes(layout), where)])
    features = torch.from_numpy(time_features(network.steps)[[step.time for step in steps]]).to(where, kind)
    vectors = torch.from_numpy(network.vectors(layout).copy()).to(where)
    chance = torch.Generator(where).manual_seed(int(rng.integers(1 << 63)))
    rows = labels if isinstance(labels, int) else len(labels)
    tokens = np.zeros((rows, len(layout.tokens)), dtype=np.int64)
    places = np.empty((rows, len(layout.numbers)))
    with torch.inference_mode():
        for start in range(0, rows, CHUNK):
            part = slice(start, start + CHUNK)
            # x stays float32: only the network is evaluated in lower precision.
            shape = min(CHUNK, rows - start), network.dimensions(layout)
            x = torch.randn(shape, generator=chance, device=where)
            known = None
            if not isinstance(labels, int):
                tokens[part, network.label] = labels[part]
                known = torch.from_numpy(labels[part]).to(where)
            for at, step in enumerate(steps):
                output = network.outputs(tape, x.to(kind), features[at : at + 1], known).float()
                noise = output
                if network.predicts == "row":
                    signal = float(network.signal[step.time])
                    noise = network.points_of(layout, output, vectors).mul_(-(signal**0.5)).add_(x)
                    noise /= (1 - signal) ** 0.5
                x.mul_(step.keep).add_(noise, alpha=step.remove)
                if step.add:
                    x.add_(torch.randn(shape, generator=chance, device=where), alpha=step.add)
            if network.predicts == "row":
                tokens[part, network.embedded(layout)] = _drawn(network, layout, output, chance)
            else:
                tokens[part, network.embedded(layout)] = _nearest(network, layout, x, vectors)
            scores = x[:, x.shape[1] - len(layout.numbers) :]
            places[part] = ndtr(scores.nan_to_num(0.0).clamp_(-_FARTHEST, _FARTHEST).double().cpu().numpy())
    return EncodedBatch(tokens, places)


def _nearest(network: Diffusion, layout: BatchLayout, x: Tensor, vectors: Tensor) -> NDArray[np.int64]:
    """Return the token with the nearest vector for each embedded column of points ``x``, shape ``(rows, columns)``."""
    x = x.nan_to_num(0.0).clamp_(-_FARTHEST, _FARTHEST)
    width, begin, found = network.embedding, 0, []
    for number, at in enumerate(network.embedded(layout)):
        table = vectors[begin : begin + layout.tokens[at]]
        begin += len(table)
        # |x - v|^2 without |x|^2, which is equal for all tokens
        squares = table.square().sum(1)
        nearest = [
            squares.addmm(points, table.T, alpha=-2).argmin(1)
            for points in x[:, number * width : (number + 1) * width].split(max(1, _DISTANCES // len(table)))
        ]
        found.append(np.concatenate([part.cpu().numpy() for part in nearest]))
    return np.stack(found, axis=1) if found else np.zeros((len(x), 0), dtype=np.int64)


def _drawn(network: Diffusion, layout: BatchLayout, outputs: Tensor, chance: Generator) -> NDArray[np.int64]:
    """Draw a token of each embedded column from the softmax of its logits, shape ``(rows, columns)``."""
    import torch

    found = []
    logits_by_block, _ = network.by_block(layout, outputs.nan_to_num(0.0))
    for logits in logits_by_block:
        # The argmax of logits minus log of exponential draws is the Gumbel-max trick.
        waits = torch.empty_like(logits).exponential_(generator=chance)
        found.append((logits - waits.log()).argmax(2).cpu().numpy())
    return np.concatenate(found, axis=1) if found else np.zeros((len(outputs), 0), dtype=np.int64)


@lru_cache
def bfloat16_is_faster(device: str) -> bool:
    """Return whether matrix products in bfloat16 take at most half the time of float32 on ``device``; measured once."""
    import torch

    def seconds(kind: torch.dtype) -> float:
        x, w = torch.ones(512, 512, device=device, dtype=kind), torch.ones(512, 512, device=device, dtype=kind)
        taken = []
        for _ in range(8):  # the first calls load code
            began = time.perf_counter()
            float(torch.nn.functional.linear(x, w)[0, 0])  # waits for the device
            taken.append(time.perf_counter() - began)
        return min(taken)

    return seconds(torch.float32) > _FASTER * seconds(torch.bfloat16)


# ---------------------------------------------------------------------------------------------------------------------
# The model


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    network: Diffusion
    layout: SavedLayout
    total: Total
    sampler: Literal["ddim", "ddpm"]
    steps: int


@dataclass(frozen=True, eq=False)
class TabularDiffusion:
    """A model that samples rows from a trained diffusion network.

    ``weights`` are flat, and ``total`` is the estimated number of records. ``label_shares`` (float64, of sum 1) are the
    frequencies of the tokens of the label column, which are drawn first and given to the network; they are empty
    without a label. ``sampler`` is "ddim", in ``steps`` steps, or "ddpm", in all of the network's steps. Raises
    :class:`InvalidParameter` for weights, shares, sampler or steps that do not fit the network.
    """

    network: Diffusion
    layout: BatchLayout
    weights: NDArray[np.float32]
    total: float
    label_shares: Array
    sampler: Literal["ddim", "ddpm"] = "ddim"
    steps: int = 25
    kind: ClassVar[str] = "diffusion"

    def __post_init__(self) -> None:
        check_weights(self.weights, self.network.shapes(self.layout))
        many = self.layout.tokens[self.network.label] if self.network.label >= 0 else 0
        shares = self.label_shares
        if shares.shape != (many,) or (many and not ((shares >= 0).all() and abs(shares.sum() - 1) < 1e-6)):
            raise InvalidParameter(f"the label needs {many} non-negative shares of sum 1; give its released counts")
        if self.sampler not in ("ddim", "ddpm") or not 1 <= self.steps <= self.network.steps:
            raise InvalidParameter(
                f"sampler must be 'ddim' with 1 to {self.network.steps} steps or 'ddpm', not {self.sampler!r} with "
                f"{self.steps} steps"
            )

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Draw rows (:func:`~fedsynth.deep.encoders.codes_of`); each label has its share, up to one row."""
        labels: NDArray[np.int64] | int = rows
        if len(self.label_shares):
            # Evenly spread points in random order: each label occurs as often as its share demands, up to one row.
            points = rng.permutation((np.arange(rows) + rng.random()) / rows)
            labels = np.searchsorted(np.cumsum(self.label_shares)[:-1], points, side="right")
        path = ddpm(self.network) if self.sampler == "ddpm" else ddim(self.network, self.steps)
        return codes_of(draw(self.network, self.layout, self.weights, path, labels, rng), self.layout)

    def given(self, evidence: Mapping[int, Evidence]) -> Sampler | None:
        """Return a sampler of rows given ``evidence``; ``None`` if it excludes all tokens of some column.

        Evidence on a categorical label changes the label's shares, which is exact; other evidence is imposed by
        rejection.
        """
        for at, known in evidence.items():
            if not known.likelihood(np.arange(self.layout.tokens[at])).any():
                return None
        label, others, model = self.network.label, dict(evidence), self
        if label in evidence and label not in self.layout.numbers:
            shares = self.label_shares * others.pop(label).likelihood(np.arange(len(self.label_shares)))
            if not shares.any():
                return None
            model = replace(self, label_shares=shares / shares.sum())
        return RejectionSampler(model, others) if others else model

    @property
    def related(self) -> None:
        """Not known: a network draws whole rows."""

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Tokens, and places in those of numbers."""
        return self.layout.drawn_columns

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the model as JSON values and named arrays."""
        meta = {
            "network": msgspec.to_builtins(self.network),
            "layout": [list(part) for part in self.layout],
            "total": self.total,
            "sampler": self.sampler,
            "steps": self.steps,
        }
        return meta, {"weights": self.weights, "label_shares": self.label_shares}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TabularDiffusion:
        """Restore the model exactly; raises :class:`InvalidParameter` for anything else."""
        saved = read_head(meta, _Saved)
        network, layout = saved.network, saved.layout.layout()
        many = layout.tokens[network.label] if network.label >= 0 else 0
        shares = read_floats(arrays, "label_shares", (many,), 0)
        return cls(network, layout, read_weights(arrays), saved.total, shares, saved.sampler, saved.steps)
