"""The report's page in a real browser: phone, desk, dark, paper, without scripts, and by axe's rules.

Needs Chromium, Node and ``npm ci`` in this directory; skipped where one of them is absent.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluation.report_example import LONG, SCRIPT, evaluation, ledger, run_directory, score

from fedsynth.evaluation.metrics import METRICS
from fedsynth.evaluation.plot_data import plot_data
from fedsynth.evaluation.report import ReportTitle, render_report
from fedsynth.evaluation.run_files import run_summary
from fedsynth.rows import Table
from fedsynth.runs.folder import RunFolder
from fedsynth.schema import Categorical, Numeric, Schema

HERE = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install it, or name it in CHROMIUM"),
    pytest.mark.skipif(NODE is None, reason="no Node: install it to look at pages"),
    pytest.mark.skipif(not (HERE / "node_modules").is_dir(), reason="no node_modules: run `npm ci` in tests/browser"),
]
VIEWS = ("phone-light", "phone-dark", "desk-light", "desk-dark", "print", "no-script")
SOME = ("phone-dark", "desk-light")  # of pages that differ from one seen in all views in their numbers only


def look(html: str, folder: Path, views: tuple[str, ...] = VIEWS) -> dict[str, Any]:
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    done = subprocess.run(
        [str(NODE), str(HERE / "look.mjs"), str(page), str(folder / "seen"), str(CHROMIUM), ",".join(views)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found) == set(views)
    return found


def assert_sound(views: dict[str, Any], folder: Path, heading: str = "Report on a synthetic table") -> None:
    for name, view in views.items():
        assert view["requests"] == [], name
        assert view["console"] == [], name
        assert view["heading"] == heading, name
        assert view["charts"] == views["desk-light"]["charts"] > 10, name
        assert (folder / "seen" / f"{name}.png").stat().st_size > 10_000
    for name in views.keys() - {"print", "no-script"}:
        view = views[name]
        assert (view["overflow"], view["overflowOpened"]) == (0, 0), name
        assert (view["axe"], view["axeOpened"]) == ([], []), name
    assert "print" not in views or (folder / "seen" / "print.pdf").stat().st_size > 10_000


def test_the_page_of_a_run_with_everything_on_it(tmp_path):
    alarm = score("privacy", "attribute disclosure", 0.9, 0.6, verdict="alarm", details={SCRIPT: (0.9, 0.6)})
    found = evaluation()
    found = type(found)((*found.scores, alarm), found.plot_data, found.rows, found.target, found.notes)
    run = run_summary(
        RunFolder(run_directory(tmp_path / "run", ledger(40, 30), said={"seeded": True, "schema_draft": True}))
    )
    assert_sound(look(render_report(found, run), tmp_path), tmp_path)


@pytest.mark.slow
def test_the_page_of_zeros_tails_and_lost_associations(tmp_path):
    rng = np.random.default_rng(0)
    schema = Schema(
        (Numeric("zeros", 0, 1e6, missing=True), Numeric("tail", 0, 1e6), Numeric("times", 0, 99, integer=True))
    )
    real = np.stack([rng.lognormal(2, 2, 900), rng.lognormal(2, 2, 900), rng.poisson(9, 900)])
    real[0, :600] = 0
    real[1] = real[0] * 2
    rows = [
        Table(schema, tuple(np.zeros(900, np.uint8) for _ in schema.names), dict(enumerate(side)))
        for side in (real, rng.uniform(0, real.max(), real.shape))
    ]
    base = evaluation(target="")
    attacks = [
        score("privacy", "membership TPR at FPR 1 %, DOMIAS", 0.3, 0.01, best=0.01, verdict="alarm"),
        score("privacy", "membership AUC, DOMIAS", 0.5, 0.5, best=0.5, verdict="good"),
    ]
    scores = [replace(one, metric="membership-inference", bound=0.7, p_value=0.01) for one in attacks]
    lost = score("fidelity", "strong associations kept, above 0.3", 0.0, 1.0, details={"zeros × tail": (0.01, 0.6)})
    scores.append(METRICS["associations-kept"].judged(replace(lost, metric="associations-kept"), 900))
    about = ReportTitle(
        "A title that is longer than a telephone is wide, " + LONG[:40],
        "The Office <of> Statistics",
        "a.csv",
        "2026-01-02",
    )
    found = replace(base, scores=(*base.scores, *scores), plot_data=plot_data(*rows), about=about)
    page = render_report(found, None)
    assert "Lost associations" in page
    assert_sound(look(page, tmp_path, SOME), tmp_path, about.title)


@pytest.mark.slow
def test_the_page_of_a_wide_table_without_a_run(tmp_path):
    columns = [Numeric(f"{LONG}{at}", 0, 10, bins=5) for at in range(10)]
    wide = evaluation([*columns, *(Categorical(f"c{at}", tuple("abcdef")) for at in range(10))], target="", holdout=0)
    assert_sound(look(render_report(wide, None), tmp_path, SOME), tmp_path)


def test_the_look_sees_what_is_wrong(tmp_path):
    bad = (
        "<!doctype html><html><head><title>x</title></head><body><h1 style='color:#ccc;background:#fff'>Bad</h1>"
        "<div style='width:3000px'>wide</div><img src='missing.png'><script>console.error('loud')</script>"
        "</body></html>"
    )
    view = look(bad, tmp_path, ("phone-light",))["phone-light"]
    assert view["overflow"] > 2000
    assert [url.rsplit("/", 1)[1] for url in view["requests"]] == ["missing.png"]
    assert any("loud" in message for message in view["console"])
    assert {"color-contrast", "html-has-lang", "image-alt"} <= {one["id"] for one in view["axe"]}
