"""The documentation site's sources: every page is in a table of contents, and the examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import blocks, pages_that_run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = (
    "reference/commands",
    "reference/exit-codes",
    "reference/settings",
    "reference/api",
    "proofs/generated/",
    "results/",
)
"""Pages that ``make html`` writes, by how their names begin."""
SHOWN = {"simulate_sites.py": "differentially private"}
"""Examples that no page runs, and what each prints; ``make html`` runs the others."""


def pages() -> set[str]:
    """Return the names of all pages that people write, as tables of contents spell them."""
    found = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    return {name for name in found if not name.startswith(("_", *GENERATED))}


def contents() -> set[str]:
    """Return the pages that the tables of contents of all pages name."""
    named: set[str] = set()
    for name in pages():
        page = DOCS / f"{name}.md"
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            entries = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            for entry in entries:
                matching = [path.with_suffix("") for path in page.parent.glob(f"{entry}.md")] or [page.parent / entry]
                named |= {path.relative_to(DOCS).as_posix() for path in matching if path != page.with_suffix("")}
    return named


def test_every_page_is_in_a_table_of_contents():
    assert contents() - pages() == {name for name in contents() if name.startswith(GENERATED)}
    assert pages() - contents() == {"index"}


@pytest.mark.parametrize("example", SHOWN)
def test_an_example_runs(example: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SHOWN[example] in done.stdout
    assert not list(tmp_path.iterdir())


def test_every_example_is_shown_and_run():
    """By a page when the documentation is built, or by the test above."""
    shown = "".join((DOCS / f"{name}.md").read_text() for name in pages())
    run = "".join(block.text for page in pages_that_run() for block in blocks(page) if block.kind == "{run}")
    for name in (path.name for path in (ROOT / "examples").iterdir() if path.is_file()):
        assert re.search(rf"literalinclude\}} \S*examples/{re.escape(name)}\n", shown), name
        commands = rf"^(python|fedsynth bench|fedsynth simulate .*--questions) {re.escape(name)}\b"
        assert name in SHOWN or re.search(commands, run, re.MULTILINE), name
