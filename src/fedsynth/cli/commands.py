"""The commands ``simulate``, ``demo``, ``example``, ``sample``, ``methods`` and ``schema draft|check``."""

from __future__ import annotations

import datetime
import json
import math
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.adapter import Fields, spelled
from fedsynth.cli.options import declared_by, redrawn_text, say
from fedsynth.cli.output import tell
from fedsynth.files import Records, load_object, write_whole
from fedsynth.privacy.device import Device, computing_on
from fedsynth.progress import shown
from fedsynth.runs.job import DEMO_DATA, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsynth.data.read import FileCheck

_RARE = (
    *("records", "seed", "rows", "workload", "public_sizes", "sites_per_person", "person", "format"),
    *("spreadsheet_safe", "options", "trust_options", "weak_delta", "unproved", "device", "json_"),
)  # options of `simulate` that --help-all shows


def simulate(
    job: Annotated[partial[Job], Fields(optional=True, method="auto", rare=_RARE)],
    *,
    out: Path = Path("fedsynth-run"),
    config: Path | None = None,
    questions: Path | None = None,
    device: Device = "auto",
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Split one table over simulated sites and synthesize it.

    Writes a folder with the synthetic table, the fitted model, and a ledger: every answer that was released, with its
    privacy cost. Without --config, --epsilon and --delta are required. Without --schema, a schema is drafted from the
    data, which the guarantee does not cover. With --site, each site has a table of its own.

    Examples:

      fedsynth simulate --data patients.csv --epsilon 1 --delta 1e-6 --out run

      fedsynth simulate --data patients.csv --schema agreed.toml \
        --method augflaim --set rounds=10 --set cap=3 --workload 3:64 \
        --sites 100 --partition label-skew:0.5 --trust local \
        --epsilon 1 --delta 1e-6 --out run-of-100-sites

      fedsynth simulate --data patients.csv --method fedprivsyn --sites 5 \
        --trust secure --trust-set min_honest=4 \
        --epsilon 1 --delta 1e-6 --out secure-run

      fedsynth simulate --site north=north.csv --site south=south.csv \
        --schema agreed.toml --epsilon 1 --delta 1e-6 --out two-sites

      fedsynth simulate --data patients.csv --questions asked.toml \
        --epsilon 1 --delta 1e-6 --out answered

      fedsynth simulate --config run/run.toml --out again

    Parameters
    ----------
    config
        The run.toml of an earlier run, to run the same job again: all settings come from it. Only --out, --force,
        --device and --json may stand beside it.
    """
    from fedsynth.cli.simulated import result_text, simulated
    from fedsynth.methods import find_method

    if config is not None:
        also = [] if questions is None else ["--questions"]
        if given := ", ".join(
            [*map(spelled, job.keywords), *also]
        ):  # privacy parameters above all: a run is repeated as it was
            raise errors.InvalidParameter(
                f"--config repeats a run unchanged, but {given} would change it. Leave {given} out, or edit a copy of "
                "run.toml and pass the copy to --config"
            )
        made = Job.load(config)
    elif "epsilon" not in job.keywords or ("delta" not in job.keywords and job.keywords["epsilon"] != math.inf):
        raise errors.InvalidParameter("--epsilon and --delta are required, for example --epsilon 1 --delta 1e-6")
    else:
        made = job(**{"delta": 0.0, **job.keywords}, **declared_by(questions))
    if not json_ and find_method(made.method).trains:
        print(f"{made.method} trains neural networks, which takes minutes or longer.", file=sys.stderr)
    with computing_on(device), shown(not json_) as progress:
        result = simulated(made, out, force=force, progress=progress)
    say(json_, result.to_json(), result_text(result))


def demo(*, out: Path = Path("fedsynth-demo"), force: bool = False, json_: bool = False) -> None:
    """Run `simulate` and `report` on a built-in real table.

    Writes a folder like that of `fedsynth simulate`, with a report of the fidelity, utility and privacy of the result.
    The table comes from a health-insurance study and is split over 10 unequal sites; epsilon is 1, delta 1e-6. No file
    and no network are needed: the table comes with statsmodels (pip install 'fedsynth[demo]').

    Example:

      fedsynth demo --out demo-run
    """
    from fedsynth.cli.simulated import result_text, simulated

    target = "physical_limitation"
    job = Job("auto", 1.0, 1e-6, data=DEMO_DATA, partition="label-skew:0.5", holdout=0.1, target=target)
    if not json_ and all(map(find_spec, ("statsmodels", "statsmodels.datasets"))):  # else an error follows at once
        print("Fitting the table over 10 sites and measuring it: about ten seconds of one core.", file=sys.stderr)
    with shown(not json_) as progress:
        result = simulated(job, out, force=force, report=True, progress=progress)
    say(json_, result.to_json(), result_text(result))


def example(
    files: tuple[Path, ...] = (),
    /,
    *,
    rows: Annotated[int, Meta(ge=1)] = 6000,
    schema: Path | None = None,
    json_: bool = False,
) -> None:
    """Write a table of made-up patients, to try commands with.

    No row is a real person, and the same command writes the same rows. Files that exist are not replaced.

    Examples:

      fedsynth example patients.csv

      fedsynth example north.csv south.csv east.csv --schema agreed.toml

    Parameters
    ----------
    files
        File to write, .csv or .parquet; several get the patients of one hospital each. None is needed with --schema.
    rows
        Number of rows in each file.
    schema
        Schema file (TOML) to write: the columns that all the tables have.
    """
    from fedsynth.data.read import write_frame
    from fedsynth.data.sources.files import check_suffix
    from fedsynth.datasets import patients, patients_toml

    written = [*files, *([] if schema is None else [schema])]
    if not written:
        raise errors.InvalidParameter("name a file to write, such as patients.csv, or pass --schema FILE.toml")
    for file in files:
        check_suffix(file)
    for file in written:
        if file.exists() or written.count(file) > 1:
            raise errors.FedsynthError(f"{file} exists or is named twice; choose another name")
    for hospital, file in enumerate(files):
        write_frame(patients(rows, hospital), file)
    if schema is not None:
        write_whole(schema, patients_toml())
    lines = [f"{rows} made-up patients in {file}" for file in files]
    lines += [] if schema is None else [f"their schema in {schema}"]
    say(json_, {"rows": rows, "files": [str(file) for file in written]}, "\n".join(lines))


def sample(
    model: Path,
    /,
    *,
    rows: Annotated[int, Meta(ge=1)],
    out: Path,
    where: tuple[str, ...] = (),
    seed: Annotated[int, Meta(ge=0)] | None = None,
    spreadsheet_safe: bool = False,
    device: Device = "auto",
    json_: bool = False,
) -> None:
    r"""Draw more rows from a fitted model, at no privacy cost.

    The model is the file model.fedsynth that a run wrote. The privacy cost was paid when the model was fitted: the
    run's guarantee, if it has one, covers any number of further rows.

    Examples:

      fedsynth sample run/model.fedsynth --rows 100000 --out more.parquet

      fedsynth sample run/model.fedsynth --rows 5000 --out some.csv \
        --where sex=f --where age=30..40

    Parameters
    ----------
    model
        Fitted model: the file model.fedsynth in the folder of a run.
    rows
        Number of rows to draw.
    out
        File to write, .csv or .parquet; an existing one is replaced once the new one is complete.
    where
        Condition that all drawn rows meet: COLUMN=VALUE or COLUMN=LOW..HIGH, both ends included; repeat it for several
        columns. Default: no condition.
    seed
        Whole number that fixes which rows are drawn; default: no seed, other rows each time.
    spreadsheet_safe
        Put an apostrophe before each cell and column name that a spreadsheet would run as a formula (text that begins
        with =, +, - or @). Such a file is a copy to look at: `fedsynth evaluate` and other programs would read other
        values in it.
    """
    from fedsynth.data import spreadsheet
    from fedsynth.data.read import write_frame
    from fedsynth.data.sources.files import is_csv
    from fedsynth.models.conditions import parse_conditions
    from fedsynth.models.synthesizer import load

    if spreadsheet_safe and not is_csv(out):
        raise errors.InvalidParameter(
            "--spreadsheet-safe is for CSV files; name an --out that ends in .csv, or leave it out"
        )
    synthesizer = load(model)
    with computing_on(device):
        drawn = synthesizer.sample(rows, seed, parse_conditions(synthesizer.schema, where))
    write_frame(spreadsheet.spreadsheet_safe(drawn) if spreadsheet_safe else drawn, out)
    redrawn = drawn.attrs.get("redrawn", 0.0)
    facts = {"rows": rows, "file": str(out), "redrawn": redrawn}
    say(json_, facts, "\n".join(filter(None, [redrawn_text(redrawn), f"{errors.number_of(rows, 'row')} in {out}"])))


def methods(*, json_: bool = False) -> None:
    """List the methods that make the table, and their options.

    For each method: how it makes the synthetic table, the trust models under which it runs (--trust: who sees exact
    counts and who adds the noise), and its options (--set) with their defaults.

    Examples:

      fedsynth methods

      fedsynth methods --json
    """
    from fedsynth.methods.registry import all_methods, options_of
    from fedsynth.trusts import TRUSTS

    listing: list[dict[str, Any]] = []
    for declared in all_methods():
        listing.append(
            {
                "name": declared.name,
                "summary": declared.summary,
                "trusts": [name for name in TRUSTS if declared.runs_under(name)],
                "private": declared.private,
                "adaptive": declared.adaptive,
                "trains": declared.trains,
                "options": options_of(declared.kind),
            }
        )
    if json_:
        print(json.dumps(listing))
        return
    for one in listing:
        named = " ".join(f"{option}={value}" for option, value in one["options"].items())
        needs = f"trusts: {', '.join(one['trusts'])}" + ("; needs fedsynth[deep]" if one["trains"] else "")
        tell(f"{one['name']:16}  {one['summary']}\n{'':16}  {needs}; options: {named}")


def schema_draft(
    file: str = "",
    /,
    *,
    records: Records | None = None,
    out: Path | None = None,
    sdv: Path | None = None,
    outline: bool = False,
    omop: str = "",
    concepts: Path | None = None,
    index_date: str = "",
    json_: bool = False,
) -> None:
    """Draft a schema from one site's table, for editing.

    A schema says which columns the sites have, with bounds or categories of each. A draft is derived from the data, and
    no guarantee covers it: its comments list what publishing it would reveal. Replace bounds and categories by public
    facts before sharing it.

    Examples:

      fedsynth schema draft patients.csv --out draft.toml

      fedsynth schema draft patients.csv --sdv metadata.json --out draft.toml

      fedsynth schema draft patients.csv --outline --out outline.toml

      fedsynth schema draft --omop duckdb:///omop.db --concepts concepts.toml --index-date 2020-01-01 --out agreed.toml

    Parameters
    ----------
    file
        One site's table: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME.
    out
        Schema file (TOML) to write; it must not exist yet. Without it, the draft is printed.
    sdv
        Metadata file (JSON) of the package SDV, from which the kinds of columns are taken. Without it, they are guessed
        from the values.
    outline
        Write names, kinds and units of the columns alone, to show to other sites: no values, bounds or counts. It is no
        schema yet; `fedsynth schema merge` takes it.
    omop
        In place of FILE, the address of an OMOP Common Data Model 5.4, postgresql://HOST/DB?schema=NAME or
        duckdb:///FILE?schema=NAME, for a schema of one row a person and the SQL of its view, beside --out with the
        ending .sql. No row is read, so the schema is no draft.
    concepts
        With --omop, a TOML file of concept sets, each [set.NAME] with domain, concepts and columns.
    index_date
        With --omop, the day at which persons are described, as in 2020-01-31.
    """
    if omop or concepts or index_date:
        _omop_schema(file, omop, concepts, index_date, out, json_)
        return
    if not file:
        raise errors.FedsynthError("name one site's table, for example: fedsynth schema draft patients.csv")
    from fedsynth.data.draft import draft_from_sdv, draft_schema
    from fedsynth.data.merge import outline_toml
    from fedsynth.data.text_form import read_raw

    metadata = None if sdv is None else load_object(sdv, "SDV metadata")
    frame, form = read_raw(file, records)
    with shown(not json_) as progress:
        if metadata is None:
            draft = draft_schema(frame, form=form, progress=progress)
        else:
            draft = draft_from_sdv(frame, metadata)
            draft = replace(draft, source=(*form, *draft.source))
    text = outline_toml(draft.schema, draft.dates, draft.left_out) if outline else draft.to_toml()
    _write_new(out, text)
    if outline:  # beside it nothing else of the draft, which says more
        many = errors.number_of(len(draft.schema.names), "column")
        say(json_, {"outline": text}, text if out is None else f"{many} in {out}: names, kinds and units alone")
    elif json_:
        left_out = list(draft.left_out)
        told = {"digest": draft.schema.digest, "notes": draft.notes, "left_out": left_out, "source": draft.source}
        print(json.dumps({"schema": text, **told, "relations": draft.relations}))
    elif out is None:
        print(text)
    else:
        for column, notes in draft.notes.items():
            for note in notes:
                tell(f"{'left out: ' if column in draft.left_out else ''}{column}: {note}")
        rest = f", {len(draft.left_out)} left out: {', '.join(draft.left_out)}" if draft.left_out else ""
        for line in draft.source:
            tell(f"source file: {line}", entry=True)
        tell(
            f"\n{errors.number_of(len(draft.schema.names), 'column')} in {out}{rest}. This DRAFT is derived from rows: "
            "edit it before sharing."
        )


def _omop_schema(file: str, omop: str, concepts: Path | None, index_date: str, out: Path | None, json_: bool) -> None:
    from fedsynth.data.omop import persons

    if file or not (omop and concepts and index_date):
        raise errors.FedsynthError(
            "--omop, --concepts and --index-date go together, in place of a file, for example: --omop "
            "'postgresql://me@db/hospital?schema=cdm' --concepts concepts.toml --index-date 2020-01-01"
        )
    try:
        index = datetime.date.fromisoformat(index_date)
    except ValueError as error:
        raise errors.FedsynthError(f"--index-date {index_date} is no day; write it as 2020-01-31") from error
    made, view = persons(omop, concepts, index), None if out is None else out.with_suffix(".sql")
    text = made.schema.to_toml()
    for path, content in ((out, text), (view, made.view)):
        _write_new(path, content)
    many = errors.number_of(len(made.schema.columns), "column")
    written = f"{out}: {many}, one row a person. {view}: the view {made.name}, which each site's database creates."
    say(json_, {"schema": text, "view": made.view}, f"{text}\n{made.view}" if out is None else written)


def _write_new(out: Path | None, text: str) -> None:
    if out is not None:
        if out.exists():
            raise errors.FedsynthError(f"{out} exists and may have been edited by hand; choose another --out")
        write_whole(out, text)


def schema_merge(files: tuple[Path, ...], /, *, out: Path | None = None, json_: bool = False) -> int | None:
    """Merge the schemas or outlines of several sites into one.

    The result has the columns of all. Each difference is a comment there: PROPOSED where it is settled, with how, and
    DECIDE where a person has to choose; FILL IN marks what no file says. A column that a site lacks may be missing, and
    the entry `absent` of that site's source file is printed. The result is a draft until its line draft = true is
    deleted.

    Of two files, of which one is a draft or an outline and the other is not, nothing is merged without --out: printed
    is what the site of the former has to do to follow the latter, the agreed schema. Exit codes: 0 nothing is left to
    do, 3 something is.

    Examples:

      fedsynth schema merge north.toml south.toml east.toml --out agreed.toml

      fedsynth schema merge agreed.toml mine.toml

    Parameters
    ----------
    files
        Schema files or outlines (`fedsynth schema draft --outline`), two or more.
    out
        Schema file (TOML) to write; it must not exist yet. Without it, the result is printed.
    """
    from fedsynth.data.merge import Described, merge

    given = [Described.load(file) for file in files]
    compared = len(given) == 2 and out is None and given[0].is_agreed != given[1].is_agreed
    made = merge(sorted(given, key=lambda file: not file.is_agreed) if compared else given, agreed=compared)
    text = "" if made.agreed else made.to_toml()
    _write_new(out, text)
    if json_:
        differences = [one._asdict() for one in made.differences]
        print(json.dumps({"schema": text, "differences": differences, "source": made.sources, "fill": made.to_fill}))
    elif out is None and not made.agreed:
        print(text)
    else:
        for one in made.differences:
            tell(f"{'DECIDE: ' if one.decide and not made.agreed else ''}{one}")
        for name, lines in made.sources.items():
            tell(f"source file of the site of {name}:")
            print("\n".join(f"    {line}" for line in lines))  # whole, to be pasted
        if made.agreed:
            tell(f"\n{'nothing' if made.is_decided else 'this'} is to be done to follow {made.agreed}")
        else:
            left = sum(one.decide for one in made.differences) + len(made.to_fill)
            tell(f"\n{errors.number_of(len(made.columns), 'column')} in {out}, {left or 'none'} to decide or fill in")
    return None if made.is_decided else 3


def schema_check(file: str, /, *, schema: Path, records: Records | None = None, json_: bool = False) -> int | None:
    """Validate a table against a schema and list bad values.

    Each bad value is listed by column and row, with how a run would handle it and how to fix it. Missing columns,
    broken rules and malformed lines are listed too, and so are column names and categories that would run as formulas
    where a spreadsheet opens the synthetic table. Exit codes: 0 the table fits, 3 a column is missing or cannot be
    read, rows would be left out, or a CSV file seems to be of another kind than --records says.

    Example:

      fedsynth schema check north.csv --schema agreed.toml

    Parameters
    ----------
    file
        Table to check: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME.
    """
    from fedsynth.data.read import check_table
    from fedsynth.data.sources import open_source
    from fedsynth.data.spreadsheet import formula_warnings
    from fedsynth.schema import Schema

    agreed = Schema.load(schema)
    report = check_table(open_source(file, records=records), agreed)
    if json_:
        facts = {**_check_facts(report), "digest": agreed.digest, "warnings": formula_warnings(agreed)}
        print(json.dumps(facts))
    else:
        _tell_check(report, formula_warnings(agreed), f"{schema} (schema digest {agreed.digest[:12]})")
    return None if report.ok else 3


def _check_facts(report: FileCheck) -> dict[str, Any]:
    facts = {"fits": report.ok, "rows": report.rows, "left_out": report.left_out, "readable": report.readable}
    return {**facts, "problems": report.problems}


def _tell_check(report: FileCheck, risky: Sequence[str], schema: str) -> None:
    for problem in report.problems:
        tell(f"- {problem}")
    for warning in risky:
        tell(f"- WARNING: {warning}")
    if report.readable:
        left_out = f", {report.left_out} of them left out; the file {'fits' if report.ok else 'does not fit'}"
    else:
        left_out = ", none of which can be used: a column is missing or cannot be read; the file does not fit"
    tell(f"{errors.number_of(report.rows, 'row')}{left_out} {schema}")


def site_adapt(file: Path, /, *, schema: Path, out: Path | None = None, person: str = "", json_: bool = False) -> None:
    """Draft a site's source file: how its own export is read for the agreed schema.

    For each column of the schema, the file's column is proposed by name and by values, and with it the forms of dates
    and numbers, codes by meaning, units and words for missing, each with the number of cells that fit. Comments that
    begin with LOOK ask for a decision. No run reads the rows until a person has deleted the line draft = true. At the
    end, the rows are validated as by `fedsynth schema check`. The drafted file never leaves the site; it names no value
    that fewer than ten rows have.

    Examples:

      fedsynth site adapt export.csv --schema agreed.toml --out north.toml

    Parameters
    ----------
    file
        The site's own file: .csv, .tsv or .txt (also .gz), .xlsx, or .parquet.
    schema
        Schema file (TOML) on which all sites have agreed.
    out
        Source file (TOML) to write; it must not exist yet. Without it, the draft is printed.
    person
        Column of the file that identifies persons, of which no value is named. Default: those that look like it.
    """
    from fedsynth.data.adapt import adapt
    from fedsynth.data.read import check_table
    from fedsynth.schema import Schema

    if out is not None and out.exists():
        raise errors.FedsynthError(f"{out} exists and may have been edited by hand; choose another --out")
    if "://" in str(file):
        raise errors.Unsupported(f"{file}: of a database only columns can be renamed; write a view there")
    agreed = Schema.load(schema)
    file.stat()  # an error that says so, if there is no such file
    with shown(not json_) as progress:
        folder = Path() if out is None else out.parent
        drafted = adapt(file, agreed, folder, name=out.name if out else "the draft", person=person, progress=progress)
    report = check_table(drafted.rows, agreed)
    if out is not None:
        write_whole(out, drafted.text)
    if json_:
        print(json.dumps({"source": drafted.text, "looks": drafted.looks, **_check_facts(report)}))
        return
    if out is None:
        print(drafted.text)
    else:
        for look in drafted.looks:
            tell(f"LOOK: {look}")
    _tell_check(report, [], f"{schema}, once the draft is confirmed")
    if out is not None:
        decisions = errors.number_of(len(drafted.looks), "decision")
        tell(f"\n{decisions} marked LOOK in {out}. Make them, compare the rest, then delete its line draft = true.")
