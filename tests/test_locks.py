"""Locks between processes: one alone or several, until their process ends, and never a pretended one."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

import fedsynth
from fedsynth.errors import FedsynthError
from fedsynth.locks import exclusive, is_shared, shared
from fedsynth.runs.state import claimed

_HOLD = """
import sys, time
from pathlib import Path
from fedsynth import locks
with getattr(locks, sys.argv[1])(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""
_COUNT = """
import sys
from pathlib import Path
from fedsynth.locks import exclusive
file = Path(sys.argv[1])
for _ in range(50):
    with exclusive(file.with_suffix(".lock")):
        file.write_text(str(int(file.read_text()) + 1))
"""
_FORK = """
import os, sys
from pathlib import Path
from fedsynth.locks import exclusive
with exclusive(Path(sys.argv[1])):
    if not os.fork():
        print("held", flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def held(how: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold a lock by ``exclusive`` or ``shared`` for the block, or until it is killed in it."""
    command = [sys.executable, "-c", _HOLD, how, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_another_process_is_refused_until_the_first_one_dies(tmp_path):
    file = tmp_path / "lock"
    with held("exclusive", file) as other:
        with pytest.raises(FedsynthError, match=r"^in use$"), exclusive(file, "in use"):
            pytest.fail("two processes have the lock")
        other.kill()  # as a crash would: nothing is cleaned up
        other.wait()
        with exclusive(file):
            pass
    assert file.exists()  # whoever waited for a file that is gone would have a lock of its own


def test_a_lock_is_had_once_in_a_process_too_and_is_free_after_the_block(tmp_path):
    file = tmp_path / "lock"
    with exclusive(file, "in use"), pytest.raises(FedsynthError, match="in use"), exclusive(file, "in use"):
        pytest.fail("it was had twice")
    with pytest.raises(ValueError, match="the block"), exclusive(file, "in use"):
        raise ValueError("the block")
    with exclusive(file, "in use"):
        pass


def test_without_a_message_it_waits(tmp_path):
    file, order = tmp_path / "lock", []

    def wait() -> None:
        with exclusive(file):
            order.append("second")

    with exclusive(file):
        second = threading.Thread(target=wait)
        second.start()
        time.sleep(0.2)
        order.append("first")
    second.join()
    assert order == ["first", "second"]


def test_no_change_of_many_processes_is_lost(tmp_path):
    file = tmp_path / "number"
    file.write_text("0")
    several = [subprocess.Popen([sys.executable, "-c", _COUNT, str(file)]) for _ in range(4)]
    assert [process.wait() for process in several] == [0] * 4
    assert file.read_text() == "200"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_keeps_the_lock_that_it_was_born_with(tmp_path):
    """A run's worker that outlives its parent may still ask the sites: nobody may begin the run beside it."""
    file = tmp_path / "lock"
    command = [sys.executable, "-c", _FORK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"held\n"
        parent.wait()
        with pytest.raises(FedsynthError, match="in use"), exclusive(file, "in use"):
            pytest.fail("the child's lock was lost")
        parent.stdin.close()
        assert not parent.stdout.read()  # ends with the child
    with exclusive(file, "in use"):
        pass


def test_a_program_that_is_started_meanwhile_has_no_part_in_the_lock(tmp_path):
    file = tmp_path / "lock"
    program = [sys.executable, "-c", "print('begun', flush=True); input()"]
    with exclusive(file, "in use"):
        other = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"begun"
    with exclusive(file, "in use"):
        other.communicate(b"\n")


def test_several_hold_a_shared_lock_and_it_is_held_until_the_last_one_ends(tmp_path):
    file = tmp_path / "events.lock"
    assert not is_shared(file)
    with held("shared", file) as first, shared(file):
        with held("shared", file) as second:
            assert is_shared(file)
            first.kill()
            first.wait()
            assert is_shared(file)
        second.wait()
        assert is_shared(file)
        with shared(file):  # takes a place that is free again
            assert is_shared(file)
    assert not is_shared(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"events.lock.{number}" for number in range(3)]


def test_asking_whether_a_lock_is_held_creates_nothing(tmp_path):
    assert not is_shared(tmp_path / "nowhere" / "lock")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_what_cannot_be_locked_is_refused(tmp_path, monkeypatch, number):
    """As a network share without locks answers. A run that began all the same could charge the sites twice."""

    def fails(descriptor: int, *, blocking: bool) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock, "lock_descriptor", fails)
    for begin in (claimed(tmp_path / "run"), exclusive(tmp_path / "lock"), shared(tmp_path / "lock")):
        with pytest.raises(FedsynthError, match=r"cannot be locked \(.*put its folder on a local disk"), begin:
            pytest.fail("it went on without a lock")


def test_locks_are_taken_in_one_module():
    package = Path(fedsynth.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    for name in ("fcntl", "filelock", "msvcrt"):
        assert [file for file, text in texts.items() if f"import {name}" in text or f"from {name}" in text] in (
            [],
            ["locks.py"],
        )
