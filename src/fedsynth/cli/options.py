"""What every command shares: options, the log file, a progress bar, and output for people or for programs.

The text of an option that several commands have is here or in :class:`~fedsynth.runs.job.Job`, once: one name, one
meaning.
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
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from fedsynth.cli.output import harmless, tell
from fedsynth.errors import explained
from fedsynth.files import load_toml
from fedsynth.privacy.device import Device
from fedsynth.runs.job import declared_in
from fedsynth.text import table

if TYPE_CHECKING:
    from fedsynth.deploy.host.checks import PreflightCheck


class Shared(msgspec.Struct, frozen=True):
    """Options that several commands have beside the settings of a job: a parameter of such a name has the text here."""

    json: bool = False
    """Print the result to standard output as JSON, and nothing else. Without it: text for people."""
    force: bool = False
    """Replace what an earlier command wrote to --out. Without it, the command stops if --out exists."""
    out: Path = Path()
    """Folder for the results, written whole or not at all; it must not exist yet, except with --force."""
    device: Device = "auto"
    """Where neural networks are computed: on cpu, on cuda (a GPU), or auto: as the variable FEDSYNTH_DEVICE says,
    without it on a GPU if there is one, except for sums of clipped gradients (DP-SGD), which stay on the CPU. It
    changes nothing for methods without networks, but cuda is refused for any method where there is no GPU or no
    PyTorch."""
    exchange: Path | None = None
    """Folder, which must exist, in which requests and replies are exchanged as files: shared by server and sites, or
    carried between them. Without it, Flower sends them over the network."""
    once: bool = False
    """With --exchange: do what can be done now, say which files to carry where, and exit. Without it, the command waits
    for further files."""
    fingerprint: tuple[str, ...] = ()
    """Fingerprint of a received file (30 digits in groups, hence in quotes), as it was read out to you by phone: a file
    with another fingerprint is refused. Repeat it for several files. Without it, you are shown each fingerprint and
    asked to compare it."""
    folder: Path = Path()
    """Folder of the federation, written by `fedsynth deploy init`."""
    schema: Path = Path()
    """Schema file (TOML): name, kind and public bounds or categories of each column, as all sites agreed; `fedsynth
    schema draft` makes a first one."""
    questions: Path | None = None
    """TOML file with declared questions and criteria: sections [[question]] and [[criterion]], cuts, clips and
    answer_share. They get a part of the budget and are answered with intervals; docs/answers.md lists the kinds."""
    connection: str = "federation"
    """Name under which Flower's config.toml (in the folder FLWR_HOME, else FOLDER/server) lists the SuperLink, Flower's
    server program."""


def declared_by(file: Path | None) -> dict[str, Any]:
    """Return the settings of a job that a file with declared questions gives; nothing without a file.

    Raises :class:`~fedsynth.errors.FedsynthError` for a file that is no TOML or has other entries.
    """
    return {} if file is None else declared_in(load_toml(file), f"{file}: ")


def say(json_: bool, facts: dict[str, Any], text: str) -> None:
    """Print ``facts`` as a JSON object if ``json_`` is true, else ``text``."""
    if json_:
        print(json.dumps(facts))
    else:
        tell(text)


def confirm(question: str) -> bool:
    """Ask a question on the terminal; return whether the answer was yes. At the end of the input it is no."""
    try:
        return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


class _Lines(logging.Formatter):
    """A formatter of log records as lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class JsonLines(logging.Formatter):
    """A formatter of log records as JSON lines: time (UTC), level, logger, message, and traceback if there is one."""

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
    written.setFormatter(JsonLines() if json_ else _Lines("%(asctime)s %(levelname)s %(message)s"))
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
    """A context manager during which fedsynth's log is appended to ``file``, which only its owner may read (0600).

    The first line has the versions and the command's ``arguments``. Messages may quote values of rows. Warnings go to
    standard error as well, as they do without a log file, but those with a traceback do not. Raises ``OSError`` if the
    file cannot be written.
    """
    import fedsynth

    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    logger = logging.getLogger("fedsynth")
    level = logger.level
    # Unbuffered: what a full disk does not take must not be written again, and fail again, when the file is closed.
    with io.TextIOWrapper(os.fdopen(descriptor, "ab", buffering=0), encoding="utf-8", write_through=True) as stream:
        os.chmod(file, 0o600)  # also a file that was there
        written, shown = _LogFile(stream, file), logging.StreamHandler(sys.stderr)
        shown.setFormatter(_Lines())
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


def score_table(scores: list[Any]) -> str:
    """Return scores (:class:`~fedsynth.evaluation.score.Score`) as a table of text, each beside that of real rows."""
    numbers = [("how good it is", "synthetic", "reference")]
    numbers += [(one.name, f"{one.synthetic.value:.4f}", f"{one.reference.value:.4f}") for one in scores]
    meanings = ["reference is", *(one.reference_is for one in scores)]
    return "\n".join(f"{line}  {is_}" for line, is_ in zip(table(numbers).splitlines(), meanings, strict=True))


def redrawn_text(share: float) -> str:
    """Return a line on the share of rows that were drawn again since they broke a rule; empty if there are none."""
    return f"{share:.1%} of the rows broke a rule and were drawn again" if share else ""


def check_text(checks: Sequence[PreflightCheck]) -> str:
    """Return checks of a machine or site as lines of text: state, name, finding, and how to fix what did not pass."""
    fixes = [f"\n{'':9}-> {one.mend}" if one.mend and one.state != "ok" else "" for one in checks]
    found = [one.found.replace("\n", f"\n{'':9}") for one in checks]
    lines = zip(checks, found, fixes, strict=True)
    return "\n".join(f"{one.state:8} {one.name}: {said}{fix}" for one, said, fix in lines)
