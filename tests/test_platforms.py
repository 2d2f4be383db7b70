"""What runs where: the front door without anything that POSIX alone has, and what says that it cannot run there.

On Linux and macOS a Python that lacks all that (tests/windows) stands for Windows; on Windows it is the real one.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import fedsynth as fs
from fedsynth import files, platforms
from fedsynth.cli import app
from fedsynth.deploy.host import checks
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.files import read_text, write_private
from fedsynth.platforms import is_exposed, require_posix
from fedsynth.privacy.book import Book
from fedsynth.runs.job import Deployment, Job

HERE = Path(__file__).parent
WINDOWS = HERE / "windows"

_IMPORT = """
import importlib, pkgutil, sys
import fedsynth
assert not hasattr(sys.modules["os"], "geteuid")
for module in pkgutil.walk_packages(fedsynth.__path__, "fedsynth."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of an extra that is not installed
        if error.name in ("fcntl", "grp", "pwd", "resource", "termios") or error.name.startswith("fedsynth"):
            raise
print("all imported")
"""
_REFUSED = """
from fedsynth.cli.app import main
for line in (
    "deploy run federation",
    "deploy serve federation",
    "deploy try federation --data t.csv --out rehearsal",
    "site serve site",
    "site serve site --exchange .",
    "compute-server serve server",
):
    try:
        main(line.split())
    except SystemExit as ended:
        print(ended.code, end=" ")
"""
_LOCK = """
from pathlib import Path
from fedsynth.errors import FedsynthError
from fedsynth.locks import exclusive
try:
    with exclusive(Path("lock")):
        print("let in")
except FedsynthError as error:
    print(error)
"""


def without_posix(*program: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program, without what POSIX alone has; ``variables`` are further ones of the environment."""
    known = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*([str(WINDOWS)] if platforms.POSIX else []), *([known] if known else [])])
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    words = [sys.executable, *map(str, program)]
    return subprocess.run(words, cwd=cwd, env=given, capture_output=True, encoding="utf-8", timeout=600)


# ---------------------------------------------------------------------------------------------------------------------
# What runs


def test_every_module_can_be_imported(tmp_path):
    done = without_posix("-c", _IMPORT, cwd=tmp_path)
    assert done.stdout == "all imported\n", done.stderr


def test_from_a_frame_to_a_report_in_python_and_by_commands(tmp_path):
    """In the C locale and with an output in cp1252, with Greek names; every file names its encoding."""
    language = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "cp1252"}
    done = without_posix(WINDOWS / "front_door.py", cwd=tmp_path, PYTHONWARNDEFAULTENCODING="1", **language)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no POSIX\n")
    assert done.stdout.endswith("all done\n")


@pytest.mark.skipif(not platforms.POSIX, reason="Windows has locks of its own")
def test_nobody_is_let_in_where_nothing_can_be_locked(tmp_path):
    """The library for locks would take a file that merely exists for one."""
    done = without_posix("-W", "ignore", "-c", _LOCK, cwd=tmp_path)
    assert "cannot be locked" in done.stdout
    assert "let in" not in done.stdout


# ---------------------------------------------------------------------------------------------------------------------
# What does not


def test_a_command_that_cannot_run_says_where_it_can(tmp_path):
    done = without_posix("-c", _REFUSED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "6 6 6 6 6 6 "
    named = ("deploy run", "deploy serve", "deploy try", "site serve", "site serve", "compute-server serve")
    remedy = "run it there, in a container with Linux, or on this machine in WSL2"
    assert done.stderr.splitlines() == [f"fedsynth: `fedsynth {name}` needs Linux or macOS: {remedy}" for name in named]


def test_the_run_of_a_federation_says_so_too(tmp_path, monkeypatch):
    deployment = Deployment("run", ("north", "south"))
    job = Job(schema="schema.toml", method="oneshot", epsilon=1, delta=1e-6, deployment=deployment)
    (tmp_path / "job.toml").write_text(job.to_file(), encoding="utf-8")
    monkeypatch.setattr(platforms, "POSIX", False)
    with pytest.raises(Unsupported, match="the run of a federation needs Linux or macOS"):
        fs.load_run(tmp_path).fit()


def test_a_posix_system_runs_everything():
    if platforms.POSIX:
        require_posix("anything")


# ---------------------------------------------------------------------------------------------------------------------
# Permissions, folders and paths


def test_what_was_not_checked_is_a_warning_and_never_ok(tmp_path, monkeypatch, caplog):
    secret = tmp_path / "secret"
    secret.write_bytes(b"")
    secret.chmod(0o644)
    for module in (platforms, checks):
        monkeypatch.setattr(module, "POSIX", False)
    found = checks.check_private("account", secret)
    assert found.state == "warning"
    assert found.found == f"who may read {secret} was not checked, since this system has no POSIX permissions"
    assert "icacls" in found.mend
    with caplog.at_level(logging.WARNING, "fedsynth"):
        assert not is_exposed(secret)
        assert not is_exposed(secret)
    assert [record.getMessage() for record in caplog.records] == [f"{found.found}; {found.mend}"]


@pytest.mark.skipif(not platforms.POSIX, reason="this system has no POSIX permissions")
def test_permissions_are_checked_where_there_are_any(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"")
    for mode, exposed in ((0o600, False), (0o640, True), (0o604, True), (0o601, True)):
        secret.chmod(mode)
        assert is_exposed(secret) == exposed
    secret.chmod(0o640)
    assert not is_exposed(secret, others=0o007)


def test_a_disk_of_unknown_kind_is_a_warning(tmp_path):
    """Only Linux lists its mounts: elsewhere nobody knows whether locks go over a network."""
    (found,) = (one for one in checks.check_state(tmp_path, tmp_path / "none") if one.name == "file system")
    assert found.state == "warning"
    assert "was not checked" in found.found
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\n", encoding="utf-8")
    assert not [one for one in checks.check_state(tmp_path, mounts) if one.name == "file system"]


def test_a_file_is_synced_and_its_folder_left_to_the_system(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "POSIX", False)
    opened, real = [], os.open

    def watched(path, flags, *rest, **options):
        opened.append(Path(path))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", watched)
    write_private(tmp_path / "a", b"content")
    files.sync(tmp_path / "a")
    assert tmp_path not in opened
    assert (tmp_path / "a").read_bytes() == b"content"


def test_an_account_can_be_made_and_used(tmp_path):
    account = Book(tmp_path / "account.sqlite")
    assert account.first("", "secret", b"1") == account.first("", "secret", b"2") == b"1"


def test_paths_of_a_job_on_another_drive_stay_whole(tmp_path, monkeypatch):
    def apart(path: object, start: object = None) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.chdir(tmp_path)
    job = Job(schema="s.toml", data="t.csv", method="oneshot", epsilon=1, delta=1e-6)
    monkeypatch.setattr(os.path, "relpath", apart)
    moved = job.relative_to(tmp_path / "out")
    assert moved.data == str(tmp_path.resolve() / "t.csv")
    assert moved.schema == str(tmp_path.resolve() / "s.toml")
    assert msgspec.structs.replace(moved, schema=job.schema, data=job.data) == job


def test_a_file_as_powershell_writes_it_is_named(tmp_path):
    file = tmp_path / "draft.toml"
    for encoding in ("utf-16-le", "utf-16-be"):
        file.write_bytes("\ufeffdraft = true\n".encode(encoding))
        with pytest.raises(FedsynthError, match=r"is UTF-16 text, as Windows PowerShell writes .* --out instead"):
            read_text(file)
    file.write_bytes('draft = "\u03b7"\n'.encode("cp1253"))
    with pytest.raises(FedsynthError, match="is not UTF-8 text; save it as UTF-8"):
        read_text(file)


def test_a_pipe_that_nobody_reads_is_known_without_poll(monkeypatch):
    """Windows has another error for it than POSIX systems, and no way to ask; other errors stay errors."""
    monkeypatch.delattr("select.poll", raising=False)
    assert app._unread(OSError(errno.EINVAL, "Invalid argument"))
    assert app._unread(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert not app._unread(OSError(errno.ENOSPC, "No space left on device"))
    assert not app._unread(OSError(errno.EINVAL, "Invalid argument", "table.csv"))
