"""Compares a federated method with the same method on pooled rows and at each site alone, with significance tests.

The design is that of the thesis on federated Bayesian networks (FedBN) and autoencoders (FedVAE): pooled training is
the upper bound that privacy forbids, training at one site is the alternative without a federation. ``fedsynth compare``
trains in these three ways, called arms.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedsynth.errors import InvalidParameter
from fedsynth.evaluation.score import holm

ARMS = ("federated", "pooled", "local")
NOT_COVERED = (
    "These scores are computed from real rows, and no guarantee covers them: do not publish them. Nor does one cover a "
    "choice that was made by them."
)
Values = Mapping[str, float]
Test = Callable[[Sequence[float], Sequence[float]], float]


def student(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sided t-test with equal variances, as in the thesis.

    ``one`` and ``two`` hold a metric's values in two arms, one per repeat. If neither varies, it is 1 for equal values,
    else 0.
    """
    return _p(one, two, lambda: stats.ttest_ind(one, two, equal_var=True).pvalue)


def welch(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sided t-test with unequal variances; otherwise as :func:`student`."""
    return _p(one, two, lambda: stats.ttest_ind(one, two, equal_var=False).pvalue)


def paired(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sided paired t-test, for arms with the same split of the rows in each repeat."""
    return _p(np.subtract(one, two).tolist(), [0.0], lambda: stats.ttest_rel(one, two).pvalue)


TESTS: dict[str, Test] = {"student": student, "welch": welch, "paired": paired}


def _p(one: Sequence[float], two: Sequence[float], test: Callable[[], Any]) -> float:
    """Return the test's p-value; if neither sample varies, it is 1 for equal values and 0 for different ones."""
    if not np.ptp(one) and not np.ptp(two):
        return float(one[0] == two[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # one of both may vary by rounding alone
        return float(test())


@dataclass(frozen=True)
class ComparedMetric:
    """One metric of a :class:`Comparison`: its values in each arm (way of training), and the p-values.

    ``values`` maps each arm to one value per repeat. ``reference`` is the same metric of real rows: of hold-out rows,
    or of classifiers trained on the real rows. ``p`` maps "pooled" and "local" to p-values against "federated",
    Holm-adjusted over all metrics.
    """

    metric: str
    values: Mapping[str, tuple[float, ...]]
    reference: tuple[float, ...]
    p: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """One method trained over all sites ("federated"), on pooled rows ("pooled") and at each site alone ("local").

    ``setting`` describes method, sites and guarantee in words. ``str`` of it is what ``fedsynth compare`` prints.
    """

    setting: str
    lines: tuple[ComparedMetric, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values: the setting, the fields of every line, and a note on privacy."""
        lines = [
            {
                "metric": line.metric,
                **{arm: list(line.values[arm]) for arm in ARMS},
                "real rows": list(line.reference),
                "p": dict(line.p),
            }
            for line in self.lines
        ]
        return {"setting": self.setting, "lines": lines, "note": NOT_COVERED}

    def __str__(self) -> str:
        """Return the table as text: mean ± standard deviation; stars mark differences from the federated arm."""
        rows: list[tuple[str, ...]] = [("metric", *ARMS, "real rows")]
        for line in self.lines:
            cells = [_cell(line.values[arm]) + _stars(line.p.get(arm, 1.0)) for arm in ARMS]
            rows.append((line.metric, *cells, _cell(line.reference)))
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        table = "\n".join(
            "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )
        return (
            f"{self.setting}\n{table}\n"
            "* p < 0.05, ** p < 0.01, *** p < 0.001 against federated, Holm-adjusted over the metrics. "
            "Repeats share rows,\nso they are not independent: the stars are a guide, not a proof.\n"
            f"{NOT_COVERED}"
        )


def compared(
    setting: str,
    found: Mapping[str, Sequence[Values]],
    reference: Sequence[Values],
    test: Test = welch,
) -> Comparison:
    """Return the comparison of the arms, with p-values of their differences from the federated one for each metric.

    ``found`` maps each arm to the values of each metric, by name, for each repeat; ``reference`` is such a list for
    real rows. A metric of the first federated repeat that is missing elsewhere raises ``KeyError``. The p-values of an
    arm are Holm-adjusted over the metrics. Raises :class:`InvalidParameter` for fewer than 2 repeats.
    """
    if min(len(found[arm]) for arm in ARMS) < 2:
        raise InvalidParameter("a comparison needs at least 2 repeats of each arm: one has no spread to test against")
    values = {
        metric: {arm: tuple(one[metric] for one in found[arm]) for arm in ARMS} for metric in found["federated"][0]
    }
    p = {
        arm: holm([test(values[metric]["federated"], values[metric][arm]) for metric in values])
        for arm in ("pooled", "local")
    }
    lines = (
        ComparedMetric(metric, values[metric], tuple(one[metric] for one in reference), {arm: p[arm][at] for arm in p})
        for at, metric in enumerate(values)
    )
    return Comparison(setting, tuple(lines))


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _stars(p: float) -> str:
    return "***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else ""
