"""FedAvgGAN: critic and generator of a GAN, both trained at the sites and averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsynth.deep.encoders import Encoder
from fedsynth.deep.gan import GAN, Critic, Generator
from fedsynth.deep.one_hot import MOST_LAYERS
from fedsynth.deep.training import EXEMPT, TrainingOptions, TrainingTask, check_network, require_size, tokens_of
from fedsynth.errors import InvalidParameter, whole
from fedsynth.methods.registry import method
from fedsynth.methods.survey import Survey, survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.federation.query import Weights
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.synthesizer import Synthesizer


@method("fedavggan", adaptive=True, trains=True, exempt=EXEMPT, order=1)
@dataclass(frozen=True)
class FedAvgGAN(TrainingOptions):
    """A conditional GAN whose two networks every site trains by itself with DP-SGD; the server averages both.

    It is the baseline DP-FedAvg-GAN of Fed-TDA (arXiv 2211.13116, after Augenstein et al., arXiv 1911.06679) and the
    federated DP-CTGAN of FLAIM's comparison (arXiv 2310.06447); with all rows at one site, it is central DP-CTGAN.
    :class:`~fedsynth.deep.fedctgan.FedCTGAN`, whose noise is that of one sum over sites, gives better rows. The
    networks and the corrections are those of that method. The generator sees no rows, so only the critic's gradients
    are clipped and noisy. Without privacy the sites train on batches, without noise.

    Parameters
    ----------
    rounds, updates, learning_rate
        Number of rounds, and of steps of both networks that every site takes in each; learning rate of Adam, whose
        moments start anew in each round, and which falls towards zero over the rounds.
    rate, clip
        Under a budget: probability with which a site samples a row in a step, and L2 norm to which its gradient is
        clipped.
    batch, epochs
        Without privacy: number of rows in a step, and passes over a site's rows in a round in place of ``updates``
        (0: ``updates``).
    width, depth, noise
        Number of units in each hidden layer, and of hidden layers, of both networks; number of random inputs of the
        generator per row.
    decay, site_rate, survey_share, size_share, tokens
        As in :class:`~fedsynth.deep.training.TrainingOptions`; ``steps`` and ``server_rate`` are not used, and
        ``local`` must be true.
    modes
        Largest number of groups of values of a numeric column that the networks distinguish.
    """

    rounds: int = 20
    learning_rate: float = 1e-3
    local: bool = True
    width: int = 32
    depth: int = 2
    noise: int = 128
    modes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.local:
            raise InvalidParameter("fedavggan always trains at the sites: leave local = true, or choose fedctgan")
        whole(width=self.width, noise=self.noise, modes=self.modes)
        whole(1, MOST_LAYERS, depth=self.depth)
        check_network(self.network())

    def network(self, shares: tuple[float, ...] = ()) -> GAN:
        """Return the public hyperparameters of both networks; ``shares`` are those of conditions."""
        hidden = (self.width,) * self.depth
        return GAN(Critic(hidden=hidden), Generator(noise=self.noise, hidden=hidden), shares)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method, if :meth:`require` and :func:`~fedsynth.deep.training.require_size` allow it."""
        found, columns, task = self.prepared(federation, self.survey_share)
        weights = self.train(federation, task.network, task.encoders, found.total)
        return self.synthesizer(federation, "fedavggan", columns, task, weights)

    def prepared(self, federation: Federation, survey_share: Share) -> tuple[Survey, list[AdaptiveBins], TrainingTask]:
        """Return the survey, the columns as networks read them, and what is to be trained."""
        from fedsynth.deep.gan import shares_of

        self.require(federation)
        require_size(federation.schema, self.network(), self.tokens, self.modes)
        found = survey(federation, survey_share)
        columns = tokens_of(found, self.tokens, self.modes)
        network = self.network(tuple(shares_of(columns).tolist()))
        return found, columns, TrainingTask(network, tuple(map(Encoder.of, columns)), found.total)

    def synthesizer(
        self,
        federation: Federation,
        name: str,
        columns: Sequence[AdaptiveBins],
        task: TrainingTask,
        weights: Weights,
    ) -> Synthesizer:
        """Return the synthesizer of trained ``weights``, the critic's and the generator's; ``name`` is the method's."""
        from fedsynth.deep.gan import TabularGAN, shares_of
        from fedsynth.models.synthesizer import Synthesizer

        assert isinstance(task.network, GAN)
        _, generator = task.network.split(task.layout, weights)
        model = TabularGAN(task.network.generator, task.layout, generator, shares_of(columns), task.total)
        return Synthesizer(federation.schema, tuple(columns), model, {"method": name, "weights": len(weights)})
