"""Results of papers' tables: made by the code of one commit, kept cell by cell, and made again to the same digits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from benchmarks import ROOT
from benchmarks.paper_pages import PAPERS, RESULTS, SPECIFICATIONS
from benchmarks.published import cheapest, compared, examined, names, reduced, unlike
from tests.command import fedsynth
from tests.public_data import ABSENT, FOLDER

from fedsynth.bench.floors import FLOORS
from fedsynth.bench.grid import source_digest
from fedsynth.bench.results import CellRecord, by_key, line_of, read_records, unmeasured
from fedsynth.bench.spec import AXES, Case, Spec, cases, data_file, read_spec
from fedsynth.errors import FedsynthError
from fedsynth.files import load_toml

SPEC = """
title = "Tiny"
section = "tiny"
text = "A text of the page."
seeds = 3

[datasets.visits]
file = "demo:rand-hie"
rows = 300
drop = ["physical_limitation"]
schema = { bins = 4 }
split = { test_share = 0.25 }
note = "made up"

[defaults]
delta = 1e-6
sites = 2
trust = "trusted"

[[grid]]
methods = ["oneshot", "all"]
epsilon = [1, 2]

[methods.oneshot]
options = { bins_share = 0.0 }

[methods.all]
method = "real rows"

[metrics.error]
metric = "workload-error"
better = "lower"
digits = 4

[metrics.seconds]
metric = "cpu-seconds"

[[published]]
table = "Table 1"
system = "OneShot"
by = ["oneshot"]
axes = ["dataset", "epsilon"]
values = ["error"]

[published.figures.visits]
1 = [0.5]
2 = [0.4]

[[tables]]
"""


def git(place: Path, *words: str) -> str:
    about = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ("git", "-C", place, *about, *words), capture_output=True, text=True, check=True
    ).stdout.strip()


def published(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command in a copy of the repository, as the leader of a group of processes."""
    command = [sys.executable, "-m", "benchmarks.published", *words]
    environment = {**os.environ, "PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def said(place: Path, *words: str, code: int = 0) -> str:
    process = published(place, *words)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == code, output
    return output


def without_times(lines: list[bytes]) -> list[str]:
    found = []
    for line in lines:
        record = json.loads(line)
        del record["seconds"], record["figures"]["seconds"]
        found.append(json.dumps(record, sort_keys=True))
    return sorted(found)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the code as it is here, and one small table of a paper."""
    place = tmp_path_factory.mktemp("repository") / "fedsynth"
    for name in ("src", "benchmarks"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / ".gitignore", place)
    papers = place / "benchmarks" / "papers"
    for file in (*papers.glob("*.toml"), *(place / "benchmarks" / "results").glob("*.jsonl")):
        file.unlink()
    for paper in PAPERS:  # their pages are quickly drawn
        (papers / f"{paper}.toml").write_text(f'paper = "{paper}"\n{SPEC}')
    (papers / "tiny.toml").write_text(f'paper = "thesis"\n{SPEC}')
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", "All of it")
    return place


def test_a_table_is_made_by_its_commit_and_goes_on_wherever_it_was_stopped(repository: Path, tmp_path: Path) -> None:
    results = repository / "benchmarks" / "results" / "tiny.jsonl"
    assert "no commit is fixed whose code makes tiny" in (left := said(repository, "tiny", "--cost", code=1))
    assert "tiny: 9 cells, nothing like which was run before" in left
    assert "tiny: 3 cells, nothing like which was run before" in said(
        repository, "tiny", "--cost", "--seeds", "1", code=1
    )

    (repository / "src" / "fedsynth" / "note.py").write_text("")
    assert "the tree has changes" in said(repository, "--fix", "tiny", code=1)
    (repository / "src" / "fedsynth" / "note.py").unlink()
    commit = git(repository, "rev-parse", "HEAD")
    assert commit in said(repository, "--fix", "tiny")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "The commit of the table")

    # Later code is not what runs, though it is what the command is started from.
    with (repository / "src" / "fedsynth" / "bench" / "floors.py").open("a") as later:
        later.write("\nraise RuntimeError('the code of another commit')\n")
    assert "the code of another commit" in said(repository, "tiny", "--cost", code=1)
    git(repository, "checkout", "--quiet", "src")
    with (repository / "src" / "fedsynth" / "evaluation" / "metrics.py").open("a") as later:
        later.write("\nLATER = 'a line that changes nothing that is read here'\n")

    process = published(repository, "tiny")
    until = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < until and not (results.exists() and results.read_bytes()):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    stopped = results.read_bytes().splitlines()
    assert 0 < len(stopped) < 9, "the command was killed in the middle"
    results.write_bytes(results.read_bytes() + stopped[0][: len(stopped[0]) // 2])  # and in a line

    elsewhere = tmp_path / "clone"
    git(repository, "commit", "--quiet", "--all", "--message", "Later code")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "What is finished")
    git(tmp_path, "clone", "--quiet", str(repository), str(elsewhere))
    for place in (repository, elsewhere):
        assert "drawn anew" in said(place, "tiny", "--jobs", "2" if place == elsewhere else "1")
    made = {
        place: (place / "benchmarks/results/tiny.jsonl").read_bytes().splitlines() for place in (repository, elsewhere)
    }
    assert made[elsewhere][: len(stopped)] == stopped, "nothing is run again in a clone"
    assert len(made[repository]) == 9
    assert without_times(made[repository]) == without_times(made[elsewhere])
    records = read_records(results)
    assert {record.code.rpartition(" ")[2] for record in records} == {commit[:12]}

    # A finished table is left as it is; a cell that is deleted is made again.
    before = results.read_bytes()
    began = time.monotonic()
    assert "nothing left to run" in (output := said(repository, "tiny"))
    assert "0 pages drawn anew" in output
    assert time.monotonic() - began < 60
    assert results.read_bytes() == before
    results.write_bytes(b"".join(line + b"\n" for line in made[repository] if line != made[repository][4]))
    assert "about" in said(repository, "tiny")
    assert without_times(results.read_bytes().splitlines()) == without_times(made[repository])

    # One seed is run again, beside what is kept.
    results_before = results.read_bytes()
    assert "tiny: 3 cells run again, 3 beside kept ones; all figures agree" in said(repository, "tiny", "--quick")
    assert results.read_bytes() == results_before

    # Changed code and specifications are refused, and a commit that is not at hand is named.
    results.unlink()
    code = repository / "bench-results" / "code" / commit[:12]
    (code / "src" / "fedsynth" / "note.py").write_text("")
    assert f"is no longer the code of {commit}" in said(repository, "tiny", code=1)
    spec = elsewhere / "benchmarks" / "papers" / "tiny.toml"
    spec.write_text(spec.read_text().replace("rows = 300", "rows = 200"))
    assert "tiny.toml has changes; commit them first" in said(elsewhere, "tiny", code=1)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(shallow))
    (shallow / "benchmarks" / "results" / "tiny.jsonl").unlink()
    assert f"lacks the commit {commit}" in said(shallow, "tiny", code=1)


def test_earlier_code_is_handed_only_what_makes_cells() -> None:
    for file in sorted(SPECIFICATIONS.glob("*.toml")):
        spec, content = read_spec(file.read_text()), load_toml(file)
        every = cases(spec)
        pairs = {(case.cell.dataset, case.cell.method) for case in every}
        left = read_spec(reduced(content, pairs))
        assert {case.key: case.metrics for case in cases(left)} == {case.key: case.metrics for case in every}
        assert (left.text, left.published, left.tables) == ("", (), ())
        some = sorted(pairs)[:2]
        assert {case.key for case in cases(read_spec(reduced(content, some)))} == {
            case.key for case in every if (case.cell.dataset, case.cell.method) in some
        }


def record_of(case: Case, figures: dict[str, float], code: str = "0 a", seconds: float = 1.0) -> CellRecord:
    metrics = {name: metric.digest for name, metric in case.metrics.items()}
    return CellRecord(
        key=case.key,
        data="d",
        cell=case.cell,
        figures={**figures},
        metrics=metrics,
        code=code,
        kernel="k",
        seconds=seconds,
    )


def test_a_rerun_is_equal_to_the_digit_by_the_same_code_and_else_within_four_deviations() -> None:
    spec = read_spec(SPEC)
    alike = [case for case in cases(spec) if (case.cell.method, case.cell.epsilon) == ("oneshot", "1")]
    kept = [record_of(case, {"error": 0.1 + 0.01 * case.cell.seed, "seconds": 1.0}) for case in alike]  # .11 ± .01
    first = alike[0]
    assert not unlike(first, record_of(first, {"error": 0.1, "seconds": 99.0}), spec, kept)
    assert unlike(first, record_of(first, {"error": 0.1000001, "seconds": 1.0}), spec, kept).keys() == {"error"}
    assert not unlike(first, record_of(first, {"error": 0.149, "seconds": 1.0}, "0 b"), spec, kept)
    assert unlike(first, record_of(first, {"error": 0.151, "seconds": 1.0}, "0 b"), spec, kept).keys() == {"error"}
    assert unlike(first, record_of(first, {"error": float("nan"), "seconds": 1.0}, "0 b"), spec, kept)
    undefined = [record_of(case, {"error": float("nan"), "seconds": 1.0}) for case in alike]
    assert not unlike(first, record_of(first, {"error": float("nan"), "seconds": 1.0}, "0 b"), spec, undefined)


def test_quick_takes_the_cheapest_cells_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(SPEC)
    monkeypatch.setattr("benchmarks.published.SPECIFICATIONS", tmp_path)
    monkeypatch.setattr("benchmarks.published.RESULTS", tmp_path)
    every = cases(read_spec(SPEC))
    prices = {"all": 1.0, "oneshot": 10.0}
    kept = [record_of(case, {"error": 0.0, "seconds": 0.0}, seconds=prices[case.cell.method]) for case in every]
    (tmp_path / "tiny.jsonl").write_bytes(b"".join(map(line_of, kept[-3:])))
    table = examined("tiny", tmp_path, tmp_path / "none.jsonl", seeds=1)
    assert len(table.left) == 3
    assert [case.cell.method for case in cheapest([table], 5.0)[0].left] == ["all"]
    assert [len(part.left) for part in cheapest([table], 21.0)] == [3]
    assert not cheapest([table], 0.5)[0].left
    (tmp_path / "tiny.jsonl").write_bytes(b"")
    assert not cheapest([table], 1e9)[0].left, "nothing is known about their cost"
    assert "0 cells run again" in compared(table)


def test_results_stay_small_enough_for_a_repository() -> None:
    assert sum(file.stat().st_size for file in RESULTS.iterdir()) <= 4_000_000


def cheapest_kept(spec: Spec, kept: list[CellRecord]) -> Case:
    """Return the cheapest cell whose settings were run with several seeds; one of a method, if there is one."""
    records = by_key(kept)
    runs = {
        case.key: case
        for case in cases(spec)
        if (lines := records.get(case.key)) and unmeasured(case, lines[-1].data, lines) is None
    }
    settings = [msgspec.structs.replace(case.cell, seed=0) for case in runs.values()]
    several = [case for case in runs.values() if settings.count(msgspec.structs.replace(case.cell, seed=0)) > 1]
    if not several:
        pytest.skip("no results of several seeds are kept of this table's cells as they are specified now")
    return min(several, key=lambda case: (case.method.method in FLOORS, sum(r.seconds for r in records[case.key])))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_cheap_cell_of_each_table_is_made_again(name: str, tmp_path: Path) -> None:
    spec, kept = read_spec((SPECIFICATIONS / f"{name}.toml").read_text()), read_records(RESULTS / f"{name}.jsonl")
    if not kept:
        pytest.skip(f"no results are kept of {name}")
    case = cheapest_kept(spec, kept)
    try:
        data_file(case.dataset, FOLDER)
    except FedsynthError:
        pytest.skip(f"{ABSENT}{case.dataset.file}")
    cell = ",".join(f"{axis}={getattr(case.cell, axis)}" for axis in AXES)
    (tmp_path / "cell.toml").write_text(
        reduced(load_toml(SPECIFICATIONS / f"{name}.toml"), {(case.cell.dataset, case.cell.method)})
    )
    ran = fedsynth(
        "bench", tmp_path / "cell.toml", "--only", cell, "--data-dir", FOLDER, "--out", tmp_path, cwd=ROOT, timeout=1800
    )
    assert ran.returncode == 0, ran.stderr
    (again,) = read_records(tmp_path / "results.jsonl")
    assert again.key == case.key
    of_data = [record for record in kept if record.data == source_digest(case.dataset, FOLDER)]
    if not of_data:
        pytest.skip("the kept results are of other data")
    assert not unlike(case, again, spec, of_data)
