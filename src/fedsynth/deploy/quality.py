"""How good a simulated run's table is, each score beside its reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsynth.deploy.job import Job, Outcome
from fedsynth.evaluation.fidelity import likelihood, workload_error
from fedsynth.evaluation.utility import train_synthetic_test_real
from fedsynth.table import Table, concatenate
from fedsynth.workload import random_workload

_MARGINALS = 64


@dataclass(frozen=True)
class Score:
    """A score of the synthetic table and the same score of a reference."""

    name: str
    synthetic: float
    reference: float
    reference_is: str


def judge(job: Job, outcome: Outcome) -> list[Score]:
    """Return workload errors, and with a hold-out the likelihood and a classifier's AUC.

    Reads the real rows of all sites, which only a simulation can.
    """
    schema = outcome.rows.schema
    real = concatenate(outcome.rows.sites)
    synthetic = schema.encode(outcome.synthetic)
    rng = np.random.default_rng(0)
    scores = []
    if len(real):
        resampled = real.take(rng.integers(len(real), size=len(real)))
        for order in range(1, min(3, len(schema.sizes)) + 1):
            workload = random_workload(len(schema.sizes), order, _MARGINALS, seed=0)
            scores.append(
                Score(
                    f"mean L1 error of {len(workload)} {order}-way marginals (0-2)",
                    workload_error(real, synthetic, workload).mean,
                    workload_error(real, resampled, workload).mean,
                    "the real rows drawn again (sampling noise)",
                )
            )
    holdout = outcome.rows.holdout
    if holdout is not None and len(holdout):
        scores += _held_out(job, outcome, holdout, real, synthetic)
    return scores


def _held_out(job: Job, outcome: Outcome, holdout: Table, real: Table, synthetic: Table) -> list[Score]:
    """Return what the rows say that no site has."""
    heard = likelihood(outcome.synthesizer.log_likelihood(holdout))
    seen = likelihood(outcome.synthesizer.log_likelihood(real))
    scores = [
        Score(
            "negative log-likelihood of a held-out row (nats)",
            heard.nll,
            seen.nll,
            "the rows of the sites themselves",
        )
    ]
    if job.target:
        target = outcome.rows.schema.index(job.target)
        learnt = train_synthetic_test_real(synthetic, holdout, target, seed=0)
        best = train_synthetic_test_real(real, holdout, target, seed=0)
        name = f"AUC for {job.target}, tested on held-out rows"
        scores.append(Score(name, learnt.auc, best.auc, "trained on the real rows"))
    return scores
