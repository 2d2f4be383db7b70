"""``fedsynth site adapt``: from raw exports to a table by commands, and by edits where the draft asks for them."""

from __future__ import annotations

import gzip
import io
import json
import re
import runpy
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.command import invoke
from tests.public_data import public_data

from fedsynth.data.adapt import LOOK, adapt
from fedsynth.data.meanings import meanings, named_alike
from fedsynth.data.read import read_table, read_typed
from fedsynth.data.sources.source_file import SourceFile
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

EXPORTS = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "exports.py"))
BUDGET = ("--epsilon", 1, "--delta", "1e-6", "--seed", 1)


def drafted(folder, name, *more):
    """Draft the source file of an export by the command, and return its path."""
    path = folder / f"{name.partition('.')[0]}.toml"
    done = invoke(["site", "adapt", folder / name, "--schema", folder / "agreed.toml", "--out", path, *more])
    assert done.exit_code == 0, done.output
    return path


def confirm(path, **edits):
    """Take up what the draft offers for some columns, with texts replaced; delete ``draft = true``; nothing else."""
    kept, column = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        column = found[1] if (found := re.match(r"(?:#: )?\[column\.(.*)\]", line)) else column
        if line.startswith("#: ") and column in edits:
            line = line.removeprefix("#: ")
            for before, after in edits[column].items():
                line = line.replace(before, after)
        kept += [line] if line != "draft = true" else []
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    SourceFile.load(path)


def entries(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


def simulated(folder, *names):
    """Make a synthetic table of sites by the command."""
    sites = [word for name in names for word in ("--site", f"{name}={folder / name}.toml")]
    done = invoke(["simulate", *sites, "--schema", folder / "agreed.toml", *BUDGET, "--out", folder / "run"])
    assert done.exit_code == 0, done.output
    return pd.read_csv(folder / "run" / "synthetic.csv")


# ---------------------------------------------------------------------------------------------------------------------
# From raw files to a table


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    (folder / "agreed.toml").write_text(EXPORTS["AGREED"], encoding="utf-8")
    for name in ("north", "south", "east"):
        EXPORTS[name](folder)
    for name in ("north.csv", "south.xlsx", "east.tsv.gz"):
        drafted(folder, name)
    return folder


def test_three_exports_become_a_table_by_commands_and_marked_edits_alone(hospitals):
    sites = [word for name in ("north", "south") for word in ("--site", f"{name}={hospitals / name}.toml")]
    rest = ("--schema", hospitals / "agreed.toml", *BUDGET, "--out", hospitals / "run")
    refused = invoke(["simulate", *sites, *rest])
    assert refused.exit_code != 0
    assert "draft = true" in refused.output
    texts = {name: (hospitals / f"{name}.toml").read_text(encoding="utf-8") for name in ("north", "south", "east")}
    wards = {
        'Chirurgie = "..."': 'Chirurgie = "surgery"',
        '"Innere Medizin" = "..."': '"Innere Medizin" = "medicine"',
        'Kardiologie = "..."': 'Kardiologie = "cardiology"',
        'Geburtshilfe = "..."': 'Geburtshilfe = "maternity"',
    }
    french = {'chirurgie = "..."': 'chirurgie = "surgery"', '"médecine" = "..."': '"médecine" = "medicine"'}
    confirm(hospitals / "north.toml", ward=wards)
    confirm(hospitals / "south.toml")
    confirm(hospitals / "east.toml", ward=french, bill={})
    schema = Schema.load(hospitals / "agreed.toml")
    for at, (name, number) in enumerate([("north", 1200), ("south", 900), ("east", 1000)]):
        truth = EXPORTS["rows"](at, number)[list(schema.names)]
        found = read_typed(hospitals / f"{name}.toml", schema)
        if name == "south":  # 15 ages are -9, and the schema admits none
            truth = truth[np.arange(number) % 60 != 0].reset_index(drop=True)
        assert len(found) == len(truth)
        for column in ("ward", "sex", "readmitted", "admitted", "age"):
            assert (found[column].to_numpy() == truth[column].to_numpy()).all(), (name, column)
        np.testing.assert_allclose(found["bill"], truth["bill"], atol=0.006)
        here = found["height"].notna()
        assert here.mean() > 0.97
        np.testing.assert_allclose(found["height"][here], truth["height"][here])
        assert found["smoker"].isna().all() if name == "east" else (found["smoker"] == truth["smoker"]).all()
    made = simulated(hospitals, "north", "south", "east")
    assert set(made["ward"]) == {"surgery", "medicine", "cardiology", "maternity"}
    for name, text in texts.items():
        (hospitals / f"{name}.toml").write_text(text, encoding="utf-8")


def test_what_is_declared_for_the_exports(hospitals):
    north, south, east = (entries(hospitals / f"{name}.toml") for name in ("north", "south", "east"))
    assert north["csv"] == {"encoding": "cp1252", "separator": ";", "first_line": 4}
    assert (north["decimal"], north["thousands"], north["dates"]) == (",", ".", "%d.%m.%Y")
    assert north["skip"] == {"Fallnummer": ["Summe"]}
    assert north["column"]["admitted"] == {"from": ["Aufnahmedatum", "Uhrzeit"]}
    assert north["column"]["height"] == {"from": "Größe (m)", "factor": 100, "missing": ["k. A."]}
    assert (south["sheet"], south["column"]["age"]["missing"]) == ("patients", [-9])
    assert south["column"]["smoker"]["recode"] == {"0": "no", "1": "yes"}
    assert (east["absent"], east["column"]["sex"]["recode"]) == (["smoker"], {"F": "f", "H": "m"})
    assert east["column"]["height"] == {"from": "taille (mm)", "factor": 0.1, "missing": ["inconnu"]}
    assert east["dates"] == "%d/%m/%Y %H:%M"


def insured(folder):
    """Write three exports of the insurance table, each a third of its rows, and their schema; return the rows."""
    table = pd.read_csv(public_data("insurance.csv"))
    Schema(
        (
            Numeric("age", 0, 110, integer=True),
            Categorical("sex", ("female", "male")),
            Numeric("bmi", 10, 70, missing=True),
            Categorical("children", (0, 1, 2, 3, 4, 5)),
            Boolean("smoker"),
            Categorical("region", ("northeast", "northwest", "southeast", "southwest")),
            Numeric("charges", 0, 100_000, decimals=2, missing=True),
        )
    ).save(folder / "agreed.toml")
    table["charges"] = table["charges"].round(2)
    west, island, harbour = (table[at::3].reset_index(drop=True) for at in range(3))
    made = west.assign(
        sex=west["sex"].map({"female": "M", "male": "H"}),  # mujer, hombre
        smoker=west["smoker"].map({"no": "no", "yes": "sí"}),
        region=west["region"].str.replace("north", "North ").str.replace("south", "South ").str.title(),
        charges=[f"${value:,.2f}" for value in west["charges"]],
        bmi=["?" if at % 30 == 0 else f"{value:g}" for at, value in enumerate(west["bmi"])],
    ).set_axis(["Edad", "Sexo", "BMI", "Hijos", "Fumador", "Región", "Total Charges (USD)"], axis=1)
    made.insert(0, "Póliza ID", [f"{at * 7919 % 10**6:06d}" for at in range(len(made))])
    (folder / "west.txt").write_text(f"policies 2024\n{made.to_csv(index=False, sep='|')}", encoding="utf-8")

    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    for line in (["Island Mutual"], [], ["AGE (Years)", "Gender", "B.M.I.", "No. of Children", "Is Smoker", "region"]):
        sheet.append(line)
    sheet.cell(3, 7, "charges_cents")
    row: Any
    for row in island.itertuples():
        sex, smoker = {"female": 2, "male": 1}[row.sex], row.smoker == "yes"
        sheet.append([row.age, sex, row.bmi, row.children, smoker, row.region.upper(), round(row.charges * 100)])
    book.save(folder / "island.xlsx")

    made = harbour.assign(
        sex=harbour["sex"].map({"female": "weiblich", "male": "männlich"}),
        smoker=harbour["smoker"].map({"no": "Nein", "yes": "Ja"}),
        region=harbour["region"].map(
            {"northeast": "Nordost", "northwest": "Nordwest", "southeast": "Südost", "southwest": "Südwest"}
        ),
        bmi=[f"{value:.2f} kg/m²".replace(".", ",") for value in harbour["bmi"]],
    ).drop(columns="charges")
    made = made.set_axis(["Alter", "Geschlecht", "BMI", "Kinder", "Raucher", "Gebiet"], axis=1)
    text = made.to_csv(index=False, sep=";")
    (folder / "harbour.csv.gz").write_bytes(gzip.compress(text.encode("cp1252"), mtime=0))
    return west, island, harbour


def test_three_exports_of_another_table(tmp_path):
    parts = insured(tmp_path)
    schema = Schema.load(tmp_path / "agreed.toml")
    for name in ("west.txt", "island.xlsx", "harbour.csv.gz"):
        drafted(tmp_path, name)
    confirm(tmp_path / "west.toml")
    confirm(tmp_path / "island.toml")
    german = {"Nordost": "northeast", "Nordwest": "northwest", "Südost": "southeast", "Südwest": "southwest"}
    quoted = {text: text if text.isascii() else f'"{text}"' for text in german}
    regions = {f'{quoted[text]} = "..."': f'{quoted[text]} = "{label}"' for text, label in german.items()}
    confirm(tmp_path / "harbour.toml", region=regions)
    for name, truth in zip(("west", "island", "harbour"), parts, strict=True):
        found = read_typed(tmp_path / f"{name}.toml", schema)
        assert len(found) == len(truth), name
        for column in ("age", "sex", "children", "region"):
            assert (found[column].to_numpy() == truth[column].to_numpy()).all(), (name, column)
        assert (found["smoker"] == (truth["smoker"] == "yes")).all(), name
        here = found["bmi"].notna()
        assert here.mean() > 0.95
        np.testing.assert_allclose(found["bmi"][here], truth["bmi"][here], atol=0.0051)
        if name == "harbour":
            assert found["charges"].isna().all()
        else:
            np.testing.assert_allclose(found["charges"], truth["charges"], atol=0.006)
    assert set(simulated(tmp_path, "west", "island", "harbour")["region"]) <= set(parts[0]["region"])


# ---------------------------------------------------------------------------------------------------------------------
# What a draft says, and what it does not


def adapted(folder, cells, *columns, name="t.csv", **options):
    """Return the draft for a file with these columns of cells."""
    pd.DataFrame(cells).to_csv(folder / name, index=False, sep=";")
    return adapt(folder / name, Schema(columns), folder, **options)


def test_no_rare_value_and_no_value_of_an_identifier_is_in_a_draft(tmp_path):
    rng = np.random.default_rng(0)
    rare = {f"rareword{chr(97 + at)}": at + 1 for at in range(9)}
    words = [word for word, count in rare.items() for _ in range(count)]
    cells = {
        "patient": [f"K{at % 40:02d}" for at in range(400)],
        "ward": [*words, *["Notaufnahme"] * 50, *["icu"] * (350 - len(words))],
        "age": [*["<5"] * 12, *["<18y"] * 3, *map(str, rng.integers(0, 90, 385))],
        "note": [f"seen by Dr {at}" for at in range(400)],
    }
    columns = (Categorical("ward", ("icu", "er")), Numeric("age", 0, 110), Categorical("patient", ("a", "b")))
    draft = adapted(tmp_path, cells, *columns, person="patient")
    assert '50 x "Notaufnahme"' in draft.text
    assert '12 x "<5" and 3 cells not named here' in draft.text
    assert not re.search(r"rareword|<18y|K\d\d|seen by", draft.text)
    assert '#: recode = { Notaufnahme = "..." }' in draft.text
    assert "400 cells not named here" in draft.text


def test_a_draft_counts_what_a_run_reads(tmp_path):
    days = [f"{at % 31 + 1:02d}.02.2023" for at in range(310)]  # of which 29 to 31 do not exist
    draft = adapted(tmp_path, {"Datum": days, "x": days}, Datetime("date", "2000-01-01", "2030-01-01", unit="D"))
    assert "# 280 of 310 cells fit; 30 do not" in draft.text
    table = read_table(draft.rows, Schema((Datetime("date", "2000-01-01", "2030-01-01", unit="D", missing=True),)))
    assert (table.codes[0] < 32).sum() == 280


@pytest.mark.parametrize(
    ("cells", "column", "said"),
    [
        (["03/04/2023", "05/06/2023"], Datetime("x", "2000-01-01", "2030-01-01"), "the day or the month"),
        (["03.04.23", "31.05.98"], Datetime("x", "1930-01-01", "2029-12-31"), "begin with 1930"),
        (["1.234", "5.678"], Numeric("x", 0, 10_000), "other numbers"),
        (["0012", "0020"], Numeric("x", 1e6, 3e6), "another unit"),
        (["120/80", "135/90"], Numeric("x", 60, 260), "more than a number"),
        (["2023-01-01 10:00"], Datetime("x", "2020-01-01", "2030-01-01", timezone="Europe/Zurich"), "Continent/City"),
        (["blue", "red"], Categorical("x", ("a", "b")), "recode them"),
        (["-9", *map(str, range(20, 80))], Numeric("x", 0, 100), "does this mean missing? The schema admits none"),
    ],
)
def test_guesses_that_a_person_has_to_confirm_are_marked(tmp_path, cells, column, said):
    draft = (
        adapted(tmp_path, {"x": cells * 30, "other": ["p", "q", "r"][: len(cells)] * 30 or cells}, column)
        if (len(cells) <= 3)
        else adapted(tmp_path, {"x": cells * 30}, column)
    )
    assert any(said in look for look in draft.looks), draft.text
    assert all(line.startswith(LOOK) for line in draft.text.splitlines() if "LOOK:" in line)


def test_names_are_compared_without_case_spaces_accents_units_and_brackets(tmp_path):
    cells = {"KÖRPERGRÖSSE [cm]": range(150, 200), "ageAtEntry": range(30, 80), "Body_Weight (kg)": range(50, 100)}
    columns = [Numeric(name, 0, 300) for name in ("height", "age at entry", "bodyweight")]
    draft = adapted(tmp_path, {name: list(values) for name, values in cells.items()}, *columns)
    assert {name: one.from_ for name, one in draft.rows.told.column.items()} == {
        "height": "KÖRPERGRÖSSE [cm]",
        "age at entry": "ageAtEntry",
        "bodyweight": "Body_Weight (kg)",
    }
    assert named_alike("aufnahmedatum", "admitted")
    assert not named_alike("aufnahmedatum", "geburtsdatum")


@pytest.mark.parametrize(
    ("codes", "meant"),
    [
        ("W M", "female male"),
        ("H F", "male female"),
        ("H M", "male female"),
        ("1 2", "male female"),
        ("J N", "yes no"),
        ("1 0", "yes no"),
        ("Oui Non", "yes no"),
        ("männlich weiblich", "male female"),
        ("A B", ""),
        ("yes", ""),
    ],
)
def test_codes_have_the_meaning_of_one_language(codes, meant):
    assert list(meanings(codes.split()).values()) == meant.split()


def test_types_of_a_parquet_file_stay(tmp_path):
    frame = pd.DataFrame(
        {"Height": [*np.arange(1.5, 1.99, 0.01).round(2), *[-9.0] * 11], "seen": pd.to_datetime(["2023-04-01"] * 60)}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    schema = Schema((Numeric("height", 100, 220, missing=True), Datetime("seen", "2020-01-01", "2030-01-01")))
    draft = adapt(tmp_path / "t.parquet", schema, tmp_path)
    assert draft.rows.told.column["height"].factor == 100
    assert draft.rows.told.column["height"].missing == (-9,)
    assert "# seen, as it is: 60 of 60 cells fit" in draft.text
    assert len(read_table(draft.rows, schema)) == 60


def test_a_draft_is_refused_until_a_person_confirms_it(tmp_path):
    schema = Schema((Numeric("x", 0, 100),))
    schema.save(tmp_path / "agreed.toml")
    (tmp_path / "t.csv").write_text("x;y\n" + "".join(f"{at};1\n" for at in range(50)))
    path = drafted(tmp_path, "t.csv")
    with pytest.raises(InvalidParameter, match="draft = true"):
        read_table(path, schema)
    assert invoke(["schema", "check", path, "--schema", tmp_path / "agreed.toml"]).exit_code == 3
    confirm(path)
    assert len(read_table(path, schema)) == 50
    again = invoke(["site", "adapt", tmp_path / "t.csv", "--schema", tmp_path / "agreed.toml", "--out", path])
    assert "exists and may have been edited" in " ".join(again.output.split())


def test_the_draft_as_json_ends_with_the_check(tmp_path):
    Schema((Numeric("x", 0, 100),)).save(tmp_path / "agreed.toml")
    (tmp_path / "t.csv").write_text("x;y\n" + "".join(f"{at};1\n" for at in range(50)))
    with redirect_stdout(io.StringIO()):
        done = invoke(["site", "adapt", tmp_path / "t.csv", "--schema", tmp_path / "agreed.toml", "--json"])
    facts = json.loads(done.output)
    assert (facts["fits"], facts["rows"], facts["left_out"], facts["looks"]) == (True, 50, 0, [])
    assert tomllib.loads(facts["source"])["draft"] is True


@pytest.mark.parametrize(
    ("name", "text", "error", "said"),
    [
        ("t.csv", "74,m\n33,f\n", SchemaError, "no header"),
        ("t.csv", "age,sex\n", SchemaError, "no rows"),
        ("t.sas", "", Unsupported, "write a view"),
        ("t.xlsx", "no zip", SchemaError, "no workbook"),
    ],
)
def test_files_that_cannot_be_adapted_are_said_so(tmp_path, name, text, error, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=said):
        adapt(tmp_path / name, Schema((Numeric("age", 0, 110),)), tmp_path)
