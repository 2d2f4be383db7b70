"""Drafts of schemas from public tables in five dialects: the share of columns that are drafted as what they are.

``python -m benchmarks.drafts`` prints, for each file, the columns drafted otherwise, and at the end the shares by
table, dialect and kind. The kinds below were written down before any draft was made, by the author of rules and
dialects. Rules were tuned on the tables of ``TUNED`` alone; ``UNSEEN`` was drafted afterwards, and changed one thing
(quotes after spaces, which left lines out). That no draft holds a value of an identifier, or one that fewer than ten
rows have, is checked of every file. Tables are those of ``FEDSYNTH_DATA``, by default ``../shared/data``.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import ROOT
from fedsynth.data.draft import Draft, draft_schema
from fedsynth.data.text_form import read_raw
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric

DATA = Path(os.environ.get("FEDSYNTH_DATA", ROOT.parent / "shared" / "data"))
RARE = 10
ROWS = 4000

# c: category, n: number (or a category with the entry of a number beside it), e: either, d: date, i: identifier,
# t: text of many values, a category or left out.
TUNED = {
    "adult.csv": "ncncecccccnnncc",
    "insurance.csv": "ncneccn",
    "bank.parquet": "ccccccccncnnnnnnc",
    "diabetes.parquet": "iicccccccncc" + "nnnnnn" + "cccn" + "c" * 28,
    "gibleed_condition_occurrence.parquet": "iiicddc",
    "pbc_visit.parquet": "iineeeennnnnnne",
}
UNSEEN = {
    "gibleed_drug_exposure.parquet": "iiicddnec",
    "gibleed_person.parquet": "icdcc",
    "clinical.csv": "nenen" + "ennne" + "ene",
    "obesity.parquet": "cnnncc" + "nnccnc" + "nnccc",
    "philadelphia.parquet": "edccctctn",
    "cardio.parquet": "inennnneeeeee",
}


def table(name: str) -> pd.DataFrame:
    """Return at most 4,000 rows of a table in their own order."""
    path = DATA / name
    frame = pd.read_parquet(path) if name.endswith("parquet") else pd.read_csv(path, skipinitialspace=True)
    kept = np.sort(np.random.default_rng(0).permutation(len(frame))[:ROWS])
    return frame.iloc[kept].reset_index(drop=True)


def _texts(
    frame: pd.DataFrame, kinds: str, number: Callable[[float], str], day: str, missing: str
) -> dict[str, list[str]]:
    """Return the cells as text; ``number`` writes those that are not whole."""
    written = {}
    for (name, values), kind in zip(frame.items(), kinds, strict=True):
        if kind == "d":
            cells = [missing if pd.isna(value) else pd.Timestamp(value).strftime(day) for value in values]
        elif pd.api.types.is_float_dtype(values.dtype):
            single = values.dtype == np.float32
            cells = [missing if pd.isna(x) else number(float(str(x)) if single else float(x)) for x in values]
        else:
            cells = [missing if pd.isna(value) or value == "?" else str(value) for value in values]
        written[str(name)] = cells
    return written


def _lines(texts: dict[str, list[str]], mark: str) -> list[str]:
    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if mark.strip() in cell or '"' in cell else cell

    return [mark.join(map(quoted, row)) for row in (list(texts), *zip(*texts.values(), strict=True))]


def plain(frame: pd.DataFrame, kinds: str) -> bytes:
    """As pandas writes it."""
    return ("\n".join(_lines(_texts(frame, kinds, repr, "%Y-%m-%d", ""), ",")) + "\n").encode()


def german(frame: pd.DataFrame, kinds: str) -> bytes:
    """Semicolons, decimal commas, points between thousands, cp1252, and two lines before the header."""

    def number(value: float) -> str:
        return f"{value:,}".translate(str.maketrans(",.", ".,")) if value % 1 else f"{int(value)}"

    lines = _lines(_texts(frame, kinds, number, "%d.%m.%Y", "k. A."), ";")
    return ("\r\n".join(["Auszug für die Übung", "Stand: 1.2.2024", *lines]) + "\r\n").encode("cp1252", "replace")


def american(frame: pd.DataFrame, kinds: str) -> bytes:
    """Commas between thousands, the month first, N/A, and a comma at the end of each line but the header."""
    header, *lines = _lines(_texts(frame, kinds, lambda value: f"{value:,}", "%m/%d/%Y", "N/A"), ",")
    return ("\n".join([header, *(f"{line}," for line in lines)]) + "\n").encode()


def hospital(frame: pd.DataFrame, kinds: str) -> bytes:
    """Tabs, days as YYYYMMDD, -999 for missing numbers, "<0.1" in 2 % of the fractions, and a row of totals."""
    texts = _texts(frame, kinds, repr, "%Y%m%d", "")
    rng = np.random.default_rng(1)
    total = False
    for (name, values), kind in zip(frame.items(), kinds, strict=True):
        cells = texts[str(name)]
        if kind == "n" and values.nunique() > 20 and values.min() >= 0:
            gone = rng.random(len(cells)) < 0.03
            below = (rng.random(len(cells)) < 0.02) & bool((values.dropna() % 1 != 0).any())
            texts[str(name)] = [
                "-999" if no else "<0.1" if low else cell for cell, no, low in zip(cells, gone, below, strict=True)
            ]
            texts[str(name)].append(f"{values.sum():.1f}" if total else "Total")
            total = True
        else:
            cells.append("")
    return ("\n".join(_lines(texts, "\t")) + "\n").encode()


def exported(frame: pd.DataFrame, kinds: str) -> bytes:
    """A mark of byte order, ``sep=,``, a space after each comma, units, U+2212, and days as 31-OCT-2023."""

    def number(value: float) -> str:
        return f"{value} kg".replace("-", "−")

    texts = _texts(frame, kinds, number, "%d-%b-%Y", "")
    for name, kind in zip(texts, kinds, strict=True):
        if kind == "d":
            texts[name] = [cell.upper() for cell in texts[name]]
    return ("\ufeffsep=,\n" + "\n".join(_lines(texts, ", ")) + "\n").encode()


DIALECTS = (plain, german, american, hospital, exported)


def is_right(draft: Draft, name: str, kind: str) -> bool:
    """Return whether a column is drafted as what it is."""
    column = next((column for column in draft.schema.columns if column.name == name), None)
    if kind == "i":
        return column is None
    if kind == "t":
        return column is None or isinstance(column, Categorical)
    if kind == "d":
        return isinstance(column, Datetime)
    if kind == "n":
        beside = any("or a number" in line for line in draft.entries.get(name, ()))
        return isinstance(column, Numeric) or (isinstance(column, Categorical) and beside)
    return isinstance(column, (Categorical, Boolean) if kind == "c" else (Categorical, Boolean, Numeric))


def leaks(draft: Draft, frame: pd.DataFrame, raw: pd.DataFrame, kinds: str) -> list[str]:
    """Return the columns of which the draft holds a value of an identifier, or a rare one."""
    words = set(re.findall(r"[\w.-]+", draft.to_toml()))
    found = []
    for (name, values), kind in zip(frame.items(), kinds, strict=True):
        long = {str(value) for value in values.dropna() if len(str(value)) > 5}
        found += [str(name)] * (kind == "i" and bool(long & words))
    for column in draft.schema.columns:
        if isinstance(column, Categorical):
            counts = Counter(raw[column.name])
            found += [column.name] * any(counts[str(value)] < RARE and value not in (0, 1) for value in column.values)
    return found


def main() -> int:
    """Print the results; the exit code is 1 if a draft holds what it must not."""
    shares: dict[str, list[bool]] = {}
    leaked = 0
    with tempfile.TemporaryDirectory() as folder:
        wanted = {"tuned": TUNED, "unseen": UNSEEN}
        for group in sys.argv[1:] or list(wanted):
            for name, kinds in wanted[group].items():
                frame = table(name)
                for dialect in DIALECTS:
                    path = Path(folder) / "table.csv"
                    path.write_bytes(dialect(frame, kinds))
                    raw, _ = read_raw(str(path))
                    draft = draft_schema(raw)
                    right = [is_right(draft, str(column), kind) for column, kind in zip(frame, kinds, strict=True)]
                    wrong = [
                        f"{column} ({kind})" for column, kind, fits in zip(frame, kinds, right, strict=True) if not fits
                    ]
                    bad = leaks(draft, frame, raw, kinds)
                    leaked += len(bad)
                    print(f"{name} {dialect.__name__}: {np.mean(right):.0%}", *wrong, *[f"LEAK {each}" for each in bad])
                    for key in (
                        "all",
                        group,
                        f"file {name}",
                        f"dialect {dialect.__name__}",
                        f"{name} {dialect.__name__}",
                    ):
                        shares.setdefault(key, []).extend(right)
                    for kind, fits in zip(kinds, right, strict=True):
                        shares.setdefault(f"kind {kind}", []).append(fits)
    for key, right in shares.items():
        print(f"{key:60} {np.mean(right):7.1%} of {len(right)}")
    return int(leaked > 0)


if __name__ == "__main__":
    sys.exit(main())
