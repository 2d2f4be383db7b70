"""The commands ``fedsynth compare`` and ``bench``."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.adapter import Fields
from fedsynth.cli.options import say
from fedsynth.files import read_text, write_whole
from fedsynth.privacy.cost import in_full
from fedsynth.progress import shown
from fedsynth.runs.job import Job

_COMPARED = ("epsilon", "delta", "records", "schema", "partition", "trust", "trust_options", "options")


def compare(
    *,
    data: str,
    job: Annotated[partial[Job], Fields(*_COMPARED, method="auto")],
    sites: Annotated[int, Meta(ge=2)] = 5,
    target: str = "",
    repeats: Annotated[int, Meta(ge=2)] = 5,
    holdout: float = 0.2,
    test: Literal["welch", "student", "paired"] = "welch",
    seed: Annotated[int, Meta(ge=0)] = 0,
    out: Path | None = None,
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Compare federated, pooled and local runs of a method.

    A federated run has the rows split over the sites; a pooled run has all rows at one site; a local run has the rows
    of one site only (mean over the sites). All three run on the same random splits, and significant differences between
    their scores are marked. --trust is that of the federated runs (trusted for a method that does not run under it);
    the others, of one site each, run with trust trusted. Rows are held out and split one by one: if a person has
    several, the scores are of persons who are known in part. For those of unseen persons, use `fedsynth simulate
    --person` and `fedsynth report`.

    Examples:

      fedsynth compare --data patients.csv --target readmitted \
        --method oneshot --sites 5 --partition label-skew:0.5 \
        --epsilon 1 --delta 1e-6 --repeats 5

      fedsynth compare --data patients.csv --target readmitted \
        --method fedchowliu --sites 10 --partition capped-label-skew:0.5 \
        --trust secure --trust-set min_honest=9 --epsilon 1.6 --delta 1e-6

    Parameters
    ----------
    data
        Table to split over the sites: CSV or Parquet file.
    sites
        Number of sites over which the rows are split.
    target
        Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their
        usefulness. Without it, only the similarity of synthetic and real rows is compared.
    repeats
        How often everything is run, each time with another random split and other noise.
    holdout
        Share of the rows, above 0 and below 1, that no site gets and on which the result is scored, e.g. 0.1 for a
        tenth.
    test
        Significance test (two-sided t-test) of the differences: welch (unequal variances), student (equal variances) or
        paired (by random split).
    seed
        Whole number that fixes the random splits and the noise; the same one gives the same figures.
    out
        JSON file to write with the scores of every run. Without it, no file is written.
    """
    from fedsynth.bench.compare import compare as compare_methods
    from fedsynth.bench.compare import values_by_arm
    from fedsynth.evaluation.comparison import ARMS, TESTS, compared
    from fedsynth.methods import find_method
    from fedsynth.runs.split import read_rows

    made = job(sites=sites, weak_delta=True)  # scores of real rows, which nothing protects
    if out is not None and out.exists() and not force:
        raise errors.FedsynthError(f"{out} exists; choose another --out, or pass --force to replace it")
    if (seed + 1) * repeats > 2**32:  # the learners refuse larger seeds
        raise errors.InvalidParameter(
            f"--seed {seed}: too large for {repeats} repeats; give at most {2**32 // repeats - 1}"
        )
    rows = read_rows(data, Path(made.schema) if made.schema else None, made.records)
    with shown(not json_) as progress:
        found = compare_methods(
            rows,
            rows.schema,
            methods={made.method: made.options},
            epsilon=made.epsilon,
            delta=made.delta,
            seeds=tuple(seed * repeats + repeat for repeat in range(repeats)),
            target=target,
            holdout=holdout,
            sites=sites,
            partition=made.partition,
            trust=made.trust,
            trust_options=made.trust_options,
            arms=ARMS,
            progress=progress,
        )
    private = find_method(made.method).private and not made.budget.exact
    cost = f"epsilon {in_full(made.epsilon)}, delta {in_full(made.delta)}" if private else "NOT PRIVATE"
    trust = made.trust if find_method(made.method).runs_under(made.trust) else "trusted"
    setting = f"{made.method}, {sites} sites, {cost}, trust {trust}, {repeats} repeats"
    by_arm = values_by_arm(found)
    comparison = compared(setting, by_arm, by_arm[""], TESTS[test])
    if out is not None:
        write_whole(out, json.dumps(comparison.to_json(), indent=1))
    say(json_, comparison.to_json(), str(comparison))


def bench(
    spec: Path,
    /,
    *,
    out: Path | None = None,
    data_dir: Path | None = None,
    page: Path | None = None,
    jobs: Annotated[int, Meta(ge=0)] = 1,
    only: tuple[str, ...] = (),
    seeds: Annotated[int, Meta(ge=1)] | None = None,
    list_: bool = False,
    cost: bool = False,
    json_: bool = False,
) -> int:
    r"""Run a grid of experiments and write tables and plots.

    The specification lists data sets, methods, budgets, trust models, partitions, numbers of sites and seeds; each
    combination of one of each is one run (a cell of the grid). The same command resumes a stopped grid: it skips what
    results.jsonl holds, except runs that a change of the specification or of their data affects; metrics that are new
    in the specification are measured alone. Nothing is private: scores come from real rows, the noise from seeds. Exit
    codes: 0 all runs finished, 8 some failed; they are made again next time.

    Examples:

      fedsynth bench benchmarks/papers/flaim_table2.toml --data-dir data \
        --jobs 2 --page docs/benchmarks.md

      fedsynth bench benchmarks/papers/flaim_table2.toml \
        --only dataset=magic,method=flaim --seeds 2 --out trial

      fedsynth bench benchmarks/papers/flaim_table2.toml --list

    Parameters
    ----------
    spec
        File (TOML) that specifies data sets, methods and settings; docs/cli.md describes it.
    out
        Folder for the results; default: bench-results/NAME for the specification NAME.toml. Each finished run is a
        line appended to results.jsonl; page.md, page.html and plots are written anew at the end.
    data_dir
        Folder of the data files; default: that in the variable FEDSYNTH_DATA, else the folder of the specification.
    page
        Markdown page into which the tables are written too: in place of everything between its comments <!-- begin
        NAME --> and <!-- end NAME -->, or at its end if it has no such comments. NAME is `section` in the
        specification. Without --page, the tables are in --out only.
    jobs
        Number of processes that share the runs of the grid, each of one thread and, on x86-64, with one kernel of
        OpenBLAS; 0: as many as the machine has cores.
    only
        Make only the runs with these settings, as SETTING=VALUE with commas between, e.g. dataset=adult,method=flaim;
        repeat it to admit further values. Default: all runs.
    seeds
        Number of seeds to run each combination of the other settings with, the first ones of the specification;
        default: all.
    list_
        Print the runs that would be made, and make none.
    cost
        Print about how many CPU hours the runs that are left would take, by those of the same settings or methods in
        results.jsonl, and make none.
    """
    from fedsynth.bench import grid as benches
    from fedsynth.bench import results
    from fedsynth.bench import spec as specs
    from fedsynth.bench.page import write_pages, write_section

    sys.path.insert(0, str(Path.cwd()))  # for package.module:function, as python -m has it
    described = specs.read_spec(read_text(spec))
    specs.check_names(described)
    every, wanted = specs.cases(described, seeds), specs.parse_only(only)
    todo = [case for case in every if specs.admitted(case.cell, wanted)]
    if not todo:
        raise errors.InvalidParameter("--only matches no cell of the specification; --list prints all cells")
    if page is not None and not described.section:
        raise errors.InvalidParameter('--page needs section = "..." in the specification, the marker of its place')
    if list_:
        facts = {"cells": [str(case.cell) for case in todo]}
        say(json_, facts, "\n".join([*facts["cells"], errors.number_of(len(todo), "cell")]))
        return 0
    folder = Path(data_dir or os.environ.get("FEDSYNTH_DATA") or spec.parent).resolve()
    place = Path("bench-results") / spec.stem if out is None else out
    if cost:
        kept = results.read_records(place / results.RESULTS)
        estimate = results.cost(benches.remaining(todo, folder, kept), kept)
        say(json_, {"seconds": estimate.seconds, "known": estimate.known, "unknown": estimate.unknown}, str(estimate))
        return 0
    try:
        with shown(not json_) as progress:
            held, failed = benches.run_grid(todo, folder, place, jobs or os.cpu_count() or 1, progress)
    except KeyboardInterrupt:
        print(f"stopped; finished cells are in {place / results.RESULTS}: the same command resumes", file=sys.stderr)
        return 130
    text = write_pages(described, benches.read_results(every, folder, place), len(every), place)
    if page is not None:
        write_section(page, described.section, described.title, text)
    if failed:
        listed = "\n".join(f"  {cell}: {why}" for cell, why in failed.items())
        raise errors.FedsynthError(
            f"{len(failed)} of {len(todo)} cells failed; the others are in {place}. The same command runs the failed "
            f"ones again:\n{listed}"
        )
    ran = {"out": str(place), "cells": len(todo), "run": len(todo) - held}
    say(
        json_, ran, f"{errors.number_of(len(todo), 'cell')}, {held} of them finished before. Open {place / 'page.html'}"
    )
    return 0
