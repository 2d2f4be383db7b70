"""How good a simulated run's table is, each score beside its reference."""

from __future__ import annotations

import numpy as np

from fedsynth.cliques import random_workload
from fedsynth.evaluation.fidelity import likelihood, workload_error
from fedsynth.evaluation.score import Measured, Score
from fedsynth.evaluation.utility import train_synthetic_test_real
from fedsynth.rows import Table, concatenate
from fedsynth.runs.job import Job
from fedsynth.runs.run import Simulated

_MARGINALS = 64


def judge(job: Job, outcome: Simulated) -> list[Score]:
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
                    "fidelity",
                    f"mean L1 error of {len(workload)} {order}-way marginals (0-2)",
                    Measured(workload_error(real, synthetic, workload).mean),
                    Measured(workload_error(real, resampled, workload).mean),
                    "the real rows drawn again (sampling noise)",
                )
            )
    holdout = outcome.rows.holdout
    if holdout is not None and len(holdout):
        scores += _held_out(job, outcome, holdout, real, synthetic)
    return scores


def _held_out(job: Job, outcome: Simulated, holdout: Table, real: Table, synthetic: Table) -> list[Score]:
    """Return what the rows say that no site has."""
    scores = []
    log_likelihood = outcome.synthesizer.log_likelihood
    if log_likelihood is not None:
        heard, seen = (likelihood(log_likelihood(table)) for table in (holdout, real))
        name = "negative log-likelihood of a held-out row (nats)"
        rows = "the rows of the sites themselves"
        scores.append(Score("fidelity", name, Measured(heard.nll), Measured(seen.nll), rows))
    if job.target:
        target = outcome.rows.schema.index(job.target)
        learnt = train_synthetic_test_real(synthetic, holdout, target, seed=0)
        best = train_synthetic_test_real(real, holdout, target, seed=0)
        name = f"AUC for {job.target}, tested on held-out rows"
        scores.append(Score("utility", name, Measured(learnt.auc), Measured(best.auc), "trained on the real rows"))
    return scores
