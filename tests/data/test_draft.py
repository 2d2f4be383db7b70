"""Drafted schemas: what they propose, what they warn of, and that the file they came from fits."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from fedsynth.data.draft import draft_from_sdv, draft_schema
from fedsynth.encoding import decode, encode, problems
from fedsynth.errors import SchemaError
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

ROWS = 300


def patients() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "record": np.arange(ROWS) + 5000,
            "name": [f"person {row} {rng.integers(10**9)}" for row in range(ROWS)],
            "sex": rng.choice(["f", "m"], ROWS),
            "disease": np.where(np.arange(ROWS) < 3, "very rare", rng.choice(["flu", "cold"], ROWS)),
            "age": rng.integers(18, 97, ROWS),
            "weight": np.where(np.arange(ROWS) % 9 == 0, np.nan, rng.normal(70, 12, ROWS).round(1)),
            "alive": rng.random(ROWS) < 0.9,
            "visit": pd.Timestamp("2021-03-04") + pd.to_timedelta(rng.integers(0, 700, ROWS), "D"),
            "nothing": pd.Series([None] * ROWS, dtype=object),
        }
    )


def test_a_draft_proposes_kinds_leaves_out_ids_and_says_what_it_reveals():
    draft = draft_schema(patients())
    kinds = {column.name: column for column in draft.schema.columns}
    assert set(kinds) == {"sex", "disease", "age", "weight", "alive", "visit"}
    assert isinstance(kinds["sex"], Categorical)
    age, weight, visit = kinds["age"], kinds["weight"], kinds["visit"]
    assert isinstance(age, Numeric)
    assert (age.low, age.high, age.integer) == (10, 100, True)  # outwards to a round number, not the extremes
    assert isinstance(weight, Numeric)
    assert weight.missing
    assert weight.decimals == 1
    assert isinstance(kinds["alive"], Boolean)
    assert isinstance(visit, Datetime)
    assert (visit.low, visit.unit) == ("2021-01-01", "D")
    assert "identifier" in draft.notes["record"][0]
    assert "identifier" in draft.notes["name"][0]
    assert "no value" in draft.notes["nothing"][0]
    rare = "1 value has fewer than 10 rows, and its presence may identify a person: counted as 'other'"
    assert rare in draft.notes["disease"]
    assert "very rare" not in draft.to_toml()
    assert any("rounded outwards" in note for note in draft.notes["age"])


def as_text(frame: pd.DataFrame, missing: str | None) -> pd.DataFrame:
    """The same rows as text, as a CSV file has them, with a spelling of missing values."""
    return frame.astype(object).map(lambda value: missing if pd.isna(value) else str(value)).astype(object)


@pytest.mark.parametrize("missing", [None, "", "NA", "?"])
def test_a_frame_of_text_has_the_draft_of_its_values(missing):
    typed, text = draft_schema(patients()), draft_schema(as_text(patients(), missing))
    assert text.schema == typed.schema
    if missing:  # the word is named
        said = f"{-(-ROWS // 9)} cells read {missing!r}, as missing"
        assert said in text.notes["weight"]
        text.notes["weight"].remove(said)
    assert text.notes == typed.notes
    for dtype in ("string[python]", "string[pyarrow]"):
        assert draft_schema(as_text(patients(), missing).astype(dtype)).schema == typed.schema
    assert all("very rare" in problem for problem in problems(text.schema, as_text(patients(), missing)))


def test_a_bill_in_text_is_no_free_text_and_codes_keep_their_zeros():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"bill": [f"{bill:.2f}" for bill in rng.uniform(0, 9000, 500)], "icd": ["007", "250"] * 250})
    bill, icd = draft_schema(frame).schema.columns
    assert isinstance(bill, Numeric)
    assert bill.decimals == 2
    assert isinstance(icd, Categorical)
    assert icd.values == ("007", "250")


def test_the_toml_of_a_draft_warns_and_loads_to_the_same_schema():
    draft = draft_schema(patients())
    text = draft.to_toml()
    assert text.startswith("# DRAFT, derived from one site's data")
    assert "no privacy budget" in text
    assert "record" in text  # left out, and says why
    assert 'type = "id"' in text  # and how to publish made-up ones
    assert Schema.from_toml(text) == draft.schema
    assert draft.schema.drafted
    assert "\ndraft = true\n" in text


def test_the_file_a_draft_came_from_fits_it():
    frame = patients()
    frame.loc[frame["disease"] == "very rare", "disease"] = "flu"
    assert problems(draft_schema(frame).schema, frame) == []


def test_bounds_hold_every_value_whatever_its_size():
    rng = np.random.default_rng(2)
    for scale in (1e-6, 1e-3, 1.0, 1e4, 1e12):
        values = rng.normal(0, scale, 200)
        schema = draft_schema(pd.DataFrame({"x": values})).schema
        column = schema.columns[0]
        assert isinstance(column, Numeric)
        assert column.low <= values.min() < values.max() <= column.high
        assert column.high - column.low < 4 * (values.max() - values.min())


def test_a_number_that_many_rows_share_gets_its_own_bin():
    rng = np.random.default_rng(3)
    hours = np.where(rng.random(2000) < 0.5, 40, rng.integers(1, 99, 2000))
    gain = np.where(rng.random(2000) < 0.9, 0.0, rng.uniform(0, 9000, 2000).round(2))
    draft = draft_schema(pd.DataFrame({"hours": hours, "gain": gain}))
    rows = decode(draft.schema, encode(draft.schema, pd.DataFrame({"hours": hours, "gain": gain})), rng)
    assert (rows["hours"] == 40).mean() == pytest.approx((hours == 40).mean())
    assert (rows["gain"] == 0).mean() == pytest.approx((gain == 0).mean(), abs=0.01)
    assert any("40" in note and "separate bins" in note for note in draft.notes["hours"])


@pytest.mark.parametrize("values", [(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), (0.5, 1.5, 2.5), (-0.3, 0.1, 0.7)])
def test_a_float_column_of_few_values_keeps_their_decimals(values):
    """Fewer values than bins lie within the bounds; a schema of real numbers would lose all of them."""
    frame = pd.DataFrame({"x": np.random.default_rng(0).choice(values, 500)})
    schema = draft_schema(frame).schema
    (column,) = schema.columns
    assert isinstance(column, Numeric)
    assert column.decimals is not None
    assert problems(schema, frame) == []
    assert Schema.from_toml(schema.to_toml()) == schema
    cells = AdaptiveBins.of(column).grid
    assert cells is not None
    assert cells.single.all()


def test_many_categories_keep_the_commonest_and_other():
    values = [f"town {k % 80}" for k in range(4000)] + ["hamlet"]
    schema = draft_schema(pd.DataFrame({"town": values})).schema
    column = schema.columns[0]
    assert isinstance(column, Categorical)
    assert len(column.values) == 50
    assert column.unknown == "other"
    assert "hamlet" not in column.values


def test_nothing_to_model_is_an_error():
    with pytest.raises(SchemaError, match="no column"):
        draft_schema(pd.DataFrame({"id": np.arange(1000)}))


METADATA = {
    "METADATA_SPEC_VERSION": "V1",
    "tables": {
        "patients": {
            "primary_key": "record",
            "columns": {
                "record": {"sdtype": "id"},
                "name": {"sdtype": "name", "pii": True},
                "sex": {"sdtype": "categorical"},
                "disease": {"sdtype": "categorical"},
                "age": {"sdtype": "numerical", "computer_representation": "Int64"},
                "weight": {"sdtype": "numerical"},
                "alive": {"sdtype": "boolean"},
                "visit": {"sdtype": "datetime", "datetime_format": "%Y-%m-%d"},
            },
        }
    },
}


def test_sdv_metadata_with_a_file_becomes_a_draft():
    frame = patients()
    draft = draft_from_sdv(frame, json.loads(json.dumps(METADATA)))
    assert draft.schema.names == ("sex", "disease", "age", "weight", "alive", "visit")
    assert all("very rare" in problem for problem in problems(draft.schema, frame))
    assert draft_from_sdv(as_text(frame, ""), METADATA).schema == draft.schema
    assert "marks it as identifying" in draft.notes["name"][0]
    with pytest.raises(SchemaError, match="lacks the columns"):
        draft_from_sdv(frame.drop(columns="age"), METADATA)
    with pytest.raises(SchemaError, match="'alive' as boolean, but the file's values do not fit"):
        draft_from_sdv(frame.assign(alive="perhaps"), METADATA)
