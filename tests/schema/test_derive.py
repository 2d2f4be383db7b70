"""Derived columns, rules and identifiers: what is stored gives back what was read, and no row is lost to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import telco

from fedsynth.encoding import broken, decode, encode, problems, publish, store, with_numbers
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.rows import Table
from fedsynth.schema import (
    Boolean,
    Categorical,
    Column,
    Computed,
    Datetime,
    Identifier,
    Numeric,
    Rule,
    Schema,
    Stored,
)
from fedsynth.schema.misfits import breaking

BOUNDS: dict[str, Any] = {"lower": 0.0, "upper": 10.0}
A = Numeric("a", -10, 10, missing=True)


def stored(**form: Any) -> Any:
    return Stored(**{**BOUNDS, **form})


def b(**form: Any) -> Numeric:
    return Numeric("b", -30, 30, missing=True, stored=stored(**form))


DIFFERENCE = Schema((A, b(difference=("b", "a"))))
REVERSED = Schema((A, b(difference=("a", "b"))))
RATIO = Schema((A, b(ratio=("b", "a"), lower=-2, upper=3)))
CHAIN = Schema(
    (
        Numeric("c", 0, 60, decimals=2, missing=True, computed=Computed(sum=("b", "d"))),
        A,
        b(difference=("b", "a")),
        Numeric("d", -99, 99, decimals=1, missing=True, stored=Stored(difference=("d", "b"), lower=0, upper=40)),
    )
)
ANY = st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.sampled_from([0.0, -0.0, 5e-324, 1e300])


def encoded(schema: Schema, **columns: list[Any]) -> Table:
    return encode(schema, pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()}))


def test_stored_numbers_are_differences_and_ratios():
    a, own = [1.0, 2.0, -3.0, 0.0, None, 4.0], [4.0, 2.0, -1.0, 1.0, 1.0, None]
    plain = 31 / 60 * 1024  # where b, from -30 to 30, is 1 while a is missing, or zero below a ratio
    for schema, numbers in (
        (DIFFERENCE, [3, 0, 2, 1, 10 + plain, math.nan]),
        (REVERSED, [0] * 4 + [10 + plain, math.nan]),
    ):
        found = encoded(schema, a=a, b=own)
        np.testing.assert_allclose(found.numbers[1], numbers)
        np.testing.assert_allclose(publish(schema, found).numbers[1][4:], [1, math.nan])
    found = encoded(RATIO, a=a, b=own)
    np.testing.assert_allclose(found.numbers[1], [3, 1, 1 / 3, 3 + plain, 3 + plain, math.nan])  # 4 is clipped to 3
    assert found.codes[1].tolist() == [31, 19, 14, 32 + 8, 32 + 8, 32 + 16]
    np.testing.assert_allclose(publish(RATIO, found).numbers[1], [3, 2, -1, 1, 1, math.nan])
    known = Schema((Numeric("a", 1, 9), Numeric("b", 0, 9, stored=stored(ratio=("b", "a"), lower=-2, upper=3))))
    assert known.stored[1] == Numeric("b", -2, 3)  # with a divisor that is always there, ratios alone
    assert RATIO.names == ("a", "b")
    assert [link.column.name for link in CHAIN.links.values()] == ["b", "d"]


def test_differences_of_decimals_lie_on_their_grid():
    schema = Schema(
        (
            Numeric("a", 0, 1, decimals=1, bins=5),
            Numeric("b", 0, 1, decimals=2, bins=5, stored=Stored(difference=("b", "a"), lower=0, upper=1)),
        )
    )
    found = encoded(schema, a=[0.1, 0.7], b=[0.3, 0.9])  # 0.3 - 0.1 is below 0.2 in doubles
    assert found.numbers[1].tolist() == [0.2, 0.2]
    assert found.codes[1].tolist() == [1, 1]


@given(a=st.lists(ANY, min_size=1, max_size=6), own=st.lists(ANY, min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_every_row_is_encoded_by_itself_and_dropped_by_its_own_values_alone(a, own):
    rows = min(len(a), len(own))
    a, own = a[:rows], own[:rows]
    for schema in (DIFFERENCE, REVERSED, RATIO, CHAIN):
        columns = {"a": a, "b": own, "d": own} if schema is CHAIN else {"a": a, "b": own}
        table = encoded(schema, **columns)
        plain = encoded(Schema(tuple(schema.plain().asked[schema.plain().index(name)] for name in columns)), **columns)
        # As many rows as without the forms: each is one row of every table.
        assert (len(table), table.left_out) == (len(plain), plain.left_out)
        for codes, size in zip(table.codes, schema.sizes, strict=True):
            assert (codes < size).all()
        alone = [encoded(schema, **{name: [values[at]] for name, values in columns.items()}) for at in range(rows)]
        together = [one for one in alone if len(one)]
        for at in range(len(schema.stored)):
            assert [one.codes[at][0] for one in together] == table.codes[at].tolist()
        for at, link in schema.links.items():
            whole = publish(schema, table)
            numbers, other = table.numbers[at], whole.numbers[whole.schema.index(schema.names[link.other])]
            related = ~np.isnan(numbers) & ~link.undefined(other)
            assert ((numbers[related] >= link.form.lower) & (numbers[related] <= link.form.upper)).all()
            assert (numbers[~np.isnan(numbers) & ~related] >= link.top).all()
            assert (link.consistent(numbers, other) == numbers)[~np.isnan(numbers)].all()


def test_rows_come_back_as_they_were_and_under_either_schema():
    frame = telco.customers(500, 3)
    table = encode(telco.SCHEMA, frame)
    published = publish(telco.SCHEMA, table)
    for name in ("total", "monthly", "begin", "end"):
        at = published.schema.index(name)
        right = encode(telco.SCHEMA.plain(), frame.assign(days=0, online=True)).numbers[at]
        np.testing.assert_allclose(published.numbers[at], right, rtol=1e-12)
    again = store(telco.SCHEMA, published)
    for one, other in zip(table.codes, again.codes, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(mask.any() for mask in broken(telco.SCHEMA, published).values())
    back = decode(telco.SCHEMA, table, np.random.default_rng(0))
    assert list(back.columns) == [column.name for column in telco.SCHEMA.columns]
    with pytest.raises(Unsupported, match="no numbers to derive columns from"):
        publish(telco.SCHEMA, Table(telco.SCHEMA, table.codes))
    # Drawn from bins, an end may lie past the last day; every other form holds for whatever is drawn.
    assert set(telco.broken(back)) <= {"ratio"}


def test_values_that_are_drawn_lie_within_the_bounds_of_their_form_and_their_column():
    rng = np.random.default_rng(0)
    for schema in (DIFFERENCE, REVERSED, RATIO, CHAIN):
        codes = tuple(rng.integers(0, size, 2000).astype(np.uint8) for size in schema.sizes)
        table = with_numbers(Table(schema, codes), rng)
        published = publish(schema, table)
        for link in schema.links.values():
            values = published.numbers[published.schema.index(link.column.name)]
            other = published.numbers[published.schema.index(schema.names[link.other])]
            assert not link.breaks(values, other).any()
            assert (np.isnan(values) == np.isnan(table.numbers[link.own])).all()
    parts = [published.numbers[published.schema.index(name)] for name in ("b", "d", "c")]
    inside = (parts[0] + parts[1] > 0) & (parts[0] + parts[1] < 60)
    np.testing.assert_allclose(parts[2][inside], np.round(parts[0] + parts[1], 2)[inside])


def test_rows_of_a_model_that_relates_columns_roughly_are_made_consistent_and_keep_their_numbers():
    rng = np.random.default_rng(0)
    (link,) = DIFFERENCE.links.values()
    other = np.where(rng.random(4000) < 0.2, np.nan, 1.0)
    held = np.where(rng.random(4000) < 0.2, link.top + 1024 * rng.random(4000), 10 * rng.random(4000))
    held[rng.random(4000) < 0.1] = np.nan
    found = link.consistent(held, other)
    known = ~np.isnan(found)
    assert (known == ~np.isnan(held)).all()
    assert ((found >= link.top) == link.undefined(other))[known].all()
    assert np.isin(found[known], held[known]).all()
    assert (found == held)[known].mean() > 0.6
    kept = np.intersect1d(found[known], held[known]).size / np.unique(held[known]).size
    assert kept > 0.97  # numbers are exchanged, not drawn anew
    for case, numbers in ((np.nan, 5.0), (1.0, link.top + 3)):  # there is no row to take a number from
        alone = link.published_numbers(link.consistent(np.full(3, numbers), np.full(3, case)), np.full(3, case))
        assert np.isfinite(alone).all()
        assert not link.breaks(alone, np.full(3, case)).any()


def test_computed_columns_are_never_asked_for():
    schema = Schema(
        (
            Numeric("n", 0, 9, integer=True),
            Numeric("price", 0, 5, decimals=2),
            Categorical("city", ("Paris", "Bern"), missing=True),
            Numeric("paid", 0, 45, decimals=2, computed=Computed(product=("n", "price"))),
            Numeric("rest", -50, 50, computed=Computed(difference=("paid", "n"))),
            Categorical("land", ("CH", "FR"), missing=True, computed=Computed(lookup="city", table={"Paris": "FR"})),
        )
    )
    assert schema.names == ("n", "price", "city", "land")
    assert [column.name for column in schema.asked] == ["n", "price", "city"]
    table = encoded(schema, n=[3, 2], price=[1.5, 0.25], city=["Paris", "Bern"])
    assert schema.digest == Schema((*schema.columns[:3], schema.columns[-1])).digest
    values = decode(schema.plain(), publish(schema, table), np.random.default_rng(0))
    assert publish(schema, table).numbers[3].tolist() == [4.5, 0.5]
    assert publish(schema, table).numbers[4].tolist() == [1.5, -1.5]
    assert values["land"].isna().tolist() == [False, True]
    assert values["land"][0] == "FR"
    with pytest.raises(SchemaError, match="column 'paid' is not stored at the sites"):
        schema.index("paid")
    # A table that has them is held against the form; one that lacks them is compared without.
    real = pd.DataFrame({"n": [3, 2], "price": [1.5, 0.25], "city": ["Paris", "Bern"], "paid": [4.5, 3.0]})
    plain = schema.plain(real.columns)
    assert plain.names == ("n", "price", "city", "paid")
    assert {said: mask.tolist() for said, mask in broken(schema, encode(plain, real)).items()} == {
        "paid as computed, from 0 to 45": [False, True]
    }
    assert problems(schema, real) == breaking({"paid as computed, from 0 to 45": 1})


def test_copies_are_equal_in_every_row_and_a_date_is_that_of_its_time():
    schema = Schema(
        (
            Datetime("seen", "2023-01-01", "2024-01-01", unit="min", missing=True),
            Datetime("date", "2023-01-01", "2024-01-01", unit="D", missing=True, computed=Computed(copy="seen")),
            Numeric("bill", 0, 100, decimals=2),
            Numeric("euros", 0, 100, integer=True, computed=Computed(copy="bill")),
            Categorical("ward", ("a", "b"), missing=True),
            Categorical("unit", ("b", "c", "a"), missing=True, computed=Computed(copy="ward")),
        )
    )
    assert schema.names == ("seen", "bill", "ward")
    rng = np.random.default_rng(0)
    rows = decode(schema, [rng.integers(0, size, 500) for size in schema.sizes], rng)
    assert (rows["date"] == rows["seen"].dt.floor("D"))[rows["seen"].notna()].all()
    assert (rows["euros"] == rows["bill"].round()).all()
    assert (rows["unit"] == rows["ward"])[rows["ward"].notna()].all()
    assert (rows["date"].isna() == rows["seen"].isna()).all()
    assert problems(schema, rows) == []
    assert len(problems(schema, rows.assign(date=rows["date"] + pd.Timedelta(days=1)))) == 1
    for column, says in (
        (Numeric("n", 0, 1, computed=Computed(copy="seen")), "a copy needs the same"),
        (
            Datetime("n", "2023-01-01", "2024-01-01", missing=True, computed=Computed(copy="seen")),
            "a longer unit",
        ),
        (Categorical("n", ("a",), missing=True, computed=Computed(copy="ward")), "does not list 'b'"),
    ):
        with pytest.raises(SchemaError, match=says):
            Schema((*schema.columns, column))


def test_rules_name_rows_and_cells():
    schema = Schema(
        (
            Categorical("a", ("x", "y", "z"), missing=True),
            Boolean("b"),
            Categorical("c", (1, 2, 3), missing=True, unknown="missing"),
        ),
        rules=(Rule({"b": [True], "a": ["x", ""]}), Rule({"c": [1, 2], "b": [False], "a": ["y"]})),
    )
    table = encoded(schema, a=["x", "x", "y", "z", None], b=[True, False, False, True, True], c=[3, 1, 1, 1, 1])
    masks = [mask.tolist() for mask in broken(schema, table).values()]
    assert masks == [[True, False, False, False, True], [False, False, True, False, False]]
    assert len(table) == 5  # encoding drops none of them
    cells = schema.forbidden_cells()
    assert np.argwhere(cells[0, 1]).tolist() == [[0, 1], [3, 1]]
    assert np.argwhere(cells[0, 1, 2]).tolist() == [[1, 0, 0], [1, 0, 1]]

    class Groups:
        def __init__(self, *groups: int) -> None:
            self.groups = np.array(groups)

    # A cell of groups is forbidden only where everything in it is.
    coarse = schema.forbidden_cells([Groups(0, 1, 1, 0), Groups(0, 1), Groups(0, 0, 1, 1)])
    assert np.argwhere(coarse[0, 1]).tolist() == [[0, 1]]
    assert (0, 1, 2) not in coarse  # y shares its group with z
    assert DIFFERENCE.forbidden_cells() == {}


def test_identifiers_are_unique_and_fixed_by_the_generator():
    schema = Schema((Categorical("c", ("x",)), Identifier("n"), Identifier("u", "uuid"), Identifier("p", "P-##{#}")))
    frame = decode(schema, [np.zeros(900, dtype=np.uint8)], np.random.default_rng(1))
    assert list(frame.columns) == ["c", "n", "u", "p"]
    assert frame["n"].tolist() == list(range(1, 901))
    assert frame["u"].is_unique
    assert frame["u"].str.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").all()
    assert frame["p"].is_unique
    assert frame["p"].str.fullmatch(r"P-\d\d\{\d\}").all()
    assert frame.equals(decode(schema, [np.zeros(900, dtype=np.uint8)], np.random.default_rng(1)))
    with pytest.raises(InvalidParameter, match="1000 identifiers for 1001 rows"):
        decode(schema, [np.zeros(1001, dtype=np.uint8)], np.random.default_rng(1))
    assert schema.names == ("c",)
    assert schema.digest == Schema((Categorical("c", ("x",)),)).digest


def test_a_schema_survives_toml_and_its_digest_covers_what_is_encoded():
    for schema in (telco.SCHEMA, CHAIN, RATIO):
        assert Schema.from_toml(schema.to_toml()) == schema
        assert hash(Schema.from_toml(schema.to_toml())) == hash(schema)
    odd = Schema(
        (Categorical('a "b"', ("é", 'x"y')), Boolean("d")), rules=(Rule({'a "b"': ['x"y'], "d": [True, False]}),)
    )
    assert Schema.from_toml(odd.to_toml()) == odd
    assert DIFFERENCE.digest != REVERSED.digest
    assert DIFFERENCE.digest != DIFFERENCE.plain().digest
    assert Schema(odd.columns).digest == odd.digest
    plain = telco.SCHEMA.plain()
    assert plain.is_plain
    assert plain.plain() is plain


TIMES = (Datetime("s", "2020-01-01", "2021-01-01", unit="D"), Datetime("t", "2020-01-01", "2021-01-01", unit="s"))


def late(**form: Any) -> Datetime:
    return Datetime("e", "2020-01-01", "2022-01-01", unit="D", stored=stored(**form))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ((A, b(difference=("a", "c"))), "one operand must be the column itself"),
        ((A, b(difference=("b", "aa"))), "operand 'aa' is not a column; did you mean 'a'"),
        ((A, b(ratio=("a", "b"))), "must be the numerator of its ratio"),
        (
            (Numeric("a", 0, 1), b(difference=("b", "c")), Categorical("c", ("x",))),
            "'c' is neither numeric nor datetime",
        ),
        (
            (Numeric("a", 0, 1, stored=Stored(difference=("a", "b"), **BOUNDS)), b(difference=("b", "a"))),
            "come earlier",
        ),
        ((A, b(difference=("b", "a"), unit="day")), "a unit applies only to differences of times"),
        ((A, b(difference=("b", "a"), upper=1e40)), "bounds beyond 1e\\+30"),
        ((Numeric("a", 0, 1e35), b(difference=("b", "a"))), "give it in another unit"),
        ((TIMES[0], late(difference=("e", "s"))), "needs a unit"),
        ((TIMES[0], late(difference=("e", "s"), unit="fortnight")), "unknown unit 'fortnight'; choose one of second"),
        ((TIMES[0], late(difference=("e", "s"), unit="hour")), "finer than the times' own unit"),
        ((TIMES[0], late(difference=("e", "s"), unit="day", upper=1.5)), "must be whole numbers"),
        ((TIMES[1], late(difference=("e", "t"), unit="day")), "cannot be subtracted; give both the same unit"),
        ((TIMES[0], late(ratio=("e", "s"))), "times, which can only be subtracted"),
        ((A, late(difference=("e", "a"), unit="day")), "mixes numbers and times"),
        ((A, Numeric("c", 0, 1, missing=True, computed=Computed(sum=("a", "x")))), "operand 'x' is not a column"),
        ((A, Numeric("c", 0, 1, computed=Computed(sum=("a", "b"))), b(difference=("b", "a"))), "set missing = true"),
        (
            (
                A,
                Numeric("c", 0, 1, missing=True, computed=Computed(sum=("a", "d"))),
                Numeric("d", 0, 1, missing=True, computed=Computed(sum=("a", "c"))),
            ),
            "operand 'd' is computed itself and must come earlier",
        ),
        ((A, b(difference=("b", "i")), Identifier("i")), "'i' is not stored at the sites"),
        (
            (A, Boolean("c", computed=Computed(lookup="a", table={"1": True}))),
            "a lookup needs a categorical or boolean column",
        ),
        (
            (Categorical("k", ("x", "y")), Boolean("c", computed=Computed(lookup="k", table={"x": True}))),
            "the table lacks values of 'k'",
        ),
        (
            (Boolean("k"), Categorical("c", ("u",), computed=Computed(lookup="k", table={"yes": "v", "no": "u"}))),
            "maps to 'v', which the column does not list",
        ),
        (
            (Boolean("k"), Categorical("c", ("u",), computed=Computed(lookup="k", table={"maybe": "u"}))),
            "'maybe', which is not a value of 'k'",
        ),
        ((Identifier("i"),), "all columns are computed or identifiers"),
    ],
)
def test_forms_that_do_not_hold_are_refused(columns: tuple[Column | Identifier, ...], says: str):
    with pytest.raises(SchemaError, match=says):
        Schema(columns)


@pytest.mark.parametrize(
    ("never", "says"),
    [
        ({"b": [True]}, "two or three columns"),
        ({"b": [True], "a": []}, "two or three columns"),
        ({"b": [True], "n": [1]}, "'n', which is not categorical"),
        ({"b": [True], "a": ["Y"]}, "a = 'Y', which is not a value of the column; did you mean 'y'"),
        ({"b": ["maybe"], "a": ["y"]}, "b = 'maybe'"),
        ({"b": [True], "k": ["y"]}, "no column 'k'"),
        ({"b": [True, False], "a": ["x", "y"]}, "forbid every combination"),
    ],
)
def test_rules_about_nothing_are_refused(never: dict[str, Any], says: str):
    with pytest.raises(SchemaError, match=says):
        Schema((Categorical("a", ("x", "y")), Boolean("b"), Numeric("n", 0, 1)), rules=(Rule(never),))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("stored = 3", "column 'b': stored = 3; write"),
        ('stored = { difference = ["b", "a"], lower = 0 }', "column 'b': stored: upper is missing"),
        (
            'stored = { difference = ["b", "a"], lower = 0, upper = 1, units = "day" }',
            "stored: units is unknown; did you mean 'unit'",
        ),
        (
            'stored = { difference = ["b", "a"], ratio = ["b", "a"], lower = 0, upper = 1 }',
            "with one of the entries difference, ratio",
        ),
        ('stored = { difference = ["b", "b"], lower = 0, upper = 1 }', "2 different columns"),
        ("stored = { difference = 7, lower = 0, upper = 1 }", "stored: difference: expected a list of texts, not 7"),
        ('stored = { difference = ["b", "a"], lower = 2, upper = 1 }', "lower <= upper"),
        ('stored = { difference = ["b", "a"], lower = "x", upper = 1 }', "stored: lower: expected a number, not 'x'"),
        ("computed = { }", "with one of the entries sum, difference, product, copy, lookup, part"),
        ('computed = { lookup = "a" }', "lookup needs a table .* or learned"),
        ('[[rule]]\nforbid = { a = ["x"] }', "rule 1: forbid is unknown; known are never"),
        ("[rule]\nnever = 1", r"rule: expected tables, each under its own \[\[rule\]\]"),
    ],
)
def test_files_with_wrong_forms_say_what_to_write(entry: str, says: str):
    text = 'fedsynth_schema = 1\n[[column]]\nname = "a"\ntype = "numeric"\nlow = 0\nhigh = 1\n'
    text += '[[column]]\nname = "b"\ntype = "numeric"\nlow = 0\nhigh = 1\n'
    with pytest.raises(SchemaError, match=says):
        Schema.from_toml(text + entry)


def test_an_identifier_without_a_form_is_refused():
    for form in ("", "P-1", "#" * 16):
        with pytest.raises(SchemaError, match="column 'i'"):
            Identifier("i", form)
