"""Columns that one of three sites lacks: missing in its rows, under every trust, and refused where they may not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.command import invoke
from tests.contract.world import TRUSTS

import fedsynth
from fedsynth.data.read import check_table, read_table, read_typed
from fedsynth.data.sources import open_source
from fedsynth.data.sources.streamed import stream
from fedsynth.encoding import decode, encode
from fedsynth.errors import SchemaError
from fedsynth.methods.registry import find_method
from fedsynth.schema import Boolean, Categorical, Computed, Datetime, Numeric, Schema, Stored

SCHEMA = Schema(
    (
        Categorical("ward", ("a", "b", "c")),
        Categorical("smoker", ("no", "yes", "ex"), missing=True),
        Categorical("triage", ("1", "2", "3")),
        Boolean("back"),
    )
)
SITES = {"north": 3000, "south": 2500, "east": 2000}
RUNS = [
    (name, trust)
    for name in ("auto", "oneshot", "aim", "fedchowliu")
    for trust in TRUSTS
    if find_method(name).runs_under(trust)
]


def rows(many: int, seed: int) -> pd.DataFrame:
    """Return rows in which smoking depends on the ward, and coming back on smoking."""
    rng = np.random.default_rng(seed)
    ward = rng.integers(0, 3, many)
    smoker = np.where(rng.random(many) < 0.7, ward, rng.integers(0, 3, many))
    back = rng.random(many) < 0.2 + 0.3 * (smoker == 1)
    return pd.DataFrame(
        {
            "ward": np.array(["a", "b", "c"])[ward],
            "smoker": np.array(["no", "yes", "ex"])[smoker],
            "triage": rng.integers(1, 4, many).astype(str),
            "back": np.where(back, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> dict[str, Path]:
    """Write each site's table; return the place of its rows: east, which lacks a column, has a source file."""
    folder = tmp_path_factory.mktemp("sites")
    for seed, (name, many) in enumerate(SITES.items()):
        rows(many, seed).drop(columns=["smoker"] * (name == "east")).to_csv(folder / f"{name}.csv", index=False)
    (folder / "east.toml").write_text('data = "east.csv"\nabsent = ["smoker"]\n')
    return {name: folder / f"{name}.{'toml' if name == 'east' else 'csv'}" for name in SITES}


@pytest.mark.parametrize(("name", "trust"), RUNS)
def test_a_column_that_one_site_lacks(sites, name, trust):
    options: dict[str, Any] = {"epsilon": 2, "delta": 1e-6, "method": name, "trust": trust, "seed": 1}
    made = fedsynth.fit(sites, SCHEMA, **options)
    whole = fedsynth.fit({at: rows(many, seed) for seed, (at, many) in enumerate(SITES.items())}, SCHEMA, **options)
    assert made.statement is not None
    assert whole.statement is not None
    promised = [(one.epsilon, one.terms, one.headline) for one in (made.statement, whole.statement)]
    assert promised[0] == promised[1]
    if name == "oneshot":  # the others ask by what the releases so far say
        assert made.card.releases == whole.card.releases
    assert made.statement.terms.budget.covers(made.statement.spent)
    assert made.limitations is not None
    assert made.limitations.value is not None
    drawn = made.sample_table(100_000, 0).codes[1]
    share = float((drawn == SCHEMA.sizes[1] - 1).mean())
    # five standard deviations of the noise of a count (a value is two), and of the draw
    noise = 2.5 * made.limitations.value / sum(SITES.values()) + 5 * 0.5 / 100_000**0.5
    assert share == pytest.approx(SITES["east"] / sum(SITES.values()), abs=noise)
    assert noise < 0.08


def test_columns_of_every_kind_may_be_absent(tmp_path):
    came = Datetime("came", "2020-01-01", "2025-01-01", unit="D", missing=True)
    left = Datetime(
        *("left", "2020-01-01", "2026-01-01"), unit="D", missing=True,
        stored=Stored(difference=("left", "came"), unit="day", lower=0, upper=90),
    )  # fmt: skip
    days = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
    day = Categorical("day", days, missing=True, computed=Computed(part="weekday", of="came"))
    kinds = (
        Categorical("city", ("x", "y"), missing=True, unknown="other"),
        Categorical("stage", (1, 2), missing=True),
        Boolean("flag", missing=True),
        Numeric("age", 0, 110, integer=True, missing=True),
        Numeric("cost", 0, 9, decimals=2, missing=True, outside="drop"),
        came,
        left,
        day,
    )
    schema = Schema((*kinds, Categorical("sex", ("f", "m"))))
    absent = [column.name for column in kinds if column.name != "day"]
    (tmp_path / "t.csv").write_text("sex\nf\nm\nf\n")
    (tmp_path / "t.toml").write_text(f'data = "t.csv"\nabsent = {absent}\n')
    place = tmp_path / "t.toml"
    table = read_table(place, schema)
    frame = pd.DataFrame({"sex": ["f", "m", "f"], **dict.fromkeys(absent)})  # None, as in a frame
    assert table.digest == encode(schema, frame).digest
    assert (len(table), table.left_out) == (3, 0)
    assert [int(codes[0]) for codes, name in zip(table.codes, schema.names, strict=True) if name in absent] == [
        column.size - 1 for column in schema.stored if column.name in absent
    ]
    assert read_typed(place, schema)[absent].isna().all(axis=None)
    assert check_table(place, schema).ok
    with stream(open_source(str(place)), schema) as streamed:
        assert len(streamed) == 3
    assert decode(schema, table, np.random.default_rng(0))[[*absent, "day"]].isna().all(axis=None)


def test_an_absent_column_that_may_not_be_missing_is_refused_with_both_remedies(sites, tmp_path):
    strict = Schema((*SCHEMA.columns[:1], Categorical("smoker", ("no", "yes", "ex")), *SCHEMA.columns[2:]))
    said = (
        "east.toml declares the column 'smoker' absent, but the schema does not let it be missing: have all sites "
        "agree on missing = true for it, or say which column of the file holds it (from) instead"
    )
    found = check_table(sites["east"], strict)
    assert (found.ok, found.readable, found.problems) == (False, False, [said])
    for read in (read_table, read_typed):
        with pytest.raises(SchemaError) as error:
            read(sites["east"], strict)
        assert str(error.value) == said
    strict.save(tmp_path / "strict.toml")
    named = [word for name, place in sites.items() for word in ("--site", f"{name}={place}")]
    budget = ("--epsilon", 1, "--delta", "1e-6", "--out", tmp_path / "run")
    refused = invoke(["simulate", *named, "--schema", tmp_path / "strict.toml", *budget])
    assert (refused.exit_code, " ".join(refused.output.split())) == (3, f"fedsynth: {said}")
    plain = sites["east"].with_suffix(".csv")
    with pytest.raises(SchemaError, match=r"lacks the columns \['smoker'\].* may be declared absent in a source file"):
        read_table(plain, SCHEMA)


def test_a_frame_that_lacks_a_column_is_refused_with_the_remedy():
    tables = {"north": rows(300, 0), "east": rows(200, 1).drop(columns="smoker")}
    given: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "method": "oneshot"}
    with pytest.raises(SchemaError) as error:
        fedsynth.fit(tables, SCHEMA, **given)
    assert "column 'smoker' is missing" in str(error.value)
    assert "df['smoker'] = None says so (" in str(error.value)
    tables["east"]["smoker"] = None
    assert fedsynth.fit(tables, SCHEMA, **given).schema is SCHEMA
    strict = Schema(tuple(Categorical(name, ("no", "yes", "ex")) for name in ("smoker",)))
    with pytest.raises(SchemaError, match=r"says so, where the schema says missing = true of it"):
        fedsynth.fit({"east": rows(9, 1).drop(columns="smoker")}, strict, **given)


def test_about_md_says_what_missing_values_stand_for(sites, tmp_path):
    SCHEMA.save(tmp_path / "agreed.toml")
    named = [word for name, place in sites.items() for word in ("--site", f"{name}={place}")]
    budget = ("--epsilon", 5, "--delta", "1e-6", "--out", tmp_path / "run", "--seed", 1)
    done = invoke(["simulate", *named, "--schema", tmp_path / "agreed.toml", *budget])
    assert done.exit_code == 0, done.output
    share = float(pd.read_csv(tmp_path / "run" / "synthetic.csv")["smoker"].isna().mean())
    text = (tmp_path / "run" / "about.md").read_text()
    assert f"## What missing values stand for\n\n- **smoker**: missing in {100 * share:.1f} % of the rows\n" in text
    assert "it may declare the column absent, and all its rows are then missing in it" in text
    assert "east.toml" not in text
