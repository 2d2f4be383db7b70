"""The limitations of a fitted model: what its run's noise hides, and which columns are lost, at no privacy cost.

Everything here follows from public facts (the questions and their noise) and from rows drawn from the model, which
releases determine. No real row is read.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.federation.noise_record import NoiseRecord
from fedsynth.methods.registry import stated
from fedsynth.models.card import HiddenGroups, Limitations, LostColumn, shown
from fedsynth.models.synthesizer import ModelAxis, Synthesizer
from fedsynth.runs.resolution import TWICE, resolution, weakest_columns
from fedsynth.schema.columns import Column

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.rows import Table
    from fedsynth.schema.bins import Floats

_DRAWN = 100_000  # rows drawn, at most, to find what is hidden or lost
_FEWEST = 20  # drawn values from which a column is judged
_NAMED = 3  # values named in one line
_SHOWN = {"count": 3, "crossings": 3, "target": 2}  # lines for each kind of hidden groups


def with_limitations(synthesizer: Synthesizer, federation: Federation, target: str = "") -> Synthesizer:
    """Return a fitted synthesizer with its statement, the summary of its ledger, and its limitations.

    They are those of the finished run of ``federation``, found with rows drawn from the model. ``target`` names a
    categorical column; combinations with it that noise hides are listed, too.
    """
    total = synthesizer.model.total
    drawn = synthesizer.sample_table(min(max(1, round(total)), _DRAWN), 0)
    found = small_groups(federation, drawn, total, target)
    hidden = {name: rows / total for name, rows in synthesizer.unplaced.items()}
    found = msgspec.structs.replace(found, lost=lost_columns(synthesizer.axes, drawn, hidden))
    return replace(stated(synthesizer, federation), limitations=found)


# ---------------------------------------------------------------------------------------------------------------------
# Lost columns


def lost_columns(
    axes: Sequence[ModelAxis], table: Table, unplaced: Mapping[str, float] | None = None
) -> tuple[LostColumn, ...]:
    """Return the columns of which next to nothing is left in rows drawn from a model, in their order.

    A column is lost if it could have several values and all drawn rows have the same. A number or time is also lost if
    more than half of its known values lie in one of the model's cells, in which values are drawn evenly, although the
    cell holds several values and was not declared as a bin (``edges``) in the schema. Columns with fewer than 20 drawn
    values are left out. ``axes`` are those of the model, one for each column, and ``unplaced`` are by column the shares
    of rows whose values noise hid, as far as the survey could estimate them; where these lie next to zero, the drawn
    rows there are counted instead.
    """
    found = []
    for at, (column, axis) in enumerate(zip(table.schema.stored, axes, strict=True)):
        if (lost := _lost(column, axis, table, at)) is not None:
            found.append(lost)
        elif share := (unplaced or {}).get(column.name):
            share = _share_next_to_zero(column, axis, table, at) or min(share, 1.0)
            found.append(LostColumn("hidden values", _named(table, at), "", share))
    return tuple(found)


def _lost(column: Column, axis: ModelAxis, table: Table, at: int) -> LostColumn | None:
    codes, name = table.codes[at], _named(table, at)
    if not column.is_number:
        alone = len(codes) >= _FEWEST and column.size > 1 and (codes == codes[0]).all()
        return LostColumn("one value", name, shown(_names(column)[codes[0]]), 1.0) if alone else None
    bounds = " to ".join(written(column, column.bin_edges[[0, -1]]))
    grid = column.bins_as_cells
    cells = codes.astype(np.int64)
    if (numbers := table.numbers.get(at)) is not None:
        known = numbers[~np.isnan(numbers)]
        if len(known) >= _FEWEST and column.bin_edges[0] < column.bin_edges[-1] and (known == known[0]).all():
            return LostColumn("one value", name, written(column, known[:1])[0], 1.0, bounds)
        drawn_from = axis.cells(column)
        if drawn_from is None:
            return None
        grid, cells = drawn_from, np.searchsorted(drawn_from.upper, known)
    cells = cells[cells < len(grid)]  # without those of missing values
    if len(codes) >= _FEWEST and not len(cells):
        return LostColumn("one value", name, "missing", 1.0, bounds)
    if len(cells) < _FEWEST or column.edges is not None:
        return None
    rows = np.bincount(cells, minlength=len(grid))
    most = int(rows.argmax())
    if grid.single[most] or 2 * rows[most] <= len(cells):
        return None
    ends = written(column, grid.admitted(np.array([grid.lower[most], grid.upper[most]])))
    return LostColumn("wide cell", name, " to ".join(ends), float(rows[most] / len(cells)), bounds)


def _share_next_to_zero(column: Column, axis: ModelAxis, table: Table, at: int) -> float:
    """Return the share of the drawn rows in the cells of a number beside that of zero; 0 without such cells."""
    if column.is_time or (grid := axis.cells(column)) is None or at not in table.numbers:
        return 0.0
    known = table.numbers[at][~np.isnan(table.numbers[at])]
    beside = np.abs(np.searchsorted(grid.upper, known) - grid.nearest_to_zero) == 1
    return float(np.count_nonzero(beside) / max(1, len(table)))


def _named(table: Table, at: int) -> str:
    """Return a column's name, or what it is stored as, such as "discharged - admitted"."""
    if (link := table.schema.links.get(at)) is None:
        return shown(table.schema.stored[at].name)
    return shown((" / " if link.is_ratio else " - ").join(link.form.operands))


def written(column: Column, values: Floats) -> list[str]:
    """Return numbers as text, or times in ISO 8601."""
    if column.is_time:
        times = column.times(values)
        return [str(time) for time in np.datetime_as_string(times, unit="D" if column.unit == "D" else "s")]
    return [f"{value:,.0f}" if value == round(value) else f"{value:.6g}" for value in values.tolist()]


# ---------------------------------------------------------------------------------------------------------------------
# Small groups


def small_groups(federation: Federation, table: Table, total: float, target: str = "") -> Limitations:
    """Return which groups of rows in a synthetic table a run's noise hides, at no privacy cost.

    ``table`` holds rows drawn from the model of the finished run, and ``total`` is the estimated number of real rows.
    ``target`` names a categorical column; other columns' combinations with it are listed, too. A group is hidden if its
    estimated number of rows is below twice the noise in its count. Lines of one kind are in order of their rows, most
    first.
    """
    found, columns = resolution(federation, total), len(table.schema.stored)
    groups = sorted(_hidden(federation.noise, table, total, target), key=lambda group: -group.rows)
    named = [group for kind, most in _SHOWN.items() for group in [one for one in groups if one.kind == kind][:most]]
    weakest = weakest_columns(table, min(5, columns - found.carried)) if found.carried is not None else []
    return Limitations(
        found.value,
        found.crossing,
        found.carried,
        found.warnings,
        tuple(map(shown, weakest)),
        tuple(named),
        len(groups) - len(named),
    )


def _hidden(noise: NoiseRecord, table: Table, total: float, target: str) -> Iterator[HiddenGroups]:
    """Yield, for each categorical column and its pair with the target, the groups that the noise hides."""
    columns, typical = table.schema.stored, noise.typical(2)
    scale = total / max(1, len(table))
    categories = {at: _names(column) for at, column in enumerate(columns) if not column.is_number}
    counts = {at: scale * np.bincount(table.codes[at], minlength=len(names)) for at, names in categories.items()}
    crossed: dict[int, list[float]] = {at: [] for at in range(len(columns))}
    for pair, std in noise.tables.items():
        for at in pair if len(pair) == 2 else ():
            crossed[at].append(std)
    aim = next((at for at in categories if columns[at].name == target), None)
    for at, names in categories.items():
        own, name = counts[at], shown(columns[at].name)
        least = TWICE * noise.tables.get((at,), 0.0)
        wide = max(least, TWICE * statistics.median(crossed[at] or [0.0]))
        yield from _some("count", name, names, own, least, own < least)
        yield from _some("crossings", name, names, own, wide, (own >= least) & (own < wide))
        if aim is not None and at != aim and typical is not None:
            limit = TWICE * noise.tables.get((min(at, aim), max(at, aim)), typical)
            joint = table.codes[at].astype(np.int64) * len(categories[aim]) + table.codes[aim]
            cells = scale * np.bincount(joint, minlength=len(names) * len(categories[aim]))
            known = np.outer(own >= max(limit, wide), counts[aim] >= limit).ravel()
            both = [f"{one}, {two}" for one in names for two in categories[aim]]
            yield from _some("target", f"{name} and {shown(target)}", both, cells, limit, known & (cells < limit))


def _some(
    kind: Literal["count", "crossings", "target"],
    column: str,
    names: Sequence[str],
    rows: NDArray[Any],
    below: float,
    hidden: NDArray[np.bool_],
) -> Iterator[HiddenGroups]:
    if hidden.any():
        largest = [at for at in np.argsort(-rows, kind="stable").tolist() if hidden[at]][:_NAMED]
        named = tuple((shown(names[at]), round(float(rows[at]))) for at in largest)
        yield HiddenGroups(kind, column, int(hidden.sum()), len(names), below, round(float(rows[hidden].sum())), named)


def _names(column: Column) -> list[str]:
    """Return the names of a categorical column's values in the order of their codes, missing ones last."""
    assert not column.is_number
    return [*column.texts, *["(missing)"] * column.missing]
