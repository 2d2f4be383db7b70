"""The report's plots: lengths, heights, colours and labels against small cases worked by hand."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from tests.evaluation.report_example import score

from fedsynth.evaluation import plots
from fedsynth.evaluation.plot_data import Associations, ColumnPlotData
from fedsynth.evaluation.score import Estimate, Verdict


def test_bars_are_as_long_as_their_shares():
    chart = plots.lying_bars(("a", "b"), (0.5, 0.25), (0.125, 0.0), "label")
    lengths = {css: [float(h) for h in re.findall(r"h([\d.]+)v", marks)] for css, marks in _paths(chart).items()}
    whole = 340 - 118 - 4
    assert lengths["real"] == pytest.approx([whole, whole / 2])
    assert lengths["synthetic"] == pytest.approx([whole / 4, 0.0])


def test_a_histogram_is_as_high_as_its_shares_and_keeps_missing_values_apart():
    picture = ColumnPlotData(
        "x",
        "numeric",
        ("0 to 1", "1 to 2", "missing"),
        ("bin", "bin", "missing"),
        (0.4, 0.2, 0.4),
        (0.2, 0.6, 0.2),
        (0.0, 1.0, 2.0),
    )
    assert plots.moved(picture) == pytest.approx(0.4)
    chart = plots.distribution(picture)
    real = [float(v) for v in re.findall(r"v(-[\d.]+)", _paths(chart)["real"])]
    missing_first = [-142 * 0.4 / 0.6, -142 * 0.4 / 0.6, -142 * 0.2 / 0.6]
    assert real == pytest.approx(missing_first, rel=1e-3)
    assert "missing" in [text.text for text in chart.texts]
    assert "Largest difference at 1 to 2: real 20 %, synthetic 60 %." in chart.label


def test_an_atom_and_a_tail_have_bars_of_their_own_and_the_rest_its_own_scale():
    picture = ColumnPlotData(
        "x",
        "numeric",
        ("0", "1 to 2", "2 to 3", "3 and above (up to 90)"),
        ("value", "bin", "bin", "above"),
        (0.8, 0.15, 0.04, 0.01),
        (0.0, 0.2, 0.0, 0.8),
        (1.0, 2.0, 3.0),
        True,
    )
    chart = plots.distribution(picture)
    texts = [text.text for text in chart.texts]
    assert {"80 %", "0", "1", "3", "more", "log axis"} <= set(texts)
    assert not any("enlarged" in text for text in texts)  # the synthetic tail is as high as the atom
    assert ", logarithmic axis;" in chart.label
    heights = [float(v) for v in re.findall(r"v(-[\d.]+)", _paths(chart)["real"])]
    assert heights == pytest.approx([-142, -142 / 80, -142 * 15 / 80, -142 * 4 / 80], rel=1e-3)  # atom, tail, bins
    faithful = dataclasses.replace(picture, synthetic=picture.real)
    chart = plots.distribution(faithful)
    assert "15 % (enlarged)" in [text.text for text in chart.texts]
    heights = [float(v) for v in re.findall(r"v(-[\d.]+)", _paths(chart)["real"])]
    assert heights == pytest.approx([-142, -142 / 15, -142, -142 * 4 / 15], rel=1e-3)
    tips = [mark.tip for mark in chart.marks if mark.css == "hit"]
    assert sorted(tips) == sorted(
        f"{label}: real {share}, synthetic {share}"
        for label, share in zip(picture.labels, ("80 %", "15 %", "4 %", "1 %"), strict=True)
    )


def test_a_bar_of_few_rows_can_still_be_seen():
    picture = ColumnPlotData(
        "x", "numeric", ("0 to 1", "1 to 2"), ("bin", "bin"), (0.9999, 0.0001), (1.0, 0.0), (0.0, 1.0, 2.0)
    )
    heights = [float(v) for v in re.findall(r"v(-[\d.]+)", _paths(plots.distribution(picture))["real"])]
    assert heights == pytest.approx([-142, -1.5], rel=1e-3)


def test_a_heat_map_colours_by_sign_and_size_on_one_scale():
    nan = math.nan
    matrices = Associations(
        ("a", "b", "c"), ((1, 0.5, nan), (0.5, 1, 0), (nan, 0, 1)), ((1, -0.1, nan), (-0.1, 1, 0), (nan, 0, 1))
    )
    assert plots.colour_limit(matrices) == pytest.approx(0.6)  # the difference's -0.6, not the diagonal's 1
    changed = plots.heat_map(matrices.names, plots.difference(matrices), 0.6, "Difference")
    assert [mark.css for mark in changed.marks] == [
        "rule",
        "n10",
        "undefined",
        "n10",
        "rule",
        "z",
        "undefined",
        "z",
        "rule",
    ]
    assert "Largest: a × b: −0.600." in changed.label
    assert plots.heat_map(("a", "b"), ((1, 0.3), (0.3, 1)), 0.6, "Real").marks[1].css == "p5"


def test_labels_are_cut_by_their_width():
    assert plots.clip("short", 10) == "short"
    assert plots.clip("abcdefghij", 7) == "abcd…ij"
    assert plots.clip("身長体重", 7) == "身長…重"
    assert plots.clip("a\n  b", 5) == "a b"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.97314, "0.973"), (-12.34, "−12.3"), (0.00123, "0.0012"), (12345.6, "12,346"), (math.inf, "not defined")],
)
def test_figures_read_as_people_write_them(value, text):
    assert plots.figure(value) == text


def test_a_ruler_puts_reference_band_and_value_in_their_order():
    found = plots.ruler(score("fidelity", "x", 0.5, 0.9, best=1.0))
    assert found is not None
    # The synthetic mark is a circle of radius 5, whose path starts at its left.
    start = {mark.css: float(re.match(r"M([\d.]+)", mark.path).group(1)) for mark in found.marks}  # type: ignore[union-attr]
    assert start["whisker"] < start["synthetic"] + 5 < start["real soft"] < start["tick"] < start["best"]
    nothing = dataclasses.replace(score("fidelity", "x", 0.5, 0.9), synthetic=Estimate(math.nan))
    assert plots.ruler(nothing) is None


def _paths(chart: plots.Chart) -> dict[str, str]:
    found: dict[str, str] = {}
    for mark in chart.marks:
        found[mark.css] = found.get(mark.css, "") + mark.path
    return found


def test_on_a_ruler_values_that_differ_by_little_lie_side_by_side_at_the_best_end():
    near = plots.ruler(score("fidelity", "x", 0.995, 1.0, best=1.0, band=math.nan))
    assert near is not None
    start = {mark.css: float(re.match(r"M([\d.]+)", mark.path).group(1)) for mark in near.marks}  # type: ignore[union-attr]
    dot, tick = start["synthetic"] + 5, start["tick"]
    assert tick == pytest.approx(near.width - 8)
    assert near.width * 0.9 < dot < tick


@pytest.mark.parametrize(("value", "at"), [(1.0, 212.0), (0.0, 8.0)])
def test_a_perfect_value_lies_at_the_best_end_of_its_ruler(value, at):
    perfect = plots.ruler(score("fidelity", "x", value, value, best=value, band=math.nan))
    assert perfect is not None
    tick = next(mark.path for mark in perfect.marks if mark.css == "tick")
    assert float(re.match(r"M([\d.]+)", tick).group(1)) == pytest.approx(at)  # type: ignore[union-attr]


def test_the_scale_of_certainty_runs_from_guessing_to_certainty():
    cases: tuple[tuple[float, Verdict, float], ...] = ((0.5, "", 0.0), (0.75, "", 0.5), (1.0, "alarm", 1.0))
    for certainty, verdict, share in cases:
        chart = plots.certainty_scale(certainty, verdict)
        (dot,) = (mark for mark in chart.marks if mark.css.startswith("dot"))
        assert dot.css == f"dot {verdict or 'plain'}"
        middle = float(re.match(r"M([\d.]+)", dot.path).group(1)) + 7  # type: ignore[union-attr]
        assert middle == pytest.approx(8 + share * (chart.width - 16), abs=0.1)
