"""A page of the documentation for each paper: its published figures beside ours, and one page that sums them up."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import ROOT
from fedsynth.bench.page import ALONE, RunFigure, TextTable, plots, plots_over_epsilon, run_figures
from fedsynth.bench.results import CellRecord, ResultLine, by_key, figures_of, read_records
from fedsynth.bench.spec import AXES, MethodEntry, Spec, cases, read_spec
from fedsynth.bench.verdicts import VERDICTS, JudgedFigure, counted, judge, judge_claim
from fedsynth.errors import number_of
from fedsynth.evaluation.plots import Chart, svg

RESULTS = ROOT / "benchmarks" / "results"
SPECIFICATIONS = ROOT / "benchmarks" / "papers"
PAPERS = {
    "flaim": "FLAIM and DistAIM",
    "heterofedsyn": "HeteroFedSyn",
    "fed-tda": "Fed-TDA",
    "thesis": "FedBN and FedVAE",
    "fedtabdiff": "FedTabDiff",
}
"""What each paper with a page describes, by the name that specifications give it."""
_COUNTED = ("figures", "with results", *(f"{mark} {verdict}" for verdict, mark in VERDICTS.items()))
_SUM = (
    "Every figure in the tables of five papers, beside what `benchmarks/results` held when this page was built. A "
    "figure of a paper's own method is better or below if our mean over seeds differs by more than two of our standard "
    "deviations, else met. One of a method that the paper compares with, or one that is neither good nor bad, agrees "
    "or differs. Counted apart are figures that measure something else or in another way (other footing), of other "
    "rows (other sample), of rows that are not to be had (not obtainable), and those not run. A replica computes what "
    "the paper's algorithm computes; our own methods have the same purpose, and a better figure of theirs reproduces "
    "nothing."
)


class ResultPage(NamedTuple):
    """A page: its title, what its figures rest on in a few words, and its text without the title."""

    title: str
    source: str
    text: str


class PaperResults(NamedTuple):
    """A specification of a paper by its file's ``name``, its ``judged`` figures, and the runs that are ``kept``."""

    name: str
    spec: Spec
    judged: list[JudgedFigure]
    figures: list[RunFigure]
    kept: list[CellRecord]


def kept_lines(spec: Spec, file: Path) -> list[ResultLine]:
    """Return the figures that a file of results has of a grid's runs, found by their keys."""
    records = by_key(read_records(file))
    return [line for case in cases(spec) for line in figures_of(case, records.get(case.key, ()))]


def paper_pages() -> dict[str, ResultPage]:
    """Return the page of each paper by its name, and before them the one that sums them up, ``papers``."""
    results: dict[str, list[PaperResults]] = {}
    for place in sorted(SPECIFICATIONS.glob("*.toml")):
        spec, file = read_spec(place.read_text(encoding="utf-8")), RESULTS / f"{place.stem}.jsonl"
        figures, keys = run_figures(kept_lines(spec, file)), {case.key for case in cases(spec)}
        kept = [record for record in read_records(file) if record.key in keys]
        results.setdefault(spec.paper, []).append(PaperResults(place.stem, spec, judge(spec, figures), figures, kept))
    for some in results.values():
        some.sort(key=lambda result: not result.spec.published)  # tables before what has plots alone
    rows = [(f"[{title}]({paper}.md)", *_counts(results[paper])) for paper, title in PAPERS.items()]
    rows.append(("all", *_counts(result for some in results.values() for result in some)))
    summed = TextTable("", ("paper", *_COUNTED), tuple(rows)).markdown()
    pages = {paper: _page(paper, results[paper]) for paper in PAPERS}
    return {"papers": ResultPage("Published figures beside ours", "results", f"{_SUM}\n\n{summed}"), **pages}


def _counts(results: Iterable[PaperResults]) -> tuple[str, ...]:
    total: Counter[str] = Counter()
    for result in results:
        total.update(counted(result.judged))
    every, missing = total.total(), total["not run"] + total["not obtainable"]
    return (
        f"{every:,}",
        f"{every - missing:,} ({(every - missing) / every:.0%})",
        *(f"{total[verdict]:,}" if total[verdict] else "" for verdict in VERDICTS),
    )


def _page(paper: str, results: Sequence[PaperResults]) -> ResultPage:
    """Return the page of one paper: counts, its sentences, what is to be said about it, and each of its tables."""
    blocks = [TextTable("", _COUNTED, (_counts(results),)).markdown(), "What counts as what: [all papers](papers.md)."]
    claims = [judge_claim(result.spec, claim, result.figures) for result in results for claim in result.spec.claims]
    if claims:
        sentences = tuple((judged.claim.text, str(judged)) for judged in claims)
        blocks.append("## What the paper says")
        blocks.append(TextTable("", ("sentence", "in our runs"), sentences).markdown())
    blocks += _below(results)
    if (prose := SPECIFICATIONS / f"{paper}.md").exists():
        blocks.append(prose.read_text(encoding="utf-8").strip())
    for result in results:
        blocks += [f"## {result.spec.title}", result.spec.text.strip(), _provenance(result)]
        for table in dict.fromkeys(figure.entry.table for figure in result.judged):
            blocks += _published_table(table, result)
        if charts := _charts(result):
            blocks += ["### Plots", "Our means ± standard deviations; circles are published figures.", *charts]
    of = sum(len(cases(result.spec)) for result in results)
    source = f"{sum(len(result.kept) for result in results):,} of {of:,} runs"
    return ResultPage(f"{PAPERS[paper]}: published figures beside ours", source, "\n\n".join(blocks))


def _below(results: Sequence[PaperResults]) -> list[str]:
    """Return the blocks of a table that counts figures of the paper's own methods that are below the published ones."""
    own: dict[tuple[str, ...], list[JudgedFigure]] = {}
    for result in results:
        for figure in result.judged:
            if figure.counts and figure.verdict in ("better", "met", "below"):
                epsilon = figure.settings.get("epsilon", str(figure.entry.where.get("epsilon", "")))
                own.setdefault((figure.entry.table, figure.names[0], epsilon), []).append(figure)
    rows = []
    for (table, name, epsilon), figures in own.items():
        if below := [figure for figure in figures if figure.verdict == "below"]:
            means = (float(np.mean([getattr(figure, of) for figure in below])) for of in ("number", "mean"))
            rows.append((table, name, epsilon, f"{len(below)} of {len(figures)}", *(f"{mean:.3g}" for mean in means)))
    if not rows:
        return ["## What is below", "Nothing that has been run."]
    head = ("table", "figure", "epsilon", "below", "published, mean of these", "ours")
    return ["## What is below", TextTable("", head, tuple(rows)).markdown()]


def _provenance(result: PaperResults) -> str:
    made = Counter(
        f"code {record.code}, kernel {record.kernel}" if record.code else "older code" for record in result.kept
    )
    hours = sum(record.seconds for record in result.kept) / 3600
    commits = "; ".join(f"{number:,} by {code}" for code, number in made.most_common()) or "none"
    return (
        f"`make published TABLES={result.name}` makes it. Kept are {len(result.kept):,} of "
        f"{number_of(len(cases(result.spec)), 'run')} ({hours:.1f} CPU hours): {commits}."
        + (" **Runs of several commits stand beside each other.**" if len(made) > 1 else "")
    )


def _published_table(table: str, result: PaperResults) -> list[str]:
    """Return the blocks of one published table: a row for each method and setting, both figures with the verdict."""
    judged = [figure for figure in result.judged if figure.entry.table == table]
    axes = [axis for axis in AXES if any(axis in figure.settings for figure in judged)]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for figure in judged:
        role = result.spec.methods.get(figure.method, MethodEntry()).role
        ours = f"{figure.method} ({role})" if role else figure.method
        key = (figure.entry.system, *(figure.settings.get(axis, "") for axis in axes), ours)
        rows.setdefault(key, {})[figure.names[0].rpartition(", ")[2].rpartition(": ")[2]] = _cell(result.spec, figure)
    seeds = sorted({figure.seeds for figure in judged if figure.seeds})
    many = " to ".join(map(str, dict.fromkeys((*seeds[:1], *seeds[-1:]))))
    about = f"Published / ours ± standard deviation; number of seeds: {many}." if seeds else "Published."
    reasons = dict.fromkeys(
        f"{VERDICTS[figure.entry.standing]} {figure.entry.standing}: {figure.entry.reason}."
        for figure in judged
        if figure.entry.standing
    )
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    head = ("published method", *axes, "ours", *columns)
    body = tuple((*key, *(cells.get(column, "") for column in columns)) for key, cells in rows.items())
    return [f"### {table}", " ".join([about, *reasons]), TextTable("", head, body).markdown()]


def _charts(result: PaperResults) -> list[str]:
    """Return the plots of a specification as HTML, and those over epsilon where it has three budgets."""
    charts = plots(result.spec, result.figures)
    if len({figure.parts["epsilon"] for figure in result.figures} - {"", "none"}) > 2:
        charts |= plots_over_epsilon(result.spec, result.figures)
    return [_picture(chart) for chart in charts.values()]


def _picture(chart: Chart) -> str:
    text, data = escape(chart.label), base64.b64encode(svg(chart, style=ALONE).encode()).decode()
    picture = f'<img alt="{text}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{picture}<figcaption>{text}</figcaption></figure>"


def _cell(spec: Spec, figure: JudgedFigure) -> str:
    mark = VERDICTS[figure.verdict]
    if not figure.method:
        return f"{figure.number:g}\N{NO-BREAK SPACE}{mark}"
    digits = spec.metrics[figure.names[0].partition(": ")[0]].digits
    mean = "∞" if math.isinf(figure.mean) else f"{figure.mean:.{digits}f}"
    deviation = f"±{figure.deviation:.{digits}f}" if figure.seeds > 1 and math.isfinite(figure.deviation) else ""
    return f"{figure.number:g} / {mean}{deviation}\N{NO-BREAK SPACE}{mark}"
