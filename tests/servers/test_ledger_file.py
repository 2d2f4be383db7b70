"""A compute server's ledger: what it charges, refuses and says again, in memory and as a file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused
from fedsynth.servers.ledger_file import ServerLedgerFile
from fedsynth.servers.server import MemoryLedger, ServerLedger


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        yield MemoryLedger()
        return
    made = ServerLedgerFile(tmp_path / "ledger.sqlite", 64, make=True)
    yield made
    made.close()


def test_a_question_is_charged_once_and_in_its_turn(ledger: ServerLedger):
    assert ledger.spent("vault") == (0, 0)
    ledger.charge("vault", 0, "a", 0.1)
    ledger.charge("vault", 0, "a", 0.1)
    ledger.charge("vault", 1, "b", 0.2)
    ledger.charge("other", 0, "b", 0.5)
    for number, question in ((0, "b"), (1, "a"), (3, "c")):
        with pytest.raises(Refused, match="leaves out an earlier number"):
            ledger.charge("vault", number, question, 0.1)
    assert ledger.spent("vault") == (2, 0.1 + 0.2)
    assert ledger.spent("other") == (1, 0.5)


def test_what_was_written_first_stays(ledger: ServerLedger):
    assert ledger.said("key") is None
    assert ledger.first("key", b"one") == b"one"
    assert ledger.first("key", b"two") == b"one"
    assert ledger.said("key") == b"one"


def test_the_deposits_of_a_run_add_up_and_count_once(ledger: ServerLedger):
    assert ledger.deposit("run", "first", 0.25) == 0.25
    assert ledger.deposit("run", "first", 0.25) == 0.25
    assert ledger.deposit("run", "second", 0.5) == 0.75
    assert ledger.deposit("other", "third", 1.0) == 1.0


def filled(path: Path) -> None:
    ledger = ServerLedgerFile(path, 3, make=True)
    for number in range(3):
        ledger.charge("vault", number, f"question {number}", 0.1)
    with pytest.raises(BudgetExceeded, match="3 questions"):
        ledger.charge("vault", 3, "one more", 0.1)
    ledger.first("reply", b"share")
    ledger.close()


def test_a_file_is_its_owners_and_outlives_the_process(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    filled(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        ServerLedgerFile(path, 3, make=True)
    ledger = ServerLedgerFile(path, 3)
    assert ledger.spent("vault") == (3, 0.1 + 0.1 + 0.1)
    assert ledger.said("reply") == b"share"
    assert [(row.row, row.number) for row in ledger.audit()] == [(1, 0), (2, 1), (3, 2)]
    ledger.charge("vault", 2, "question 2", 0.1)
    assert len(ledger.audit()) == 3
    ledger.close()
    with pytest.raises(FedsynthError, match="is missing"):
        ServerLedgerFile(tmp_path / "none.sqlite", 3)


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
    ledger = ServerLedgerFile(path, 3)
    with pytest.raises(FedsynthError, match=says):
        ledger.audit()
    ledger.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database " * 100)
    with pytest.raises(FedsynthError, match="damaged"):
        ServerLedgerFile(path, 3)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(FedsynthError, match="of this version"):
        ServerLedgerFile(tmp_path / "other.sqlite", 3)
