"""Progress bars: in notebooks, in terminals, and nowhere else."""

from __future__ import annotations

import pytest

from fedsynth.progress import ignore_progress, shown

CELL = """
from fedsynth.progress import shown
with shown(True) as report:
    report("fits <1>", 1, 2)
    report("fits <1>", 2, 2)
"""


def test_a_notebook_shows_one_bar_that_moves() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    (output,) = notebook.cells[0].outputs
    assert '<progress value="2" max="2"></progress> fits &lt;1&gt;: 2 of 2' in output.data["text/html"]


def test_a_process_that_merely_imported_a_kernel_shows_nothing() -> None:
    pytest.importorskip("ipykernel")
    with shown(True) as report:
        assert report is ignore_progress
        report("fits", 1, 2)
