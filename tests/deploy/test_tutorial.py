"""docs/tutorials/three-hospitals.md, followed to the letter: one shell, real TLS, a site killed and brought back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.deploy.flower.local import listens

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "three-hospitals.md"

pytestmark = [pytest.mark.deployment, pytest.mark.chaos]  # four minutes: with `make chaos`, not in the gate


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    """Every fenced block of the page is given to one shell; whoever follows the page answers y to each question."""
    if busy := [port for port in (9443,) if listens(port)]:
        pytest.skip(f"something else listens on {busy}, the port of the page")
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    script = script.replace("kill $(cat *.pid)", "kill -9 $(cat *.pid)")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with (
        (tmp_path / "said").open("w+") as said,
        subprocess.Popen(["yes"], stdout=subprocess.PIPE) as answers,
        subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdin=answers.stdout,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(600)
        finally:
            answers.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        said.seek(0)
        text = said.read()
    assert code == 0, text[-4000:]
    assert text.count("is ready") == 3
    assert "ended with code 7" in text
    assert "the run is complete" in text
    assert text.count("spent epsilon = 1 of 1") == 3
    assert "All releases and their costs are as the ledger says" in text
    flat = " ".join(text.split())
    assert "signed by coordinator" in flat
    assert "The pack is whole, and its privacy cost is as it says." in flat
    (folder,) = (tmp_path / "federation" / "runs").iterdir()
    assert 16_000 < len(pd.read_csv(folder / "synthetic.csv")) < 20_000
