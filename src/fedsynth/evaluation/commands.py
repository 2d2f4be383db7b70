"""The commands ``fedsynth evaluate`` and ``report``."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.adapter import Fields
from fedsynth.cli.options import say, score_table
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.files import Records
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.progress import shown

if TYPE_CHECKING:
    from fedsynth.evaluation.report import Evaluation, ReportTitle
    from fedsynth.evaluation.score import EvaluationTables
    from fedsynth.rows import Table

_AT_ONCE = 3.0  # seconds
_COMMON = ("target", "sensitive", "known", "full")  # settings that are options of both commands


def _refuse_folder(table: Path) -> None:
    """Raise an error if a table of ``fedsynth evaluate`` is a folder, which most often is a run's."""
    from fedsynth.runs.folder import RunFolder

    if not table.is_dir():
        return
    way_out = f" To score the run in it: fedsynth report {table}" if RunFolder(table).is_run else ""
    raise errors.InvalidParameter(
        f"{table} is a folder, and evaluate takes two files: give that of the real rows, then that of the synthetic "
        f"rows.{way_out}"
    )


def evaluate(
    real: Path,
    synthetic: Path | None = None,
    /,
    *,
    schema: Path | None = None,
    out: Path | None = None,
    holdout: Path | None = None,
    records: Records | None = None,
    settings: Annotated[partial[EvaluationSettings], Fields(*_COMMON, "person", "suites", "max_rows", "seed")],
    epsilon: float | None = None,
    delta: float | None = None,
    rows_per_person: Annotated[int, Meta(ge=1)] = 1,
    sites_per_person: Annotated[int, Meta(ge=1)] = 1,
    title: str = "",
    owner: str = "",
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Score a synthetic table against the real rows.

    Measures fidelity and utility, with --full also privacy, each score beside what real rows reach in place of the
    synthetic ones, and writes scores.json, scores.csv and report.html to the folder private in --out. The scores are
    computed from real rows without noise: protect them like the rows. --epsilon and --delta state the guarantee of the
    table, if it has one; the success of the privacy attacks is compared with what the guarantee allows. Where a
    person may have several rows, name the column of persons (--person) and the number of rows that the guarantee
    protects (--rows-per-person). For a folder that `fedsynth simulate` wrote, `fedsynth report` does the same without
    any further option.

    Examples:

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml \
        --holdout test.csv --target readmitted --out scores

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml \
        --holdout test.csv --full --epsilon 1 --delta 1e-6 --out scores

      fedsynth evaluate train.csv synthetic.csv --schema agreed.toml \
        --holdout test.csv --person patient --rows-per-person 3 \
        --full --epsilon 1 --delta 1e-6 --out scores

    Parameters
    ----------
    real
        Real rows from which the synthetic table was made: CSV or Parquet file.
    synthetic
        Synthetic rows to score: CSV file (RFC 4180, as fedsynth and pandas write it) or Parquet file.
    schema
        Schema file (TOML) of the tables: name, kind and public bounds or categories of each column. Required.
    out
        Folder that gets scores.json, scores.csv and report.html, in its folder private; it is made if needed, and other
        files in it are left alone. Required.
    holdout
        Other real rows, which the method never saw: CSV or Parquet file. Without it, some attacks are left out, and
        other scores use parts of the real rows in its place.
    epsilon
        Epsilon of the guarantee under which the synthetic table was made; needs --delta. The success of the privacy
        attacks is then compared with what this guarantee allows. Without it, the table counts as one without a
        guarantee.
    delta
        Delta of the guarantee under which the synthetic table was made; needs --epsilon.
    rows_per_person
        Largest number of rows of one person at a site that the stated guarantee protects together.
    sites_per_person
        Largest number of sites of one person that the stated guarantee protects together.
    title
        Title of the report; default: one that names the data file.
    owner
        Person or office that answers for the data, named at the head of the report.
    force
        Replace scores.json, scores.csv and report.html in --out. Without it, the command stops if --out holds a
        scores.json.
    """
    from fedsynth.data.read import column_names
    from fedsynth.data.sources.files import is_csv
    from fedsynth.evaluation.evaluate import evaluate as measure
    from fedsynth.evaluation.report import ReportTitle
    from fedsynth.evaluation.run_files import today, write_report, write_scores
    from fedsynth.evaluation.score import EvaluationTables
    from fedsynth.evaluation.suites import find_suite
    from fedsynth.runs.folder import RunFolder, read_whole, written_kind
    from fedsynth.schema import Schema

    for table in filter(None, (real, synthetic)):
        _refuse_folder(table)
    if synthetic is None or schema is None or out is None:
        raise errors.InvalidParameter(
            "SYNTHETIC, --schema and --out are required, for example `fedsynth evaluate train.csv synthetic.csv "
            "--schema agreed.toml --out scores`"
        )
    asked = settings()
    for suite in asked.suites:
        find_suite(suite)
    if (epsilon is None) != (delta is None):
        raise errors.InvalidParameter("--epsilon and --delta state the guarantee together: pass both or neither")
    guarantee = None if epsilon is None or delta is None else Budget(epsilon, delta)
    asked = msgspec.structs.replace(asked, guarantee=guarantee, unit=Unit(rows_per_person, sites_per_person))
    folder = RunFolder(out)
    if folder.scores_file.exists() and not force:
        raise errors.FedsynthError(f"{folder.scores_file} exists; choose another --out, or pass --force to replace it")
    agreed = Schema.load(schema)
    if records and not any(is_csv(file) for file in (real, holdout) if file):
        raise errors.InvalidParameter(
            "--records is the kind of a CSV file, and neither REAL nor --holdout is one; leave it out"
        )

    def whole(file: Path) -> Table:
        return read_whole(file, plain, agreed, records if is_csv(file) else None, asked.person)

    plain = agreed.plain(column_names(real, records=records if is_csv(real) else None))
    unseen = None if holdout is None else whole(holdout)
    made = read_whole(synthetic, plain, agreed, written_kind(synthetic))
    evidence = EvaluationTables(whole(real), made, unseen, agreed=agreed)
    _announce(evidence, asked, json_)
    with shown(not json_) as progress:
        evaluation = measure(evidence, asked, progress=progress)
    evaluation = replace(evaluation, about=ReportTitle(title, owner, real.name, today()))
    write_scores(folder, evaluation)
    _tell(evaluation, write_report(folder, evaluation), json_)


def report(
    run: Path,
    /,
    *,
    settings: Annotated[partial[EvaluationSettings], Fields(*_COMMON)],
    fresh: bool = False,
    title: str = "",
    owner: str = "",
    json_: bool = False,
) -> None:
    r"""Write a report on a run's quality and privacy, as HTML.

    The report is one page, private/report.html in the run's folder, and needs no network. It describes how the
    synthetic rows compare with the real ones, and is not private: do not publish it. If the scores have to be computed,
    a simulated run is measured against the rows of its sites, so its data file must still be in place.

    Examples:

      fedsynth report run

      fedsynth report run --title "Claims 2024, synthetic" \
        --owner "Office for Health Statistics"

      fedsynth report run --full --target readmitted --sensitive ward \
        --known age,sex,nights

    Parameters
    ----------
    run
        Folder that `fedsynth simulate` or `fedsynth evaluate` wrote.
    target
        Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their
        usefulness. Default: the target of the run, if it had one; without any, no such scores.
    fresh
        Compute the scores again. Without it, those in scores.json are used if that exists, unless --target, --sensitive
        or --known is given, or --full where they are of a first report.
    title
        Title of the report; default: the one given before, else one that names the data file.
    owner
        Person or office that answers for the data, named at the head of the report; default: the one given before.
    """
    from fedsynth.evaluation.run_files import (
        measure_run,
        read_scores,
        run_evidence,
        title_of,
        write_report,
        write_scores,
    )
    from fedsynth.runs.folder import RunFolder

    folder, asked = RunFolder(run), settings()
    stored = folder.scores_file.is_file() and not fresh and not (asked.target or asked.sensitive or asked.known)
    if stored and (not asked.full or not read_scores(folder).first):
        evaluation = read_scores(folder)
        if title or owner:
            evaluation = replace(evaluation, about=_headed(evaluation.about, title, owner))
            write_scores(folder, evaluation)
    elif folder.is_run:
        evidence = run_evidence(folder)
        target = asked.target or (read_scores(folder).target if stored else "") or folder.job.target
        asked = msgspec.structs.replace(asked, target=target)
        _announce(evidence, asked, json_)
        with shown(not json_) as progress:
            evaluation = measure_run(folder, evidence, asked, progress)
        before = title_of(folder)
        evaluation = replace(evaluation, about=_headed(evaluation.about, title or before.title, owner or before.owner))
        write_scores(folder, evaluation)
    elif folder.scores_file.is_file():
        raise errors.Unsupported(
            f"{run} holds the scores of a table and not the run that made it, so nothing can be measured again "
            f"from there; run `fedsynth evaluate REAL SYNTHETIC ... --out {run} --force` on the two tables"
        )
    else:
        raise errors.FedsynthError(
            f"{run} holds no run.toml and no private/scores.json; give the folder that `fedsynth simulate` or "
            "`fedsynth evaluate` wrote"
        )
    _tell(evaluation, write_report(folder, evaluation), json_)


def _headed(about: ReportTitle, title: str, owner: str) -> ReportTitle:
    """Return the head of a report with the title and the owner that were given."""
    return replace(about, title=title or about.title, owner=owner or about.owner)


def _announce(evidence: EvaluationTables, settings: EvaluationSettings, json_: bool) -> None:
    """Say on standard error how long the measurement takes, before it starts, unless it is over at once."""
    from fedsynth.evaluation.evaluate import forecast

    first, full = (forecast(evidence, msgspec.structs.replace(settings, full=full)) for full in (False, True))
    said = (
        f"about {full:.0f} s of one core"
        if settings.full
        else f"about {first:.0f} s of one core (--full: {full:.0f} s)"
    )
    if not json_ and (full if settings.full else first) >= _AT_ONCE:
        print(f"Measuring: {said}.", file=sys.stderr)


def _tell(evaluation: Evaluation, page: Path, json_: bool) -> None:
    facts = {"report": str(page), **{k: v for k, v in evaluation.to_json().items() if k != "plot_data"}}
    text = [score_table(list(evaluation.scores)), ""]
    for verdict in ("alarm", "review"):
        text += [f"{verdict.upper()} {one.name}: {one.says}" for one in evaluation.scores if one.verdict == verdict]
    text += evaluation.notes[-1:] if evaluation.first else []
    text += ["These scores are computed on real rows and are not private: do not publish them.", f"Report: {page}"]
    say(json_, facts, "\n".join(text))
