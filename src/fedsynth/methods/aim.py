"""AIM: the adaptive and iterative mechanism for synthetic data, against a vault.

Source: McKenna, Mullins, Sheldon & Miklau, VLDB 2022 (arXiv 2201.12677); the fixed number of rounds as in
FLAIM (arXiv 2310.06447).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Workload, all_marginals, downward_closure, maximal, weights
from fedsynth.errors import positive
from fedsynth.federation.query import Counts
from fedsynth.methods.measure import (
    NOISE_L1,
    fit_noisy,
    fits,
    measure_in_vault,
    shares,
    total_records,
)
from fedsynth.methods.registry import method
from fedsynth.schema.derive import forbidden_cells

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("aim", needs_vault=True)
@dataclass(frozen=True)
class AIM:
    """Measure, again and again, the marginal that the model so far gets most wrong.

    Runs under any trust with a vault: with a trusted server it is central AIM, bit for bit.

    Parameters
    ----------
    workload
        Marginals that matter; ``None``: all pairs of columns.
    rounds
        Number of selected marginals; ``None``: as many as the budget carries, with annealing (the original
        AIM, which starts with a 16 d-th of the budget for d columns; a 4 d-th where the budget is one of pure DP,
        in which noise grows with the number of rounds and not with its root).
    measure_share
        Share of the budget for measuring; selection gets the rest.
    max_megabytes
        Largest model, reached as the budget runs out.
    iterations, final_iterations
        Upper bounds on the steps of each round's fit and of the last one.
    """

    workload: Workload | None = None
    rounds: int | None = None
    measure_share: float = 0.9
    max_megabytes: float = 80.0
    iterations: int = 50
    final_iterations: int = 500

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(measure_share=self.measure_share)
        positive(
            rounds=self.rounds,
            max_megabytes=self.max_megabytes,
            iterations=self.iterations,
            final_iterations=self.final_iterations,
        )

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.federation.vault import WeightedL1
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        sizes = federation.schema.sizes
        workload = self.workload or all_marginals(len(sizes), min(2, len(sizes)))
        candidates = downward_closure(workload)
        ones = all_marginals(len(sizes), 1)
        pure, zeros = federation.budget.pure, forbidden_cells(federation.schema)

        planned = self.rounds or (4 if pure else 16) * len(ones)
        measure_each = self.measure_share / (planned + len(ones) if self.rounds else planned)
        select_each = (1 - self.measure_share) / planned
        vault = federation.deposit(Counts.of(len(sizes), maximal([*workload, *ones])), 1.0)

        measured = measure_in_vault(vault, len(sizes), ones, measure_each * len(ones))
        total = total_records(federation, measured)
        model = fit_noisy(sizes, measured, total, self.iterations, zeros=zeros)
        done = 0
        last = False
        while not last:
            left = vault.left
            if left < 2 * (measure_each + select_each) * (1 - 1e-9):
                measure_each, select_each = self.measure_share * left, (1 - self.measure_share) * left
                last = True
            limit = self.max_megabytes * (1 - (left - measure_each - select_each))
            viable = [q for q in candidates if fits(sizes, model.cliques, q, limit)]
            noise_l1 = NOISE_L1 * vault.std(measure_each)
            answers = model.marginals(viable)
            scores = WeightedL1(
                tuple(viable),
                tuple(answers[q] for q in viable),
                np.array(weights(viable, workload)),
                noise_l1 * np.array([answers[q].size for q in viable]),
            )
            chosen = viable[vault.select(scores, select_each)]
            measured += measure_in_vault(vault, len(sizes), [chosen], measure_each)
            before = model
            steps = self.final_iterations if last else self.iterations
            model = fit_noisy(sizes, measured, total, steps, before, zeros=zeros)
            done += 1
            federation.progress("AIM rounds", done, max(done, planned if self.rounds else done + 1))
            moved = np.abs(model.marginal(chosen) - before.marginal(chosen)).sum()
            if self.rounds is None and moved <= noise_l1 * answers[chosen].size:
                # Halves the noise and doubles the draw's epsilon.
                factor = 2 if pure else 4
                measure_each, select_each = factor * measure_each, factor * select_each
        info = {"method": "aim", "rounds": done, "cliques": [list(m.clique) for m in measured]}
        return Synthesizer(federation.schema, own_bins(federation.schema), model, info)
