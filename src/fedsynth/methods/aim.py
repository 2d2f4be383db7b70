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
from fedsynth.methods.measure import (
    fit_over,
    fits,
    measure_in_vault,
    noise_weight,
    optional_shares,
    shares,
    total_records,
)
from fedsynth.methods.registry import method
from fedsynth.methods.survey import surveyed, with_survey

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
    bins_share
        Share of the budget for a survey, one round before, that cuts columns where their rows are; AIM spends what it
        leaves, and most of the noise is taken out of the pairs' tables before each fit. 0: the schema's own bins, as
        published.
    """

    workload: Workload | None = None
    rounds: int | None = None
    measure_share: float = 0.9
    max_megabytes: float = 80.0
    iterations: int = 50
    final_iterations: int = 500
    bins_share: float = 0.0

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(measure_share=self.measure_share)
        optional_shares(bins_share=self.bins_share)
        positive(
            rounds=self.rounds,
            max_megabytes=self.max_megabytes,
            iterations=self.iterations,
            final_iterations=self.final_iterations,
        )

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.federation.vault import WeightedL1

        federation.require_vault()
        columns = len(federation.schema.stored)
        workload = self.workload or all_marginals(columns, min(2, columns))
        candidates = downward_closure(workload)
        ones = all_marginals(columns, 1)
        pure, share = federation.budget.pure, 1 - self.bins_share

        planned = self.rounds or (4 if pure else 16) * len(ones)
        measure_each = share * self.measure_share / (planned + len(ones) if self.rounds else planned)
        select_each = share * (1 - self.measure_share) / planned
        domain = surveyed(federation, self.bins_share, columns, self.measure_share * share)
        vault = federation.deposit(domain.counts(maximal([*workload, *ones])), share)

        measured = with_survey(domain, measure_in_vault(vault, domain, ones, measure_each * len(ones)))
        total = total_records(federation, measured)
        model = fit_over(domain, measured, total, self.iterations)
        done = 0
        last = False
        while not last:
            left = vault.left
            if left < 2 * (measure_each + select_each) * (1 - 1e-9):
                measure_each, select_each = self.measure_share * left, (1 - self.measure_share) * left
                last = True
            limit = self.max_megabytes * (1 - (left - measure_each - select_each) / share)
            viable = [q for q in candidates if fits(domain.sizes, model.cliques, q, limit)]
            std = vault.std(measure_each)
            answers = model.marginals(viable)
            scores = WeightedL1(
                tuple(viable),
                tuple(answers[q] for q in viable),
                np.array(weights(viable, workload)),
                std * np.array([noise_weight(domain, q) for q in viable]),
            )
            chosen = viable[vault.select(scores, select_each)]
            measured += measure_in_vault(vault, domain, [chosen], measure_each)
            before = model
            steps = self.final_iterations if last else self.iterations
            model = fit_over(domain, measured, total, steps, before)
            done += 1
            federation.progress("AIM rounds", done, max(done, planned if self.rounds else done + 1))
            moved = np.abs(model.marginal(chosen) - before.marginal(chosen)).sum()
            if self.rounds is None and moved <= std * noise_weight(domain, chosen):
                # Halves the noise and doubles the draw's epsilon.
                factor = 2 if pure else 4
                measure_each, select_each = factor * measure_each, factor * select_each
        info = {"method": "aim", "rounds": done, "cliques": [list(m.clique) for m in measured]}
        return domain.synthesizer(model, info)
