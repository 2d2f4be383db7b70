"""Three compute servers as real processes: the bits of one process, whatever dies, whatever a coordinator asks."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("mpyc", reason="the extra 'mpc' is not installed")

from tests.servers.compute_world import (
    Processes,
    agreement,
    connections_of,
    deployed,
    ideal,
    servers_of,
    set_up,
    small_tables,
)

from fedsynth import Budget
from fedsynth.errors import BudgetExceeded, FedsynthError, Refused, SiteLost
from fedsynth.federation.events import DealtShares
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Counts
from fedsynth.federation.wire import decode, encode
from fedsynth.keys import Keys
from fedsynth.methods.aim import AIM
from fedsynth.privacy.release import Exponential, Gaussian
from fedsynth.servers.calls import Agree, Answered, AnyCall, AnyResult, Ask, Asked, Begin, Done, Failure, Keep
from fedsynth.servers.host import LEDGER, TERMS, agree, open_ledger
from fedsynth.servers.links import connect, receive
from fedsynth.servers.questions import MOST_PENALTY, MOST_WEIGHT, OpenTables, SelectTable
from fedsynth.servers.remote import RemoteServers
from fedsynth.servers.vault import Servers, SharedVault

BUDGET = Budget(1.0, 1e-6)
TABLES, SCHEMA = small_tables()
PAIRS = ((0, 1), (0, 2), (1, 2))


def fitted(federation: Federation) -> tuple[str, object]:
    """Return what a run left in the ledger, and the rows that it drew."""
    found = AIM(rounds=3).fit(federation).sample(50, np.random.default_rng(0))
    return str(federation.ledger.entries), found.to_dict()


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[tuple[Federation, SharedVault, Processes]]:
    """Give three servers that hold a vault, of which no question was asked yet but those of other tests."""
    with deployed(tmp_path_factory.mktemp("servers"), TABLES, SCHEMA, BUDGET, questions=12) as (build, processes):
        federation = build()
        vault = federation.deposit(Counts.of(3, PAIRS), 1.0)
        assert isinstance(vault, SharedVault)
        yield federation, vault, processes


def opening(vault: SharedVault, number: int, rho: float = 1e-4, cliques=((0,),)) -> OpenTables:
    return OpenTables(vault.question.digest, number, cliques, Gaussian(rho))


def drawing(vault: SharedVault, number: int, **other: object) -> SelectTable:
    asked = SelectTable(
        vault.question.digest,
        number,
        ((0,), (1,)),
        np.full(6, 100, dtype=np.int32),
        np.array([1, 2], dtype=np.int32),
        np.array([0, 3], dtype=np.int32),
        Exponential(1e-4),
    )
    return msgspec.structs.replace(asked, **other)


def next_number(vault: SharedVault, processes: Processes) -> int:
    return len([row for row in processes.charged(0) if row[0] == vault.question.digest])


def each(servers: Servers, call: AnyCall) -> list[AnyResult]:
    """Return what each server says to the same call, as a hostile coordinator hears it."""
    return servers._call([call] * 3)


def one(federation: Federation, number: int, frame: bytes) -> AnyResult:
    """Return what one server says to a call, as a hostile coordinator hears it."""
    found: AnyResult = decode(connections_of(federation).one(number, frame), AnyResult)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Whole runs


@pytest.mark.deployment
def test_a_run_over_processes_has_the_bits_of_the_ideal_functionality(tmp_path):
    wanted = fitted(ideal(TABLES, SCHEMA, BUDGET))
    with deployed(tmp_path, TABLES, SCHEMA, BUDGET) as (build, processes):
        assert fitted(build()) == wanted
        assert len(processes.charged(0)) == 7  # all columns at once, three draws, three tables
        assert processes.charged(0) == processes.charged(1) == processes.charged(2)
        # Once more, from the beginning: everything is answered as it was, and nothing is charged.
        assert fitted(build()) == wanted
        assert len(processes.charged(0)) == 7


@pytest.mark.deployment
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_server_that_is_killed_within_a_round_is_named_and_the_run_resumes(tmp_path, number):
    wanted = fitted(ideal(TABLES, SCHEMA, BUDGET))
    with deployed(tmp_path, TABLES, SCHEMA, BUDGET) as (build, processes):
        killed = threading.Event()

        def kill() -> None:
            while len(processes.charged(number)) < 4:  # the second draw is charged, and under way
                time.sleep(0.01)
            processes.kill(number)
            killed.set()

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(SiteLost, match=f"server {number + 1}"):
            fitted(build())
        thread.join()
        assert killed.is_set()
        with pytest.raises(
            SiteLost, match=f"no answer from server {number + 1}"
        ):  # still dead: nothing is asked of two
            fitted(build())
        before = processes.charged(number)
        assert len(before) in (4, 5)
        processes.start(number)
        assert fitted(build()) == wanted
        assert processes.charged(0) == processes.charged(1) == processes.charged(2)
        assert processes.charged(number)[: len(before)] == before
        assert len(processes.charged(0)) == 7


@pytest.mark.deployment
def test_a_server_that_hangs_is_named(tmp_path):
    with deployed(tmp_path, TABLES, SCHEMA, BUDGET) as (build, processes):
        federation = build()
        vault = federation.deposit(Counts.of(3, PAIRS), 1.0)
        connections_of(federation).timeout = 15  # that the two others keep on a busy machine
        connections_of(federation).close()
        processes.running[1].send_signal(signal.SIGSTOP)
        with pytest.raises(SiteLost, match=r"no answer from server 2 at"):
            vault.open(Counts.of(3, ((0,),)), 0.1)
        processes.running[1].send_signal(signal.SIGCONT)
        assert [processes.charged(number) for number in range(3)] == [[], [], []]


@pytest.mark.deployment
def test_a_server_ends_whichever_thread_the_kernel_gives_the_signal_to(world):
    """A signal is kept for the thread that waits for it if all others block it."""
    pid = world[2].running[0].pid
    others = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    assert others
    for task in others:
        blocked = int((task / "status").read_text().split("SigBlk:")[1].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT))


# ---------------------------------------------------------------------------------------------------------------------
# A hostile coordinator


def test_what_was_answered_is_answered_again_and_charged_once(world):
    federation, vault, processes = world
    servers, number = servers_of(federation), next_number(vault, processes)
    question = drawing(vault, number)
    drawn = servers.draw(question)
    assert [len(processes.charged(server)) for server in range(3)] == [number + 1] * 3
    assert servers.draw(question) == drawn
    following = opening(vault, number + 1)
    opened = servers.open(following)
    assert np.array_equal(servers.open(following), opened)
    assert servers.draw(question) == drawn  # an older one, too
    assert [len(processes.charged(server)) for server in range(3)] == [number + 2] * 3


def test_an_extra_opening_is_refused_by_each_server(world):
    federation, vault, processes = world
    servers, number = servers_of(federation), next_number(vault, processes)
    with pytest.raises(BudgetExceeded, match="deposited"):
        servers.open(opening(vault, number, rho=1.0))
    for other in (number + 1, max(0, number - 1)):  # one that skips a number, and another one of an old number
        with pytest.raises(Refused, match=r"out of order|differs from the one"):
            servers.open(opening(vault, other, cliques=((0,), (1,), (2,))))
    found = each(servers, Ask(opening(vault, number, rho=1.0)))
    assert [isinstance(one, Failure) and one.code for one in found] == ["spent"] * 3
    assert next_number(vault, processes) == number


@pytest.mark.parametrize(
    "other",
    [
        {"weights": np.array([1, MOST_WEIGHT + 1], dtype=np.int32)},
        {"weights": np.array([0, 1], dtype=np.int32)},
        {"penalties": np.array([-1, 0], dtype=np.int32)},
        {"penalties": np.array([0, MOST_PENALTY + 1], dtype=np.int32)},
        {"expected": np.array([-1, 0, 0, 0, 0, 0], dtype=np.int32)},
        {"expected": np.zeros(5, dtype=np.int32)},
        {"release": Exponential(1e-300)},
    ],
)
def test_inputs_that_would_wrap_are_refused_by_each_server(world, other):
    federation, vault, processes = world
    servers, number = servers_of(federation), next_number(vault, processes)
    found = each(servers, Ask(drawing(vault, number, **other)))
    assert [isinstance(one, Failure) and one.code for one in found] == ["refused"] * 3
    assert next_number(vault, processes) == number


def test_another_question_or_statement_at_one_server_opens_nothing(world):
    federation, vault, processes = world
    servers, number = servers_of(federation), next_number(vault, processes)
    asked = [Ask(opening(vault, number)), Ask(opening(vault, number)), Ask(opening(vault, number, cliques=((1,),)))]
    statements = tuple(one.statement for one in servers._call(asked) if isinstance(one, Asked))
    found = each(servers, Agree(statements, bytes(16)))
    assert [isinstance(one, Failure) and one.code for one in found] == ["refused"] * 3
    # A statement that says of the sites what the coordinator likes is not signed by the server.
    asked = [Ask(opening(vault, number))] * 3
    statements = tuple(one.statement for one in servers._call(asked) if isinstance(one, Asked))
    fewer = msgspec.structs.replace(statements[1].statement, sites=statements[1].statement.sites[:1])
    forged = (statements[0], msgspec.structs.replace(statements[1], statement=fewer), statements[2])
    found = each(servers, Agree(forged, bytes(16)))
    assert [isinstance(one, Failure) and one.code for one in found] == ["refused"] * 3
    twice = (statements[0], statements[0], statements[0])
    assert all(isinstance(one, Failure) for one in each(servers, Agree(twice, bytes(16))))
    assert next_number(vault, processes) == number
    assert all(isinstance(one, Answered) for one in each(servers, Agree(statements, bytes(16))))


@pytest.mark.deployment
def test_other_sites_at_one_server_between_question_and_answer_open_nothing(tmp_path):
    with deployed(tmp_path, TABLES, SCHEMA, BUDGET) as (build, processes):
        federation = build()
        servers = servers_of(federation)
        began: list[Begin] = []
        begin = servers.begin

        def remembered(vault: str, agreement: bytes, body: bytes, signature: bytes) -> None:
            agreed, asked = (np.frombuffer(part, dtype=np.uint8) for part in (agreement, body))
            began.append(Begin(vault, agreed, asked, signature))
            begin(vault, agreement, body, signature)

        servers.begin = remembered  # type: ignore[method-assign]
        vault = federation.deposit(Counts.of(3, PAIRS), 1.0)
        assert isinstance(vault, SharedVault)
        question = drawing(vault, 0)
        statements = tuple(one.statement for one in each(servers, Ask(question)) if isinstance(one, Asked))
        # Server 3 lets nobody in once more, and would then score other shares than the two others.
        assert isinstance(one(federation, 2, encode(began[0])), Done)
        assert isinstance(one(federation, 2, encode(Keep(vault.question.digest, ()))), Done)
        found = one(federation, 2, encode(Agree(statements, bytes(16))))
        assert isinstance(found, Failure)
        assert (found.code, "sites have changed" in found.reason) == ("refused", True)
        assert processes.charged(2) == []


@pytest.mark.deployment
def test_no_more_questions_than_a_server_agreed_to_and_other_sites_at_one_server(tmp_path):
    with deployed(tmp_path, TABLES, SCHEMA, BUDGET, questions=2) as (build, processes):
        federation = build()
        vault = federation.deposit(Counts.of(3, PAIRS), 1.0)
        assert isinstance(vault, SharedVault)
        servers = servers_of(federation)
        for number in range(2):
            servers.open(opening(vault, number))
        with pytest.raises(BudgetExceeded, match="at most 2 questions about one vault"):
            servers.open(opening(vault, 2))
        assert [len(processes.charged(number)) for number in range(3)] == [2] * 3


def test_a_ledger_that_was_lost_is_not_made_anew(tmp_path):
    agreed = agreement(Keys(bytes(32)), SCHEMA, {"site-0": bytes(32)}, BUDGET)
    set_up(tmp_path, [bytes([number]) * 32 for number in range(3)], agreed)
    folder = tmp_path / "server-0"
    agree(folder, agreed)
    assert open_ledger(folder).head()[0] == 0
    (folder / LEDGER).unlink()
    with pytest.raises(FedsynthError, match=r"ledger.sqlite is missing or empty, .* restore its newest backup"):
        agree(folder, agreed)
    assert not (folder / LEDGER).exists()


def test_terms_are_accepted_again_after_an_interruption_while_the_ledger_was_made(tmp_path):
    agreed = agreement(Keys(bytes(32)), SCHEMA, {"site-0": bytes(32)}, BUDGET)
    set_up(tmp_path, [bytes([number]) * 32 for number in range(3)], agreed)
    folder = tmp_path / "server-0"
    for name in (TERMS, LEDGER):
        (folder / name).unlink()
    (folder / LEDGER).touch(0o600)
    agree(folder, agreed)
    assert open_ledger(folder).head()[0] == 0


@pytest.mark.deployment
def test_a_deal_that_differs_between_servers_leaves_its_site_out_everywhere(tmp_path):
    with deployed(tmp_path, TABLES, SCHEMA, BUDGET) as (build, _):
        federation = build()
        servers = servers_of(federation)
        taken = servers.take

        def tampered(vault: str, site: str, dealt: DealtShares) -> bool:
            if site == "site-1":
                body = dealt.body.copy()
                body[100] ^= 1
                dealt = msgspec.structs.replace(dealt, body=body)
            return taken(vault, site, dealt)

        servers.take = tampered  # type: ignore[method-assign]
        vault = federation.deposit(Counts.of(3, PAIRS), 1.0)
        assert vault.sites == ("site-0", "site-2")
        assert federation.lost == ["site-1"]
        (table,), _ = vault.open(Counts.of(3, ((0,),)), 0.5)
        assert abs(table.sum() - 800) < 200


def test_who_has_no_key_is_not_answered(world):
    _, _, processes = world
    card = processes.cards[0]
    stranger = RemoteServers(processes.cards, Keys(bytes(32)), timeout=20)
    with pytest.raises(SiteLost, match=r"no answer from server 1 .*server 2 .*server 3 "):
        Servers(stranger).keep("0" * 64, ())
    stranger.close()
    with connect(card, os.urandom(32), 20) as other, pytest.raises(OSError):  # a certificate of nobody  # noqa: PT011
        receive(other)
    elsewhere = replace_card(processes, 0, 1)
    with pytest.raises(OSError, match=r"certificate"):  # server 2 where server 1 was pinned
        connect(elsewhere, None, 20)


def replace_card(processes: Processes, of: int, at: int):
    return msgspec.structs.replace(processes.cards[of], address=processes.cards[at].address)


def test_bytes_that_are_no_call_are_refused_and_the_next_one_is_answered(world):
    federation, vault, processes = world
    servers, number = servers_of(federation), next_number(vault, processes)
    each(servers, Ask(opening(vault, number)))
    for frame in (b"", b"\x80\x04\x95.", os.urandom(100), encode(Ask(opening(vault, number))) + b"\0"):
        assert isinstance(one(federation, 0, frame), Failure)
    assert isinstance(one(federation, 0, encode(Ask(opening(vault, number)))), Asked)


def test_old_versions_of_tls_are_not_spoken(world):
    _, _, processes = world
    host, port = processes.cards[0].address.split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, int(port)), timeout=30) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw)


def test_secret_and_ledger_are_their_owners_alone(world):
    _, _, processes = world
    for name in ("secret.key", "ledger.sqlite"):
        path = processes.folder(0) / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
