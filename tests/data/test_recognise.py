"""What drafts recognise in the cells that people bring, and that nothing rare or identifying is in a draft."""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.command import run

from fedsynth import Schema
from fedsynth.data.draft import Draft, draft_from_sdv, draft_schema
from fedsynth.data.read import read_fitting
from fedsynth.data.text_form import read_raw
from fedsynth.errors import SchemaError
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric

ROWS = 400


def drawn(values: list[Any], rows: int = ROWS) -> list[str]:
    return [str(value) for value in np.random.default_rng(0).choice(np.array(values, dtype=object), rows)]


def drafted(cells: list[Any], name: str = "x") -> Draft:
    return draft_schema(pd.DataFrame({name: cells, "other column": drawn(["p", "q"], len(cells))}))


def kind_of(draft: Draft, name: str = "x") -> type | None:
    return next((type(column) for column in draft.schema.columns if column.name == name), None)


def said(draft: Draft, name: str = "x") -> str:
    return "\n".join(draft.notes.get(name, []))


DAYS = pd.Timestamp("2015-01-05") + pd.to_timedelta(np.random.default_rng(1).integers(0, 2000, ROWS), "D")
MOMENTS = DAYS + pd.to_timedelta(np.random.default_rng(2).integers(0, 86400, ROWS), "s")


@pytest.mark.parametrize(
    "form",
    [
        "%d.%m.%Y",
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%Y/%m/%d",
        "%Y%m%d",
        "%d-%b-%Y",
        "%d %b %Y",
        "%B %d, %Y",
        "%d.%m.%y",
        "%d.%m.%Y %H:%M",
        "%m/%d/%Y %I:%M %p",
        "%d%b%Y",
        "%d-%b-%Y %H:%M:%S",
    ],
)
def test_one_form_of_dates_for_all_values_is_found_and_declared(form):
    draft = drafted([moment.strftime(form) for moment in MOMENTS])
    assert kind_of(draft) is Datetime
    assert draft.source == (f'dates = "{form}"',)
    assert form in said(draft)
    column = draft.schema.columns[0]
    assert isinstance(column, Datetime)
    assert (column.low, column.high) == ("2015-01-01", "2021-01-01")


def test_a_date_in_another_form_is_an_odd_word_and_more_of_them_are_text():
    days = [day.strftime("%d.%m.%Y") for day in DAYS]
    draft = drafted(["unknown", *days])
    assert kind_of(draft) is Datetime
    assert "1 cell read 'unknown'" in said(draft)
    assert kind_of(drafted([*days[:100], *(day.strftime("%B %d, %Y") for day in DAYS[:100])])) is not Datetime


def test_a_day_that_never_was_is_not_moved_to_another():
    draft = drafted(["31.02.2020", *(day.strftime("%d.%m.%Y") for day in DAYS)])
    assert kind_of(draft) is Datetime
    assert "1 cell hold other words, too rare" in said(draft)
    assert "31.02.2020" not in draft.to_toml()


def test_whether_day_or_month_comes_first_is_asked_where_no_value_tells():
    cells = drawn([f"{day:02}/{month:02}/2004" for day in range(1, 13) for month in range(1, 13)])
    assert "which comes first, the day or the month?" in said(drafted(cells))


def test_serial_numbers_of_a_spreadsheet_are_dates_by_their_column_name():
    cells = drawn(list(range(43_000, 44_500)))
    draft = drafted(cells, "admission_date")
    assert kind_of(draft, "admission_date") is Datetime
    assert draft.source == ("[column.admission_date]", 'dates = "excel"')
    assert kind_of(drafted(cells, "charges"), "charges") is Numeric


def test_times_of_day_are_named_with_the_entry_that_joins_them_with_their_day():
    draft = drafted(drawn([f"{hour:02}:{minute:02}" for hour in range(3) for minute in (0, 30)]))
    assert 'from = ["…", "x"]' in said(draft)


NUMBERS = [str(round(value, 1)) for value in np.random.default_rng(3).normal(0, 900, ROWS)]


DRESSED = [
    (lambda text: text.replace(".", ","), 'decimal = ","'),
    (lambda text: f"{float(text):,}", 'decimal = "."'),
    (lambda text: f"{float(text):,}".translate(str.maketrans(",.", ".,")), 'decimal = ","'),
    (lambda text: f"{float(text):,}".replace(",", "’"), 'decimal = "."'),
    (lambda text: text.replace("-", "−"), 'decimal = "."'),
    (lambda text: f"({text[1:]})" if text.startswith("-") else text, 'decimal = "."'),
    (lambda text: f"{text} %", "extract"),
    (lambda text: f"{text} kg", "extract"),
    (lambda text: f"{text.lstrip('-')} mg/dl", "extract"),
    (lambda text: f"€{text.lstrip('-')}", "extract"),
    (lambda text: f"CHF {text.lstrip('-')}", "extract"),
]


@pytest.mark.parametrize(("write", "declared"), DRESSED)
def test_dressed_numbers_are_numbers_and_said_to_be_dressed(write, declared):
    draft = drafted([write(text) for text in NUMBERS])
    assert kind_of(draft) is Numeric
    column = draft.schema.columns[0]
    assert isinstance(column, Numeric)
    assert column.decimals == 1
    assert column.high >= max(map(float, NUMBERS))
    assert any(declared in line for line in draft.source)
    assert "numbers written with" in said(draft)


@pytest.mark.parametrize("write", [write for write, _ in DRESSED])
def test_the_source_file_that_a_draft_declares_reads_every_number(write, tmp_path):
    cells = [write(text) for text in NUMBERS]
    pd.DataFrame({"x": cells, "y": drawn(["p", "q"])}).to_csv(tmp_path / "rows.csv", sep="|", index=False)
    frame, form = read_raw(str(tmp_path / "rows.csv"), None)
    draft = draft_schema(frame, form=form)
    (tmp_path / "site.toml").write_text("\n".join(['data = "rows.csv"', *draft.source]), encoding="utf-8")
    table = read_fitting(str(tmp_path / "site.toml"), draft.schema)
    signed = any(mark in "".join(cells) for mark in "-−(")
    assert table.numbers[0] == pytest.approx([float(text if signed else text.lstrip("-")) for text in NUMBERS])


def test_a_file_with_a_form_of_its_own_declares_the_mark_of_numbers_that_can_be_read_in_two_ways(tmp_path):
    numbers = [f"{value:.3f}" for value in np.random.default_rng(5).uniform(10, 60, ROWS)]
    pd.DataFrame({"bmi": numbers}).to_csv(tmp_path / "plain.csv", index=False)
    assert draft_schema(read_raw(str(tmp_path / "plain.csv"), None)[0]).source == ()  # read without a source file
    (tmp_path / "rows.csv").write_text("an export of today\n\nbmi;sex\n" + "".join(f"{text};f\n" for text in numbers))
    frame, form = read_raw(str(tmp_path / "rows.csv"), None)
    draft = draft_schema(frame, form=form)
    assert 'decimal = "."' in draft.source
    (tmp_path / "site.toml").write_text("\n".join(['data = "rows.csv"', *draft.source]))
    table = read_fitting(str(tmp_path / "site.toml"), draft.schema)
    assert table.numbers[0] == pytest.approx(list(map(float, numbers)))


def test_a_doubtful_mark_follows_that_of_the_other_columns():
    frame = pd.DataFrame({"a": drawn(["1.234", "2.345", "999.100"]), "b": drawn(["1,5", "2,25"])})
    a = draft_schema(frame).schema.columns[0]
    assert isinstance(a, Numeric)
    assert a.high == 1_000_000
    assert draft_schema(frame[["a"]]).schema.columns[0].high == 1000  # type: ignore[union-attr]


def test_a_few_odd_words_among_numbers_are_counted_and_many_make_text():
    numbers = [str(value) for value in np.random.default_rng(0).integers(5, 90, ROWS)]
    draft = drafted(["<5"] * 35 + ["#N/A"] + ["Schmidt"] + numbers)
    assert kind_of(draft) is Numeric
    assert "35 cells read '<5'" in said(draft)
    assert "1 cell read '#N/A'" in said(draft)
    assert "1 cell hold other words" in said(draft)
    assert "Schmidt" not in draft.to_toml()
    assert 'missing = ["<5", "#N/A"]' in draft.source
    assert kind_of(drafted([*numbers, *(f"word {at}" for at in range(6))] * 20)) is not Numeric


def test_a_row_of_totals_is_named_and_widens_no_bounds():
    ages = [str(age) for age in np.random.default_rng(0).integers(20, 80, ROWS)]
    draft = draft_schema(pd.DataFrame({"age": [*ages, "Total"], "cost": [*NUMBERS, "999999"]}))
    assert 'skip = { age = ["Total"] }' in draft.source
    assert kind_of(draft, "age") is Numeric
    cost = draft.schema.columns[1]
    assert isinstance(cost, Numeric)
    assert cost.high < 10_000


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x", ["0101", "0102", "2000"]),
        ("dx", ["250.0", "250.00", "401.9", "428.0"]),
        ("condition_concept_id", [312327, 4112343, 80180, 192671]),
        ("zip", [20001, 19101, 94103, 2116]),
        ("x", [312327, 4112343, 80181, 192671]),
        ("diagnosis", ["250", "401.9", "V57", "428"]),
    ],
)
def test_codes_are_texts_and_keep_their_spelling(name, values):
    draft = drafted(drawn(values), name)
    assert kind_of(draft, name) is Categorical
    column = draft.schema.columns[0]
    assert isinstance(column, Categorical)
    assert column.values == tuple(sorted(map(str, values)))
    typed = pd.DataFrame({name: pd.Series(drawn(values)).map(int)}) if type(values[0]) is int else None
    assert typed is None or draft_schema(typed).schema.columns[0] == column


@pytest.mark.parametrize("name", ["salary", "elevation", "year"])
def test_large_numbers_that_repeat_stay_numbers(name):
    values = {"salary": [1500, 2500, 3000, 52000, 61500, 78000], "elevation": list(range(1800, 2200)), "year": [1999]}
    values["year"] = list(range(1950, 2020))
    draft = drafted(drawn(values[name]), name)
    assert kind_of(draft, name) is Numeric or "or a number" in draft.entries[name][0]


def test_cells_with_lost_digits_are_counted():
    draft = drafted(drawn(["1.23457E+11", "9.87E+10", "1.23458E+11"]), "case")
    assert "400 cells written like …E+11 have lost digits" in said(draft, "case")


IDENTIFIERS: dict[str, list[Any]] = {
    "RespondentID": [3_290_000_000 + 7919 * at for at in range(ROWS)],
    "x": [100_000_000 + 7919 * at for at in range(ROWS)],
    "row": list(range(5, ROWS + 5)),
    "patient_id": [f"{at % 60:08x}-e45d" for at in range(ROWS)],
    "person": [f"P{40_000 + at % 90}" for at in range(ROWS)],
    "visit_id": [17 * (at % 120) + 3 for at in range(ROWS)],
    "mrn": [88_000 + 13 * (at % 50) for at in range(ROWS)],
    "name": [f"Person {at}" for at in range(ROWS)],
}


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("name", IDENTIFIERS)
def test_identifiers_are_left_out_and_no_value_of_one_is_in_the_draft(name, typed):
    values = IDENTIFIERS[name]
    draft = drafted(values if typed else list(map(str, values)), name)
    assert name in draft.left_out
    assert "identifier" in said(draft, name)
    assert ("--person" in said(draft, name)) == (len(set(values)) < ROWS)
    text = draft.to_toml()
    long = [str(value) for value in values if len(str(value)) > 2]
    assert not any(value in text.split() or f'"{value}"' in text for value in long)


def test_no_rare_value_is_in_a_draft():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "text": ["hapax"] * 9 + drawn(["flu", "cold"], ROWS - 9),
            "code": ["71388002"] * 9 + drawn([10509002, 44054006], ROWS - 9),
            "whole": [13] * 9 + [int(value) for value in drawn([2, 3], ROWS - 9)],
            "float": [6.131] * 9 + list(rng.choice([0.5, 1.5], ROWS - 9)),
            "sentinel": [-31_337] * 9 + list(rng.integers(0, 90, ROWS - 9)),
            "spelled": ["FLU "] * 9 + drawn(["flu", "cold"], ROWS - 9),
            "odd": ["enquire"] * 9 + [str(value) for value in rng.integers(0, 90, ROWS - 9)],
        }
    )
    text = draft_schema(frame).to_toml()
    for rare in ("hapax", "71388002", "13", "6.131", "-31337", "FLU", "enquire"):
        assert rare not in text.replace("]", " ").replace(",", " ").split()
        assert f"'{rare}" not in text
        assert f'"{rare}"' not in text
    assert "counted as 'other'" in text


def test_a_column_of_rare_values_only_is_left_out():
    draft = drafted(drawn([f"word {at}" for at in range(100)]))
    assert draft.left_out["x"] == ["no value has 10 rows: listing any might identify a person"]


def test_words_for_missing_are_named_and_stay_values_among_texts():
    countries = drafted(drawn(["DE", "NA", "NO", "None", "?"]))
    column = countries.schema.columns[0]
    assert isinstance(column, Categorical)
    assert column.values == ("DE", "NA", "NO", "None")
    assert column.missing
    assert "cells read 'NA', a value here" in said(countries)
    assert "cells read '?', as missing" in said(countries)
    numbers = drafted(drawn([*range(5, 90), *["NA"] * 9]))
    assert kind_of(numbers) is Numeric
    assert "cells read 'NA', as missing" in said(numbers)


@pytest.mark.parametrize("code", [-200, 999, -9])
def test_a_code_for_missing_far_outside_is_named_and_outside_the_bounds(code):
    values = np.random.default_rng(0).integers(0, 60, ROWS)
    values[:20] = code
    draft = drafted(list(values))
    assert f"20 cells read {code}" in said(draft)
    assert f"missing = [{code}]" in draft.source
    column = draft.schema.columns[0]
    assert isinstance(column, Numeric)
    assert (column.low, column.high, column.missing) == (0, 60, True)


def test_labels_that_look_alike_are_named():
    draft = drafted(drawn(["M", "M ", "m", "Hospital North", "Hospitel North", "\u00c5", "A\u030a"]))
    assert "look like one label" in said(draft)
    assert "differ in a letter or two: one label?" in said(draft)
    assert said(draft).count("look like one label") == 2


def test_few_whole_numbers_are_a_category_with_the_entry_of_a_number_and_many_a_number():
    few, many = drafted(drawn(list(range(1, 8)))), drafted(drawn(list(range(47))))
    assert few.schema.columns[0] == Categorical("x", tuple(range(1, 8)))
    number = "\n".join(line.removeprefix("or a number: ") for line in few.entries["x"])
    assert tomllib.loads(number) == {"type": "numeric", "low": 1, "high": 7, "integer": True}
    assert kind_of(many) is Numeric


def test_few_floats_get_bins_of_their_own_and_are_offered_as_listed_values():
    draft = drafted(drawn([0.5, 1.25, 40.0]))
    assert "separate bins for the values 0.5, 1.25, 40" in said(draft)
    assert 'values = ["0.5", "1.25", "40"]' in draft.entries["x"]


def test_nearly_whole_numbers_are_offered_as_whole():
    draft = drafted([*map(str, range(50, 350)), "70.5"])
    assert "99.7% of the numbers are whole" in said(draft)


def test_what_other_takes_is_said():
    draft = drafted([*drawn([f"town {at}" for at in range(60)], 4000)], "town")
    assert any("all others become 'other' (" in note and "% )".strip(" )") in note for note in draft.notes["town"])


def test_frames_are_drafted_cell_by_cell():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "score": pd.Series([int(at % 97) if at % 5 else None for at in range(ROWS)], dtype=object),
            "day": pd.Series([day.date() for day in DAYS], dtype=object),
            "stage": pd.Categorical(rng.choice(["low", "mid", "high"], ROWS), ["low", "mid", "high"], ordered=True),
            "month": pd.Series(DAYS).dt.to_period("M"),
        }
    )
    draft = draft_schema(frame)
    score, day, stage = draft.schema.columns[:3]
    assert isinstance(score, Numeric)
    assert score.missing
    assert isinstance(day, Datetime)
    assert stage == Categorical("stage", ("low", "mid", "high"), ordered=True)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), "two columns named \\['a'\\]"),
        (pd.DataFrame([[1, 2], [3, 4]]), "names of the table's columns are not all text"),
    ],
)
def test_what_is_no_table_with_names_is_refused_in_a_sentence(table, named):
    with pytest.raises(SchemaError, match=named):
        Schema.draft(table)


def test_sdv_metadata_states_the_format_of_dates():
    columns = {"born": {"sdtype": "datetime", "datetime_format": "%d.%m.%Y"}, "kg": {"sdtype": "numerical"}}
    frame = pd.DataFrame({"born": [day.strftime("%d.%m.%Y") for day in DAYS], "kg": NUMBERS})
    draft = draft_from_sdv(frame, {"columns": json.loads(json.dumps(columns))})
    assert kind_of(draft, "born") is Datetime
    assert draft.source == ('dates = "%d.%m.%Y"',)


RECORDS = [f"{20 + at % 60}|{'fm'[at % 2]}|{18 + at % 97 / 10:.1f}" for at in range(120)]


def file(folder: Path, lines: list[str], mark: str = ",", encoding: str = "utf-8", name: str = "t.csv") -> str:
    path = folder / name
    path.write_bytes("".join(line.replace("|", mark) + "\n" for line in lines).encode(encoding))
    return str(path)


HEAD = "age|sex|bmi"


@pytest.mark.parametrize(
    ("lines", "mark", "encoding", "form"),
    [
        ([HEAD, *RECORDS], ",", "utf-8", []),
        ([HEAD, *RECORDS], ";", "utf-8", []),
        ([HEAD, *RECORDS], ",", "utf-8-sig", []),
        ([HEAD, *(record.replace(".", ",") for record in RECORDS)], ";", "utf-8", []),
        (["sep=;", HEAD, *RECORDS], ";", "utf-8", ['csv = { separator = ";", first_line = 2 }']),
        (["Export", "", "of today", HEAD, *RECORDS], "\t", "utf-8", ['csv = { separator = "\\t", first_line = 4 }']),
        (["Auszug;1,5", HEAD, *(record.replace(".", ",") for record in RECORDS)], ";", "utf-8",
         ['csv = { separator = ";", first_line = 2 }']),
        ([HEAD.replace("sex", "sex, m or f"), *RECORDS], ";", "utf-8", ['csv = { separator = ";" }']),
        (["Größe|sex|bmi", *RECORDS], ",", "cp1252", ['csv = { encoding = "cp1252", separator = "," }']),
    ],
)  # fmt: skip
def test_the_form_of_a_text_file_is_found_and_declared(tmp_path, lines, mark, encoding, form):
    frame, found = read_raw(file(tmp_path, lines, mark, encoding))
    assert found == form
    assert frame.shape == (120, 3)
    assert [type(column) for column in draft_schema(frame).schema.columns] == [Numeric, Categorical, Numeric]


def test_spaces_after_commas_and_commas_at_ends_of_lines_are_said(tmp_path):
    spaced, (said,) = read_raw(file(tmp_path, [HEAD, *RECORDS], ", "))
    assert (list(spaced), spaced["sex"].unique().tolist()) == (["age", "sex", "bmi"], ["f", "m"])
    assert "a space follows each separator" in said
    trailing, (said,) = read_raw(file(tmp_path, [HEAD, *(record + "|" for record in RECORDS)]))
    assert list(trailing) == ["age", "sex", "bmi"]
    assert "each line ends in a separator that the header lacks" in said


@pytest.mark.parametrize(
    "records",
    [
        RECORDS,
        [f"{'fm'[at % 2]}|{'AB'[at // 2 % 2]}|town {at % 7}" for at in range(60)],
        [f"2004-05-0{at % 9 + 1}|{'fm'[at % 2]}" for at in range(40)],
    ],
)
def test_a_record_is_never_taken_for_names(tmp_path, capsys, records):
    path = file(tmp_path, list(records))
    assert run("schema", "draft", path) == 3
    error = capsys.readouterr().err
    assert "seems to have no header" in error
    assert "names = [" in error
    assert not any(cell in error.split() for cell in records[0].split("|"))
    budget = ("--method", "oneshot", "--epsilon", "1", "--delta", "1e-6", "--sites", "2")
    assert run("simulate", "--data", path, *budget, "--out", tmp_path / "run") == 3


def test_a_name_above_numbers_alone_makes_a_header():
    """A value that equals its column's name is no sign of a missing header beside "age" above ages."""
    table = pd.DataFrame({"age": ["30", "41", ""] * 20, "g": ["a", "b", "a"] * 20, "x": ["x", "y", "z"] * 20})
    assert draft_schema(table)
    without_ages = table.drop(columns="age")
    with pytest.raises(SchemaError, match="no header"):
        draft_schema(without_ages)


def test_names_that_count_or_are_years_are_names():
    rng = np.random.default_rng(0)
    assert draft_schema(pd.DataFrame(rng.integers(0, 99, (300, 4)), columns=["0", "1", "2", "3"]))
    assert draft_schema(pd.DataFrame(rng.integers(0, 99, (300, 3)), columns=["town", "2019", "2020"]))


def test_a_workbook_named_csv_is_named(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "t.csv", "w") as book:
        book.writestr("xl/workbook.xml", "<workbook/>")
    assert run("schema", "draft", tmp_path / "t.csv") == 3
    assert "Excel workbook" in capsys.readouterr().err


def test_the_command_prints_what_a_source_file_declares(tmp_path, capsys):
    path = file(tmp_path, ["sep=;", HEAD, *(record.replace(".", ",") for record in RECORDS)], ";")
    assert run("schema", "draft", path) == 0
    shown = capsys.readouterr().out
    assert '#     csv = { separator = ";", first_line = 2 }\n#     decimal = ","\n' in shown
    assert Schema.from_toml(shown).drafted
    assert run("schema", "draft", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"][1] == 'decimal = ","'


def test_drafts_of_wide_tables_take_time_in_proportion_to_their_columns():
    frame = pd.DataFrame({f"c{at}": [["1", "a", "2.5"][at % 3]] for at in range(3000)})
    steps: list[int] = []
    draft = draft_schema(frame, progress=lambda what, done, total: steps.append(total))
    assert steps == [3000] * 3000
    assert len(draft.schema.columns) == 2000


def test_booleans_stay_booleans():
    assert kind_of(drafted(drawn(["true", "false"]))) is Boolean


@pytest.mark.parametrize("odd", ["72 [HIV+]", "72 m/HIVpos"])
def test_a_unit_of_one_row_is_not_named(odd):
    draft = drafted([*NUMBERS[:-1], odd])
    assert "HIV" not in draft.to_toml()


def test_a_code_for_missing_is_named_in_full_and_only_if_it_is_usual_or_frequent():
    few = drafted([*map(str, range(ROWS)), *["777777"] * 3])
    assert "777777" not in few.to_toml()
    many = drafted([*map(str, range(ROWS)), *["9999999"] * 12])
    assert "missing = [9999999]" in many.to_toml()
