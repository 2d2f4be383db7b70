"""Schemas and outlines of several sites made into one: what is settled, what a person decides, and what is said."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from tests.command import invoke

from fedsynth.data.draft import draft_schema
from fedsynth.data.merge import Described, Merged, merge, outline_toml
from fedsynth.datasets import patients
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError
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

AGE = Numeric("age", 0, 110, integer=True)
SEX = Categorical("sex", ("f", "m"))
CAME = Datetime("came", "2020-01-01", "2025-01-01", unit="D")
LEFT = Datetime("left", "2020-01-01", "2026-01-01", unit="D")


def written(folder: Path, **schemas: Schema | str) -> list[Described]:
    """Write a schema, or the text of an outline, for each site, and read them back."""
    for name, schema in schemas.items():
        text = schema if isinstance(schema, str) else schema.to_toml()
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    files = [Described.load(folder / f"{name}.toml") for name in schemas]
    return [Described(*(getattr(file, one) for one in _FIELDS)) for file in map(_short, files)]


_FIELDS = ("name", "columns", "rules", "missing_values", "is_outline", "drafted")


def _short(file: Described) -> Described:
    return Described(Path(file.name).stem, *(getattr(file, one) for one in _FIELDS[1:]))


def merged(folder: Path, one: Column | Schema, other: Column | Schema) -> Merged:
    north, south = (each if isinstance(each, Schema) else Schema((each,)) for each in (one, other))
    return merge(written(folder, north=north, south=south))


def column(made: Merged, name: str = "") -> Column:
    """Return a column of what was merged, as a run would read it."""
    schema = Schema.from_toml(made.to_toml())
    found = next(one for one in schema.columns if one.name == (name or schema.columns[0].name))
    assert not isinstance(found, Identifier)
    return found


def said(made: Merged) -> list[str]:
    return [f"{'! ' * one.decide}{one}" for one in made.differences]


def test_equal_schemas_merge_to_themselves_and_are_no_draft(tmp_path):
    schema = Schema(
        (
            CAME,
            stored_as_stay(LEFT),
            SEX,
            Boolean("smoker", missing=True),
            Identifier("id"),
            Numeric("cost", 0, 9, decimals=1, edges=(0, 1, 9)),
        ),
        missing_values=("", "k. A."),
        rules=(Rule({"sex": ["m"], "smoker": [True, ""]}),),
    )
    made = merged(tmp_path, schema, schema)
    assert made.is_decided
    assert not made.sources
    again = Schema.from_toml(made.to_toml())
    assert again == schema
    assert "#" not in made.to_toml()


def stored_as_stay(column: Datetime) -> Datetime:
    stored = Stored(difference=("left", "came"), unit="day", lower=0, upper=90)
    return Datetime(column.name, column.low, column.high, unit="D", stored=stored)


@pytest.mark.parametrize(
    ("one", "other", "expected", "sentence"),
    [
        (
            AGE,
            Numeric("age", 18, 120, integer=True),
            Numeric("age", 0, 120, integer=True),
            "age: bounds 0 to 110 (north), 18 to 120 (south); the widest are written",
        ),
        (
            CAME,
            Datetime("came", "2019-12-31", "2024-01-01", unit="D"),
            Datetime("came", "2019-12-31", "2025-01-01", unit="D"),
            "came: bounds 2020-01-01 to 2025-01-01 (north), 2019-12-31 to 2024-01-01 (south); the widest are written",
        ),
        (
            Numeric("x", 0, 10, edges=(0, 1, 10)),
            Numeric("x", 0, 12),
            Numeric("x", 0, 12, edges=(0, 1, 10, 12)),
            "x: edges of bins differ; all are written",
        ),
        (
            CAME,
            Datetime("came", "2020-01-01", "2025-01-01", unit="min"),
            CAME,
            'came: unit = "D" (north), "min" (south); the coarsest, \'D\', is written: times are rounded down to it',
        ),
        (
            AGE,
            Numeric("age", 0, 110, decimals=1),
            Numeric("age", 0, 110, decimals=1),
            "age: decimals: 0 (north), 1 (south); the most are written; is it another unit?",
        ),
        (
            SEX,
            Categorical("sex", ("f", "d"), missing=True, unknown="other"),
            Categorical("sex", ("f", "m", "d"), missing=True, unknown="other"),
            "sex: only north has 'm'; only south has 'd'; all are written",
        ),
        (
            Categorical("stage", (1, 2)),
            Categorical("stage", ("2", "3a")),
            Categorical("stage", ("1", "2", "3a")),
            "stage: only north has '1'; only south has '3a'; all are written",
        ),
        (
            Boolean("smoker"),
            Boolean("smoker", missing=True),
            Boolean("smoker", missing=True),
            "smoker: missing = false (north), true (south); missing = true is written",
        ),
    ],
)
def test_what_can_be_settled_is_proposed_and_said(tmp_path, one, other, expected, sentence):
    made = merged(tmp_path, one, other)
    assert column(made) == expected
    assert sentence in said(made)
    assert made.is_decided
    assert Schema.from_toml(made.to_toml()).drafted  # until somebody has read it
    assert f"# PROPOSED: {sentence.partition(': ')[2]}" in made.to_toml()


@pytest.mark.parametrize(
    ("one", "other", "kept", "sentence"),
    [
        (
            SEX,
            Boolean("sex"),
            SEX,
            'sex: type = "categorical" (north), "boolean" (south); that of north is written',
        ),
        (
            Numeric("height", 0, 2.5, decimals=2),
            Numeric("height", 0, 250, decimals=2),
            None,
            "height: bounds 0.0 to 2.5 (north), 0.0 to 250.0 (south); is it another unit? Then keep the bounds of one,",
        ),
        (
            Categorical("eye", ("gastroenterology", "brown")),
            Categorical("eye", ("gastroenterologie", "brown")),
            None,
            "eye: 'gastroenterology' and 'gastroenterologie' look alike, and no file has both; one value?",
        ),
        (
            Numeric("x", 0, 1),
            Numeric("x", 0, 1, outside="drop"),
            Numeric("x", 0, 1),
            'x: outside = "clip" (north), "drop" (south); agree on one; that of north is written',
        ),
        (
            Schema((SEX, AGE)),
            Schema((SEX, Numeric("age", 0, 110, integer=True, computed=Computed(copy="n")), Numeric("n", 0, 9))),
            None,
            'age: computed = none (north), { copy = "n" } (south)',
        ),
        (
            Datetime("came", "2020-01-01", "2025-01-01", timezone="Europe/Zurich"),
            Datetime("came", "2020-01-01", "2025-01-01"),
            None,
            'came: timezone = "Europe/Zurich" (north), none (south); agree on one',
        ),
        (
            Schema((SEX, Boolean("pregnant")), rules=(Rule({"sex": ["m"], "pregnant": [True]}),)),
            Schema((SEX, Boolean("pregnant"))),
            SEX,
            "rule 1: only in north; true at south as well? If not, delete it",
        ),
        (
            Categorical("a", ("x",), ordered=True),
            Categorical("a", ("x",)),
            None,
            "a: ordered = true (north), false (south)",
        ),
    ],
)
def test_what_only_a_person_can_decide_is_marked(tmp_path, one, other, kept, sentence):
    made = merged(tmp_path, one, other)
    found = [line for line in said(made) if line.startswith("! ")]
    assert any(line.removeprefix("! ").startswith(sentence) for line in found), found
    assert not made.is_decided
    text = made.to_toml()
    assert "# DECIDE: " in text
    if kept is not None:
        assert column(made) == kept
    if "boolean" in sentence:
        assert '# or, as south has it:\n# type = "boolean"\n' in text


def test_a_column_that_a_site_lacks_may_be_missing_and_its_source_file_says_so(tmp_path):
    city = Categorical("city", ("Bern", "Paris"))
    land = Categorical("land", ("CH", "FR"), computed=Computed(lookup="city", table={"Bern": "CH", "Paris": "FR"}))
    north = Schema((Identifier("id"), AGE, city, land))
    made = merge(written(tmp_path, north=north, south=Schema((AGE, SEX)), east=Schema((AGE, SEX, city))))
    schema = Schema.from_toml(made.to_toml())
    assert {one.name for one in schema.columns if getattr(one, "missing", False)} == {"city", "land", "sex"}
    assert made.sources == {"north": ['absent = ["sex"]'], "south": ['absent = ["city"]']}
    assert '# In the source file of the site of south:\n#     absent = ["city"]\n' in made.to_toml()
    assert "land: computed from city, of which one may be missing; missing = true is written" in said(made)
    assert made.is_decided


def test_names_and_values_that_differ_in_capitals_and_signs_alone_are_one(tmp_path):
    left = Datetime("Left_on", "2020-01-01", "2026-01-01", unit="D")
    stay = Numeric("stay", 0, 90, computed=Computed(difference=("Left_on", "CAME"), unit="day"), integer=True)
    sex = Categorical("SEX", ("F", "m "))
    south = Schema(
        (Datetime("CAME", CAME.low, CAME.high, unit="D"), left, stay, sex, Boolean("Pregnant")),
        rules=(Rule({"SEX": ["m "], "Pregnant": [True]}),),
    )
    north = Schema((CAME, Datetime("left on", LEFT.low, LEFT.high, unit="D"), SEX, Boolean("pregnant")))
    made = merge(written(tmp_path, north=north, south=south))
    assert [*made.columns] == ["came", "left on", "sex", "pregnant", "stay"]
    assert made.sources == {
        "south": [
            *("[column.came]", 'from = "CAME"', '[column."left on"]', 'from = "Left_on"'),
            *("[column.sex]", 'from = "SEX"', 'recode = { F = "f", "m " = "m" }'),
            *("[column.pregnant]", 'from = "Pregnant"'),
        ]
    }
    assert made.columns["stay"]["computed"]["difference"] == ["left on", "came"]
    assert made.columns["sex"]["values"] == ["f", "m"]
    tomllib.loads("\n".join(made.sources["south"]))
    # the rule's value is no value any more, so that the schema needs an edit, which is said
    assert any(line.startswith("! the merged schema is not valid yet: ") for line in said(made))


def test_names_that_look_alike_are_named_and_both_written(tmp_path):
    made = merged(tmp_path, Boolean("readmission"), Boolean("readmissions"))
    assert [*made.columns] == ["readmission", "readmissions"]
    (line,) = (line for line in said(made) if line.startswith("! "))
    assert line.startswith("! readmissions: looks like 'readmission', and no file has both; one column?")
    assert '[column.readmission] from = "readmissions"' in line
    made = merged(tmp_path, Schema((Boolean("a1"), AGE)), Schema((Boolean("a2"), AGE)))
    assert not any(line.startswith("! ") for line in said(made))  # digits tell names apart


def test_outlines_hold_names_kinds_and_units_alone(tmp_path):
    frame = patients(600, 1)
    frame["came"] = pd.date_range("2021-03-05", periods=600).strftime("%d.%m.%Y")
    frame["mrn"] = [f"SECRET-{at * 7919}" for at in range(600)]
    draft = draft_schema(frame.astype(str))
    text = outline_toml(draft.schema, draft.dates, draft.left_out)
    assert tomllib.loads(text)["column"] == [
        {"name": "ward", "type": "categorical"},
        {"name": "sex", "type": "categorical"},
        {"name": "age", "type": "numeric", "integer": True},
        {"name": "nights", "type": "numeric", "integer": True},
        {"name": "bill", "type": "numeric", "decimals": 2},
        {"name": "readmitted", "type": "categorical"},
        {"name": "came", "type": "datetime", "unit": "D", "form": "%d.%m.%Y"},
    ]
    assert "# left out: mrn\n" in text
    rest = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"\d", re.sub("fedsynth_outline = 1|decimals = 2", "", rest))
    for values in (*(set(frame[name]) for name in ("ward", "sex", "came", "readmitted")), {"SECRET"}):
        assert not values & {*re.findall(r'"([^"]*)"', rest), *rest.split()}
    with pytest.raises(SchemaError, match=r"this is an outline, .*; merge it with those of the other sites"):
        Schema.from_toml(text)
    again = merge(written(tmp_path, north=text, south=text))
    assert [*again.to_fill] == [name for name in [*frame.columns] if name != "mrn"]
    assert again.to_fill["came"] == ("low", "high")
    assert '# values = \nname = "ward"' in again.to_toml()
    assert not again.is_decided
    with pytest.raises(SchemaError, match="column 'ward'"):  # nothing takes it for a schema before it is filled in
        Schema.from_toml(again.to_toml())
    filled = re.sub("# (low|high) = \n", lambda m: f"{m[1]} = {'0' if m[1] == 'low' else '9'}\n", again.to_toml())
    filled = re.sub('= [09]\nhigh = [09]\nname = "came"', '= "2020"\nhigh = "2030"\nname = "came"', filled)
    filled = filled.replace("# values = \n", 'values = ["a", "b"]\n')
    assert Schema.from_toml(filled).names == tuple(again.columns)


def test_an_outline_takes_bounds_and_values_from_a_schema(tmp_path):
    outline = 'fedsynth_outline = 1\n[[column]]\nname = "age"\ntype = "numeric"\ninteger = true\n'
    outline += '[[column]]\nname = "sex"\ntype = "categorical"\n'
    made = merge(written(tmp_path, north=outline, south=Schema((AGE, SEX))))
    assert made.is_decided
    assert Schema.from_toml(made.to_toml()) == Schema((AGE, SEX))
    assert not made.differences


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedsynth_outline = 2\n", "fedsynth_outline"),
        ('fedsynth_outline = 1\n[[column]]\nname = "a"\ntype = "numeric"\nlow = 3\n', "low is unknown"),
        ('fedsynth_outline = 1\n[[column]]\nname = "a"\ntype = "number"\n', "type"),
        ('fedsynth_outline = 1\n[[column]]\nname = "a"\ntype = "id"\ndecimals = 40\n', "decimals"),
        ('[[column]]\nname = "a"\n', "fedsynth_schema = 1"),
        ("no toml", "is not TOML"),
    ],
)
def test_files_that_are_neither(tmp_path, text, message):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(FedsynthError, match=message):
        Described.load(tmp_path / "a.toml")


def test_one_file_is_not_merged_with_itself(tmp_path):
    (file,) = written(tmp_path, north=Schema((AGE,)))
    for files in ([file], [file, file]):
        with pytest.raises(InvalidParameter, match="two or more different files"):
            merge(files)


def test_a_site_compares_its_draft_with_what_was_agreed(tmp_path):
    agreed = Schema(
        (
            AGE,
            Numeric("weight", 0, 300, decimals=1),
            SEX,
            Boolean("smoker", missing=True),
            Boolean("asthma"),
            Identifier("id"),
            Numeric("double", 0, 220, computed=Computed(copy="age")),
        ),
        rules=(Rule({"sex": ["m"], "smoker": [True]}),),
    )
    mine = Schema(
        (
            Numeric("age", 18, 99, integer=True, bins=9, missing=True),
            Numeric("weight", 20, 310, decimals=1),
            Categorical("Sex", ("F", "m", "x"), unknown="other"),
            Boolean("note"),
        ),
        drafted=True,
    )
    made = merge(written(tmp_path, agreed=agreed, mine=mine), agreed=True)
    assert not any("bins" in line or line.startswith("rule") for line in said(made))
    assert [line.removeprefix("! ") for line in said(made)] == [
        "sex: mine calls it 'Sex'; one column, which the source file there renames (from)",
        "age: missing = false (agreed), true (mine); rows with a missing value are left out; agree on missing = true "
        "to keep them",
        "weight: bounds 0.0 to 300.0 (agreed), 20.0 to 310.0 (mine); what lies beyond the agreed ones is clipped, or "
        "left out",
        "sex: mine spells 'f' as 'F'; one value each, which the source file there brings together (recode)",
        "sex: only mine has 'x'; recode them, or leave them to the agreed column's entry unknown",
        "smoker: mine lacks it; say which column holds it (from), or declare it absent",
        "asthma: mine lacks it; say which column holds it (from), or declare it absent, for which all sites have to "
        "agree on missing = true",
        "note: agreed does not have it; a run ignores it",
    ]
    assert made.sources["mine"] == [
        *('absent = ["smoker", "asthma"]', "[column.sex]", 'from = "Sex"', 'recode = { F = "f" }'),
    ]


def test_the_commands(tmp_path):
    folder, merging = tmp_path, ["schema", "merge"]
    for site, frame in (("north", patients(400, 0)), ("south", patients(400, 1).drop(columns="bill"))):
        frame.to_csv(folder / f"{site}.csv", index=False)
        drafted = ["schema", "draft", folder / f"{site}.csv", "--outline", "--out", folder / f"{site}.toml"]
        assert invoke(drafted).exit_code == 0
    both = [*merging, folder / "north.toml", folder / "south.toml"]
    done = invoke([*both, "--out", folder / "agreed.toml"])
    assert done.exit_code == 3
    assert "6 columns in" in done.output
    assert '    absent = ["bill"]\n' in done.output
    assert invoke(both).output == (folder / "agreed.toml").read_text() + "\n"
    assert invoke([*both, "--out", folder / "agreed.toml"]).exit_code == 8  # it may have been edited
    used = invoke(["schema", "check", folder / "north.csv", "--schema", folder / "north.toml"])
    assert (used.exit_code, "this is an outline" in used.output) == (3, True)
    Schema((SEX,)).save(folder / "one.toml")
    other = Schema((SEX,), drafted=True)
    other.save(folder / "mine.toml")
    for order in (["one.toml", "mine.toml"], ["mine.toml", "one.toml"]):
        found = invoke([*merging, *(folder / name for name in order)])
        assert found.exit_code == 0
        assert "nothing is to be done to follow" in found.output
    found = invoke([*merging, folder / "one.toml", folder / "mine.toml", "--out", folder / "both.toml"])
    assert (found.exit_code, Schema.load(folder / "both.toml").drafted) == (3, True)
    assert "mine.toml is a draft, whose bounds and lists are facts about rows" in (folder / "both.toml").read_text()
