"""TVAE (Xu et al., arXiv 1907.00503): an autoencoder of single rows, with federated training.

It differs from the published code in two ways. The deviation ``sigma`` of numbers is fixed instead of trained, also
without privacy: a row's gradient with respect to it grows as 1 / sigma^3, and at the floor of 0.01 it would use up the
whole clip norm. And tokens are drawn from their softmax: the published argmax shows only the majority value of columns
that the latent code does not determine, and drops minorities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.deep.encoders import BatchLayout, EncodedBatch, SavedLayout, codes_of
from fedsynth.deep.networks import Shapes, check_weights, dense, read_weights
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
)
from fedsynth.errors import InvalidParameter
from fedsynth.models.evidence import Evidence, RejectionSampler
from fedsynth.models.saved import DrawnColumn, Total, read_head
from fedsynth.privacy.device import Device

if TYPE_CHECKING:
    from torch import Tensor

    from fedsynth.deep.dpsgd import RowLosses, Tape


class AutoEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="vae"):
    """Hyperparameters of TVAE's network: an encoder to a latent code and a decoder; public, and trained by sites.

    The encoder has layers of the widths ``hidden``, the decoder the same in reverse. ``latent`` is the length of the
    code between them. ``factor`` is the weight of a row's reconstruction relative to its Kullback-Leibler divergence.
    ``sigma`` is the fixed standard deviation of scalars. The class implements :class:`~fedsynth.deep.networks.Network`.
    """

    hidden: Widths = (128, 128)
    latent: Annotated[int, msgspec.Meta(ge=2, le=256)] = 128
    factor: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 2.0
    sigma: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.1

    def shapes(self, layout: BatchLayout) -> Shapes:
        """Return the shapes of the parameters, in order: encoder, heads for mean and log-variance, decoder."""
        width, head = OneHot.of(layout).width, dense(self.hidden[-1], self.latent)
        decoder = layers((self.latent, *reversed(self.hidden), width))
        return (*layers((width, *self.hidden)), *head, *head, *decoder)

    def initial(self, layout: BatchLayout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return PyTorch's default initial weights of linear layers."""
        return linear_default(self.shapes(layout), rng)

    def losses(self, layout: BatchLayout, batch: EncodedBatch, rng: np.random.Generator) -> RowLosses:
        """Return the function that computes the rows' losses, each with its own noise of the latent code.

        The loss is (factor * reconstruction + divergence) / number of columns. The reconstruction loss of a scalar x,
        for which the decoder returns r, is (x - tanh r)^2 / (2 sigma^2) + log sigma, that of a token its cross-entropy.
        TVAE sums over columns; the mean keeps the gradient norms of rows, and so a suitable clip norm, independent of
        the width of the table.
        """
        vectors = RowVectors(layout, batch)
        noise = vectors.scalars.new_tensor(rng.standard_normal((len(batch.tokens), self.latent), dtype=np.float32))
        columns = len(layout.tokens)

        def loss(tape: Tape, rows: slice | Tensor) -> Tensor:
            device = tape.parameters[0].device
            x = vectors(rows, device)
            mean, log_variance = self.encoded(tape, x)
            outputs = self.decoded(tape, mean + noise[rows].to(device) * (0.5 * log_variance).exp())
            lost = self._reconstruction(vectors.coded, outputs, x, vectors.tokens[rows].to(device))
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
            return (self.factor * lost + divergence) / columns

        return loss

    def encoded(self, tape: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance, ``(rows, latent)``, of the latent codes of rows as vectors ``x``."""
        many = len(self.hidden)
        inner = perceptron(tape, 0, x, many, lambda z: z.relu())
        return tape.linear(2 * many, inner), tape.linear(2 * many + 2, inner)

    def decoded(self, tape: Tape, code: Tensor) -> Tensor:
        """Decode latent codes ``(rows, latent)``: return scalars before their tanh, and logits, ``(rows, width)``."""
        many = len(self.hidden)
        return tape.linear(4 * many + 4, perceptron(tape, 2 * many + 4, code, many, lambda z: z.relu()))

    def _reconstruction(self, coded: OneHot, outputs: Tensor, x: Tensor, tokens: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        error = x[:, : coded.numbers] - outputs[:, : coded.numbers].tanh()
        lost = (error.square() / (2 * self.sigma**2) + math.log(self.sigma)).sum(1)
        for at, logits in enumerate(coded.blocks(outputs)):
            lost = lost + cross_entropy(logits, tokens[:, at], reduction="none")
        return lost


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    network: AutoEncoder
    layout: SavedLayout
    total: Total
    decoding: Literal["sample", "argmax"]


@dataclass(frozen=True, eq=False)
class TabularVAE:
    """A model that samples rows from a trained autoencoder: latent codes from the normal distribution, decoded.

    ``weights`` are flat, float32, and ``total`` is the estimated number of records. With ``decoding`` "sample", tokens
    are drawn from their softmax; "argmax" takes the likeliest token, as in the published code. Raises
    :class:`InvalidParameter` for weights that do not fit the network, and for another ``decoding``.
    """

    network: AutoEncoder
    layout: BatchLayout
    weights: NDArray[np.float32]
    total: float
    decoding: Literal["sample", "argmax"] = "sample"
    kind: ClassVar[str] = "vae"

    def __post_init__(self) -> None:
        check_weights(self.weights, self.network.shapes(self.layout))
        if self.decoding not in ("sample", "argmax"):
            raise InvalidParameter(f"decoding must be 'sample' or 'argmax', not {self.decoding!r}")

    def sample(self, rows: int, rng: np.random.Generator, device: Device = "auto") -> list[NDArray[Any]]:
        """Draw rows (:func:`~fedsynth.deep.encoders.codes_of`); ``device`` evaluates the network."""
        coded = OneHot.of(self.layout)
        decoded = computing(self.weights, self.network.shapes(self.layout), self.network.decoded, device)

        def draw(many: int) -> EncodedBatch:
            outputs = decoded(rng.standard_normal((many, self.network.latent), dtype=np.float32))
            tokens = drawn(coded, self.layout, outputs, rng if self.decoding == "sample" else None)
            scalars = np.tanh(outputs[:, : coded.numbers])
            return EncodedBatch(tokens, places_of(scalars + self.network.sigma * rng.standard_normal(scalars.shape)))

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
            "decoding": self.decoding,
        }
        return meta, {"weights": self.weights}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TabularVAE:
        """Restore the model exactly; raises :class:`InvalidParameter` for anything else."""
        saved = read_head(meta, _Saved)
        return cls(saved.network, saved.layout.layout(), read_weights(arrays), saved.total, saved.decoding)
