"""A compute server's ledger: what it charges, refuses and says again, in memory and as a file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused
from fedsynth.federation.trust.three_servers.book import BookFile
from fedsynth.federation.trust.three_servers.server import Book, MemoryBook


@pytest.fixture(params=["memory", "file"])
def book(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        yield MemoryBook()
        return
    made = BookFile(tmp_path / "ledger.sqlite", 64, make=True)
    yield made
    made.close()


def test_a_question_is_charged_once_and_in_its_turn(book: Book):
    assert book.spent("vault") == (0, 0)
    book.charge("vault", 0, "a", 0.1)
    book.charge("vault", 0, "a", 0.1)
    book.charge("vault", 1, "b", 0.2)
    book.charge("other", 0, "b", 0.5)
    for number, question in ((0, "b"), (1, "a"), (3, "c")):
        with pytest.raises(Refused, match="leaves out an earlier number"):
            book.charge("vault", number, question, 0.1)
    assert book.spent("vault") == (2, 0.1 + 0.2)
    assert book.spent("other") == (1, 0.5)


def test_what_was_written_first_stays(book: Book):
    assert book.said("key") is None
    assert book.first("key", b"one") == b"one"
    assert book.first("key", b"two") == b"one"
    assert book.said("key") == b"one"


def test_the_deposits_of_a_run_add_up_and_count_once(book: Book):
    assert book.deposit("run", "first", 0.25) == 0.25
    assert book.deposit("run", "first", 0.25) == 0.25
    assert book.deposit("run", "second", 0.5) == 0.75
    assert book.deposit("other", "third", 1.0) == 1.0


def filled(path: Path) -> None:
    book = BookFile(path, 3, make=True)
    for number in range(3):
        book.charge("vault", number, f"question {number}", 0.1)
    with pytest.raises(BudgetExceeded, match="3 questions"):
        book.charge("vault", 3, "one more", 0.1)
    book.first("reply", b"share")
    book.close()


def test_a_file_is_its_owners_and_outlives_the_process(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    filled(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        BookFile(path, 3, make=True)
    book = BookFile(path, 3)
    assert book.spent("vault") == (3, 0.1 + 0.1 + 0.1)
    assert book.said("reply") == b"share"
    assert [(row.row, row.number) for row in book.audit()] == [(1, 0), (2, 1), (3, 2)]
    book.charge("vault", 2, "question 2", 0.1)
    assert len(book.audit()) == 3
    book.close()
    with pytest.raises(FedsynthError, match="is missing"):
        BookFile(tmp_path / "none.sqlite", 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM audit WHERE row = 2", "row 2 of the audit"),
        ("DELETE FROM audit WHERE row = 3", "3 questions were charged, and the audit has 2"),
        ("UPDATE audit SET content = replace(content, '0.1', '0.0') WHERE row = 1", "row 1 of the audit"),
        ("DELETE FROM charges WHERE number = 2", "2 questions were charged, and the audit has 3"),
    ],
)
def test_a_file_that_was_edited_shows_it(tmp_path: Path, change: str, says: str):
    path = tmp_path / "ledger.sqlite"
    filled(path)
    edited = sqlite3.connect(path)
    edited.execute(change)
    edited.commit()
    edited.close()
    book = BookFile(path, 3)
    with pytest.raises(FedsynthError, match=says):
        book.audit()
    book.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database " * 100)
    with pytest.raises(FedsynthError, match="damaged"):
        BookFile(path, 3)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(FedsynthError, match="of this version"):
        BookFile(tmp_path / "other.sqlite", 3)
