"""What every command shares: options, the log file, a progress bar, and output for people or for programs.

An option that several commands have is declared here, once: one name, one meaning, one help text.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsynth.privacy.device import Device

if TYPE_CHECKING:
    from fedsynth.host.checks import Check

_EPSILON_TEXT = "Epsilon of the guarantee. inf: no noise at all, NOT PRIVATE."
_SITES_TEXT = "Number of sites."
_METHOD = typer.Option("--method", help="Method to run: a name listed by `fedsynth methods`, or package.module:Class.")
_EPSILON = typer.Option("--epsilon", help=_EPSILON_TEXT)
_DELTA = typer.Option("--delta", help="Delta of the guarantee. 0: pure differential privacy, with Laplace noise.")
_SCHEMA = typer.Option("--schema", help="Schema file (TOML) that all sites agreed on.")
_SITES = typer.Option("--sites", min=1, help=_SITES_TEXT)
_SEED = typer.Option(
    "--seed",
    help="Seed of everything, noise included. Reproducible, therefore not private: never publish such a run.",
)
_OUT_FILE = typer.Option("--out", help="File to write; it appears only once it is complete.")
_OUT_FOLDER = typer.Option("--out", help="Folder to write; it appears only once it is complete.")

MethodName = Annotated[str, _METHOD]
Epsilon = Annotated[float, _EPSILON]
SeveralEpsilons = Annotated[str, typer.Option("--epsilon", help=_EPSILON_TEXT)]
MaybeEpsilon = Annotated[float | None, _EPSILON]
Delta = Annotated[float, _DELTA]
MaybeDelta = Annotated[float | None, _DELTA]
SchemaFile = Annotated[Path, _SCHEMA]
MaybeSchema = Annotated[Path | None, _SCHEMA]
Sites = Annotated[int, _SITES]
SeveralSites = Annotated[str, typer.Option("--sites", help=_SITES_TEXT)]
Seed = Annotated[int, _SEED]
MaybeSeed = Annotated[int | None, _SEED]
OutFile = Annotated[Path, _OUT_FILE]
MaybeOutFile = Annotated[Path | None, _OUT_FILE]
OutFolder = Annotated[Path, _OUT_FOLDER]
Data = Annotated[
    str, typer.Option("--data", help="Table to split: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Option of the method, e.g. rounds=5; repeatable. `fedsynth methods` lists the options."
    ),
]
TrustName = Annotated[
    str,
    typer.Option(
        "--trust",
        help="Trust model. trusted: the server adds the noise; local: each site adds all of it; secure: secure "
        "aggregation, each site adds a share; three-servers: three servers hold secret shares.",
    ),
]
TrustSet = Annotated[
    list[str] | None,
    typer.Option("--trust-set", help="Parameter of the trust model, e.g. min_honest=3; repeatable."),
]
Partition = Annotated[
    str,
    typer.Option(
        "--partition",
        help="How rows are split over sites: iid, quantity:A (unequal sizes), label-skew:A or capped-label-skew:A (the "
        "label is --target or the last column), column:NAME, values:NAME, cluster, or synthfs:B. Smaller A and B: more "
        "skew. docs/cli.md explains each.",
    ),
]
Holdout = Annotated[float, typer.Option("--holdout", help="Share of rows held out to score the result, e.g. 0.1.")]
Target = Annotated[str, typer.Option("--target", help="Column that classifiers or regressors learn to predict.")]
Workload = Annotated[
    str, typer.Option("--workload", help="Marginals to preserve, ORDER[:COUNT[:SEED]]; default: all pairs.")
]
PublicSizes = Annotated[
    bool,
    typer.Option(
        "--public-sizes", help="Treat row counts as public; otherwise part of the budget pays for a noisy count."
    ),
]
RowsPerPerson = Annotated[
    int, typer.Option("--rows-per-person", min=1, help="Most rows that one person has at a site.")
]
SitesPerPerson = Annotated[
    int, typer.Option("--sites-per-person", min=1, help="Most sites at which one person has rows.")
]
SuperLink = Annotated[str, typer.Option("--superlink", help="HOST:PORT at which sites reach the server.")]
DeviceName = Annotated[
    Device,
    typer.Option(
        "--device",
        help="Where neural networks run. auto: on a GPU if there is one, except for clipping gradients (CPU).",
    ),
]
Site = Annotated[Path | None, typer.Option("--site", help="Folder of a site, which holds its site.toml.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier command wrote to --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output, and nothing else.")]
JsonStream = Annotated[bool, typer.Option("--json", help="Write events as JSON, one object per line.")]


def say(json_: bool, facts: dict[str, Any], text: str) -> None:
    """Print facts as one JSON object, or as text."""
    print(json.dumps(facts) if json_ else text)


class JsonLines(logging.Formatter):
    """Formats a log as one JSON object to a line: time (UTC), level, logger, message, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
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


@contextmanager
def log_to(file: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Append the package's log to a file that only its owner may read (0600): messages may quote values of rows.

    Warnings go to standard error as well, as they do without a log file. Raises ``OSError``.
    """
    import fedsynth

    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    logger = logging.getLogger("fedsynth")
    level = logger.level
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        os.fchmod(descriptor, 0o600)
        written, shown = logging.StreamHandler(stream), logging.StreamHandler(sys.stderr)
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
    """Show a progress bar on standard error if that is a terminal; yields the function that advances it."""
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
    """Return scores as aligned text, synthetic beside reference."""
    width = max([len(score.name) for score in scores], default=0)
    lines = [f"{'how good it is':{width}} {'synthetic':>10} {'reference':>10}  reference is"]
    for score in scores:
        lines.append(
            f"{score.name:{width}} {score.synthetic.value:10.4f} {score.reference.value:10.4f}  {score.reference_is}"
        )
    return "\n".join(lines)


def check_text(checks: Sequence[Check]) -> str:
    """Return one line for each check, and under each that did not pass how to fix it."""
    fixes = [f"\n{'':9}-> {one.mend}" if one.mend and one.state != "ok" else "" for one in checks]
    return "\n".join(f"{one.state:8} {one.name}: {one.found}{fix}" for one, fix in zip(checks, fixes, strict=True))
