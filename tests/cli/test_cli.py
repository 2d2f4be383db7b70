"""The command line as a user meets it: real files, real processes, exit codes, and nothing half-written."""

from __future__ import annotations

import datetime
import json
import logging
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.command import fedsynth

from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.evaluation.commands import _announce
from fedsynth.evaluation.run_files import data_name
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.persons import identify
from fedsynth.rows import concatenate
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job, parse_option, parse_workload
from fedsynth.schema import Categorical, Schema

BUDGET = ("--epsilon", "1", "--delta", "1e-6")


def answer(*arguments: object) -> Any:
    done = fedsynth(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixed table with gaps, as a CSV file."""
    rng = np.random.default_rng(0)
    rows = 600
    age = rng.integers(18, 90, rows)
    frame = pd.DataFrame(
        {
            "zip": rng.choice(["00100", "00200", "99999"], rows),
            "age": age,
            "income": np.where(rng.random(rows) < 0.1, np.nan, (age * 300 + rng.normal(0, 4000, rows)).round(2)),
            "seen": (pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D")).strftime(
                "%Y-%m-%d"
            ),
            "member": rng.random(rows) < 0.4,
            "region": rng.choice(["north", "south", "west"], rows, p=[0.6, 0.3, 0.1]),
        }
    )
    path = tmp_path_factory.mktemp("data") / "people.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def schema(people: Path) -> Path:
    path = people.with_name("people.toml")
    answer("schema", "draft", people, "--out", path)
    path.write_text(path.read_text().replace("draft = true\n", ""))  # what a person does who has edited it
    return path


def test_draft_check_simulate_sample_as_one_story(people, schema, tmp_path):
    assert schema.read_text().startswith("# DRAFT")
    report = answer("schema", "check", people, "--schema", schema)
    digest = Schema.load(schema).digest
    none: dict[str, list[str]] = {"problems": [], "warnings": []}
    assert report == {"fits": True, "rows": 600, "left_out": 0, "digest": digest, "readable": True, **none}

    out = tmp_path / "run"
    said = answer("simulate", "--data", people, "--schema", schema, *BUDGET, "--sites", 4, "--out", out)
    assert not said["schema_drafted_from_data"]
    assert said["ledger"]["spent"]["epsilon_at_delta"] <= 1
    assert said["warnings"] == []
    assert sorted(path.name for path in out.iterdir()) == [
        "about.md",
        "ledger.json",
        "model.fedsynth",
        "private",
        "run.toml",
        "schema.toml",
        "synthetic.csv",
        "transcript",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    ledger = json.loads((out / "ledger.json").read_text())
    against = "everybody except whoever ran this"
    assert ledger["statement"]["headline"] == f"(1, 1e-06)-differentially private against {against}"
    assert "guarantee" not in tomllib.loads((out / "run.toml").read_text())["made"]  # ledger.json has the statement
    assert set(ledger["per_site"]) == {f"site-{k:03d}" for k in range(4)}
    assert (out / "private" / "rows.key").stat().st_mode & 0o777 == 0o600
    synthetic = pd.read_csv(out / "synthetic.csv", dtype={"zip": str})
    assert list(synthetic) == list(pd.read_csv(people))
    assert set(synthetic["zip"]) <= {"00100", "00200", "99999"}
    assert answer("schema", "check", out / "synthetic.csv", "--schema", schema)["fits"]

    more = tmp_path / "more.parquet"
    assert answer("sample", out / "model.fedsynth", "--rows", 50, "--out", more, "--seed", 1)["rows"] == 50
    assert len(pd.read_parquet(more)) == 50
    # Of a model with a seed: 10 of 600 rows meet these conditions, and there is noise that leaves none of them.
    fixed = tmp_path / "fixed"
    answer("simulate", "--data", people, "--schema", schema, *BUDGET, "--sites", 4, "--seed", 1, "--out", fixed)
    where = ("--where", "zip=00200", "--where", "age=20..60", "--where", "income=", "--where", "seen=2024-03-01..")
    answer("sample", fixed / "model.fedsynth", "--rows", 40, "--out", tmp_path / "some.csv", "--seed", 1, *where)
    some = pd.read_csv(tmp_path / "some.csv", dtype={"zip": str})
    assert len(some) == 40
    assert set(some["zip"]) == {"00200"}
    assert some["age"].between(20, 60).all()
    assert some["income"].isna().all()
    assert (some["seen"] >= "2024-03-01").all()
    wrong = fedsynth("sample", out / "model.fedsynth", "--rows", 40, "--out", tmp_path / "no.csv", "--where", "zip=1")
    assert wrong.returncode == 3
    assert "the column has 00100, 00200, 99999" in wrong.stderr
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("method", "trust", "partition"),
    [
        ("aim", "trusted", "iid"),
        ("oneshot", "local", "quantity:0.5"),
        ("flaim", "local", "label-skew:0.5"),
        ("augflaim", "trusted", "column:region"),
        ("augflaim-oracle", "trusted", "iid"),
    ],
)
def test_a_method_runs_and_its_run_file_repeats_it_bit_for_bit(people, schema, tmp_path, method, trust, partition):
    options = ["--set", "rounds=2"] if "flaim" in method or method == "aim" else []
    options += ["--set", "rate=0.7"] if method not in ("aim", "oneshot") else []
    options += ["--workload", "2:5"] if method != "oneshot" else []
    options += ["--set", "not_private=true"] if method == "augflaim-oracle" else []
    first, again = tmp_path / "first", tmp_path / "again"
    said = answer(
        "simulate", "--data", people, "--schema", schema, *BUDGET, "--method", method, "--trust", trust,
        "--partition", partition, "--sites", 3, "--seed", 7, *options, "--out", first,
    )  # fmt: skip
    assert said["statement"]["private"] == (method != "augflaim-oracle")
    assert said["statement"]["seeded"]
    assert not said["statement"]["publishable"]
    answer("simulate", "--config", first / "run.toml", "--out", again)
    files = ("synthetic.csv", "model.fedsynth", "ledger.json", "schema.toml", "transcript", "run.toml")
    for name in (*files, "private/rows.key"):
        assert (first / name).read_bytes() == (again / name).read_bytes(), name


def test_without_a_schema_the_draft_is_announced_loudly(people, tmp_path):
    done = fedsynth(
        "simulate", "--data", people, *BUDGET, "--out", tmp_path / "run", "--holdout", 0.2, "--target", "region"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("WARNING: the schema is a draft")
    for part in (
        "synthetic rows of 6 columns",
        "the schema is a draft",
        "NOT FOR PUBLICATION",
        "spent: epsilon = 1 of 1",
        "ROC AUC",
        "do not publish them",
        "synthetic.csv",
    ):
        assert part in done.stdout, part


@pytest.mark.parametrize("delta", [("--delta", "0"), ()])
def test_an_infinite_epsilon_is_no_noise_and_said_to_be_not_private(people, schema, tmp_path, delta):
    options = (
        "--data",
        people,
        "--schema",
        schema,
        "--sites",
        3,
        "--epsilon",
        "inf",
        *delta,
        "--out",
        tmp_path / "run",
    )
    done = fedsynth("simulate", *options)
    assert done.returncode == 0, done.stderr
    assert "NOT PRIVATE" in done.stdout
    statement = json.loads((tmp_path / "run" / "ledger.json").read_text())["statement"]
    assert (statement["private"], statement["limit"]["epsilon"]) == (False, None)
    answer("simulate", "--config", tmp_path / "run" / "run.toml", "--out", tmp_path / "again")


def test_delta_zero_is_pure_differential_privacy(people, schema, tmp_path):
    options = ("--data", people, "--schema", schema, "--sites", 3, "--epsilon", 2, "--delta", 0)
    said = answer("simulate", *options, "--out", tmp_path / "run")
    assert said["statement"]["headline"] == "2-differentially private against everybody except whoever ran this"
    assert said["ledger"]["spent"]["epsilon"] == pytest.approx(2)


def test_weak_guarantees_are_warned_of(people, schema, tmp_path):
    options = ("--data", people, "--schema", schema, "--sites", 3)
    said = answer("simulate", *options, "--epsilon", 30, "--delta", 0.01, "--out", tmp_path / "run")
    assert ["delta" in one or "epsilon" in one for one in said["warnings"]] == [True, True]
    assert all(f"Weak: {one}." in said["statement"]["conditions"] for one in said["warnings"])
    done = fedsynth("simulate", *options, "--epsilon", 30, "--delta", 0.01, "--out", tmp_path / "again")
    assert done.stdout.count("Weak: ") == 2
    kept = json.loads((tmp_path / "again" / "ledger.json").read_text())["statement"]
    assert len(kept["warnings"]) == 2
    weak = ("simulate", *options, "--epsilon", 1, "--delta", 0.999999)
    refused = fedsynth(*weak, "--out", tmp_path / "weak")
    assert (refused.returncode, "--weak-delta" in refused.stderr) == (2, True)
    said = answer(*weak, "--weak-delta", "--out", tmp_path / "weak")
    assert said["statement"]["headline"].startswith("(1, 0.999999)-differentially private")
    assert answer("simulate", "--config", tmp_path / "weak" / "run.toml", "--out", tmp_path / "same")["warnings"]


def test_rows_per_person_need_the_persons(people, schema, tmp_path):
    options = ("--data", people, "--schema", schema, *BUDGET, "--out", tmp_path / "run")
    for limit in (("--rows-per-person", 3), ("--sites-per-person", 2)):
        refused = fedsynth("simulate", *options, *limit)
        assert (refused.returncode, "--person COLUMN" in refused.stderr) == (2, True)


def test_who_is_protected_is_said_and_paid_for(people, schema, tmp_path):
    """The person's column need not be in the schema; rows beyond a person's limit are not used at all."""
    frame = pd.read_csv(people, dtype={"zip": str})
    frame["person"] = np.arange(len(frame)) // 5
    data = tmp_path / "people.csv"
    frame.to_csv(data, index=False)
    unit = ("--rows-per-person", 2, "--sites-per-person", 3, "--person", "person")
    options = ("--data", data, "--schema", schema, *BUDGET, "--sites", 4, "--trust", "local")
    said = answer("simulate", *options, *unit, "--out", tmp_path / "run")
    assert said["statement"]["unit"] == {"rows": 2, "sites": 3}
    assert "each person with up to 2 rows at each of up to 3 sites" in said["statement"]["sentence"]
    assert said["ledger"]["spent"]["epsilon_at_delta"] == pytest.approx(1)
    job, rows = RunFolder(tmp_path / "run").job, RunFolder(tmp_path / "run").rows()
    assert sum(map(len, rows.sites)) == 2 * 600 // 5
    assert job.person == "person"


def test_persons_are_evaluated_as_persons(tmp_path):
    """No person is on both sides of the hold-out; the card and its figures are of persons."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(150), 4)
    age, sex = rng.integers(18, 90, 150)[who], rng.choice(["f", "m"], 150)[who]
    frame = pd.DataFrame({"patient": who, "age": age, "sex": sex, "pulse": age + rng.integers(0, 3, len(who))})
    data, schema, run = tmp_path / "visits.csv", tmp_path / "visits.toml", tmp_path / "run"
    frame.to_csv(data, index=False)
    frame.drop(columns="patient").to_csv(tmp_path / "columns.csv", index=False)
    answer("schema", "draft", tmp_path / "columns.csv", "--out", schema)
    schema.write_text(schema.read_text().replace("draft = true\n", ""))
    options = ("--data", data, "--schema", schema, *BUDGET, "--sites", 2, "--method", "oneshot")
    unit = ("--person", "patient", "--rows-per-person", 3)
    answer("simulate", *options, *unit, "--holdout", 0.5, "--out", run)
    rows = RunFolder(run).rows()
    assert rows.holdout is not None
    trained, held_out = concatenate(rows.sites).persons, rows.holdout.persons
    assert trained is not None
    assert held_out is not None
    persons = (np.unique(trained), np.unique(held_out))
    assert not len(np.intersect1d(trained, held_out))

    said = answer("report", run, "--full")
    assert said["persons"] == {"real": len(persons[0]), "holdout": len(persons[1])}
    assert said["persons"]["real"] + said["persons"]["holdout"] == 150
    assert said["rows"]["real"] == 3 * said["persons"]["real"]
    assert said["attacked"] == "the presence of one person with up to 3 rows"
    scores = {score["name"]: score for score in said["scores"]}
    half = len(persons[1]) // 2
    auc = scores["membership AUC, DOMIAS"]
    assert auc["note"].startswith(f"{half} persons with {3 * half} training rows against {half} with {3 * half} hold")
    assert "no attack on the presence of one person with up to 3 rows exceeds 0.731" in auc["says"]
    page = (run / "private" / "report.html").read_text()
    assert f"{len(persons[0])} persons" in page
    assert "no attack on the presence of one person with up to 3 rows has an AUC above 0.731" in page

    # The same by hand: the rows that sites had, and those held out, of all visits.
    kept = frame[frame["patient"].isin(identified(frame, persons[0]))].groupby("patient").head(3)
    held = frame[frame["patient"].isin(identified(frame, persons[1]))]
    for name, part in {"real": kept, "held": held, "mixed": frame}.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    files = (tmp_path / "real.csv", run / "synthetic.csv", "--schema", schema, "--out", tmp_path / "scores")
    stated = ("--epsilon", 1, "--delta", "1e-6", *unit, "--force")
    by_hand = answer("evaluate", *files, "--holdout", tmp_path / "held.csv", *stated)
    assert by_hand["persons"] == said["persons"]
    assert by_hand["attacked"] == said["attacked"]
    assert by_hand["rows"]["holdout"] == 4 * len(persons[1])  # none is dropped
    wrong = fedsynth("evaluate", *files, "--holdout", tmp_path / "mixed.csv", *stated)
    assert wrong.returncode == 6
    assert f"{len(persons[0])} of the 150 persons in the hold-out table also have rows" in wrong.stderr
    missing = fedsynth("evaluate", *files, "--person", "nobody", "--force")
    assert missing.returncode == 3
    assert "nobody" in missing.stderr


def identified(frame: pd.DataFrame, persons: np.ndarray) -> np.ndarray:
    return frame["patient"][np.isin(identify(frame["patient"]), persons)].unique()


@pytest.mark.parametrize("trust", ["trusted", "local", "secure"])
def test_a_run_is_proved_from_its_folder(people, schema, tmp_path, trust):
    run = tmp_path / "run"
    answer("simulate", "--data", people, "--schema", schema, *BUDGET, "--sites", 3, "--trust", trust, "--out", run)
    done = fedsynth("verify", run)
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = json.loads((run / "ledger.json").read_text())
    ledger["entries"][0]["cost"]["rho"] /= 2
    (run / "ledger.json").write_text(json.dumps(ledger))
    assert fedsynth("verify", run).returncode == 8


def test_parquet_out_and_synthfs(tmp_path):
    answer(
        "simulate", "--partition", "synthfs:2", *BUDGET, "--sites", 3, "--format", "parquet", "--out", tmp_path / "r"
    )
    assert pd.read_parquet(tmp_path / "r" / "synthetic.parquet").shape[1] == 10


WRONG: list[tuple[list[str], int, str]] = [
    (["--data", "PEOPLE"], 2, "--epsilon and --delta are required"),
    (["--data", "PEOPLE", "--epsilon", "0", "--delta", "1e-6"], 2, "epsilon must be"),
    (["--data", "PEOPLE", "--epsilon", "-1", "--delta", "1e-6"], 2, "epsilon must be"),
    (["--data", "PEOPLE", "--epsilon", "1", "--delta", "1"], 2, "delta must be at least 0"),
    (["--data", "PEOPLE", "--epsilon", "nan", "--delta", "0"], 2, "epsilon must be"),
    (["--data", "PEOPLE", *BUDGET, "--rows-per-person", "0"], 2, "--rows-per-person"),
    (["--data", "PEOPLE", *BUDGET, "--person", "nobody"], 3, "nobody"),
    (["--data", "demo:rand-hie", *BUDGET, "--person", "id"], 2, "leave --records and --person out"),
    (["--data", "demo:rand-hie", *BUDGET, "--records", "lines"], 2, "leave --records and --person out"),
    (["--data", "nowhere.csv", *BUDGET], 2, "nowhere.csv"),
    (["--data", "PEOPLE", *BUDGET, "--sites", "601"], 6, "ask for fewer sites"),
    (["--data", "PEOPLE", *BUDGET, "--sites", "0"], 2, "--sites"),
    (["--data", "PEOPLE", *BUDGET, "--method", "zzz"], 6, "choose one of"),
    (["--data", "PEOPLE", *BUDGET, "--trust", "four-servers"], 6, "no trust model named"),
    (["--data", "PEOPLE", *BUDGET, "--method", "aim", "--trust", "local"], 6, "add --trust trusted"),
    (["--data", "PEOPLE", *BUDGET, "--partition", "zigzag"], 6, "label-skew:A"),
    (["--data", "PEOPLE", *BUDGET, "--partition", "column:nowhere"], 3, "no column 'nowhere'"),
    (["--data", "PEOPLE", *BUDGET, "--holdout", "0.1", "--target", "nowhere"], 3, "no column 'nowhere'"),
    (["--data", "PEOPLE", *BUDGET, "--set", "rounds"], 2, "NAME=VALUE"),
    (["--data", "PEOPLE", *BUDGET, "--set", "speed=3"], 6, "no option speed"),
    (["--data", "PEOPLE", *BUDGET, "--set", "survey_share=1"], 2, "strictly between 0 and 1"),
    (["--data", "PEOPLE", *BUDGET, "--method", "flaim", "--set", "rounds=0"], 2, "a whole number of at least 1, not 0"),
    (["--data", "PEOPLE", *BUDGET, "--method", "flaim", "--set", "rate=2"], 2, "(0, 1]"),
    (["--data", "PEOPLE", *BUDGET, "--method", "flaim", "--workload", "x"], 6, "ORDER"),
    (["--data", "PEOPLE", *BUDGET, "--method", "oneshot", "--workload", "2"], 6, "leave --workload out"),
    (["--data", "PEOPLE", *BUDGET, "--holdout", "1.5"], 2, "holdout"),
    (["--data", "PEOPLE", *BUDGET, "--format", "xlsx"], 2, "choose one of csv, parquet"),
    (["--data", "PEOPLE", *BUDGET, "--target", "region"], 6, "--holdout 0.1"),
    ([*BUDGET], 2, "--data FILE"),
    (["--config", "nowhere.toml"], 2, "nowhere.toml"),
    (["--config", "run.toml", "--epsilon", "2"], 2, "--epsilon would change it"),
    (["--config", "run.toml", "--delta", "0", "--trust", "local"], 2, "--delta, --trust would change it"),
    (["--config", "run.toml", "--public-sizes"], 2, "--public-sizes would change it"),
    (["--config", "run.toml", "--rows-per-person", "2"], 2, "--rows-per-person would change it"),
    (["--config", "run.toml", "--seed", "1"], 2, "--seed would change it"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), WRONG)
def test_a_mistake_gets_a_clear_line_its_exit_code_and_leaves_nothing(people, tmp_path, arguments, code, says):
    out = tmp_path / "run"
    done = fedsynth("simulate", *[str(people) if a == "PEOPLE" else a for a in arguments], "--out", out)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_under_json_is_json(people, tmp_path):
    done = fedsynth("simulate", "--data", people, *BUDGET, "--sites", 601, "--out", tmp_path / "r", "--json")
    said = json.loads(done.stdout)
    assert (said["error"], said["exit_code"], done.returncode) == ("Unsupported", 6, 6)
    done = fedsynth("simulate", "--data", people, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2


def test_a_file_that_does_not_fit_is_named_and_checked(people, schema, tmp_path):
    rows = people.read_text().splitlines()
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join([*rows[:5], rows[5].replace(rows[5].split(",")[-1], "moon"), *rows[6:]]) + "\n")
    said = answer("simulate", "--data", broken, "--schema", schema, *BUDGET, "--out", tmp_path / "whole")
    assert said["rows_left_out"] == 1
    done = fedsynth("evaluate", broken, people, "--schema", schema, "--out", tmp_path / "scores")
    assert done.returncode == 3
    assert "1 of the 600 rows of broken.csv do not fit the schema" in done.stderr
    done = fedsynth("schema", "check", broken, "--schema", schema)
    assert done.returncode == 3
    assert "column 'region', row 4: 'moon' is not listed: row left out; add it to values" in done.stdout
    assert "600 rows, 1 of them left out" in done.stdout
    short = tmp_path / "short.csv"
    pd.read_csv(people).drop(columns="age").to_csv(short, index=False)
    done = fedsynth("simulate", "--data", short, "--schema", schema, *BUDGET, "--out", tmp_path / "r")
    assert done.returncode == 3
    assert "age" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_run_directory_is_replaced_only_on_request_and_only_if_it_is_one(people, tmp_path):
    out = tmp_path / "run"
    answer("simulate", "--data", people, *BUDGET, "--out", out, "--seed", 1)
    before = (out / "synthetic.csv").read_bytes()
    done = fedsynth("simulate", "--data", people, *BUDGET, "--out", out)
    assert done.returncode == 8
    assert "--force" in done.stderr
    failed = fedsynth("simulate", "--data", people, *BUDGET, "--out", out, "--force", "--partition", "column:nowhere")
    assert failed.returncode == 3
    assert (out / "synthetic.csv").read_bytes() == before  # a run that fails destroys nothing
    answer("simulate", "--data", people, *BUDGET, "--out", out, "--seed", 2, "--force")
    assert (out / "synthetic.csv").read_bytes() != before
    precious = tmp_path / "photos"
    precious.mkdir()
    (precious / "a.jpg").write_text("x")
    done = fedsynth("simulate", "--data", people, *BUDGET, "--out", precious, "--force")
    assert done.returncode == 8
    assert (precious / "a.jpg").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "run"]


@pytest.mark.parametrize(
    ("full", "says"), [(False, "about 7 s of one core (--full: 50 s)"), (True, "about 50 s of one core")]
)
def test_evaluate_says_beforehand_how_long_it_takes(full, says, monkeypatch, capsys):
    seconds = {False: 7.2, True: 50.4}
    monkeypatch.setattr("fedsynth.evaluation.evaluate.forecast", lambda evidence, settings: seconds[settings.full])
    table = encode(Schema((Categorical("c", ("a", "b")),)), pd.DataFrame({"c": ["a", "b"]}))
    _announce(EvaluationTables(table, table), EvaluationSettings(full=full), json_=False)
    assert capsys.readouterr().err == f"Measuring: {says}.\n"
    _announce(EvaluationTables(table, table), EvaluationSettings(full=full), json_=True)
    assert capsys.readouterr().err == ""


def test_evaluate_writes_scores_and_a_page(people, schema, tmp_path):
    frame = pd.read_csv(people, dtype={"zip": str})
    files = {"train": frame[:250], "synthetic": frame[250:450], "test": frame[450:]}
    for name, part in files.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    three = (tmp_path / "train.csv", tmp_path / "synthetic.csv", "--schema", schema, "--holdout", tmp_path / "test.csv")
    out = tmp_path / "scores"
    first = fedsynth("evaluate", *three, "--target", "region", "--out", out)
    assert first.stderr == ""  # over at once
    assert "add --full" in first.stdout
    stated = ("--epsilon", 1, "--delta", "1e-6", "--full", "--force")
    said = answer("evaluate", *three, "--target", "region", "--out", out, *stated)
    assert sorted(path.name for path in (out / "private").iterdir()) == ["report.html", "scores.csv", "scores.json"]
    assert said["rows"] == {"real": 250, "synthetic": 200, "holdout": 150}
    assert said["about"]["data"] == "train.csv"
    table = pd.read_csv(out / "private" / "scores.csv").set_index("name")
    assert 0 < float(table["p_value"]["membership AUC, DOMIAS"]) <= 1
    assert float(table["bound"]["membership AUC, DOMIAS"]) == pytest.approx(math.e / (1 + math.e), abs=1e-5)
    assert list(table.index) == [score["name"] for score in said["scores"]]
    assert set(table["family"]) == {"fidelity", "utility", "privacy"}
    column = table.loc["column similarity"]
    details = next(s for s in said["scores"] if s["name"] == "column similarity")["details"]
    assert column["synthetic"] == pytest.approx(np.mean([one for one, _ in details.values()]))
    assert column["synthetic_low"] < column["synthetic"] < column["synthetic_high"]
    page = (out / "private" / "report.html").read_text()
    assert "<script" not in page
    assert "column similarity" in page

    again = fedsynth("evaluate", *three, "--out", out)
    assert again.returncode == 8
    assert "--force" in again.stderr
    half = fedsynth("evaluate", *three, "--out", tmp_path / "x", "--epsilon", 1)
    assert half.returncode == 2
    wrong = fedsynth("evaluate", *three, "--out", tmp_path / "x", "--target", "nobody")
    assert wrong.returncode == 3
    assert not (tmp_path / "x").exists()
    assert fedsynth("report", out).returncode == 0
    fresh = fedsynth("report", out, "--fresh")
    assert fresh.returncode == 6
    assert f"fedsynth evaluate REAL SYNTHETIC ... --out {out} --force" in fresh.stderr


def test_a_report_is_of_the_very_rows_of_the_run(people, schema, tmp_path):
    data = tmp_path / "data.csv"
    data.write_bytes(people.read_bytes())
    run, first_day = tmp_path / "run", datetime.date.today()
    answer(
        "simulate",
        "--data",
        data,
        "--schema",
        schema,
        *BUDGET,
        "--method",
        "oneshot",
        "--set",
        "bins_share=0",
        "--sites",
        3,
        "--holdout",
        0.25,
        "--out",
        run,
    )
    said = answer("report", run, "--target", "region", "--sensitive", "member", "--known", "zip,age,income")
    assert said["rows"]["real"] + said["rows"]["holdout"] == 600
    assert 100 < said["rows"]["holdout"] < 200  # each row by itself, with probability .25: 4.7 standard deviations
    assert any("likelihood" in score["name"] for score in said["scores"])
    assert (run / "private" / "report.html").exists()
    stamp = (run / "private" / "scores.json").stat().st_mtime_ns
    assert answer("report", run)["target"] == "region"  # drawn again from the scores that are there
    assert (run / "private" / "scores.json").stat().st_mtime_ns == stamp
    assert "Report on the synthetic version of data.csv" in (run / "private" / "report.html").read_text()
    day = datetime.date.fromisoformat(said["about"]["date"])
    assert first_day <= day <= datetime.date.today()  # at midnight, two days
    assert said["about"] == {"title": "", "owner": "", "data": "data.csv", "date": day.isoformat()}
    again = answer("report", run, "--title", "Members", "--owner", "The <Office>")
    assert again["about"] == {**said["about"], "title": "Members", "owner": "The <Office>"}
    assert answer("report", run)["about"] == again["about"]  # kept, and not measured again
    assert "The &lt;Office&gt;" in (run / "private" / "report.html").read_text()
    full = answer("report", run, "--full")  # of a first report, the rest is measured, for the same target
    assert "propensity" in {score["metric"] for score in full["scores"]} - {score["metric"] for score in said["scores"]}
    assert full["target"] == "region"
    stamp = (run / "private" / "scores.json").stat().st_mtime_ns
    assert answer("report", run, "--full") == answer("report", run) == full
    assert (run / "private" / "scores.json").stat().st_mtime_ns == stamp
    kept = answer("report", run, "--fresh", "--title", "Insured")["about"]
    assert day <= datetime.date.fromisoformat(kept["date"]) <= datetime.date.today()
    # The owner given before stays where scores are computed.
    assert kept == {**again["about"], "title": "Insured", "date": kept["date"]}

    data.write_text(data.read_text().replace("north", "south", 1))
    (run / "private" / "rows.key").rename(run / "rows.away")
    assert "rows.key is missing" in fedsynth("report", run, "--fresh").stderr
    (run / "rows.away").rename(run / "private" / "rows.key")
    changed = fedsynth("report", run, "--fresh")
    assert changed.returncode == 8
    assert "no longer holds the rows" in changed.stderr
    data.unlink()
    assert "is gone" in fedsynth("report", run, "--fresh").stderr
    assert fedsynth("report", run).returncode == 0
    assert fedsynth("report", tmp_path).returncode == 8


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("folder/members.csv", "members.csv"),
        ("postgresql://reader:secret@host/clinic?table=public.visits", "public.visits"),
        ("demo:rand-hie", "the RAND Health Insurance Experiment"),
        ("", ""),
    ],
)
def test_a_report_names_the_data_and_never_an_address(data, name):
    assert data_name(data) == name


@pytest.mark.parametrize(
    ("options", "private"),
    [
        (("--method", "oneshot"), True),
        (("--method", "augflaim-oracle", "--set", "not_private=true"), False),
        (("--seed", 1), False),
    ],
)
def test_attacks_are_held_against_a_guarantee_only_where_there_is_one(people, schema, tmp_path, options, private):
    run = tmp_path / "run"
    answer("simulate", "--data", people, "--schema", schema, *BUDGET, "--holdout", 0.4, "--out", run, *options)
    said = answer("report", run, "--full")
    texts = [score["says"] + score["note"] for score in said["scores"] if "membership" in score["name"]]
    assert texts
    assert all(("formal guarantee" in text) == private for text in texts)


def test_records_of_another_source_than_a_csv_file_are_wrong_usage():
    done = fedsynth("compare", "--data", "demo:rand-hie", "--records", "rfc4180", *BUDGET)
    assert done.returncode == 2
    assert "--records is the kind of a CSV file, and the demo table is none; leave it out" in done.stderr


def test_compare_prints_the_three_arms(people, schema, tmp_path):
    options = ("--data", people, "--schema", schema, *BUDGET, "--sites", 2, "--repeats", 2, "--test", "student")
    done = fedsynth("compare", *options, "--target", "region", "--out", tmp_path / "c.json")
    assert done.returncode == 0, done.stderr
    assert "federated" in done.stdout
    assert "Holm" in done.stdout
    content = json.loads((tmp_path / "c.json").read_text())
    assert all(len(line[arm]) == 2 for line in content["lines"] for arm in ("federated", "pooled", "local"))
    assert fedsynth("compare", *options, "--test", "magic").returncode == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "fedmigrationpaper", "--set", "not_private=true"], "NOT PRIVATE"),
        (["--method", "fedchowliu", "--trust", "secure", "--trust-set", "min_honest=3"], "trust secure"),
    ],
)
def test_compare_runs_what_is_not_private_and_secure_sums(people, schema, options, said):
    done = fedsynth("compare", "--data", people, "--schema", schema, *BUDGET, "--sites", 3, "--repeats", 2, *options)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout.splitlines()[0]


def test_a_draft_does_not_overwrite_an_edited_schema(people, schema):
    kept = schema.read_text()
    done = fedsynth("schema", "draft", people, "--out", schema)
    assert done.returncode == 8
    assert schema.read_text() == kept


def test_methods_are_listed_with_options():
    listed = {one["name"]: one for one in answer("methods")}
    assert set(listed) >= {
        "auto", "oneshot", "aim", "mst", "flaim", "augflaim", "augflaim-oracle", "randomflaim", "fednaivebayes",
        "privsyn", "fedprivsyn", "adafedprivsyn", "allmarginals", "randommarginals",
        "tda", "tdamixture", "tdapaper", "fedchowliu", "fedmigration", "fedmigrationpaper", "privbayes",
        "fedtabdiff", "fedvae", "fedctgan", "fedavggan", "fedtgan",
    }  # fmt: skip
    assert listed["augflaim"]["options"]["rounds"] == 10
    assert listed["aim"]["trusts"] == ["trusted", "three-servers"]
    assert listed["privsyn"]["trusts"] == ["trusted"]
    assert "NOT PRIVATE" in listed["augflaim-oracle"]["summary"]
    assert "augflaim" in fedsynth("methods").stdout


def test_help_has_examples_and_starts_without_the_heavy_libraries():
    for command in (
        [],
        ["simulate"],
        ["demo"],
        ["evaluate"],
        ["report"],
        ["compare"],
        ["bench"],
        ["sample"],
        ["methods"],
        ["schema"],
        ["schema", "draft"],
        ["schema", "check"],
    ):
        done = fedsynth(*command, "--help")
        assert done.returncode == 0
        if command and command != ["schema"]:
            assert "fedsynth " + " ".join(command) in done.stdout, command
    code = "import sys, fedsynth.cli.app; print([m for m in ('numpy', 'pandas') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_demo_needs_no_file(tmp_path):
    said = answer("demo", "--out", tmp_path / "demo")
    assert said["ledger"]["spent"]["epsilon_at_delta"] <= 1
    assert said["statement"]["publishable"]
    assert len(said["columns"]) == 8
    scores = {score["name"]: score for score in said["scores"]}
    auc = next(score for name, score in scores.items() if "ROC AUC" in name)
    assert 0.65 < auc["synthetic"]["value"] <= auc["reference"]["value"] + 0.02
    assert tomllib.loads((tmp_path / "demo" / "run.toml").read_text())["data"] == "demo:rand-hie"
    assert len(pd.read_csv(tmp_path / "demo" / "synthetic.csv")) == said["rows"]
    assert said["report"] == str(tmp_path / "demo" / "private" / "report.html")
    assert "(ε = " in Path(said["report"]).read_text() or "epsilon" in Path(said["report"]).read_text()


def test_a_job_survives_toml_and_unknown_entries_are_named():
    job = Job("aim", math.inf, 0, data="x.csv", sites=3, seed=4, options={"rounds": 3, "measure_share": 0.8})
    assert Job.from_toml(job.to_toml()) == job
    with pytest.raises(FedsynthError, match="mystery"):
        Job.from_toml(job.to_toml().replace("sites", "mystery"))


def test_workload_and_option_texts():
    assert len(parse_workload("3:64:1", 14)) == 64
    assert len(parse_workload("2", 5)) == 10
    assert parse_workload("3", 2) == ((0, 1),)
    assert parse_option("rounds=3") == ("rounds", 3)
    assert parse_option("rate=0.5") == ("rate", 0.5)
    for text in ("0", "3:-1", "2:3:4:5"):
        with pytest.raises(Unsupported, match="ORDER"):
            parse_workload(text, 5)


def test_nothing_printed_or_logged_commands_the_terminal(capsys):
    """Texts quote what coordinators send and files hold."""
    from fedsynth.cli.options import log_to_stderr, say

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        log_to_stderr(json_=False)
        logging.getLogger("fedsynth").warning("refused: %s", "unknown field `\x1b[2J`")
    finally:
        root.handlers[:], root.level = handlers, level
    say(json_=False, facts={}, text="a\x1b[2Jb\nc")
    printed = capsys.readouterr()
    assert "refused: unknown field `\\x1b[2J`" in printed.err
    assert printed.out == "a\\x1b[2Jb\nc\n"
