"""A points scorer: a logistic regression on a table's groups, in whole points, as an integer scorecard."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from fedsynth.answers.condition import read_condition
from fedsynth.answers.queries import ScoreHistogram
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Floats

_POINTS = 1000  # for one unit of log odds
_MOST = 2**20
_RIDGE = 1.0  # strength of the penalty on squared log odds, in rows


class Scorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The points of each column's cells, and the scores between which rows are counted, as JSON values."""

    points: dict[Annotated[int, msgspec.Meta(ge=0)], list[Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]]]
    cuts: list[Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]]

    def query(self, schema: Schema, of: str) -> ScoreHistogram:
        """Return the query for real rows by score and by whether they meet the condition ``of``."""
        (label,) = read_condition(schema, of).axes
        points = tuple(np.array(values, dtype=np.int64) for values in self.points.values())
        axes = tuple(Axis(at) for at in self.points)
        return ScoreHistogram(axes, points, np.array(self.cuts, dtype=np.int64), label)


def fitted_scorer(table: Table, of: str, bins: int) -> Scorer:
    """Return a scorer of a condition on one column by all other columns, fitted to a table's codes.

    Scores are cut into ``bins`` at the quantiles of the rarer label's rows.
    """
    from scipy.optimize import minimize
    from scipy.sparse import csr_matrix

    schema = table.schema
    (label,) = read_condition(schema, of).axes
    positive = label.places(table.codes[label.column], table.numbers.get(label.column)) == 1
    columns = [at for at in range(len(schema.stored)) if at != label.column]
    sizes = [schema.stored[at].size for at in columns]
    begins = np.concatenate([[0], np.cumsum(sizes)])
    cells = np.stack([table.codes[at].astype(np.int64) + begin for at, begin in zip(columns, begins, strict=False)], 1)
    rows, many = cells.shape
    design: Any = csr_matrix(
        (np.ones(cells.size), cells.ravel(), np.arange(0, cells.size + 1, many)), (rows, begins[-1])
    )
    sign = np.where(positive, 1.0, -1.0)

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        margin = sign * (design @ coefficients[1:] + coefficients[0])
        slope = -sign / (1 + np.exp(np.clip(margin, -500, 500)))
        penalty = _RIDGE * coefficients[1:]
        value = float(np.logaddexp(0, -margin).sum() + penalty @ coefficients[1:] / 2)
        return value, np.concatenate([[slope.sum()], design.T @ slope + penalty])

    found = minimize(loss, np.zeros(begins[-1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    points = np.clip(np.rint(_POINTS * found.x[1:]), -_MOST, _MOST).astype(np.int64)
    score = points[cells].sum(axis=1)
    rarer = score[positive == (2 * positive.sum() <= rows)]  # whose scores decide how much noise the area has
    cuts = np.unique(np.quantile(rarer if len(rarer) else score, np.arange(1, bins) / bins).astype(np.int64))
    by_column = {
        at: points[begin : begin + size].tolist() for at, begin, size in zip(columns, begins, sizes, strict=False)
    }
    return Scorer(by_column, cuts.tolist())
