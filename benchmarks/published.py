"""Make the results of papers' tables: each by the code of one commit, cell by cell, so that they go on anywhere.

python -m benchmarks.published [NAME ...] [--jobs N] [--cost]    what is missing of these tables, or of all
python -m benchmarks.published [NAME ...] --seeds N              the same of their first N seeds
python -m benchmarks.published --quick [NAME ...]                cheap cells once more, compared with what is kept
python -m benchmarks.published --fix NAME ...                    HEAD's code makes these tables from now on

``benchmarks/papers/NAME.toml`` specifies a table, ``benchmarks/papers/commits.json`` names the commit whose code runs
its cells, and ``benchmarks/results/NAME.jsonl`` keeps them, one line each, as they finish. The code is laid out under
``bench-results``; it reads of the specification only what makes cells.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import tomli_w

import fedsynth
from benchmarks import DATA, ROOT
from benchmarks.pages import result_pages
from benchmarks.paper_pages import RESULTS, SPECIFICATIONS
from fedsynth.bench.grid import source_digest
from fedsynth.bench.results import CellRecord, CostEstimate, append, by_key, cost, line_of, read_records, unmeasured
from fedsynth.bench.spec import Case, Cell, Spec, cases, check_names, entry_named, read_spec
from fedsynth.errors import FedsynthError, number_of
from fedsynth.files import load_toml, read_text, write_whole
from fedsynth.locks import exclusive

COMMITS = SPECIFICATIONS / "commits.json"
WORK = ROOT / "bench-results"
QUICK_SECONDS = 3 * 3600
_CELLS = (
    *("seeds", "workload", "hold_out", "rows_seed", "noise_seed"),
    *("datasets", "methods", "partitions", "metrics", "defaults", "grid"),
)
_SHOWN = {"datasets": ("note",), "methods": ("role",), "metrics": ("better", "digits")}
_OF_MACHINES = ("cpu-seconds", "peak-gb")  # metrics whose figures no rerun repeats
_DEVIATIONS = 4
_POLL = 0.2  # seconds
_COMMAND = "from fedsynth.cli.app import main; main()"


class Table(NamedTuple):
    """A table's specification, its runs that are ``left``, and the records that are ``kept`` of it in ``file``.

    ``absent`` are data sets whose files are missing though runs of theirs are left. ``seeds`` is the number of seeds of
    each combination of settings (``None``: all).
    """

    name: str
    spec: Spec
    seeds: int | None
    file: Path
    kept: list[CellRecord]
    left: list[Case]
    absent: list[str]

    def __str__(self) -> str:
        """Return what is left in words, with its estimated cost."""
        estimate = str(self.cost) if self.left else "nothing left to run"
        absent = f"; {', '.join(self.absent)}: the data are missing" if self.absent else ""
        return f"{self.name}: {estimate}{absent}"

    @property
    def cost(self) -> CostEstimate:
        """The estimated cost of what is left, from kept records."""
        return cost(self.left, [*read_records(RESULTS / f"{self.name}.jsonl"), *self.kept])


def names() -> list[str]:
    """Return the names of all papers' tables."""
    return sorted(file.stem for file in SPECIFICATIONS.glob("*.toml"))


# ---------------------------------------------------------------------------------------------------------------------
# The code of a table


def commits() -> dict[str, str]:
    """Return the commit whose code makes each table, by the table's name; tables without one are left out."""
    return msgspec.json.decode(COMMITS.read_bytes(), type=dict[str, str]) if COMMITS.exists() else {}


def fix(tables: Iterable[str]) -> str:
    """Name HEAD as the commit whose code makes the tables, and return it; cells that are kept already stay.

    Raises :class:`~fedsynth.errors.FedsynthError` if the tree has changes, other than results and earlier such commits.
    """
    free = [f":!{place.relative_to(ROOT).as_posix()}" for place in (RESULTS, COMMITS)]
    if changed := _git("status", "--porcelain", "--", ".", *free):
        raise FedsynthError(f"the tree has changes, which no commit names; commit them first:\n{changed}")
    head = _git("rev-parse", "HEAD")
    write_whole(COMMITS, json.dumps(commits() | dict.fromkeys(tables, head), indent=1, sort_keys=True) + "\n")
    return head


def laid_out(commit: str) -> Path:
    """Return a folder with the repository as it is at ``commit``; it is made if it is missing.

    Raises :class:`~fedsynth.errors.FedsynthError` if this repository lacks the commit, or the folder was changed.
    """
    place = WORK / "code" / commit[:12]
    if not place.exists():
        try:
            _git("cat-file", "-e", f"{commit}^{{commit}}")
        except FedsynthError as error:
            raise FedsynthError(
                f"this copy of the repository lacks the commit {commit}; fetch it (a shallow clone: git fetch "
                "--unshallow), or let HEAD's code make the table: --fix"
            ) from error
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".{place.name}")
        shutil.rmtree(partial, ignore_errors=True)
        _git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(partial))
        _git("checkout", "--quiet", "--detach", commit, at=partial)
        partial.rename(place)
    if _git("rev-parse", "HEAD", at=place) != commit or _git("status", "--porcelain", at=place):
        raise FedsynthError(f"{place} was changed, and is no longer the code of {commit}; delete that folder")
    return place


def _git(*words: str, at: Path = ROOT) -> str:
    ran = subprocess.run(("git", "-C", str(at), *words), capture_output=True, text=True)
    if ran.returncode:
        raise FedsynthError(f"git {' '.join(words)} in {at}: {ran.stderr.strip()}")
    return ran.stdout.strip()


# ---------------------------------------------------------------------------------------------------------------------
# What is left of a table


def examined(name: str, folder: Path, file: Path, seeds: int | None = None) -> Table:
    """Return what the results in ``file`` lack of a table, with the data in ``folder``.

    A cell whose data are missing counts as finished if it is kept: nothing can be said against it.
    """
    spec = read_spec(read_text(SPECIFICATIONS / f"{name}.toml"))
    check_names(spec)
    kept = read_records(file)
    records, left, absent = by_key(kept), [], set()
    for case in cases(spec, seeds):
        lines = records.get(case.key, [])
        try:
            rest = unmeasured(case, source_digest(case.dataset, folder), lines)
        except (FedsynthError, FileNotFoundError):
            if not lines or unmeasured(case, lines[-1].data, lines):
                absent.add(case.cell.dataset)
        else:
            left += [rest] if rest else []
    return Table(name, spec, seeds, file, kept, left, sorted(absent))


def cheapest(tables: Sequence[Table], seconds: float = QUICK_SECONDS) -> list[Table]:
    """Return the tables with only those cells left that take at most ``seconds`` CPU seconds together.

    All cells of a data set and a method of a table are taken or none, in the order of the mean cost of a cell in
    ``benchmarks/results``; those that nothing is known about are left out.
    """
    prices = []
    for number, table in enumerate(tables):
        for pair in sorted({_pair(case) for case in table.left}):
            estimate = table._replace(left=[case for case in table.left if _pair(case) == pair]).cost
            if not estimate.unknown:
                prices.append((estimate.seconds / estimate.known, estimate.seconds, number, pair))
    taken: set[tuple[int, tuple[str, str]]] = set()
    for _, price, number, pair in sorted(prices):
        if price > seconds:
            break
        seconds -= price
        taken.add((number, pair))
    return [
        table._replace(left=[case for case in table.left if (number, _pair(case)) in taken])
        for number, table in enumerate(tables)
    ]


def reduced(content: Mapping[str, Any], pairs: Collection[tuple[str, str]]) -> str:
    """Return the part of a specification (its content, as TOML has it) that makes cells, as TOML.

    That is the grid of the ``pairs`` of a data set and a method, without published figures and what pages show: earlier
    code need not know their form.
    """
    made = {key: content[key] for key in _CELLS if key in content}
    for key, shown in _SHOWN.items():
        entries = made.get(key, {}).items()
        made[key] = {name: {part: entry[part] for part in entry if part not in shown} for name, entry in entries}
    grid = []
    for entry in made["grid"]:
        filled = made.get("defaults", {}) | entry
        for dataset in _listed(filled.get("data", list(made["datasets"]))):
            if methods := [method for method in _listed(filled["methods"]) if (dataset, method) in pairs]:
                grid.append(entry | {"data": dataset, "methods": methods})
    return tomli_w.dumps(made | {"grid": grid, "tables": []})


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _pair(case: Case) -> tuple[str, str]:
    return case.cell.dataset, case.cell.method


# ---------------------------------------------------------------------------------------------------------------------
# Runs


def make(table: Table, commit: str, folder: Path, jobs: int) -> bool:
    """Run what is left of a table by the code of ``commit``, and append each cell to the table's file as it finishes.

    Returns whether all cells could be run; those that could not are named on standard error. Raises
    :class:`~fedsynth.errors.FedsynthError` if the code cannot read the specification, or is not that of the commit.
    """
    code, out = laid_out(commit), _workplace(table.file)
    content, pairs = load_toml(SPECIFICATIONS / f"{table.name}.toml"), set(map(_pair, table.left))
    with _alone(out):
        write_whole(out / "cells.toml", reduced(content, pairs))
        write_whole(out / "results.jsonl", b"".join(map(line_of, table.kept)))
    command = [sys.executable, "-c", _COMMAND, "bench", out / "cells.toml", "--out", out, "--data-dir", folder]
    command += ["--jobs", jobs, *(() if table.seeds is None else ("--seeds", table.seeds))]
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=code,  # for benchmarks.module:function
        env={**os.environ, "PYTHONPATH": str(code / "src"), "FEDSYNTH_DATA": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    known = {line_of(record) for record in table.kept}
    try:
        ended = False
        while not ended:
            ended = _has_ended(process)
            known |= _adopted(out, table.file, commit, known)
    except BaseException:
        process.send_signal(signal.SIGINT)  # upon which it ends its own processes, too
        process.wait()
        raise
    if process.returncode not in (0, 8):
        raise FedsynthError(f"{table.name}: the code of {commit[:12]} could not run its cells (see above)")
    (out / "results.jsonl").unlink()
    left = examined(table.name, folder, table.file, table.seeds).left if process.returncode == 0 else []
    if any(_pair(case) in pairs for case in left):
        raise FedsynthError(
            f"{table.name}: the code of {commit[:12]} reads the specification in another way than HEAD's; let HEAD's "
            "code make the table: --fix"
        )
    return process.returncode == 0


def recover(file: Path, commit: str) -> None:
    """Append to ``file`` what a run by the code of ``commit`` finished after the process that keeps it was killed."""
    out = _workplace(file)
    with _alone(out):
        if (out / "results.jsonl").exists():
            found = [record for record in read_records(out / "results.jsonl") if _is_of(record, commit)]
            write_whole(out / "results.jsonl", b"".join(map(line_of, found)))
            _adopted(out, file, commit, {line_of(record) for record in read_records(file)})
            (out / "results.jsonl").unlink()


def _workplace(file: Path) -> Path:
    return WORK / file.parent.name / file.stem


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """A context manager within which no run writes to ``out``, whose lock every run holds."""
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out / ".lock", f"an earlier run still writes to {out}; wait for it, or end it"):
        yield


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL)
    except subprocess.TimeoutExpired:
        return False
    return True


def _adopted(out: Path, file: Path, commit: str, known: Collection[bytes]) -> set[bytes]:
    """Append to ``file`` the cells finished in ``out`` whose lines are not ``known``, and return these lines."""
    found = [record for record in read_records(out / "results.jsonl") if line_of(record) not in known]
    for record in found:
        if not _is_of(record, commit):
            raise FedsynthError(f"{record.cell} was run by the code {record.code!r}, not by that of {commit}")
    if found:
        content = file.read_bytes() if file.exists() else b""
        if not content.endswith(b"\n"):  # a last half line of a process that was killed
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content[: content.rfind(b"\n") + 1])
        with file.open("ab") as opened:
            for record in found:
                append(opened, record)
    return {line_of(record) for record in found}


def _is_of(record: CellRecord, commit: str) -> bool:
    version, _, named = record.code.partition(" ")
    return bool(version and named) and commit.startswith(named)


# ---------------------------------------------------------------------------------------------------------------------
# Reruns


def unlike(case: Case, again: CellRecord, spec: Spec, kept: Iterable[CellRecord]) -> dict[str, str]:
    """Return the figures of a cell that was run ``again`` which differ from kept ones, and in what, by their names.

    On the same commit and kernel, figures are equal to the digit. On others they lie within four standard deviations of
    the mean of the kept figures of the same settings, taken over seeds; two seeds at least are needed. CPU seconds and
    memory are not compared.
    """
    keys = {other.key for other in cases(spec) if _settings(other.cell) == _settings(case.cell)}
    found: dict[str, str] = {}
    for name, metric in case.metrics.items():
        if metric.metric in _OF_MACHINES or name not in again.metrics:
            continue
        alike = [
            record
            for record in kept
            if record.key in keys and record.data == again.data and record.metrics.get(name) == metric.digest
        ]
        same = [r for r in alike if (r.key, r.code, r.kernel) == (again.key, again.code, again.kernel)]
        for figure, value in again.of(name).items():
            seeds = {record.cell.seed: record.of(name).get(figure, float("nan")) for record in alike}
            if same:
                if str(value) != str(seen := same[-1].of(name).get(figure)):
                    found[figure] = f"{value} in place of {seen}, by the same code and kernel"
            elif len(seeds) > 1:
                of_seeds = list(seeds.values())  # NaN for figures that are not defined, which statistics.stdev refuses
                mean, deviation = float(np.mean(of_seeds)), float(np.std(of_seeds, ddof=1))
                slack = _DEVIATIONS * deviation + 1e-9 * abs(mean)
                if not (abs(value - mean) <= slack or str(value) == str(mean)):
                    found[figure] = f"{value:.6g} in place of {mean:.6g} ± {deviation:.2g} over {len(seeds)} seeds"
    return found


def compared(table: Table) -> str:
    """Return in words how cells that were run again compare with those in ``benchmarks/results``."""
    kept = read_records(RESULTS / f"{table.name}.jsonl")
    known, again = {_settings(record.cell) for record in kept}, by_key(read_records(table.file))
    ran = [(case, again[case.key][-1]) for case in cases(table.spec, table.seeds) if case.key in again]
    beside = [(case, record) for case, record in ran if _settings(case.cell) in known]
    lines = [
        f"  {case.cell}: {name}: {why}"
        for case, record in beside
        for name, why in unlike(case, record, table.spec, kept).items()
    ]
    agreed = f"{number_of(len(lines), 'figure')} differ:" if lines else "all figures agree"
    return "\n".join(
        [f"{table.name}: {number_of(len(ran), 'cell')} run again, {len(beside)} beside kept ones; {agreed}", *lines]
    )


def _settings(cell: Cell) -> Cell:
    return msgspec.structs.replace(cell, seed=0)


# ---------------------------------------------------------------------------------------------------------------------
# The command


def draw() -> int:
    """Write the pages of results that have changed into ``docs/results``, and return their number."""
    changed = 0
    for name, text in result_pages().items():
        place = ROOT / "docs" / name
        if not place.exists() or read_text(place) != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, text)
            changed += 1
    return changed


def run(tables: Sequence[str], *, quick: bool, only_cost: bool, seeds: int | None, jobs: int, folder: Path) -> bool:
    """Do what the command line says, and return whether nothing is left of what was asked for."""
    fixed, seeds = commits(), 1 if quick else seeds
    places = {name: (WORK / "quick" if quick else RESULTS) / f"{name}.jsonl" for name in tables}
    for name in set(fixed) & set(places):
        recover(places[name], fixed[name])
    found = [examined(name, folder, file, seeds) for name, file in places.items()]
    if quick:  # chosen by all cells, so that a stopped run goes on with the same ones
        chosen = cheapest([examined(name, folder, WORK / "quick" / "none", seeds) for name in places])
        pairs = [set(map(_pair, table.left)) for table in chosen]
        found = [
            table._replace(left=[case for case in table.left if _pair(case) in wanted])
            for table, wanted in zip(found, pairs, strict=True)
        ]
    print(*found, sep="\n")
    print(
        f"in all about {sum(table.cost.seconds for table in found) / 3600:.1f} CPU hours, as far as known", flush=True
    )
    whole = True
    if any(table.absent for table in found):
        whole = False
        print(f"missing data were looked for in {folder}; FEDSYNTH_DATA names another folder")
    if unfixed := [table.name for table in found if table.left and table.name not in fixed]:
        whole = False
        print(f"no commit is fixed whose code makes {', '.join(unfixed)}: --fix takes HEAD", flush=True)
    if only_cost:
        return whole
    for table in found:
        if table.left and table.name in fixed:
            if _git("status", "--porcelain", "--", str(SPECIFICATIONS / f"{table.name}.toml")):
                raise FedsynthError(f"benchmarks/papers/{table.name}.toml has changes; commit them first")
            print(f"{table.name}, by the code of {fixed[table.name][:12]}", flush=True)
            whole &= make(table, fixed[table.name], folder, jobs)
    if quick:
        print(*map(compared, found), sep="\n")
    else:
        print(f"{number_of(draw(), 'page')} drawn anew in docs/results")
    return whole


def main() -> None:
    """Make what is missing of papers' tables; the exit code is 1 if something is left then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="NAME", help="tables, by the names of their specifications")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--seeds", type=int, metavar="N", help="only the first N seeds, for a first look")
    parser.add_argument("--cost", action="store_true", help="say what is left and about how long it takes, and stop")
    parser.add_argument("--quick", action="store_true", help="run one seed of cheap cells again: 3 CPU hours at most")
    parser.add_argument("--fix", action="store_true", help="let HEAD's code make these tables from now on")
    given = parser.parse_args()
    if hasattr(os, "nice"):
        os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C, it ends the runs as well
    try:
        if not Path(fedsynth.__file__).is_relative_to(ROOT):
            raise FedsynthError(f"fedsynth was imported from {fedsynth.__file__}; set PYTHONPATH={ROOT / 'src'}")
        for name in given.tables:
            entry_named("table", name, dict.fromkeys(names()))
        if given.fix:
            if not given.tables:
                raise FedsynthError("--fix needs the names of tables")
            print(f"{fix(given.tables)} makes {', '.join(given.tables)}: commit {COMMITS.relative_to(ROOT)}")
            return
        chosen = given.tables or names()
        if given.seeds is not None and given.seeds < 1:
            raise FedsynthError("--seeds must be at least 1")
        whole = run(
            chosen,
            quick=given.quick,
            only_cost=given.cost,
            seeds=given.seeds,
            jobs=given.jobs,
            folder=DATA.resolve(),
        )
    except FedsynthError as error:
        sys.exit(f"published: {error}")
    except KeyboardInterrupt:
        print("stopped; finished cells are kept, and the same command goes on", file=sys.stderr)
        sys.exit(130)
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
