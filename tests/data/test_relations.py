"""Relations that a draft proposes: each planted one, none in independent rows, and what holds once they are pasted."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.command import run
from tests.public_data import public_data

import fedsynth as fs
from fedsynth.data.draft import Draft, draft_from_sdv, draft_schema
from fedsynth.schema import Schema

ROWS = 1500
DAY = pd.Timedelta(1, "D")


def world(rows: int = ROWS, seed: int = 0) -> dict[str, Any]:
    """Independent columns of many kinds, from which tables are made."""
    rng = np.random.default_rng(seed)
    city = rng.integers(0, 30, rows)
    came = pd.Series(pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1800, rows), "D"))
    clock = came + pd.to_timedelta(rng.integers(0, 86400, rows), "s")
    return {
        "rng": rng,
        "a": rng.integers(0, 90, rows),
        "b": rng.integers(0, 60, rows),
        "c": rng.integers(0, 40, rows),
        "price": rng.uniform(1, 90, rows).round(2),
        "share": rng.uniform(0, 1, rows).round(3),
        "few": rng.integers(1, 6, rows),
        "flag": rng.integers(0, 2, rows),
        "sex": rng.choice(["f", "m"], rows),
        "town": np.array([f"town {at:02}" for at in range(30)])[city],
        "land": np.array(["AT", "CH", "DE", "FR", "IT"])[city % 5],
        "coast": np.array(["no", "no", "no", "yes", "yes"])[city % 5],
        "came": came,
        "clock": clock,
        "days": rng.integers(0, 40, rows),
        "gone": rng.random(rows) < 0.1,
    }


def made(name: str, rows: int = ROWS, seed: int = 0) -> tuple[pd.DataFrame, list[str]]:
    """Return a table and the relations that it has, as lines of a draft."""
    x = world(rows, seed)
    left = x["came"] + pd.to_timedelta(x["days"], "D")
    weekday, month, hour = x["came"].dt.day_name().str[:3], x["came"].dt.month, x["clock"].dt.hour
    tables: dict[str, tuple[dict[str, Any], list[str]]] = {
        "copies": (
            {"sex": x["sex"], "age": x["a"], "sex2": x["sex"], "age2": np.where(x["gone"], np.nan, x["a"])},
            ['computed = { copy = "sex" }', 'computed = { copy = "age" }'],
        ),
        "date of a time": (
            {"day": x["clock"].dt.normalize(), "came_at": x["clock"], "price": x["price"]},
            ['computed = { copy = "came_at" }'],
        ),
        "parts of times": (
            {"came": x["came"], "weekday": weekday, "month": month, "b": x["b"]},
            ['computed = { part = "weekday", of = "came" }', 'computed = { part = "month", of = "came" }'],
        ),
        "hour": ({"at": x["clock"], "hour": hour, "c": x["c"]}, ['computed = { part = "hour", of = "at" }']),
        "total": ({"a": x["a"], "b": x["b"], "total": x["a"] + x["b"]}, ['computed = { sum = ["a", "b"] }']),
        "total of four": (
            {"all": x["a"] + x["b"] + x["c"] + x["few"], "a": x["a"], "b": x["b"], "c": x["c"], "few": x["few"]},
            ['computed = { sum = ["a", "b", "c", "few"] }'],
        ),
        "amount": (
            {"few": x["few"], "price": x["price"], "amount": (x["few"] * x["price"]).round(2)},
            ['computed = { product = ["few", "price"] }'],
        ),
        "change": (
            {"before": x["a"], "after": x["b"], "change": x["b"] - x["a"]},
            ['computed = { difference = ["after", "before"] }'],
        ),
        "stay": (
            {"came": x["came"], "left": left.where(~x["gone"]), "stay": (left - x["came"]).dt.days.where(~x["gone"])},
            [
                'computed = { difference = ["left", "came"], unit = "day" }',
                'stored = { difference = ["left", "came"], unit = "day", lower = 0, upper = 50 }',
            ],
        ),
        "orders": (
            {"low": x["a"], "mid": x["a"] + x["b"] * x["share"].round(1), "high": x["a"] + x["b"] + x["c"]},
            [
                'stored = { difference = ["mid", "low"], lower = 0, upper = 100 }',
                'stored = { difference = ["high", "mid"], lower = 0, upper = 200 }',
            ],
        ),
        "lookups": (
            {"town": x["town"], "land": x["land"], "coast": x["coast"], "few": x["few"]},
            ['computed = { lookup = "town", learned = 0.05 }'] * 2,
        ),
        "all": (
            {
                "town": x["town"],
                "land": x["land"],
                "a": np.where(x["gone"], np.nan, x["a"]),
                "b": x["b"],
                "total": np.where(x["gone"], np.nan, x["a"] + x["b"]),
                "came": x["came"],
                "left": left,
                "weekday": x["came"].dt.day_of_week,
                "sex": x["sex"],
            },
            [
                'computed = { lookup = "town", learned = 0.05 }',
                'computed = { sum = ["a", "b"] }',
                'stored = { difference = ["left", "came"], unit = "day", lower = 0, upper = 50 }',
                'computed = { part = "weekday", of = "came" }',
            ],
        ),
    }
    columns, expected = tables[name]
    return pd.DataFrame(columns), expected


MADE = [
    *("copies", "date of a time", "parts of times", "hour", "total", "total of four"),
    *("amount", "change", "stay", "orders", "lookups", "all"),
]


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table as a CSV file has it."""
    return frame.astype(object).map(lambda cell: "" if pd.isna(cell) else str(cell)).astype(object)


def forms(draft: Draft) -> list[str]:
    lines = [line for lines in draft.relations.values() for line in lines]
    return sorted(line for line in lines if line.startswith(("computed", "stored")))


def pasted(draft: Draft) -> Schema:
    """Return the schema of a draft's text once a person has taken the comments from the lines of all relations."""
    head, *blocks = draft.to_toml().split("\n[[column]]\n")
    done = [head]
    for block in blocks:
        name = tomllib.loads(block)["name"]
        lines = draft.relations.get(name, [])
        assert all(f"# {line}\n" in block for line in lines)
        replaced = {line.partition(" = ")[0] for line in lines}
        own = re.sub(r"^#.*\n", "", block, flags=re.M)
        entries = dict.fromkeys(tomllib.loads(own))
        kept = {"name"} if "type" in replaced else entries.keys() - replaced
        rest = Schema.from_toml(f"fedsynth_schema = 1\n[[column]]\n{own}").to_toml().partition("[[column]]\n")[2]
        parts = re.split(r"^(?=\w+ = )", rest, flags=re.M)
        done.append(
            "".join([*(part for part in parts if part.partition(" = ")[0] in kept), *(f"{x}\n" for x in lines)])
        )
    return Schema.from_toml("\n[[column]]\n".join(done)).confirmed()


@pytest.mark.parametrize("name", MADE)
def test_each_planted_relation_is_proposed_and_no_other(name):
    frame, expected = made(name)
    draft = draft_schema(frame)
    assert forms(draft) == sorted(expected)
    counted = [note for notes in draft.notes.values() for note in notes if " rows where " in note]
    assert len(counted) == len(expected)
    assert draft.schema == draft_schema(frame.sample(frac=1, random_state=1)).schema  # nothing is applied
    assert not any(getattr(column, "computed", None) for column in draft.schema.columns)
    assert draft_schema(as_text(frame)).relations == draft.relations
    pasted(draft)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_proposed_of_independent_columns(name, seed):
    frame, _ = made(name, seed=seed)
    rng = np.random.default_rng(seed)
    mixed = pd.DataFrame({key: rng.permutation(values.to_numpy()) for key, values in frame.items()})
    assert draft_schema(mixed).relations == {}


@pytest.mark.parametrize("rows", [1, 12, 40])
def test_few_rows_prove_nothing(rows):
    rng = np.random.default_rng(rows)
    frame = pd.DataFrame({f"c{at}": rng.integers(0, 40, rows) + (rng.random(rows) < 0.5) / 2 for at in range(20)})
    assert draft_schema(frame, rare=1).relations == {}


def agrees(line: str, column: str, rows: pd.DataFrame) -> bool:
    """Return whether all rows have the relation that a line declares of a column, where all its columns are known."""
    ((_, form),) = tomllib.loads(line).items()
    (name,) = {"copy", "part", "sum", "product", "difference", "lookup"} & form.keys()
    operands = [form["of"]] if name == "part" else [form[name]] if isinstance(form[name], str) else form[name]
    known = rows.dropna(subset=[column, *operands])
    own, first = known[column], known[operands[0]]
    if name == "lookup":
        return not (known[first != "other"].groupby(operands[0])[column].nunique() > 1).any()
    if name == "part":
        field = {"weekday": "day_of_week"}.get(form["part"], form["part"])
        return not (own.groupby(getattr(first.dt, field)).nunique() > 1).any()
    if name == "copy":
        return bool((own == (first.dt.normalize() if column == "day" else first)).all())
    if name == "difference":
        apart = first - known[operands[1]]
        apart = apart / DAY if "unit" in form else apart
        return bool((apart >= 0).all() if "lower" in form else np.allclose(apart, own))
    found = known[operands].sum(axis=1) if name == "sum" else known[operands].prod(axis=1)
    return bool(np.allclose(found, own, rtol=0, atol=0.00501))


@pytest.mark.parametrize("name", MADE)
def test_what_is_pasted_holds_in_all_synthetic_rows(name):
    frame, expected = made(name)
    draft = draft_schema(frame)
    schema = pasted(draft)
    lines = [(column, line) for column, lines in draft.relations.items() for line in lines]
    declared = [(column, line) for column, line in lines if line.startswith(("computed", "stored"))]
    assert len(declared) == len(expected)
    assert all(agrees(line, column, frame) for column, line in declared)
    rows = fs.fit(frame, schema, epsilon=4, delta=1e-5, method="oneshot", seed=1).sample(1000, seed=2)
    assert len(rows) == 1000
    assert [line for column, line in declared if not agrees(line, column, rows)] == []


GIBLEED = {
    "condition_occurrence": ["end_date >= start_date", "condition_concept_id gives condition_name"],
    "drug_exposure": [
        "days_supply = end_date - start_date in days",
        "drug_concept_id gives drug_name",
        "end_date >= start_date",
    ],
    "person": ["ethnicity gives race"],
    "procedure_occurrence": ["procedure_concept_id gives procedure_name"],
    "visit_occurrence": ["end_date >= start_date"],
}


@pytest.mark.filterwarnings("ignore::fedsynth.errors.DataWarning")  # rare values are "other", identifiers left out
@pytest.mark.parametrize("name", GIBLEED)
def test_relations_of_public_tables_are_proposed_and_hold_once_pasted(name):
    frame = pd.read_parquet(public_data(f"gibleed_{name}.parquet"))
    frame = frame.assign(**{str(day): pd.to_datetime(frame[day]) for day in frame if str(day).endswith("_date")})
    draft = draft_schema(frame)
    said = sorted(
        note.partition(" in all ")[0] for notes in draft.notes.values() for note in notes if "are known" in note
    )
    assert said == sorted(GIBLEED[name])
    synth = fs.fit(frame, pasted(draft), epsilon=4, delta=1e-6, method="oneshot", seed=1)
    rows = synth.sample(2000, seed=2)
    lines = [(column, line) for column, lines in draft.relations.items() for line in lines]
    declared = [(column, line) for column, line in lines if line.startswith(("computed", "stored"))]
    assert len(declared) == len(said)
    assert [line for column, line in declared if not agrees(line, column, rows)] == []


X = world(3000, 5)
OF_SEVERAL: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a rounded total": (
        {"x": X["price"], "y": X["share"], "t": (X["price"] + X["share"]).round(1)},
        ["t = x + y"],
    ),
    "a difference by its name": (
        {"gross": X["a"] + X["b"], "tax": X["a"], "net": X["b"]},
        ["net = gross - tax", "gross >= tax"],
    ),
    "a subtotal": (
        {"a": X["a"], "b": X["b"], "sub": X["a"] + X["b"], "c": X["c"], "t": X["a"] + X["b"] + X["c"]},
        ["sub = a + b", "t = sub + c"],
    ),
    "a subtotal behind its total": (
        {"t": X["a"] + X["b"] + X["c"], "a": X["a"], "b": X["b"], "c": X["c"], "sub": X["a"] + X["b"]},
        ["t = a + b + c", "sub = a + b"],
    ),
    "two totals of three": (
        {
            "a": X["a"],
            "b": X["b"],
            "c": X["c"],
            "p": X["price"],
            "t": X["a"] + X["b"] + X["c"],
            "u": (X["a"] + X["price"] + X["c"]).round(2),
        },
        ["t = a + b + c", "u = a + c + p"],
    ),
    "mostly zero": (
        {
            "x": X["a"] * (X["few"] > 4),
            "y": X["b"] * (X["few"] < 2),
            "t": X["a"] * (X["few"] > 4) + X["b"] * (X["few"] < 2),
        },
        ["t = x + y"],
    ),
    "counts that are listed": ({"f": X["few"], "m": X["flag"], "n": X["few"] + X["flag"]}, ["n = f + m"]),
    "a fiscal month": (
        {"day": X["came"], "fm": (X["came"].dt.month + 5) % 12 + 1},
        ["fm is the month of day"],
    ),
    "two categories in another spelling": (
        {"sex": X["sex"], "gender": np.where(X["sex"] == "f", "W", "M")},
        ["sex gives gender"],
    ),
    "three equal dates": ({"d": X["came"], "e": X["came"], "f": X["came"]}, ["e = d", "f = d"]),
}


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_of_relations_that_say_the_same_the_simplest_is_proposed(name):
    columns, expected = OF_SEVERAL[name]
    draft = draft_schema(pd.DataFrame(columns))
    said = [note.partition(" in all ")[0] for notes in draft.notes.values() for note in notes if "are known" in note]
    assert sorted(said) == sorted(expected)
    pasted(draft)


def test_what_would_be_lost_by_computing_a_column_is_counted():
    frame, _ = made("total")
    frame["a"] = frame["a"].where(np.arange(ROWS) % 5 > 0)
    frame["total"] = frame["total"].where(np.arange(ROWS) % 500 != 1)
    draft = draft_schema(frame)
    (note,) = [note for note in draft.notes["total"] if "a + b" in note]
    assert note == (
        "total = a + b in all 1,197 rows where all are known; computed, it would be missing in 300 rows that have a "
        "value now; computed, it would have a value in 3 rows where it is missing now"
    )
    assert draft.relations["total"] == ['computed = { sum = ["a", "b"] }']  # it is missing = true already


def test_one_row_of_many_that_no_sample_shows_breaks_a_relation():
    frame, expected = made("total", rows=30_000)
    assert forms(draft_schema(frame)) == expected
    for row in range(0, 30_000, 7_000):
        changed = frame.assign(total=frame["total"] + (np.arange(30_000) == row))
        assert "computed" not in str(draft_schema(changed).relations)


def test_columns_beyond_those_compared_are_named_and_equal_ones_found():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"n{at}": rng.integers(0, 999, 400) for at in range(200)})
    frame["same"] = frame["n190"]
    draft = draft_schema(frame)
    assert draft.relations == {"same": ['computed = { copy = "n190" }']}
    (note,) = [note for notes in draft.notes.values() for note in notes if "the table has" in note]
    assert note in draft.notes["n128"]
    assert "201 numbers" in note
    assert "the first 128" in note


def test_many_learned_lookups_leave_the_budget_to_the_method():
    rng = np.random.default_rng(0)
    town = rng.integers(0, 20, 3000)
    columns = {f"of{at}": np.array([f"v{value}" for value in rng.integers(0, 3, 20)])[town] for at in range(12)}
    draft = draft_schema(pd.DataFrame({"town": [f"town {at}" for at in town], **columns}))
    shares = [tomllib.loads(line)["computed"]["learned"] for line in forms(draft)]
    assert len(shares) == 12
    assert sum(shares) <= 0.26
    assert len(pasted(draft).learned) == 12


def test_no_rare_value_and_none_of_an_identifier_is_in_a_proposal():
    x = world()
    town = np.where(np.arange(ROWS) < 9, "hapax", x["town"])
    land = np.where(np.arange(ROWS) < 9, "nowhere", x["land"])
    ids = np.array([f"P{at % 300 + 70_000}" for at in range(ROWS)])
    frame = pd.DataFrame({"patient_id": ids, "town": town, "land": land, "again": ids, "came": x["came"]})
    frame["weekday"] = np.where(np.arange(ROWS) < 0, "", x["came"].dt.day_name().str[:2])
    text = draft_schema(frame).to_toml()
    assert 'lookup = "town"' in text
    assert 'part = "weekday"' in text
    assert not re.search("hapax|nowhere|P7", text)
    rarely = frame[(x["came"].dt.day_of_week != 6) | (np.arange(ROWS) < 20)]
    text = draft_schema(rarely).to_toml()
    assert '"Su"' not in text
    assert 'part = "weekday"' not in text  # its list would name a rare value


def test_infinite_numbers_and_empty_overlaps_are_no_obstacle():
    frame, expected = made("total")
    price = world()["price"]
    frame["p"] = np.where(np.arange(ROWS) < 9, np.inf, price)
    frame["early"] = np.where(np.arange(ROWS) % 2, np.nan, price)
    frame["late"] = np.where(np.arange(ROWS) % 2, price, np.nan)
    assert set(expected) <= set(forms(draft_schema(frame)))


def test_a_draft_by_metadata_has_relations_and_so_has_the_command(tmp_path, capsys):
    frame, expected = made("total")
    columns = {name: {"sdtype": "numerical"} for name in frame}
    assert forms(draft_from_sdv(frame, {"columns": columns})) == expected
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert run("schema", "draft", tmp_path / "t.csv", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["relations"] == {"total": expected}
    assert f"# total = a + b in all 1,500 rows where all are known\n# {expected[0]}\n" in shown["schema"]


def test_serial_numbers_of_days_in_a_spreadsheet_have_relations():
    x = world()
    came = (x["came"] - pd.Timestamp("1899-12-30")).dt.days
    draft = draft_schema(pd.DataFrame({"date_in": came, "date_out": came + x["days"], "a": x["a"]}))
    assert forms(draft) == ['stored = { difference = ["date_out", "date_in"], unit = "day", lower = 0, upper = 50 }']
