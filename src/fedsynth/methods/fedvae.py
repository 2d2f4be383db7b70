"""FedVAE: an autoencoder of rows, trained over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsynth.errors import positive
from fedsynth.methods.registry import method
from fedsynth.methods.survey import survey
from fedsynth.methods.training import EXEMPT, Settings, check_network, require_size, require_training, tokens_of
from fedsynth.models.encoders import Encoder, Layout
from fedsynth.models.vae import AutoEncoder

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("fedvae", adaptive=True, trains=True, exempt=EXEMPT)
@dataclass(frozen=True)
class FedVAE(Settings):
    """A TVAE, trained by sums of gradients over sites, noisy ones under a budget.

    Source: the thesis on federated Bayesian networks and autoencoders, with TVAE (Xu et al., arXiv 1907.00503).
    Corrected: modes and vocabularies come from one release in place of pooled rows; categories are drawn, where the
    likeliest one alone would hide minorities; and one gradient sum a step over all sites takes the place of FedAvg,
    also without privacy: where each site has mostly rows of one label, no site's code says anything of the label, and
    neither does their average (AUC .50, published and measured). FedAvg remains an option (``updates``).

    Parameters
    ----------
    width, depth, latent
        Hidden layers of encoder and decoder, and numbers in the code between them. Under a budget a long code costs
        much: the noise in its weights hides what they would learn.
    factor, sigma
        Weight of reconstruction beside divergence, and deviation of a number's place (of a range from -1 to 1) at which
        it is told: with a small one, places take the code away from the tokens.
    modes
        Groups of a number, at most, within which its place is told by one number.
    """

    updates: int = 0
    learning_rate: float = 1e-3
    server_rate: float = 2e-2
    width: int = 64
    depth: int = 2
    latent: int = 20
    factor: float = 4.0
    sigma: float = 0.5
    modes: int = 10

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        super().__post_init__()
        positive(
            width=self.width,
            depth=self.depth,
            latent=self.latent,
            factor=self.factor,
            sigma=self.sigma,
            modes=self.modes,
        )
        check_network(self.network)

    @property
    def network(self) -> AutoEncoder:
        """The network that is trained."""
        hidden, factor, sigma = (self.width,) * self.depth, float(self.factor), float(self.sigma)
        return AutoEncoder(hidden=hidden, latent=self.latent, factor=factor, sigma=sigma)

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.models.synthesizer import Synthesizer
        from fedsynth.models.vae import TabularVAE

        require_training(federation)
        require_size(federation.schema, self.network, self.tokens, self.modes)
        found = survey(federation, self.survey_share)
        columns = tokens_of(found, self.tokens, self.modes)
        encoders = [Encoder.of(cells) for cells in columns]

        weights = self.train(federation, self.network, encoders, found.total)
        model = TabularVAE(self.network, Layout.of(encoders), weights, found.total)
        return Synthesizer(federation.schema, tuple(columns), model, {"method": "fedvae", "weights": len(weights)})
