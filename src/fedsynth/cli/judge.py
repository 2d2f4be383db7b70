"""The commands that score a table or a method: ``fedsynth evaluate``, ``report``, ``compare``, ``bench``."""

from __future__ import annotations

import datetime
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qs, urlsplit

import click
import typer

from fedsynth import errors
from fedsynth.cli.options import (
    Data,
    Delta,
    Epsilon,
    Force,
    Holdout,
    Json,
    MaybeDelta,
    MaybeEpsilon,
    MaybeOutFile,
    MaybeSchema,
    MethodName,
    Partition,
    SchemaFile,
    Seed,
    Set,
    Sites,
    Target,
    TrustName,
    TrustSet,
    progress_bar,
    say,
    score_table,
)
from fedsynth.files import read_text, write_whole

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import About, Evaluation
    from fedsynth.evaluation.score import Evidence
    from fedsynth.federation.federation import Progress
    from fedsynth.rows import Table
    from fedsynth.runs.folder import RunFolder
    from fedsynth.runs.run import Simulated
    from fedsynth.runs.split import Split

Sensitive = Annotated[
    str,
    typer.Option(
        "--sensitive", help="Column that an attacker infers; default: --target, else the last categorical column."
    ),
]
Title = Annotated[
    str, typer.Option("--title", help="Title of the report; default: one that names the data.", show_default=False)
]
Owner = Annotated[str, typer.Option("--owner", help="Who answers for the data, for the head of the report.")]
Known = Annotated[str, typer.Option("--known", help="Columns that the attacker knows, comma-separated.")]


def _not_a_folder(table: Path) -> Path:
    """Return a table of ``fedsynth evaluate``; raise for a folder, which most often is a run's."""
    from fedsynth.runs.folder import RunFolder

    if not table.is_dir():
        return table
    way_out = f" To score the run in it: fedsynth report {table}" if RunFolder(table).is_run else ""
    raise click.UsageError(
        f"{table} is a folder, and evaluate takes two files: real rows, then synthetic rows.{way_out}"
    )


def evaluate(
    real: Annotated[
        Path,
        typer.Argument(
            help="Real rows from which the table was synthesized: CSV or Parquet file.", callback=_not_a_folder
        ),
    ],
    synthetic: Annotated[Path, typer.Argument(help="Synthetic rows: CSV or Parquet file.", callback=_not_a_folder)],
    schema: SchemaFile,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the scores and the report; other files in it are left alone.")
    ],
    holdout: Annotated[
        Path | None, typer.Option("--holdout", help="Real rows that the method never saw; many scores need them.")
    ] = None,
    target: Target = "",
    sensitive: Sensitive = "",
    known: Known = "",
    suites: Annotated[
        str,
        typer.Option(
            "--suites",
            help="Sets of classifiers, comma-separated: default, flaim, thesis, fedtabdiff, heterofedsyn.",
        ),
    ] = "default",
    epsilon: MaybeEpsilon = None,
    delta: MaybeDelta = None,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=100, help="Most rows per table in a fidelity score.")
    ] = 20_000,
    seed: Seed = 0,
    title: Title = "",
    owner: Owner = "",
    force: Force = False,
    json_: Json = False,
) -> None:
    r"""Score a synthetic table against the real rows.

    Measures fidelity, utility and privacy, each score beside a reference from real rows, and writes scores.json,
    scores.csv and report.html to --out. The scores are computed from real rows without noise: protect them like the
    rows. --epsilon and --delta state the guarantee of the table, if it has one; the attacks are compared with it.
    For a folder that `fedsynth simulate` wrote, `fedsynth report` does the same without any further option.

    Examples:

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml \
        --holdout test.csv --target income --out scores

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml \
        --epsilon 1 --delta 1e-6 --out scores
    """
    from fedsynth.data.read import column_names
    from fedsynth.evaluation.evaluate import About
    from fedsynth.evaluation.evaluate import evaluate as measure
    from fedsynth.evaluation.score import Evidence
    from fedsynth.evaluation.suites import SUITES
    from fedsynth.privacy.cost import Budget
    from fedsynth.runs.folder import RunFolder, read_whole
    from fedsynth.schema import Schema

    for suite in _split(suites):
        if suite not in SUITES:
            raise errors.Unsupported(f"--suites {suite}: unknown suite; {errors.nearest(suite, SUITES)}")
    if (epsilon is None) != (delta is None):
        raise click.UsageError("--epsilon and --delta state the guarantee together: pass both or neither.")
    folder = RunFolder(out)
    if folder.scores_file.exists() and not force:
        raise errors.FedsynthError(f"{folder.scores_file} exists; choose another --out, or pass --force to replace it")
    agreed = Schema.load(schema)
    plain = agreed.plain(column_names(real))
    unseen = None if holdout is None else read_whole(holdout, plain)
    evidence = Evidence(read_whole(real, plain), read_whole(synthetic, plain), unseen, agreed=agreed)
    with progress_bar(json_) as progress:
        evaluation = measure(
            evidence,
            target=target,
            sensitive=sensitive,
            known=_split(known),
            guarantee=None if epsilon is None or delta is None else Budget(epsilon, delta),
            suites=_split(suites),
            max_rows=max_rows,
            seed=seed,
            progress=progress,
        )
    evaluation = replace(evaluation, about=About(title, owner, real.name, _today()))
    folder.write_scores(evaluation)
    _tell(evaluation, folder.write_report(evaluation), json_)


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder written by `fedsynth simulate` or `fedsynth evaluate`.")],
    target: Target = "",
    sensitive: Sensitive = "",
    known: Known = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again even if scores.json exists.")] = False,
    title: Title = "",
    owner: Owner = "",
    json_: Json = False,
) -> None:
    r"""Write the HTML report of a run, one offline page.

    The page is report.html in the run's folder. A simulated run is first measured against the rows of its sites, so its
    data file must still be in place.

    Examples:

      fedsynth report run

      fedsynth report run --title "Claims 2024, synthetic" \
        --owner "Office for Health Statistics"

      fedsynth report run --target income --sensitive marital-status \
        --known age,sex,race
    """
    from fedsynth.runs.folder import RunFolder

    run = RunFolder(run_dir)
    if run.scores_file.is_file() and not fresh and not (target or sensitive or known):
        evaluation = run.scores()
        if title or owner:
            evaluation = replace(evaluation, about=_headed(evaluation.about, title, owner))
            run.write_scores(evaluation)
    elif run.is_run:
        with progress_bar(json_) as progress:
            evaluation = measure_run(run, progress, target, sensitive, _split(known))
        evaluation = replace(evaluation, about=_headed(evaluation.about, title, owner))
        run.write_scores(evaluation)
    else:
        raise errors.FedsynthError(
            f"{run_dir} holds no run.toml and no scores.json; give the folder that `fedsynth simulate` or "
            "`fedsynth evaluate` wrote"
        )
    _tell(evaluation, run.write_report(evaluation), json_)


def compare(
    data: Data,
    epsilon: Epsilon,
    delta: Delta,
    method: MethodName = "auto",
    schema: MaybeSchema = None,
    sites: Sites = 5,
    partition: Partition = "iid",
    trust: TrustName = "trusted",
    trust_set: TrustSet = None,
    target: Target = "",
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="Number of random splits.")] = 5,
    holdout: Holdout = 0.2,
    test: Annotated[str, typer.Option("--test", help="Significance test: student, welch or paired.")] = "welch",
    set_: Set = None,
    seed: Seed = 0,
    out: MaybeOutFile = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    r"""Compare federated, pooled and local runs of a method.

    All three run on the same random splits, and significant differences are marked. A pooled run has all rows at one
    site; a local run has the rows of one site only (mean over the sites). --out writes all values to a JSON file.

    Examples:

      fedsynth compare --data adult.csv --target income \
        --method oneshot --sites 5 --partition label-skew:0.5 \
        --epsilon 1 --delta 1e-6 --repeats 5

      fedsynth compare --data adult.csv --target income \
        --method fedchowliu --sites 10 --partition capped-label-skew:0.5 \
        --trust secure --trust-set min_honest=9 --epsilon 1.6 --delta 1e-6
    """
    from fedsynth.data.sources import open_source
    from fedsynth.evaluation.comparison import TESTS, compared
    from fedsynth.federation.names import TRUSTS
    from fedsynth.methods import find_method
    from fedsynth.runs import bench as benches
    from fedsynth.runs import bench_spec as specs
    from fedsynth.runs.job import DEMO_DATA, Job, budget_of, parse_option

    if test not in TESTS:
        raise click.UsageError(f"--test {test}: unknown test; {errors.nearest(test, TESTS)}")
    if sites < 2 or not 0 < holdout < 1:
        raise click.UsageError("a comparison needs --sites of at least 2, and --holdout between 0 and 1.")
    if out is not None and out.exists() and not force:
        raise errors.FedsynthError(f"{out} exists; choose another --out, or pass --force to replace it")
    if partition.startswith("synthfs"):
        raise errors.Unsupported("--partition synthfs generates its own rows; choose one that splits --data")
    # Checked here, since the grid would skip a cell that cannot run, or report it in terms of a specification.
    options = dict(parse_option(text) for text in set_ or ())
    numbers = dict(parse_option(text) for text in trust_set or ())
    job = Job(method, epsilon, delta, trust=trust, options=options, trust_options=numbers)
    job.build_method()
    job.build_trust()
    budget_of(epsilon, delta)
    declared = find_method(method)
    if not declared.runs_under(trust):
        able = [name for name in TRUSTS if declared.runs_under(name)]
        raise errors.Unsupported(f"{method} cannot run with --trust {trust}; pass --trust {' or '.join(able)}")
    local = Path(data) if data == DEMO_DATA else open_source(data).file
    if local is None:
        raise errors.Unsupported("`fedsynth compare` reads files; write the database's table to a .parquet file first")
    file = data if data == DEMO_DATA else str(local.resolve(strict=True))
    spec = specs.Spec(
        datasets={
            "data": specs.Dataset(
                file=file,
                target=target,
                schema="" if schema is None else str(schema.resolve()),
                split=specs.Split(test_share=holdout),
            )
        },
        methods={method: specs.MethodEntry(options=options)},
        metrics={
            "likeness": specs.MetricEntry(),
            **({"learning": specs.MetricEntry(options={"suite": "thesis", "rows": 10_000})} if target else {}),
        },
        seeds=tuple(seed * repeats + repeat for repeat in range(repeats)),
        noise_seed=("seed", "arm"),
        defaults=specs.Grid(
            epsilon="none" if epsilon == math.inf else epsilon,
            delta=delta,
            partition=partition,
            trust=":".join([trust, *([",".join(trust_set)] if trust_set else [])]),
            sites=sites,
        ),
        grid=(
            specs.Grid(methods=method, arm=("federated", "pooled", "local")),
            specs.Grid(methods="test rows", sites=1, metrics="likeness"),
            *([specs.Grid(methods="real rows", sites=1, metrics="learning")] if target else []),
        ),
    )
    found: dict[str, dict[int, dict[str, float]]] = {}
    every = specs.cases(spec)
    with progress_bar(json_) as progress:
        for number, case in enumerate(every):
            figures = benches.measure(case, Path())
            values = {name.partition(": ")[2]: value for name, value in figures.items() if ": " in name}
            found.setdefault(case.cell.arm, {}).setdefault(case.cell.seed, {}).update(values)
            progress("runs", number + 1, len(every))
    by_repeat = {arm: [by_seed[one] for one in sorted(by_seed)] for arm, by_seed in found.items()}
    cost = "NOT PRIVATE" if not declared.private or epsilon == math.inf else f"epsilon {epsilon:g}, delta {delta:g}"
    setting = f"{method}, {sites} sites, {cost}, trust {trust}, {repeats} repeats"
    comparison = compared(setting, by_repeat, by_repeat[""], TESTS[test])
    if out is not None:
        write_whole(out, json.dumps(comparison.to_json(), indent=1))
    say(json_, comparison.to_json(), str(comparison))


def bench(
    spec: Annotated[Path, typer.Argument(help="Specification of the grid (TOML); docs/cli.md describes it.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the results; default: bench-results/ and the specification's name. Each finished cell is "
            "appended to results.csv; page.md, page.html and plots are written anew at the end.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", envvar="FEDSYNTH_DATA", help="Folder of the data sets; default: that of the specification."
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Markdown page to update: replaces the specification's section, or appends it."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes of one thread each; 0: this process.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run only these cells, e.g. dataset=adult,method=flaim; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Run at most this many seeds of each cell.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the cells without running them.")] = False,
    json_: Json = False,
) -> None:
    r"""Run a grid of experiments and write tables and plots.

    The specification lists data sets, methods, budgets, trust models, partitions, numbers of sites and seeds; each
    combination is a cell. The same command resumes a stopped grid: it skips the cells in results.csv, except those that
    a change of the specification affects. Nothing is private: scores come from real rows, the noise from seeds. Exit
    codes: 0 all cells finished, 8 some failed; they run again next time.

    Examples:

      fedsynth bench benchmarks/flaim_table2.toml --data-dir data \
        --jobs 2 --page docs/benchmarks.md

      fedsynth bench benchmarks/flaim_table2.toml \
        --only dataset=magic,method=oneshot --seeds 2 --out trial

      fedsynth bench benchmarks/flaim_table2.toml --list
    """
    from fedsynth.runs import bench as benches
    from fedsynth.runs import bench_spec as specs
    from fedsynth.runs.bench_page import write_pages, write_section

    sys.path.insert(0, str(Path.cwd()))  # for package.module:function, as python -m has it
    described = specs.read_spec(read_text(spec))
    every, wanted = specs.cases(described, seeds), specs.parse_only(only or ())
    todo = [case for case in every if specs.admitted(case.cell, wanted)]
    if not todo:
        raise errors.InvalidParameter("--only matches no cell of the specification; --list prints all cells")
    if page is not None and not described.section:
        raise errors.InvalidParameter('--page needs section = "..." in the specification, the marker of its place')
    if list_:
        facts = {"cells": [str(case.cell) for case in todo]}
        say(json_, facts, "\n".join([*facts["cells"], f"{len(todo)} cells"]))
        return
    folder = (data_dir or spec.parent).resolve()
    place = Path("bench-results") / spec.stem if out is None else out
    try:
        with progress_bar(json_) as progress:
            held, failed = benches.run_grid(todo, folder, place, jobs, progress)
    except KeyboardInterrupt:
        print(f"stopped; finished cells are in {place / benches.RESULTS}: the same command resumes", file=sys.stderr)
        raise typer.Exit(130) from None
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
    say(json_, ran, f"{len(todo)} cells, {held} of them finished before. Open {place / 'page.html'}")


def measure_run(
    run: RunFolder, progress: Progress, target: str = "", sensitive: str = "", known: tuple[str, ...] = ()
) -> Evaluation:
    """Return the evaluation of a finished run against the rows that its sites had."""
    from fedsynth.evaluation.evaluate import About
    from fedsynth.evaluation.evaluate import evaluate as measure

    found = measure(
        _evidence(run.rows(), run.synthetic()),
        target=target or run.job.target,
        sensitive=sensitive,
        known=known,
        guarantee=run.summary().guarantee,
        log_likelihood=run.synthesizer().log_likelihood,
        progress=progress,
    )
    return replace(found, about=About(data=data_name(run.job.data), date=_today()))


def _headed(about: About, title: str, owner: str) -> About:
    """Return the head of a report with the title and the owner that were given."""
    return replace(about, title=title or about.title, owner=owner or about.owner)


def _today() -> str:
    return datetime.date.today().isoformat()


def data_name(data: str) -> str:
    """Return what people call a job's data: a file by its name, a database by its table, never by its address."""
    from fedsynth.runs.job import DEMO_DATA

    if data == DEMO_DATA:
        return "the RAND Health Insurance Experiment"
    if "://" in data:
        return parse_qs(urlsplit(data).query).get("table", [""])[0]
    return Path(data).name


def _evidence(rows: Split, synthetic: Table) -> Evidence:
    """Return the rows of a simulation as they are published, beside the published synthetic ones."""
    from fedsynth.evaluation.score import Evidence
    from fedsynth.rows import concatenate

    schema = rows.schema
    holdout = None if rows.holdout is None else schema.publish(rows.holdout)
    return Evidence(schema.publish(concatenate(rows.sites)), synthetic, holdout, agreed=schema)


def report_run(folder: Path, progress: Progress) -> tuple[Path, Evaluation]:
    """Measure a finished run, write its scores and its page, and return the page's path and the scores."""
    from fedsynth.runs.folder import RunFolder

    run = RunFolder(folder)
    evaluation = measure_run(run, progress)
    run.write_scores(evaluation)
    return run.write_report(evaluation), evaluation


# The metrics that a simulation computes at once.
FIRST = ("validity", "workload-error", "likelihood", "learning")


def first_look(outcome: Simulated, target: str, progress: Progress) -> Evaluation:
    """Return the few scores (:data:`FIRST`) that `fedsynth simulate` shows at its end.

    ``target`` is the column that the learning scores predict; without it these are left out. Raises
    :class:`Unsupported` if a score cannot be measured on the run's rows.
    """
    from fedsynth.evaluation.evaluate import evaluate as measure

    rows, likelihood = outcome.rows, outcome.synthesizer.log_likelihood
    wanted = {
        "validity": bool(rows.schema.rules or rows.schema.derives),
        "likelihood": likelihood is not None and rows.holdout is not None,
        "learning": bool(target),
    }
    return measure(
        _evidence(rows, rows.schema.plain().encode(outcome.synthetic)),
        metrics=[name for name in FIRST if wanted.get(name, True)],
        target=target,
        log_likelihood=likelihood,
        suites=("flaim",),
        repeats=1,
        progress=progress,
    )


def _tell(evaluation: Evaluation, page: Path, json_: bool) -> None:
    alarms = [score for score in evaluation.scores if score.verdict == "alarm"]
    facts = {"report": str(page), **{k: v for k, v in evaluation.to_json().items() if k != "pictures"}}
    text = [score_table(list(evaluation.scores)), ""]
    text += [f"ALARM {score.name}: {score.says}" for score in alarms]
    text += ["These scores are computed on real rows and are not private: do not publish them.", f"Report: {page}"]
    say(json_, facts, "\n".join(text))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())
