"""Benchmarks as a user runs them: one specification, finished cells that stay finished, pages, and what goes wrong."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pandas as pd
import pytest
from benchmarks import specifications
from benchmarks.pages import PROGRAMS, result_pages, sections

import fedsynth
from fedsynth.bench.floors import FLOORS
from fedsynth.bench.grid import _made_frame, _source_digest, measure, source_digest, training_and_test
from fedsynth.bench.metrics import MEASURES, FinishedRun, find_metric
from fedsynth.bench.results import CellRecord, cost, line_of, read_records, recorded
from fedsynth.bench.spec import Case, cases, check_names, read_spec
from fedsynth.bench.verdicts import judge_claim
from fedsynth.cli import app as cli
from fedsynth.data.partition import CappedLabelSkew, parse_partition
from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.evaluation.metrics import METRICS
from fedsynth.schema import Categorical, Numeric, Schema

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = """
title = "Small"
section = "small"
seeds = 2

[datasets.people]
file = "people.csv"
target = "sick"
schema = { bins = 8 }
split = { test_share = 0.25 }
note = "made up"

[defaults]
delta = 1e-6
sites = 3

[[grid]]
methods = ["oneshot", "naive"]
epsilon = [1, 4.5]

[[grid]]
methods = ["real rows"]
sites = 1
seeds = 1
metrics = ["queries"]

[methods.oneshot]
options = { bins_share = 0.0 }

[methods.aim]
options = { bins_share = 0.0 }

[methods.naive]
method = "fednaivebayes"
options = { rate = 0.5 }

[metrics.queries]
metric = "range-queries"
options = { queries = 50 }
better = "lower"
digits = 4

[metrics.likelihood]
better = "lower"

[[published]]
table = "Table 1"
system = "their method"
by = ["oneshot"]
axes = ["dataset", "epsilon"]
values = ["queries"]

[published.figures.people]
1 = [0.123]
"4.5" = [1e-9]

[[tables]]
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small mixed table, and a module of metrics, one of which kills its process."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, 400)
    sick = np.where(rng.random(400) < age / 120, "yes", "no")
    region = rng.choice(["north", "south", ""], 400)
    pd.DataFrame({"age": age, "pay": age * 10 + rng.normal(0, 50, 400), "region": region, "sick": sick}).to_csv(
        folder / "people.csv", index=False
    )
    (folder / "own.py").write_text(
        "import os, time\n\n"
        "def rows(run):\n    (site,), column = run.sites, run.real.schema.index('sick')\n"
        "    (value,) = set(site.codes[column])\n"
        "    of = {'seen': site, 'real': run.real, 'made': run.synthetic}\n"
        "    return {**{name: len(table) for name, table in of.items()}, 'sick': value}\n\n"
        "def die(run):\n    os._exit(1) if run.seed == 1 else None\n    return {'seed': run.seed}\n\n"
        "def pause(run):\n    time.sleep(float(os.environ.get('PAUSE', 0)))\n    return 0.0\n"
    )
    return folder


def test_a_domain_keeps_columns_of_one_value(tmp_path):
    pd.DataFrame({"a": [0, 1, 2, 1], "same": 0}).to_csv(tmp_path / "codes.csv", index=False)
    (tmp_path / "domain.json").write_text('{"a": 3, "same": 2}')
    text = SPEC.replace("people.csv", "codes.csv").replace("sick", "a").replace("bins = 8", 'domain = "domain.json"')
    train, test = training_and_test(read_spec(text), "people", tmp_path)
    assert test is not None
    assert train.schema.sizes == test.schema.sizes == (3, 2)


def test_columns_of_a_parquet_file_have_its_types_and_those_of_a_csv_file_are_guessed(tmp_path):
    people = pd.DataFrame({"day": ["2020-01-01", "2020-02-02", "?"] * 4, "age": ["31", "40", "52"] * 4})
    people["sick"] = ["yes", "no"] * 6
    people.to_parquet(tmp_path / "people.parquet")
    people.drop(columns="day").to_csv(tmp_path / "people.csv", index=False)
    text = SPEC.replace("bins = 8", "bins = 8, categories = 2")
    typed, _ = training_and_test(read_spec(text.replace("people.csv", "people.parquet")), "people", tmp_path)
    guessed, _ = training_and_test(read_spec(text), "people", tmp_path)
    day, age, sick = typed.schema.asked
    assert (day, age) == (Categorical("day", ("2020-01-01", "2020-02-02", "?")), Categorical("age", ("31", "40", "52")))
    assert guessed.schema.asked[1:] == (sick,)
    assert isinstance(guessed.schema.asked[0], Numeric)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command line in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedsynth", "bench", *map(str, arguments)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def lines(out: Path) -> list[dict[str, str]]:
    """Return a line for each figure, with the settings of its run, its key and the error."""
    found = []
    for text in (out / "results.jsonl").read_text().splitlines():
        record = json.loads(text)
        about = {"cell": record["key"]} | {name: str(value) for name, value in record["cell"].items()}
        figures = record.get("figures") or {"error": record.get("error")}
        found += [about | {"metric": name, "value": str(value)} for name, value in figures.items()]
    return found


def figures(out: Path) -> list[tuple[str, ...]]:
    return sorted(tuple(line.values()) for line in lines(out))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    out = tmp_path_factory.mktemp("finished")
    (out / "small.toml").write_text(SPEC)
    page = out / "page-of-docs.md"
    page.write_text("# Ours\n\n<!-- begin small -->\nold\n<!-- end small -->\n\nbelow\n")
    with pytest.MonkeyPatch.context() as patch:
        arguments = (out / "small.toml", "--data-dir", data, "--out", out, "--jobs", 1, "--page", page)
        assert run(patch, *arguments) == 0
    return out


def changed(finished: Path, tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = (finished / "small.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "small.toml").write_text(text)
    return tmp_path / "small.toml"


def one_cell(**parts: Any) -> Case:
    (found,) = (
        case for case in cases(read_spec(SPEC)) if all(getattr(case.cell, axis) == part for axis, part in parts.items())
    )
    return found


def test_a_grid_is_run_and_measured_cell_by_cell(finished: Path, data: Path) -> None:
    found = lines(finished)
    cells = {tuple(line[axis] for axis in ("method", "epsilon", "sites", "arm", "seed")) for line in found}
    floor = ("real rows", "", "1", "", "0")
    federated = {
        (method, epsilon, "3", "federated", seed)
        for method in ("oneshot", "naive")
        for epsilon in ("1", "4.5")
        for seed in ("0", "1")
    }
    assert cells == {floor, *federated}
    assert len({line["cell"] for line in found}) == 9
    by_metric = Counter(line["metric"] for line in found)
    assert by_metric == {"queries": 9, "likelihood: NLL": 8, "likelihood: floored": 8}
    alone = measure(one_cell(method="naive", epsilon="4.5", seed=1), data)
    kept = {line["metric"]: float(line["value"]) for line in found if line["cell"] == _cell(found, "naive", "4.5", "1")}
    assert alone == kept


def _cell(found: list[dict[str, str]], method: str, epsilon: str, seed: str) -> str:
    return next(one["cell"] for one in found if (one["method"], one["epsilon"], one["seed"]) == (method, epsilon, seed))


def test_the_page_has_means_deviations_and_the_published_figures(finished: Path) -> None:
    page = (finished / "page.md").read_text()
    values = [float(one["value"]) for one in lines(finished) if (one["method"], one["epsilon"]) == ("oneshot", "1")]
    queries = [values[0], values[3]]
    shown = f"{np.mean(queries):.4f} ± {np.std(queries, ddof=1):.4f} | 0.123 |"
    (row,) = (line for line in page.splitlines() if shown in line)
    assert row.startswith("| people | oneshot | 1 |")
    assert row.endswith("| 2 |"), "the number of seeds"
    assert "- people: made up" in page
    docs = (finished / "page-of-docs.md").read_text()
    assert docs.startswith("# Ours")
    assert docs.endswith("below\n")
    assert shown in docs
    assert "old" not in docs
    assert shown.split(" |")[0] in (finished / "page.html").read_text()


def test_plots_are_valid_svg_with_a_line_a_method_and_an_error_bar_a_point(finished: Path) -> None:
    files = {file.name for file in (finished / "plots").iterdir()}
    assert files == {"people-queries.svg", "people-likelihood-nll.svg", "people-likelihood-floored.svg"}
    for name in files:
        root = ElementTree.fromstring((finished / "plots" / name).read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        paths = root.findall("{http://www.w3.org/2000/svg}path")
        assert {path.get("class") for path in paths} == {"rule", "line0", "line1"}
        tips = [path[0].text or "" for path in paths if path.get("class") in ("line0", "line1") and len(path)]
        assert sum("±" in tip for tip in tips) == 4
        published = ["oneshot, 1, published: 0.123", "oneshot, 4.5, published: 1e−09"]
        assert [tip for tip in tips if "published" in tip] == published * ("queries" in name)
        curves = [path.get("d", "").partition("a")[0] for path in paths]  # without the arcs of circles
        heights = [float(number) for curve in curves for number in re.findall(r"-?[\d.]+", curve)]
        assert all(0 <= number <= 400 for number in heights)
        texts = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
        assert {"1", "4.5", "oneshot", "naive"} <= set(texts)


def test_nothing_is_run_twice_but_what_has_another_meaning(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    whole = (finished / "results.jsonl").read_text()
    (out / "results.jsonl").write_text(whole[:-30])  # the last cell is cut off in a line
    same = changed(finished, tmp_path, ("digits = 4", "digits = 2"), ("made up", "noted otherwise"))
    assert run(monkeypatch, same, "--data-dir", data, "--out", out, "--jobs", 1) == 0
    assert "9 cells, 8 of them finished before" in capsys.readouterr().out
    assert Counter(line["cell"] for line in lines(out)).keys() == {line["cell"] for line in lines(finished)}
    assert len(lines(out)) == len(lines(finished))

    other = changed(finished, tmp_path, ("rate = 0.5", "rate = 0.9"))
    assert run(monkeypatch, other, "--data-dir", data, "--out", out, "--jobs", 1) == 0
    assert "9 cells, 5 of them finished before" in capsys.readouterr().out
    assert len({line["cell"] for line in lines(out)}) == 13, "what the old specification meant is still there"


def test_a_metric_that_is_added_is_measured_alone(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    before = read_records(out / "results.jsonl")
    spec = changed(
        finished,
        tmp_path,
        ("[metrics.likelihood]", "[metrics.epsilon]\n\n[metrics.likelihood]"),
        ("queries = 50", "queries = 60"),
    )
    arguments = (spec, "--data-dir", data, "--out", out, "--jobs", 1, "--only", "method=oneshot,seed=1")
    assert run(monkeypatch, *arguments) == 0
    assert "2 cells, 0 of them finished before" in capsys.readouterr().out
    kept = read_records(out / "results.jsonl")
    assert kept[: len(before)] == before
    added = kept[len(before) :]
    assert [set(one.metrics) for one in added] == [{"epsilon", "queries"}] * 2, "one is new, one has other options"
    assert {one.key for one in added} < {one.key for one in before}
    assert [one.figures["epsilon"] for one in added] == pytest.approx([1.0, 4.5], abs=0.01)
    assert run(monkeypatch, *arguments) == 0
    assert "2 cells, 2 of them finished before" in capsys.readouterr().out
    assert "| people | oneshot | 1 |" in (out / "page.md").read_text()


def test_a_schema_file_and_a_made_table_that_change_make_other_runs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Schema((Numeric("age", 0, 120, bins=8), Categorical("sick", ("no", "yes")))).save(data / "people.toml")
    text = SPEC.replace("schema = { bins = 8 }", 'schema = "people.toml"').replace("seeds = 2", "seeds = 1", 1)
    (tmp_path / "spec.toml").write_text(text)
    arguments = (tmp_path / "spec.toml", "--data-dir", data, "--out", tmp_path, "--only", "method=real rows")
    for finished_before in (0, 1):
        assert run(monkeypatch, *arguments) == 0
        assert f"1 cell, {finished_before} of them finished before" in capsys.readouterr().out
    Schema((Numeric("age", 0, 120, bins=9), Categorical("sick", ("no", "yes")))).save(data / "people.toml")
    (case,) = (one for one in cases(read_spec(text)) if one.cell.method == "real rows")
    (record,) = read_records(tmp_path / "results.jsonl")
    _source_digest.cache_clear()  # another process would read the file anew
    assert record.key == case.key
    assert record.data != source_digest(case.dataset, data)
    made = msgspec.structs.replace(case.dataset, file=f"{__name__}:table_of_today", schema="")
    digests = []
    for number in (1, 2):
        monkeypatch.setattr(sys.modules[__name__], "TODAY", number)
        _source_digest.cache_clear()
        _made_frame.cache_clear()
        digests.append(source_digest(made, data))
    assert digests[0] != digests[1]


TODAY = 0


def table_of_today() -> pd.DataFrame:
    return pd.DataFrame({"a": [1, 2, TODAY]})


def test_what_is_left_is_priced_by_what_was_run(
    finished: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (finished / "small.toml", "--data-dir", data, "--out", finished, "--cost")
    assert run(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out == "about 0.0 CPU minutes for 0 cells\n"
    some = [one for one in cases(read_spec(SPEC)) if one.cell.method != "real rows"]
    kept = [
        CellRecord(key=one.key, data="", cell=one.cell, seconds=3600.0 * (1 + one.cell.seed))
        for one in some
        if one.cell.method == "oneshot" and one.cell.epsilon == "1"
    ]
    estimate = cost(some, kept)
    assert (estimate.seconds, estimate.known, estimate.unknown) == (4 * 5400.0, 4, 4)
    assert str(estimate) == "about 6.0 CPU hours for 4 cells; nothing like 4 others was run before"


def test_a_record_says_by_what_it_was_made(finished: Path, tmp_path: Path) -> None:
    for record in read_records(finished / "results.jsonl"):
        assert record.code.startswith(f"{fedsynth.__version__} ")
        assert record.kernel
        assert 0 < record.seconds < 60
    endless = {"a": np.nan, "b": np.inf, "c: part": -np.inf, "c": 0.1 + 0.2}
    (case, *_) = cases(read_spec(SPEC))
    record = CellRecord(key=case.key, data="", cell=case.cell, figures=recorded(endless))
    (tmp_path / "results.jsonl").write_bytes(line_of(record) + b'{"key": "half a li')
    (again,) = read_records(tmp_path / "results.jsonl")
    assert again == record
    assert again.of("c") == {"c: part": -np.inf, "c": 0.1 + 0.2}
    assert np.isnan(again.of("a")["a"])
    (tmp_path / "results.jsonl").write_bytes(line_of(record).replace(b'"inf"', b'"many"'))
    with pytest.raises(FedsynthError, match="line 1: a figure is no number"):
        read_records(tmp_path / "results.jsonl")
    (tmp_path / "results.jsonl").write_text("cell,metric,value\n")
    with pytest.raises(FedsynthError, match="line 1: not a result of this version"):
        read_records(tmp_path / "results.jsonl")


def test_a_run_that_is_stopped_goes_on_and_ends_with_the_same_figures(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    spec = changed(
        finished, tmp_path, ("[metrics.likelihood]", '[metrics.pause]\nmetric = "own:pause"\n\n[metrics.likelihood]')
    )
    code = "from fedsynth.cli.app import main; main()"
    command = [sys.executable, "-c", code, "bench", str(spec), "--out", str(out), "--jobs", "1"]
    path = str(Path(fedsynth.__file__).parents[1])
    environment = {**os.environ, "FEDSYNTH_DATA": str(data), "PYTHONPATH": path, "PAUSE": "0.5"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=data)
    until = time.monotonic() + 240
    while time.monotonic() < until and process.poll() is None:
        if (out / "results.jsonl").exists() and lines(out):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "the same command resumes" in said
    assert "Traceback" not in said
    before = figures(out)
    monkeypatch.chdir(data)
    monkeypatch.setenv("FEDSYNTH_DATA", str(data))
    assert run(monkeypatch, spec, "--out", whole, "--jobs", 1) == 0
    assert 0 < len(before) < len(figures(whole))
    assert run(monkeypatch, spec, "--out", out, "--jobs", 1) == 0
    assert figures(out) == figures(whole), "the same cells, each once, from another process"
    assert set(before) <= set(figures(out))


def test_failed_cells_and_dead_processes_are_told_and_stop_no_other(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    monkeypatch.chdir(data)  # where own.py is
    spec = changed(
        finished,
        tmp_path,
        ('methods = ["oneshot", "naive"]\nepsilon = [1, 4.5]', 'methods = ["oneshot", "fedchowliu"]\nepsilon = 1'),
        ('metrics = ["queries"]', 'metrics = ["deadly"]'),
        ("sites = 1\nseeds = 1", "sites = 1\nseeds = 2"),
        ('[methods.naive]\nmethod = "fednaivebayes"\noptions = { rate = 0.5 }', '[metrics.deadly]\nmetric = "own:die"'),
    )
    spec.write_text(spec.read_text().replace("epsilon = 1\n", 'epsilon = 1\nmetrics = ["queries", "likelihood"]\n'))
    assert run(monkeypatch, spec, "--data-dir", data, "--out", out, "--jobs", 1) == 8
    said = capsys.readouterr().err
    assert "3 of 6 cells failed" in said
    assert "only graphical models" in said
    errors = {(line["method"], line["seed"]): line["value"] for line in lines(out) if line["metric"] == "error"}
    assert errors.keys() == {("fedchowliu", "0"), ("fedchowliu", "1"), ("real rows", "1")}
    assert "died" in errors["real rows", "1"]
    assert {line["value"] for line in lines(out) if line["metric"] == "deadly: seed"} == {"0.0"}
    assert run(monkeypatch, spec, "--data-dir", data, "--out", out, "--jobs", 1, "--only", "method=fedchowliu") == 8
    assert Counter(line["metric"] for line in lines(out))["error"] == 2, "they were run again, and are not told twice"


def test_processes_of_a_run_that_is_killed_end_with_it() -> None:
    code = (
        "import os, signal, time\nfrom fedsynth.bench.grid import _pool\n"
        "with _pool(1) as pool:\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    pool.submit(time.sleep, 1000)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Its process has the same output, which ends with the last process that could write there.
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=240)
    assert ran.returncode == -signal.SIGKILL
    assert int(ran.stdout)


def test_cells_are_listed_and_chosen(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = changed(finished, tmp_path, ('"naive"', '"naive, shy"'), ("methods.naive", 'methods."naive, shy"'))
    assert run(monkeypatch, spec, "--list", "--seeds", 1, "--only", "method=naive, shy,dataset=people") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"people 'naive, shy' epsilon={epsilon} delta=1e-06 trust=secure partition=iid sites=3 arm=federated seed=0"
        for epsilon in ("1", "4.5")
    ] + ["2 cells"]
    assert run(monkeypatch, spec, "--list", "--only", "epsilon=9") == 2
    assert run(monkeypatch, spec, "--list", "--only", "colour=red") == 2
    assert run(monkeypatch, spec, "--list", "--only", "seed=1", "--only", "epsilon=1", "--only", "epsilon=4.5") == 0
    assert "4 cells" in capsys.readouterr().out
    assert run(monkeypatch, spec, "--out", tmp_path, "--data-dir", tmp_path / "nowhere") == 8
    assert "FEDSYNTH_DATA" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds = 2", "sedes = 2", "did you mean 'seeds'"),
        ("target =", "targte =", "did you mean 'target'"),
        ('"oneshot"', '"oneshto"', "did you mean 'oneshot'"),
        ("seeds = 2", "seeds = 'two'", "Expected `int | array`"),
        ("delta = 1e-6", "", "an epsilon and no delta, which is never assumed"),
        ('metrics = ["queries"]', 'metrics = ["query"]', "did you mean 'queries'"),
        ('methods = ["real rows"]', "", "names no methods"),
        ("[defaults]", '[defaults]\ndata = "peopel"', "did you mean 'people'"),
        ("seeds = 2", "seeds =", "not TOML"),
        (
            "schema = { bins = 8 }",
            'schema = "people.toml"\nrows = 9',
            "a schema file has no drop, labels, sample or rows",
        ),
        ("test_share = 0.25", "train_share = 0.9", "add seed = 0 to the split"),
        ("test_share = 0.25", "test_share = 0.1, test_rows = 9", "delete the others"),
    ],
)
def test_what_a_specification_does_not_know_is_refused(old: str, new: str, said: str) -> None:
    assert old in SPEC
    with pytest.raises(FedsynthError, match=re.escape(said)):
        cases(read_spec(SPEC.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"fednaivebayes"', '"fednaivebays"', "[methods.naive]: the specification has no method"),
        ("rate = 0.5", "rte = 0.5", "[methods.naive]: fednaivebayes has no option rte; did you mean 'rate'?"),
        ("rate = 0.5", 'rte = "a.b:C"', "[methods.naive]: no option named 'rte'; did you mean 'rate'?"),
        ("rate = 0.5", 'rate = "fedsynth.models:Nothing"', "[methods.naive]: cannot import"),
        ("[metrics.likelihood]", "[metrics.likelyhood]", "[metrics.likelyhood]: no metric named 'likelyhood'; for one"),
        ('"range-queries"', '"range-querys"', "[metrics.queries]: no metric named 'range-querys'"),
        ("queries = 50", "querys = 50", "[metrics.queries]: no option named 'querys'; did you mean 'queries'?"),
        (
            '"range-queries"\noptions = { queries = 50 }',
            '"hellinger"\noptions = { tset = true }',
            "did you mean 'test'?",
        ),
        (
            '"range-queries"\noptions = { queries = 50 }',
            '"learning"\noptions = { suite = "thesiss" }',
            "mean 'thesis'?",
        ),
        ('"range-queries"', '"nowhere:rows"', "[metrics.queries]: cannot import 'nowhere:rows'"),
        (
            "[metrics.queries]",
            "[datasets.people.metrics.query]\nqueries = 9\n[metrics.queries]",
            "did you mean 'queries'",
        ),
        (
            "[metrics.queries]",
            "[datasets.people.metrics.queries]\nquerys = 9\n[metrics.queries]",
            "[datasets.people.metrics.queries]: no option named 'querys'",
        ),
        (
            "[defaults]",
            '[defaults]\ntrust = "secur"',
            "[[grid]] 1: no trust model named 'secur'; did you mean 'secure'?",
        ),
        ("[defaults]", '[defaults]\ntrust = "secure:min_onest=3"', "[[grid]] 1: the trust 'secure' has no setting"),
        ("[defaults]", '[defaults]\npartition = "iidd"', "did you mean 'iid'"),
        ("[defaults]", '[partitions.skewed]\nhow = "labl-skew:1"\n[defaults]', "[partitions.skewed]: partition"),
        (
            "[defaults]",
            '[partitions.skewed]\nhow = "iid"\n[defaults]\npartition = "skewd"',
            "of [partitions], did you mean 'skewed'?",
        ),
    ],
)
def test_misspelt_names_are_refused_before_the_first_fit(old: str, new: str, said: str) -> None:
    assert old in SPEC
    with pytest.raises(FedsynthError, match=re.escape(said)):
        check_names(read_spec(SPEC.replace(old, new, 1)))
    check_names(read_spec(SPEC))


def test_a_grid_with_a_misspelt_name_runs_no_cell(data: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC.replace("queries = 50", "querys = 50"))
    assert run(monkeypatch, spec, "--out", tmp_path / "out", "--data-dir", data, "--jobs", 1) == 8
    assert "[metrics.queries]: no option named 'querys'; did you mean 'queries'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(SchemaError, match="did you mean 'sick'"):
        training_and_test(read_spec(SPEC.replace('target = "sick"', 'target = "sikc"')), "people", data)


def test_arms_trusts_and_floors_are_reduced_to_what_they_depend_on() -> None:
    text = SPEC.replace(
        'methods = ["oneshot", "naive"]\nepsilon = [1, 4.5]', 'methods = ["oneshot", "aim"]\nepsilon = 1'
    )
    text = text.replace(
        "[defaults]", '[defaults]\ntrust = ["local", "trusted"]\narm = ["federated", "pooled", "first"]'
    )
    found = {(c.cell.method, c.cell.arm, c.cell.trust, c.cell.partition, c.cell.sites) for c in cases(read_spec(text))}
    assert found == {
        ("oneshot", "federated", "local", "iid", 3),
        *((method, "federated", "trusted", "iid", 3) for method in ("oneshot", "aim")),  # aim needs a vault
        *((method, "pooled", "trusted", "", 1) for method in ("oneshot", "aim")),
        *((method, "first", "trusted", "iid", 3) for method in ("oneshot", "aim")),
        ("real rows", "", "", "", 1),
    }


def test_a_cell_without_an_epsilon_has_no_noise_and_says_so(data: Path) -> None:
    text = SPEC.replace("epsilon = [1, 4.5]", 'epsilon = "none"') + "\n[metrics.epsilon]\n"
    (case,) = (one for one in cases(read_spec(text)) if (one.cell.method, one.cell.seed) == ("oneshot", 0))
    assert (case.cell.epsilon, case.cell.delta) == ("none", "")
    found = measure(case, data)
    assert found["epsilon"] == float("inf")
    assert found["likelihood: NLL"] < measure(one_cell(method="oneshot", epsilon="1", seed=0), data)["likelihood: NLL"]


def test_the_arm_local_is_the_mean_over_sites_each_with_noise_of_its_own(data: Path) -> None:
    text = SPEC.replace("epsilon = [1, 4.5]", 'epsilon = 1\narm = ["local", "first"]')
    local, first = (
        measure(one, data)
        for arm in ("local", "first")
        for one in cases(read_spec(text))
        if (one.cell.method, one.cell.arm, one.cell.seed) == ("oneshot", arm, 0)
    )
    assert local["queries"] != first["queries"]


def test_every_site_can_be_an_arm_of_its_own(data: Path) -> None:
    text = SPEC.replace("epsilon = [1, 4.5]", 'epsilon = 1\narm = ["first", "site:1", "site:2"]')
    text = text.replace("sites = 3\n", 'sites = 2\npartition = "values:sick"\n', 1)
    text += '\n[metrics.rows]\nmetric = "own:rows"\n'
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(data)
        first, one, two = (
            measure(case, data)
            for arm in ("first", "site:1", "site:2")
            for case in cases(read_spec(text))
            if (case.cell.method, case.cell.arm, case.cell.seed) == ("oneshot", arm, 0)
        )
    assert first == one
    assert (one["rows: sick"], two["rows: sick"]) == (0, 1)  # the schema's order: no, yes
    assert one["rows: seen"] + two["rows: seen"] == one["rows: real"] == two["rows: real"] == 300
    assert one["rows: made"] == two["rows: made"] == 300
    with pytest.raises(FedsynthError, match=r"no arm named 'site:3' over 2 sites; .*, site:1 to site:2"):
        cases(read_spec(text.replace('"site:2"', '"site:3"')))


def test_attacks_ask_about_the_rows_that_the_method_saw(data: Path) -> None:
    frame = pd.read_csv(data / "people.csv").assign(pay=lambda people: people["pay"].round())
    schema = Schema((Numeric("age", 0, 100), Numeric("pay", 0, 1100), Categorical("sick", ("no", "yes"))))
    people = encode(schema, frame)
    sick = people.codes[2] == 1
    real, test = people.take(np.arange(400) < 250), people.take(np.arange(400) >= 250)
    site = real.take(sick[:250])
    copy = FinishedRun(real, site, test, sites=(site,), target="sick")
    found = find_metric("membership-inference")(copy, alike="sick")
    assert isinstance(found, dict)
    assert list(found)[:2] == ["AUC, GAN-Leaks", "TPR at FPR 1 %, GAN-Leaks"]
    assert found["AUC, GAN-Leaks"] > 0.95
    # The site's own rows were not copied: told from all test rows, an attack would call the sick ones members.
    fresh = FinishedRun(real, test.take(sick[250:]), test, sites=(site,), target="sick")
    assert find_metric("membership-inference")(fresh, alike="sick")["AUC, GAN-Leaks"] < 0.6  # type: ignore[index]
    distances = find_metric("distance-to-real")(copy)
    assert isinstance(distances, dict)
    assert distances[""] == 0.0 < distances["real rows"]
    with pytest.raises(Unsupported, match="hold-out rows"):
        find_metric("membership-inference")(FinishedRun(real, site, test.take(np.arange(9)), sites=(site,)))


def test_a_mean_over_learners_of_one_score_or_of_each(data: Path) -> None:
    schema = Schema((Numeric("age", 0, 100), Numeric("pay", 0, 1100), Categorical("sick", ("no", "yes"))))
    people = encode(schema, pd.read_csv(data / "people.csv"))
    run = FinishedRun(people, people, people.take(np.arange(100)), target="sick")
    every = find_metric("mean-learning")(run, suite="fedtabdiff", rows=200)
    single = find_metric("learning")(run, suite="fedtabdiff", rows=200)
    assert isinstance(every, dict)
    assert isinstance(single, dict)
    assert list(every) == ["accuracy", "macro F1", "ROC AUC"]
    learners = ("random forest", "decision tree", "logistic regression", "AdaBoost", "naive Bayes")
    assert every["accuracy"] == pytest.approx(np.mean([single[f"accuracy, {learner}"] for learner in learners]))
    assert find_metric("mean-learning")(run, score="macro F1", suite="fedtabdiff", rows=200) == every["macro F1"]


def test_what_workload_error_does_not_see(data: Path) -> None:
    schema = Schema((Numeric("age", 0, 100), Numeric("pay", 0, 1100), Categorical("sick", ("no", "yes"))))
    frame = pd.read_csv(data / "people.csv")
    frame["pay"] = (10 * frame["age"]).clip(upper=600)
    frame["sick"] = np.where(frame["age"] > 50, "yes", "no")
    people = encode(schema, frame)
    real, test = people.take(np.arange(300)), people.take(np.arange(300, 400))
    same = FinishedRun(real, real, test, target="sick")
    shuffled = {name: frame[name][:300].sample(frac=1, random_state=at).array for at, name in enumerate(frame)}
    lost = FinishedRun(real, encode(schema, pd.DataFrame(shuffled)), test, target="sick")
    strong = {"above 0.3": 1.0, "above 0.5": 1.0}
    assert find_metric("associations-kept")(same) == strong
    assert find_metric("associations-kept")(lost) == dict.fromkeys(strong, 0.0)
    assert find_metric("correlations-kept")(same) == {"Pearson": 1.0, "Spearman": 1.0}
    assert find_metric("correlations-kept")(lost) == {"Pearson": 0.0, "Spearman": 0.0}
    assert find_metric("heaps")(same) == find_metric("heaps")(lost) == 1.0  # columns are shuffled
    quantiles = find_metric("quantiles")(FinishedRun(real, encode(schema, frame[:300].assign(pay=0.0))))
    assert isinstance(quantiles, dict)
    assert quantiles["1 % within 0.05"] == quantiles["50 % within 0.05"] == 0.5  # age is right, pay is not
    assert quantiles[""] == pytest.approx(np.mean([quantiles[name] for name in ("1 %", "50 %", "90 %", "99 %")]))
    assert find_metric("relative-auc")(same) == 1.0
    relative, auc = find_metric("relative-auc")(lost), find_metric("gradient-boosting")(lost)
    assert isinstance(auc, float)
    assert relative == pytest.approx((auc - 0.5) / 0.5)  # real rows teach all


def test_codes_are_categories_and_constants_stay_where_the_rules_say_so(data: Path, tmp_path: Path) -> None:
    people = pd.read_csv(data / "people.csv")
    people.assign(ward=np.arange(400) % 40, country="fr", era=7).to_csv(tmp_path / "people.csv", index=False)
    text = SPEC.replace("schema = { bins = 8 }", 'schema = { bins = 8, codes = ["ward"], constants = true }')
    wide, _ = training_and_test(read_spec(text), "people", tmp_path)
    plain, _ = training_and_test(read_spec(SPEC), "people", tmp_path)
    assert wide.schema.names == ("age", "pay", "region", "sick", "ward", "country", "era")
    assert plain.schema.names == ("age", "pay", "region", "sick", "ward")
    assert isinstance(plain.schema.columns[4], Numeric)
    ward, country, era = wide.schema.columns[4:]
    assert isinstance(ward, Categorical)
    assert isinstance(country, Categorical)
    assert isinstance(era, Categorical)
    assert (ward.size, country.size, era.size) == (40, 1, 1)


def test_floors_are_what_their_names_say() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": [0, 0, 1, 0], "b": [1.0, 2.0, 3.0, 4.0]})
    table = encode(Schema((Categorical("a", (0, 1)), Numeric("b", 0, 4, bins=4))), frame)
    _, value = FLOORS["one value"](table, table, rng)
    assert value.codes[0].tolist() == [0, 0, 0, 0]
    assert value.numbers[1].tolist() == [2.5] * 4
    one, two = FLOORS["other half"](table, table, rng)
    assert [part.numbers[1].tolist() for part in (one, two)] == [[1.0, 3.0], [2.0, 4.0]]
    _, uniform = FLOORS["uniform rows"](table, table, rng)
    assert len(uniform) == 4
    assert all(value is table for value in FLOORS["real rows"](table, table, rng))


@pytest.mark.parametrize("file", specifications(), ids=lambda file: file.stem)
def test_every_published_table_has_its_cells(file: Path) -> None:
    spec = read_spec(file.read_text())
    assert cases(spec)
    kept = (BENCHMARKS / "results" / f"{file.stem}.jsonl").exists()
    assert not (spec.paper and spec.section in sections()), "figures of papers have results, or are not run"
    assert spec.paper or kept is not (spec.section in sections()), "either its results, or its table as once printed"
    assert bool(spec.paper) is bool(spec.published or spec.plots)
    assert all(judge_claim(spec, claim, []).of == 0 for claim in spec.claims)
    settings = [setting for claim in spec.claims for setting in (claim.better, claim.worse)]
    named = {name for setting in settings for name in np.ravel(setting.get("method", []))}
    assert named <= {case.cell.method for case in cases(spec)}
    assert {name for entry in spec.published for name in entry.by} <= {case.cell.method for case in cases(spec)}
    values = {name for entry in spec.tables for name in entry.values} | {
        name for entry in spec.published for names in entry.values for name in names if isinstance(names, tuple)
    }
    assert {name.partition(": ")[0] for name in values} <= set(spec.metrics)


def test_pages_of_results_have_the_means_of_the_figures_that_are_kept_or_say_what_they_lack() -> None:
    made = result_pages()
    kept = read_records(BENCHMARKS / "results" / "fedctgan.jsonl")
    runs = [one.of("w2")["w2"] for one in kept if (one.cell.dataset, one.cell.method) == ("adult", "auto")]
    (row,) = (line for line in made["results/fedctgan.md"].splitlines() if line.startswith("| adult | auto |"))
    assert f" {np.mean(runs):.3f} ± {np.std(runs, ddof=1):.3f} |" in row
    assert row.endswith(f"| {len(runs)} |")
    with (BENCHMARKS / "results" / "relations_sdv.csv").open() as file:
        runs = [float(row["w3"]) for row in csv.DictReader(file) if row["dataset"] == "adult"]
    (row,) = (line for line in made["results/sdv.md"].splitlines() if line.startswith("| adult | SDV"))
    assert row.endswith(f" {np.mean(runs):.2f} | {len(runs)} |")
    for name, (_, text) in sections().items():
        page = made[f"results/{name}.md"]
        assert text in page
        assert ("**Not reproducible yet**" in page) is (name not in PROGRAMS)
        assert name not in PROGRAMS or (BENCHMARKS / f"{PROGRAMS[name].split()[0]}.py").exists()
    assert all(f"]({Path(name).name})" in made["results/index.md"] for name in made if name != "results/index.md")


def test_the_documented_specification_and_metrics_are_those_that_there_are() -> None:
    page = (BENCHMARKS.parent / "docs" / "cli.md").read_text().split("## Benchmarks")[1]
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(cases(read_spec(text))) == 5 * (2 * 4 * (2 * 2 + 1) + 2)
    listed = set(re.findall(r"`(.*?)`", page.split("benchmarks alone")[1].split("\n\n")[0]))
    assert listed == set(MEASURES) - set(METRICS)
    scores = (BENCHMARKS.parent / "docs" / "evaluation.md").read_text()
    assert all(f"`{name}`" in scores for name in METRICS)


def test_metrics_of_other_packages_are_entry_points(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "theirs-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[fedsynth.metrics]\nrows = theirs:rows\n")
    (tmp_path / "theirs.py").write_text("def rows(run, factor):\n    return factor * len(run.synthetic)\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = SPEC.replace(
        'metric = "range-queries"\noptions = { queries = 50 }', 'metric = "rows"\noptions = { factor = 2 }'
    )
    assert measure(cases(read_spec(text))[0], data)["queries"] == 2 * 300
    with pytest.raises(Unsupported, match="no metric named 'columns'"):
        find_metric("columns")
    with pytest.raises(Unsupported, match=r"package\.module:name"):
        find_metric("theirs:columns")


def test_a_label_skew_leaves_each_site_its_fewest_rows() -> None:
    assert parse_partition("capped-label-skew:0.5:200", None) == CappedLabelSkew(0.5, minimum=200)
    for text in ("quantity:0.5:3", "label-skew:0.5:0", "label-skew:0.5:few", "label-skew:0.5:1:2"):
        with pytest.raises(Unsupported, match="smallest number of rows"):
            parse_partition(text, None)
