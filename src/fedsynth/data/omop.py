"""A schema and SQL views for one row a person of an OMOP Common Data Model 5.4: demographics, and facts by concept set.

Everything follows from public input: the concept sets, the index date, and the model's own tables and concepts. No row
is read, so the schema is not a draft. Each concept set is a subquery of its own, grouped by person: joined event tables
would multiply counts. A person's row depends on the records of that person alone.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from fedsynth.errors import InvalidParameter, nearest
from fedsynth.files import load_toml
from fedsynth.schema import Boolean, Categorical, Column, Datetime, Numeric, Schema
from fedsynth.settings import read_settings

EARLIEST = "1900-01-01"  # of a first or last event
ENGINES = ("postgresql", "duckdb")  # whose SQL the views are in
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_DOMAINS = {  # table, column of concepts, column of dates
    "condition": ("condition_occurrence", "condition_concept_id", "condition_start_date"),
    "device": ("device_exposure", "device_concept_id", "device_exposure_start_date"),
    "drug": ("drug_exposure", "drug_concept_id", "drug_exposure_start_date"),
    "measurement": ("measurement", "measurement_concept_id", "measurement_date"),
    "observation": ("observation", "observation_concept_id", "observation_date"),
    "procedure": ("procedure_occurrence", "procedure_concept_id", "procedure_date"),
    "visit": ("visit_occurrence", "visit_concept_id", "visit_start_date"),
}
_PERSONS = {  # standard concepts of the vocabularies Gender, Race and Ethnicity
    "sex": ("gender_concept_id", {8507: "male", 8532: "female"}),
    "race": (
        "race_concept_id",
        {
            8515: "asian",
            8516: "black or african american",
            8527: "white",
            8557: "native hawaiian or other pacific islander",
            8657: "american indian or alaska native",
        },
    ),
    "ethnicity": ("ethnicity_concept_id", {38003563: "hispanic", 38003564: "not hispanic"}),
}

Fact = Literal["ever", "count", "first", "last"]


class ConceptSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of concepts of one domain, and what is said about a person's records of it.

    ``columns`` are among ``ever`` (whether there is a record), ``count`` (how many, at most ``most``), ``first`` and
    ``last`` (days). Records after the index date do not count. With ``descendants``, the concepts below those listed
    belong to the set as well, by the table ``concept_ancestor``.
    """

    domain: Literal["condition", "device", "drug", "measurement", "observation", "procedure", "visit"]
    concepts: Annotated[tuple[Annotated[int, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=1)]
    columns: Annotated[tuple[Fact, ...], msgspec.Meta(min_length=1)] = ("ever",)
    descendants: bool = False
    most: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 20


class _Concepts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    set: dict[str, dict[str, Any]] = {}
    demographics: tuple[Literal["sex", "age", "race", "ethnicity"], ...] = ("sex", "age", "race", "ethnicity")


class Persons(NamedTuple):
    """The ``schema`` of one row a person, and the SQL statement that creates the ``view`` of these rows, ``name``."""

    schema: Schema
    view: str
    name: str


def persons(address: str, concepts: Path, index: datetime.date) -> Persons:
    """Return schema and view for the persons of a Common Data Model at a database ``address``; nothing is connected to.

    The address is ``postgresql://HOST/DATABASE?schema=NAME`` or ``duckdb:///FILE?schema=NAME``, with the schema of the
    database in which the model's tables lie. ``concepts`` is a TOML file with a table ``[set.NAME]`` for each concept
    set (:class:`ConceptSet`), and optionally the list ``demographics`` (default: sex, age, race, ethnicity). ``index``
    is the day at which persons are described. Raises :class:`InvalidParameter` for another address or file.
    """
    parts = urlsplit(address)
    if parts.scheme not in ENGINES:
        raise InvalidParameter(f"{address} is no address of PostgreSQL or DuckDB; {nearest(parts.scheme, ENGINES)}")
    space = parse_qs(parts.query).get("schema", ["main" if parts.scheme == "duckdb" else "public"])[0]
    if wrong := [name for name in (space,) if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]:
        raise InvalidParameter(f"schema={wrong[0]} is no plain name of a schema of the database")
    content = read_settings(_Concepts, load_toml(concepts), str(concepts))
    columns: list[Column] = []
    picked, joins = ["p.person_id AS person_id"], []
    for fact in content.demographics:
        column, expression = _age(index) if fact == "age" else _coded(fact)
        columns.append(column)
        picked.append(f"{expression} AS {fact}")
    for name, entries in content.set.items():
        if not _NAME.fullmatch(name) or name in ("person_id", "sex", "age", "race", "ethnicity"):
            raise InvalidParameter(
                f"{concepts}: [set.{name}] is no name for columns; write small letters, digits and _"
            )
        concept_set = read_settings(ConceptSet, entries, f"{concepts}: [set.{name}]")
        joins.append(_events(name, concept_set, space, index))
        for said in concept_set.columns:
            columns.append(_column(f"{name}_{said}", said, concept_set, index))
            picked.append(f"{_FACTS[said].format(name=f'set_{name}')} AS {name}_{said}")
    view = f"{space}.fedsynth_persons"
    lines = [f"CREATE VIEW {view} AS", "SELECT", ",\n".join(f"  {one}" for one in picked)]
    return Persons(Schema(tuple(columns)), "\n".join([*lines, _PERSON.format(space=space), *joins]) + ";\n", view)


_BORN = ("year_of_birth", "month_of_birth", "day_of_birth")
_PERSON = (  # one row a person, also where the table has two
    "FROM (\n  SELECT person_id, "
    + ", ".join(f"MAX({column}) AS {column}" for column in (*_BORN, *(column for column, _ in _PERSONS.values())))
    + "\n  FROM {space}.person\n  GROUP BY person_id\n) AS p"
)
_FACTS: dict[Fact, str] = {
    "ever": "({name}.events IS NOT NULL)",
    "count": "COALESCE({name}.events, 0)",
    "first": "{name}.first_day",
    "last": "{name}.last_day",
}


def _column(name: str, fact: Fact, concept_set: ConceptSet, index: datetime.date) -> Column:
    if fact == "ever":
        return Boolean(name)
    if fact == "count":
        return Numeric(name, 0, concept_set.most, integer=True)
    return Datetime(name, EARLIEST, f"{index}", unit="D", missing=True)


def _events(name: str, concept_set: ConceptSet, space: str, index: datetime.date) -> str:
    """Return the join of a person with the number and days of the person's records of a concept set."""
    table, concept, day = _DOMAINS[concept_set.domain]
    listed = ", ".join(map(str, concept_set.concepts))
    if concept_set.descendants:
        below = f"SELECT descendant_concept_id FROM {space}.concept_ancestor WHERE ancestor_concept_id IN ({listed})"
        listed = f"{listed}) OR {concept} IN ({below}"
    return (
        f"LEFT JOIN (\n  SELECT person_id, COUNT(*) AS events, MIN({day}) AS first_day, MAX({day}) AS last_day\n"
        f"  FROM {space}.{table}\n  WHERE ({concept} IN ({listed})) AND {day} <= DATE '{index}'\n"
        f"  GROUP BY person_id\n) AS set_{name} ON set_{name}.person_id = p.person_id"
    )


def _coded(name: str) -> tuple[Column, str]:
    column, values = _PERSONS[name]
    cases = " ".join(f"WHEN {concept} THEN '{value}'" for concept, value in values.items())
    return Categorical(name, tuple(values.values()), missing=True), f"CASE p.{column} {cases} END"


def _age(index: datetime.date) -> tuple[Column, str]:
    """Return the age in whole years at the index date; without month or day of birth, January or the first counts."""
    born = "COALESCE(p.month_of_birth, 1) * 100 + COALESCE(p.day_of_birth, 1)"
    early = f"CASE WHEN {born} > {index.month * 100 + index.day} THEN 1 ELSE 0 END"
    return Numeric("age", 0, 120, integer=True), f"({index.year} - p.year_of_birth - {early})"
