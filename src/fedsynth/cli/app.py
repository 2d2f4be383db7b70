"""The command line: the entry point, its exit codes, and the commands that synthesize and describe tables.

Exit codes (documented in docs/cli.md): 0 done; 1 a bug in fedsynth; 2 wrong usage, or a file that cannot be used;
3 a table or schema does not fit; 4 over budget; 5 refused by a site; 6 not supported; 7 too few sites; 8 any other
error, explained by its message; 9 files have to be carried; 130 stopped by the user.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import click
import typer
import typer.core

import fedsynth
from fedsynth import errors
from fedsynth.cli import plan
from fedsynth.cli.layout import CommandGroup
from fedsynth.cli.options import (
    DeviceName,
    FileKind,
    Force,
    JobData,
    JobDelta,
    JobEpsilon,
    JobSeed,
    JobTarget,
    Json,
    MaybeSchema,
    MaybeSchemaOut,
    MethodName,
    OutFolder,
    Partition,
    PublicSizes,
    RowsFile,
    RowsPerPerson,
    SampleSeed,
    SchemaFile,
    Set,
    SimulatedHoldout,
    Sites,
    SitesPerPerson,
    SpreadsheetCopy,
    SpreadsheetSafe,
    TrustName,
    TrustSet,
    Workload,
    log_to,
    progress_bar,
    say,
    score_table,
)
from fedsynth.files import load_object, write_whole
from fedsynth.plugins import named
from fedsynth.privacy.device import computing_on

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import Evaluation

FEATURES = {
    "evaluation": ("evaluate", "report"),
    "bench": ("compare", "bench"),
    "deploy": ("deploy", "site", "doctor", "audit"),
    "servers": ("compute-server",),
    "proof": ("prove",),
}  # folders, and the commands that each adds
_ABSENT = [feature for feature in FEATURES if not find_spec(f"fedsynth.{feature}")]
typer.core.HAS_RICH = False  # else its help escapes brackets for a markup that is off: \[default: 10]


class _Commands(CommandGroup):
    absent: ClassVar = [name for feature in _ABSENT for name in FEATURES[feature]]
    panels: ClassVar = {
        "Synthesize": ("simulate", "demo", "example", "schema"),
        "Judge and use the result": ("evaluate", "report", "compare", "sample"),
        "Choose a method and a budget": ("methods", "advise", "plan"),
        "Run a real federation": ("deploy", "site", "compute-server"),
        "Check": ("doctor", "audit", "prove"),
        "Benchmark": ("bench",),
    }


class _SchemaCommands(CommandGroup):
    panels: ClassVar = {"Commands": ("draft", "check")}


app = typer.Typer(
    cls=_Commands,
    help="""Make one synthetic table from the rows of many sites, without pooling them.

    A site is an organisation that holds rows of its own, such as a hospital.

    The table comes with a differential-privacy guarantee and a report of its quality.

    To try it, without any file:

      fedsynth demo

    To simulate ten sites with a table of your own:

      fedsynth simulate --data patients.csv --epsilon 1 --delta 1e-6 --out run
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    rich_markup_mode=None,
)
schema_app = typer.Typer(
    cls=_SchemaCommands,
    help="""Draft a schema, or check a table against it.

    A schema is agreed on by all sites. It lists the columns that every site's table has, with the kind and the bounds
    or categories of each.
    """,
    no_args_is_help=True,
    suggest_commands=False,
)
app.add_typer(schema_app, name="schema")
app.command()(plan.plan)
app.command()(plan.advise)
for _feature in FEATURES:
    if _feature not in _ABSENT:
        import_module(f"fedsynth.{_feature}.commands").register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; this is the program ``fedsynth``.

    ``arguments`` are the words after the program's name (``None``: those of ``sys.argv``). Always raises
    ``SystemExit`` with an exit code, listed in the module's docstring. An error is printed to standard error, or with
    ``--json`` as a JSON object to standard output.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    with ExitStack() as resources, warnings.catch_warnings():
        _warnings_to_log()
        _run(_Session(given, resources))


def _warnings_to_log() -> None:
    """Have warnings about rows and columns logged like other warnings, in place of a line of source code."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if issubclass(category, errors.DataWarning):
            logging.getLogger("fedsynth").warning("%s", message)
        else:
            shown(message, category, *where, **options)

    warnings.showwarning = show
    warnings.simplefilter("default", errors.DataWarning)


@dataclass
class _Session:
    """One run of the command line: its ``arguments``, what is open until it ends, and where its ``log`` goes."""

    arguments: Sequence[str]
    resources: ExitStack
    log: Path | None = None


def _run(session: _Session) -> None:
    json_ = "--json" in session.arguments
    try:
        code = app(session.arguments, prog_name="fedsynth", standalone_mode=False, obj=session)
        raise SystemExit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        if json_:
            _fail("UsageError", error.format_message(), 2, json_)
        error.show()
        raise SystemExit(2) from error
    except (click.Abort, KeyboardInterrupt) as error:
        print("stopped; incomplete files were not written", file=sys.stderr)
        raise SystemExit(130) from error
    except errors.FedsynthError as error:
        _fail(type(error).__name__, str(error), errors.exit_code(error), json_)
    except OSError as error:
        _fail("OSError", errors.explained(error), 2, json_)
    except Exception as error:
        if session.log is None:
            traceback.print_exc()
        else:
            logging.getLogger("fedsynth").critical("a bug in fedsynth", exc_info=error)
        where = "with the traceback above" if session.log is None else f"with the traceback in {session.log}"
        _fail("Fault", f"this is a bug in fedsynth; please report it {where}", 1, json_)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedsynth {fedsynth.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version of fedsynth and stop."),
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file",
            help="File to which the log, and the traceback of a bug, is appended; give it before the name of the "
            "command. Only its owner can read it, since messages may quote values of rows. Warnings go to the terminal "
            "in any case, and without this option so does the traceback of a bug.",
        ),
    ] = None,
) -> None:
    if log_file is not None:
        session = context.ensure_object(_Session)
        session.resources.enter_context(log_to(log_file, session.arguments))
        session.log = log_file


def _fail(kind: str, message: str, code: int, json_: bool) -> None:
    logging.getLogger("fedsynth").info("exit code %d: %s", code, message)
    if json_:
        print(json.dumps({"error": kind, "message": message, "exit_code": code}))
    else:
        print(f"fedsynth: {_harmless(message)}", file=sys.stderr)
    raise SystemExit(code)


def _harmless(text: str) -> str:
    """Return a message without control characters: it may quote files that others sent."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


@app.command()
def simulate(
    method: MethodName = "auto",
    epsilon: JobEpsilon = None,
    delta: JobDelta = None,
    out: OutFolder = Path("fedsynth-run"),
    data: JobData = "",
    records: FileKind = None,
    schema: MaybeSchema = None,
    sites: Sites = 10,
    partition: Partition = "iid",
    trust: TrustName = "trusted",
    trust_set: TrustSet = None,
    seed: JobSeed = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            min=1,
            help="Number of synthetic rows; default: the estimated number of rows of all sites together.",
        ),
    ] = None,
    workload: Workload = "",
    set_: Set = None,
    public_sizes: PublicSizes = False,
    rows_per_person: RowsPerPerson = 1,
    sites_per_person: SitesPerPerson = 1,
    person: Annotated[
        str,
        typer.Option(
            "--person",
            help="Column that tells which person a row is about; it need not be in the schema. At most "
            "--rows-per-person rows of each person, counted over all sites, are used, and no rows without a person. "
            "Default: no rows are dropped; the guarantee then presumes that nobody has more than --rows-per-person at "
            "a site.",
        ),
    ] = "",
    holdout: SimulatedHoldout = 0.0,
    target: JobTarget = "",
    format_: Annotated[
        str, typer.Option("--format", help="Format of the file with the synthetic table: csv or parquet.")
    ] = "csv",
    spreadsheet_safe: SpreadsheetCopy = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="The run.toml of an earlier run, to run the same job again: all settings come from it. Only --out, "
            "--force, --device and --json may stand beside it.",
        ),
    ] = None,
    device: DeviceName = "auto",
    force: Force = False,
    json_: Json = False,
) -> None:
    r"""Split one table over simulated sites and synthesize it.

    Writes a folder with the synthetic table, the fitted model, and a ledger: every answer that was released, with its
    privacy cost. Without --config, --epsilon and --delta are required. Without --schema, a schema is drafted from the
    data, which the guarantee does not cover.

    Examples:

      fedsynth simulate --data patients.csv --epsilon 1 --delta 1e-6 --out run

      fedsynth simulate --data patients.csv --schema agreed.toml \
        --method augflaim --set rounds=10 --set cap=3 --workload 3:64 \
        --sites 100 --partition label-skew:0.5 --trust local \
        --epsilon 1 --delta 1e-6 --out run-of-100-sites

      fedsynth simulate --data patients.csv --method fedprivsyn --sites 5 \
        --trust secure --trust-set min_honest=4 \
        --epsilon 1 --delta 1e-6 --out secure-run

      fedsynth simulate --config run/run.toml --out again
    """
    from fedsynth.runs import job as jobs
    from fedsynth.runs.run import run_simulated

    if config is not None:
        _refuse_beside_config()
        job = jobs.Job.load(config)
    else:
        if delta is None and epsilon == math.inf:
            delta = 0.0
        if epsilon is None or delta is None:
            raise click.UsageError("--epsilon and --delta are required, for example --epsilon 1 --delta 1e-6.")
        job = jobs.Job(
            method=method,
            epsilon=epsilon,
            delta=delta,
            data=data,
            records=records,
            schema=str(schema or ""),
            sites=sites,
            partition=partition,
            trust=trust,
            seed=seed,
            rows=rows,
            workload=workload,
            public_sizes=public_sizes,
            rows_per_person=rows_per_person,
            sites_per_person=sites_per_person,
            person=person,
            holdout=holdout,
            target=target,
            format=format_,
            spreadsheet_safe=spreadsheet_safe,
            options=dict(jobs.parse_option(text) for text in set_ or ()),
            trust_options=dict(jobs.parse_option(text) for text in trust_set or ()),
        )
    with computing_on(device), progress_bar(json_) as progress:
        outcome = run_simulated(job, out, force=force, progress=progress)
        evaluation, unmeasured = None, ""
        try:
            evaluation = named("fedsynth.evaluation.run_files:first_look")(outcome, job.target, progress)
        except errors.Unsupported as error:  # the run is complete, only its scores are missing
            unmeasured = str(error)
    _report(job, outcome, out, json_, evaluation, unmeasured=unmeasured)


def _refuse_beside_config() -> None:
    """Refuse options that --config would override, privacy parameters above all: a run is repeated as it was."""
    context = click.get_current_context()
    named = {one.name: one.opts[0] for one in context.command.params if isinstance(one, click.Option) and one.name}
    given = [
        option
        for name, option in named.items()
        if name not in ("config", "out", "device", "force", "json_")
        and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"--config repeats a run unchanged, but {', '.join(given)} would change it. Leave {', '.join(given)} out, "
            "or edit a copy of run.toml and pass the copy to --config."
        )


@app.command()
def demo(out: OutFolder = Path("fedsynth-demo"), force: Force = False, json_: Json = False) -> None:
    """Run `simulate` and `report` on a built-in real table.

    Writes a folder like that of `fedsynth simulate`, with a report of the fidelity, utility and privacy of the result.
    The table comes from a health-insurance study and is split over 10 unequal sites; epsilon is 1, delta 1e-6. No file
    and no network are needed: the table comes with statsmodels (pip install 'fedsynth[demo]').

    Example:

      fedsynth demo --out demo-run
    """
    from fedsynth.runs import job as jobs
    from fedsynth.runs.run import run_simulated

    job = jobs.Job(
        method="auto",
        epsilon=1.0,
        delta=1e-6,
        data=jobs.DEMO_DATA,
        sites=10,
        partition="label-skew:0.5",
        holdout=0.1,
        target="physical_limitation",
    )
    with progress_bar(json_) as progress:
        outcome = run_simulated(job, out, force=force, progress=progress)
        page, evaluation = named("fedsynth.evaluation.run_files:report_run")(out, progress)
    _report(job, outcome, out, json_, evaluation, page)


@app.command()
def example(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="File to write, .csv or .parquet; several get the patients of one hospital each. None is needed with "
            "--schema.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of rows in each file.")] = 6000,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="Schema file (TOML) to write: the columns that all the tables have."),
    ] = None,
    json_: Json = False,
) -> None:
    """Write a table of made-up patients, to try commands with.

    No row is a real person, and the same command writes the same rows. Files that exist are not replaced.

    Examples:

      fedsynth example patients.csv

      fedsynth example north.csv south.csv east.csv --schema agreed.toml
    """
    from fedsynth.data.read import write_frame
    from fedsynth.data.sources.files import check_suffix
    from fedsynth.datasets import patients, patients_toml

    tables = files or []
    written = [*tables, *([] if schema is None else [schema])]
    if not written:
        raise click.UsageError("name a file to write, such as patients.csv, or pass --schema FILE.toml")
    for file in tables:
        check_suffix(file)
    for file in written:
        if file.exists() or written.count(file) > 1:
            raise errors.FedsynthError(f"{file} exists or is named twice; choose another name")
    for hospital, file in enumerate(tables):
        write_frame(patients(rows, hospital), file)
    if schema is not None:
        write_whole(schema, patients_toml())
    lines = [f"{rows} made-up patients in {file}" for file in tables]
    lines += [] if schema is None else [f"their schema in {schema}"]
    say(json_, {"rows": rows, "files": [str(file) for file in written]}, "\n".join(lines))


@app.command()
def sample(
    model: Annotated[Path, typer.Argument(help="Fitted model: the file model.fedsynth in the folder of a run.")],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of rows to draw.")],
    out: RowsFile,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            help="Condition that all drawn rows meet: COLUMN=VALUE or COLUMN=LOW..HIGH, both ends included; repeat it "
            "for several columns. Default: no condition.",
        ),
    ] = None,
    seed: SampleSeed = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    device: DeviceName = "auto",
    json_: Json = False,
) -> None:
    r"""Draw more rows from a fitted model, at no privacy cost.

    The model is the file model.fedsynth that a run wrote. The privacy cost was paid when the model was fitted: the
    run's guarantee, if it has one, covers any number of further rows.

    Examples:

      fedsynth sample run/model.fedsynth --rows 100000 --out more.parquet

      fedsynth sample run/model.fedsynth --rows 5000 --out some.csv \
        --where sex=f --where age=30..40
    """
    from fedsynth.data import spreadsheet
    from fedsynth.data.read import write_frame
    from fedsynth.data.sources.files import is_csv
    from fedsynth.models.conditions import parse_conditions
    from fedsynth.models.synthesizer import load

    if spreadsheet_safe and not is_csv(out):
        raise click.UsageError("--spreadsheet-safe is for CSV files; name an --out that ends in .csv, or leave it out")
    synthesizer = load(model)
    with computing_on(device):
        drawn = synthesizer.sample(rows, seed, parse_conditions(synthesizer.schema, where or []))
    write_frame(spreadsheet.spreadsheet_safe(drawn) if spreadsheet_safe else drawn, out)
    redrawn = drawn.attrs.get("redrawn", 0.0)
    facts = {"rows": rows, "file": str(out), "redrawn": redrawn}
    say(json_, facts, "\n".join(filter(None, [_redrawn(redrawn), f"{rows} rows in {out}"])))


def _redrawn(share: float) -> str:
    return f"{share:.1%} of the rows broke a rule and were drawn again" if share else ""


@app.command()
def methods(json_: Json = False) -> None:
    """List the methods that make the table, and their options.

    For each method: how it makes the synthetic table, the trust models under which it runs (--trust: who sees exact
    counts and who adds the noise), and its options (--set) with their defaults.

    Examples:

      fedsynth methods

      fedsynth methods --json
    """
    from fedsynth.federation.names import TRUSTS
    from fedsynth.methods.registry import all_methods, options_of

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
        print(f"{one['name']:16} {one['summary']}\n{'':16} {needs}; options: {named}")


@schema_app.command("draft")
def schema_draft(
    file: Annotated[
        str, typer.Argument(help="One site's table: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME.")
    ],
    records: FileKind = None,
    out: MaybeSchemaOut = None,
    sdv: Annotated[
        Path | None,
        typer.Option(
            "--sdv",
            help="Metadata file (JSON) of the package SDV, from which the kinds of columns are taken. Without it, they "
            "are guessed from the values.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Draft a schema from one site's table, for editing.

    A schema says which columns the sites have, with bounds or categories of each. A draft is derived from the data, and
    no guarantee covers it: its comments list what publishing it would reveal. Replace bounds and categories by public
    facts before sharing it.

    Examples:

      fedsynth schema draft patients.csv --out draft.toml

      fedsynth schema draft patients.csv --sdv metadata.json --out draft.toml
    """
    from fedsynth.data.draft import draft_from_sdv, draft_schema
    from fedsynth.data.read import read_frame
    from fedsynth.data.sources import open_source

    metadata = None if sdv is None else load_object(sdv, "SDV metadata")
    frame = read_frame(open_source(file, records=records))
    draft = draft_schema(frame) if metadata is None else draft_from_sdv(frame, metadata)
    text = draft.to_toml()
    if out is not None:
        if out.exists():
            raise errors.FedsynthError(f"{out} exists and may have been edited by hand; choose another --out")
        write_whole(out, text)
    if json_:
        left_out = list(draft.left_out)
        print(json.dumps({"schema": text, "digest": draft.schema.digest, "notes": draft.notes, "left_out": left_out}))
    elif out is None:
        print(text)
    else:
        for column, notes in draft.notes.items():
            for note in notes:
                print(f"{'left out: ' if column in draft.left_out else ''}{column}: {note}")
        rest = f", {len(draft.left_out)} left out: {', '.join(draft.left_out)}" if draft.left_out else ""
        print(f"\n{len(draft.schema.names)} columns in {out}{rest}.", end=" ")
        print("This DRAFT is derived from rows: edit it before sharing.")


@schema_app.command("check")
def schema_check(
    file: Annotated[
        str, typer.Argument(help="Table to check: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME.")
    ],
    schema: SchemaFile,
    records: FileKind = None,
    json_: Json = False,
) -> None:
    """Validate a table against a schema and list bad values.

    Each bad value is listed by column and row, with how a run would handle it and how to fix it. Missing columns,
    broken rules and malformed lines are listed too, and so are column names and categories that would run as formulas
    where a spreadsheet opens the synthetic table. Exit codes: 0 the table fits, 3 a column is missing or cannot be
    read, rows would be left out, or a CSV file seems to be of another kind than --records says.

    Example:

      fedsynth schema check north.csv --schema agreed.toml
    """
    from fedsynth.data.read import check_table
    from fedsynth.data.sources import open_source
    from fedsynth.data.spreadsheet import formula_warnings
    from fedsynth.schema import Schema

    agreed = Schema.load(schema)
    report = check_table(open_source(file, records=records), agreed)
    if json_:
        print(
            json.dumps(
                {
                    "fits": report.ok,
                    "rows": report.rows,
                    "left_out": report.left_out,
                    "readable": report.readable,
                    "digest": agreed.digest,
                    "problems": report.problems,
                    "warnings": formula_warnings(agreed),
                }
            )
        )
    else:
        for problem in report.problems:
            print(f"- {problem}")
        for warning in formula_warnings(agreed):
            print(f"- WARNING: {_harmless(warning)}")
        if report.readable:
            left_out = f", {report.left_out} of them left out; the file {'fits' if report.ok else 'does not fit'}"
        else:
            left_out = ", none of which can be used: a column is missing or cannot be read; the file does not fit"
        print(f"{report.rows} rows{left_out} {schema} (schema digest {agreed.digest[:12]})")
    if not report.ok:
        raise typer.Exit(3)


def _report(
    job: Any,
    outcome: Any,
    out: Path,
    json_: bool,
    evaluation: Evaluation | None,
    page: Path | None = None,
    unmeasured: str = "",
) -> None:
    """Print the result of a simulation: files, privacy cost, statement and scores."""
    scores = []
    if evaluation is not None:
        first = named("fedsynth.evaluation.run_files:FIRST")
        scores = [one for one in evaluation.scores if one.metric in first]
    warnings = outcome.statement.warnings(sum(table.rows_read for table in outcome.rows.sites))
    if json_:
        facts = {
            "out": str(out),
            "rows": len(outcome.synthetic),
            "columns": list(outcome.synthetic.columns),
            "schema_drafted_from_data": outcome.rows.schema.drafted,
            "rows_left_out": outcome.rows.left_out,
            "rows_redrawn": outcome.synthetic.attrs.get("redrawn", 0.0),
            "scores": [score.to_json() for score in scores],
            "not_measured": unmeasured,
            "lost_sites": outcome.lost,
            "ledger": outcome.ledger.to_json(),
            "statement": outcome.statement.to_json(),
            "warnings": warnings,
            "resolution": outcome.synthesizer.info["resolution"],
            "report": None if page is None else str(page),
        }
        print(json.dumps(facts))
        return
    if outcome.rows.schema.drafted:
        print(
            "WARNING: the schema is a draft derived from the data. The guarantee below does NOT cover its bounds and\n"
            "categories. For anything but a trial, edit the schema, delete its line draft = true, and pass --schema.\n"
        )
    if outcome.rows.left_out:
        print(f"{outcome.rows.left_out} rows do not fit the schema and were left out; see `fedsynth schema check`\n")
    print(f"{len(outcome.synthetic)} synthetic rows of {outcome.synthetic.shape[1]} columns")
    if redrawn := _redrawn(outcome.synthetic.attrs.get("redrawn", 0.0)):
        print(redrawn)
    print(f"by {job.method} over {job.sites} sites ({job.partition}), trust: {job.trust}\n")
    print(outcome.ledger)
    print()
    print(outcome.statement.text)
    for warning in warnings:
        print(f"WARNING: {warning}")
    if outcome.hidden.lines:
        print("\n" + "\n".join(outcome.hidden.lines))
    if outcome.lost:
        print(f"sites that dropped out: {', '.join(outcome.lost)}")
    if scores:
        print("\n" + score_table(scores))
        print("(computed on real rows, which only a simulation has: these scores are not private, do not publish them)")
    else:
        print(f"\nNo scores were computed: {unmeasured}")
    print(f"\nIn {out}/: " + ", ".join(sorted(path.name for path in out.iterdir())))
    print(f"Open {page}" if page is not None else f"Next: fedsynth report {out}")
