"""What the published code of HeteroFedSyn computes, faults included: NOT private as it claims, for its table only.

Its faults, kept: every site draws its own projection and the server uses the last one's; whatever noise makes
negative is clipped at once, sketches included; epsilon is split and each share converted alone; the noise of
released tables is drawn once, on pooled rows, at a c-th of their epsilon; pairs are dropped only if that gains 0.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsynth.axes import Axis
from fedsynth.models.estimate import Measurement
from fedsynth.models.gum import GradualUpdate, consistent
from fedsynth.table import Table, concatenate

SHARES = (0.1, 0.1, 0.8)
WIDTH = 10
STOP = 0.1
Pair = tuple[int, int]


def classic_rho(epsilon: float, delta: float) -> float:
    """Return the zCDP of the classic conversion (arXiv 1605.02658, proposition 3)."""
    return (math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))) ** 2


def published_fedprivsyn(sites: Sequence[Table], epsilon: float, delta: float, seed: int) -> tuple[Table, int]:
    """Return synthetic rows as the published FedPrivSyn makes them, and how many pairs it released."""
    schema, pooled = sites[0].schema, concatenate(sites)
    rng = np.random.default_rng(seed)
    n, c, sizes = len(pooled), len(sites), schema.sizes
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    rho = [classic_rho(share * epsilon, delta) for share in SHARES]
    sigma_one = math.sqrt(len(sizes) / (2 * rho[0]))
    sigma_sketch = math.sqrt(len(pairs) / (2 * rho[1]))

    ones = [np.zeros(size) for size in sizes]
    sketches: dict[Pair, NDArray[np.float64]] = {pair: np.zeros(WIDTH) for pair in pairs}
    last: dict[Pair, NDArray[np.float64]] = {}
    axes = [Axis(column) for column in range(len(sizes))]
    for site in sites:
        for column, counts in enumerate(site.tables(axes, [(column,) for column in range(len(sizes))])):
            ones[column] += np.maximum(counts + rng.normal(0, sigma_one, counts.size), 0) / n
        for pair, table in zip(pairs, site.tables(axes, pairs), strict=True):
            counts = table.ravel()
            last[pair] = rng.normal(0, 1 / math.sqrt(WIDTH), (counts.size, WIDTH))
            noisy = counts @ last[pair] + rng.normal(0, sigma_sketch, WIDTH)
            sketches[pair] += np.maximum(noisy, 0) / n

    def strength(pair: Pair) -> float:
        a, b = (ones[column] for column in pair)
        u1, u2 = (sigma_one / n) ** 2, (sigma_sketch / n) ** 2
        squared = float(((sketches[pair] - np.outer(a, b).ravel() @ last[pair]) ** 2).sum())
        of_noise = (
            WIDTH * u2 + u1 * (b.size * float((a**2).sum()) + a.size * float((b**2).sum())) - a.size * b.size * u1**2
        )
        return math.sqrt(max(0.0, squared - of_noise))

    rho_release = classic_rho(SHARES[2] * epsilon / c, delta)
    sigma_all = math.sqrt(len(pairs) / (2 * rho_release))
    gain = {pair: strength(pair) - sigma_all * math.sqrt(sizes[pair[0]]) / n for pair in pairs}
    chosen: list[Pair] = []
    for pair in sorted(pairs, key=lambda one: -gain[one]):
        if gain[pair] <= 0:
            break
        chosen.append(pair)
        if gain[pair] <= STOP:
            break
    sigma = math.sqrt(max(1, len(chosen)) / (2 * rho_release))
    measured = [Measurement((j,), one * n, sigma_one) for j, one in enumerate(ones)]
    for pair, table in zip(chosen, pooled.tables(axes, chosen), strict=True):
        noisy = np.maximum(table + rng.normal(0, sigma, table.shape), 0)
        measured.append(Measurement(pair, noisy * (n / noisy.sum()), sigma))
    start = np.stack([rng.integers(0, size, n) for size in sizes]).astype(np.uint8)
    rows = GradualUpdate(sizes, consistent(measured, n)).rows(start, rng)
    decoded = schema.decode(tuple(rows), rng)
    return schema.encode(decoded), len(chosen)
