"""The parts of a pack: small functions that return its files, each from the folder of a run and what was said of it.

Rule 1: a part reads what a run publishes (releases, model, statement, public facts) and nothing in ``private``: no
number in a pack comes from rows but through a release. Rule 2: a part is deterministic, so that the same run folder
gives the same bytes under the same versions. A further part is a further function in :data:`PARTS`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from msgspec.structs import replace

from fedsynth.answers.pack import files as answer_files
from fedsynth.data.read import write_frame
from fedsynth.data.spreadsheet import spreadsheet_safe
from fedsynth.errors import number_of
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.card import markdown
from fedsynth.models.synthesizer import ModelAxis
from fedsynth.publish.croissant import croissant
from fedsynth.publish.dcat import catalogue_entry
from fedsynth.publish.registry import registry_entry
from fedsynth.publish.sheets import data_sheet, read_me, statement_page
from fedsynth.publish.source import PackSource
from fedsynth.runs.limitations import written
from fedsynth.schema.columns import Categorical, Column
from fedsynth.schema.forms import Identifier
from fedsynth.schema.schema import entries_of

Files = Mapping[str, bytes]
PROOF = "proof"
_HIDDEN = ("split_seed", "rows_digest")  # entries of [made] that only whoever has the rows needs
_NAMED = 40  # columns that a list of about.md names
_TOP = 0.01  # of the values of a column: its tail


# ---------------------------------------------------------------------------------------------------------------------
# The table


def table(source: PackSource) -> Files:
    """Return the synthetic rows as CSV and Parquet."""
    return {f"data/{name}": content for name, content in source.table.items()}


def codebook(source: PackSource) -> Files:
    """Return the columns of the table with kind, unit, bounds, values and missing values: for people and programs."""
    described = [_described(column) for column in source.columns]
    shown = pd.DataFrame([_shown(entry) for entry in described])
    with tempfile.TemporaryDirectory() as scratch:
        write_frame(spreadsheet_safe(shown), Path(scratch) / "codebook.csv")
        return {
            "data/codebook.csv": (Path(scratch) / "codebook.csv").read_bytes(),
            "data/codebook.json": _json({"rows": source.rows, "columns": described}),
        }


def _described(column: Column | Identifier) -> dict[str, Any]:
    """Return a column as JSON values; ``cells`` are the values as the CSV file has them, if some differ there."""
    entries = entries_of(column, defaults=True)
    kind = {"id": "identifier"}.get(column.kind, column.kind)
    entry: dict[str, Any] = {"name": column.name, "kind": kind}
    for key in ("unit", "timezone", "low", "high", "integer", "decimals", "outside", "form"):
        if entries.get(key) is not None:
            entry[key] = entries[key]
    if not isinstance(column, Identifier) and not column.is_number:
        labels = list(column.labels) if column.kind == "categorical" else [False, True]
        entry["values"] = labels
        cells = spreadsheet_safe(pd.DataFrame({"a": pd.Series(labels, dtype=object)}))["a"].tolist()
        if cells != labels:
            entry["cells"] = cells
        entry["ordered"] = bool(entries.get("ordered"))
        if entries.get("unknown"):
            entry["unknown"] = entries["unknown"]
    entry["missing"] = bool(entries.get("missing"))
    for key in ("stored", "computed"):
        if form := getattr(column, key, None):
            entry[key] = f"{form.kind} of {', '.join(form.operands)}"
    return entry


def _shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column's line of ``codebook.csv``."""
    beyond = {"clip": "set to the nearer bound", "drop": "row left out"}.get(entry.get("outside", ""), "")
    unlisted = {"drop": "row left out", "other": "counted as other", "missing": "counted as missing"}
    values = " | ".join(map(str, entry.get("values", ())))
    follows = "; ".join(f"{key}: {entry[key]}" for key in ("stored", "computed") if key in entry)
    return {
        "column": entry["name"],
        "kind": entry["kind"],
        "unit": entry.get("unit", ""),
        "low": entry.get("low", ""),
        "high": entry.get("high", ""),
        "decimals": 0 if entry.get("integer") else entry.get("decimals", ""),
        "values": values,
        "ordered": "yes" if entry.get("ordered") else "",
        "may be missing": "yes" if entry["missing"] else "no",
        "real values elsewhere": beyond or unlisted.get(entry.get("unknown", ""), ""),
        "follows from": follows,
    }


def reader(source: PackSource) -> Files:
    """Return the script that reads the table in R."""
    return {"read.R": resources("fedsynth.publish").joinpath("reader.R").read_bytes()}


# ---------------------------------------------------------------------------------------------------------------------
# About the table


def about(source: PackSource) -> Files:
    """Return what travels with the model, and in addition its tails, what was merged in it, and how it is cited."""
    parts = [source.run.about_file.read_text(encoding="utf-8").rstrip()]
    schema = source.synthesizer.schema
    pairs = [*zip(schema.stored, source.synthesizer.axes, strict=True)]
    own = [pair for at, pair in enumerate(pairs) if at not in schema.links]  # others are differences and ratios
    for title, lines in (("Tails", list(_tails(own, source.frame))), ("What was merged", list(_merged(pairs)))):
        more = [f"- and {number_of(len(lines) - _NAMED, 'more column')}"] if len(lines) > _NAMED else []
        if lines:
            parts += [f"## {title}", "\n".join([*lines[:_NAMED], *more])]
    parts += ["## How to cite it", markdown(source.details.citation), f"Licence: {markdown(source.details.licence)}."]
    return {"about.md": "\n\n".join(parts).encode() + b"\n"}


def _tails(pairs: list[tuple[Column, ModelAxis]], frame: pd.DataFrame) -> Iterator[str]:
    """Yield how each number and time ends: what was done beyond its bounds, and how fine its largest values are."""
    for column, axis in pairs:
        if not column.is_number:
            continue
        low, high = written(column, column.bin_edges[[0, -1]])
        beyond = "counted at the nearer of them" if column.outside == "clip" else "left out with their rows"
        said = f"values beyond {low} and {high} were {beyond}"
        grid = None if column.is_time else axis.cells(column)
        if grid is not None and len(known := frame[column.name].dropna()):
            top = float(known.quantile(1 - _TOP))
            cells = int(np.count_nonzero((grid.upper > top) & (grid.lower <= float(known.max()))))
            said += (
                f"; the largest {100 * _TOP:g} % of the synthetic ones begin at {written(column, np.array([top]))[0]} "
                f"and come from {number_of(cells, 'interval')}, in each of which they are spread evenly"
            )
        yield f"- **{markdown(column.name)}**: {said}."


def _merged(pairs: list[tuple[Column, ModelAxis]]) -> Iterator[str]:
    for column, axis in pairs:
        said = []
        if isinstance(column, Categorical) and column.unknown != "drop":
            said.append(f"values that the codebook does not list were counted as {column.unknown}")
        if isinstance(axis, AdaptiveBins) and len(axis.groups) > (groups := int(axis.groups.max()) + 1):
            cells = "intervals" if column.is_number else "values"
            said.append(
                f"its {len(axis.groups):,} {cells} are {number_of(groups, 'group')} to the relations with other columns"
            )
        if said:
            yield f"- **{markdown(column.name)}**: {'; '.join(said)}."


def documents(source: PackSource) -> Files:
    """Return the statement for lawyers, the data sheet, the licence and the page that lists the files."""
    details = source.details
    licence = (
        f"{details.title}\n{details.publisher}, {details.date}\n\nLicence: {details.licence}\n{details.licence_url}\n"
    )
    return {
        "README.md": read_me(source).encode(),
        "statement.html": statement_page(source).encode(),
        "data-sheet.md": data_sheet(source).encode(),
        "LICENCE.txt": licence.encode(),
    }


def descriptions(source: PackSource) -> Files:
    """Return the entries for catalogues: Croissant, DCAT-AP, and the registry of deployments."""
    return {
        "croissant.json": _json(croissant(source)),
        "dcat.ttl": catalogue_entry(source).encode(),
        "registry.yaml": registry_entry(source).encode(),
    }


# ---------------------------------------------------------------------------------------------------------------------
# What it rests on


def agreed(source: PackSource) -> Files:
    """Return what was agreed: the terms with the plan of questions, and the roster of the sites' keys."""
    files = {} if source.agreement is None else {"agreed/plan.toml": source.agreement.to_toml().encode()}
    if source.roster:
        files["agreed/roster.toml"] = tomli_w.dumps({"identities": source.roster}).encode()
    return files


def answered(source: PackSource) -> Files:
    """Return the answers to declared questions with their intervals, and every noisy table that the run released."""
    return {f"answers/{name}": content for name, content in answer_files(source.run).items()}


def proof(source: PackSource) -> Files:
    """Return what the proof of the run is recomputed from, the sheet that it gave, and the sites' extracts."""
    run = source.run
    job = replace(run.job, data="", records=None, site={}, schema=run.schema_file.name)  # the rows' places are private
    made = {name: value for name, value in run.made.items() if name not in _HIDDEN}
    text = job.to_file() + "\n" + tomli_w.dumps({"made": made})
    kept = (run.schema_file, run.ledger_file, run.transcript)
    return {
        f"{PROOF}/{run.run_file.name}": text.encode(),
        f"{PROOF}/sheet.txt": source.sheet.text.encode() + b"\n",
        **{f"{PROOF}/{file.name}": file.read_bytes() for file in kept},
        **{f"{PROOF}/extracts/{extract.site}.json": extract.to_json() for extract in source.extracts},
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


PARTS: tuple[Callable[[PackSource], Files], ...] = (
    table,
    codebook,
    reader,
    about,
    documents,
    descriptions,
    agreed,
    answered,
    proof,
)
"""The parts of a pack. No two of them return a file of the same path."""


def gathered(source: PackSource) -> dict[str, bytes]:
    """Return all files of a pack by path, but for its manifest and signatures."""
    files: dict[str, bytes] = {}
    for part in PARTS:
        more = part(source)
        if twice := sorted(files.keys() & more.keys()):
            raise ValueError(f"two parts of a pack make {', '.join(twice)}; rename one of them")
        files |= more
    return files
