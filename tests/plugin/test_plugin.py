"""A package of its own, installed beside fedsynth, adds a method, a query, a source and metrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BUDGET = ("--epsilon", "2", "--delta", "1e-6")
CLASS = "fedsynth_toy.method:Toy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the toy package into."""
    root = tmp_path_factory.mktemp("toy")
    shutil.copytree(HERE / "package", root / "package")  # where the build may leave its files
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(root / "site"), str(root / "package")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return root / "site"


def fedsynth(*arguments: object, paths: tuple[Path, ...], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fedsynth.cli.app import main; main()", *map(str, arguments)]
    beside = [str(path) for path in paths] + [path for path in sys.path if path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(beside)}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=cwd)


def package(folder: Path, entries: str) -> Path:
    """Return a folder beside which an installed package has these entry points."""
    described = folder / "rival-2.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Name: rival\nVersion: 2.0\n")
    (described / "entry_points.txt").write_text(entries)
    return folder


def answer(*arguments: object, paths: tuple[Path, ...], cwd: Path) -> Any:
    done = fedsynth(*arguments, "--json", paths=paths, cwd=cwd)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_its_method_is_listed_with_its_options(installed, tmp_path):
    listed = {one["name"]: one for one in answer("methods", paths=(installed,), cwd=tmp_path)}
    assert listed["toy"]["options"] == {"favourite": "", "more": 2.0}
    assert listed["toy"]["trusts"] == ["trusted", "local", "secure"]
    assert listed["oneshot"]["private"]
    assert "toy" not in fedsynth("methods", paths=(), cwd=tmp_path).stdout


@pytest.mark.parametrize(("name", "trust"), [("toy", "local"), (CLASS, "secure")])
def test_its_method_runs_on_its_source_by_name_and_by_class(name, trust, installed, tmp_path):
    command = ("simulate", "--data", "toy://300", "--method", name, "--sites", 3, "--trust", trust, "--seed", 1)
    told = answer(
        *(*command, *BUDGET, "--set", "favourite=age", "--set", "more=3", "--out", "run"),
        paths=(installed,),
        cwd=tmp_path,
    )
    assert told["columns"] == ["age", "sick"]
    entries = told["ledger"]["entries"]
    assert {entry["kind"] for entry in entries} == {"toy-column"}
    assert len(entries) == 2
    assert tomllib.loads((tmp_path / "run" / "run.toml").read_text())["method"] == name
    again = answer("simulate", "--config", "run/run.toml", "--out", "again", paths=(installed,), cwd=tmp_path)
    assert again["rows"] == told["rows"]
    assert (tmp_path / "run" / "synthetic.csv").read_bytes() == (tmp_path / "again" / "synthetic.csv").read_bytes()


def test_it_is_planned_compared_and_deployed_like_any_other(installed, tmp_path):
    here: dict[str, Any] = {"paths": (installed,), "cwd": tmp_path}
    answer("simulate", "--data", "toy://300", "--sites", 3, *BUDGET, "--out", "run", **here)
    schema = ("--schema", "run/schema.toml")
    for name in ("toy", CLASS):
        plan = ("plan", *schema, "--rows", 300, "--sites", 3, "--repeats", 1, *BUDGET)
        (forecast,) = answer(*plan, "--method", name, **here)["forecasts"]
        assert (forecast["plan"]["method"], forecast["chosen"]) == (name, False)
        assert {slot["kind"] for slot in forecast["plan"]["slot"]} == {"toy-column"}
    data = tmp_path / "rows.csv"
    data.write_bytes((tmp_path / "run" / "synthetic.csv").read_bytes())
    compare = ("compare", "--data", data, *schema, "--sites", 2, "--repeats", 2, "--partition", "iid", *BUDGET)
    assert "toy" in answer(*compare, "--method", CLASS, **here)["setting"]

    def joined(federation: str) -> Any:
        """Return the policy of a site that was invited."""
        at = ("--fingerprint", told[federation]["fingerprint"])
        answer("site", "join", f"{federation}/invitations/north.toml", f"north-of-{federation}", *at, **here)
        return tomllib.loads((tmp_path / f"north-of-{federation}" / "site.toml").read_text())["policy"]

    init = ("--sites", "north,south", *BUDGET)
    told = {
        folder: answer("deploy", "init", folder, *schema, "--method", method, *init, **here)
        for folder, method in {"federation": "toy", "usual": "oneshot"}.items()
    }
    assert joined("federation")["kinds"] == {"toy-column": "fedsynth_toy.method:ColumnCounts"}
    assert "kinds" not in joined("usual")
    file = tmp_path / "north-of-federation" / "site.toml"
    rows = file.read_text().replace('"rows.csv"', '"toy://300"').replace("# rows_are_persons", "rows_are_persons")
    for mode in ("", "streamed = true\n"):
        file.write_text(rows.replace("[source]\n", f"[source]\n{mode}"))
        checked = json.loads(fedsynth("site", "check", file.parent, "--json", **here).stdout)
        assert [check["state"] for check in checked["checks"] if check["name"] == "rows"] == ["ok"], checked


def test_a_source_is_read_like_a_file_and_has_to_be_one(installed, tmp_path):
    here: dict[str, Any] = {"paths": (installed, package(tmp_path, "[fedsynth.sources]\nplace = pathlib:Path\n"))}
    answer("schema", "draft", "toy://300", "--out", "schema.toml", cwd=tmp_path, **here)
    checked = answer("schema", "check", "toy://300", "--schema", "schema.toml", cwd=tmp_path, **here)
    assert (checked["rows"], checked["left_out"]) == (300, 0)
    refused = fedsynth("schema", "check", "place://x", "--schema", "schema.toml", cwd=tmp_path, **here)
    assert refused.returncode == 6
    assert "pathlib:Path opens place://x as a" in refused.stderr
    assert "not as a fedsynth.rows.Source" in refused.stderr


def test_a_method_of_ones_own_is_one_file(tmp_path):
    shutil.copy(HERE.parents[1] / "examples" / "own_method.py", tmp_path)
    here: dict[str, Any] = {"paths": (tmp_path,), "cwd": tmp_path}
    answer("example", "patients.csv", "--schema", "agreed.toml", **here)
    run = ("--data", "patients.csv", "--schema", "agreed.toml", "--sites", 3, "--set", "target=readmitted", *BUDGET)
    done = answer("simulate", *run, "--method", "own_method:Star", "--set", "iterations=20", "--out", "run", **here)
    assert {entry["kind"] for entry in done["ledger"]["entries"]} == {"counts"}


def test_a_metric_has_a_name_in_evaluations(installed, tmp_path):
    code = (
        "import fedsynth; from fedsynth.datasets import patients, patients_schema; "
        "found = fedsynth.evaluate(patients(200, 0), train=patients(200, 1), schema=patients_schema(), "
        "metrics=['toy-means']); print(*{score.name for score in found.scores})"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert done.stdout == "means of codes\n"


def test_its_metrics_and_its_method_are_benchmarked(installed, tmp_path):
    here: dict[str, Any] = {"paths": (installed,), "cwd": tmp_path}
    answer("simulate", "--data", "toy://300", "--sites", 3, *BUDGET, "--out", "run", **here)
    (tmp_path / "spec.toml").write_text(
        'seeds = 1\n[datasets.toy]\nfile = "run/synthetic.csv"\nschema = "run/schema.toml"\n'
        "[metrics.toy-mean]\n[metrics.toy-means]\n"
        '[[grid]]\nmethods = ["toy", "by class"]\nepsilon = 2\ndelta = 1e-6\nsites = 2\n'
        f'[methods."by class"]\nmethod = "{CLASS}"\noptions = {{ more = 1.0 }}\n'
    )
    answer("bench", "spec.toml", "--out", "results", "--jobs", 1, "--data-dir", ".", **here)
    results = (tmp_path / "results" / "results.jsonl").read_text()
    assert "toy-mean: age" in results
    assert "toy-means" in results
    assert "by class" in results
    assert '"error"' not in results


def test_what_is_not_there_or_no_method_is_said(installed, tmp_path):
    def said(*arguments: object, paths: tuple[Path, ...] = (installed,)) -> str:
        done = fedsynth("simulate", *arguments, *BUDGET, "--out", "run", paths=paths, cwd=tmp_path)
        assert done.returncode == 6, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "no method named 'tou'; did you mean 'toy'?" in said("--data", "toy://9", "--method", "tou")
    assert "cannot import" in said("--data", "toy://9", "--method", "fedsynth_toy.method:Tou")
    assert "is not a method" in said("--data", "toy://9", "--method", "fedsynth_toy.method:ColumnCounts")
    assert "no source for" in said("--data", "toy://9", paths=())
    assert "no method named 'toy'" in said("--data", "toy://9", "--method", "toy", paths=())


def test_two_packages_with_one_name_are_an_error_that_says_which(installed, tmp_path):
    entries = "[fedsynth.methods]\ntoy = rival:Toy\noneshot = rival:OneShot\n[fedsynth.sources]\ntoy = rival:open\n"
    other = package(tmp_path / "other", entries)
    run = ("simulate", *BUDGET, "--data", "toy://9", "--out", "run", "--method")
    for method, names in (("toy", ("fedsynth-toy", "rival")), ("oneshot", ("fedsynth", "rival"))):
        done = fedsynth(*run, method, paths=(installed, other), cwd=tmp_path)
        assert done.returncode == 6
        assert all(name in done.stderr for name in (repr(method), *names))
    clash = fedsynth(*run, CLASS, paths=(installed, other), cwd=tmp_path)  # the method is found, the source is not
    assert "'toy' (fedsynth.sources) is provided by two packages" in clash.stderr
    assert fedsynth("methods", paths=(installed, other), cwd=tmp_path).returncode == 6
