"""How close a synthetic table is to a real one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.table import Table
from fedsynth.workload import Clique, Workload


@dataclass(frozen=True)
class WorkloadError:
    """L1 distance of normalised marginals, between 0 and 2: the ``mean`` over a workload, and each clique's own."""

    mean: float
    per_clique: dict[Clique, float]


def workload_error(real: Table, synthetic: Table, workload: Workload) -> WorkloadError:
    """Return the mean over ``workload`` of the L1 distance between the tables' normalised marginals.

    The "workload error" of FLAIM's tables (arXiv 2310.06447), without the factor 1/2 of total variation.
    Raises :class:`Unsupported` for an empty table or workload.
    """
    if not len(real) or not len(synthetic) or not workload:
        raise Unsupported("a workload error needs rows on both sides and at least one marginal")
    per_clique = {clique: _distance(real.flat_codes(clique), synthetic.flat_codes(clique)) for clique in workload}
    return WorkloadError(float(np.mean(list(per_clique.values()))), per_clique)


def _distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return the L1 distance of two samples' frequencies; visits the cells that occur, however large the table."""
    cells = np.concatenate([one, other])
    shares = np.concatenate([np.full(len(one), 1 / len(one)), np.full(len(other), -1 / len(other))])
    _, which = np.unique(cells, return_inverse=True)
    return float(np.abs(np.bincount(which, weights=shares)).sum())


@dataclass(frozen=True)
class Likelihood:
    """Mean negative log-likelihood of rows in nats, plain and with each row's probability held above a floor.

    ``floored_share`` is the share of rows that the floor touched: a model that gives a seen row next to no
    mass has a plain value that says little else.
    """

    nll: float
    nll_floored: float
    floored_share: float


def likelihood(log_likelihood: NDArray[np.float64], floor: float = 1e-30) -> Likelihood:
    """Summarise the log-likelihood of each held-out row, shape ``(rows,)``, in nats."""
    if not len(log_likelihood):
        raise Unsupported("a likelihood needs at least one held-out row")
    held = np.maximum(log_likelihood, np.log(floor))
    return Likelihood(float(-log_likelihood.mean()), float(-held.mean()), float((log_likelihood < held).mean()))
