"""The command line in this process, and in processes forked from one that has imported fedsynth."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from fedsynth.cli.app import main

_FORKS = multiprocessing.get_context("forkserver")
_NEW = os.O_WRONLY | os.O_CREAT
# What most commands import; a process that is forked before a thread has started is as good as a fresh one.
_FORKS.set_forkserver_preload(
    [
        *("fedsynth.cli.app", "fedsynth.data.sources", "fedsynth.deploy.host.checks", "fedsynth.methods.auto"),
        *("fedsynth.evaluation.evaluate", "fedsynth.evaluation.report", "fedsynth.runs.run", "fedsynth.runs.plan"),
        *("jinja2", "pandas", "pyarrow.csv", "pyarrow.parquet", "scipy.stats", "sklearn.ensemble"),
    ]
)


@dataclass(frozen=True)
class Invoked:
    """What a command did: its exit code and what it printed, to standard output and to standard error."""

    exit_code: int
    output: str


def invoke(arguments: Sequence[object], answers: str = "") -> Invoked:
    """Run a command in this process, whose questions get these answers."""
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        mock.patch("sys.stdin", io.StringIO(answers)),
    ):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return Invoked(int(ended.code or 0), said.getvalue())


def run(*arguments: object) -> int:
    """Return the exit code of a command in this process; whatever else it raises is a traceback to its user."""
    with pytest.raises(SystemExit) as stopped:
        main([str(one) for one in arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def fedsynth(
    *arguments: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command; the environment is this process's with one thread of OpenMP, unless one is given."""
    given = {**os.environ, "OMP_NUM_THREADS": "1"} if environment is None else dict(environment)
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        process = _FORKS.Process(target=_main, args=(words, str(cwd or Path.cwd()), given, *map(str, files)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        out, err = (file.read_text(encoding="utf-8") for file in files)
    return subprocess.CompletedProcess(["fedsynth", *words], process.exitcode, out, err)


def _main(words: list[str], cwd: str, environment: Mapping[str, str], out: str, err: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, file, flags in ((0, os.devnull, os.O_RDONLY), (1, out, _NEW), (2, err, _NEW)):
        opened = os.open(file, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    main(words)
