"""Cells that a spreadsheet runs as formulas when it opens a CSV file, and a copy of a table in which it does not.

Text that begins with ``=``, ``+``, ``-`` or ``@`` is a formula to Excel, LibreOffice and others, with or without quotes
in the file, and a formula may start programs or send cells elsewhere (OWASP, CSV injection). A number such as -5 is
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from fedsynth.errors import number_of
from fedsynth.schema import Schema
from fedsynth.schema.forms import Identifier, Lookup

_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?\s*", re.IGNORECASE | re.ASCII)
_BEGINS = tuple("=+-@＝＋－＠")  # spreadsheets in East Asian locales take the wide ones, too
_SHOWN = 3  # values named in a warning


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may take the text of a cell for a formula.

    So it is for text that begins with =, +, - or @, after any spaces, or with a tab or a line break, unless it is a
    number or has neither letters nor digits.
    """
    if _NUMBER.fullmatch(text) or not any(map(str.isalnum, text)):
        return False
    return text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(_BEGINS)


def formula_warnings(schema: Schema) -> list[str]:
    """Return a sentence for each column whose name, or some of whose values, a spreadsheet would run as formulas.

    Values are those that the schema gives: categories, results of lookups, and patterns of identifiers.
    """
    found = []
    for column in schema.columns:
        texts: list[str] = []
        if isinstance(column, Identifier):
            texts = [column.form]
        elif not column.is_number:
            texts = list(column.texts)
        form = getattr(column, "computed", None)
        if isinstance(form, Lookup):
            texts += [str(result) for result in form.table.values()]
        named = [column.name] if is_formula(column.name) else []
        values = sorted({text for text in texts if is_formula(text)})
        said = [f"the name of column {column.name!r}"] * bool(named)
        said += [f"{number_of(len(values), 'value')} of column {column.name!r} ({_listed(values)})"] * bool(values)
        if said:
            found.append(
                f"{' and '.join(said)} would run as formulas where a spreadsheet opens the synthetic CSV file: agree "
                "on other texts, or give people who use spreadsheets the copy that --spreadsheet-safe writes"
            )
    return found


def _listed(values: list[str]) -> str:
    return ", ".join(map(repr, values[:_SHOWN])) + (", ..." if len(values) > _SHOWN else "")


def spreadsheet_safe(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of a table in which an apostrophe precedes each text that a spreadsheet would run.

    Column names are texts, too. A spreadsheet then shows the text. The copy is to look at: its values are no longer
    those of the schema.
    """
    texts = frame.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz"])
    changed = {name: texts[name].astype(object).map(_quoted, "ignore") for name in texts if _has_formula(texts[name])}
    copy = frame.assign(**{str(name): values for name, values in changed.items()})
    copy.columns = pd.Index([_quoted(name) for name in copy.columns])
    return copy


def _has_formula(values: pd.Series[Any]) -> bool:
    distinct: Iterable[object] = values.unique()
    return any(isinstance(value, str) and is_formula(value) for value in distinct)


def _quoted(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and is_formula(value) else value
