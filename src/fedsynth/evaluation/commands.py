"""The commands ``fedsynth evaluate`` and ``report``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.options import say, score_table
from fedsynth.files import Records
from fedsynth.progress import shown

if TYPE_CHECKING:
    from fedsynth.evaluation.report import Evaluation, ReportTitle
    from fedsynth.evaluation.score import EvaluationTables
    from fedsynth.rows import Table

_AT_ONCE = 3.0  # seconds
_LARGEST_SEED = 2**31 - 1  # scikit-learn's learners refuse seeds beyond 32 bits


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
    target: str = "",
    sensitive: str = "",
    known: str = "",
    person: str = "",
    full: bool = False,
    suites: str = "",
    epsilon: float | None = None,
    delta: float | None = None,
    rows_per_person: Annotated[int, Meta(ge=1)] = 1,
    sites_per_person: Annotated[int, Meta(ge=1)] = 1,
    max_rows: Annotated[int, Meta(ge=100)] = 20_000,
    seed: Annotated[int, Meta(ge=0, le=_LARGEST_SEED)] = 0,
    title: str = "",
    owner: str = "",
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Score a synthetic table against the real rows.

    Measures fidelity and utility, with --full also privacy, each score beside what real rows reach in place of the
    synthetic ones, and writes scores.json, scores.csv and report.html to --out. The scores are computed from real rows
    without noise:
    protect them like the rows. --epsilon and --delta state the guarantee of the table, if it has one; the success of
    the privacy attacks is compared with what the guarantee allows. Where a person may have several rows, name the
    column of persons (--person) and the number of rows that the guarantee protects (--rows-per-person). For a folder
    that `fedsynth simulate` wrote, `fedsynth report` does the same without any further option.

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
        Folder for scores.json, scores.csv and report.html; it is made if needed, and other files in it are left alone.
        Required.
    holdout
        Other real rows, which the method never saw: CSV or Parquet file. Without it, some attacks are left out, and
        other scores use parts of the real rows in its place.
    target
        Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their
        usefulness. Without it, no such scores.
    person
        Column of the real and the hold-out rows that tells which person a row is about; it need not be in the schema.
        Attacks are then on persons, and no person's rows are on both sides of a comparison. Default: each row counts as
        a person's only one.
    full
        Measure everything: attacks on privacy, detection by classifiers, further distances and learners. Without it, a
        first report: what is lost of columns and associations, exact matches, and one learner.
    suites
        Sets of classifiers (or regressors) that learn --target, separated by commas: default, boosting, or those of a
        publication: flaim, thesis, fedtabdiff, heterofedsyn. docs/evaluation.md lists them. Default: boosting, which is
        one learner, trained once; with --full, default.
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
    max_rows
        Largest number of rows of each table that a fidelity or utility score uses; more rows take longer and give more
        exact scores.
    seed
        Whole number that fixes the random samples and splits from which scores are computed.
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
    from fedsynth.privacy.cost import Budget, Unit
    from fedsynth.runs.folder import RunFolder, read_whole, written_kind
    from fedsynth.schema import Schema

    for table in filter(None, (real, synthetic)):
        _refuse_folder(table)
    if synthetic is None or schema is None or out is None:
        raise errors.InvalidParameter(
            "SYNTHETIC, --schema and --out are required, for example `fedsynth evaluate train.csv synthetic.csv "
            "--schema agreed.toml --out scores`"
        )
    for suite in _split(suites):
        find_suite(suite)
    if (epsilon is None) != (delta is None):
        raise errors.InvalidParameter("--epsilon and --delta state the guarantee together: pass both or neither")
    folder = RunFolder(out)
    if folder.scores_file.exists() and not force:
        raise errors.FedsynthError(f"{folder.scores_file} exists; choose another --out, or pass --force to replace it")
    agreed = Schema.load(schema)
    if records and not any(is_csv(file) for file in (real, holdout) if file):
        raise errors.InvalidParameter(
            "--records is the kind of a CSV file, and neither REAL nor --holdout is one; leave it out"
        )

    def whole(file: Path) -> Table:
        return read_whole(file, plain, agreed, records if is_csv(file) else None, person)

    plain = agreed.plain(column_names(real, records=records if is_csv(real) else None))
    unseen = None if holdout is None else whole(holdout)
    made = read_whole(synthetic, plain, agreed, written_kind(synthetic))
    evidence = EvaluationTables(whole(real), made, unseen, agreed=agreed)
    _announce(evidence, target, full, json_, max_rows)
    with shown(not json_) as progress:
        evaluation = measure(
            evidence,
            full=full,
            target=target,
            sensitive=sensitive,
            known=_split(known),
            guarantee=None if epsilon is None or delta is None else Budget(epsilon, delta),
            unit=Unit(rows_per_person, sites_per_person),
            suites=_split(suites),
            max_rows=max_rows,
            seed=seed,
            progress=progress,
        )
    evaluation = replace(evaluation, about=ReportTitle(title, owner, real.name, today()))
    write_scores(folder, evaluation)
    _tell(evaluation, write_report(folder, evaluation), json_)


def report(
    run: Path,
    /,
    *,
    target: str = "",
    sensitive: str = "",
    known: str = "",
    full: bool = False,
    fresh: bool = False,
    title: str = "",
    owner: str = "",
    json_: bool = False,
) -> None:
    r"""Write a report on a run's quality and privacy, as HTML.

    The report is one page, report.html in the run's folder, and needs no network. It describes how the synthetic rows
    compare with the real ones, and is not private: do not publish it. If the scores have to be computed, a simulated
    run is measured against the rows of its sites, so its data file must still be in place.

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
    full
        Measure everything: attacks on privacy, detection by classifiers, further distances and learners. Without it, a
        first report: what is lost of columns and associations, exact matches, and one learner.
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

    folder = RunFolder(run)
    stored = folder.scores_file.is_file() and not fresh and not (target or sensitive or known)
    if stored and (not full or not read_scores(folder).first):
        evaluation = read_scores(folder)
        if title or owner:
            evaluation = replace(evaluation, about=_headed(evaluation.about, title, owner))
            write_scores(folder, evaluation)
    elif folder.is_run:
        evidence = run_evidence(folder)
        target = target or (read_scores(folder).target if stored else "")
        _announce(evidence, target or folder.job.target, full, json_)
        with shown(not json_) as progress:
            evaluation = measure_run(
                folder, evidence, target=target, sensitive=sensitive, known=_split(known), full=full, progress=progress
            )
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
            f"{run} holds no run.toml and no scores.json; give the folder that `fedsynth simulate` or "
            "`fedsynth evaluate` wrote"
        )
    _tell(evaluation, write_report(folder, evaluation), json_)


def _headed(about: ReportTitle, title: str, owner: str) -> ReportTitle:
    """Return the head of a report with the title and the owner that were given."""
    return replace(about, title=title or about.title, owner=owner or about.owner)


def _announce(evidence: EvaluationTables, target: str, full: bool, json_: bool, max_rows: int = 20_000) -> None:
    """Say on standard error how long the measurement takes, before it starts, unless it is over at once."""
    from fedsynth.evaluation.evaluate import forecast

    first, all_ = (forecast(evidence, target=target, full=one, max_rows=max_rows) for one in (False, True))
    said = f"about {all_:.0f} s of one core" if full else f"about {first:.0f} s of one core (--full: {all_:.0f} s)"
    if not json_ and (all_ if full else first) >= _AT_ONCE:
        print(f"Measuring: {said}.", file=sys.stderr)


def _tell(evaluation: Evaluation, page: Path, json_: bool) -> None:
    facts = {"report": str(page), **{k: v for k, v in evaluation.to_json().items() if k != "plot_data"}}
    text = [score_table(list(evaluation.scores)), ""]
    for verdict in ("alarm", "review"):
        text += [f"{verdict.upper()} {one.name}: {one.says}" for one in evaluation.scores if one.verdict == verdict]
    text += evaluation.notes[-1:] if evaluation.first else []
    text += ["These scores are computed on real rows and are not private: do not publish them.", f"Report: {page}"]
    say(json_, facts, "\n".join(text))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())
