"""What every command shares: options, the log file, a progress bar, and output for people or for programs.

An option that several commands have is declared here, once: one name, one meaning, one help text.
"""

from __future__ import annotations

import datetime
import io
import json
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fedsynth.errors import explained
from fedsynth.files import Records
from fedsynth.privacy.device import Device

if TYPE_CHECKING:
    from fedsynth.deploy.host.checks import PreflightCheck

_EPSILON_TEXT = (
    "Epsilon of the guarantee: how much the result may reveal about one person. Smaller: more privacy and more noise; "
    "usual values are 0.1 to 10."
)
_EXACT_TEXT = " inf: no noise at all, NOT PRIVATE."
_DELTA_TEXT = (
    "Delta of the guarantee: roughly the probability that epsilon fails to hold. Choose well below 1 / number of "
    "persons, such as 1e-6. 0: pure differential privacy, with Laplace noise."
)
_METHOD_TEXT = (
    "a name listed by `fedsynth methods`, or package.module:Class for one of your own. auto is one method, which suits "
    "most tables; it does not choose among the others."
)
_SCHEMA_TEXT = (
    "Schema file (TOML): name, kind and public bounds or categories of each column, as all sites agreed; `fedsynth "
    "schema draft` makes a first one."
)
_PARTITION_TEXT = (
    "How the rows are split over the sites. iid: at random, in equal parts; quantity:A: at random, in unequal parts; "
    "label-skew:A: each class of the label (%s) in unequal shares; capped-label-skew:A: the same, but a site that has "
    "its equal share of the rows gets no further classes; column:NAME: all rows with the same value (or bin) of that "
    "column at one site; values:NAME: one site for each of %s, without the rows of other values; cluster: similar rows "
    "together%s. %s a positive number such as 0.5: the smaller, the more uneven. docs/cli.md explains each."
)
_LOOKING = (
    "; synthfs:B: generated rows, without --data, whose columns are distributed differently at each site. With "
    "capped-label-skew and cluster, one row more moves others, so that the result is not for publication"
)
_COMMONEST = "the most common values of that column"
_LABEL = "the column --target, else the last one"
_TABLE_TEXT = (
    "CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME (without a password: put that into ~/.pgpass)"
)
EXCHANGE_TEXT = (
    "Folder, which must exist, in which requests and replies are exchanged as files: shared by server and sites, or "
    "carried between them. Without it, Flower sends them over the network."
)
ONCE_TEXT = (
    "With --exchange: do what can be done now, say which files to carry where, and exit. Without it, the command waits "
    "for further files."
)
_HOLDOUT_TEXT = "Share of the rows, %s, that no site gets and on which the result is scored, e.g. 0.1 for a tenth."
_LARGEST_SEED = 2**31 - 1  # scikit-learn's learners refuse seeds beyond 32 bits
_OUT_FOLDER_TEXT = "Folder for the results, written whole or not at all; it must not exist yet, except with --force."

MethodName = Annotated[str, typer.Option("--method", help=f"Method that makes the synthetic table: {_METHOD_TEXT}")]
SeveralMethods = Annotated[
    str,
    typer.Option(
        "--method",
        help=f"Method to predict: {_METHOD_TEXT} Several, separated by commas, give a prediction for each.",
    ),
]
AdvisedMethods = Annotated[
    str,
    typer.Option(
        "--method",
        help=f"Methods to try, separated by commas; each {_METHOD_TEXT} Default: all differentially private ones "
        "that --trust admits and that train no neural networks.",
    ),
]
Epsilon = Annotated[float, typer.Option("--epsilon", help=_EPSILON_TEXT)]
ExactEpsilon = Annotated[float, typer.Option("--epsilon", help=f"{_EPSILON_TEXT}{_EXACT_TEXT}")]
JobEpsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help=f"{_EPSILON_TEXT}{_EXACT_TEXT} Required, except with --config."),
]
SeveralEpsilons = Annotated[
    str,
    typer.Option(
        "--epsilon",
        help=f"{_EPSILON_TEXT} Required, except with --show; several, separated by commas, give a prediction for each.",
    ),
]
StatedEpsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon",
        help="Epsilon of the guarantee under which the synthetic table was made; needs --delta. The success of the "
        "privacy attacks is then compared with what this guarantee allows. Without it, the table counts as one without "
        "a guarantee.",
    ),
]
Delta = Annotated[float, typer.Option("--delta", help=_DELTA_TEXT)]
JobDelta = Annotated[
    float | None,
    typer.Option("--delta", help=f"{_DELTA_TEXT} Required, except with --config or --epsilon inf."),
]
PlanDelta = Annotated[float | None, typer.Option("--delta", help=f"{_DELTA_TEXT} Required, except with --show.")]
StatedDelta = Annotated[
    float | None,
    typer.Option("--delta", help="Delta of the guarantee under which the synthetic table was made; needs --epsilon."),
]
SchemaFile = Annotated[Path, typer.Option("--schema", help=_SCHEMA_TEXT)]
MaybeSchema = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help=f"{_SCHEMA_TEXT} Without it, one is drafted from the data, which the guarantee does not cover.",
    ),
]
PlanSchema = Annotated[Path | None, typer.Option("--schema", help=f"{_SCHEMA_TEXT} Required, except with --show.")]
Sites = Annotated[int, typer.Option("--sites", min=1, help="Number of sites over which the rows are split.")]
SeveralSites = Annotated[
    str,
    typer.Option(
        "--sites",
        help="Number of sites that will take part. Required, except with --show; several, separated by commas, give a "
        "prediction for each.",
    ),
]
JobSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        help="Whole number that fixes every random choice, the noise included, so that the run can be repeated. It is "
        "therefore not private: never publish such a run. Default: no seed; noise from the operating system.",
    ),
]
SampleSeed = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, help="Whole number that fixes which rows are drawn; default: no seed, other rows each time."
    ),
]
ScoreSeed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=_LARGEST_SEED,
        help="Whole number that fixes the random samples and splits from which scores are computed.",
    ),
]
CompareSeed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        help="Whole number that fixes the random splits and the noise; the same one gives the same figures.",
    ),
]
RowsFile = Annotated[
    Path,
    typer.Option(
        "--out", help="File to write, .csv or .parquet; an existing one is replaced once the new one is complete."
    ),
]
SpreadsheetSafe = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe",
        help="Put an apostrophe before each cell and column name that a spreadsheet would run as a formula (text that "
        "begins with =, +, - or @). Such a file is a copy to look at: `fedsynth evaluate` and other programs would "
        "read other values in it.",
    ),
]
SpreadsheetCopy = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe",
        help="Write synthetic-spreadsheet.csv as well: a copy of the synthetic table for people who open it in a "
        "spreadsheet, with an apostrophe before each cell and column name that would run as a formula there (text that "
        "begins with =, +, - or @). `fedsynth report` reads the table itself, which stays as it is.",
    ),
]
MaybeSchemaOut = Annotated[
    Path | None,
    typer.Option("--out", help="Schema file (TOML) to write; it must not exist yet. Without it, the draft is printed."),
]
ComparisonFile = Annotated[
    Path | None,
    typer.Option("--out", help="JSON file to write with the scores of every run. Without it, no file is written."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Plan file (TOML) to write, for the sites to approve; needs a single --method, --sites and --epsilon. "
        "Without it, the prediction is only printed.",
    ),
]
OutFolder = Annotated[Path, typer.Option("--out", help=_OUT_FOLDER_TEXT)]
JobData = Annotated[
    str,
    typer.Option(
        "--data",
        help=f"Table to split over the sites: {_TABLE_TEXT}. Required, except with --config or --partition synthfs:B.",
    ),
]
DataFile = Annotated[str, typer.Option("--data", help="Table to split over the sites: CSV or Parquet file.")]
FileKind = Annotated[
    Records | None,
    typer.Option(
        "--records",
        help="Kind of a CSV file. lines: no cell holds a newline; each line is a record, or is left out "
        "by itself if it is malformed. rfc4180: cells in quotes may hold newlines; the whole file must be valid "
        "RFC 4180, or none of it is read. Default: lines.",
    ),
]
TestData = Annotated[
    str, typer.Option("--data", help=f"Test table to split over the sites of job.toml: {_TABLE_TEXT}.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Option of the method as NAME=VALUE, e.g. rounds=5; repeat it for several. Options that are not set "
        "keep their defaults, which `fedsynth methods` lists.",
    ),
]
TrustName = Annotated[
    str,
    typer.Option(
        "--trust",
        help="Trust model: who sees exact counts and who adds the noise. trusted: the server sees each site's counts "
        "and adds the noise; local: each site adds all the noise to its own counts, so nobody else is trusted and "
        "results are noisiest; secure: secure aggregation, each site adds a part of the noise and the server sees only "
        "the noisy sum; three-servers: three servers hold secret shares of the counts, which none can read alone, and "
        "add the noise together.",
    ),
]
TrustSet = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-set",
        help="Parameter of the trust model as NAME=NUMBER; repeat it for several. Only secure has any: min_honest, the "
        "number of sites assumed not to collude with the server (default: more than half of all), and dropouts, the "
        "number of sites that may fail before a sum is complete: always fewer than half of min_honest (a larger number "
        "counts as that limit). Default: that limit; with more than 64 sites, where sites share masks with some others "
        "only, it may be just a twentieth of the sites: set dropouts if more may fail.",
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        "--partition",
        help=_PARTITION_TEXT % (_LABEL, "the first values of that column in the schema", _LOOKING, "A and B are each"),
    ),
]
TablePartition = Annotated[str, typer.Option("--partition", help=_PARTITION_TEXT % (_LABEL, _COMMONEST, "", "A is"))]
AdvicePartition = Annotated[
    str, typer.Option("--partition", help=_PARTITION_TEXT % ("the last column", _COMMONEST, "", "A is"))
]
SimulatedHoldout = Annotated[float, typer.Option("--holdout", help=_HOLDOUT_TEXT % "at least 0 and below 1")]
ComparedHoldout = Annotated[float, typer.Option("--holdout", help=_HOLDOUT_TEXT % "above 0 and below 1")]
JobTarget = Annotated[
    str,
    typer.Option(
        "--target",
        help="Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their "
        "usefulness; needs --holdout. The method auto then spends more of the budget on that column. Without it, no "
        "such scores.",
    ),
]
ScoreTarget = Annotated[
    str,
    typer.Option(
        "--target",
        help="Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their "
        "usefulness. Default: the target of the run, if it had one; without any, no such scores.",
    ),
]
EvaluateTarget = Annotated[
    str,
    typer.Option(
        "--target",
        help="Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their "
        "usefulness. Without it, no such scores.",
    ),
]
CompareTarget = Annotated[
    str,
    typer.Option(
        "--target",
        help="Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their "
        "usefulness. Without it, only the similarity of synthetic and real rows is compared.",
    ),
]
LabelTarget = Annotated[
    str,
    typer.Option(
        "--target", help="Label column of --partition label-skew or capped-label-skew; default: the last column."
    ),
]
Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        help="Sets of columns whose joint counts matter most, as ORDER[:COUNT[:SEED]]: 2 is all pairs, 3:64 is 64 sets "
        "of three columns, drawn at random by SEED (default 0). For auto, aim and the flaim family. Default: all "
        "pairs, with equal weights; for auto no set in particular.",
    ),
]
PublicSizes = Annotated[
    bool,
    typer.Option(
        "--public-sizes",
        help="Treat each site's number of rows as public knowledge, which the guarantee does not hide. Without it, "
        "methods that need the numbers pay for noisy ones with a part of the budget.",
    ),
]
RowsPerPerson = Annotated[
    int,
    typer.Option(
        "--rows-per-person",
        min=1,
        help="Largest number of rows that one person has at a site; all of them are protected together. A larger "
        "number means more noise.",
    ),
]
SitesPerPerson = Annotated[
    int,
    typer.Option(
        "--sites-per-person",
        min=1,
        help="Largest number of sites at which one person has rows; all of these rows are protected together. A larger "
        "number means more noise.",
    ),
]
StatedRowsPerPerson = Annotated[
    int,
    typer.Option(
        "--rows-per-person",
        min=1,
        help="Largest number of rows of one person at a site that the stated guarantee protects together.",
    ),
]
StatedSitesPerPerson = Annotated[
    int,
    typer.Option(
        "--sites-per-person",
        min=1,
        help="Largest number of sites of one person that the stated guarantee protects together.",
    ),
]
SuperLink = Annotated[
    str,
    typer.Option(
        "--superlink",
        help="HOST:PORT at which the sites will reach the SuperLink, Flower's server program: put your own server's "
        "name in place of the default.",
    ),
]
CheckedSuperLink = Annotated[
    str,
    typer.Option(
        "--superlink",
        help="HOST:PORT at which sites reach the SuperLink, Flower's server program, to check connection, certificate "
        "and clock. Default: that of --site; without either, these are not checked.",
    ),
]
DeviceName = Annotated[
    Device,
    typer.Option(
        "--device",
        help="Where neural networks are computed: on cpu, on cuda (a GPU), or auto: as the variable FEDSYNTH_DEVICE "
        "says, without it on a GPU if there is one, except for sums of clipped gradients (DP-SGD), which stay on the "
        "CPU. It changes nothing for methods without networks, but cuda is refused for any method where there is no "
        "GPU or no PyTorch.",
    ),
]
CheckedSite = Annotated[
    Path | None,
    typer.Option(
        "--site",
        help="Folder of a site on this machine, which holds its site.toml: checks its files too, and the server named "
        "there. Without it, only the machine and what other options name are checked.",
    ),
]
AuditedSite = Annotated[
    Path | None,
    typer.Option(
        "--site",
        help="Folder of the site, which holds its site.toml: verifies the record there. Give this or FILE.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace what an earlier command wrote to --out. Without it, the command stops if --out exists.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result to standard output as JSON, and nothing else. Without it: text for people."
    ),
]
JsonStream = Annotated[
    bool,
    typer.Option(
        "--json", help="Report each event as a JSON object on a line of its own. Without it: text for people."
    ),
]
JsonLog = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Write the log, which goes to standard error, as JSON, one object to a line. Without it: text for people.",
    ),
]


def say(json_: bool, facts: dict[str, Any], text: str) -> None:
    """Print the result of a command: ``facts`` as a JSON object if ``json_`` is true, else ``text``."""
    print(json.dumps(facts) if json_ else text)


class JsonLines(logging.Formatter):
    """A formatter of log records as JSON, one object to a line.

    The keys of each object are time (UTC), level, logger, message, and traceback if the record has one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's JSON object as text, without a line end."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        content = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


def log_to_stderr(json_: bool) -> None:
    """Write the log of a command that serves until it is stopped to standard error, as text or as JSON lines."""
    written = logging.StreamHandler()
    written.setFormatter(JsonLines() if json_ else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[written])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each look for a message
    logging.getLogger("flwr").propagate = False  # it prints by itself


def serve_until_stopped(serve: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run ``serve``, which returns after ``stop``; SIGTERM and SIGINT call that."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())
    serve()


class _LogFile(logging.StreamHandler[TextIO]):
    """Writes a log to a file; if that fails, as on a full disk, it says so once on standard error."""

    def __init__(self, stream: TextIO, file: Path) -> None:
        super().__init__(stream)
        self._file, self._failed = file, False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (of logging)
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed, error.filename = True, str(self._file)
            print(f"fedsynth: the log is incomplete: {explained(error)}", file=sys.stderr)


@contextmanager
def log_to(file: Path, arguments: Sequence[str]) -> Iterator[None]:
    """A context manager (for a ``with`` block) during which fedsynth's log is appended to ``file``; yields nothing.

    Only the file's owner may read it (0600). The first line that is appended has the versions and the command's
    ``arguments``. Messages may quote values of rows. Warnings go to standard error as well, as they do without a log
    file, but those with a traceback do not. Raises ``OSError`` if the file cannot be written.
    """
    import fedsynth

    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    logger = logging.getLogger("fedsynth")
    level = logger.level
    # Unbuffered: what a full disk does not take must not be written again, and fail again, when the file is closed.
    with io.TextIOWrapper(os.fdopen(descriptor, "ab", buffering=0), encoding="utf-8", write_through=True) as stream:
        os.fchmod(descriptor, 0o600)
        written, shown = _LogFile(stream, file), logging.StreamHandler(sys.stderr)
        written.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        shown.setLevel(logging.WARNING)
        shown.addFilter(lambda record: record.exc_info is None)
        for handler in (written, shown):
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.info("fedsynth %s, Python %s: %s", fedsynth.__version__, platform.python_version(), " ".join(arguments))
        try:
            yield
        finally:
            logger.setLevel(level)
            for handler in (written, shown):
                logger.removeHandler(handler)


@contextmanager
def progress_bar(json_: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A context manager (for a ``with`` block) that yields a function which shows progress bars on standard error.

    The function, ``progress(what, done, total)``, moves the bar named ``what`` to ``done`` of ``total`` steps. It does
    nothing if standard error is no terminal or ``json_`` is true.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if json_ or not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def score_table(scores: list[Any]) -> str:
    """Return scores as a table of aligned text: each score's name, its value, and that of real rows as a reference.

    ``scores`` are :class:`~fedsynth.evaluation.score.Score` objects.
    """
    width = max([len(score.name) for score in scores], default=0)
    lines = [f"{'how good it is':{width}} {'synthetic':>10} {'reference':>10}  reference is"]
    for score in scores:
        lines.append(
            f"{score.name:{width}} {score.synthetic.value:10.4f} {score.reference.value:10.4f}  {score.reference_is}"
        )
    return "\n".join(lines)


def check_text(checks: Sequence[PreflightCheck]) -> str:
    """Return checks of a machine or site as lines of text: state, name, finding, and how to fix what did not pass.

    The further lines of a finding are indented.
    """
    fixes = [f"\n{'':9}-> {one.mend}" if one.mend and one.state != "ok" else "" for one in checks]
    found = [one.found.replace("\n", f"\n{'':9}") for one in checks]
    lines = zip(checks, found, fixes, strict=True)
    return "\n".join(f"{one.state:8} {one.name}: {said}{fix}" for one, said, fix in lines)
