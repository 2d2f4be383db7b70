"""What a coordinator learns beside the answers: from failing, and from the clock."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attacks.world import (
    AGE,
    DIAGNOSIS,
    SCHEMA,
    SEX,
    ask,
    ask_deployed,
    converse,
    counts,
    deployed,
    frame,
    question,
    sealed,
    secure_sites,
    site,
    table,
    values,
)
from tests.due import noted_waits, whole

from fedsynth.bench.published.tda_sums import MixtureEncoding, MixtureSums, MomentSums
from fedsynth.deploy.host.config import SiteConfig
from fedsynth.deploy.host.state import answer, open_account, wait_until_due
from fedsynth.federation.events import Event
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import PUBLISHED, Counts, RecordCount
from fedsynth.federation.site import Site
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import Request
from fedsynth.methods.flaim_scores import FLAIMSelection
from fedsynth.privacy.book import Book
from fedsynth.privacy.release import Deposit, Exponential, Gaussian, SampledGaussian
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.secure.session import MASKED
from fedsynth.secure.site import SecureSum

CUT = Counts((Axis(AGE, np.array([20.0, 50.0, 100.0])), Axis(SEX)), ((0, 1),))
MOMENTS = MomentSums(tuple(map(MixtureEncoding, (np.array([-9, 9]), np.arange(5), np.arange(10)))), 10_000)
MIXTURE = MixtureSums((AGE,), np.linspace(-1, 1, 6).reshape(3, 1, 2))
FITS = {"sex": "f", "diagnosis": "a", "age": 30.0}
MISFITS: dict[str, dict[str, object]] = {
    "a number out of bounds": {"age": 130.0},
    "a number far out of bounds": {"age": -1e300},
    "a number without end": {"age": math.inf},
    "a number beyond all numbers": {"age": "1e999"},
    "text for a number": {"age": "forty"},
    "no number": {"age": None},
    "an unknown category": {"diagnosis": "unheard-of"},
    "no category": {"sex": None},
    "a number for a category": {"diagnosis": 7},
    "nothing at all": {"sex": None, "diagnosis": None, "age": None},
}


def of_all_kinds(folder: Path, rows: pd.DataFrame) -> SiteConfig:
    """Return a deployed site whose policy names the questions of replicas, too."""
    return deployed(folder, rows, kinds=dict(PUBLISHED))


def told(config: SiteConfig) -> list[object]:
    """Return what a coordinator learns beside numbers, and what the account says: codes, lengths, charges, rows."""
    seen: list[object] = []
    for step, query in enumerate((counts((SEX,)), CUT, RecordCount(), MOMENTS, MIXTURE)):
        reply = ask_deployed(config, question(query, step=step))
        seen.append((reply.code, len(reply.data)))
    account = open_account(config)
    return [*seen, account.spent(), account.head()[0]]


@pytest.mark.parametrize("row", MISFITS.values(), ids=MISFITS)
def test_a08_one_row_that_does_not_fit_is_not_seen_from_outside(tmp_path, row):
    """Rows of any content are answered for: a misfit changes neither whether a site answers nor what it charges."""
    fits, misfit = frame(20), pd.DataFrame([{**FITS, **row}])
    seen = [
        told(of_all_kinds(tmp_path / name, pd.concat([fits.astype(object), rows.astype(object)], ignore_index=True)))
        for name, rows in (("without", pd.DataFrame([FITS])), ("with", misfit))
    ]
    assert seen[0] == seen[1]
    assert [found[0] for found in seen[0] if isinstance(found, tuple)] == ["answered"] * 5


@pytest.mark.parametrize("row", MISFITS.values(), ids=MISFITS)
def test_a08_a_row_that_does_not_fit_moves_answers_no_further_than_another(tmp_path, row):
    """A misfit is one row: it adds at most one to one cell of each table, and the number of rows counts it."""
    fits, misfit = frame(20), pd.DataFrame([{**FITS, **row}])
    both = pd.concat([fits.astype(object), misfit.astype(object)], ignore_index=True)
    exact = []
    for name, rows in (("without", fits), ("with", both)):
        config = deployed(tmp_path / name, rows, budget={"epsilon": 200.0, "delta": 1e-6})
        replies = [
            values(ask_deployed(config, question(query, step=step, release=Gaussian(15.0))))  # no noise to speak of
            for step, query in enumerate((counts((SEX,), (AGE,)), CUT))
        ]
        exact.append(np.concatenate(replies))
    assert np.abs(exact[1] - exact[0]).sum() <= 3 + 4  # of noise: a cell is wrong once in 10^3


# What stands in a file in place of a row; the columns are sex, diagnosis, age.
HOSTILE = {
    "a cell too many": b"f,a,30.0,",
    "many cells too many": b"," * 5000,
    "a cell too few": b"f,a",
    "one cell": b"f",
    "bytes that are no text": b"f,a\xff\xfe,30.0",
    "bytes of another encoding": "f,a,30\u00a0".encode("utf-16"),
    "zero bytes": b"f,a\0,30.0\0",
    "nothing but zero bytes": bytes(100),
    "a quote that is not closed": b'f,"a,30.0',
    "a quote at the end": b'f,a,30.0,"',
    "a quote in the last cell": b'f,a,"',
    "text after a quote": b'"f"x,a,30.0',
    "quotes alone": b'"""',
    "a quoted line": b'"f,a,30.0"',
    "another delimiter": b"f;a;30.0",
    "a number of many digits": b"f,a," + b"9" * 200_000,
    "a long text": b"f," + b"a" * 200_000 + b",30.0",
    "a line beyond all blocks": b"f," + b"a" * (1 << 23) + b",30.0",
    "a line beyond all blocks in quotes": b'f,"' + b"a" * (1 << 23) + b'",30.0',
}


def with_line(config: SiteConfig, line: bytes, at: int) -> SiteConfig:
    """Return a deployed site in whose file one more line stands behind the first ``at`` rows."""
    file = Path(str(config.data))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[: at + 1], line, b"\n" if lines[at + 1 :] else b"", *lines[at + 1 :]]))
    os.utime(file, (0, 0))
    return config


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("at", [7, 20], ids=["amid", "last"])
def test_a08_a_line_that_is_no_row_is_not_seen_from_outside(tmp_path, line, at):
    """A file in which one line cannot be read is answered for like any other, and costs what another costs."""
    fits = ",".join(map(str, FITS.values())).encode()
    seen = [
        told(with_line(of_all_kinds(tmp_path / name, frame(20)), more, at))
        for name, more in (("without", fits), ("with", line))
    ]
    assert seen[0] == seen[1]
    assert [found[0] for found in seen[0] if isinstance(found, tuple)] == ["answered"] * 5


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a08_a_line_that_is_no_row_takes_no_other_row_with_it(tmp_path, line):
    """It adds at most one to one cell of each table, and to the number of rows: an open quote swallows nothing."""
    exact = []
    for name in ("without", "with"):
        config = deployed(tmp_path / name, frame(20), budget={"epsilon": 200.0, "delta": 1e-6})
        if name == "with":
            with_line(config, line, 7)
        replies = [
            values(ask_deployed(config, question(query, step=step, release=Gaussian(15.0))))  # no noise to speak of
            for step, query in enumerate((counts((SEX,), (AGE,)), CUT, RecordCount()))
        ]
        exact.append(np.concatenate(replies))
    assert np.abs(exact[1] - exact[0]).sum() <= 4 + 4  # of noise: a cell is wrong once in 10^3


PIECES = [b'"', b'""', b",", b";", b"\0", b"\xff", b"\r", b"f", b"a", b"30", b"-", b"inf", b" ", b"\t", b"\\"]


@pytest.fixture(scope="module")
def told_without(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What is seen of a site whose rows have no such line."""
    return told(of_all_kinds(tmp_path_factory.mktemp("site") / "without", frame(20)))


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(line=st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map(b"".join), at=st.integers(0, 20))
def test_a08_no_line_whatever_is_seen_from_outside(tmp_path_factory, told_without, line, at):
    """With a line of anything and without it, codes, lengths and charges of all replies are the same."""
    folder = tmp_path_factory.mktemp("site")
    assert told(with_line(of_all_kinds(folder / "with", frame(20)), line, at)) == told_without


@dataclass
class Watched:
    """Rows that note what had been charged whenever they are opened, and cannot always be."""

    account: Book
    fails: bool = False
    gone: bool = False
    charged: list[float] = field(default_factory=list)
    schema: Schema = SCHEMA
    holds_rows: bool = True

    def require(self, run: str) -> None:
        """Raise an error only if the rows are ``gone``: what else fails, fails on a look at the rows."""
        if self.gone:
            raise OSError("the disk is gone")

    @contextmanager
    def opened(self, run: str) -> Iterator[Table]:
        self.charged.append(self.account.spent(run).rho)
        if self.fails:
            raise OSError("the disk is gone")
        yield table()


def watched(of: Site, *, fails: bool = False) -> tuple[Site, Watched]:
    rows = Watched(of.account, fails)
    return replace(of, rows=rows), rows


VERBS: dict[str, dict[str, Any]] = {
    "sum": {},
    "each": {"verb": "each"},
    "deposit": {"verb": "deposit", "trust": "trusted", "release": Deposit(1e-4)},
    "choose": {
        "query": FLAIMSelection(
            records=40,
            candidates=((SEX, DIAGNOSIS), (SEX, AGE)),
            weights=np.array([1, 1]),
            penalties=np.array([0, 0]),
            factors=((SEX,),),
            potentials=np.zeros(2),
        ),
        "verb": "choose",
        "release": Exponential(1e-4),
    },
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("fails", [False, True])
def test_a08_rows_are_opened_once_the_question_is_charged(verb, fails):
    """Refused, spent or asked before: no row is opened. Charged: they are, once, and the outcome is stored."""
    trust = TrustedServer() if verb == "deposit" else LocalNoise()
    of, rows = watched(site(trust=trust), fails=fails)
    asked = question(**VERBS[verb])
    assert ask(of, question(**VERBS[verb], schema="0" * 64)).code == "refused"
    assert ask(of, question(release=Gaussian(1.0))).code == ("refused" if verb == "deposit" else "spent")
    assert rows.charged == []
    first = ask(of, asked)
    assert first.code == ("void" if fails else "answered")
    assert rows.charged == [of.account.spent().rho]
    assert rows.charged[0] > 0
    rows.fails = not fails
    assert ask(of, asked).data == first.data
    assert len(rows.charged) == len(of.account.charges()) == 1
    assert ask(of, question(**VERBS[verb], step=1)).code == ("answered" if fails else "void")
    assert of.account.verify().wrong == ""


@pytest.mark.parametrize("fails", [False, True])
def test_a08_rows_of_a_secure_sum_are_opened_in_the_turn_that_charges(fails):
    """A site whose rows cannot be opened is lost to the sum, whose other members go on, and has one outcome of it."""
    members, watchers = [], []
    for number, of in enumerate(secure_sites(4, SecureSum(min_honest=3, dropouts=1))):
        member, rows = watched(of, fails=fails and number == 0)
        members.append(member)
        watchers.append(rows)
    asked = question(counts((SEX,)), trust=SecureSum(min_honest=3, dropouts=1), release=Gaussian(0.01))
    turns = converse(members, asked, MASKED + 1)
    assert [rows.charged for rows in watchers] == [[pytest.approx(0.01)]] * 4
    codes = [said.reply.code for said in turns[MASKED].values()]
    assert codes == ["void" if fails else "answered", "answered", "answered", "answered"]
    watchers[0].fails = False
    message, reply = turns[MASKED]["site-0"]
    assert ask(members[0], message).data == reply.data
    assert members[0].account.spent().rho == pytest.approx(0.01)


def test_a08_rows_that_vanish_during_a_secure_sum_are_missed_before_the_turn_that_charges():
    """They were there in the first turn; the turn that reads them opens them again, before it charges anything."""
    trust = SecureSum(min_honest=3, dropouts=1)
    first, *others = secure_sites(4, trust)
    of, rows = watched(first)

    def vanish(turn: int, name: str, event: Event | None) -> Event | None:
        rows.gone = turn == MASKED
        return event

    asked = question(counts((SEX,)), trust=trust, release=Gaussian(0.01))
    turns = converse([of, *others], asked, MASKED, event=vanish)
    message, reply = turns[MASKED]["site-0"]
    assert (reply.code, of.account.spent().rho, rows.charged) == ("failed", 0, [])
    rows.gone = False
    assert ask(of, message).code == "answered"
    assert of.account.spent().rho == pytest.approx(0.01)


@pytest.mark.parametrize("change", ["a row less", "a row more", "a row changed", "no rows", "no file", "damaged cache"])
def test_a07_a_deployed_run_does_not_tell_whether_rows_changed(tmp_path, change):
    """A run reads the copy that it began with: what becomes of the source is not seen by the run's later messages."""
    config = deployed(tmp_path / "site", frame(20))
    source = Path(str(config.data))
    first = ask_deployed(config, question())
    assert first.code == "answered"
    rows = {"a row less": frame(19), "a row more": frame(21), "a row changed": frame(20, 1), "no rows": frame(0)}
    if change in rows:
        rows[change].to_csv(source, index=False)
    elif change == "no file":
        source.unlink()
    else:
        config.cache.write_bytes(config.cache.read_bytes()[:-8] + bytes(8))
    assert ask_deployed(config, question()).data == first.data
    assert [ask_deployed(config, question(step=step)).code for step in (1, 2)] == ["answered"] * 2


def test_a17_a_damaged_cache_of_the_rows_does_not_stop_a_site(tmp_path):
    """A new run is answered from the source when the encoded rows of the last one are damaged, wherever they are."""
    config = deployed(tmp_path / "site", frame(300))
    assert ask_deployed(config, question()).code == "answered"
    whole = config.cache.read_bytes()
    failed = []
    for number, start in enumerate(np.random.default_rng(0).integers(0, len(whole) - 8, 30)):
        config.cache.write_bytes(whole[:start] + bytes(8) + whole[start + 8 :])
        for path in config.copies.glob("*.rows"):
            path.unlink()
        if ask_deployed(config, question(run=f"run-{number}")).code != "answered":
            failed.append(int(start))
    assert failed == []


def test_a17_a_damaged_copy_ends_its_run_and_no_other(tmp_path):
    """A run whose copy is damaged is not answered from other rows; the next run makes a copy of its own."""
    config = deployed(tmp_path / "site", frame(300))
    first = ask_deployed(config, question())
    (copy,) = config.copies.glob("*.rows")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:200] + bytes(8) + whole[208:])
    failed = ask_deployed(config, question(step=1))
    assert failed.code == "void"
    assert open_account(config).spent().rho == pytest.approx(2e-4)  # rows are looked at after the charge
    assert ask_deployed(config, question(run="next")).code == "answered"
    copy.write_bytes(whole)
    assert ask_deployed(config, question()).data == first.data
    assert ask_deployed(config, question(step=1)).data == failed.data
    assert ask_deployed(config, question(step=2)).code == "answered"


# ---------------------------------------------------------------------------------------------------------------------
# A9: the clock


@pytest.mark.parametrize("took", [0.0, 1e-4, 0.3, 0.999, 1.0, 1.001, 7.2])
def test_a09_a_reply_leaves_at_a_whole_multiple_of_the_policys_time(took):
    """How long an answer took shows in steps of ``answer_every`` only."""
    moments = [100.0 + took]

    def sleep(seconds: float) -> None:
        moments.append(moments[-1] + seconds)

    wait_until_due(100.0, 1.0, lambda: moments[-1], sleep)
    assert moments[-1] == pytest.approx(100.0 + max(1, math.ceil(took - 1e-9)))


def test_a09_the_time_of_a_reply_does_not_tell_what_rows_hold(tmp_path, monkeypatch):
    """Few rows or many, a refusal or a repetition: a reply comes whole steps after its message."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from flwr.app import ConfigRecord, Message
    from flwr.supercore.task_identity import TaskIdentity

    import fedsynth
    from fedsynth.deploy.flower import node, records

    for name in ("_task_id", "_run_id", "_node_id"):  # Flower's messages ask the process which task it runs
        monkeypatch.setattr(TaskIdentity, name, 1)
    every = 0.5
    few, many = frame(10), frame(20_000)
    many["age"] = np.linspace(0, 100, len(many))
    due, taken = noted_waits(monkeypatch, node), []
    for name, rows in (("few", few), ("many", many)):
        config = deployed(tmp_path / name, rows, answer_every=every)
        for request in _requests():
            content = records.pack("requests", [sealed(request)])
            content["head"] = ConfigRecord({"fedsynth": fedsynth.__version__, "site": config.name})
            message = Message(content, dst_node_id=2, message_type="query")
            start = time.monotonic()
            node.reply(config.folder, message)
            taken.append(time.monotonic() - start)
    assert len(due) == len(taken) == 8
    assert all(whole(moment, every) for moment in due), due
    assert all(seconds >= moment for seconds, moment in zip(taken, due, strict=True)), (taken, due)


def test_a09_the_time_of_training_follows_from_public_numbers_alone(tmp_path):
    """Few rows or many, answered, repeated or of no budget: as long as a slow machine takes for ``timed_rows``."""
    pytest.importorskip("torch", reason="the extra 'deep' is not installed")
    from tests.attacks.training_world import WEIGHTS, gradient_sum, training

    taken = {}
    for name, rows in (("few", frame(1)), ("many", frame(3000))):
        config = deployed(tmp_path / name, rows, answer_every=0.5, timed_rows=2**17)
        for what, message in (
            ("first", training()),
            ("again", training()),
            ("other weights", training(weights=WEIGHTS + 1)),
            ("more rows", training(gradient_sum(rate=1.0), release=SampledGaussian(1.0, 2.0, 1))),
            ("refused", training(schema="0" * 64)),
            ("counts", question(counts((0, 1)))),
        ):
            taken[name, what] = answer(config, [sealed(message)]).seconds
    for what in ("first", "again", "other weights"):
        assert taken["few", what] == taken["many", what] == taken["few", "first"] > 0.5
    assert taken["few", "more rows"] == taken["many", "more rows"] > 1.5 * taken["few", "first"]
    assert {taken[name, what] for name in ("few", "many") for what in ("refused", "counts")} == {0.0}
    moments = [100.0]
    wait_until_due(100.0, 0.5, lambda: moments[-1], lambda left: moments.append(moments[-1] + left), seconds=1.1)
    assert moments[-1] == pytest.approx(101.5)


def test_a09_training_is_faster_than_the_time_that_it_is_given():
    """Four times the seconds of one core: on a busy machine no rows below ``timed_rows`` shall show."""
    pytest.importorskip("torch", reason="the extra 'deep' is not installed")
    from tests.attacks.training_world import exactly, gradient_sum

    query, rows = gradient_sum(rate=1.0), table(20_000)
    began = time.process_time()
    exactly(query, rows)
    assert time.process_time() - began < query.seconds(rows.schema, len(rows))


def _requests() -> list[Request]:
    """Return requests for counts, for the same counts again, for what is refused, and for sums."""
    tables = counts((0, 1), (0, 2), (1, 2))
    return [question(tables), question(tables), question(schema="0" * 64), question(MOMENTS, step=2)]
