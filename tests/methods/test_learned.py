"""Learned lookups: found out by a run's first question, and true in every synthetic row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsynth as fs
from fedsynth.encoding import encode
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.methods.measure import table_of
from fedsynth.schema.forms import Lookup

CITIES, LANDS, ROWS = 60, 6, 6000
LAND_OF = np.arange(CITIES) % LANDS


def schema(learned: float | None = 0.05) -> fs.Schema:
    form = None if learned is None else fs.Computed(lookup="city", learned=learned)
    return fs.Schema(
        (
            fs.Categorical("city", tuple(f"c{city}" for city in range(CITIES)), missing=True, unknown="other"),
            fs.Categorical("land", tuple(f"l{land}" for land in range(LANDS)), computed=form),
            fs.Categorical("rich", ("no", "yes")),
        )
    )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    weight = 1 / np.arange(1, CITIES + 1)
    city = rng.choice(CITIES, ROWS, p=weight / weight.sum())
    land = LAND_OF[city]
    rich = np.where(rng.random(ROWS) < np.linspace(0.1, 0.9, LANDS)[land], "yes", "no")
    found = pd.DataFrame({"city": [f"c{at}" for at in city], "land": [f"l{at}" for at in land], "rich": rich})
    found.loc[rng.random(ROWS) < 0.05, "city"] = None
    return found


def fitted(frame: pd.DataFrame, agreed: fs.Schema, **options: Any) -> fs.Synthesizer:
    settings: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "seed": 1, "trust": "secure", **options}
    return fs.fit([frame.iloc[at::3] for at in range(3)], agreed, **settings)


def found_table(synthesizer: fs.Synthesizer) -> Mapping[str, Any]:
    form = synthesizer.schema.learned[0].form
    assert isinstance(form, Lookup)
    return form.table


@pytest.mark.parametrize(
    ("method", "trust"),
    [("auto", "secure"), ("oneshot", "local"), ("aim", "trusted"), ("fedchowliu", "secure"), ("tda", "secure")],
)
def test_synthetic_cities_lie_in_their_land_and_the_budget_is_kept(frame, method, trust):
    synthesizer = fitted(frame, schema(), method=method, trust=trust)
    table = found_table(synthesizer)
    right = {city: land for city, land in table.items() if land == f"l{LAND_OF[int(city[1:])]}"}
    counts = frame.city.value_counts()
    clear = counts[counts > 400].index
    assert right == dict(table)
    assert set(clear) <= set(table)
    rows = synthesizer.sample(4000, 2)
    named = rows[rows.city.notna() & (rows.city != "other")]
    assert len(named) > 400
    assert (named.city.map(table) == named.land).all()
    rich = frame.groupby("land").rich.agg(lambda land: (land == "yes").mean())
    drawn = rows.groupby("land").rich.agg(lambda land: (land == "yes").mean())
    assert (rich - drawn).abs().mean() < 0.2  # what depends on the land stays
    assert synthesizer.statement is not None
    budget, spent = synthesizer.statement.limit, synthesizer.statement.spent
    assert budget.covers(spent)
    assert budget.share_of(spent) > 0.9


def test_sites_encode_rows_as_without_the_lookup(frame):
    with_lookup, without = encode(schema(), frame), encode(schema(None), frame)
    assert schema().digest == schema(None).digest
    assert all((a == b).all() for a, b in zip(with_lookup.codes, without.codes, strict=True))


def test_without_noise_every_city_with_rows_is_known(frame):
    synthesizer = fs.fit(
        [frame.iloc[at::3] for at in range(3)], schema(), method="oneshot", epsilon=np.inf, delta=0.0, trust="trusted"
    )
    table = found_table(synthesizer)
    assert table == {city: f"l{LAND_OF[int(city[1:])]}" for city in frame.city.dropna().unique()}


def test_conditions_and_a_saved_model_keep_the_lookup(frame, tmp_path):
    synthesizer = fitted(frame, schema())
    synthesizer.save(tmp_path / "model")
    loaded = fs.load(tmp_path / "model")
    first, second = list(found_table(loaded).items())[:2]
    for seed in range(20):
        row = loaded.sample(1, seed, where={"city": [first[0], second[0]]})
        assert (row.city[0], row.land[0]) in (first, second)
    assert set(loaded.sample(50, 0, where={"city": "other"}).city) == {"other"}
    hidden = next(city for at in range(CITIES) if (city := f"c{at}") not in found_table(loaded))
    with pytest.raises(SchemaError, match="noise hides which 'land'"):
        loaded.sample(1, 0, where={"city": hidden})
    rows = loaded.sample(200, 0, where={"city": [first[0], "other"]})
    assert set(rows.city) <= {first[0], "other"}
    assert set(rows.land[rows.city == first[0]]) <= {first[1]}
    balanced = loaded.sample_balanced("city", 300, 0)
    named = balanced[balanced.city.notna() & (balanced.city != "other")]
    assert (named.city.map(found_table(loaded)) == named.land).all()
    assert named.city.value_counts().min() >= 300 // (len(found_table(loaded)) + 2)
    with pytest.raises(SchemaError, match="not all these values"):
        loaded.sample(1, 0, where={"city": first[0], "land": "l3" if first[1] != "l3" else "l4"})


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"lookup": "city"}, "a table with the result for each value, or|learned = 0.05"),
        ({"lookup": "city", "learned": 0.6}, "at most 0.5"),
        ({"lookup": "town", "learned": 0.1}, "'town' is not a column"),
        ({"lookup": "land", "learned": 0.1}, "'land' is not a column"),
        ({"lookup": "rich", "learned": 0.1}, "unknown = 'other'"),
    ],
)
def test_lookups_that_cannot_be_learned_are_refused(entry, said):
    columns = schema(None).columns
    with pytest.raises(SchemaError, match=said):
        fs.Schema((columns[0], fs.Categorical("land", ("a", "b"), computed=fs.Computed(**entry)), columns[2]))


def test_lookups_by_one_column_are_all_learned_or_none():
    city, land, rich = schema().columns
    half = {f"c{at}": "yes" if at % 2 else "no" for at in range(CITIES)}
    given = fs.Categorical("half", ("no", "yes"), missing=True, computed=fs.Computed(lookup="city", table=half))
    with pytest.raises(SchemaError, match="let all be learned, or none"):
        fs.Schema((city, land, rich, given))


def test_three_servers_have_no_sum_to_learn_from(frame):
    with pytest.raises(Unsupported, match="write its table"):
        fitted(frame, schema(), method="aim", trust="three-servers")


def test_a_deposit_pays_for_what_its_vault_releases(frame):
    parts, budget = [frame.iloc[at::3] for at in range(3)], fs.Budget(1.0, 1e-6)
    federation = fs.federate(parts, schema(None), budget, trust="trusted", seed=1)
    first = replace(federation, sites=federation.sites[:1])
    vault = first.deposit(table_of((0,)), 0.9)
    replace(federation, sites=federation.sites[1:], part=0.01).deposit_into(vault)
    paid = dict.fromkeys(federation.sites, 0.0)
    for entry in federation.ledger.entries:
        for site in entry.sites:
            paid[site] += budget.share_of(entry.cost)
    assert list(paid.values()) == pytest.approx([0.9] * 3)


def test_a_number_cannot_be_looked_up():
    city, _, rich = schema().columns
    number = fs.Numeric("land", 0, 9, computed=fs.Computed(lookup="city", learned=0.1))
    with pytest.raises(SchemaError, match="needs a categorical or boolean column"):
        fs.Schema((city, number, rich))
