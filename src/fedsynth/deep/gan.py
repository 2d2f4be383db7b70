"""Federated CTGAN: sites train only the critic; the generator stays at the server (FLAIM, arXiv 2310.06447, corrected).

The critic learns to distinguish rows from fakes by binary cross-entropy, one row at a time. Sites sum its clipped
gradients over their own rows. The server adds the gradients of fakes, which depend on rows only through released
weights and counts, and updates both networks. A site's answer is a sum over Poisson-sampled rows of gradients that are
clipped row by row, so the accounting of sampled Gaussian noise applies.

CTGAN (Xu et al., arXiv 1907.00503) differs where this would be impossible. Its WGAN-GP penalises gradients at mixtures
of rows and fakes, and its critic reads ten rows at once (pac 10), so no gradient belongs to a single row. Its
training-by-sampling picks rows by category, for which no amplification by sampling is proved. Here a row's condition is
its own token in a randomly drawn column, and a fake's condition, the token that it should have, is drawn from released
counts. Without privacy the same loop runs without noise. Fed-TGAN (arXiv 2108.07927) averages whole generators and
critics, which each site trains with WGAN-GP and pac 10.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.deep.encoders import BatchLayout, EncodedBatch, SavedLayout, codes_of
from fedsynth.deep.networks import Adam, Shapes, check_weights, dense, read_weights, size_of
from fedsynth.deep.one_hot import (
    OneHot,
    RowVectors,
    Widths,
    computing,
    drawn,
    in_parts,
    kept,
    layers,
    linear_default,
    perceptron,
    places_of,
    require_torch,
    written,
)
from fedsynth.errors import InvalidParameter
from fedsynth.models.evidence import Evidence, RejectionSampler
from fedsynth.models.saved import DrawnColumn, Total, read_floats, read_head
from fedsynth.privacy.device import Device
from fedsynth.schema.bins import Floats, Integers

if TYPE_CHECKING:
    from torch import Tensor

    from fedsynth.deep.dpsgd import RowLosses, Tape
    from fedsynth.models.adaptive_bins import AdaptiveBins

TAU = 0.2  # temperature of the fakes' Gumbel softmax
_SLOPE = 0.2  # negative slope of the critic's LeakyReLU
_BETAS = (0.5, 0.9)  # of Adam, as in CTGAN


# ---------------------------------------------------------------------------------------------------------------------
# The two networks


class Critic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="critic"):
    """Hyperparameters of CTGAN's critic, which distinguishes rows from fakes (generated rows); sites train it.

    The critic has hidden layers of the widths ``hidden``; its input is a row's vector and condition (one token of the
    row, as a one-hot vector over all tokens). CTGAN's dropout is left out, so that a row's condition is the only
    randomness in its loss. It implements :class:`~fedsynth.deep.networks.Network`.
    """

    hidden: Widths = (256, 256)

    def shapes(self, layout: BatchLayout) -> Shapes:
        """Return the shapes of the layers' parameters; the last layer gives the score."""
        coded = OneHot.of(layout)
        return layers((coded.width + coded.hot, *self.hidden, 1))

    def initial(self, layout: BatchLayout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return PyTorch's default initial weights of linear layers."""
        return linear_default(self.shapes(layout), rng)

    def losses(self, layout: BatchLayout, batch: EncodedBatch, rng: np.random.Generator) -> RowLosses:
        """Return the function that computes the rows' losses, log(1 + exp(-score)) for a real row.

        A row's condition is its own token in one column, drawn for each row uniformly from all columns with more than
        one token. A number's token is that of the group of values that it lies in.
        """
        vectors = RowVectors(layout, batch)
        coded, hot = vectors.coded, vectors.hot
        if coded.columns:
            columns = hot.new_tensor(rng.integers(len(coded.columns), size=(len(hot), 1)))
            hot = hot.gather(1, columns)

        def loss(tape: Tape, rows: slice | Tensor) -> Tensor:
            from torch.nn.functional import softplus

            device = tape.parameters[0].device
            condition = written(vectors.scalars[rows][:, :0], hot[rows], coded.hot).to(device)
            return softplus(-self.scores(tape, vectors(rows, device), condition))

        return loss

    def scores(self, tape: Tape, x: Tensor, condition: Tensor) -> Tensor:
        """Return the scores ``(rows,)`` of vectors ``x`` with one-hot ``condition``; large ones mean real rows."""
        from torch import cat
        from torch.nn.functional import leaky_relu

        many = len(self.hidden)
        inner = perceptron(tape, 0, cat([x, condition], 1), many, lambda z: leaky_relu(z, _SLOPE))
        return tape.linear(2 * many, inner)[:, 0]


class Generator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="generator"):
    """Hyperparameters of CTGAN's generator, which makes fakes (generated rows); the server alone trains it.

    The generator's inputs are ``noise`` normal numbers and a condition (a token that the row should have, as a one-hot
    vector over all tokens). ``hidden`` are the widths of its residual layers: each layer's output is concatenated with
    its input, as in CTGAN. With CTGAN's BatchNorm, each row of a batch would change all others, and sampled rows would
    depend on running means. Here each row is normalised by itself (LayerNorm without weights), so layers keep their
    scale however large the weights grow.
    """

    noise: Annotated[int, msgspec.Meta(ge=2, le=256)] = 128
    hidden: Widths = (256, 256)

    def shapes(self, layout: BatchLayout) -> Shapes:
        """Return the shapes of the layers' parameters; the last gives the outputs."""
        coded = OneHot.of(layout)
        inputs = itertools.accumulate(self.hidden, initial=self.noise + coded.hot)
        return tuple(shape for pair in zip(inputs, (*self.hidden, coded.width), strict=True) for shape in dense(*pair))

    def initial(self, layout: BatchLayout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return PyTorch's default initial weights of linear layers."""
        return linear_default(self.shapes(layout), rng)

    def outputs(self, tape: Tape, noise: Tensor, condition: Tensor) -> Tensor:
        """Return fakes for normal ``noise`` and one-hot ``condition``: scalars before their tanh, then logits."""
        from torch import cat
        from torch.nn.functional import layer_norm

        x = cat([noise, condition], 1)
        for at, width in enumerate(self.hidden):
            x = cat([layer_norm(tape.linear(2 * at, x), (width,)).relu(), x], 1)
        return tape.linear(2 * len(self.hidden), x)


class GAN(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gan"):
    """Hyperparameters of both networks of a GAN that sites train by themselves, and whose weights are then averaged.

    The weights are the critic's, followed by the generator's. Only the critic reads rows: the loss of a row is the
    critic's, and the generator learns from the critic alone (:class:`Adversaries`), so that its gradient needs no
    noise. ``shares`` are those of tokens by released counts (:func:`shares_of`). The class implements
    :class:`~fedsynth.deep.networks.Network`.
    """

    critic: Critic
    generator: Generator
    shares: Annotated[tuple[Annotated[float, msgspec.Meta(ge=0, le=1)], ...], msgspec.Meta(max_length=2**16)] = ()

    def shapes(self, layout: BatchLayout) -> Shapes:
        """Return the shapes of the critic's parameters, then of the generator's."""
        return (*self.critic.shapes(layout), *self.generator.shapes(layout))

    def initial(self, layout: BatchLayout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return PyTorch's default initial weights of linear layers."""
        return np.concatenate([self.critic.initial(layout, rng), self.generator.initial(layout, rng)])

    def losses(self, layout: BatchLayout, batch: EncodedBatch, rng: np.random.Generator) -> RowLosses:
        """Return the function that computes the critic's losses of rows."""
        return self.critic.losses(layout, batch, rng)

    def split(self, layout: BatchLayout, weights: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the critic's and the generator's part of flat ``weights``."""
        critic, generator = np.split(weights, [size_of(self.critic.shapes(layout))])
        return critic, generator

    def check(self, layout: BatchLayout) -> None:
        """Raise :class:`InvalidParameter` unless conditions can be drawn from ``shares``."""
        check_shares(np.array(self.shares), layout)


# ---------------------------------------------------------------------------------------------------------------------
# Conditions


def shares_of(cells: Sequence[AdaptiveBins]) -> Floats:
    """Return the share of each token in its column, to draw a GAN's conditions from, by released counts.

    The result is flat, with one block per column in order; columns with one token have no block. In a column without
    counts, all tokens have equal shares.
    """
    parts = [np.zeros(0)]
    for column in cells:
        if column.size > 1:
            counts = np.bincount(column.groups, weights=np.maximum(column.counts, 0))
            parts.append(counts / counts.sum() if counts.sum() > 0 else np.full(column.size, 1 / column.size))
    return np.concatenate(parts)


def draw_conditions(coded: OneHot, shares: Floats, rows: int, rng: np.random.Generator) -> Integers:
    """Draw a condition (a token that the row should have) for each of ``rows`` rows, to generate fakes.

    The column is drawn uniformly, its token in proportion to ``shares`` (:func:`shares_of`). Returns each token's
    position among the tokens of all blocks, int64, shape ``(rows, 1)``; ``(rows, 0)`` without blocks.
    """
    if not coded.columns:
        return np.zeros((rows, 0), dtype=np.int64)
    ends = []
    for at, part in enumerate(np.split(shares, coded.starts[1:])):
        below = np.cumsum(part)
        ends.append(at + np.append(np.minimum(below[:-1] / below[-1], 1.0), 1.0))
    # 24 random bits: adding a column's number cannot round up to the next column.
    point = rng.integers(len(coded.columns), size=rows) + rng.random(rows, dtype=np.float32).astype(np.float64)
    return np.searchsorted(np.concatenate(ends), point, side="right")[:, None]


def check_shares(shares: Floats, layout: BatchLayout) -> None:
    """Raise :class:`InvalidParameter` unless a GAN's conditions can be drawn from ``shares`` (:func:`shares_of`)."""
    coded = OneHot.of(layout)
    if shares.shape != (coded.hot,) or not (np.isfinite(shares).all() and (shares >= 0).all()):
        raise InvalidParameter(f"conditions need one non-negative, finite share for each of {coded.hot} tokens")
    if any(part.sum() <= 0 for part in np.split(shares, coded.starts[1:]) if len(part)):
        raise InvalidParameter("conditions need at least one token with a positive share in each column")


# ---------------------------------------------------------------------------------------------------------------------
# Training at the server


@dataclass
class Adversaries:
    """The two networks of a GAN in training: at the server, which sees only released (noisy) sums of gradients.

    A site that trains both networks itself (:class:`GAN`) uses it too, with noisy sums over its own rows.

    The weights are flat, float32. Conditions are drawn by ``shares`` (:func:`shares_of`). ``clip`` bounds the L2 norm
    of the critic's gradient for each fake; sites clip that of each row to the same norm, since clipping only one of
    them would give the other more weight. ``fakes`` is the number of fakes (generated rows) in each step, separately
    for each network. Both optimisers (:class:`~fedsynth.deep.networks.Adam`) have the learning rate ``rate`` and the
    weight ``decay``, and keep their moments between steps. Raises :class:`InvalidParameter` for arguments that do not
    fit together.
    """

    critic: Critic
    generator: Generator
    layout: BatchLayout
    shares: Floats
    clip: float
    critic_weights: NDArray[np.float32]
    generator_weights: NDArray[np.float32]
    fakes: int = 512
    rate: float = 2e-4
    decay: float = 0.0
    critic_adam: Adam = field(init=False)
    generator_adam: Adam = field(init=False)

    def __post_init__(self) -> None:
        check_weights(self.critic_weights, self.critic.shapes(self.layout))
        check_weights(self.generator_weights, self.generator.shapes(self.layout))
        check_shares(self.shares, self.layout)
        if not (0 < self.clip < math.inf and self.fakes >= 1 and 0 < self.rate < math.inf):
            raise InvalidParameter(f"clip {self.clip}, fakes {self.fakes} and rate {self.rate} must be positive")
        self.critic_adam = Adam(len(self.critic_weights), self.rate, _BETAS, self.decay)
        self.generator_adam = Adam(len(self.generator_weights), self.rate, _BETAS, self.decay)

    def step(self, real: Floats, rng: np.random.Generator) -> NDArray[np.float32]:
        """Update the critic, then the generator; return the critic's new weights, to send to the sites.

        ``real`` is the sites' part of the critic's gradient: the released (noisy) sum of its clipped gradients over the
        sampled rows, divided by the expected number of these rows; flat. Fakes are generated from ``rng``.
        """
        self.critic_weights = self.critic_adam.step(self.critic_weights, real + self.critic_fake_gradient(rng))
        self.generator_weights = self.generator_adam.step(self.generator_weights, self.generator_gradient(rng))
        return self.critic_weights

    def critic_fake_gradient(self, rng: np.random.Generator) -> Floats:
        """Return the mean of the critic's clipped gradients over new fakes, float64; loss log(1 + exp(score))."""
        require_torch()
        import torch
        from torch.nn.functional import softplus

        from fedsynth.deep.dpsgd import Tape, clipped_sum, split

        with torch.no_grad():
            x, _, condition, _ = self._fakes(
                Tape(split(self.generator_weights, self.generator.shapes(self.layout))), rng
            )

        def loss(tape: Tape, rows: slice | Tensor) -> Tensor:
            return softplus(self.critic.scores(tape, x[rows], condition[rows]))

        parameters = split(self.critic_weights, self.critic.shapes(self.layout))
        return clipped_sum(loss, parameters, self.fakes, self.clip) / self.fakes

    def generator_gradient(self, rng: np.random.Generator) -> Floats:
        """Return the gradient of fakes' mean loss: log(1 + exp(-score)) plus the condition's cross-entropy."""
        require_torch()
        import torch
        from torch.nn.functional import log_softmax, softplus

        from fedsynth.deep.dpsgd import Tape, flattened, split

        shapes = self.generator.shapes(self.layout)
        parameters = [parameter.requires_grad_() for parameter in split(self.generator_weights, shapes)]
        x, outputs, condition, hot = self._fakes(Tape(parameters), rng)
        critic = Tape(split(self.critic_weights, self.critic.shapes(self.layout)))
        loss = softplus(-self.critic.scores(critic, x, condition)).mean()
        logs = [log_softmax(logits, 1) for logits in OneHot.of(self.layout).blocks(outputs)]
        if logs:
            loss = loss - torch.cat(logs, 1).gather(1, hot).mean()
        return flattened(torch.autograd.grad(loss, parameters)).astype(np.float64)

    def _fakes(self, tape: Tape, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return fakes as vectors, the outputs behind them, their conditions, and the conditions' positions."""
        import torch

        coded = OneHot.of(self.layout)
        noise = torch.from_numpy(rng.standard_normal((self.fakes, self.generator.noise), dtype=np.float32))
        hot = torch.from_numpy(draw_conditions(coded, self.shares, self.fakes, rng))
        condition = written(noise[:, :0], hot, coded.hot)
        outputs = self.generator.outputs(tape, noise, condition)
        gumbel = torch.from_numpy(rng.gumbel(size=(self.fakes, coded.width)).astype(np.float32))
        soft = [logits.div(TAU).softmax(1) for logits in coded.blocks(outputs + gumbel)]
        return torch.cat([outputs[:, : coded.numbers].tanh(), *soft], 1), outputs, condition, hot


# ---------------------------------------------------------------------------------------------------------------------
# The model


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    network: Generator
    layout: SavedLayout
    total: Total


@dataclass(frozen=True, eq=False)
class TabularGAN:
    """A model that samples rows from a trained generator (CTGAN), with conditions drawn by ``shares``.

    ``weights`` are flat, float32, ``shares`` the released shares of tokens (:func:`shares_of`) and ``total`` is the
    estimated number of records. Tokens are drawn from the softmax of their logits, which equals in law CTGAN's argmax
    of logits plus Gumbel noise. Raises :class:`InvalidParameter` for weights or shares that do not fit the network.
    """

    network: Generator
    layout: BatchLayout
    weights: NDArray[np.float32]
    shares: Floats
    total: float
    kind: ClassVar[str] = "gan"

    def __post_init__(self) -> None:
        check_weights(self.weights, self.network.shapes(self.layout))
        check_shares(self.shares, self.layout)

    def sample(self, rows: int, rng: np.random.Generator, device: Device = "auto") -> list[NDArray[Any]]:
        """Draw rows (:func:`~fedsynth.deep.encoders.codes_of`); ``device`` evaluates the network."""
        coded = OneHot.of(self.layout)
        outputs_of = computing(self.weights, self.network.shapes(self.layout), self.network.outputs, device)

        def draw(many: int) -> EncodedBatch:
            noise = rng.standard_normal((many, self.network.noise), dtype=np.float32)
            condition = np.zeros((many, coded.hot), dtype=np.float32)
            np.put_along_axis(condition, draw_conditions(coded, self.shares, many, rng), 1.0, axis=1)
            outputs = outputs_of(noise, condition)
            return EncodedBatch(
                drawn(coded, self.layout, outputs, rng), places_of(np.tanh(outputs[:, : coded.numbers]))
            )

        return codes_of(in_parts(rows, draw), self.layout)

    def given(self, evidence: Mapping[int, Evidence]) -> RejectionSampler | None:
        """Return a rejection sampler given ``evidence``; ``None`` if it excludes all tokens of some column."""
        return kept(self, self.layout, evidence)

    @property
    def related(self) -> None:
        """Not known: a network draws whole rows."""

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Tokens, and places in those of numbers."""
        return self.layout.drawn_columns

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the model as JSON values and named arrays."""
        meta = {
            "network": msgspec.to_builtins(self.network),
            "layout": [list(part) for part in self.layout],
            "total": self.total,
        }
        return meta, {"weights": self.weights, "shares": self.shares}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TabularGAN:
        """Restore the model exactly; raises :class:`InvalidParameter` for anything else."""
        saved = read_head(meta, _Saved)
        layout = saved.layout.layout()
        shares = read_floats(arrays, "shares", (OneHot.of(layout).hot,), 0)
        return cls(saved.network, layout, read_weights(arrays), shares, saved.total)
