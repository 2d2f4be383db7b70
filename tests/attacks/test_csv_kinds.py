"""B2: a CSV file is of one declared kind, so that one record never decides how others are read."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attacks import world
from tests.attacks.world import BUDGET, ask_deployed, question, values

from fedsynth.data.read import read_table
from fedsynth.data.sources import csv_file
from fedsynth.deploy.host.checks import PreflightCheck, check_site
from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.rows import load_rows
from fedsynth.deploy.host.state import open_account
from fedsynth.errors import FedsynthError, SchemaError
from fedsynth.federation.query import Counts
from fedsynth.files import Records
from fedsynth.privacy.cost import Cost
from fedsynth.schema import Categorical, Schema
from fedsynth.statement import Statement
from fedsynth.terms import Terms

SCHEMA = Schema((Categorical("sex", ("f", "m")), Categorical("item", ("bandage", "splint", 'bandage 6"'))))
ROWS = 20_000
OPEN = 'm,"bandage'  # the record of one person, with a quote that is never closed


def stock(*more: str) -> list[str]:
    """Return the lines of a site's file: 20,000 rows, of which one, three quarters down, ends in a quote."""
    sexes = np.random.default_rng(0).choice(["f", "m"], ROWS)
    lines = [f"{sex},{'bandage' if k % 3 else 'splint'}" for k, sex in enumerate(sexes)]
    lines[3 * ROWS // 4] = 'f,bandage 6"'
    return [*more, *lines]


def deployed(folder: Path, text: str, **source: Any) -> SiteConfig:
    return world.deployed(folder, text.encode(), SCHEMA, source)


def file_of(lines: list[str]) -> str:
    return "\n".join(["sex,item", *lines, ""])


def counted(config: SiteConfig) -> np.ndarray[Any, Any]:
    """Return a site's answer to: how many rows of each sex? Its noise, of rho 1e-4, has standard deviation 71."""
    asked = question(Counts.of(2, ((0,),)), schema=SCHEMA.digest)
    return values(ask_deployed(config, asked))


def test_b02_a_quote_that_is_never_closed_takes_no_other_row_along(tmp_path):
    """The answer (9982, 10008) became (2536, 2425) by this one record."""
    without = counted(deployed(tmp_path / "without", file_of(stock())))
    with_it = counted(deployed(tmp_path / "with", file_of(stock(OPEN))))
    assert np.abs(without - with_it).max() < 10 * 2**0.5 * 71
    assert with_it.sum() > ROWS - 1000


@pytest.mark.parametrize("how", [{}, {"streamed": True}], ids=str)
def test_b02_an_invalid_file_gives_no_answer_however_late_the_fault_is(tmp_path, monkeypatch, how):
    """Its parts were read, and counted, before: nothing of them leaves, and the question is charged."""
    monkeypatch.setattr(csv_file, "_BLOCK", 1 << 14)
    lines = [line for line in stock() if '"' not in line]
    for at in (0, len(lines)):
        text = file_of([*lines[:at], OPEN, *lines[at:]])
        config = deployed(tmp_path / f"at {at}", text, records="rfc4180", **how)
        for step in range(2):
            asked = question(Counts.of(2, ((0,),)), schema=SCHEMA.digest, step=step)
            reply = ask_deployed(config, asked)
            assert (reply.code, reply.answer) == ("void", None)
        assert open_account(config).spent().rho == pytest.approx(2e-4)
    valid = deployed(tmp_path / "valid", file_of([*lines, 'm,"splint"']), records="rfc4180", **how)
    assert counted(valid).sum() == pytest.approx(ROWS, abs=1000)


def test_b02_a_changed_kind_reads_the_file_again(tmp_path):
    config = deployed(tmp_path / "site", file_of(['f,"splint', 'm,splint"', "f,splint"]))
    assert len(load_rows(config, SCHEMA, bytes(32))) == 1
    text = (tmp_path / "site" / "site.toml").read_text()
    (tmp_path / "site" / "site.toml").write_text(
        text.replace('data = "rows.csv"', 'data = "rows.csv"\nrecords = "rfc4180"')
    )
    config = load_site_config(tmp_path / "site")
    assert (len(load_rows(config, SCHEMA, bytes(32))), load_rows(config, SCHEMA, bytes(32)).left_out) == (1, 1)


NOTES = Schema((Categorical("sex", ("f", "m")), Categorical("ward", ("a", "b"))))


def exported(rows: int = 1000, share: float = 0.3) -> str:
    """Return an export of which 30 % of the records have a note of two lines."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], rows), "note": "none", "ward": rng.choice(["a", "b"], rows)})
    frame.loc[(rng.random(rows) < share) | (frame.index < bool(share)), "note"] = 'slept well,\nate "little"'
    text: str = frame.to_csv(index=False)
    return text


def test_b02_cells_that_hold_newlines_need_their_kind(tmp_path):
    """Where no kind fits both: an export keeps 675 of 1,000 records as lines; a record of 300 newlines is 301 rows."""
    path = tmp_path / "rows.csv"
    path.write_text(exported())
    assert len(read_table(path, NOTES)) == pytest.approx(675, abs=50)
    assert len(read_table(path, NOTES, records="rfc4180")) == 1000
    long = "\n".join(f"a,{k},a" for k in range(300))
    path.write_text(exported(share=0) + f'f,"{long}\n",a\n')
    assert len(read_table(path, NOTES, records="rfc4180")) == 1001


def rows_check(config: SiteConfig) -> PreflightCheck:
    return next(check for check in check_site(config) if check.name == "rows")


def test_b02_site_check_fails_for_lines_whose_cells_hold_newlines_and_says_what_to_declare(tmp_path):
    for how in ({}, {"records": "lines"}, {"streamed": True}):
        home = tmp_path / str(len(list(tmp_path.iterdir())))
        config = deployed(home, exported(), **how)
        NOTES.save(config.schema)
        check = rows_check(config)
        assert (check.state, check.code) == ("failure", 3)
        assert "line 2 opens a quote, and the next one is no record by itself" in check.found
        assert 'declare that: `records = "rfc4180"` under [source] in site.toml' in check.found
        assert "malformed lines, which are left out: " in check.found
        assert "line 2 opens a quote that is not closed; line 3 has 2 cells, not 3" in check.found
        config = deployed(home / "right", exported(), **{**how, "records": "rfc4180"})
        NOTES.save(config.schema)
        check = rows_check(config)
        assert (check.state, check.found[:13]) == ("ok", "1000 rows fit")


def test_b02_site_check_fails_for_rfc4180_whose_quotes_were_never_closed_and_says_what_to_declare(tmp_path):
    """Also where the file is valid by accident, with most of its rows in one cell."""
    valid = deployed(tmp_path / "valid", file_of(stock(OPEN)), records="rfc4180")
    assert len(load_rows(valid, SCHEMA, bytes(32))) < ROWS / 2
    check = rows_check(valid)
    assert (check.state, check.code) == ("failure", 3)
    assert "line 2 opens one, and the next line is a record by itself" in check.found
    assert 'declare that: `records = "lines"` under [source] in site.toml' in check.found
    check = rows_check(deployed(tmp_path / "invalid", file_of(stock("m,splint", OPEN, OPEN)), records="rfc4180"))
    assert (check.state, check.code) == ("failure", 3)
    assert "20001 records fit the header and 2 lines are malformed" in check.found
    assert 'declare that: `records = "lines"` under [source] in site.toml' in check.found
    check = rows_check(deployed(tmp_path / "right", file_of(stock(OPEN)), records="lines"))
    assert (check.state, check.found[:14]) == ("ok", "20000 rows fit")
    assert "malformed lines, which are left out: 1 (line 2 opens a quote that is not closed)" in check.found


def test_b02_a_file_of_the_declared_kind_with_a_fault_is_not_called_one_of_the_other(tmp_path):
    config = deployed(tmp_path / "site", exported() + "f,a\n", records="rfc4180")
    NOTES.save(config.schema)
    check = rows_check(config)
    assert check.state == "failure"
    assert "has 2 cells, not 3" in check.found
    assert "seem" not in check.found
    assert "as a file of lines" not in check.found


def test_b02_other_sources_have_no_kind(tmp_path):
    for data, records in (("rows.parquet", "lines"), ("rows.csv", "line"), ("rows.csv", 1)):
        with pytest.raises(FedsynthError, match="records"):
            deployed(tmp_path / f"{data} {records}", "", data=data, records=records)


def test_b02_the_statement_says_that_validity_is_not_protected():
    terms = Terms(SCHEMA, BUDGET, "local")
    said = [Statement(terms, spent=Cost(), exact_releases=0, rfc4180=kind).text for kind in (False, True)]
    assert ["rfc4180, whether that file is valid as a whole is not protected" in text for text in said] == [False, True]


# ---------------------------------------------------------------------------------------------------------------------
# For all files

DIALECTS = list(itertools.product([b",", b";", b"\t", b"|"], [[b"\n"], [b"\r\n"], [b"\n", b"\r\n"]]))
BLOCKS = (1 << 22, 64)  # the second cuts files of the tests, too; longer records are malformed then
Rows = list[tuple[bytes, ...]]


def read(folder: Path, text: bytes, records: Records) -> tuple[Rows, list[tuple[int, str]]]:
    """Return rows and malformed lines of a file."""
    (folder / "t.csv").write_bytes(text)
    file = csv_file.CsvFile(folder / "t.csv", records)
    rows: Rows = []
    bad: list[tuple[int, str]] = []
    for part, lines in file.batches(file.names):
        columns = [part.column(name).cast(pa.binary()).to_pylist() for name in file.names]
        rows += zip(*columns, strict=True)
        bad += lines
    return rows, bad


def header(columns: int, mark: bytes) -> bytes:
    return mark.join(b"abc"[k : k + 1] for k in range(columns))


USUAL = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PIECES = [b'"', b'""', b",", b";", b"\t", b"|", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\r", b"7", b" ", b"ab"]
LINES = st.lists(st.sampled_from([*PIECES, b"7,8,9", b'"7;8";9', b"a,b,c", b"a|b", b"z" * 70]), max_size=6).map(
    b"".join
)


@USUAL
@given(
    lines=st.lists(LINES, max_size=8),
    line=LINES,
    at=st.integers(0, 8),
    columns=st.integers(1, 3),
    dialect=st.sampled_from(DIALECTS),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    ended=st.booleans(),
)
def test_b02_of_lines_each_is_read_by_itself(tmp_path, monkeypatch, lines, line, at, columns, dialect, mark, ended):
    """A file is read as the lines before one, then that one, then those after it: at most one row and nothing else."""
    delimiter, ends = dialect
    head = mark + header(columns, delimiter) + ends[0]
    *lines, line = [part + end for part, end in zip([*lines, line], itertools.cycle(ends), strict=False)]

    def text(parts: list[bytes]) -> bytes:
        whole = b"".join([head, *parts])
        return whole if ended else whole.removesuffix(b"\n")

    for block in BLOCKS:
        monkeypatch.setattr(csv_file, "_BLOCK", block)
        before, one, after = (read(tmp_path, text(part), "lines") for part in (lines[:at], [line], lines[at:]))
        rows, bad = read(tmp_path, text([*lines[:at], line, *lines[at:]]), "lines")
        assert rows == before[0] + one[0] + after[0]
        shift = len(lines[:at])
        moved = [(number + shift, wrong) for number, wrong in one[1]]
        moved += [(number + shift + 1, wrong) for number, wrong in after[1]]
        assert bad == before[1] + moved
        assert len(one[0]) + len(one[1]) == bool(line.removesuffix(b"\n").removesuffix(b"\r"))


CELLS = st.lists(st.sampled_from([*PIECES, b"\n", b"\r\n", b"7,8\n9,9"]), max_size=3).map(b"".join)


def written(record: tuple[bytes, ...], delimiter: bytes, quoted: bool) -> bytes:
    """Return a record as RFC 4180 has it, with quotes where they are needed or everywhere."""
    special = (b'"', b"\n", b"\r", delimiter)
    needed = [quoted or any(one in cell for one in special) or record == (b"",) for cell in record]
    cells = [b'"' + cell.replace(b'"', b'""') + b'"' if of else cell for cell, of in zip(record, needed, strict=True)]
    return delimiter.join(cells)


def parsed(body: bytes, delimiter: int, columns: int) -> tuple[Rows, int] | None:
    """Return the rows of a body by the grammar of RFC 4180, byte by byte, and the longest; None if it is invalid."""
    rows: Rows = []
    row: list[bytes] = []
    cell, state, start, longest, at = b"", "start", 0, 0, 0
    while at <= len(body):
        byte = body[at] if at < len(body) else -1
        if state == "quoted" and byte != -1:
            if byte == 34 and body[at + 1 : at + 2] == b'"':
                at += 1
            elif byte == 34:
                state = "closed"
                at += 1
                continue
            cell += bytes([byte])
        elif byte in (-1, 10) or body[at : at + 2] == b"\r\n":
            if state == "quoted":
                return None
            empty = not row and state == "start"
            at += byte == 13
            longest = max(longest, at + 1 - start)
            start = at + 1
            if not empty:
                rows.append((*row, cell))
                if len(row) + 1 != columns:
                    return None
            row, cell, state = [], b"", "start"
        elif byte == delimiter:
            row, cell, state = [*row, cell], b"", "start"
        elif byte == 34 and state == "start":
            state = "quoted"
        elif byte in (13, 34) or state == "closed":
            return None
        else:
            cell, state = cell + bytes([byte]), "text"
        at += 1
    return rows, longest


@USUAL
@given(data=st.data(), columns=st.integers(1, 3), dialect=st.sampled_from(DIALECTS), quoted=st.booleans())
def test_b02_one_more_valid_record_is_one_more_row(tmp_path, monkeypatch, data, columns, dialect, quoted):
    """As Python's csv module and Arrow read them; and as lines, if no cell holds a newline."""
    delimiter, ends = dialect
    delimiter = delimiter if columns > 1 else b","
    records = data.draw(st.lists(st.tuples(*[CELLS] * columns), max_size=6))
    at = data.draw(st.integers(0, len(records)))
    head = header(columns, delimiter)
    more = [*records[:at], data.draw(st.tuples(*[CELLS] * columns)), *records[at:]]
    for rows in (records, more):
        pieces = [head, *(written(row, delimiter, quoted) for row in rows)]
        text = b"".join(piece + end for piece, end in zip(pieces, itertools.cycle(ends), strict=False))
        monkeypatch.setattr(csv_file, "_BLOCK", max(64, *(len(piece) + 2 for piece in pieces)))
        assert read(tmp_path, text, "rfc4180") == (rows, [])
        by_csv = csv.reader(io.StringIO(text.decode("latin-1"), newline=""), delimiter=delimiter.decode(), strict=True)
        assert [tuple(cell.encode("latin-1") for cell in row) for row in by_csv][1:] == rows
        assert by_arrow(text, delimiter) == rows
        if not any(end in cell for row in rows for cell in row for end in (b"\n", b"\r")):
            repeated = [row for row in rows if columns == 1 or written(row, delimiter, quoted) != head]
            assert read(tmp_path, text, "lines")[0] == repeated


def by_arrow(text: bytes, delimiter: bytes) -> Rows:
    names = [chr(97 + k) for k in range(3)]
    table = pa_csv.read_csv(
        io.BytesIO(text),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter.decode(), newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
        ),
    )
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@USUAL
@given(
    body=st.lists(st.sampled_from([*PIECES, b"\n", b"\r\n", b"7,8\n", b'"7\n7",8\n', b"z" * 70]), max_size=12).map(
        b"".join
    ),
    columns=st.integers(1, 3),
    delimiter=st.sampled_from([b",", b";"]),
    block=st.sampled_from(BLOCKS),
)
def test_b02_an_invalid_file_is_refused_as_a_whole(tmp_path, monkeypatch, body, columns, delimiter, block):
    monkeypatch.setattr(csv_file, "_BLOCK", block)
    expected = parsed(body, delimiter[0], columns)
    text = header(columns, delimiter) + b"\n" + body
    if expected is None or expected[1] > block:
        with pytest.raises(SchemaError, match=r"is not valid RFC 4180, so none of it is read: line \d+ "):
            read(tmp_path, text, "rfc4180")
    else:
        assert read(tmp_path, text, "rfc4180") == (expected[0], [])
