"""Rows of a site's own exports as a source file declares them: each by itself, nothing guessed, nothing raised."""

from __future__ import annotations

import gzip
import random
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from tests.pages import blocks

from fedsynth.data.read import PersonLimit, check_table, read_frame, read_table
from fedsynth.data.sources import open_source
from fedsynth.data.sources.source_file import SourceFile
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError, Unsupported
from fedsynth.schema import Categorical, Datetime, Numeric, Schema

SEEN = Datetime("seen", "1900-01-01", "2100-01-01", unit="min", missing=True)


def declared(folder, text, **files):
    """Write files, and a source file beside them; return its path."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "north.toml").write_text(text, encoding="utf-8")
    return folder / "north.toml"


def cells(path, *columns):
    """Return the columns of a source as lists, without NaN, and the sentences on cells that were not read."""
    wanted = {column.name: column for column in columns}
    tables = [table for table, _ in open_source(str(path)).batches(wanted, 1000)]
    found = pa.concat_tables(tables).to_pydict()
    sentences = check_table(path, Schema(columns)).problems
    return list(found.values()) if len(found) > 1 else next(iter(found.values())), sentences


def numbers(path, name="x"):
    return cells(path, Numeric(name, -1e9, 1e9, missing=True))


# ---------------------------------------------------------------------------------------------------------------------
# Cells


@pytest.mark.parametrize(
    ("entries", "texts", "expected"),
    [
        ('decimal = "."', ["1.234", "-5", "+7", ".5", "1e3"], [1.234, -5, 7, 0.5, 1000]),
        ('decimal = ","', ["1,234", "1.234", "0,5", "12"], [1.234, None, 0.5, 12]),
        (
            'decimal = ","\nthousands = "."',
            ["1.234", "1.234.567,8", "12.34", "1234,5"],
            [1234, 1234567.8, None, 1234.5],
        ),
        ('decimal = "."\nthousands = ","', ["$1,090.85", "1,090", "10,90", "€ 2"], [1090.85, 1090, None, 2]),
        ("thousands = ' '", ["1 234", "1\u00a0234.5", "1\u202f234"], [1234, 1234.5, 1234]),
        (
            'decimal = "."',
            ["12.5%", "3 %", "5 €", "(200)", "\u22123.5", "82.0 kg", "<5", "5-7"],
            [12.5, 3, 5, -200, -3.5, *[None] * 3],
        ),
        ('decimal = "."\nmissing = ["k. A.", -9]', ["k. A.", "-9", "-9.0", "-99", ""], [None, None, None, -99, None]),
        ("", ["1.234", "0.125", "12.34", "1234.567", "12,345", "7"], [None, 0.125, 12.34, 1234.567, None, 7]),
    ],
)
def test_numbers_are_read_in_the_declared_form_alone(tmp_path, entries, texts, expected):
    path = declared(
        tmp_path,
        f'data = "t.csv"\ncsv = {{ separator = ";" }}\n{entries}\n',
        t_csv="x;y\n" + "".join(f"{text};1\n" for text in texts),
    )
    assert numbers(path)[0] == expected


def test_cells_that_can_be_read_in_two_ways_are_counted_and_must_be_declared(tmp_path):
    text = "x;y\n1.234;1\n5;1\n<5;1\n"
    path = declared(tmp_path, 'data = "t.csv"\n', t_csv=text)
    found = check_table(path, Schema((Numeric("x", 0, 1e6, missing=True),)))
    assert (found.ok, found.left_out) == (False, 0)
    told = "column 'x': cells that can be read in two ways, such as 1.234, and are missing; declare decimal"
    assert any(sentence.startswith(told) and sentence.endswith(": 1") for sentence in found.problems)
    assert any("are no numbers in the declared form" in sentence for sentence in found.problems)
    assert not any("<5" in sentence for sentence in found.problems)  # no value of a row
    path = declared(tmp_path, 'data = "t.csv"\ndecimal = "."\n')
    assert check_table(path, Schema((Numeric("x", 0, 1e6, missing=True),))).ok


@pytest.mark.parametrize(
    ("entries", "texts", "expected"),
    [
        (
            'dates = "%d.%m.%Y"',
            ["31.12.2023", "1.2.2023", "31.02.2023", "2023-01-01", ""],
            ["2023-12-31", "2023-02-01", *[None] * 3],
        ),
        ('dates = "%d/%m/%Y"', ["03/04/2023"], ["2023-04-03"]),
        ('dates = "%m/%d/%Y"', ["03/04/2023", "13/04/2023"], ["2023-03-04", None]),
        ('dates = "%Y%m%d"', ["20230115", "20210047", "2023115"], ["2023-01-15", None, None]),
        (
            'dates = "%d-%b-%Y"',
            ["31-OCT-2023", "1-sept-2023", "31-NOV-2023", "1-foo-2023"],
            ["2023-10-31", "2023-09-01", None, None],
        ),
        ('dates = "%B %d, %Y"', ["March 5, 2023"], ["2023-03-05"]),
        (
            'dates = "%d.%m.%y"\npivot = 1930',
            ["01.01.35", "01.01.29", "01.01.30"],
            ["1935-01-01", "2029-01-01", "1930-01-01"],
        ),
        (
            'dates = "%m/%d/%Y %I:%M %p"',
            ["01/02/2023 12:05 AM", "01/02/2023 1:05 pm", "01/02/2023 13:05 PM"],
            ["2023-01-02 00:05", "2023-01-02 13:05", None],
        ),
        (
            "",
            ["2023-01-02", "2023-01-02T03:04:05.5", "2023-01-02 24:00", "03/04/2023", "2024-02-29", "2023-02-29"],
            ["2023-01-02", "2023-01-02 03:04:05.5", None, None, "2024-02-29", None],
        ),
        ("", ["2023-01-02T03:04Z"], [None]),
    ],
)
def test_times_are_read_in_the_declared_form_alone(tmp_path, entries, texts, expected):
    path = declared(
        tmp_path,
        f'data = "t.csv"\ncsv = {{ separator = ";" }}\n{entries}\n',
        t_csv="seen;y\n" + "".join(f"{text};1\n" for text in texts),
    )
    found, _ = cells(path, SEEN)
    assert found == [None if text is None else pd.Timestamp(text).to_pydatetime() for text in expected]


@pytest.mark.parametrize(("fold", "twice"), [("", None), ("fold = 0\n", "00:30"), ("fold = 1\n", "01:30")])
def test_local_times_that_are_two_or_none_are_missing(tmp_path, fold, twice):
    text = "seen\n2023-03-26 02:30\n2023-10-29 02:30\n2023-07-01 12:00\n2023-07-01T12:00-05:00\n"
    path = declared(tmp_path, f'data = "t.csv"\nzone = "Europe/Zurich"\n{fold}', t_csv=text)
    found, sentences = cells(
        path, Datetime("seen", "2000-01-01", "2030-01-01", unit="min", timezone="UTC", missing=True)
    )
    stamps = [None if one is None else one.strftime("%H:%M") for one in found]
    assert stamps == [None, twice, "10:00", "17:00"]
    assert sentences == [
        "column 'seen': cells that are local times that the zone skips, or has twice without fold, and are missing: "
        + str(1 + (twice is None))
    ]


def test_a_column_may_have_a_form_of_its_own(tmp_path):
    text = (
        'data = "t.csv"\ncsv = { separator = ";" }\ndecimal = ","\ndates = "%d.%m.%Y"\n'
        'missing = ["n/a"]\nabsent = ["smoker"]\n'
        'skip = { ID = ["Total"] }\n'
        '[column.height]\nfrom = "Height (m)"\nfactor = 100\n'
        '[column.seen]\nfrom = ["Day", "Time"]\n'
        "[column.sbp]\nfrom = \"RR\"\nextract = '^(\\d+)/'\nmissing = [999]\n"
        '[column.sex]\nrecode = { M = "m", "1" = "f" }\n'
        '[column.dose]\ndecimal = "."\n'
    )
    rows = "ID;Height (m);Day;Time;RR;sex;dose\n1;1,15;01.02.2023;10:15;120/80; M ;1.234\n"
    rows += "2;n/a;01.02.2023;;999/1;1;n/a\nTotal;99;;;;;\n"
    path = declared(tmp_path, text, t_csv=rows)
    columns = [Numeric(name, 0, 300, missing=True) for name in ("height", "sbp", "dose")]
    found, sentences = cells(
        path, *columns, SEEN, Categorical("sex", ("m", "f")), Categorical("smoker", ("y",), missing=True)
    )
    day = datetime(2023, 2, 1)
    assert found == [
        [115, None],
        [120, None],
        [1.234, None],
        [day.replace(hour=10, minute=15), day],
        ["m", "f"],
        [None, None],
    ]
    assert "records that skip names, which are left out: 1" in sentences


def test_the_export_of_the_guide_is_read(tmp_path):
    shown = [block.text for block in blocks("docs/how-to/prepare-your-export.md") if block.kind in ("text", "toml")]
    export, told = shown[:2]
    (tmp_path / "export.csv").write_bytes(export.encode("cp1252"))
    path = declared(tmp_path, told)
    columns = [Numeric(name, 0, 300, missing=True) for name in ("height", "sbp", "crp")]
    kinds = (Categorical("sex", ("m", "f")), Categorical("smoker", ("y",), missing=True))
    found, sentences = cells(path, *columns, Datetime("admitted", "2020-01-01", "2030-01-01", unit="min"), *kinds)
    times = [datetime(2023, 4, 3, 10, 15), datetime(2023, 1, 31)]
    assert found == [[180, None], [120, 135], [2.5, 12.5], times, ["f", "m"], [None, None]]
    assert sentences == [
        "records that skip names, which are left out: 1",
        "1 column is not in the schema and ignored: 'Patient'",
    ]


def test_codes_keep_zeros_and_digits(tmp_path):
    path = declared(tmp_path, 'data = "t.csv"\n', t_csv="zip,icd\n01234,250.00\n1234,250.0\n")
    frame = read_frame(path)
    assert frame.to_dict("list") == {"zip": ["01234", "1234"], "icd": ["250.00", "250.0"]}


# ---------------------------------------------------------------------------------------------------------------------
# Text files


@pytest.mark.parametrize(
    ("csv", "content", "suffix"),
    [
        ("", b"sep=;\r\nx;y\r\n1;a\r\n", "csv"),
        ("", b"x;y, z;w\n1;a;2\n", "csv"),
        ("", b"x,y\n1,a,\n", "csv"),
        ("", b"x\ty\n1\ta\n", "tsv"),
        ("", b"x|y\n1|a\n", "txt"),
        ('csv = { separator = ", " }', b'x, y\n1, "a, b"\n', "csv"),
        ('csv = { names = ["x", "y"] }', b"1,a\n", "csv"),
        ('csv = { names = ["x", "y"], first_line = 2 }', b"p,q\n1,a\n", "csv"),
        ("csv = { first_line = 4 }", b"Export of 2023\n\n\nx,y\n1,a\n", "csv"),
        ('csv = { encoding = "cp1252" }', "x,größe\n1,ä\n".encode("cp1252"), "csv"),
        ('csv = { records = "rfc4180" }', b'x,y\n1,"a\nb"\n', "csv"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_dialects_of_text_files(tmp_path, csv, content, suffix, packed):
    name = f"t.{suffix}{'.gz' * packed}"
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    path = declared(tmp_path, f'data = "{name}"\n{csv}\n')
    assert numbers(path)[0] == [1.0]
    source = open_source(str(path))
    assert source.columns()[0] == "x"
    if "encoding" in csv:
        assert source.columns()[1] == "größe"
        assert read_frame(path)["größe"].tolist() == ["ä"]
    if "a, b" in content.decode("cp1252"):
        assert read_frame(path)["y"].tolist() == ["a, b"]


def test_files_that_are_something_else_are_named(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"PK\x03\x04 a workbook")
    with pytest.raises(SchemaError, match="workbook of Excel"):
        open_source(str(tmp_path / "t.csv")).columns()
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x,y\n1,2\n" * 99)[:-9])
    with pytest.raises(SchemaError, match="not gzip or is damaged"):
        read_frame(tmp_path / "t.csv.gz")
    with pytest.raises(Unsupported, match="nor a source file"):
        open_source("t.ods")


def test_several_files_of_one_form(tmp_path):
    path = declared(tmp_path, 'data = ["a.csv", "b.csv"]\n', a_csv="x,y\n1,2\n", b_csv="y,x\n3,4\n5,6,7\n")
    found, sentences = numbers(path)
    assert found == [1, 4]
    assert any("line 3 of b.csv has 3 cells, not 2" in sentence for sentence in sentences)
    declared(tmp_path, 'data = ["a.csv", "b.csv"]\n', b_csv="y,z\n3,4\n")
    with pytest.raises(SchemaError, match=r"b\.csv lacks the column 'x'"):
        numbers(path)


# ---------------------------------------------------------------------------------------------------------------------
# One record more


DIALECTS = [
    ("lines", "utf-8", ",", ""),
    ("lines", "utf-8", ";", 'decimal = ","'),
    ("lines", "cp1252", ";", 'decimal = ","\nthousands = "."'),
    ("lines", "latin-1", "\\t", 'dates = "%d.%m.%Y"'),
    ("lines", "utf-8", "|", 'dates = "%d.%m.%y"\npivot = 1930'),
    ("lines", "utf-8", ", ", 'missing = ["k. A.", -9]'),
    ("lines", "cp1250", ",", 'skip = { id = ["Total"] }'),
    ("lines", "utf-8", ";", 'zone = "Europe/Zurich"'),
    ("lines", "utf-8", ";", 'zone = "Europe/Zurich"\nfold = 1\ndates = "%d.%m.%Y %H:%M"'),
    ("lines", "utf-8", ",", "[column.x]\nextract = '(\\d+)'\nfactor = 1.5"),
    ("lines", "ascii", ",", '[column.c]\nrecode = { a = "b", "" = "a" }'),
    ("lines", "utf-8", ",", '[column.seen]\nfrom = ["seen", "id"]'),
]
WORDS = [
    "",
    "1",
    "1.234",
    "1,5",
    "-9",
    "k. A.",
    "a",
    "b",
    "Total",
    "NaN",
    "inf",
    "1e5",
    "<5",
    "31.02.2023",
    "01.02.2023",
    "2023-10-29 02:30",
    "2023-03-26 02:30",
    "29.10.2023 02:30",
    "03/04/2023",
    "01.02.35",
    '"',
    '"a"',
    '"a',
    'a"b',
    "(5)",
    "5 %",
    "\u22123",
    "é",
    "\ufffd",
    "\0",
    "\r",
    " a ",
    "9" * 40,
    "1" * 400,
    "2023-01-01T00:00:00Z",
    "True",
    "#N/A",
    "\u2028",
]
MADE = Schema(
    (
        Numeric("x", -1e6, 1e6, missing=True),
        Datetime("seen", "1900-01-01", "2100-01-01", unit="min", timezone="UTC", missing=True),
        Categorical("c", ("a", "b"), missing=True),
    )
)


@pytest.mark.parametrize("dialect", range(len(DIALECTS)))
def test_one_line_more_adds_at_most_one_row_and_changes_no_other(tmp_path, dialect):
    """Whatever its bytes are and wherever it stands: 5,000 lines, in twelve dialects."""
    records, encoding, separator, entries = DIALECTS[dialect]
    rng, sign = random.Random(dialect), {"\\t": "\t", ", ": ","}.get(separator, separator)
    csv = f'encoding = "{encoding}", separator = "{separator}", records = "{records}"'
    path = declared(tmp_path, f'data = "t.csv"\ncsv = {{ {csv} }}\n{entries}\n')

    source = open_source(str(path))

    def line():
        if rng.random() < 0.1:
            return bytes(rng.choices(range(256), k=rng.randrange(30))).replace(b"\n", b"")
        made = [rng.choice(WORDS) for _ in range(4 if rng.random() < 0.9 else rng.randrange(6))]
        return sign.join(made).encode(encoding, "replace").replace(b"\n", b"")

    def rows(lines):
        (tmp_path / "t.csv").write_bytes(b"\n".join([sign.join(["id", "x", "seen", "c"]).encode(), *lines, b""]))
        table = read_table(source, MADE, quiet=True)
        return [*zip(*(column.tolist() for column in table.codes), *map(_bits, table.numbers.values()), strict=True)]

    for _ in range(20):
        lines = [line() for _ in range(21)]
        before = rows(lines)
        for more in [line() for _ in range(21)]:
            at = rng.randrange(len(lines) + 1)
            after = rows([*lines[:at], more, *lines[at:]])
            assert len(after) - len(before) in (0, 1)
            kept = [row for place, row in enumerate(after) if place != next(iter(_added(before, after)), None)]
            assert kept == before


def _bits(values):
    return np.where(np.isnan(values), np.inf, values).tolist()


def _added(before, after):
    """Yield the first place at which a row was added."""
    if len(after) > len(before):
        yield next((place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))


# ---------------------------------------------------------------------------------------------------------------------
# Lookup


def test_a_line_of_a_lookup_changes_the_rows_of_its_person_alone(tmp_path):
    rng = random.Random(0)
    lookup = 'lookup = { data = "persons.csv", key = "ID", person = "patient" }'
    text = f'data = "t.csv"\n{lookup}\n[column.sex]\nfrom = "Sex"\n'
    rows = "".join(f"{rng.randrange(20)},{rng.randrange(9)}\n" for _ in range(100))
    path = declared(tmp_path, text, t_csv=f"patient,x\n{rows}")
    schema = Schema((Numeric("x", 0, 9), Categorical("sex", ("m", "f"), missing=True)))
    ids = [int(line.split(",")[0]) for line in rows.splitlines()]

    def sexes(lines):
        (tmp_path / "persons.csv").write_text("ID,Sex\n" + "".join(f"{one}\n" for one in lines))
        return read_frame(path, ["sex"])["sex"].fillna("-").tolist()

    lines = [f"{one},{rng.choice('mf')}" for one in range(15)]
    before = sexes(lines)
    for _ in range(60):
        person, sex = rng.randrange(25), rng.choice(["m", "f", "", "x,y"])
        after = sexes([*lines, f" {person} ,{sex}"])
        changed = {ids[at] for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
        assert changed <= {person}
    assert sexes(["3,m", "3,f", "4,m", "4,m"]) == [{4: "m"}.get(one, "-") for one in ids]

    with pytest.raises(InvalidParameter, match="lookup by the column 'patient'"):
        read_table(path, schema)
    with pytest.raises(InvalidParameter, match="lookup by the column 'patient'"):
        read_table(path, schema, persons=PersonLimit("x", 1, bytes(32)))
    assert len(read_table(path, schema, persons=PersonLimit("patient", 1, bytes(32)))) == len({*ids})


# ---------------------------------------------------------------------------------------------------------------------
# Workbooks and Parquet files


def test_a_workbook_is_read_with_its_numbers_and_dates(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    book.active.append(["nothing here"])
    sheet = book.create_sheet("visits")
    for row in (
        ["Report", None],
        ["id", "x", "seen", "clock", "code"],
        ["a", 1.234, datetime(2023, 4, 3), datetime(2023, 4, 3, 10, 15).time(), "007"],
        [None] * 5,
        ["b", "1.234,5", "03.04.2023", "11:00", 123456789012345678],
        ["c", 1234, datetime(2023, 4, 3, 10, 30), None, 5],
        ["d", "=1+1", None, None, True],
    ):
        sheet.append(row)
    book.save(tmp_path / "t.xlsx")
    text = 'data = "t.xlsx"\nsheet = "visits"\ncsv = { first_line = 2 }\ndecimal = ","\nthousands = "."\n'
    text += 'dates = "%d.%m.%Y"\n[column.at]\nfrom = ["seen", "clock"]\n'
    path = declared(tmp_path, text)
    at = Datetime("at", "1900-01-01", "2100-01-01", unit="min", missing=True)
    (x, code, when), sentences = cells(
        path, Numeric("x", 0, 1e6, missing=True), Categorical("code", ("007", "5"), missing=True), at
    )
    assert x == [1.234, 1234.5, 1234, None]
    assert (code[0], code[1][:15], code[2:]) == ("007", "123456789012345", ["5", "True"])
    assert when == [datetime(2023, 4, 3, 10, 15), datetime(2023, 4, 3, 11), datetime(2023, 4, 3, 10, 30), None]
    assert any("formulas without a stored value" in one and one.endswith(": 1") for one in sentences)
    assert any("more than 15 digits" in one and one.endswith(": 1") for one in sentences)
    with pytest.raises(SchemaError, match=r"no sheet 'visit'.*nothing|it has"):
        open_source(str(declared(tmp_path, 'data = "t.xlsx"\nsheet = "visit"\n'))).columns()


def test_a_workbook_with_dates_from_1904(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
    book.active.append(["seen"])
    book.active.append([datetime(2023, 4, 3)])
    book.save(tmp_path / "t.xlsx")
    assert cells(tmp_path / "t.xlsx", SEEN)[0] == [datetime(2023, 4, 3)]


def test_entries_for_text_are_refused_for_typed_columns(tmp_path):
    pa_parquet.write_table(pa.table({"x": [1, 2, -9], "y": ["1,5", "2", ""]}), tmp_path / "t.parquet")
    path = declared(tmp_path, 'data = "t.parquet"\ndecimal = ","\n[column.x]\nfactor = 2\nmissing = [-9]\n')
    found, _ = cells(path, Numeric("x", 0, 9, missing=True), Numeric("y", 0, 9, missing=True))
    assert found == [[2, 4, None], [1.5, 2, None]]
    declared(tmp_path, 'data = "t.parquet"\n[column.x]\nextract = "(.)"\n')
    with pytest.raises(SchemaError, match="extract is for cells of text"):
        numbers(path)


# ---------------------------------------------------------------------------------------------------------------------
# The file itself


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data is missing"),
        ('data = "t.csv"\nlokup = 1', "'lokup' is unknown|lokup is unknown"),
        ('data = "t.csv"\n[column.x]\nform = "X"', "form is unknown"),
        ('data = "t.csv"\n[column.x]\nextract = "("', "no regular expression"),
        ('data = "t.csv"\n[column.x]\nextract = "a"', "has 0 groups"),
        ('data = "t.csv"\n[column.x]\nextract = "(?=a)(b)"', "no regular expression of RE2"),
        ('data = "t.csv"\ndates = "%d.%m.%y"', "declare pivot"),
        ('data = "t.csv"\ndates = "%d.%m.%Q"', "%Q"),
        ('data = "t.csv"\ndecimal = ","\nthousands = ","', "is the decimal mark"),
        ('data = "t.csv"\nzone = "Mars"', "IANA"),
        ('data = "t.csv"\ncsv = { encoding = "utf-16" }', "save a file in any other as UTF-8"),
        ('data = "t.csv"\ncsv = { encoding = "hex" }', "save a file in any other as UTF-8"),
        ('data = "t.csv"\ncsv = { separator = "ab" }', "give one sign"),
        ('data = "t.csv"\nabsent = ["x"]\n[column.x]\nfrom = "y"', "absent"),
    ],
)
def test_what_a_source_file_may_not_say(tmp_path, text, message):
    (tmp_path / "north.toml").write_text(text)
    with pytest.raises(FedsynthError, match=message):
        SourceFile.load(tmp_path / "north.toml")


def test_a_draft_is_refused_until_a_person_deletes_the_line(tmp_path):
    path = declared(tmp_path, 'data = "t.csv"\ndraft = true\n', t_csv="x\n1\n")
    schema = Schema((Numeric("x", 0, 9),))
    with pytest.raises(InvalidParameter, match="is a draft"):
        read_table(path, schema)
    found = check_table(path, schema)
    assert not found.ok
    assert "is a draft" in found.problems[0]


def test_the_digest_is_that_of_the_entries(tmp_path):
    one = SourceFile.load(declared(tmp_path, 'data = "t.csv"\ndecimal = ","\n')).digest
    assert SourceFile.load(declared(tmp_path, '# a comment\ndecimal = ","\ndata = "t.csv"\n')).digest == one
    assert SourceFile.load(declared(tmp_path, 'data = "t.csv"\ndecimal = "."\n')).digest != one


def test_formulas_without_values_are_counted_in_any_spelling():
    from fedsynth.data.sources.workbook import _UNSTORED

    for cell in (
        b"<c><f>1+1</f><v></v></c>",
        b"<c><f>1+1</f><v/></c>",
        b"<c><f>1+1</f></c>",
        b'<c><f t="shared" si="0"/></c>',
    ):
        assert _UNSTORED.search(cell)
    assert not _UNSTORED.search(b"<c><f>1+1</f><v>2</v></c>")
