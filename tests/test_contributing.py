"""The first changes of CONTRIBUTING.md, made in a copy of the repository as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import ROOT

STEP = re.compile(
    r"^`([\w/.]+)`, (a new file|at the end|below|in place of)(?: (`+)([^\n]+)\3)?:\n\n```\w+\n(.*?)^```", re.M | re.S
)
CHANGES = dict(
    re.findall(r"^### (.*?)\n(.*?)(?=^##)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M | re.S)
)


def make(tree: Path, name: str, where: str, line: str, code: str) -> None:
    """Make one step of a change in the file ``name`` of a copy of the repository."""
    file = tree / name
    if where == "a new file":
        assert not file.exists()
        file.write_text(code)
        return
    text = file.read_text()
    if where == "at the end":
        file.write_text(f"{text}\n\n{code}")
        return
    (found,) = (whole for whole in text.splitlines(keepends=True) if line in whole)
    file.write_text(text.replace(found, found + code if where == "below" else code))


@pytest.mark.parametrize("change", CHANGES)
def test_a_first_change_can_be_made_as_the_page_says(change: str, tmp_path: Path) -> None:
    for folder in ("src", "tests", "docs", "benchmarks"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "_build", "node_modules")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    steps = [(name, where, line, code) for name, where, _, line, code in STEP.findall(CHANGES[change])]
    assert len(steps) == CHANGES[change].count("\n```") // 2 - 1  # the last block has commands
    for step in steps:
        make(tmp_path, *step)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(tmp_path)])}
    (commands,) = re.findall(r"^```sh\n(.*?)^```", CHANGES[change], re.M | re.S)
    for command in commands.splitlines():
        program, *arguments = shlex.split(command)
        assert program == "pytest"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    lint = [sys.executable, "-m", "ruff", "check", *(name for name, *_ in steps if name.endswith(".py"))]
    assert subprocess.run(lint, cwd=tmp_path, check=False).returncode == 0
