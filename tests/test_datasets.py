"""The example tables, and the command that writes them."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from tests.cli.golden.make import call

from fedsynth import Schema, datasets
from fedsynth.data.read import read_typed
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter


@pytest.mark.parametrize(
    ("frame", "schema"),
    [(datasets.patients(2000, 2), datasets.patients_schema()), (datasets.rand_hie(), datasets.rand_hie_schema())],
)
def test_every_row_of_a_table_fits_its_schema(frame, schema):
    encoded = encode(schema, frame)
    assert len(encoded) == len(frame)
    assert encoded.left_out == 0


def test_patients_are_the_same_for_the_same_arguments_and_others_at_another_hospital():
    pd.testing.assert_frame_equal(datasets.patients(500, 1), datasets.patients(500, 1))
    assert not datasets.patients(500, 1).equals(datasets.patients(500, 4))
    assert len(datasets.patients(0)) == 0


@pytest.mark.parametrize("arguments", [{"rows": -1}, {"hospital": -1}])
def test_a_negative_number_is_refused(arguments):
    with pytest.raises(InvalidParameter, match="give 0 or more"):
        datasets.patients(**arguments)


def test_the_command_writes_one_hospital_to_a_file_and_the_schema(tmp_path):
    code, said, _ = call(tmp_path, "example north.csv south.parquet --rows 300 --schema agreed.toml --json")
    assert code == 0
    assert json.loads(said) == {"rows": 300, "files": ["north.csv", "south.parquet", "agreed.toml"]}
    for hospital, name in enumerate(("north.csv", "south.parquet")):
        frame = read_typed(tmp_path / name, datasets.patients_schema())
        pd.testing.assert_frame_equal(frame, datasets.patients(300, hospital), check_dtype=False)
    assert Schema.load(tmp_path / "agreed.toml").digest == datasets.patients_schema().digest


def test_the_command_writes_the_schema_alone(tmp_path):
    assert call(tmp_path, "example --schema agreed.toml")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["agreed.toml"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("", 2, "name a file to write"),
        ("mine.csv", 8, "mine.csv exists or is named twice; choose another name"),
        ("new.csv --schema mine.csv", 8, "mine.csv exists"),
        ("new.csv new.csv", 8, "new.csv exists or is named twice"),
        ("new.xlsx", 6, ".csv"),
    ],
)
def test_the_command_replaces_no_file_and_writes_none_when_it_fails(tmp_path, arguments, code, said):
    (tmp_path / "mine.csv").write_text("mine")
    found, _, complaints = call(tmp_path, f"example {arguments}")
    assert (found, said in complaints) == (code, True), complaints
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
    assert (tmp_path / "mine.csv").read_text() == "mine"
