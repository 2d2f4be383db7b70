"""A disk without room: one sentence with the file and what to do, whoever writes, and nothing half written.

Before, a server said "[Errno 28] No space left on device" without a path, and a site's log had a traceback.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.attacks.world import AGE, DIAGNOSIS, SCHEMA, ask_deployed, counts, deployed, frame, question
from tests.command import fedsynth

from fedsynth.data.read import write_frame
from fedsynth.deploy.backup import back_up_site
from fedsynth.deploy.files.folder import ExchangeFolder
from fedsynth.deploy.run_events import EventLog, WorkAdvanced, ending
from fedsynth.errors import FedsynthError, explained, is_fault, reason_of
from fedsynth.federation.transport import InProcess, Recorded
from fedsynth.files import write_private, write_whole
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import Synthesizer, own_bins
from fedsynth.privacy.book import Book

ROOM = "free space there"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a disk of 2 MB of its own; skip where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk can be mounted by root only, and not in every container")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, room: int = 0) -> None:
    """Fill a disk but for so many bytes."""
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - room)


def test_the_functions_that_write_files_name_them(disk):
    big = pd.DataFrame({"a": np.arange(50_000)})
    recorded = Recorded(InProcess([]), disk / "transcript")
    with EventLog(disk / "events", "1") as events:
        write_whole(disk / "a.txt", "old")
        fill(disk)
        for file, write in (
            ("a.txt", lambda: write_whole(disk / "a.txt", "x" * 10_000)),
            ("b.txt", lambda: write_private(disk / "b.txt", b"x" * 10_000)),
            ("c.csv", lambda: write_frame(big, disk / "c.csv")),
            ("d.parquet", lambda: write_frame(big, disk / "d.parquet")),
            ("transcript", lambda: recorded._append(recorded._ANSWER, bytes(10_000))),
            ("events", lambda: events.add(WorkAdvanced, what="x" * 10_000, done=1, total=2)),
        ):
            with pytest.raises(OSError, match=r".") as caught:
                write()
            said = explained(caught.value)
            assert said.startswith(f"{disk / file}: no space left on device; {ROOM}"), said
            assert reason_of(caught.value) == said
            assert not is_fault(caught.value)
            assert ending(caught.value) == {"exit_code": 2, "error": "OSError", "message": said}
    assert (disk / "a.txt").read_text() == "old"
    assert sorted(path.name for path in disk.iterdir()) == ["a.txt", "events", "events.lock.0", "filler", "transcript"]


def test_messages_as_files_and_backups_name_theirs(disk, tmp_path):
    site = deployed(tmp_path / "site", frame())
    ask_deployed(site, question())
    fill(disk)
    with pytest.raises(OSError, match=r".") as caught:
        ExchangeFolder(disk, "north", "replies").write("a.reply", bytes(10_000))
    assert ROOM in explained(caught.value)
    assert str(disk) in explained(caught.value)
    with pytest.raises(OSError, match=r".") as caught:
        back_up_site(site, disk / "site.backup")
    assert explained(caught.value).startswith(f"{disk / 'site.backup'}: no space left on device; {ROOM}")
    assert [path.name for path in disk.iterdir() if path.is_file()] == ["filler"]


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_commands_end_with_a_sentence_and_the_documented_code(disk, tmp_path, flags):
    model = MarkovRandomField(SCHEMA.sizes, 50.0, [(0,)], [np.zeros(SCHEMA.sizes[0])])
    Synthesizer(SCHEMA, own_bins(SCHEMA), model).save(tmp_path / "m.fedsynth")
    frame(100).to_csv(tmp_path / "rows.csv", index=False)
    SCHEMA.save(tmp_path / "s.toml")
    fill(disk)
    run = ("--schema", tmp_path / "s.toml", "--epsilon", 1, "--delta", 1e-6, "--sites", 2, "--method", "oneshot")
    for command in (
        ("sample", tmp_path / "m.fedsynth", "--rows", 9000, "--out", disk / "out.csv"),
        ("example", disk / "patients.csv"),
        ("simulate", "--data", tmp_path / "rows.csv", *run, "--out", disk / "run"),
    ):
        done = fedsynth(*command, *flags)
        said = done.stdout if flags else done.stderr
        assert done.returncode == 2, (command, said)
        assert f"no space left on device; {ROOM}" in said
        assert str(disk) in said
        assert "Traceback" not in done.stderr
    assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_log_without_room_says_so_once_and_the_command_goes_on(disk, tmp_path):
    frame(100).to_csv(tmp_path / "rows.csv", index=False)
    SCHEMA.save(tmp_path / "s.toml")
    fill(disk)
    check = ("schema", "check", tmp_path / "rows.csv", "--schema", tmp_path / "s.toml")
    done = fedsynth("--log-file", disk / "log", *check)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"the log is incomplete: {disk / 'log'}: no space left on device; {ROOM}") == 1
    assert "Traceback" not in done.stderr


def test_a_site_says_what_to_free_without_a_traceback_and_answers_again(disk, caplog):
    site = deployed(disk / "site", frame())
    assert ask_deployed(site, question()).code == "answered"
    fill(disk)
    asked = question(counts((AGE,), (DIAGNOSIS,)), step=1)
    with caplog.at_level(logging.WARNING, "fedsynth"):
        assert ask_deployed(site, asked).code == "failed"
    said = [record for record in caplog.records if ROOM in record.getMessage()]
    assert said
    assert all(str(disk) in record.getMessage() for record in said)
    assert not [record for record in caplog.records if record.exc_info]
    (disk / "filler").unlink()
    assert ask_deployed(site, asked).code == "answered"


def test_a_compute_servers_ledger_is_full_and_not_damaged(disk):
    book = Book(disk / "ledger.sqlite")
    fill(disk)
    with pytest.raises(
        FedsynthError, match=rf"^{disk / 'ledger.sqlite'}: no space left on its disk .*; free space there"
    ):
        book.first("", "large", bytes(1 << 20))
    with pytest.raises((FedsynthError, OSError), match=r"space"):
        Book(disk / "other.sqlite")
    (disk / "filler").unlink()
    assert book.first("", "large", bytes(4096)) == bytes(4096)
    assert not book.verify().wrong
