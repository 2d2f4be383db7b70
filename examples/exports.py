"""Write three made-up exports of hospitals, each in a dialect of its own, and the schema on which they agreed.

    python exports.py FOLDER [NAME...]

NAME is north, south (a workbook, which needs openpyxl) or east; by default, all three.
No row is a real person. What is done with them: docs/how-to/prepare-your-export.md.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fedsynth.datasets import patients

AGREED = """\
fedsynth_schema = 1

[[column]]
name = "ward"
type = "categorical"
values = ["surgery", "medicine", "cardiology", "maternity"]

[[column]]
name = "sex"
type = "categorical"
values = ["f", "m"]

[[column]]
name = "age"
type = "numeric"
low = 0
high = 110
integer = true

[[column]]
name = "height"    # cm
type = "numeric"
low = 100
high = 220
missing = true

[[column]]
name = "admitted"
type = "datetime"
low = "2020-01-01"
high = "2025-01-01"
unit = "min"

[[column]]
name = "bill"
type = "numeric"
low = 0
high = 60000
decimals = 2

[[column]]
name = "smoker"
type = "categorical"
values = ["no", "yes"]
missing = true

[[column]]
name = "readmitted"
type = "categorical"
values = ["no", "yes"]
"""


def rows(hospital: int, number: int) -> pd.DataFrame:
    """Return the patients of a hospital in the form of the schema, as numbers and times."""
    rng = np.random.default_rng(100 + hospital)
    found = patients(number, hospital).drop(columns="nights")
    found["height"] = np.round(rng.normal(np.where(found["sex"] == "f", 165, 178), 7)).clip(100, 220)
    minutes = rng.integers(0, 4 * 365 * 24 * 60, number)
    found["admitted"] = pd.Timestamp("2020-03-01") + pd.to_timedelta(minutes, "min")
    found["smoker"] = rng.choice(["no", "yes"], number, p=[0.75, 0.25])
    return found


def north(folder: Path) -> None:
    """A German export: cp1252, semicolons, decimal commas, three lines above the header and a line of totals."""
    table = rows(0, 1200)
    wards = {"surgery": "Chirurgie", "medicine": "Innere Medizin", "cardiology": "Kardiologie"}
    made = pd.DataFrame({"Fallnummer": [f"F-{100_000 + 37 * at}" for at in range(len(table))]})
    made["Abteilung"] = table["ward"].replace(wards | {"maternity": "Geburtshilfe"})
    made["Geschlecht"] = table["sex"].map({"f": "W", "m": "M"})
    made["Alter"] = table["age"].astype(str)
    made["Größe (m)"] = [f"{height / 100:.2f}".replace(".", ",") for height in table["height"]]
    made.loc[::40, "Größe (m)"] = "k. A."
    made["Aufnahmedatum"] = table["admitted"].dt.strftime("%d.%m.%Y")
    made["Uhrzeit"] = table["admitted"].dt.strftime("%H:%M")
    made["Rechnungsbetrag"] = [f"{bill:_.2f}".replace(".", ",").replace("_", ".") for bill in table["bill"]]
    made["Raucher"] = table["smoker"].map({"no": "nein", "yes": "ja"})
    made["Wiederaufnahme"] = table["readmitted"].map({"no": "N", "yes": "J"})
    total = f"Summe;;;;;;;{table['bill'].sum():.2f};;\n".replace(".", ",")
    text = "Klinikum Nord\nStand: 01.03.2024\n\n" + made.to_csv(index=False, sep=";") + total
    (folder / "north.csv").write_bytes(text.replace("\n", "\r\n").encode("cp1252"))


def south(folder: Path) -> None:
    """An English workbook: real dates, codes for yes and no, a sheet with remarks before that with the rows."""
    from openpyxl import Workbook

    table = rows(1, 900)
    book = Workbook()
    book.active.title = "about"
    book.active.append(["Extract for the study"])
    sheet = book.create_sheet("patients")
    sheet.append(["Patient No", "Ward", "Gender", "Age (years)", "Height cm"])
    for at, name in enumerate(["Admission", "Total bill", "Smoking", "Readmitted"], 6):
        sheet.cell(1, at, name)
    for at, row in enumerate(table.itertuples()):
        sex, yes = {"f": "Female", "m": "Male"}[row.sex], {"no": 0, "yes": 1}
        age = -9 if at % 60 == 0 else row.age
        sheet.append([7001 + 3 * at, row.ward.upper(), sex, age, int(row.height), row.admitted.to_pydatetime()])
        for place, value in enumerate([row.bill, yes[row.smoker], {"no": "N", "yes": "Y"}[row.readmitted]], 7):
            sheet.cell(at + 2, place, value)
    book.save(folder / "south.xlsx")


def east(folder: Path) -> None:
    """A French export: tabs, compressed, days before months, euros in thousands, without a column on smoking."""
    table = rows(2, 1000)
    wards = {"surgery": "chirurgie", "medicine": "médecine", "cardiology": "cardiologie", "maternity": "maternité"}
    made = pd.DataFrame({"identifiant": [f"P{50_000 + 11 * at}" for at in range(len(table))]})
    made["service"] = table["ward"].map(wards)
    made["sexe"] = table["sex"].map({"f": "F", "m": "H"})
    made["âge"] = [f"{age} ans" for age in table["age"]]
    made["taille (mm)"] = (10 * table["height"]).astype(int).astype(str)
    made.loc[::50, "taille (mm)"] = "inconnu"
    made["date d'entrée"] = table["admitted"].dt.strftime("%d/%m/%Y %H:%M")
    made["facture (k€)"] = [f"{bill / 1000:.5f}" for bill in table["bill"]]
    made["réadmis"] = table["readmitted"].map({"no": "non", "yes": "oui"})
    (folder / "east.tsv.gz").write_bytes(gzip.compress(made.to_csv(index=False, sep="\t").encode(), mtime=0))


if __name__ == "__main__":
    to, *names = sys.argv[1:] or ["exports"]
    Path(to).mkdir(exist_ok=True)
    (Path(to) / "agreed.toml").write_text(AGREED, encoding="utf-8")
    for name in names or ["north", "south", "east"]:
        {"north": north, "south": south, "east": east}[name](Path(to))
