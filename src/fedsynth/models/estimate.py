"""Estimation of a graphical model from noisy marginals (Private-PGM), used by AIM, FLAIM, OneShot and others.

The problem and its maximum-entropy solution are from McKenna, Sheldon and Miklau (2019), arXiv 1901.09136. The solver
is our own: mirror descent needs thousands of steps if a table has large and small cells. Here each of its steps uses a
far larger step size and is solved in the dual, which is smooth and concave and costs one message passing per
evaluation. See :func:`estimate`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError
from fedsynth.models.evidence import LEAST
from fedsynth.models.junction_tree import (
    Clique,
    Floats,
    junction_tree,
    maximal,
    pass_messages,
    reduce,
    spread,
    workspace,
)
from fedsynth.models.mrf import MarkovRandomField, fold

Mask = NDArray[np.bool_]
Zeros = Mapping[Clique, Mask]
"""Structural zeros: for each sorted clique, a mask of the cells of its table in which no row can lie."""

_FAR, _FAR_QUIET = 10.0, 4  # above so many times the final loss, so many times as many blocks of little progress
_NOISE_GAIN = 1e-3  # relative decrease of the loss below which a block fits only noise
_BLOCK = 3  # quasi-Newton steps between two updates of the proximal centre
_SHRINK, _GROW = 0.6, 4.0  # factors of the proximal weight after a successful and an unsuccessful block
_PATIENCE = 6  # blocks without progress before a restart from the best point
_CHUNK = 1 << 14  # cells; with ten vectors a chunk is 1.3 MB
_CUTS = 10  # most reductions of one step before its direction is given up
_PAIRS = 5, 40  # secant pairs of L-BFGS, least and most: many help where overlapping tables move together ...
_CELLS_A_PAIR = 20  # ... but above the least only one for so many measured cells: in few cells, they overshoot ...
_PAIR_CELLS = 1 << 20  # ... and fewer in large models, where one pair does as well and more cost memory


@dataclass(frozen=True, eq=False)
class Measurement:
    """A noisy contingency table (marginal) of some columns, with its noise level: the input of :func:`estimate`.

    ``clique`` is the sorted tuple of the columns' positions. ``values`` has one axis per column, in this order, of the
    column's number of codes (values or bins); entries are numbers of rows, which may be negative and need not sum to
    the total. Each has independent noise of standard deviation ``std``, in rows. Raises :class:`FedsynthError` for an
    unsorted clique, a std that is not positive, and values that are not finite or have the wrong number of axes.
    """

    clique: Clique
    values: Floats
    std: float

    def __post_init__(self) -> None:
        if tuple(sorted(set(self.clique))) != tuple(self.clique):
            raise FedsynthError(f"clique {self.clique}: pass sorted, distinct columns")
        if not (math.isfinite(self.std) and self.std > 0):
            raise FedsynthError(f"clique {self.clique}: std {self.std} is not a noise level; pass a positive number")
        if np.ndim(self.values) != len(self.clique) or not np.isfinite(self.values).all():
            raise FedsynthError(f"clique {self.clique}: pass finite values with one axis per column")

    def onto(self, clique: Clique) -> Measurement:
        """Return the marginal on ``clique``, a sorted subset of the columns, with the noise level of its sums."""
        others = tuple(axis for axis, column in enumerate(self.clique) if column not in clique)
        cells = math.prod(self.values.shape[axis] for axis in others)
        return Measurement(clique, self.values.sum(axis=others), self.std * math.sqrt(cells))


def loss(model: MarkovRandomField, measurements: Sequence[Measurement]) -> float:
    """Return the sum of ((marginal - values) / std)^2 / 2 over all cells: the objective of :func:`estimate`."""
    tables = model.marginals(m.clique for m in measurements)
    return sum(float((((tables[m.clique] - m.values) / m.std) ** 2).sum()) / 2 for m in measurements)


def estimate(
    sizes: Sequence[int],
    measurements: Sequence[Measurement],
    total: float,
    *,
    iterations: int = 50,
    warm_start: MarkovRandomField | None = None,
    tolerance: float = 1e-6,
    noise_stop: float = 0.0,
    quiet_blocks: int = 5,
    zeros: Zeros | None = None,
) -> MarkovRandomField:
    """Fit a graphical model of ``total`` rows to noisy tables: Private-PGM, with the measured cliques as factors.

    ``sizes`` holds the number of codes of each column. The fit minimises half the squared distance from the tables in
    units of their noise (:func:`loss`), in at most ``iterations`` steps (of about one message passing each). It ends
    earlier if a restart from the best point no longer lowers the loss by ``tolerance * max(loss, 1)``. Measurements of
    one clique are first merged by inverse variance; this changes the loss by a constant, so the minimiser stays the
    same. The fit starts from ``warm_start``, a model whose cliques all lie in measured cliques, or by default from the
    product of the measured one-way marginals.

    With ``noise_stop`` above 0 the fit ends as soon as the loss is at most ``noise_stop`` times half the number of
    measured cells (half that number is the expected loss of the true table), or as soon as ``quiet_blocks`` successive
    blocks (of three steps) each lower it by less than a thousandth; while the loss is above ten times its goal, as soon
    as four times as many do. Further fitting would fit the noise, including empty cells that noise made negative (the
    discrepancy principle; Morozov 1966). The same input gives the same bits (on one machine, with a fixed number of
    BLAS threads).

    ``zeros`` (:data:`Zeros`) are cells in which no row can lie: their cliques become factors with log potential -1000
    in these cells, and noise in such cells of measured tables is not fitted.

    Raises :class:`FedsynthError` for measurements that do not fit ``sizes``, and for a ``warm_start`` of other column
    sizes or with a clique that lies in no measured clique.
    """
    zeros = zeros or {}
    found = _checked(sizes, measurements)
    found = {clique: (without(values, clique, zeros), variance) for clique, (values, variance) in found.items()}
    objective = _Objective(tuple(int(size) for size in sizes), found, float(total), zeros)
    if warm_start is None:
        centre = objective.independent()
    else:
        if warm_start.sizes != objective.sizes:
            raise FedsynthError("the model to start from has other column sizes; fit it on the same columns")
        centre = fold(objective.sizes, objective.factors, warm_start.factors, warm_start.potentials)
    centre = objective.ruled_out(centre, zeros)
    if objective.measured and iterations > 0:
        weight = 0.1 if warm_start is None else 0.03
        enough = noise_stop * objective.values.size / 2
        centre = _proximal_points(objective, centre, weight, iterations, tolerance, enough, quiet_blocks)
    return MarkovRandomField(objective.sizes, total, objective.factors, centre)


def forbidden(zeros: Zeros, clique: Clique, shape: Sequence[int]) -> Mask | None:
    """Return a mask of the cells of a clique's table in which no row can lie by ``zeros``; ``None`` without any."""
    parts = [spread(mask, other, clique) for other, mask in zeros.items() if set(other) <= set(clique)]
    return np.broadcast_to(np.logical_or.reduce(np.broadcast_arrays(*parts)), shape) if parts else None


def without(values: Floats, clique: Clique, zeros: Zeros) -> Floats:
    """Return the table ``values`` of a ``clique`` with its structural zeros set to 0."""
    mask = forbidden(zeros, clique, values.shape)
    return values if mask is None else np.where(mask, 0.0, values)


def inverse_variance_mean(values: Sequence[Any], variances: Sequence[Any]) -> tuple[Any, Any]:
    """Return the inverse-variance weighted mean of several estimates of the same numbers, and the variance of the mean.

    ``values`` and ``variances`` have one entry, a number or an array, for each estimate. The errors of the estimates
    must be independent. An estimate of infinite variance has weight 0.
    """
    weights = [1 / np.asarray(variance) for variance in variances]
    total = sum(weights)
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / total, 1 / total


def merged(measurements: Sequence[Measurement]) -> dict[Clique, tuple[Floats, float]]:
    """Average measurements of a clique by inverse variance; return its table and the variance of each cell."""
    by_clique: dict[Clique, list[Measurement]] = {}
    for measurement in measurements:
        by_clique.setdefault(tuple(int(column) for column in measurement.clique), []).append(measurement)
    means = {
        clique: inverse_variance_mean([same.values for same in group], [same.std**2 for same in group])
        for clique, group in by_clique.items()
    }
    return {clique: (np.asarray(values, np.float64), float(variance)) for clique, (values, variance) in means.items()}


def _checked(sizes: Sequence[int], measurements: Sequence[Measurement]) -> dict[Clique, tuple[Floats, float]]:
    """Return the merged measurements; raises :class:`FedsynthError` for measurements that do not fit the columns."""
    for measurement in measurements:
        if any(not 0 <= column < len(sizes) for column in measurement.clique):
            raise FedsynthError(f"clique {measurement.clique}: pass columns below {len(sizes)}")
        if measurement.values.shape != tuple(sizes[column] for column in measurement.clique):
            raise FedsynthError(
                f"clique {measurement.clique}: values of shape {measurement.values.shape} do not match the column "
                f"sizes {tuple(sizes)}; pass one entry for each cell"
            )
    # the total is given, so a measurement of the empty clique has no information
    return {clique: found for clique, found in merged(measurements).items() if clique}


class _Objective:
    """The measurements in units of their noise, as one flat vector, and the map from multipliers to marginals.

    ``values`` and all other vectors here have one entry per measured cell: counts divided by the clique's std.
    """

    def __init__(
        self, sizes: tuple[int, ...], merged: dict[Clique, tuple[Floats, float]], total: float, more: Iterable[Clique]
    ) -> None:
        self.sizes, self.total = sizes, total
        self.measured = tuple(merged)
        self.stds = [math.sqrt(variance) for _, variance in merged.values()]
        self.factors = maximal([*merged, *more, *((column,) for column in range(len(sizes)))])
        self.tree = junction_tree(sizes, self.factors)
        self.buffers = workspace(self.tree)
        self.homes = [
            next(i for i, factor in enumerate(self.factors) if set(clique) <= set(factor)) for clique in merged
        ]
        stops = np.cumsum([0, *(values.size for values, _ in merged.values())]).tolist()
        self.slices = [slice(start, stop) for start, stop in itertools.pairwise(stops)]
        self.values = np.empty(stops[-1])
        for part, std, (values, _) in zip(self.slices, self.stds, merged.values(), strict=True):
            np.divide(values.ravel(), std, out=self.values[part])

    def ruled_out(self, centre: tuple[Floats, ...], zeros: Zeros) -> tuple[Floats, ...]:
        """Return log potentials with ``LEAST`` in the cells that are structural zeros."""
        masks = [forbidden(zeros, factor, table.shape) for factor, table in zip(self.factors, centre, strict=True)]
        return tuple(
            table if mask is None else np.where(mask, LEAST, table) for mask, table in zip(masks, centre, strict=True)
        )

    def potentials(self, multipliers: Floats, centre: Sequence[Floats], out: Sequence[Floats]) -> Sequence[Floats]:
        """Write the log potentials ``centre`` + multipliers / std to ``out``, per factor, and return it."""
        for source, target in zip(centre, out, strict=True):
            np.copyto(target, source)
        for part, std, clique, home in zip(self.slices, self.stds, self.measured, self.homes, strict=True):
            table = (multipliers[part] / std).reshape(self.tree.shape(clique))
            np.add(out[home], spread(table, clique, self.factors[home]), out=out[home])
        return out

    def marginals(self, potentials: Sequence[Floats]) -> tuple[Floats, float]:
        """Return the expected counts of the measured cells, divided by their stds, and the log normaliser."""
        messages, tables = pass_messages(self.tree, potentials, self.total, self.buffers)
        result = np.empty(self.values.size)
        for part, std, clique, home in zip(self.slices, self.stds, self.measured, self.homes, strict=True):
            factor, table = self.factors[home], tables[home]
            table = table if clique == factor else reduce(table, factor, clique)
            np.divide(table.ravel(), std, out=result[part])
        return result, messages.log_partition

    def loss(self, marginals: Floats) -> float:
        """Return half the squared distance of the marginals from the measured values."""
        error = marginals - self.values
        return float(error @ error) / 2

    def independent(self) -> tuple[Floats, ...]:
        """Return the log potentials of the product of one-way marginals, each from its least noisy table."""
        best: dict[int, tuple[float, Floats]] = {}
        for part, std, clique in zip(self.slices, self.stds, self.measured, strict=True):
            table = self.values[part].reshape(self.tree.shape(clique)) * std
            for column in clique:
                noise = std * math.sqrt(table.size / self.sizes[column])
                if column not in best or noise < best[column][0]:
                    best[column] = (noise, reduce(table, clique, (column,)))
        cliques, potentials = [], []
        for column, (noise, counts) in best.items():
            # no cell starts below the noise of its estimate: it could hold that many rows
            least = min(noise, self.total / self.sizes[column])
            cliques.append((column,))
            potentials.append(np.log(np.maximum(counts, least)))
        return fold(self.sizes, self.factors, cliques, potentials)


@dataclass(frozen=True, eq=False)
class _Point:
    """Log potentials with the marginals, log normaliser and loss that follow from them."""

    potentials: tuple[Floats, ...]
    marginals: Floats
    log_z: float
    loss: float


def _proximal_points(
    objective: _Objective,
    start: tuple[Floats, ...],
    weight: float,
    iterations: int,
    tolerance: float,
    enough: float,
    quiet_blocks: int,
) -> tuple[Floats, ...]:
    """Return the log potentials with the lowest loss reached at the end of a block.

    Block k approximately minimises loss(p) + tau * total * KL(p || centre) over the models, which is the proximal point
    method with entropy as distance (Censor and Zenios 1992, doi 10.1007/BF00940051). Its dual, in units of the noise,
    is

        minimise over u    tau/2 |u|^2 - u.values + total * log Z(centre + u/std),

    smooth and strictly convex, with gradient tau u + marginals - values; :class:`_Secants` gives directions. Then the
    centre moves to the point reached. tau shrinks after blocks that lower the loss with at most one cut step, and grows
    after blocks that raise it or have more than two. It starts at ``weight`` times the largest ratio of count to
    variance, where its damping equals the curvature of the largest cell. After some blocks without progress, the method
    restarts from the best point; it ends if a restart does not help. It also ends at a loss of at most ``enough`` and,
    if ``enough`` is positive, after ``quiet_blocks`` blocks of little progress.
    """
    peak = max(
        float((objective.values[part]).max()) / std for part, std in zip(objective.slices, objective.stds, strict=True)
    )
    least = objective.total / objective.values.size / max(objective.stds) ** 2
    best, restarted_at, done = start, math.inf, 0
    while done < iterations:
        marginals, log_z = objective.marginals(best)
        centre = _Point(best, marginals, log_z, objective.loss(marginals))
        lowest = centre.loss
        if restarted_at - lowest <= tolerance * max(lowest, 1.0) or lowest <= enough:
            break
        restarted_at, stalled, quiet, tau, secants = lowest, 0, 0, weight * max(peak, least), _Secants(objective)
        while done < iterations and stalled < _PATIENCE:
            steps = min(_BLOCK, iterations - done)
            point, cuts = _block(objective, centre, tau, steps, secants)
            done += steps
            stalled = stalled + 1 if lowest - point.loss <= tolerance * max(lowest, 1.0) else 0
            if point.loss < centre.loss and cuts <= 1:
                tau *= _SHRINK
            elif point.loss > centre.loss or cuts > 2:
                tau *= _GROW
            gain = max(0.0, lowest - point.loss)
            if point.loss < lowest:
                best, lowest = point.potentials, point.loss
            quiet = quiet + 1 if gain < _NOISE_GAIN * lowest else 0
            patience = quiet_blocks if lowest <= _FAR * enough else _FAR_QUIET * quiet_blocks
            if enough and (lowest <= enough or quiet >= patience):
                return best
            centre = point
    return best


def _block(objective: _Objective, centre: _Point, tau: float, steps: int, secants: _Secants) -> tuple[_Point, int]:
    """Take quasi-Newton steps on the dual around ``centre``; return the final point and the number of step cuts."""
    values, total = objective.values, objective.total
    potentials = [np.empty_like(potential) for potential in centre.potentials]
    multipliers, marginals, log_z, cuts = np.zeros(values.size), centre.marginals, centre.log_z, 0
    value = total * log_z
    for _ in range(steps):
        gradient = tau * multipliers
        gradient += marginals
        gradient -= values
        direction = secants.direction(gradient, tau, marginals)
        slope, step = float(gradient @ direction), 1.0
        del gradient
        for _ in range(_CUTS):
            trial = step * direction
            trial += multipliers
            new, new_log_z = objective.marginals(objective.potentials(trial, centre.potentials, potentials))
            new_value = tau / 2 * float(trial @ trial) - float(trial @ values) + total * new_log_z
            if new_value <= value + 1e-4 * step * slope:
                break
            cuts += 1
            # the minimum of the parabola through both values and the slope, within safe bounds
            step *= min(max(-slope * step / (2 * (new_value - value - step * slope)), 0.1), 0.5)
        else:
            secants.clear()
            objective.potentials(multipliers, centre.potentials, potentials)
            break
        direction *= step
        secants.add(direction, new, marginals)
        multipliers, marginals, log_z, value = trial, new, new_log_z, new_value
    return _Point(tuple(potentials), marginals, log_z, objective.loss(marginals)), cuts


class _Secants:
    """L-BFGS (Nocedal 1980, doi 10.1090/S0025-5718-1980-0572855-7) for the Hessian tau + covariance.

    A pair consists of a step and the change of the marginals, so it stays valid when tau changes or the centre moves.
    The initial Hessian is diagonal: tau + 2 marginals / std, where the factor 2 accounts for overlapping cliques that
    move the same rows.
    """

    def __init__(self, objective: _Objective) -> None:
        cells = objective.values.size
        self.chunks = [slice(start, start + _CHUNK) for start in range(0, cells, _CHUNK)]
        self.curvature = np.empty(cells)
        for part, std in zip(objective.slices, objective.stds, strict=True):
            self.curvature[part] = 2.0 / std
        self.limit = max(1, min(max(_PAIRS[0], cells // _CELLS_A_PAIR), _PAIRS[1], _PAIR_CELLS // cells))
        self.steps, self.changes = np.empty((self.limit, cells)), np.empty((self.limit, cells))
        self.clear()

    def clear(self) -> None:
        self.order: list[int] = []  # rows of the pairs, the oldest first
        self.step_step = np.zeros((self.limit, self.limit))
        self.step_change = np.zeros((self.limit, self.limit))

    def add(self, step: Floats, after: Floats, before: Floats) -> None:
        """Store a step and the change of the marginals over it, in place of the oldest pair if need be."""
        if not float(step @ after) > float(step @ before):  # a null step, or rounding near the end
            return
        row = self.order.pop(0) if len(self.order) == self.limit else len(self.order)
        self.order.append(row)
        self.steps[row] = step
        change = np.subtract(after, before, out=self.changes[row])
        used = len(self.order)
        self.step_step[row, :used] = self.step_step[:used, row] = self.steps[:used] @ step
        self.step_change[:used, row] = self.steps[:used] @ change
        self.step_change[row, :used] = self.changes[:used] @ step

    def direction(self, gradient: Floats, tau: float, marginals: Floats) -> Floats:
        """Return minus the approximate inverse Hessian times ``gradient``."""
        used = len(self.order)
        steps, changes = self.steps[:used], self.changes[:used]
        products = tau * self.step_step + self.step_change  # [i, j]: step i times Hessian times step j
        forward, backward, along = np.zeros(used), np.zeros(used), -(steps @ gradient)
        for row in reversed(self.order):
            forward[row] = (along[row] - products[row, :used] @ forward) / products[row, row]
        vector, newest_length = -gradient, 0.0
        along[:] = 0.0
        for part in self.chunks:  # everything below runs while a chunk is in the cache
            step, change, piece = steps[:, part], changes[:, part], vector[part]
            diagonal = self.curvature[part] * marginals[part]
            diagonal += tau
            if used:
                piece -= (tau * forward) @ step
                piece -= forward @ change
            piece /= diagonal
            if used:
                along += tau * (step @ piece)
                along += change @ piece
                response = tau * step[self.order[-1]]
                response += change[self.order[-1]]
                response *= response
                response /= diagonal
                newest_length += float(response.sum())
        if used:
            # ratio of the curvature along the newest step to that of the diagonal
            newest = self.order[-1]
            scale = min(max(float(products[newest, newest]) / newest_length, 0.2), 1.0)
            for row in self.order:
                response_along = scale * along[row] + products[:used, row] @ backward
                backward[row] = forward[row] - response_along / products[row, row]
            vector *= scale
            vector += backward @ steps
        return vector
