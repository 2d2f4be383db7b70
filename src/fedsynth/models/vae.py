"""TVAE (Xu et al., arXiv 1907.00503): an autoencoder of single rows, with federated training.

It differs from the published code in two ways. The deviation ``sigma`` of numbers is fixed instead of trained: a row's
gradient with respect to it grows as 1 / sigma^3, and at the floor of 0.01 it would use up the whole clip norm. Without
privacy it is fixed as well, so that the same model is trained. And tokens are drawn from their softmax: the published
argmax shows only the majority value of columns that the latent code does not determine, and drops minorities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.encoders import Batch, Layout, codes_of
from fedsynth.models.evidence import Evidence, Kept
from fedsynth.models.networks import Shapes, dense
from fedsynth.models.one_hot import (
    OneHot,
    Vectors,
    Widths,
    check_weights,
    computing,
    drawn,
    in_parts,
    kept,
    layers,
    linear_default,
    perceptron,
    places_of,
)
from fedsynth.privacy.device import Device

if TYPE_CHECKING:
    from torch import Tensor

    from fedsynth.privacy.dpsgd import RowLosses, Tape


class AutoEncoder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="vae"):
    """TVAE's network: an encoder with layers of the widths ``hidden``, and a decoder with the same widths in reverse.

    ``latent`` is the length of the code between them. ``factor`` is the weight of a row's reconstruction relative to
    its Kullback-Leibler divergence. ``sigma`` is the fixed standard deviation of scalars (which range from -1 to 1).
    """

    hidden: Widths = (128, 128)
    latent: Annotated[int, msgspec.Meta(ge=2, le=256)] = 128
    factor: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 2.0
    sigma: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.1

    def shapes(self, layout: Layout) -> Shapes:
        """Return the shapes of the encoder, the heads for mean and log-variance, and the decoder."""
        width, head = OneHot.of(layout).width, dense(self.hidden[-1], self.latent)
        decoder = layers((self.latent, *reversed(self.hidden), width))
        return (*layers((width, *self.hidden)), *head, *head, *decoder)

    def initial(self, layout: Layout, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return PyTorch's default initial weights of linear layers, flat."""
        return linear_default(self.shapes(layout), rng)

    def losses(self, layout: Layout, batch: Batch, rng: np.random.Generator) -> RowLosses:
        """Return each row's loss: (factor * reconstruction + divergence) / number of columns.

        The reconstruction loss of a scalar x is (x - tanh r)^2 / (2 sigma^2) + log sigma, that of a token its
        cross-entropy. TVAE sums over columns; the mean keeps the gradient norms of rows, and so a suitable clip norm,
        independent of the width of the table. The noise of each row's latent code is drawn here.
        """
        vectors = Vectors(layout, batch)
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
        """Return the mean and the log-variance of the latent codes of vectors, both ``(rows, latent)``."""
        many = len(self.hidden)
        inner = perceptron(tape, 0, x, many, lambda z: z.relu())
        return tape.linear(2 * many, inner), tape.linear(2 * many + 2, inner)

    def decoded(self, tape: Tape, code: Tensor) -> Tensor:
        """Return scalars before their tanh, followed by logits, for latent codes ``(rows, latent)``."""
        many = len(self.hidden)
        return tape.linear(4 * many + 4, perceptron(tape, 2 * many + 4, code, many, lambda z: z.relu()))

    def _reconstruction(self, coded: OneHot, outputs: Tensor, x: Tensor, tokens: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        error = x[:, : coded.numbers] - outputs[:, : coded.numbers].tanh()
        lost = (error.square() / (2 * self.sigma**2) + math.log(self.sigma)).sum(1)
        for at, logits in enumerate(coded.blocks(outputs)):
            lost = lost + cross_entropy(logits, tokens[:, at], reduction="none")
        return lost


@dataclass(frozen=True, eq=False)
class TabularVAE:
    """Rows sampled from a trained autoencoder: latent codes from the normal distribution, decoded.

    With ``decoding`` "sample", tokens are drawn from their softmax; "argmax" takes the most likely token, as in the
    published code.
    """

    network: AutoEncoder
    layout: Layout
    weights: NDArray[np.float32]
    total: float
    decoding: Literal["sample", "argmax"] = "sample"
    kind: ClassVar[str] = "vae"

    def __post_init__(self) -> None:
        """Raise :class:`InvalidParameter` for weights that do not fit the network, or an unknown ``decoding``."""
        check_weights(self.weights, self.network.shapes(self.layout))
        if self.decoding not in ("sample", "argmax"):
            raise InvalidParameter(f"decoding must be 'sample' or 'argmax', not {self.decoding!r}")

    def sample(self, rows: int, rng: np.random.Generator, device: Device = "auto") -> list[NDArray[Any]]:
        """Return rows by axis: tokens, plus the place within the token (from 0 to below 1) for numbers.

        All randomness comes from ``rng``; ``device`` evaluates the network ("auto": the configured device).
        """
        coded = OneHot.of(self.layout)
        decoded = computing(self.weights, self.network.shapes(self.layout), self.network.decoded, device)

        def draw(many: int) -> Batch:
            outputs = decoded(rng.standard_normal((many, self.network.latent), dtype=np.float32))
            tokens = drawn(coded, self.layout, outputs, rng if self.decoding == "sample" else None)
            scalars = np.tanh(outputs[:, : coded.numbers])
            return Batch(tokens, places_of(scalars + self.network.sigma * rng.standard_normal(scalars.shape)))

        return codes_of(in_parts(rows, draw), self.layout)

    def given(self, evidence: Mapping[int, Evidence]) -> Kept | None:
        """Return a rejection sampler; ``None`` if the evidence excludes all tokens of some column."""
        return kept(self, self.layout, evidence)

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the network and its layout as JSON values, and the weights as an array."""
        meta = {
            "network": msgspec.to_builtins(self.network),
            "layout": [list(part) for part in self.layout],
            "total": self.total,
            "decoding": self.decoding,
        }
        return meta, {"weights": self.weights}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TabularVAE:
        """Restore the model from the output of :meth:`to_arrays`, exactly."""
        network, layout = msgspec.convert(meta["network"], AutoEncoder), msgspec.convert(meta["layout"], Layout)
        return cls(network, layout, arrays["weights"], float(meta["total"]), meta["decoding"])
