"""One row a person of an OMOP database: the views against pandas, on the public sample GiBleed and on PostgreSQL."""

from __future__ import annotations

import datetime
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from tests.command import invoke
from tests.data.postgres import server
from tests.public_data import public_data

from fedsynth import Schema
from fedsynth.data.omop import Persons, persons
from fedsynth.encoding import problems
from fedsynth.errors import InvalidParameter

INDEX = datetime.date(2010, 6, 15)
CONCEPTS = """\
[set.ulcer]
domain = "condition"
concepts = [80180, 81151]
columns = ["ever", "count", "first", "last"]

[set.bronchitis]
domain = "condition"
concepts = [260139]
columns = ["count"]
most = 50

[set.pain]
domain = "drug"
concepts = [1125315]
descendants = true
columns = ["first", "count"]

[set.joint]
domain = "procedure"
concepts = [4125906]
"""
_EVENTS = {
    "condition_occurrence": ("condition_concept_id", "condition_start_date"),
    "drug_exposure": ("drug_concept_id", "drug_exposure_start_date"),
    "procedure_occurrence": ("procedure_concept_id", "procedure_date"),
}
_DRUGS = (1127433, 1127078, 40231925)  # below acetaminophen, 1125315


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    """The sample's tables with the names and concepts of CDM 5.4."""
    sample = {name: pd.read_parquet(public_data(f"gibleed_{name}.parquet")) for name in ("person", *_EVENTS)}
    person = sample.pop("person")
    born = pd.to_datetime(person.birth_date)
    found = {
        "person": pd.DataFrame(
            {
                "person_id": person.person_id,
                "gender_concept_id": person.gender.map({"M": 8507, "F": 8532}),
                "year_of_birth": born.dt.year,
                "month_of_birth": born.dt.month,
                "day_of_birth": born.dt.day,
                "race_concept_id": person.race.map({"white": 8527, "black": 8516, "asian": 8515}).fillna(0).astype(int),
                "ethnicity_concept_id": 38003564,
            }
        ),
        "concept_ancestor": pd.DataFrame({"ancestor_concept_id": 1125315, "descendant_concept_id": [1125315, *_DRUGS]}),
    }
    for name, (_, day) in _EVENTS.items():
        found[name] = sample[name].rename(columns={"start_date": day})
    return found


def expected(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The same rows, counted by pandas."""
    person = tables["person"].set_index("person_id").sort_index()
    late = (person.month_of_birth * 100 + person.day_of_birth) > 615
    rows = pd.DataFrame({"age": 2010 - person.year_of_birth - late, "sex": person.gender_concept_id})
    rows["sex"] = rows.sex.map({8507: "male", 8532: "female"})
    sets: dict[str, tuple[str, tuple[int, ...]]] = {
        "ulcer": ("condition_occurrence", (80180, 81151)),
        "bronchitis": ("condition_occurrence", (260139,)),
        "pain": ("drug_exposure", (1125315, *_DRUGS)),
        "joint": ("procedure_occurrence", (4125906,)),
    }
    for name, (table, concepts) in sets.items():
        concept, day = _EVENTS[table]
        events = tables[table]
        days = pd.to_datetime(events[day])
        kept = events[events[concept].isin(concepts) & (days <= pd.Timestamp(INDEX))].assign(day=days)
        by_person = kept.groupby("person_id").day
        rows[f"{name}_count"] = by_person.count().reindex(rows.index).fillna(0).astype(int)
        rows[f"{name}_first"], rows[f"{name}_last"] = by_person.min(), by_person.max()
        rows[f"{name}_ever"] = rows[f"{name}_count"] > 0
    return rows


def made(folder: Path, address: str) -> Persons:
    (folder / "concepts.toml").write_text(CONCEPTS)
    return persons(address, folder / "concepts.toml", INDEX)


def viewed(tables: dict[str, pd.DataFrame], view: str) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA cdm")
        for name, table in tables.items():
            connection.register("given", table)
            connection.execute(f"CREATE TABLE cdm.{name} AS SELECT * FROM given")
        connection.execute(view)
        found: pd.DataFrame = connection.sql("SELECT * FROM cdm.fedsynth_persons ORDER BY person_id").df()
        return found.set_index("person_id")


def compare(found: pd.DataFrame, right: pd.DataFrame) -> None:
    assert len(found) == len(right) == 2694
    for name in set(found) - {"race", "ethnicity"}:
        one, two = found[name], right[name]
        if str(name).endswith(("_first", "_last")):
            one, two = pd.to_datetime(one), pd.to_datetime(two)
        assert ((one == two) | (one.isna() & two.isna())).all(), name
        assert two.nunique() > 1, name  # the comparison is of something


def test_the_view_equals_a_count_by_pandas_for_all_persons(tables, tmp_path):
    given = made(tmp_path, "duckdb:///omop.db?schema=cdm")
    found = viewed(tables, given.view)
    assert list(found) == list(given.schema.names)
    compare(found, expected(tables))
    assert set(found.race.dropna()) == {"white", "black or african american", "asian"}
    assert problems(given.schema, found[found.age >= 0]) == []


def test_one_event_more_changes_one_row(tables, tmp_path):
    given = made(tmp_path, "duckdb:///omop.db?schema=cdm")
    before = viewed(tables, given.view)
    events = tables["condition_occurrence"]
    event = events[events.condition_concept_id == 260139].iloc[[0]]
    more = {**tables, "condition_occurrence": pd.concat([events, event])}
    after = viewed(more, given.view)
    changed = ~((before == after) | (before.isna() & after.isna())).all(axis=1)
    assert list(changed[changed].index) == [event.person_id.iloc[0]]


def test_a_person_whom_the_table_has_twice_is_one_row(tables, tmp_path):
    given = made(tmp_path, "duckdb:///omop.db?schema=cdm")
    person = tables["person"]
    twice = {**tables, "person": pd.concat([person, person.iloc[[5]].assign(gender_concept_id=0)])}
    assert len(viewed(twice, given.view)) == len(person)


def test_sets_may_have_any_name(tables, tmp_path):
    (tmp_path / "words.toml").write_text(
        "".join(f'[set.{name}]\ndomain = "drug"\nconcepts = [1]\n' for name in ("p", "order"))
    )
    view = persons("duckdb:///x?schema=cdm", tmp_path / "words.toml", INDEX).view
    assert not viewed(tables, view)[["p_ever", "order_ever"]].any(axis=None)


def test_the_same_view_runs_on_postgresql(tables, tmp_path):
    given = made(tmp_path, "postgresql://me@db/hospital?schema=cdm")
    with server() as running:
        running.run("CREATE SCHEMA cdm")
        for name, table in tables.items():
            kinds = {"i": "bigint", "M": "date", "O": "text"}
            columns = ", ".join(
                f'"{column}" {"date" if column.endswith("date") else kinds.get(kind.kind, "text")}'
                for column, kind in table.dtypes.items()
            )
            running.run(f"CREATE TABLE cdm.{name} ({columns})")
            table.to_csv(tmp_path / "rows.csv", index=False)
            running.run(f"COPY cdm.{name} FROM STDIN (FORMAT csv, HEADER)", rows=tmp_path / "rows.csv")
        running.run(given.view)
        shown = running.run(
            "COPY (SELECT * FROM cdm.fedsynth_persons ORDER BY person_id) TO STDOUT (FORMAT csv, HEADER)"
        )
    (tmp_path / "found.csv").write_text(shown)
    found = pd.read_csv(tmp_path / "found.csv").set_index("person_id")
    for name in found:
        if str(name).endswith("_ever"):
            found[name] = found[name] == "t"
    compare(found, expected(tables))


@pytest.mark.parametrize(
    ("address", "concepts", "said"),
    [
        ("mysql://h/d", CONCEPTS, "no address of PostgreSQL or DuckDB"),
        ("duckdb:///x?schema=a;drop", CONCEPTS, "no plain name"),
        ("duckdb:///x", CONCEPTS.replace("[set.pain]", '[set."pain; drop"]'), "no name for columns"),
        ("duckdb:///x", CONCEPTS.replace("[260139]", "[]"), r"\[set.bronchitis\].*concepts"),
        ("duckdb:///x", CONCEPTS.replace('"drug"', '"medicine"'), r"\[set.pain\].*domain"),
    ],
)
def test_wrong_addresses_and_concept_sets_are_refused(address, concepts, said, tmp_path):
    (tmp_path / "concepts.toml").write_text(concepts)
    with pytest.raises(InvalidParameter, match=said):
        persons(address, tmp_path / "concepts.toml", INDEX)


def test_the_command_writes_the_schema_and_its_view(tmp_path):
    given = made(tmp_path, "duckdb:///omop.db?schema=cdm")
    command = ["schema", "draft", "--omop", "duckdb:///omop.db?schema=cdm", "--concepts", tmp_path / "concepts.toml"]
    done = invoke([*command, "--index-date", INDEX, "--out", tmp_path / "agreed.toml"])
    assert done.exit_code == 0, done.output
    agreed = Schema.load(tmp_path / "agreed.toml")
    assert agreed == given.schema
    assert not agreed.drafted
    assert (tmp_path / "agreed.sql").read_text() == given.view
    refused = invoke(command)
    assert refused.exit_code != 0
    assert "--omop, --concepts and --index-date go together" in refused.output
