"""``fedsynth answers``, and ``--questions`` of the commands that make and plan a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.golden.make import call

ASKED = """
answer_share = 0.3
cuts = { age = [40, 60, 75] }

[[question]]
kind = "share"
name = "readmitted"
of = "readmitted=yes"
among = "ward=cardiology"

[[question]]
kind = "mean"
name = "nights over 70"
column = "nights"
among = "age>70"

[[question]]
kind = "count"
name = "men in maternity"
among = "ward=maternity & sex=m"

[[criterion]]
kind = "cross"
name = "wards"
columns = ["ward"]
tolerance = 0.1
"""
RUN = "--schema agreed.toml --method oneshot --sites 3 --epsilon 2 --delta 1e-6 --trust trusted"

GOLDEN = [
    "readmitted               0.270  [0.243, 0.298]  noise 0.012, sampling 0.025",
    "nights over 70            4.21  [3.69, 4.74]  noise 0.40, sampling 0.34",
    "men in maternity            -6  [-24, 12]  noise 18, sampling 0",
    "wards: ward surgery      0.398  [0.385, 0.411]  noise 0.003, sampling 0.012",
    "wards: ward medicine     0.299  [0.287, 0.311]  noise 0.003, sampling 0.012",
    "wards: ward cardiology   0.207  [0.196, 0.218]  noise 0.003, sampling 0.010",
    "wards: ward maternity   0.0960  [0.0883, 0.1042]  noise 0.0028, sampling 0.0075",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of some questions, and of none."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "asked.toml").write_text(ASKED)
    assert call(folder, "example patients.csv --schema agreed.toml --rows 6000")[0] == 0
    simulate = f"simulate --data patients.csv {RUN} --seed 1"
    for out, more in (("run", "--questions asked.toml"), ("plain", "")):
        code, _, complaints = call(folder, f"{simulate} {more} --out {out}")
        assert code == 0, complaints
    return folder


def test_answers_are_shown_with_their_intervals_and_verdicts(place):
    code, out, complaints = call(place, "answers run")
    assert (code, complaints) == (0, "")
    answers, explained, agreed, verdicts = out.strip().split("\n\n")
    assert answers.splitlines() == GOLDEN
    assert explained.startswith("95 % intervals, with half-widths by the run's noise and by the sampling of the rows.")
    assert agreed == "The synthetic rows lie in 7 of 7 intervals."
    assert verdicts.startswith("met: wards: 0.0")
    assert verdicts.endswith("(95 %); tolerance 0.1")


def test_a_run_ends_with_its_answers(place, tmp_path):
    for name in ("asked.toml", "agreed.toml", "patients.csv"):
        shutil.copy(place / name, tmp_path)
    code, out, _ = call(tmp_path, f"simulate --data patients.csv {RUN} --seed 1 --questions asked.toml --out run")
    assert code == 0
    assert GOLDEN[0] in out
    assert "met: wards" in out
    code, again, _ = call(tmp_path, "simulate --config run/run.toml --out again --json")
    assert code == 0
    facts = json.loads(again)
    assert [answer["question"] for answer in facts["answers"]][:2] == ["readmitted", "nights over 70"]
    assert facts["criteria"][0]["verdict"] == "met"
    assert (tmp_path / "run" / "synthetic.csv").read_bytes() == (tmp_path / "again" / "synthetic.csv").read_bytes()


def test_json_has_the_numbers_of_the_text(place):
    facts = json.loads(call(place, "answers run --json")[1])
    first = facts["answers"][0]
    assert first["estimand"] == "share of rows with readmitted=yes among rows with ward=cardiology"
    assert first["low"] < first["value"] < first["high"]
    (verdict,) = facts["criteria"]
    assert (verdict["criterion"], verdict["verdict"], verdict["tolerance"]) == ("wards", "met", 0.1)
    share, rows = json.loads(call(place, 'answers plain "readmitted=yes" --json')[1])["answers"]
    assert (share["label"], rows["label"]) == ("share", "rows")
    assert rows["value"] == pytest.approx(share["value"] * 6000, rel=0.05)


def test_a_condition_is_estimated_from_released_tables(place):
    code, out, _ = call(place, 'answers plain "readmitted=yes & ward=cardiology"')
    assert code == 0
    share, rows = out.splitlines()
    assert share.startswith("readmitted=yes & ward=cardiology: share  0.0")
    assert rows.startswith("readmitted=yes & ward=cardiology: rows ")
    patients = pd.read_csv(place / "patients.csv")
    true = ((patients.readmitted == "yes") & (patients.ward == "cardiology")).sum()
    low, high = (float(end.replace(",", "")) for end in rows.partition("[")[2].partition("]")[0].split(", "))
    assert low - (high - low) < true < high + (high - low)


def test_all_released_tables_are_written(place, tmp_path):
    code, out, _ = call(place, f"answers plain --tables {tmp_path}/tables")
    assert code == 0
    files = sorted((tmp_path / "tables").iterdir())
    assert out == f"{len(files) - 1} tables and index.csv, which lists them, in {tmp_path}/tables/\n"
    assert pd.read_csv(tmp_path / "tables" / "index.csv").file.tolist() == [file.name for file in files[:-1]]
    assert len(files) > 10
    wards = [
        frame
        for frame in map(pd.read_csv, (tmp_path / "tables").glob("0*.csv"))
        if list(frame.columns) == ["ward", "count", "std"]
    ]
    assert wards
    assert set(wards[0].ward) == {"surgery", "medicine", "cardiology", "maternity"}
    assert wards[0]["count"].sum() == pytest.approx(6000, rel=0.05)
    listed = json.loads(call(place, f"answers plain --tables {tmp_path}/again --json")[1])["tables"]
    assert len(listed) == len(files)


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("answers nowhere", 8, "nowhere holds no run.toml"),
        ("answers plain", 6, "plain declared no questions; add [[question]] to its settings"),
        ("answers run moon=1", 2, "no column and comparison at 'moon=1'"),
        ("answers run ward=moon", 3, "cannot be met: 'moon'"),
        ('answers plain "ward=surgery & sex=f & readmitted=yes"', 6, "cannot be said from what was released"),
        ("answers run --tables plain", 8, "plain exists; choose another folder"),
        ("answers run sex=f --tables new", 2, "leave out 'sex=f', or --tables"),
        (f"simulate --data patients.csv {RUN} --questions none.toml --out new", 2, "none.toml"),
        (f"simulate --data patients.csv {RUN} --questions agreed.toml --out new", 2, "is unknown"),
        (f"simulate --data patients.csv {RUN} --questions empty.toml --out new", 2, "no question is declared"),
        (f"simulate --data patients.csv {RUN} --questions wrong.toml --out new", 2, "has kind = 'shares'"),
        (
            f"simulate --data patients.csv {RUN} --questions moon.toml --out new",
            2,
            "no column and comparison at 'moon=1'",
        ),
        ("simulate --config run/run.toml --questions asked.toml --out new", 2, "--questions would change it"),
        (f"plan --rows 2000 {RUN} --questions narrow.toml --out new", 2, "wants a half-width of 1e-05"),
    ],
)
def test_mistakes_are_sentences_and_leave_nothing_behind(place, command, code, says):
    question = '[[question]]\nkind = "share"\nname = "a"\nof = "readmitted=yes"\n'
    (place / "empty.toml").write_text("answer_share = 0.1\n")
    (place / "wrong.toml").write_text(question.replace("share", "shares"))
    (place / "moon.toml").write_text(question.replace("readmitted=yes", "moon=1"))
    (place / "narrow.toml").write_text(question + "within = 1e-5\n")
    found, out, complaints = call(place, command)
    assert says in complaints
    assert "Traceback" not in complaints
    assert found == code
    assert not out
    assert not (place / "new").exists()


def test_a_plan_says_what_to_expect_and_has_slots_for_the_questions(place, tmp_path):
    plan = f"plan --rows 20000 {RUN} --questions asked.toml --repeats 1"
    code, out, complaints = call(place, f"{plan} --out {tmp_path}/plan.toml")
    assert code == 0, complaints
    assert "Declared questions, for 30% of the budget" in out
    assert "  nights over 70: mean of nights among rows with age>70; 6.75% of the budget; half-width " in out
    text = (tmp_path / "plan.toml").read_text()
    assert text.count('kind = "weighted-counts"') == 2
    assert "nights over 70" in text
    facts = json.loads(call(place, f"{plan} --json")[1])
    assert [answer["question"] for answer in facts["answers"]][-1] == "wards"
