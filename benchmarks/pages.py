"""A page of the documentation for each table of results, made from what the repository keeps of it.

Of a grid that :func:`fedsynth.bench.spec.read_spec` describes, that is ``benchmarks/results/NAME.jsonl``, one run a
line. Programs of this folder that measure speed write their tables into ``benchmarks/tables.md``, where the
tables of grids whose results were not kept stand too, as they were once printed.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import PAGE, ROOT
from benchmarks.paper_pages import RESULTS, ResultPage, kept_lines, paper_pages
from fedsynth.bench.page import TextTable, write_pages
from fedsynth.bench.spec import Cell, cases, read_spec

PROGRAMS = {
    "noise": "noise",
    "mrf": "mrf --mbi",
    "flower": "flower",
    "flower-sites": "flower_sites",
    "secure-sum": "secure_sum",
    "many-sites": "sites",
    "rows": "rows",
    "bayes-speed": "bayes_speed",
    "core": "core",
    "growth": "growth",
    "deep": "deep",
    "deep-cuda": "deep",
    "deep-samplers": "deep --only samplers",
    "deep-round": "deep",
    "three-servers": "three_servers",
}
"""The program that writes each section of ``tables.md`` which is no grid."""
SDV = {
    "strong: above 0.3": "strong pairs kept",
    "findable: above 0.3": "those that can be found",
    "correlations: Pearson": "correlations within 0.1",
    "heaps": "heaps kept",
    "quantiles": "quantiles, error",
    "AUC": "AUC, relative",
    "w3": "w3",
}
_MISSING = "**Not reproducible yet**: the results behind this table were not kept, and the code has changed since."


def result_pages() -> dict[str, str]:
    """Return all pages of results, and the list of them, by their path below ``docs``."""
    found = {**paper_pages(), **dict(_pages())}
    listed = "\n".join(f"| [{page.title}]({name}.md) | {page.source} |" for name, page in found.items())
    tree = "\n".join(found)
    index = (
        "# Tables of results\n\nClick on the head of a column to sort by it. What they show: [benchmarks]"
        "(../benchmarks.md).\n\n| table | behind it |\n|---|---|\n"
        f"{listed}\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    pages = {f"results/{name}.md": f"# {page.title}\n\n{page.text}\n" for name, page in found.items()}
    return {"results/index.md": index, **pages}


def sections() -> dict[str, tuple[str, str]]:
    """Return title and text of each section of ``benchmarks/tables.md``, by its name."""
    pattern = re.compile(r"<!-- begin (\S+) -->\n## (.*?)\n\n(.*?)\n<!-- end \1 -->", re.DOTALL)
    return {name: (title, text) for name, title, text in pattern.findall(PAGE.read_text(encoding="utf-8"))}


def _pages() -> Iterator[tuple[str, ResultPage]]:
    grids = {}
    for place in sorted((ROOT / "benchmarks").glob("*.toml")):
        spec = read_spec(place.read_text(encoding="utf-8"))
        results = RESULTS / f"{place.stem}.jsonl"
        if results.exists():
            with tempfile.TemporaryDirectory() as out:
                text = write_pages(spec, kept_lines(spec, results), len(cases(spec)), Path(out))
            files = f"`{place.relative_to(ROOT).as_posix()}` and `benchmarks/results/{results.name}`"
            yield (
                spec.section,
                ResultPage(spec.title, "results", f"Made from {files} when this page was built.\n\n{text}"),
            )
        else:
            grids[spec.section] = place.relative_to(ROOT).as_posix()
    yield "sdv", _beside_sdv()
    for name, (title, text) in sections().items():
        if name in grids:
            said = f"{_MISSING} `fedsynth bench {grids[name]}` makes it anew."
            yield name, ResultPage(title, "**not reproducible yet**", f"{said}\n\n{text}")
        else:
            said = f"Measured by `python -m benchmarks.{PROGRAMS[name]}`, which keeps this table alone."
            yield name, ResultPage(title, "a program", f"{said}\n\n{text}")


def _beside_sdv() -> ResultPage:
    """Return the page on which SDV's Gaussian copula stands beside the default method."""
    spec = read_spec((ROOT / "benchmarks" / "relations.toml").read_text(encoding="utf-8"))
    rows: dict[str, dict[str, list[list[float]]]] = {}
    with (RESULTS / "relations_sdv.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            figures = [float(row[name]) if row[name] else float("nan") for name in SDV]
            rows.setdefault(row["dataset"], {}).setdefault("SDV, NOT PRIVATE, pooled rows", []).append(figures)
    by_run: dict[Cell, dict[str, float]] = {}
    for line in kept_lines(spec, RESULTS / "relations.jsonl"):
        if (line.cell.method, line.cell.epsilon) in (("auto", "1"), ("auto-target", "1")):
            by_run.setdefault(line.cell, {})[line.metric] = line.value
    for cell, values in by_run.items():
        arm = f"{cell.method.replace('auto-target', 'auto, target named')}, epsilon 1, secure"
        figures = [values.get(name, float("nan")) for name in SDV]
        rows.setdefault(cell.dataset, {}).setdefault(arm, []).append(figures)
    lines = [
        (dataset, arm, *(_mean([run[at] for run in runs]) for at in range(len(SDV))), str(len(runs)))
        for dataset, arms in rows.items()
        for arm, runs in sorted(arms.items(), key=lambda entry: entry[0].startswith("SDV"))
    ]
    table = TextTable("", ("dataset", "method", *SDV.values(), "seeds"), tuple(lines)).markdown()
    text = (
        "Made from `benchmarks/results/relations.jsonl` and `relations_sdv.csv` (`python -m benchmarks.sdv_copula`) "
        "when this page was built.\n\nSDV's Gaussian copula sees all rows in one place and adds no noise; `auto` runs "
        "over 10 sites with skewed labels under secure sums, at epsilon 1 and delta 1e-6. What the columns mean stands "
        f"on the page about [relations](relations.md); w3 and quantiles are errors, in all others 1 is best.\n\n{table}"
    )
    return ResultPage("The default beside SDV's copula", "results", text)


def _mean(values: list[float]) -> str:
    known = [value for value in values if value == value]
    return f"{sum(known) / len(known):.2f}" if known else ""
