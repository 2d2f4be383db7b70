"""FedCTGAN: a generator trained at the server, and a critic trained on gradient sums over sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsynth.deep.encoders import Encoder
from fedsynth.deep.gan import Critic, Generator
from fedsynth.deep.one_hot import MOST_LAYERS
from fedsynth.deep.training import (
    EXEMPT,
    TrainingTask,
    check_network,
    check_steps,
    mean_slope,
    require_size,
    require_training,
    tokens_of,
)
from fedsynth.errors import whole
from fedsynth.methods.measure import shares
from fedsynth.methods.registry import method
from fedsynth.methods.survey import survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("fedctgan", adaptive=True, trains=True, exempt=EXEMPT, order=1)
@dataclass(frozen=True)
class FedCTGAN:
    """A conditional GAN of rows: sites add up the critic's clipped gradients, and the server trains the generator.

    A baseline in the papers on FLAIM and Fed-TDA. Source: CTGAN (Xu et al., arXiv 1907.00503) in the federated DP form
    of FLAIM's comparison (arXiv 2310.06447): the critic is trained by binary cross-entropy and reads one row at a time,
    so that each row has a gradient of its own to clip. Corrected: the values of categories, the groups of numbers and
    the frequencies by which generated rows are conditioned come from one noisy release instead of pooled rows, and
    sites sample rows independently of their values. Without privacy the same loop runs without noise.

    Parameters
    ----------
    steps, rate, clip, learning_rate
        Number of steps of both networks and their learning rate. A step takes one noisy sum of the critic's gradients
        over rows that are sampled with probability ``rate``, each gradient clipped to the L2 norm ``clip``. Ranges:
        ``rate`` from 1e-4 to 1, ``clip`` from 1e-5 to 2^20, ``learning_rate`` at most 1.
    width, depth, noise
        Number of units in each hidden layer, and of hidden layers, of both networks; number of random inputs of the
        generator per row.
    survey_share, tokens, modes
        ``survey_share`` of the budget is for the survey, which defines the encoding of rows. The networks distinguish
        at most ``tokens`` values of a categorical column and ``modes`` groups of values of a numeric one.
    """

    steps: int = 1000
    rate: float = 0.2
    clip: float = 1.0
    learning_rate: float = 1e-3
    width: int = 32
    depth: int = 2
    noise: int = 128
    survey_share: float = 0.1
    tokens: int = 256
    modes: int = 10

    def __post_init__(self) -> None:
        shares(survey_share=self.survey_share)
        check_steps(self.rate, self.clip, learning_rate=self.learning_rate)
        whole(steps=self.steps, width=self.width, noise=self.noise, tokens=self.tokens, modes=self.modes)
        whole(1, MOST_LAYERS, depth=self.depth)
        for network in self.networks:
            check_network(network)

    @property
    def networks(self) -> tuple[Critic, Generator]:
        """The hyperparameters of the critic, which sites train, and of the generator, which stays at the server."""
        hidden = (self.width,) * self.depth
        return Critic(hidden=hidden), Generator(noise=self.noise, hidden=hidden)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method, if :func:`~fedsynth.deep.training.require_training` and ``require_size`` allow it."""
        from fedsynth.deep.gan import Adversaries, TabularGAN, shares_of
        from fedsynth.models.synthesizer import Synthesizer

        require_training(federation)
        require_size(federation.schema, self.networks[0], self.tokens, self.modes)
        found = survey(federation, self.survey_share)
        columns = tokens_of(found, self.tokens, self.modes)

        (critic, generator), rng = self.networks, federation.rng
        task = TrainingTask(critic, tuple(map(Encoder.of, columns)), found.total)
        pair = Adversaries(
            critic,
            generator,
            task.layout,
            shares_of(columns),
            self.clip,
            critic.initial(task.layout, rng),
            generator.initial(task.layout, rng),
            rate=self.learning_rate,
        )
        share, weights = (1 - self.survey_share) / self.steps, pair.critic_weights
        for _ in federation.repeat("training", self.steps):
            real = mean_slope(federation, task, weights, share, self.rate, self.clip)
            weights = pair.step(real, rng)
        model = TabularGAN(generator, task.layout, pair.generator_weights, pair.shares, found.total)
        return Synthesizer(federation.schema, tuple(columns), model, {"method": "fedctgan", "weights": len(weights)})
