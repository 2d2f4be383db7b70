"""The results of a benchmark as tables and plots: Markdown, one HTML page, and SVG files."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.bench.results import ResultLine
from fedsynth.bench.spec import AXES, Spec, TableEntry, several
from fedsynth.errors import number_of
from fedsynth.evaluation.plots import LINE_STYLE, Chart, curves, svg
from fedsynth.files import write_whole

ALONE = f"svg{{background:#fff}}text{{font:11px sans-serif;fill:#1b2026}}.rule{{fill:none;stroke:#c9cfd5}}{LINE_STYLE}"
"""The style of a plot that stands alone."""
_NAMED = ("method", "trust", "delta", "arm")  # what tells the lines of a plot apart

Parts = Mapping[str, str]


@dataclass(frozen=True)
class RunFigure:
    """One figure of one run, to be grouped and averaged in a table or plot.

    ``parts`` maps the settings of the run (dataset, method, epsilon, ...) to their values as text, "value" to the
    figure's name, and "metric" and "part" to what stands before and after the colon in that name (without a colon, both
    to the whole name).
    """

    parts: Parts
    number: float


@dataclass(frozen=True)
class TextTable:
    """A table of texts for the page of results, with a text above it."""

    text: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
        return f"{self.text}\n\n{table}" if self.text else table

    def html(self) -> str:
        """Return the table as HTML."""

        def row(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        text = f"<p>{escape(self.text)}</p>" if self.text else ""
        return (
            f'{text}<div class="scroll"><table><thead>{row(self.head, "th")}</thead><tbody>{body}</tbody></table></div>'
        )


def write_pages(spec: Spec, lines: Sequence[ResultLine], cells: int, out: Path) -> str:
    """Write the results as ``page.md``, ``page.html`` and ``plots/*.svg`` (in place of earlier ones) into ``out``.

    ``cells`` is the number of runs in the whole grid. Returns the Markdown text without title and plots.
    """
    figures = run_figures(lines)
    found = [table for entry in spec.tables if (table := _table(spec, entry, figures)).rows]
    charts = plots(spec, figures) | plots_over_epsilon(spec, figures)
    held = len({line.cell for line in lines})
    seeds = len({line.cell.seed for line in lines})
    notes = [
        f"{held:,} of {cells:,} runs, at most {number_of(seeds, 'seed')}. Mean ± standard deviation over seeds.",
        *(f"{name}: {entry.note}" for name, entry in spec.datasets.items() if entry.note),
    ]
    (out / "plots").mkdir(parents=True, exist_ok=True)
    for old in (out / "plots").glob("*.svg"):
        old.unlink()
    for name, chart in charts.items():
        write_whole(out / "plots" / f"{name}.svg", svg(chart, style=ALONE))
    body = [spec.text.strip(), *(table.markdown() for table in found), "\n".join(f"- {note}" for note in notes)]
    text = "\n\n".join(part for part in body if part)
    pictures = "\n".join(f"![{chart.label}](plots/{name}.svg)" for name, chart in charts.items())
    write_whole(out / "page.md", f"# {spec.title}\n\n{text}\n\n{pictures}\n")
    style = resources.files("fedsynth.evaluation").joinpath("report.css").read_text(encoding="utf-8")
    cards = "".join(
        f'<figure class="card"><figcaption>{escape(chart.label)}</figcaption>{svg(chart)}</figure>'
        for chart in charts.values()
    )
    write_whole(
        out / "page.html",
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(spec.title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}{LINE_STYLE}</style></head><body><main>'
        f"<h1>{escape(spec.title)}</h1><p>{escape(spec.text)}</p>{''.join(table.html() for table in found)}"
        f'<ul>{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul><div class="grid">{cards}</div>'
        "</main></body></html>\n",
    )
    return text


def write_section(path: Path, section: str, title: str, text: str) -> None:
    """Write a text and its title into a Markdown page, in the place of the ``section`` of that name, or at the end.

    A section stands between the comments ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. A missing page is created.
    """
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    block = f"{begin}\n## {title}\n\n{text}\n{end}"
    page = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    found = pattern.search(page)
    write_whole(path, pattern.sub(lambda _: block, page) if found else f"{page.rstrip()}\n\n{block}\n")


def plots(spec: Spec, figures: Sequence[RunFigure]) -> dict[str, Chart]:
    """Return the plots that a specification names, by file name; published figures are circles."""
    found = {}
    for entry in spec.plots:
        own = [one for one in figures if one.parts["value"] == entry.value and fits(one.parts, entry.where)]
        if entry.at:
            own = [
                RunFigure({**one.parts, entry.x: str(entry.at[method])}, one.number)
                for one in own
                if (method := one.parts["method"]) in entry.at
            ]
        if chart := _chart(spec, entry.text, own, entry.lines, entry.x):
            found[_file(entry.text)] = chart
    return found


def plots_over_epsilon(spec: Spec, figures: Sequence[RunFigure]) -> dict[str, Chart]:
    """Return plots over epsilon by file name: one for each data set and each figure whose metric sets ``better``.

    Each line is a method; trust model, delta and arm make further lines where they differ. Everything else that
    differs, such as the seed, is averaged. Published figures are circles.
    """
    found = {}
    judged = [one for one in figures if spec.metrics[one.parts["metric"]].better and _number(one.parts["epsilon"])]
    for (dataset, value), some in grouped(judged, ("dataset", "value")).items():
        apart = [axis for axis in _NAMED if len({one.parts[axis] for one in some}) > 1] or ["method"]
        better = spec.metrics[some[0].parts["metric"]].better
        if chart := _chart(spec, f"{dataset}: {value} over epsilon; {better} is better", some, apart, "epsilon"):
            found[_file(f"{dataset} {value}")] = chart
    return found


def _chart(spec: Spec, text: str, figures: Sequence[RunFigure], apart: Sequence[str], x: str) -> Chart | None:
    """Return a plot over ``x`` with a line for each combination of settings ``apart``; ``None`` without two points."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    points: dict[str, list[tuple[float, float]]] = {}
    for (*name, place), runs in grouped(figures, (*apart, x)).items():
        mean, deviation = spread(runs)
        if math.isfinite(mean) and _number(place):
            lines.setdefault(", ".join(name), []).append((float(place), mean, deviation))
            if (number := published(spec, _common(runs))) is not None:
                points.setdefault(", ".join(name), []).append((float(place), number))
    lines = {name: sorted(line) for name, line in sorted(lines.items()) if len(line) > 1}
    return curves(text, lines, points) if lines else None


def _file(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-").lower()


def published(spec: Spec, parts: Parts) -> float | None:
    """Return the published figure for runs with the common settings ``parts``.

    ``None`` without one, or if it measures something else (standing "other footing").
    """
    for entry in spec.published:
        if entry.standing == "other footing" or parts.get("method") not in entry.by or not fits(parts, entry.where):
            continue
        found: Any = entry.figures
        for axis in entry.axes:
            found = found.get(parts.get(axis)) if isinstance(found, Mapping) else None
        for names, number in zip(entry.values, found or (), strict=False):
            if parts.get("value") in several(names, ()) and not math.isnan(number):
                return float(number)
    return None


def run_figures(lines: Iterable[ResultLine]) -> list[RunFigure]:
    """Return the figures of results, to be grouped and averaged."""
    return [RunFigure(_parts(line), line.value) for line in lines]


def _parts(line: ResultLine) -> Parts:
    metric, _, part = line.metric.partition(": ")
    cell = {axis: str(getattr(line.cell, axis)) for axis in AXES}
    return {**cell, "value": line.metric, "metric": metric, "part": part or metric}


def _table(spec: Spec, entry: TableEntry, figures: Sequence[RunFigure]) -> TextTable:
    chosen = [
        one
        for one in figures
        if fits(one.parts, entry.where) and (not entry.values or one.parts["value"] in entry.values)
    ]
    rows = entry.rows or tuple(
        axis
        for axis in AXES[:-1]
        if axis in ("dataset", "method") or len({one.parts[axis] for one in chosen} - {""}) > 1
    )
    rank = _ranks(spec, chosen)
    by_row = grouped(chosen, rows)
    columns = list(dict.fromkeys(tuple(one.parts[axis] for axis in entry.columns) for one in chosen))
    if entry.values and entry.columns == ("value",):
        columns.sort(key=lambda column: entry.values.index(column[0]))
    else:
        columns.sort(
            key=lambda column: tuple(rank[axis, part] for axis, part in zip(entry.columns, column, strict=True))
        )
    lines = []
    for key in sorted(by_row, key=lambda key: tuple(rank[axis, part] for axis, part in zip(rows, key, strict=True))):
        inside = grouped(by_row[key], entry.columns)
        shown = [_shown(spec, inside.get(column, [])) for column in columns]
        lines.append((key, str(len({one.parts["seed"] for one in by_row[key]})), shown))
    beside = [any(line[2][at][1] for line in lines) for at in range(len(columns))]
    head = [*rows]
    for column, both in zip(columns, beside, strict=True):
        head += [_title(spec, entry, column), *(["published"] if both else [])]
    return TextTable(
        entry.text.strip(),
        (*head, "seeds"),
        tuple(
            (
                *key,
                *itertools.chain(*(pair if both else pair[:1] for pair, both in zip(shown, beside, strict=True))),
                seeds,
            )
            for key, seeds, shown in lines
        ),
    )


def _title(spec: Spec, entry: TableEntry, column: tuple[str, ...]) -> str:
    better = spec.metrics[column[0].partition(": ")[0]].better if entry.columns == ("value",) else ""
    return ", ".join(column) + {"": "", "lower": " ↓", "higher": " ↑"}[better]


def _shown(spec: Spec, runs: Sequence[RunFigure]) -> tuple[str, str]:
    """Return the text of a mean with its deviation, and of the published figure."""
    if not runs:
        return "", ""
    digits = spec.metrics[runs[0].parts["metric"]].digits
    mean, deviation = spread(runs)
    text = "" if math.isnan(mean) else "∞" if math.isinf(mean) else f"{mean:.{digits}f}"
    if text and len(runs) > 1 and math.isfinite(mean):
        text += f" ± {deviation:.{digits}f}"
    found = published(spec, _common(runs))
    return text, "" if found is None else f"{found:g}"


def spread(runs: Sequence[RunFigure]) -> tuple[float, float]:
    """Return the mean and standard deviation of the numbers in a group; both are NaN if it has no number."""
    numbers = [one.number for one in runs if not math.isnan(one.number)]
    if not numbers or any(map(math.isinf, numbers)):
        return (math.inf if numbers else math.nan), math.nan
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def _common(runs: Sequence[RunFigure]) -> dict[str, str]:
    return {axis: part for axis, part in runs[0].parts.items() if all(one.parts[axis] == part for one in runs)}


def fits(parts: Parts, where: Mapping[str, Any]) -> bool:
    """Return whether the settings of a run have the values in ``where``: one each, or one of several."""
    wanted = {axis: {str(one) for one in (some if isinstance(some, list) else [some])} for axis, some in where.items()}
    return all(parts.get(axis) in some for axis, some in wanted.items())


def grouped(figures: Iterable[RunFigure], axes: Sequence[str]) -> dict[tuple[str, ...], list[RunFigure]]:
    """Return figures by their settings on some ``axes``, in their order."""
    found: dict[tuple[str, ...], list[RunFigure]] = {}
    for one in figures:
        found.setdefault(tuple(one.parts[axis] for axis in axes), []).append(one)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _ranks(spec: Spec, figures: Sequence[RunFigure]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the place of each value of each axis: numbers by size, data sets and metrics as they are specified.

    All others, and the parts of a metric, come in the order of the runs.
    """
    orders = {"dataset": list(spec.datasets), "metric": list(spec.metrics)}
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for one in figures:
        for axis, part in one.parts.items():
            if axis in ("epsilon", "delta", "sites", "seed"):
                place = (math.inf if part == "none" else _number(part), 0.0)
            elif axis == "value":
                place = (float(orders["metric"].index(one.parts["metric"])), float(len(found)))
            elif axis in orders:
                place = (float(orders[axis].index(part)), 0.0)
            else:
                place = (float(len(found)), 0.0)
            found.setdefault((axis, part), place)
    return found
