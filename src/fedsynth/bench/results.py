"""Results of benchmarks: a file of JSON lines, one for each cell that was run, with what its figures depend on.

A metric that a specification gains later needs the fit again, and its figures are a further line of the same cell.
Nothing that is measured otherwise is mixed: a line counts for a cell only with the same key, data and metric.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

import fedsynth
from fedsynth.bench.spec import Case, Cell
from fedsynth.errors import FedsynthError, number_of
from fedsynth.files import write_whole
from fedsynth.locks import exclusive

RESULTS = "results.jsonl"
_UNENDING = ("nan", "inf", "-inf")  # figures that JSON cannot hold as numbers


class CellRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a file of results: the figures of one cell.

    ``key`` is :attr:`~fedsynth.bench.spec.Case.key` and ``data`` the digest of the rows' source; "" where it is not
    known. ``metrics`` has the digest of each measured metric by its name, and ``figures`` the numbers, or "nan", "inf"
    and "-inf". ``seconds`` are the CPU seconds of all that the cell took. ``code`` names the version and commit of
    fedsynth and ``kernel`` that of OpenBLAS, on which digits depend; "" for lines that were made before these were
    kept, whose seconds are wall time. A cell that failed has an ``error`` in place of figures.
    """

    key: str
    data: str
    cell: Cell
    figures: dict[str, float | str] = {}
    metrics: dict[str, str] = {}
    seconds: float = 0.0
    code: str = ""
    kernel: str = ""
    error: str = ""

    def of(self, metric: str) -> dict[str, float]:
        """Return the figures of one metric by their names: its own, or "metric: part"."""
        named = {name: value for name, value in self.figures.items() if name.partition(": ")[0] == metric}
        return {name: float(value) for name, value in named.items()}


class ResultLine(NamedTuple):
    """The ``value`` of the figure ``metric`` of one cell."""

    cell: Cell
    metric: str
    value: float


def recorded(figures: Mapping[str, float]) -> dict[str, float | str]:
    """Return figures as a record holds them."""
    return {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}


def read_records(file: Path) -> list[CellRecord]:
    """Return the records of all cells in a file that did not fail; none if it is missing. A last half line is left out.

    Raises :class:`~fedsynth.errors.FedsynthError` if the file is not one of results.
    """
    content = file.read_bytes() if file.exists() else b""
    found = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            record = msgspec.json.decode(line, type=CellRecord)
        except msgspec.DecodeError as error:
            raise FedsynthError(
                f"{file}, line {number}: not a result of this version ({error}); choose another --out"
            ) from error
        if any(isinstance(value, str) and value not in _UNENDING for value in record.figures.values()):
            raise FedsynthError(f"{file}, line {number}: a figure is no number; delete the line, and run again")
        if not record.error:
            found.append(record)
    return found


@contextmanager
def open_results(folder: Path) -> Iterator[tuple[BinaryIO, list[CellRecord]]]:
    """A context manager that yields the results in ``folder``, open to append, and its records (:func:`read_records`).

    Half lines and failed cells are removed first. Raises :class:`~fedsynth.errors.FedsynthError` while another process
    writes there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / ".lock", f"another run writes to {folder}; wait for it, or choose another --out"):
        kept = read_records(folder / RESULTS)
        write_whole(folder / RESULTS, b"".join(map(line_of, kept)))
        with (folder / RESULTS).open("ab") as file:
            yield file, kept


def append(file: BinaryIO, record: CellRecord) -> None:
    """Append a record, and return when it is on the disk."""
    file.write(line_of(record))
    file.flush()
    os.fsync(file.fileno())


def line_of(record: CellRecord) -> bytes:
    """Return a record as the line of a file."""
    return msgspec.json.encode(record) + b"\n"


def figures_of(case: Case, records: Iterable[CellRecord]) -> Iterator[ResultLine]:
    """Yield the figures that records of a case's key have of its metrics, in their order; the last record counts."""
    measured: dict[str, dict[str, float]] = {}
    for record in records:
        if record.key == case.key:
            measured |= {name: record.of(name) for name in _as_wanted(case, record)}
    for name in case.metrics:
        for figure, value in measured.get(name, {}).items():
            yield ResultLine(case.cell, figure, value)


def unmeasured(case: Case, data: str, records: Iterable[CellRecord]) -> Case | None:
    """Return what is left to run of a case whose rows' source has the digest ``data``: ``None`` if nothing is."""
    done = {
        name
        for record in records
        if record.key == case.key and record.data == data
        for name in _as_wanted(case, record)
    }
    left = {name: metric for name, metric in case.metrics.items() if name not in done}
    return msgspec.structs.replace(case, metrics=left) if left else None


def _as_wanted(case: Case, record: CellRecord) -> list[str]:
    wanted = {name: metric.digest for name, metric in case.metrics.items()}
    return [name for name, digest in record.metrics.items() if wanted.get(name) == digest]


def by_key(records: Iterable[CellRecord]) -> dict[str, list[CellRecord]]:
    """Return records by their key, in their order."""
    found: dict[str, list[CellRecord]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# What digits and costs depend on


def pin() -> None:
    """Let numerical libraries that are not loaded yet use one thread and, on x86-64, the kernel of every such machine.

    Digits depend on both. Processes that are started later have the same; this one has not once NumPy is loaded.
    """
    os.environ |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    if platform.machine().lower() in ("x86_64", "amd64"):
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"


@cache
def kernel() -> str:
    """Return OpenBLAS's kernel in this process, such as "Haswell"; "" if another library is loaded."""
    from threadpoolctl import threadpool_info

    found = {one["architecture"] for one in threadpool_info() if one.get("internal_api") == "openblas"}
    return "+".join(sorted(found))


@cache
def code() -> str:
    """Return version and commit of the package that was imported, as "0.1.0 1a2b3c4d5e6f"; "+" marks a changed tree."""
    place = Path(fedsynth.__file__).parent
    git = ("git", "-C", str(place))
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return fedsynth.__version__  # not a checkout
    return f"{fedsynth.__version__} {commit.stdout.strip()}{'+' if changed.strip() else ''}"


class CostEstimate(NamedTuple):
    """What cells will cost: CPU ``seconds`` of the ``known`` ones, and how many are ``unknown``."""

    seconds: float
    known: int
    unknown: int

    def __str__(self) -> str:
        """Return it in words."""
        if self.unknown and not self.known:
            return f"{number_of(self.unknown, 'cell')}, nothing like which was run before"
        hours = self.seconds / 3600
        spent = f"{hours:.1f} CPU hours" if hours >= 1 else f"{self.seconds / 60:.1f} CPU minutes"
        others = f"; nothing like {number_of(self.unknown, 'other')} was run before" if self.unknown else ""
        return f"about {spent} for {number_of(self.known, 'cell')}{others}"


def cost(cases: Sequence[Case], records: Iterable[CellRecord]) -> CostEstimate:
    """Estimate what cases will cost from records of the same settings with other seeds, or of a data set and method."""
    by_settings: dict[tuple[object, ...], list[float]] = {}
    for record in records:
        for settings in _alike(record.cell):
            by_settings.setdefault(settings, []).append(record.seconds)
    seconds, known = 0.0, 0
    for case in cases:
        spent = next((by_settings[one] for one in _alike(case.cell) if one in by_settings), None)
        if spent is not None:
            seconds, known = seconds + sum(spent) / len(spent), known + 1
    return CostEstimate(seconds, known, len(cases) - known)


def _alike(cell: Cell) -> tuple[tuple[object, ...], ...]:
    settings = msgspec.structs.astuple(msgspec.structs.replace(cell, seed=0))
    return settings, (cell.dataset, cell.method, cell.arm), (cell.dataset, cell.method)
