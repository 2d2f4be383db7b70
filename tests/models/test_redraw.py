"""Rows that break a rule or a bound are drawn again, and what cannot be drawn is said."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from tests import telco

from fedsynth.encoding import encode, publish
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.models.conditions import parse_conditions, read_conditions
from fedsynth.models.gum import GradualRows, GradualUpdate
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import Synthesizer, load, own_bins
from fedsynth.rows import Table
from fedsynth.schema import (
    Boolean,
    Categorical,
    Computed,
    Numeric,
    Rule,
    Schema,
    Stored,
)

PAIR = Schema((Categorical("a", ("x", "y"), missing=True), Boolean("b")), rules=(Rule({"a": ["x"], "b": [True]}),))
SUMS = Schema(
    (
        Numeric("a", 0, 10, bins=5),
        Numeric("b", 0, 10, bins=5, stored=Stored(difference=("b", "a"), lower=0, upper=10)),
        Numeric("s", 0, 12, computed=Computed(sum=("a", "b"))),
    )
)


def uniform(schema: Schema) -> Synthesizer:
    """A model that knows nothing of rules: every code equally likely."""
    return Synthesizer(schema, own_bins(schema), MarkovRandomField(schema.sizes, 1000.0, [], []))


def test_rows_are_those_of_the_model_given_that_they_are_possible(caplog):
    made = uniform(PAIR)
    frame = made.sample(6000, 0)
    assert not ((frame["a"] == "x") & frame["b"]).any()
    assert frame.attrs["redrawn"] == pytest.approx(1 / 6, abs=0.02)
    counts = frame.fillna("-").value_counts(normalize=True)
    np.testing.assert_allclose(counts, np.full(5, 0.2), atol=0.02)
    assert frame.equals(made.sample(6000, 0))
    assert caplog.records == []
    table = made.sample_table(500, 1)
    assert not ((table.codes[0] == 0) & (table.codes[1] == 1)).any()


def test_many_redrawn_rows_are_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        frame = uniform(SUMS).sample(3000, 0)
    assert frame.attrs["redrawn"] > 0.2
    assert "of the rows broke a rule of the schema and were redrawn" in caplog.text
    assert (frame["b"] >= frame["a"]).all()
    assert (frame["s"] <= 12).all()
    np.testing.assert_allclose(frame["s"], frame["a"] + frame["b"])
    assert frame["b"].between(0, 10).all()


def test_what_cannot_be_drawn_is_said(caplog):
    impossible = Schema((*SUMS.columns[:2], Numeric("s", 50, 60, computed=Computed(sum=("a", "b")))))
    with caplog.at_level(logging.WARNING):
        frame = uniform(impossible).sample(20, 0)
    assert "20 of 20 rows still break a rule after 100 draws" in caplog.text
    assert len(frame) == 20
    with pytest.raises(InvalidParameter, match="meet the conditions break a rule"):
        uniform(PAIR).sample(20, 0, {"a": "x", "b": True})
    assert set(uniform(PAIR).sample(200, 0, {"b": True})["a"].fillna("-")) == {"y", "-"}


def test_balanced_rows_and_rows_of_gradual_update_keep_to_rules():
    frame = uniform(PAIR).sample_balanced("b", 1000, 0)
    assert frame["b"].sum() == 500
    assert not ((frame["a"] == "x") & frame["b"]).any()
    assert frame.attrs["redrawn"] > 0
    tables: dict[tuple[int, ...], Any] = {(0,): np.full(3, 100.0), (1,): np.full(2, 150.0)}
    made = Synthesizer(PAIR, own_bins(PAIR), GradualRows(GradualUpdate((3, 2), tables, 5), 300.0))
    assert not ((frame := made.sample(300, 0))["b"] & (frame["a"] == "x")).any()


def test_schemas_without_rules_say_nothing_of_them():
    assert uniform(Schema(PAIR.columns)).sample(10, 0).attrs == {}


def test_a_model_keeps_its_rules_on_disk(tmp_path):
    uniform(SUMS).save(tmp_path / "model.fedsynth")
    again = load(tmp_path / "model.fedsynth")
    assert again.schema == SUMS
    assert again.sample(100, 3).equals(uniform(SUMS).sample(100, 3))


def test_conditions_are_on_columns_that_models_hold():
    for name in ("total", "end"):
        with pytest.raises(SchemaError, match=f"conditions on '{name}' are not supported: the model represents the"):
            read_conditions(telco.SCHEMA, {name: 3})
        with pytest.raises(SchemaError, match="are not supported"):
            parse_conditions(telco.SCHEMA, [f"{name}=3"])
    with pytest.raises(SchemaError, match="column 'days' is not stored at the sites"):
        read_conditions(telco.SCHEMA, {"days": 3})
    assert uniform(telco.SCHEMA).sample(50, 0, {"online": True})["online"].all()
    made = uniform(telco.SCHEMA).sample(50, 0, {"internet": "no", "tenure": (10, 20)})
    assert telco.broken(made) == {}
    assert made["tenure"].between(10, 20).all()


def test_the_likelihood_of_published_rows_is_that_of_what_is_stored():
    rng = np.random.default_rng(0)
    schema = telco.SCHEMA
    clique = (schema.index("tenure"), schema.index("total"))
    model = MarkovRandomField(schema.sizes, 1000.0, [clique], [rng.normal(0, 1, schema.shape(clique))])
    likelihood = Synthesizer(schema, own_bins(schema), model).log_likelihood
    assert likelihood is not None
    table: Table = encode(schema, telco.customers(300, 0))
    np.testing.assert_array_equal(likelihood(publish(schema, table)), likelihood(table))
