"""The audit log of a real site: what it says, what it never says, and what happens to whoever tampers with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import FedsynthError
from fedsynth.federation.audit import START, AuditLog, repair, verify
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.wire import Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Budget, Gaussian

ASK = Request("run", 0, "sum", "size", Gaussian(0.0001), "local", SCHEMA.digest)


def site(path: Path) -> Site:
    policy = Policy(Budget(1.0, 1e-6), {"local": LocalNoise()})
    return Site("a", random_table(200, 0), policy, SiteLedger(), bytes(32), AuditLog(path))


def ask(of: Site, step: int = 0, **changes: object) -> str:
    return of.answer(replace(ASK, _memo={}, step=step, **changes)).error  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five lines."""
    path = tmp_path / "audit.jsonl"
    asked = site(path)
    for step in range(5):
        ask(asked, step)
    return path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_is_a_line_of_what_was_asked_and_whether_it_was_answered(tmp_path):
    path = tmp_path / "audit.jsonl"
    asked = site(path)
    moment = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    asked = replace(asked, audit=AuditLog(path, clock=lambda: moment))
    ask(asked)
    ask(asked, 1, task="marginals", params={"cliques": [(0, 1)]})
    ask(asked, 2, trust="trusted")
    ask(asked, 3, release=Gaussian(1.0))
    ask(asked, 4, task="marginals", params={"cliques": [(99,)]})
    told = lines(path)
    assert [(one["outcome"], one["error"], one["cells"]) for one in told] == [
        ("answered", "", 1),
        ("answered", "", 6),
        ("refused", "Refused", 0),
        ("refused", "BudgetExceeded", 0),
        ("failed", "IndexError", 0),
    ]
    assert "does not accept the trust 'trusted'" in str(told[2]["reason"])
    assert told[4]["reason"] == ""
    assert told[0]["request"] == ASK.digest
    assert told[0]["release"] == {"kind": "gaussian", "rho": 0.0001}
    assert {one["time"] for one in told} == {"2026-03-01T12:30:00.000+00:00"}
    assert told[0]["previous"] == START
    # Nothing beside these is written; none of them can hold a value or a row.
    fields = "time run step attempt turn verb task release trust plan request outcome error reason cells previous"
    assert all(set(one) == set(fields.split()) for one in told)
    assert verify(path).lines == 5
    assert not verify(path).broken
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_written_does_not_depend_on_the_rows(tmp_path):
    written = []
    for rows in (0, 1, 200):
        path = tmp_path / f"{rows}.jsonl"
        asked = replace(site(path), table=random_table(rows, rows), audit=AuditLog(path, clock=lambda: datetime.min))
        ask(asked)
        ask(asked, 1, task="marginals", params={"cliques": [(0, 1)]})
        written.append(path.read_bytes())
    assert written[0] == written[1] == written[2]


def test_a_line_that_is_edited_taken_out_moved_or_slipped_in_is_found(log):
    whole = log.read_bytes().splitlines(keepends=True)
    forged = whole[1].replace(b'"answered"', b'"refused"')
    tampered = {
        "edited": ([whole[0], forged, *whole[2:]], 3),
        "a space added": ([whole[0], whole[1].replace(b", ", b",  ", 1), *whole[2:]], 3),
        "taken out": ([*whole[:2], *whole[3:]], 3),
        "the first taken out": (whole[1:], 1),
        "moved": ([whole[0], whole[2], whole[1], *whole[3:]], 2),
        "twice": ([whole[0], whole[0], *whole[1:]], 2),
        "no JSON": ([whole[0], b"answered\n", *whole[1:]], 2),
        "no line of a log": ([whole[0], b"[1]\n", *whole[1:]], 2),
    }
    for how, (content, first) in tampered.items():
        log.write_bytes(b"".join(content))
        found = verify(log)
        assert (found.broken, bool(found.wrong)) == (first, True), how
        with pytest.raises(FedsynthError, match="keep the file"):
            repair(log)


def test_any_changed_byte_of_any_line_but_the_last_is_found(log):
    content = log.read_bytes()
    inner = content[: content[:-1].rfind(b"\n") + 1]
    for at in range(0, len(inner) - 1, 7):
        changed = bytearray(content)
        changed[at] ^= 1
        log.write_bytes(bytes(changed))
        found = verify(log)
        assert found.broken or found.torn, at


def test_what_a_chain_cannot_show_is_shown_by_a_head_noted_elsewhere(log):
    whole = log.read_bytes().splitlines(keepends=True)
    noted = verify(log).head
    assert verify(log, noted).noted_at == 5
    for gone in (b"".join(whole[:4]), b"".join(whole[:4]) + whole[4].replace(b"answered", b"refused")):
        log.write_bytes(gone)
        found = verify(log, noted)
        assert not found.broken  # the chain alone is content
        assert found.noted_at == 0
    log.write_bytes(b"".join(whole))
    ask(site(log), 5)
    assert (verify(log, noted).noted_at, verify(log).lines) == (5, 6)


def test_a_running_site_stops_where_its_log_gets_shorter(log):
    asked = site(log)
    ask(asked, 5)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(FedsynthError, match="lines were taken out"):
        ask(asked, 6)


@pytest.mark.parametrize("cut", [1, 2, 100, 300])
def test_a_torn_line_stops_the_site_until_it_is_repaired_and_that_is_on_record(log, cut):
    whole = log.read_bytes()
    log.write_bytes(whole[:-cut])
    torn = len(whole.splitlines(keepends=True)[-1]) - cut
    assert verify(log).torn == torn
    assert verify(log).lines == 4
    asked = site(log)
    with pytest.raises(FedsynthError, match="--repair"):
        ask(asked, 9)
    assert log.read_bytes() == whole[:-cut]  # nothing was mended in passing

    assert repair(log) == torn
    assert repair(log) == 0
    assert lines(log)[-1]["outcome"] == "repaired"
    assert lines(log)[-1]["cut_bytes"] == torn
    assert (log.parent / "audit.jsonl.torn0").read_bytes() == whole[:-cut][-torn:]
    assert ask(asked, 9) == ""
    assert (verify(log).lines, verify(log).broken, verify(log).torn) == (6, 0, 0)


def write_some(path: Path, first: int) -> None:
    asked = site(path)
    for step in range(first, first + 20):
        ask(asked, step)


def test_threads_and_processes_share_one_chain(tmp_path):
    path = tmp_path / "audit.jsonl"
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as processes:
        list(processes.map(write_some, [path] * 3, [0, 100, 200]))
    asked = site(path)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda step: ask(asked, step), range(300, 340)))
    assert (verify(path).lines, verify(path).broken) == (100, 0)
    assert {one["step"] for one in lines(path)} == {*range(20), *range(100, 120), *range(200, 220), *range(300, 340)}


def test_a_line_outlives_the_process_that_is_killed_once_its_reply_is_out(tmp_path):
    path = tmp_path / "audit.jsonl"
    code = (
        "import os, signal; from pathlib import Path; from tests.federation.test_audit import ask, site\n"
        f"ask(site(Path({str(path)!r})))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (verify(path).lines, verify(path).torn) == (1, 0)


def test_a_server_cannot_fill_the_disk_or_break_the_log_with_what_it_asks(tmp_path):
    path = tmp_path / "audit.jsonl"
    asked = site(path)
    ask(asked, run="r" * 10**6, task='"}\n{"\ud800', trust="local")
    ask(asked, step=[1, 2])  # type: ignore[arg-type]
    assert path.stat().st_size < 4000
    assert (verify(path).lines, verify(path).broken) == (2, 0)
    assert str(lines(path)[0]["run"]).endswith("(1000000 characters)")


def test_a_reply_that_cannot_be_written_down_does_not_leave(tmp_path):
    asked = site(tmp_path / "nowhere" / "audit.jsonl")
    with pytest.raises(OSError, match="nowhere"):
        ask(asked)
