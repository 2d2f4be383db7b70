"""One record more moves one row, on every way from a file into a run; and all ways read the file alike.

The records hold what makes other readers guess anew: labels that look like numbers beside a word, one time with a zone,
bytes that are no UTF-8. Each way is taken by the front door itself (:func:`fedsynth.fit`), up to the encoded rows that
the simulated sites hold.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.data import postgres
from tests.data.test_same_rows import COLUMNS, TWO_SPELLINGS, series

import fedsynth as fs
from fedsynth import encoding
from fedsynth.data.read import PersonLimit
from fedsynth.data.read import read_table as read_encoded
from fedsynth.data.sources.arrow import encode
from fedsynth.encoding import encode_column
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.persons import identify
from fedsynth.rows import Table
from fedsynth.schema import MISSING, Boolean, Categorical, Column, Datetime, Numeric, Schema
from fedsynth.schema.columns import missing_spellings

pytestmark = pytest.mark.filterwarnings("ignore::fedsynth.errors.DataWarning")
Cell = str | bytes
Record = tuple[Cell, Cell, Cell]  # its name, a value, and its person

CELLS: list[Cell] = [
    "+1", "1", "0", "-1", "1.0", "1e5", "100000", "007", "7", "n/k", "", "NA", "?", "None", "True", "false", "a", "b",
    "2020-01-02", "2020-01-02T10:00:00Z", "2020-01-02 10:00:00", "2020", ".5", "5.", "30", "inf", "1e999", "-0", " 1",
    'say "hi"', "a,b", "6\"", "é", "\u0661", "9007199254740993", "12345678901234567890", "other", "yes",
    b"\xff", b"Z\xfcrich", b"\xef\xbb\xbf1", "a\0b",
]  # fmt: skip
PERSONS: list[Cell] = [
    "7",
    "07",
    "7.0",
    "+7",
    "8",
    "ann",
    "",
    "NA",
    "é",
    "1e5",
    "True",
    b"\xff",
    b"\xfe",
    "9007199254740993",
]
LISTED: list[Column] = [
    Categorical("a", ("+1", "0", "-1")),
    Categorical("a", ("+1", "0", "-1"), missing=True, unknown="missing"),
    Categorical("a", ("1e5", "007", ".5", "True"), unknown="other"),
    Categorical("a", ("n/k", "a,b", 'say "hi"', "Z\ufffdrich", "\ufffd", "é", "b")),
    Categorical("a", (-1, 0, 1, 100000), missing=True),
    Boolean("a", missing=True),
    Numeric("a", -2, 40, bins=9, missing=True),
    Datetime("a", "2019-01-01", "2021-01-01", bins=9, unit="D", missing=True),
]
MOST = 6
NAMES = ("x", "north", "south")  # the record more, and one of each site that fits


@dataclass(frozen=True)
class Probe:
    """A method that looks at nothing but what the sites hold."""

    def fit(self, federation: Federation) -> Synthesizer:
        raise Seen({name: site.rows for name, site in federation.transport._sites.items()}, federation)  # type: ignore[attr-defined]


class Seen(Exception):
    def __init__(self, tables: dict[str, Table], federation: Federation) -> None:
        super().__init__()
        self.tables, self.federation = tables, federation


def seen(train: Any, schema: Schema, person: str = "", rows: int = 1, sites: int = 1) -> Seen:
    """What fit makes of rows, up to its method."""
    with pytest.raises(Seen) as found:
        fs.fit(
            train, schema, epsilon=1, delta=1e-6, method=Probe(), person=person, rows_per_person=rows,
            sites_per_person=sites,
        )  # fmt: skip
    return found.value


def fitting(schema: Schema, name: str) -> Record:
    """A record that fits the schema, of a person of its own: a site of whose rows none fits is an error."""
    column = schema.asked[1]
    listed = column.values if isinstance(column, Categorical) else ()
    cells = [str(value) for value in (*listed, "true", "false", getattr(column, "low", ""), 20)]
    frame = pd.DataFrame([(name, cell) for cell in cells], columns=["row", "a"])
    codes = encode_column(schema, column, frame).codes
    return name, cells[int(np.argmax(codes >= 0))], name


def content(table: Table) -> list[tuple[int, int, str]]:
    """The rows of a table, in order: the code of their name, of their value, and their number."""
    numbers = table.numbers.get(1)
    held = ["-"] * len(table) if numbers is None else map(repr, numbers.tolist())
    return list(zip(table.codes[0].tolist(), table.codes[1].tolist(), held, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Files


def raw(cell: Cell) -> bytes:
    return cell if isinstance(cell, bytes) else cell.encode()


def text(cell: Cell) -> str:
    return raw(cell).decode("utf-8", "replace")


def csv_file(folder: Path, records: Sequence[Record]) -> Path:
    lines = [b",".join(b'"' + raw(cell).replace(b'"', b'""') + b'"' for cell in record) for record in records]
    path = folder / "rows.csv"
    path.write_bytes(b"\n".join([b"row,a,who", *lines]) + b"\n")
    return path


def column(cells: Sequence[Cell]) -> pa.Array:
    """Cells as a program hands them to Arrow: text, until one of them is bytes, which makes the column binary."""
    return pa.array(list(cells), pa.binary() if any(isinstance(cell, bytes) for cell in cells) else pa.string())


def arrow_table(records: Sequence[Record]) -> pa.Table:
    return pa.table({name: column([record[at] for record in records]) for at, name in enumerate(("row", "a", "who"))})


def frame_of(records: Sequence[Record], **options: Any) -> pd.DataFrame:
    return pd.DataFrame(list(records), columns=["row", "a", "who"], **options)


def parts(records: Sequence[Record], folder: Path) -> pd.DataFrame:
    """A file in two parts, each read for itself."""
    half = len(records) // 2
    read = [fs.read_table(csv_file(folder, part)) for part in (records[:half], records[half:])]
    return pd.concat(read, ignore_index=True)


def categories(records: Sequence[Record]) -> pd.DataFrame:
    return frame_of([tuple(map(text, record)) for record in records]).astype({"a": "category", "who": "category"})  # type: ignore[misc]


def parquet(folder: Path, records: Sequence[Record]) -> Path:
    pq.write_table(arrow_table(records), folder / "rows.parquet")
    return folder / "rows.parquet"


def of_strings(folder: Path, records: Sequence[Record]) -> pd.DataFrame:
    return pd.read_csv(csv_file(folder, records), dtype=str, encoding_errors="replace")


Way = Callable[[Path, Sequence[Record], Schema], Any]
WAYS: dict[str, Way] = {
    "path": lambda folder, records, schema: csv_file(folder, records),
    "text frame": lambda folder, records, schema: fs.read_table(csv_file(folder, records)),
    "typed frame": lambda folder, records, schema: fs.read_table(csv_file(folder, records), schema),
    "concatenated frames": lambda folder, records, schema: parts(records, folder),
    "read_csv of strings": lambda folder, records, schema: of_strings(folder, records),
    "objects": lambda folder, records, schema: frame_of(records, dtype=object),
    "categories": lambda folder, records, schema: categories(records),
    "parquet": lambda folder, records, schema: parquet(folder, records),
    "frame of parquet": lambda folder, records, schema: fs.read_table(parquet(folder, records)),
    "typed frame of parquet": lambda folder, records, schema: fs.read_table(parquet(folder, records), schema),
    "pandas of parquet": lambda folder, records, schema: pd.read_parquet(parquet(folder, records)),
    "arrow types": lambda folder, records, schema: arrow_table(records).to_pandas(types_mapper=pd.ArrowDtype),
    "arrow": lambda folder, records, schema: encode(schema, arrow_table(records)),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, list[Record], Record, int]:
    """Draw a schema, records, one more, and where it stands."""
    number = draw(st.integers(0, MOST))
    cells, persons = st.sampled_from(CELLS), st.sampled_from(PERSONS)
    records: list[Record] = [(f"r{at}", draw(cells), draw(persons)) for at in range(number)]
    columns = st.sampled_from([*LISTED, *COLUMNS, *TWO_SPELLINGS])
    spelled = draw(st.sampled_from([MISSING, ("", "n/k", "-1", "1.0")]))
    names = Categorical("row", (*(f"r{at}" for at in range(MOST)), *NAMES))
    schema = Schema((names, draw(columns)), spelled)
    return schema, records, ("x", draw(cells), draw(persons)), draw(st.integers(0, number))


def searched(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


Case = tuple[Schema, list[Record], Record, int]
SIGNS: Case = (
    Schema((Categorical("row", ("r0", "r1", "r2", *NAMES)), Categorical("a", ("+1", "0", "-1")))),
    [("r0", "+1", "7"), ("r1", "0", "8"), ("r2", "-1", "7")],
    ("x", "n/k", "7.0"),
    0,
)
ZONES: Case = (
    Schema((Categorical("row", ("r0", "r1", *NAMES)), Datetime("a", "2019-01-01", "2021-01-01", missing=True))),
    [("r0", "2020-01-02 10:00:00", "7"), ("r1", "2020-01-02", "8")],
    ("x", "2020-01-02T10:00:00Z", b"\xff"),
    2,
)


def check(case: Case, way: str) -> None:
    schema, records, more, at = case
    with tempfile.TemporaryDirectory() as name:
        records = [*records, fitting(schema, "north")]
        held = []
        for rows in (records, [*records[:at], more, *records[at:]]):
            held.append(content(seen(WAYS[way](Path(name), rows, schema), schema).tables["site-000"]))
    x = schema.columns[0].code("x")  # type: ignore[union-attr]
    assert [row for row in held[1] if row[0] != x] == held[0], records
    assert sum(row[0] == x for row in held[1]) <= 1


@searched(200)
@given(case=cases(), way=st.sampled_from(sorted(WAYS)))
@example(case=SIGNS, way="text frame")
@example(case=ZONES, way="text frame")
@example(case=SIGNS, way="typed frame")
@example(case=(*ZONES[:2], ("x", b"\xff", b"\xff"), 0), way="parquet")
def test_one_record_more_moves_one_row_on_every_way_in(case, way):
    check(case, way)


@pytest.mark.slow
@searched(5000)
@given(case=cases(), way=st.sampled_from(sorted(WAYS)))
def test_one_record_more_moves_one_row_on_every_way_in_5000_times(case, way):
    check(case, way)


def check_persons(case: Case, way: str, rows: int, sites: int, others: Sequence[Record]) -> None:
    schema, records, more, at = case
    held: list[list[tuple[int, int, str]]] = []
    with tempfile.TemporaryDirectory() as name:
        records, others = [*records, fitting(schema, "north")], [*others, fitting(schema, "south")]
        for side in ("north", "south"):
            (Path(name) / side).mkdir()
        for north in (records, [*records[:at], more, *records[at:]]):
            sides = {"north": north, "south": others}
            train = {side: WAYS[way](Path(name) / side, of, schema) for side, of in sides.items()}
            tables = seen(train, schema, "who", rows, sites).tables
            held.append([row for side in sides for row in content(tables[side])])
            if isinstance(train["north"], Path):  # as a deployed site reads it
                limited = read_encoded(train["north"], schema, persons=PersonLimit("who", rows, bytes(32)), quiet=True)
                held[-1] += content(limited)
    every = [*records, *others, more]
    person = dict(zip((str(row[0]) for row in every), identify([text(row[2]) for row in every]), strict=True))
    labels = schema.columns[0].labels  # type: ignore[union-attr]
    without, with_more = ([row for row in of if person[str(labels[row[0]])] != person["x"]] for of in held)
    assert with_more == without, (records, others)


persons_ways = st.sampled_from(sorted(set(WAYS) - {"arrow"}))  # encoded rows have lost their persons


@searched(200)
@given(case=cases(), way=persons_ways, rows=st.integers(1, 2), sites=st.integers(1, 2))
@example(case=SIGNS, way="path", rows=1, sites=1)
@example(case=(*ZONES[:2], ("x", "a", b"\xff"), 0), way="parquet", rows=1, sites=1)
def test_one_record_more_moves_no_row_of_another_person(case, way, rows, sites):
    schema, records, more, at = case
    check_persons((schema, records[:3], more, min(at, len(records[:3]))), way, rows, sites, records[3:])


@pytest.mark.slow
@searched(5000)
@given(case=cases(), way=persons_ways, rows=st.integers(1, 2), sites=st.integers(1, 2))
def test_one_record_more_moves_no_row_of_another_person_5000_times(case, way, rows, sites):
    schema, records, more, at = case
    check_persons((schema, records[:3], more, min(at, len(records[:3]))), way, rows, sites, records[3:])


# ---------------------------------------------------------------------------------------------------------------------
# All ways read a file alike


@searched(200)
@given(case=cases())
@example(case=SIGNS)
@example(case=ZONES)
def test_a_frame_that_was_read_is_encoded_as_its_file(case):
    schema, records, more, _ = case
    with tempfile.TemporaryDirectory() as name:
        for path in (csv_file(Path(name), [*records, more]), parquet(Path(name), [*records, more])):
            file = read_encoded(path, schema, quiet=True)
            frame, typed = fs.read_table(path), fs.read_table(path, schema)
            raw_rows, typed_rows = (encoding.encode(schema, one) for one in (frame, typed))
            assert content(raw_rows) == content(file)
            assert raw_rows.left_out == file.left_out
            assert list(typed.columns) == list(frame.columns) == ["row", "a", "who"]
            assert len(typed) == len(file)
            if not missing_spellings(schema.asked[1], schema.missing_values)[1]:  # a value that stands for none
                assert content(typed_rows) == content(file)


# ---------------------------------------------------------------------------------------------------------------------
# Databases: a column of text becomes one of bytes


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    pytest.importorskip("adbc_driver_postgresql", reason="the extra [sql] is not installed")
    with pytest.MonkeyPatch.context() as patch, postgres.server(fsync="off", timezone="UTC") as running:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


def stored(server: postgres.Server, records: Sequence[Record]) -> str:
    """Return the address of a table of text columns, or of bytes where a cell is no text."""
    types = ["bytea" if any(b"\0" in raw(cell) or isinstance(cell, bytes) for cell in cells) else "text"
             for cells in zip(*records, strict=True)]  # fmt: skip
    rows = ", ".join(
        "(" + ", ".join(
            rf"'\x{raw(cell).hex()}'::bytea" if kind == "bytea" else "'" + text(cell).replace("'", "''") + "'"
            for cell, kind in zip(record, types, strict=True)
        ) + ")"
        for record in records
    )  # fmt: skip
    server.run(f'DROP TABLE IF EXISTS held; CREATE TABLE held AS SELECT * FROM (VALUES {rows}) AS held("row", a, who)')
    return server.uri("table=held")


@pytest.mark.skipif(postgres.binaries() is None, reason="no PostgreSQL server is installed here")
@searched(30)
@given(case=cases(), rows=st.integers(1, 2), way=st.sampled_from(["path", "frame", "typed frame"]))
@example(case=(*ZONES[:2], ("x", b"\xff", b"\xff"), 0), rows=1, way="path")
def test_one_record_more_moves_one_row_of_a_database(server, case, rows, way):
    schema, records, more, _ = case
    records = [*records, fitting(schema, "north")]
    every = [*records, more]
    person = dict(zip((row[0] for row in every), identify([text(row[2]) for row in every]), strict=True))
    labels = schema.columns[0].labels
    held, limited = [], []
    for given_rows in (records, [more, *records]):
        train: Any = stored(server, given_rows)
        if way != "path":
            train = fs.read_table(train, schema if way == "typed frame" else None)
        held.append(sorted(content(seen(train, schema).tables["site-000"])))
        limited.append(sorted(content(seen(train, schema, "who", rows).tables["site-000"])))
    x = schema.columns[0].code("x")
    assert [row for row in held[1] if row[0] != x] == held[0], records
    others = [[row for row in of if person[labels[row[0]]] != person["x"]] for of in limited]
    assert others[1] == others[0], records


# ---------------------------------------------------------------------------------------------------------------------
# Frames whose types were made elsewhere, and what a statement says of them

CODES = Schema((Categorical("row", ("r0", "r1", *NAMES)), Categorical("a", ("007", "010"), unknown="other")))
ZEROS: list[Record] = [("r0", "007", "7"), ("r1", "010", "8")]


def guessed(folder: Path, records: Sequence[Record]) -> pd.DataFrame:
    return pd.read_csv(csv_file(folder, records), encoding_errors="replace")


def test_types_that_pandas_guesses_move_other_rows_and_the_statement_says_so(tmp_path):
    """The control: one record that is no number makes text of a column of codes, and all its zeros come back."""
    found = [seen(guessed(tmp_path, rows), CODES) for rows in (ZEROS, [*ZEROS, ("x", "n/k", "9")])]
    assert [[row[1] for row in content(one.tables["site-000"])] for one in found] == [[2, 2], [0, 1, 2]]
    said = "what is protected is a row of these frames"
    assert all(one.federation.statement.typed_elsewhere for one in found[:1])
    assert said in str(found[0].federation.statement)
    for way in ("path", "text frame", "concatenated frames", "read_csv of strings", "objects", "categories", "parquet"):
        one = seen(WAYS[way](tmp_path, [*ZEROS, ("x", "n/k", "9")], CODES), CODES, "who")
        assert [row[1] for row in content(one.tables["site-000"])] == [0, 1, 2], way
        assert not one.federation.statement.typed_elsewhere
        assert said not in str(one.federation.statement)


def test_labels_that_look_like_numbers_are_read_alike_also_where_pandas_has_guessed(tmp_path):
    schema, records, more, _ = SIGNS
    for rows in (records, [*records, more]):
        table = seen(guessed(tmp_path, rows), schema).tables["site-000"]
        assert [row[1] for row in content(table)] == [0, 1, 2]


def test_what_has_types_is_what_is_read(tmp_path):
    """Columns that no column of the schema reads, and no person, may have any type; encoded tables have none."""
    path = csv_file(tmp_path, ZEROS)
    frame = fs.read_table(path)
    extra = frame.assign(more=[1, 2])
    assert not seen(extra, CODES).federation.typed_elsewhere
    assert seen(extra.assign(who=[1, 2]), CODES, "who").federation.typed_elsewhere
    assert seen({"north": frame, "south": frame.assign(a=[7, 10])}, CODES).federation.typed_elsewhere
    assert not seen(encoding.encode(CODES, frame.assign(a=[7, 10])), CODES).federation.typed_elsewhere
    budget = fs.Budget(1, 1e-6)
    assert fs.federate([frame.assign(a=[7, 10])], CODES, budget, trust=LocalNoise()).typed_elsewhere
    assert not fs.federate([frame], CODES, budget, trust=LocalNoise()).typed_elsewhere
    pq.write_table(pa.table({"row": ["r0"], "a": [7]}), tmp_path / "rows.parquet")
    assert not seen(tmp_path / "rows.parquet", CODES).federation.typed_elsewhere
    assert not seen(tmp_path / "rows.parquet", CODES, "a").federation.typed_elsewhere


# ---------------------------------------------------------------------------------------------------------------------
# Splits


FRAMES: dict[str, Way] = {
    **{
        way: WAYS[way]
        for way in sorted(set(WAYS) - {"path", "parquet", "arrow", "typed frame", "typed frame of parquet"})
    },
    "values": lambda folder, records, schema: typed_values(records),
}
VALUES: list[Any] = [
    0, 1, 2**60, -3, 1.0, 2.5, float("nan"), float("inf"), True, False, None, pd.NA, pd.NaT, "1", "", b"1", b"\xff",
    Decimal("1.00"), pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-02", tz="UTC"), [1], {"a": 1}, (1, 2),
    np.float32(0.1), 10**5000, -(10**5000), pd.Timedelta(1), 1j, {1},
]  # fmt: skip


def typed_values(records: Sequence[Record]) -> pd.DataFrame:
    """Values of any kind in place of the records' cells, in columns of the types that pandas chooses for them."""
    values = [VALUES[(CELLS.index(record[1]) if record[1] in CELLS else 0) % len(VALUES)] for record in records]
    return pd.DataFrame(
        {"row": [row[0] for row in records], "a": series(values, None), "who": [row[2] for row in records]}
    )


def check_split(case: Case, way: str, share: float, seed: int, person: str, twice: int) -> None:
    schema, records, more, at = case
    records = records * twice  # equal rows
    cell = records[0][1] if records else more[1]
    records += [(f"f{number}", cell, f"p{number}") for number in range(80)]  # else a side might have no rows
    held = []
    with tempfile.TemporaryDirectory() as name:
        for rows in (records, [*records[:at], more, *records[at:]]):
            frame = FRAMES[way](Path(name), rows, schema)
            held.append([Counter(part["row"]) for part in fs.split(frame, share, person=person, seed=seed)])
    without, with_more = held
    assert not (without[0] - with_more[0]) + (without[1] - with_more[1]), (records, way)
    assert (with_more[0] - without[0]) + (with_more[1] - without[1]) == Counter(["x"])


@searched(200)
@given(
    case=cases(), way=st.sampled_from(sorted(FRAMES)), share=st.sampled_from([0.1, 0.5, 0.9]), seed=st.integers(0, 9),
    person=st.sampled_from(["", "who"]), twice=st.integers(1, 3),
)  # fmt: skip
@example(case=(*SIGNS[:3], 0), way="text frame", share=0.5, seed=0, person="", twice=3)
def test_one_row_more_moves_no_other_of_a_split(case, way, share, seed, person, twice):
    check_split(case, way, share, seed, person, twice)


@pytest.mark.slow
@searched(5000)
@given(
    case=cases(), way=st.sampled_from(sorted(FRAMES)), share=st.sampled_from([0.1, 0.5, 0.9]), seed=st.integers(0, 9),
    person=st.sampled_from(["", "who"]), twice=st.integers(1, 3),
)  # fmt: skip
def test_one_row_more_moves_no_other_of_a_split_5000_times(case, way, share, seed, person, twice):
    check_split(case, way, share, seed, person, twice)


def test_splits_of_equal_rows_are_even_and_of_one_seed_the_same():
    frame = pd.DataFrame({"a": ["1"] * 20_000, "b": [0.5] * 20_000})
    held = fs.split(frame, 0.25, seed=3)[1]
    assert len(held) == pytest.approx(5000, abs=250)  # four standard deviations
    pd.testing.assert_frame_equal(fs.split(frame.astype(object), 0.25, seed=3)[1], held, check_dtype=False)
    assert len({len(fs.split(frame, 0.25)[1]) for _ in range(5)}) > 1
    again = fs.split(frame.assign(a=b"1"), 0.25, seed=3)[1]
    assert again.index.tolist() == held.index.tolist()  # bytes are text
