"""FedTabDiff: a diffusion model of rows, trained over sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fedsynth.deep.diffusion import Diffusion
from fedsynth.deep.encoders import BatchLayout, Encoder
from fedsynth.deep.training import EXEMPT, TrainingOptions, check_network, require_size, tokens_of
from fedsynth.errors import whole
from fedsynth.methods.registry import COLUMN, category, method
from fedsynth.methods.survey import survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("fedtabdiff", adaptive=True, trains=True, exempt=EXEMPT, order=1)
@dataclass(frozen=True)
class FedTabDiff(TrainingOptions):
    """A denoising diffusion model of encoded rows, trained by noisy gradient sums, or by FedAvg without privacy.

    Source: FedTabDiff (Sattarov, Schreyer & Borth, arXiv 2401.06263) with the network of FinDiff (arXiv 2309.01472),
    and DP-SGD (arXiv 1607.00133) in place of its DP form (arXiv 2412.16083). Corrected: quantiles of numbers and values
    of categories come from one noisy release instead of pooled rows, the network predicts the clean row, the first time
    step is trained too, labels and rare values are drawn by released counts instead of the real ones, and rows are
    drawn in 25 steps (DDIM, arXiv 2010.02502) instead of 500.

    Parameters
    ----------
    target
        Name of a categorical column (the label) that the model is conditioned on; "": none.
    width, depth
        Number of units in each hidden layer, and of hidden layers. The paper has 4 layers of 1024; 4 of 256 have a
        fifteenth of the weights.
    times, embedding
        Time steps of the diffusion; dimension of the embedding of a categorical value.
    predicts
        Output of the network for a noisy row: the clean "row" (probabilities of values, and numbers) or, as published,
        the "noise".
    sampling
        Number of sampling steps. From ``times`` on, the paper's sampler (DDPM) is used.
    steps, rate, clip, server_rate
        Training under a budget: number of gradient sums, probability with which a row is sampled in each, L2 norm to
        which its gradient is clipped, and learning rate of Adam at the server.
    rounds, updates, batch, learning_rate
        Training by FedAvg, in runs without privacy: number of rounds; in each of them, number of steps of Adam of every
        site, number of rows in a step, and learning rate. ``updates = 0``: gradient sums without noise instead.
    local
        Use FedAvg under a budget too: sites sample rows with probability ``rate``, not in batches, clip their gradients
        and add their own noise in every step.
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
    tokens
        Largest number of values of a categorical column that the network distinguishes.
    """

    target: str = field(default="", metadata=COLUMN)
    width: int = 256
    depth: int = 4
    times: int = 500
    embedding: int = 2
    predicts: str = "row"
    sampling: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(sampling=self.sampling)
        check_network(self.network())

    def network(self, label: int = -1) -> Diffusion:
        """Return the public hyperparameters of the denoising network that sites train; ``label`` is a position."""
        return Diffusion(
            width=self.width,
            depth=self.depth,
            steps=self.times,
            embedding=self.embedding,
            label=label,
            predicts=cast("Any", self.predicts),
        )

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method, if :meth:`require` and :func:`~fedsynth.deep.training.require_size` allow it."""
        import numpy as np

        from fedsynth.deep.diffusion import TabularDiffusion
        from fedsynth.models.synthesizer import Synthesizer

        self.require(federation)
        label = category(federation.schema, self.target)
        network = self.network(label)
        require_size(federation.schema, network, self.tokens)
        found = survey(federation, self.survey_share)
        columns = tokens_of(found, self.tokens)
        encoders = [Encoder.of(cells) for cells in columns]

        weights = self.train(federation, network, encoders, found.total)
        shares = np.zeros(0)
        if label >= 0:
            counts = np.bincount(columns[label].groups, weights=columns[label].counts)
            shares = counts / counts.sum()
        model = TabularDiffusion(
            network,
            BatchLayout.of(encoders),
            weights,
            found.total,
            shares,
            "ddpm" if self.sampling >= self.times else "ddim",
            min(self.sampling, self.times),
        )
        return Synthesizer(federation.schema, tuple(columns), model, {"method": "fedtabdiff", "weights": len(weights)})
