"""The E step of a Gaussian mixture in doubles: what the integer sums of sites are held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedsynth.bench.published.mixture import SufficientStatistics

Array = NDArray[np.float64]


def e_step(values: Array, counts: Array, coefficients: Array) -> SufficientStatistics:
    """Return the sums over one column's values, each held ``counts`` times, given c of shape ``(3, T)``."""
    log_rho = coefficients[0] + values[:, None] * coefficients[1] + (values * values)[:, None] * coefficients[2]
    log_sum = logsumexp(log_rho, axis=1)
    r = np.exp(log_rho - log_sum[:, None]) * counts[:, None]
    first, second, third = np.stack([np.ones_like(values), values, values * values]) @ r
    return SufficientStatistics(first, second, third, np.array(float(log_sum @ counts)))
