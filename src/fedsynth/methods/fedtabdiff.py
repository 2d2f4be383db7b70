"""FedTabDiff: a diffusion of rows, trained over sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fedsynth.errors import positive
from fedsynth.methods.registry import COLUMN, method
from fedsynth.methods.survey import survey
from fedsynth.methods.training import EXEMPT, Settings, check_network, require_size, require_training, tokens_of
from fedsynth.models.diffusion import Diffusion
from fedsynth.models.encoders import Encoder, Layout

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("fedtabdiff", adaptive=True, trains=True, exempt=EXEMPT)
@dataclass(frozen=True)
class FedTabDiff(Settings):
    """A denoising diffusion of encoded rows, trained by FedAvg without privacy and by noisy gradient sums under it.

    Source: FedTabDiff (Sattarov, Schreyer & Borth, arXiv 2401.06263) with the network of FinDiff (arXiv 2309.01472),
    and DP-SGD (arXiv 1607.00133) in place of its DP form (arXiv 2412.16083). Corrected: quantiles and vocabularies
    come from one release in place of pooled rows, the network predicts the row behind the noise, the first of the time
    steps is trained too, labels are drawn by released counts in place of the real labels, rare values by theirs, and
    rows are drawn in 25 steps (DDIM, arXiv 2010.02502) in place of 500.

    Parameters
    ----------
    target
        Position of a category (the label) that the diffusion is conditioned on; -1: none.
    width, depth
        Hidden layers. The paper's are 4 of 1024; 4 of 256 have a fifteenth of the weights.
    times, embedding
        Time steps of the diffusion, and numbers that stand for a category's value.
    predicts
        What the network tells of a noisy row: the "row" (the probabilities of values, and numbers), or, as published,
        its "noise".
    sampling
        Steps in which rows are drawn; as many as ``times``: the paper's sampler (DDPM).
    """

    target: int = field(default=-1, metadata=COLUMN)
    width: int = 256
    depth: int = 4
    times: int = 500
    embedding: int = 2
    predicts: str = "row"
    sampling: int = 25

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        super().__post_init__()
        positive(sampling=self.sampling)
        check_network(self.network)

    @property
    def network(self) -> Diffusion:
        """The network that is trained."""
        return Diffusion(
            width=self.width,
            depth=self.depth,
            steps=self.times,
            embedding=self.embedding,
            label=self.target,
            predicts=cast("Any", self.predicts),
        )

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        import numpy as np

        from fedsynth.models.diffusion import TabularDiffusion
        from fedsynth.models.synthesizer import Synthesizer

        require_training(federation)
        require_size(federation.schema, self.network, self.tokens)
        found = survey(federation, self.survey_share)
        columns = tokens_of(found, self.tokens)
        encoders = [Encoder.of(cells) for cells in columns]

        weights = self.train(federation, self.network, encoders, found.total)
        shares = np.zeros(0)
        if self.target >= 0:
            counts = np.bincount(columns[self.target].groups, weights=columns[self.target].counts)
            shares = counts / counts.sum()
        model = TabularDiffusion(
            self.network,
            Layout.of(encoders),
            weights,
            found.total,
            shares,
            "ddpm" if self.sampling >= self.times else "ddim",
            min(self.sampling, self.times),
        )
        return Synthesizer(federation.schema, tuple(columns), model, {"method": "fedtabdiff", "weights": len(weights)})
