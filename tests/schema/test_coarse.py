"""Columns that another one determines: computed at the sites, held by models, and exact in every published row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedsynth import Categorical, Computed, Datetime, Numeric, Schema, Stored
from fedsynth.encoding import decode, encode, publish
from fedsynth.errors import SchemaError
from fedsynth.models.conditions import Is, read_conditions
from fedsynth.rows import Table

CITIES = tuple(f"c{number}" for number in range(30))
LANDS = {city: f"l{number // 6}" for number, city in enumerate(CITIES)}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def places() -> Schema:
    even = {city: "odd" if number % 2 else "even" for number, city in enumerate(CITIES)}
    east = {"l0": "e", "l1": "w"}
    return Schema(
        (
            Categorical("city", CITIES),
            Categorical("land", ("l0", "l1", "l2", "l3", "l4"), computed=Computed(lookup="city", table=LANDS)),
            Categorical("half", ("even", "odd"), computed=Computed(lookup="city", table=even)),
            Categorical("side", ("e", "w"), missing=True, computed=Computed(lookup="land", table=east)),
        )
    )


def times(zone: str | None = None) -> Schema:
    return Schema(
        (
            Datetime("came", "2023-01-01", "2025-01-01", unit="min", missing=True, timezone=zone),
            Categorical("day", DAYS, missing=True, computed=Computed(part="weekday", of="came")),
            Categorical("month", tuple(range(1, 13)), missing=True, computed=Computed(part="month", of="came")),
            Categorical("hour", tuple(range(24)), missing=True, computed=Computed(part="hour", of="came")),
            Categorical(
                "free",
                ("no", "yes"),
                missing=True,
                computed=Computed(lookup="day", table=dict(zip(DAYS, ["no"] * 5 + ["yes"] * 2, strict=True))),
            ),
            Datetime(
                "left",
                "2023-01-01",
                "2025-03-01",
                unit="min",
                missing=True,
                timezone=zone,
                stored=Stored(difference=("left", "came"), unit="hour", lower=0, upper=500),
            ),
        )
    )


def test_sites_compute_coarse_columns_from_the_row_and_need_not_have_them():
    schema = places()
    table = encode(schema, pd.DataFrame({"city": ["c0", "c7", "c29"], "land": ["l3", "l3", "l3"]}))
    assert schema.names == ("city", "land", "half", "side")
    assert [codes.tolist() for codes in table.codes] == [[0, 7, 29], [0, 1, 4], [0, 1, 1], [0, 1, 2]]
    assert schema.digest != Schema((schema.columns[0], schema.columns[1])).digest


@pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
def test_parts_of_times_are_those_of_their_own_zone(zone):
    stamps = pd.date_range("2023-01-01 00:30", "2024-12-30", freq="37h", tz=zone)
    table = encode(times(zone), pd.DataFrame({"came": stamps, "left": stamps}))
    found = dict(zip(table.schema.names, table.codes, strict=True))
    assert (found["day"] == stamps.day_of_week).all()
    assert (found["month"] == stamps.month - 1).all()
    assert (found["hour"] == stamps.hour).all()
    assert (found["free"] == (stamps.day_of_week >= 5)).all()


def test_published_cities_lie_in_their_lands_and_lands_keep_their_relations():
    rng = np.random.default_rng(0)
    schema = places()
    drawn = [rng.integers(0, size, 5000) for size in schema.sizes]
    drawn[3] = np.array([0, 1, 2, 2, 2])[drawn[1]]  # a side follows from its land
    table = publish(schema, Table(schema, tuple(codes.astype(np.uint8) for codes in drawn)))
    city, land, half, side = table.codes
    again = encode(schema, pd.DataFrame({"city": np.array(CITIES)[city]}))
    assert all((one == other).all() for one, other in zip(table.codes, again.codes, strict=True))
    assert (land == drawn[1]).all()
    assert (half == drawn[2]).all()
    assert (side == drawn[3]).all()
    # Cities are exchanged rather than drawn: as many rows have each as before, but for lands of other sizes.
    assert np.abs(np.bincount(city, minlength=30) - np.bincount(drawn[0], minlength=30)).sum() < 600
    agrees = (drawn[0] // 6 == drawn[1]) & (drawn[0] % 2 == drawn[2])
    assert (city == drawn[0])[agrees].all()


def test_a_value_to_which_nothing_leads_gives_way():
    schema = Schema(
        (
            Categorical("a", ("x", "y")),
            Categorical("b", ("u", "v", "w"), computed=Computed(lookup="a", table={"x": "u", "y": "v"})),
        )
    )
    table = publish(schema, Table(schema, (np.array([0, 1, 1], np.uint8), np.array([2, 2, 0], np.uint8))))
    assert table.codes[0].tolist() == [0, 1, 0]
    assert table.codes[1].tolist() == [0, 1, 0]


@pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
def test_published_times_have_their_parts_and_move_as_little_as_that_takes(zone):
    rng = np.random.default_rng(0)
    schema = times(zone)
    rows = decode(schema, [rng.integers(0, size, 4000).astype(np.uint8) for size in schema.sizes], rng)
    known = rows[rows["came"].notna()]
    clock = known["came"].dt
    assert (known["day"] == np.array(DAYS)[clock.day_of_week]).all()
    assert (known["month"] == clock.month).all()
    assert (known["hour"] == clock.hour).mean() == 1
    assert ((known["free"] == "yes") == (clock.day_of_week >= 5)).all()
    both = rows.dropna(subset=["came", "left"])
    assert ((both["left"] - both["came"]) >= pd.Timedelta(0)).mean() > 0.999
    alone = Schema(schema.columns[:2])
    drawn = [rng.integers(0, size, 4000) for size in alone.sizes]
    first = decode(Schema(alone.columns[:1]), [drawn[0]], np.random.default_rng(1))["came"]
    moved = decode(alone, drawn, np.random.default_rng(1))
    days = (moved["came"] - first).dropna().dt.total_seconds().abs() / 86400
    assert days.max() < 3.1
    wanted = moved["day"].notna() & moved["came"].between(*moved["came"].quantile([0.01, 0.99]))
    assert (moved["day"][wanted] == np.array(DAYS)[moved["came"][wanted].dt.day_of_week]).all()


def test_a_condition_on_a_fine_value_implies_the_coarse_ones():
    schema = places()
    assert read_conditions(schema, {"city": "c7"}) == {0: Is((7,)), 1: Is((1,)), 2: Is((1,)), 3: Is((1,))}
    assert read_conditions(schema, {"city": ["c7", "c2"]})[1] == Is((0, 1))
    assert read_conditions(schema, {"land": "l0"}) == {1: Is((0,)), 3: Is((0,))}
    with pytest.raises(SchemaError, match="not all these values of 'city' go with that of 'land'"):
        read_conditions(schema, {"city": "c7", "land": "l0"})
    with pytest.raises(SchemaError, match="times are moved to the values of day, month, hour"):
        read_conditions(times(), {"came": ("2023-01-01", "2023-02-01")})


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (Categorical("d", DAYS, computed=Computed(part="weekday", of="n")), "not a datetime column"),
        (Categorical("d", DAYS[:6], missing=True, computed=Computed(part="weekday", of="t")), "of 7 values, in order"),
        (Categorical("d", DAYS, computed=Computed(part="weekday", of="t")), "set missing = true"),
        (Categorical("d", tuple(range(24)), missing=True, computed=Computed(part="hour", of="t")), "has no hours"),
    ],
)
def test_parts_that_do_not_fit_are_refused(column, says):
    with pytest.raises(SchemaError, match=says):
        Schema((Datetime("t", "2023-01-01", "2024-01-01", unit="D", missing=True), Numeric("n", 0, 1), column))
