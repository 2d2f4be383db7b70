"""A site that is killed at any moment, asked by several processes at once, or put back to an earlier day."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.world import (
    AGE,
    BUDGET,
    SEX,
    aggregator,
    answer_in,
    ask,
    counts,
    question,
    read,
    reply_of,
    rows_of,
    secure_sites,
    site,
    table,
    values,
)

from fedsynth.federation.site import Site, rows_digest
from fedsynth.federation.wire import Request
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.book_file import PartRecord, QuestionRecord, Records
from fedsynth.privacy.cost import Budget, Cost, Norms
from fedsynth.privacy.release import Gaussian
from fedsynth.secure.session import TURNS
from fedsynth.secure.site import SecureSum

FORK = multiprocessing.get_context("fork")

# ---------------------------------------------------------------------------------------------------------------------
# Processes


def killed(*args: Any, **options: Any) -> None:
    """End this process as a power cut would: nothing is cleaned up, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(method: str) -> Callable[[Any], None]:
    """Return what kills a site before a method of its account."""

    def arm(pipe: Any) -> None:
        setattr(Book, method, killed)

    return arm


def after(method: str) -> Callable[[Any], None]:
    """Return what kills a site after a method of its account has returned."""

    def arm(pipe: Any) -> None:
        whole = getattr(Book, method)

        def run(*args: Any, **options: Any) -> None:
            whole(*args, **options)
            killed()

        setattr(Book, method, run)

    return arm


def written(kind: type) -> Callable[[Any], None]:
    """Return what kills a site once its account has written a record of a kind, and before the transaction ends."""

    def arm(pipe: Any) -> None:
        whole = Records.put

        def put(records: Records, record: Any) -> None:
            whole(records, record)
            if isinstance(record, kind):
                killed()

        setattr(Records, "put", put)  # noqa: B010 - a method of another type

    return arm


def telling(pipe: Any) -> None:
    """Tell what would have been stored, and be killed before it is."""

    def store(account: Book, key: str, turn: int, reply: bytes, **_: Any) -> None:
        pipe.send_bytes(reply)
        killed()

    setattr(Book, "store", store)  # noqa: B010 - a method of another type


MOMENTS = {
    "before the first transaction": before("begin"),
    "in the first transaction": after("_append"),
    "at the end of the first transaction": written(QuestionRecord),
    "after the first transaction": after("begin"),
    "before the second transaction": telling,
    "in the second transaction": written(PartRecord),
    "after the second transaction": after("store"),
}


def dies(of: Site, message: Request, arm: Callable[[Any], None]) -> bytes:
    """Ask a site in a process that is killed; return what it told before."""
    near, far = FORK.Pipe()

    def run() -> None:
        arm(far)
        reply_of(of, message)

    process = FORK.Process(target=run)
    process.start()
    far.close()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    try:
        return near.recv_bytes() if near.poll() else b""
    except EOFError:
        return b""
    finally:
        near.close()


def at_once(jobs: Sequence[Callable[[], bytes]]) -> list[bytes]:
    """Run jobs in a process each, at one moment, and return what they return."""
    barrier = FORK.Barrier(len(jobs))
    pipes = []
    for job in jobs:
        near, far = FORK.Pipe()

        def run(job: Callable[[], bytes] = job, far: Any = far) -> None:
            barrier.wait(120)
            far.send_bytes(job())

        process = FORK.Process(target=run)
        process.start()
        far.close()
        pipes.append((process, near))
    found = []
    for process, near in pipes:
        found.append(near.recv_bytes())
        process.join(120)
        near.close()
    return found


def anew(of: Site) -> Site:
    """Return the site as another process opens it."""
    return replace(of, account=Book(of.account._file.path))


def answered(of: Site, message: Request) -> bytes:
    """Return the reply of a site that another process opens."""
    return reply_of(anew(of), message)


# ---------------------------------------------------------------------------------------------------------------------
# Killed


@pytest.mark.parametrize("verb", ["sum", "each"])
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_site_that_is_killed_answers_once(tmp_path, moment, verb):
    """Whenever a site is killed, the question is charged once, and its one answer is the one that may have left."""
    of, message = site(account=Book(tmp_path / "account.sqlite")), question(verb=verb)
    told = dies(of, message, moment)
    spent = anew(of).account.spent().rho
    replies = [reply_of(anew(of), message) for _ in range(3)]
    assert read(of, message, replies[0]).code == "answered"
    assert len(set(replies)) == 1
    assert told in (b"", answer_in(replies[0]))
    account = anew(of).account
    assert spent in (0, account.spent().rho)
    assert account.spent().rho == message.head.release.cost(Norms(1, 1)).rho
    assert len(account.charges()) == 1
    assert account.verify().wrong == ""


@pytest.mark.parametrize("verb", ["sum", "average"])
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_site_that_is_killed_while_it_trains_answers_once(tmp_path, moment, verb):
    """Likewise of a step of training, and of a round: the drawn rows and the noise are those of one charge."""
    pytest.importorskip("torch").set_num_threads(1)  # threads do not outlive a fork
    from tests.attacks.training_world import WEIGHTS, gradient_sum, local_training, training

    limit = Budget(20.0, 1e-6)
    of, message = site(budget=limit, account=Book(tmp_path / "account.sqlite")), training()
    if verb == "average":
        message = training(local_training())
    told = dies(of, message, moment)
    spent = anew(of).account.spent()
    replies = [reply_of(anew(of), message) for _ in range(3)]
    assert read(of, message, replies[0]).code == "answered"
    assert len(set(replies)) == 1
    assert told in (b"", answer_in(replies[0]))
    account = anew(of).account
    assert spent in (Cost(), account.spent())
    assert account.spent() == message.head.release.cost(Norms(1, 1))
    assert len(account.charges()) == 1
    assert account.verify().wrong == ""
    assert ask(anew(of), training(gradient_sum(WEIGHTS * 0), WEIGHTS * 0)).code == "answered"
    assert len(anew(of).account.charges()) == 2


@pytest.mark.parametrize("turn", range(len(TURNS)))
def test_a_secure_sum_outlives_a_site_that_is_killed(tmp_path, turn):
    """A member that is killed in any turn, at any moment, goes on with the keys and the noise that it had."""
    for number, moment in enumerate(MOMENTS.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        members = secure_sites(3, SecureSum(), folder)
        asked = question(counts((SEX,)), trust="secure", release=Gaussian(0.02))
        session, doors = aggregator(members, asked), {of.name: of for of in members}
        while events := session.ask():
            for name, event in events.items():
                message = asked.at(session.turn, event)
                told = b""
                if (session.turn, name) == (turn, "site-0"):
                    told = dies(doors[name], message, moment) if _comes(turn, number) else b""
                data = reply_of(anew(doors[name]), message)
                assert told in (b"", answer_in(data))
                reply = read(doors[name], message, data)
                assert reply.answer is not None
                session.receive(name, reply.answer)
        result = session.result()
        assert result is not None
        assert abs(result.values.sum() - sum(len(rows_of(of)) for of in members)) < 60
        for of in members:
            account = anew(of).account
            assert account.spent().rho == 0.02
            assert len(account.charges()) == 1
            assert account.verify().wrong == ""


def _comes(turn: int, moment: int) -> bool:
    """Whether a moment comes in a turn: audit rows and questions are written in the turns that open and charge."""
    return turn in (0, 2) or moment not in (1, 2)


def test_a_charge_is_not_answered_on_other_rows_or_terms(tmp_path):
    """What was charged and not yet answered is computed on its own rows and terms, or not at all."""
    of, message = site(account=Book(tmp_path / "account.sqlite")), question()
    told = dies(of, message, telling)
    fewer = table(39)
    changed = replace(anew(of), rows=fewer, rows_digest=rows_digest(of.secret, fewer.digest))
    assert ask(changed, message).answer is None
    assert answer_in(reply_of(anew(of), message)) == told


def test_terms_that_change_in_a_secure_sum_give_no_second_sample(tmp_path):
    """A member that was killed when it had masked its answer does not mask another one under other terms."""
    members = secure_sites(4, SecureSum(min_honest=4, dropouts=1), tmp_path)
    asked = question(counts((SEX,)), trust=SecureSum(min_honest=4, dropouts=1))
    session, doors = aggregator(members, asked), {of.name: of for of in members}
    while events := session.ask():
        message = asked.at(session.turn, events["site-0"])
        if session.turn == 2:
            break
        for name, event in events.items():
            reply = ask(doors[name], asked.at(session.turn, event))
            assert reply.answer is not None
            session.receive(name, reply.answer)
    of = doors["site-0"]
    told = dies(of, message, telling)
    trust = of.policy.trusts["secure"]
    assert isinstance(trust, SecureSum)
    for changed in (
        replace(trust, dropouts=0),
        trust.with_roster({**trust.roster, "site-9": Keys(b"9" * 32).identity}),
    ):
        other = replace(anew(of), policy=replace(of.policy, trusts={"secure": changed}))
        assert ask(other, message).code == "refused"
    assert answer_in(reply_of(anew(of), message)) == told


# ---------------------------------------------------------------------------------------------------------------------
# At once


def test_processes_that_are_asked_at_once_give_one_answer(tmp_path):
    """Six processes are asked the same at one moment: one charge, one salt, the same bytes."""
    of, message = site(account=Book(tmp_path / "account.sqlite")), question()
    replies = at_once([partial(answered, of, message)] * 6)
    assert len(set(replies)) == 1
    assert read(of, message, replies[0]).code == "answered"
    assert len(of.account.charges()) == 1
    assert of.account.verify().wrong == ""


def test_processes_on_two_snapshots_give_no_difference(tmp_path):
    """Of two processes that opened different rows, one answers the run; the other says nothing of its rows."""
    of, message = site(account=Book(tmp_path / "account.sqlite")), question()
    fewer = table(39)
    other = replace(of, rows=fewer, rows_digest=rows_digest(of.secret, fewer.digest))
    replies = at_once([partial(answered, which, message) for which in (of, other) * 2])
    answers = [data for data in replies if read(of, message, data).answer is not None]
    assert len(set(answers)) == 1
    assert len(of.account.charges()) == 1


def test_processes_never_spend_more_than_the_limit_together(tmp_path):
    """Eight questions at one moment, of which the limit pays for four."""
    of = site(account=Book(tmp_path / "account.sqlite"))
    asked = [question(release=Gaussian(BUDGET.rho / 4), step=step) for step in range(8)]
    replies = at_once([partial(answered, of, message) for message in asked])
    codes = [read(of, message, data).code for message, data in zip(asked, replies, strict=True)]
    assert sorted(codes) == ["answered"] * 4 + ["spent"] * 4
    assert of.account.spent().rho == pytest.approx(BUDGET.rho)
    assert of.account.verify().wrong == ""


# ---------------------------------------------------------------------------------------------------------------------
# Put back


def test_a_backup_that_is_put_back_answers_nothing_that_it_has_forgotten(tmp_path):
    """A site whose account lost a charge refuses a server that saw it, until the steward has written it off."""
    path = tmp_path / "account.sqlite"
    of, first, second = site(account=Book(path)), question(), question(step=1)
    assert ask(of, first).answer is not None
    shutil.copy(path, tmp_path / "backup")
    noisy = ask(of, second)
    shutil.copy(tmp_path / "backup", path)
    back = anew(of)
    for message in (first, second, question(step=2)):
        data = reply_of(back, message, noisy.seen)
        assert read(of, message, data).code == "refused"
    assert back.account.spent().rho == first.head.release.cost(Norms(1, 1)).rho
    back.account.restored(noisy.seen.row)
    codes = [read(of, m, reply_of(back, m, noisy.seen)).code for m in (first, second, question(step=2))]
    assert codes == ["refused"] * 3  # the run is over
    assert of.policy.budget.price(back.account.spent()) >= of.policy.budget.rho * (1 - 1e-9)
    assert back.account.verify().wrong == ""


def test_a_run_that_is_closed_answers_nothing_more(tmp_path):
    """Replies and salts of a closed run are gone from the file, and its questions are refused, old ones and new."""
    path = tmp_path / "account.sqlite"
    # Ten cells: the bytes of two, of which noise may make zeros, stand in a file by chance.
    of, message = site(account=Book(path)), question(counts((AGE,)))
    reply = ask(of, message)
    spent = of.account.spent()
    assert answer_in(reply.data) in path.read_bytes()
    of.account.close("run")
    assert values(reply).tobytes() not in path.read_bytes()
    assert [ask(anew(of), asked).code for asked in (message, question(step=1))] == ["refused"] * 2
    assert of.account.spent() == spent
    assert np.isfinite(spent.rho)
    assert Path(path).stat().st_mode & 0o077 == 0
