"""FedVAE: a variational autoencoder of rows, trained over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsynth.deep.encoders import BatchLayout, Encoder
from fedsynth.deep.one_hot import MOST_LAYERS
from fedsynth.deep.training import EXEMPT, TrainingOptions, check_network, require_size, tokens_of
from fedsynth.deep.vae import AutoEncoder
from fedsynth.errors import positive, whole
from fedsynth.methods.registry import method
from fedsynth.methods.survey import survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("fedvae", adaptive=True, trains=True, exempt=EXEMPT, order=1)
@dataclass(frozen=True)
class FedVAE(TrainingOptions):
    """A variational autoencoder (TVAE), trained by gradient sums over sites, which are noisy under a budget.

    Source: the thesis on federated Bayesian networks and autoencoders, with TVAE (Xu et al., arXiv 1907.00503).
    Corrected: the groups (modes) of numbers and the values of categories come from one noisy release instead of pooled
    rows; categories are sampled, since taking the likeliest one would hide minorities; and one gradient sum per step
    over all sites replaces FedAvg, also without privacy: where each site has mostly rows of one label, no site's latent
    code distinguishes labels, and neither does the averaged network (AUC 0.50 when predicting the label, published and
    measured). FedAvg remains an option (``updates``).

    Parameters
    ----------
    steps, rate, clip, server_rate
        Training by gradient sums: number of steps, probability with which a row is sampled in a step, L2 norm to which
        its gradient is clipped, and learning rate of Adam at the server.
    updates, rounds, batch, learning_rate
        Training by FedAvg, in runs without privacy if ``updates`` is above 0: number of steps of Adam of every site in
        each of ``rounds`` rounds, number of rows in a step, and learning rate.
    local
        Use FedAvg under a budget too (with ``updates`` above 0): sites sample rows with probability ``rate``, not in
        batches, clip their gradients and add their own noise in every step.
    epochs
        Passes over a site's rows in a round of FedAvg, in place of ``updates``, in runs without privacy; 0: ``updates``
        at every site, however many rows it has.
    decay
        Weight decay of Adam, at sites and at the server (0 to 1).
    site_rate
        Probability with which a site takes part in a round of FedAvg, or in a step of gradient sums. No amplification
        is claimed: the budget is divided by the number of rounds of the site that takes part in most.
    survey_share, size_share
        Shares of the budget for the survey, which defines the encoding of rows, and, for FedAvg only, for noisy numbers
        of rows of the sites, by which their results are weighted; these numbers must not be declared public.
    tokens, modes
        Largest number of values of a categorical column, and of groups (modes) of a numeric one, that the network
        distinguishes; a number is encoded as its group and its place within the group.
    width, depth, latent
        Number of units in each hidden layer, and of hidden layers, of encoder and decoder, and dimension of the latent
        code between them. Under a budget, keep ``latent`` small: with a long code, noise in the weights hides what they
        would learn.
    factor, sigma
        Weight of the reconstruction loss relative to the latent code's Kullback-Leibler divergence, and standard
        deviation with which a number's place within its mode (from -1 to 1) is decoded. With a small ``sigma``, the
        latent code describes these places instead of values and groups.
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
        super().__post_init__()
        whole(width=self.width, latent=self.latent, modes=self.modes)
        whole(1, MOST_LAYERS, depth=self.depth)
        positive(factor=self.factor, sigma=self.sigma)
        check_network(self.network)

    @property
    def network(self) -> AutoEncoder:
        """The public hyperparameters of the autoencoder that sites train."""
        hidden, factor, sigma = (self.width,) * self.depth, float(self.factor), float(self.sigma)
        return AutoEncoder(hidden=hidden, latent=self.latent, factor=factor, sigma=sigma)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method, if :meth:`require` and :func:`~fedsynth.deep.training.require_size` allow it."""
        from fedsynth.deep.vae import TabularVAE
        from fedsynth.models.synthesizer import Synthesizer

        self.require(federation)
        require_size(federation.schema, self.network, self.tokens, self.modes)
        found = survey(federation, self.survey_share)
        columns = tokens_of(found, self.tokens, self.modes)
        encoders = [Encoder.of(cells) for cells in columns]

        weights = self.train(federation, self.network, encoders, found.total)
        model = TabularVAE(self.network, BatchLayout.of(encoders), weights, found.total)
        return Synthesizer(federation.schema, tuple(columns), model, {"method": "fedvae", "weights": len(weights)})
