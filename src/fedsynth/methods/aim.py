"""AIM: the adaptive and iterative mechanism for synthetic data, against a vault.

Source: McKenna, Mullins, Sheldon & Miklau, VLDB 2022 (arXiv 2201.12677); the fixed number of rounds as in
FLAIM (arXiv 2310.06447).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsynth.federation.federation import Federation
from fedsynth.federation.vault import WeightedL1
from fedsynth.methods.marginals import NOISE_L1, fit_noisy, fits, positive, shares, total_records
from fedsynth.models.estimate import Measurement
from fedsynth.models.synthesizer import GraphicalSynthesizer
from fedsynth.privacy.release import Exponential, Gaussian
from fedsynth.workload import Clique, Workload, all_marginals, downward_closure, maximal, weights


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
        AIM).
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

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        sizes = federation.schema.sizes
        workload = self.workload or all_marginals(len(sizes), min(2, len(sizes)))
        candidates = downward_closure(workload)
        ones = [(j,) for j in range(len(sizes))]
        rho = federation.rho

        planned = self.rounds or 16 * len(ones)
        rho_measure = self.measure_share * rho / (planned + len(ones) if self.rounds else planned)
        rho_select = (1 - self.measure_share) * rho / planned
        vault = federation.deposit(maximal([*workload, *ones]), rho)

        def measure(cliques: Sequence[Clique], rho_each: float) -> list[Measurement]:
            release = Gaussian(rho_each * len(cliques))
            std = vault.std(cliques, release)
            tables = vault.open(cliques, release)
            return [Measurement(c, t.astype(np.float64), std) for c, t in zip(cliques, tables, strict=True)]

        measured = measure(ones, rho_measure)
        total = total_records(federation, measured)
        model = fit_noisy(sizes, measured, total, self.iterations)
        done = 0
        last = False
        while not last:
            left = rho - vault.spent
            if left < 2 * (rho_measure + rho_select) * (1 - 1e-9):
                rho_measure, rho_select = self.measure_share * left, (1 - self.measure_share) * left
                last = True
            limit = self.max_megabytes * (1 - (left - rho_measure - rho_select) / rho)
            viable = [q for q in candidates if fits(sizes, model.cliques, q, limit)]
            noise_l1 = NOISE_L1 / np.sqrt(2 * rho_measure)
            answers = model.marginals(viable)
            score = WeightedL1(
                tuple(viable),
                tuple(answers[q] for q in viable),
                np.array(weights(viable, workload)),
                noise_l1 * np.array([answers[q].size for q in viable]),
            )
            chosen = viable[vault.select(score, Exponential(rho_select))]
            measured += measure([chosen], rho_measure)
            before = model
            model = fit_noisy(sizes, measured, total, self.final_iterations if last else self.iterations, before)
            done += 1
            federation.progress("AIM rounds", done, max(done, planned if self.rounds else done + 1))
            moved = np.abs(model.marginal(chosen) - before.marginal(chosen)).sum()
            if self.rounds is None and moved <= noise_l1 * answers[chosen].size:
                rho_measure, rho_select = 4 * rho_measure, 4 * rho_select  # halves sigma, doubles the draw's epsilon
        info = {"method": "aim", "rounds": done, "cliques": [list(m.clique) for m in measured]}
        return GraphicalSynthesizer(federation.schema, model, info)
