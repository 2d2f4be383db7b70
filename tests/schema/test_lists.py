"""Lists of values and tables of lookups in files beside a schema file."""

from __future__ import annotations

import pytest

from fedsynth import Categorical, Schema
from fedsynth.errors import SchemaError
from fedsynth.schema.forms import Lookup

SCHEMA = """\
fedsynth_schema = 1

[[column]]
name = "city"
type = "categorical"
values = "cities.csv"
unknown = "other"

[[column]]
name = "land"
type = "categorical"
values = ["CH", "FR"]
missing = true
computed = { lookup = "city", table = "cities.csv" }
"""
CITIES = 'inhabitants,land,city\n100,CH,Bern\n200,FR,Paris\n300,FR,"Nancy, old town"\n'


def content(schema: Schema) -> tuple[object, object]:
    city, land = schema.columns
    assert isinstance(city, Categorical)
    assert isinstance(land, Categorical)
    assert isinstance(land.computed, Lookup)
    return city.values, dict(land.computed.table)


def test_lists_and_tables_come_from_files_beside_the_schema_and_are_part_of_it(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "cities.csv").write_text(CITIES)
    schema = Schema.load(tmp_path / "schema.toml")
    cities, lands = content(schema)
    assert cities == ("Bern", "Paris", "Nancy, old town")
    assert lands == {"Bern": "CH", "Paris": "FR", "Nancy, old town": "FR"}
    assert Schema.from_toml(schema.to_toml()) == schema
    (tmp_path / "cities.csv").write_text(CITIES.replace("Paris", "Lyon"))
    assert Schema.load(tmp_path / "schema.toml").digest != schema.digest


def test_the_first_columns_of_a_file_count_where_it_has_other_names(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "cities.csv").write_text("Ort,Land\nBern,CH\nParis,FR\n")
    cities, lands = content(Schema.load(tmp_path / "schema.toml"))
    assert cities == ("Bern", "Paris")
    assert lands == {"Bern": "CH", "Paris": "FR"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("city\nBern\n", "has 1 columns, and 2 are needed: city, land"),
        ("city,land\nBern,CH\nParis\n", "line 3 of cities.csv has 1 cells"),
        ("city,land\n" + "a,CH\n" * (2**20 + 1), "more than 1048576 lines"),
        ("city,land\nBern,CH\nBern,FR\n", "lists a value twice"),
    ],
)
def test_a_file_that_is_no_list_is_named_with_the_remedy(tmp_path, content, said):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    if content is not None:
        (tmp_path / "cities.csv").write_text(content)
    with pytest.raises(SchemaError, match=said):
        Schema.load(tmp_path / "schema.toml")


def test_a_schema_that_arrives_as_text_reads_no_file():
    with pytest.raises(SchemaError, match="beside which that one lies"):
        Schema.from_toml(SCHEMA)
