"""The commands that say how good a table is: ``fedsynth evaluate``, ``report`` and ``compare``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsynth import errors
from fedsynth.deploy.console import Force, Json, progress_bar, say, score_table
from fedsynth.files import write_whole

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import Evaluation
    from fedsynth.federation.federation import Progress
    from fedsynth.privacy.cost import Budget
    from fedsynth.schema import Schema
    from fedsynth.table import Table

Target = Annotated[str, typer.Option("--target", help="Column that classifiers or regressors learn to predict.")]
Sensitive = Annotated[
    str, typer.Option("--sensitive", help="Column that an attacker infers; default: the target, or the last category.")
]
Known = Annotated[str, typer.Option("--known", help="Columns that the attacker knows, separated by commas.")]
_SCORES = "scores.json"


def evaluate(
    real: Annotated[Path, typer.Argument(help="The rows that the synthesizer was made from, CSV or Parquet.")],
    synthetic: Annotated[Path, typer.Argument(help="The synthetic rows, CSV or Parquet.")],
    schema: Annotated[Path, typer.Option("--schema", help="The public schema (TOML) of both.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for scores.json, scores.csv and report.html.")],
    holdout: Annotated[
        Path | None, typer.Option("--holdout", help="Real rows that the synthesizer never saw; many scores need them.")
    ] = None,
    target: Target = "",
    sensitive: Sensitive = "",
    known: Known = "",
    suites: Annotated[
        str, typer.Option("--suites", help="Sets of classifiers: default, flaim, thesis, fedtabdiff, heterofedsyn.")
    ] = "default",
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The guarantee of the table, if it has one.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="The guarantee of the table, if it has one.")] = None,
    max_rows: Annotated[int, typer.Option("--max-rows", min=100, help="Rows a side of a fidelity score.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the samples that scores are computed on.")] = 0,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Measure fidelity, utility and privacy of a synthetic table against real rows, each score beside a reference.

    The scores are computed from real rows without noise: keep them where the rows may be.

    Examples:

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml --holdout test.csv --target income --out scores

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml --out scores --epsilon 1 --delta 1e-6
    """
    from fedsynth.evaluation.evaluate import evaluate as measure
    from fedsynth.evaluation.score import Evidence
    from fedsynth.privacy.cost import Budget
    from fedsynth.schema import Schema

    if (epsilon is None) != (delta is None):
        raise typer.BadParameter("--epsilon and --delta say the guarantee together; give both or none")
    if (out / _SCORES).exists() and not force:
        raise errors.FedsynthError(f"{out / _SCORES} exists; choose another --out, or pass --force to replace it")
    agreed = Schema.load(schema)
    unseen = None if holdout is None else _read_whole(holdout, agreed)
    evidence = Evidence(_read_whole(real, agreed), _read_whole(synthetic, agreed), unseen)
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
    write_scores(evaluation, out)
    page = write_report(evaluation, out, None)
    _tell(evaluation, page, json_)


def report(
    run_dir: Annotated[Path, typer.Argument(help="What `fedsynth simulate` or `fedsynth evaluate` wrote.")],
    target: Target = "",
    sensitive: Sensitive = "",
    known: Known = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if scores.json is there.")] = False,
    json_: Json = False,
) -> None:
    """Write one self-contained page, report.html, into a run directory; it opens offline.

    A simulated run is measured first, against the rows that its sites had (the data file must still be there).

    Examples:

      fedsynth report run

      fedsynth report run --target income --sensitive marital-status --known age,sex,race
    """
    from fedsynth.evaluation.evaluate import Evaluation
    from fedsynth.evaluation.report import RunFacts

    scores = run_dir / _SCORES
    is_run = (run_dir / "run.toml").is_file()
    if scores.is_file() and not fresh and not (target or sensitive or known):
        evaluation = Evaluation.from_json(json.loads(scores.read_text()))
    elif is_run:
        with progress_bar(json_) as progress:
            evaluation = measure_run(run_dir, progress, target, sensitive, _split(known))
        write_scores(evaluation, run_dir)
    else:
        raise errors.FedsynthError(f"{run_dir} holds no run.toml and no scores.json; run `fedsynth simulate` first")
    page = write_report(evaluation, run_dir, RunFacts.read(run_dir) if is_run else None)
    _tell(evaluation, page, json_)


def compare(
    data: Annotated[Path, typer.Option("--data", help="CSV or Parquet file to split over the sites.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Privacy budget of every arm.")],
    delta: Annotated[float, typer.Option("--delta", help="Privacy budget of every arm.")],
    method: Annotated[str, typer.Option("--method", help="What to run; see `fedsynth methods`.")] = "oneshot",
    schema: Annotated[Path | None, typer.Option("--schema", help="Public schema; without one it is drafted.")] = None,
    sites: Annotated[int, typer.Option("--sites", min=2, help="Number of simulated sites.")] = 5,
    partition: Annotated[str, typer.Option("--partition", help="As for `fedsynth simulate`.")] = "iid",
    trust: Annotated[str, typer.Option("--trust", help="trusted, local or secure.")] = "trusted",
    trust_set: Annotated[
        list[str] | None, typer.Option("--trust-set", help="Number of the trust, NAME=NUMBER: min_honest=3.")
    ] = None,
    target: Target = "",
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="Random splits.")] = 5,
    holdout: Annotated[float, typer.Option("--holdout", help="Share of rows that no arm gets.")] = 0.2,
    test: Annotated[str, typer.Option("--test", help="student, welch or paired.")] = "welch",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Option of the method, NAME=NUMBER.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of splits and noise.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="JSON file for all values.")] = None,
    json_: Json = False,
) -> None:
    """Compare federated, pooled and local runs of a method on the same splits, with significance marks.

    Pooled is what one site holding all rows would get, local what a site gets alone (mean over the sites).

    Example:

      fedsynth compare --data adult.csv --method oneshot --sites 5 --partition label-skew:0.5 --target income
      --epsilon 1 --delta 1e-6 --repeats 5

      fedsynth compare --data adult.csv --method fedchowliu --sites 10 --partition capped-label-skew:0.5 --target income
      --trust secure --trust-set min_honest=9 --epsilon 1.6 --delta 1e-6
    """
    from fedsynth.data.draft import draft_schema
    from fedsynth.data.partition import SynthFS, parse_partition
    from fedsynth.data.source import read_frame, read_table
    from fedsynth.deploy.job import Job, build_method, find_trust, parse_option
    from fedsynth.evaluation.comparison import TESTS, thesis_judge
    from fedsynth.evaluation.comparison import compare as run_all
    from fedsynth.methods import NOT_PRIVATE
    from fedsynth.schema import Schema

    if test not in TESTS:
        raise typer.BadParameter(f"--test {test}: choose one of {', '.join(TESTS)}")
    agreed = draft_schema(read_frame(data)).schema if schema is None else Schema.load(schema)
    if target:
        agreed.index(target)
    how = parse_partition(partition, agreed, target)
    if isinstance(how, SynthFS):
        raise errors.Unsupported("synthfs generates its own rows and splits no table; choose another partition")
    job = Job(method, epsilon, delta, options=dict(parse_option(text) for text in set_ or ()))
    with progress_bar(json_) as progress:
        found = run_all(
            read_table(data, agreed),
            build_method(job),
            job.budget,
            trust=find_trust(trust, dict(parse_option(text) for text in trust_set or ())),
            exact=method in NOT_PRIVATE,
            sites=sites,
            partition=how,
            judge=thesis_judge(target),
            test=TESTS[test],
            repeats=repeats,
            holdout=holdout,
            seed=seed,
            progress=progress,
        )
    if out is not None:
        write_whole(out, json.dumps(found.to_json(), indent=1))
    say(json_, found.to_json(), str(found))


def measure_run(
    folder: Path, progress: Progress, target: str = "", sensitive: str = "", known: tuple[str, ...] = ()
) -> Evaluation:
    """Return the evaluation of a finished run against the rows that its sites had."""
    from fedsynth.deploy.job import rows_of_run
    from fedsynth.evaluation.evaluate import evaluate as measure
    from fedsynth.evaluation.score import Evidence
    from fedsynth.models.synthesizer import GraphicalSynthesizer, load
    from fedsynth.table import concatenate

    job, rows = rows_of_run(folder)
    synthetic = _read_whole(folder / f"synthetic.{job.format}", rows.schema)
    evidence = Evidence(concatenate(rows.sites), synthetic, rows.holdout)
    model = load(folder / "model.fedsynth")
    return measure(
        evidence,
        target=target or job.target,
        sensitive=sensitive,
        known=known,
        guarantee=_guarantee(folder),
        log_likelihood=model.log_likelihood if isinstance(model, GraphicalSynthesizer) else None,
        progress=progress,
    )


def _read_whole(file: Path, schema: Schema) -> Table:
    """Return a table's rows; raise :class:`SchemaError` if some are left out, since scores without them mislead."""
    from fedsynth.data.source import read_table

    table = read_table(file, schema)
    if table.left_out:
        raise errors.SchemaError(
            f"{table.left_out} of the {table.rows_read} rows of {file.name} do not fit the schema; "
            "`fedsynth schema check` names them"
        )
    return table


def _guarantee(folder: Path) -> Budget | None:
    """Return the limit that a run was held to; none where a release had no noise, or noise that a seed gives again."""
    from fedsynth.privacy.cost import Budget

    statement = json.loads((folder / "ledger.json").read_text())["statement"]
    if not statement["private"] or statement["seeded"]:
        return None
    return Budget(**statement["limit"])


def report_run(folder: Path, progress: Progress) -> Path:
    """Measure a finished run, write its scores and its page, and return the page's path."""
    from fedsynth.evaluation.report import RunFacts

    evaluation = measure_run(folder, progress)
    write_scores(evaluation, folder)
    return write_report(evaluation, folder, RunFacts.read(folder))


def write_scores(evaluation: Evaluation, folder: Path) -> None:
    """Write scores.json (everything) and scores.csv (one line a score) into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _SCORES, json.dumps(evaluation.to_json(), indent=1, allow_nan=False))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    sides = ("synthetic", "reference")
    numbers = [f"{side}{part}" for side in sides for part in ("", "_low", "_high")]
    writer.writerow(["family", "name", *numbers, "best", "verdict", "reference_is", "note"])
    for score in evaluation.scores:
        bands = [(side.value, side.low, side.high) for side in (score.synthetic, score.reference)]
        values = [value for band in bands for value in band]
        writer.writerow([score.family, score.name, *values, score.best, score.verdict, score.reference_is, score.note])
    write_whole(folder / "scores.csv", text.getvalue())


def write_report(evaluation: Evaluation, folder: Path, run: Any) -> Path:
    """Write report.html into a directory and return its path."""
    from fedsynth.evaluation.report import render_report

    page = folder / "report.html"
    write_whole(page, render_report(evaluation, run))
    return page


def _tell(evaluation: Evaluation, page: Path, json_: bool) -> None:
    alarms = [score for score in evaluation.scores if score.verdict == "alarm"]
    facts = {"report": str(page), **{k: v for k, v in evaluation.to_json().items() if k != "pictures"}}
    text = [score_table(list(evaluation.scores)), ""]
    text += [f"ALARM {score.name}: {score.says}" for score in alarms]
    text += ["These scores are computed on real rows and are not private: do not publish them.", f"Report: {page}"]
    say(json_, facts, "\n".join(text))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())
