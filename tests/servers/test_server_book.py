"""A compute server's book: what it charges, refuses and says again, in memory and as a file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.three_servers_world import World, draw_of, open_of

from fedsynth.cli.app import main
from fedsynth.errors import BudgetExceeded, FedsynthError, Refused
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Deposit
from fedsynth.servers.host import LEDGER, charged_questions, open_ledger
from fedsynth.servers.shares import SERVERS

Books = tuple[Book, ...]


@pytest.fixture(params=["memory", "file"])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Books:
    if request.param == "memory":
        return tuple(Book() for _ in range(SERVERS))
    return tuple(Book(folder_of(tmp_path, number) / LEDGER) for number in range(SERVERS))


def folder_of(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / f"server-{number}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def test_a_question_is_charged_once_and_in_its_turn(books: Books):
    world = World(books=books)
    vault = world.filled()
    assert world.spent(vault) == [(0, 0)] * SERVERS
    world.ideal.open(open_of(vault, (0,), rho=0.1))
    world.ideal.open(open_of(vault, (0,), rho=0.1))
    world.ideal.open(open_of(vault, (1,), rho=0.2, number=1))
    other = World(books=books)
    second = other.begin(other.request(step=1))
    other.ideal.keep(second, ())
    for question in (open_of(vault, (1,)), open_of(vault, (0,), number=1), open_of(vault, (0,), number=3)):
        with pytest.raises(Refused, match=r"differs from the one|out of order"):
            world.ideal.open(question)
    assert world.spent(vault) == [(2, 0.1 + 0.2)] * SERVERS
    other.ideal.open(open_of(second, (1,), rho=0.5))
    assert other.spent(second) == [(1, 0.5)] * SERVERS


def test_of_two_questions_of_one_number_the_book_charges_the_first(books: Books):
    """Both are asked before either is charged, as by two processes over one book."""
    first, later = World(books=books), World(books=books)
    vault = first.filled()
    assert later.filled() == vault
    asked = [
        (world, [server.ask(question) for server in world.parties])
        for world, question in ((first, open_of(vault, (0,))), (later, open_of(vault, (1,))))
    ]
    for server in first.parties:
        server.agree(asked[0][1])
        server.agree(asked[0][1])
    for server in later.parties:
        with pytest.raises(Refused, match="differs from the one charged under that number, or leaves out an earlier"):
            server.agree(asked[1][1])
    assert first.spent(vault) == [(1, 0.1)] * SERVERS


def test_what_was_written_first_stays(books: Books):
    world = World(books=books)
    vault = world.filled()
    world.ideal.open(open_of(vault, (0,)))
    for server in world.parties:
        first = server.replied(open_of(vault, (0,)))
        assert first is not None
        assert server.answered(b"another answer") == first
    assert world.parties[0].replied(open_of(vault, (0,), number=1)) is None


def test_the_deposits_of_a_run_add_up_and_count_once(books: Books):
    world = World(budget=Budget(1.0, 0.0), books=books)
    first = world.request(release=Deposit(epsilon=0.25))
    assert world.begin(first) == world.begin(first)
    world.begin(world.request(release=Deposit(epsilon=0.5), step=1))
    assert [book.spent("run").epsilon for book in books] == [0.75] * SERVERS
    with pytest.raises(BudgetExceeded, match="of this run exceed the budget in this server's terms"):
        world.begin(world.request(release=Deposit(epsilon=0.3), step=2))
    world.begin(world.request(release=Deposit(epsilon=0.25), step=3))
    world.begin(world.request(release=Deposit(epsilon=1.0), run="other"))
    assert [book.spent("other").epsilon for book in books] == [1.0] * SERVERS


def test_a_deposit_that_was_charged_is_refused_once_the_terms_are_narrower(books: Books):
    request = World(budget=Budget(1.0, 0.0), books=books).request(release=Deposit(epsilon=0.8))
    vault = World(budget=Budget(1.0, 0.0), books=books).begin(request)
    narrower = World(budget=Budget(0.5, 0.0), books=books)
    with pytest.raises(BudgetExceeded, match="of this run exceed the budget in this server's terms"):
        narrower.begin(request)
    assert World(budget=Budget(1.0, 0.0), books=books).begin(request) == vault


def test_a_run_without_noise_has_no_limit(books: Books):
    world = World(budget=Budget.none(), exact=True, books=books)
    vault = world.filled(release=Deposit())
    for number in range(2):
        world.ideal.draw(draw_of(vault, (0,), (1,), number=number))
    assert world.spent(vault) == [(2, 0.0)] * SERVERS


def filled(tmp_path: Path) -> tuple[World, str]:
    world = World(books=tuple(Book(folder_of(tmp_path, number) / LEDGER) for number in range(SERVERS)), questions=3)
    vault = world.filled()
    for number in range(3):
        world.ideal.open(open_of(vault, (0,), number=number))
    with pytest.raises(BudgetExceeded, match="at most 3 questions"):
        world.ideal.open(open_of(vault, (0,), number=3))
    return world, vault


def test_a_file_is_its_owners_and_outlives_the_process(tmp_path: Path):
    before, vault = filled(tmp_path)
    folder = folder_of(tmp_path, 0)
    assert (folder / LEDGER).stat().st_mode & 0o777 == 0o600
    charged = charged_questions(folder)
    assert [(row["vault"], row["number"], row["price"]) for row in charged] == [(vault, n, 0.1) for n in range(3)]
    world = World(books=tuple(open_ledger(folder_of(tmp_path, number)) for number in range(SERVERS)), questions=1)
    assert world.filled() == vault
    assert world.spent(vault) == before.spent(vault) == [(3, 0.1 + 0.1 + 0.1)] * SERVERS
    for number in range(3):  # charged before, though the operator allows fewer now
        world.ideal.open(open_of(vault, (0,), number=number))
    assert charged_questions(folder) == charged
    with pytest.raises(FedsynthError, match="is missing"):
        open_ledger(tmp_path)
    (folder / LEDGER).write_bytes(b"")
    with pytest.raises(FedsynthError, match="or empty, and without its ledger"):
        open_ledger(folder)
    assert not (folder / LEDGER).stat().st_size
    (folder_of(tmp_path, 1) / LEDGER).chmod(0o640)
    with pytest.raises(FedsynthError, match="can be read by other users"):
        open_ledger(folder_of(tmp_path, 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM audit WHERE row = 2", "row 3 does not follow"),
        ("DELETE FROM audit WHERE row = 4", "row 4 is not the charge of the question that refers to it"),
        ("UPDATE audit SET content = CAST(replace(content, '0.1', '0.0') AS BLOB) WHERE row = 2", "row 2 has another"),
        ("DELETE FROM questions WHERE row = 4", "row 4 charges a question that is not in the account"),
        ("UPDATE parts SET value = x'00' WHERE part LIKE '%reply 1'", "checksum is wrong"),
    ],
)
def test_a_file_that_was_edited_shows_it(tmp_path: Path, change: str, says: str):
    filled(tmp_path)
    folder = folder_of(tmp_path, 0)
    edited = sqlite3.connect(folder / LEDGER)
    assert edited.execute(change).rowcount == 1
    edited.commit()
    edited.close()
    with pytest.raises(FedsynthError, match=f"{says}.*keep the file as evidence, and stop this server"):
        charged_questions(folder)


def refused(use: Callable[[], object], says: str) -> None:
    with pytest.raises(FedsynthError, match=says):
        use()


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    folder = folder_of(tmp_path, 0)
    (folder / LEDGER).write_bytes(b"no database " * 100)
    (folder / LEDGER).chmod(0o600)
    refused(lambda: open_ledger(folder), "damaged")
    (folder / LEDGER).unlink()
    other = sqlite3.connect(folder / LEDGER)
    other.execute("PRAGMA user_version = 9")
    other.close()
    (folder / LEDGER).chmod(0o600)
    refused(lambda: open_ledger(folder), "of this version")


def test_an_older_copy_at_one_server_shows_at_the_next_question(tmp_path: Path):
    world, vault = filled(tmp_path)
    path = folder_of(tmp_path, 0) / LEDGER
    old = path.read_bytes()
    allowed = World(books=world.books)
    assert allowed.filled() == vault
    allowed.ideal.open(open_of(vault, (0,), number=3))
    path.write_bytes(old)
    restored = World(books=world.books)
    assert restored.filled() == vault
    with pytest.raises(Refused, match="question 4 of this vault is out of order: 3 were answered so far"):
        restored.ideal.open(open_of(vault, (1,), number=4))
    assert world.spent(vault) == [(3, 0.1 + 0.1 + 0.1), *[(4, 0.1 + 0.1 + 0.1 + 0.1)] * 2]


def test_the_command_lists_what_was_charged_and_its_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _, vault = filled(tmp_path)
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["account", str(folder_of(tmp_path, 0))])
    *listed, last = capsys.readouterr().out.splitlines()
    assert [line.split("vault ")[1] for line in listed] == [f"{vault[:12]}  question   {n}  0.1" for n in range(3)]
    assert last == "3 questions, 0.3 in all; the audit is intact"
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["account", str(folder_of(tmp_path, 1)), "--json"])
    audit = json.loads(capsys.readouterr().out)["audit"]
    assert [set(row) for row in audit] == [{"time", "vault", "number", "question", "price"}] * 3
