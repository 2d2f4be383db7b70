"""FedVAE: an autoencoder of rows, trained over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsynth.errors import positive
from fedsynth.methods.registry import method
from fedsynth.methods.survey import survey
from fedsynth.methods.training import EXEMPT, Settings, require_training, tokens_of
from fedsynth.models.encoders import Encoder, Layout
from fedsynth.models.vae import AutoEncoder

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("fedvae", adaptive=True, trains=True, exempt=EXEMPT)
@dataclass(frozen=True)
class FedVAE(Settings):
    """A TVAE, trained by FedAvg without privacy and by noisy gradient sums under it.

    Source: the thesis on federated Bayesian networks and autoencoders, with TVAE (Xu et al., arXiv 1907.00503).
    Corrected: modes and vocabularies come from one release in place of pooled rows; categories are drawn, where the
    likeliest one alone would hide minorities (label skew then gave AUC .50); and under a budget few noisy sums over all
    sites take the place of tens of thousands of noisy steps at each.

    Parameters
    ----------
    width, depth, latent
        Hidden layers of encoder and decoder, and numbers in the code between them.
    factor
        Weight of reconstruction beside divergence.
    modes
        Groups of a number, at most, within which its place is told by one number.
    """

    rounds: int = 50
    updates: int = 50
    batch: int = 200
    width: int = 128
    depth: int = 2
    latent: int = 64
    factor: float = 4.0
    sigma: float = 0.1
    modes: int = 10

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        super().__post_init__()
        positive(width=self.width, depth=self.depth, latent=self.latent, factor=self.factor, modes=self.modes)

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.models.synthesizer import Synthesizer
        from fedsynth.models.vae import TabularVAE

        require_training(federation)
        found = survey(federation, self.survey_share)
        columns = tokens_of(found, self.tokens, self.modes)
        encoders = [Encoder.of(cells) for cells in columns]

        network = AutoEncoder(hidden=(self.width,) * self.depth, latent=self.latent, factor=float(self.factor), sigma=float(self.sigma))
        weights = self.train(federation, network, encoders, found.total)
        model = TabularVAE(network, Layout.of(encoders), weights, found.total)
        return Synthesizer(federation.schema, tuple(columns), model, {"method": "fedvae", "weights": len(weights)})
