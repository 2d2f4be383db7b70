"""Published figures beside ours: verdicts, counts and sentences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from benchmarks.paper_pages import RESULTS, SPECIFICATIONS, kept_lines

from fedsynth.bench.page import RunFigure, fits, run_figures
from fedsynth.bench.spec import AXES, Spec, cases, check_names, read_spec
from fedsynth.bench.verdicts import counted, judge, judge_claim, published_figures
from fedsynth.errors import FedsynthError

SPEC = """
seeds = 3
[datasets.people]
file = "people.csv"
[methods.ours]
method = "oneshot"
role = "ours"
[methods.theirs]
method = "oneshot"
[metrics.error]
metric = "range-queries"
better = "lower"
[metrics.size]
metric = "rounds"
[defaults]
delta = 1e-6
epsilon = [1, 2]
[[grid]]
methods = ["ours", "theirs"]

[[published]]
table = "Table 1"
system = "Method"
by = ["theirs", "ours"]
axes = ["dataset", "epsilon"]
values = ["error", "size"]
figures.people = { 1 = [0.5, 7], 2 = [0.4, nan] }

[[published]]
table = "Table 1"
system = "Baseline"
by = ["ours"]
baseline = true
axes = ["epsilon"]
values = ["error"]
where = { dataset = "people" }
figures = { 1 = [0.5] }

[[published]]
table = "Table 2"
system = "Method"
by = ["ours"]
axes = ["epsilon"]
values = ["error"]
standing = "other sample"
reason = "the rows are others"
figures = { 1 = [0.5], 3 = [0.1] }

[[published]]
table = "Table 2"
system = "Method"
axes = ["epsilon"]
values = ["error"]
standing = "not obtainable"
reason = "no rows"
figures = { 1 = [0.5] }

[[claims]]
text = "theirs is better"
value = "error"
better = { method = "theirs" }
worse = { method = "ours" }
over = ["dataset", "epsilon"]
"""


def runs(method: str, epsilon: str, value: str, *numbers: float) -> list[RunFigure]:
    setting = {
        "dataset": "people",
        "method": method,
        "epsilon": epsilon,
        "value": value,
        "metric": value,
        "part": value,
    }
    return [RunFigure({**setting, "seed": str(seed)}, number) for seed, number in enumerate(numbers)]


@pytest.fixture
def spec() -> Spec:
    return read_spec(SPEC)


@pytest.mark.parametrize(
    ("numbers", "subject", "baseline"),
    [
        ((0.30, 0.31, 0.32), "better", "differs"),
        ((0.44, 0.50, 0.52), "met", "agrees"),
        ((0.60, 0.61, 0.62), "below", "differs"),
        ((0.5004,), "met", "agrees"),  # rounds to the published figure
        ((0.503,), "below", "differs"),
    ],
)
def test_a_figure_is_judged_by_two_standard_deviations_of_ours(spec, numbers, subject, baseline) -> None:
    judged = judge(spec, runs("ours", "1", "error", *numbers))
    one = [(figure.entry.system, figure.verdict) for figure in judged if figure.method and not figure.entry.standing]
    assert one == [("Method", subject), ("Baseline", baseline)]


def test_every_published_figure_is_counted_once(spec) -> None:
    figures = [
        *runs("ours", "1", "error", 0.3, 0.3),
        *runs("theirs", "1", "error", 0.7, 0.7),
        *runs("theirs", "1", "size", 7.0, 7.0),
        *runs("ours", "2", "error", 0.4, 0.4),
    ]
    judged = judge(spec, figures)
    count = {verdict: number for verdict, number in counted(judged).items() if number}
    # "theirs" comes first and decides at epsilon 1; at 2 only "ours" has runs; the size is neither good nor bad
    assert count == {
        "below": 1, "agrees": 1, "met": 1, "differs": 1, "other sample": 1, "not obtainable": 1, "not run": 1
    }  # fmt: skip
    beside = [figure for figure in judged if not figure.counts]
    assert [(figure.method, figure.verdict) for figure in beside] == [("ours", "better")]


def test_a_sentence_holds_for_a_number_of_settings(spec) -> None:
    figures = [
        *runs("ours", "1", "error", 0.3, 0.31),
        *runs("theirs", "1", "error", 0.1, 0.11),
        *runs("ours", "2", "error", 0.3, 0.31),
        *runs("theirs", "2", "error", 0.7, 0.71),
    ]
    (claim,) = spec.claims
    assert str(judge_claim(spec, claim, figures)) == "holds in part: 1 of 2, 1 of them significantly"
    assert str(judge_claim(spec, claim, figures[:4])) == "holds: 1 of 1, 1 of them significantly"
    assert str(judge_claim(spec, claim, figures[:2])) == "not run"


def test_the_role_of_a_method_is_in_no_key(spec) -> None:
    keys = {case.cell: case.key for case in cases(spec)}
    assert {case.cell: case.key for case in cases(read_spec(SPEC.replace('role = "ours"\n', "")))} == keys


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": ["method"]}, "their method in `by`, not as an axis"),
        ({"where": {"metric": "error"}}, "their metric in `values`, not as an axis or in `where`"),
        ({"standing": "other footing"}, "a standing needs a reason"),
        ({"by": []}, "published figures need `by`"),
    ],
)
def test_published_figures_that_nothing_could_stand_beside_are_refused(changes: dict[str, Any], said: str) -> None:
    content = msgspec.toml.decode(SPEC)
    content["published"][0] |= changes
    with pytest.raises(FedsynthError, match=said):
        read_spec(msgspec.toml.encode(content).decode())


def test_a_sentence_about_a_figure_that_is_neither_good_nor_bad_is_refused() -> None:
    text = SPEC.replace('text = "theirs is better"\nvalue = "error"', 'text = "theirs is better"\nvalue = "size"')
    with pytest.raises(FedsynthError, match=r"\[\[claims\]\] 1: no figure of 'size'"):
        check_names(read_spec(text))
    check_names(read_spec(SPEC))


@pytest.mark.parametrize("name", sorted(file.stem for file in SPECIFICATIONS.glob("*.toml")))
def test_runs_beside_a_published_figure_differ_in_their_seed_and_at_most_in_how_rows_lie(name: str) -> None:
    """A mean over several budgets, trusts or data sets stands beside no figure, and no figure is without runs."""
    spec = read_spec((SPECIFICATIONS / f"{name}.toml").read_text(encoding="utf-8"))
    runs: dict[str, list[dict[str, str]]] = {}
    for case in cases(spec):
        parts = {axis: str(getattr(case.cell, axis)) for axis in AXES}
        runs.setdefault(case.cell.method, []).extend({**parts, "metric": metric} for metric in case.metrics)
    mixed, without = [], []
    for entry in spec.published:
        if entry.standing in ("not obtainable", "not run"):
            continue
        for settings, names, _ in published_figures(entry):
            where = {"metric": [name.partition(": ")[0] for name in names], **entry.where, **settings}
            if not any(fits(run, where) for method in entry.by for run in runs.get(method, ())):
                without.append((entry.table, entry.system, where))
            for method in entry.by:
                alike = [run for run in runs.get(method, ()) if fits(run, where)]
                for axis in ("dataset", "epsilon", "delta", "trust", "arm"):
                    if len(found := {run[axis] for run in alike}) > 1:
                        mixed.append((entry.table, entry.system, settings, method, axis, sorted(found)))
    assert not mixed, mixed[:5]
    assert not without, without[:5]


@pytest.mark.parametrize("name", sorted(file.stem for file in SPECIFICATIONS.glob("*.toml")))
def test_every_published_figure_of_a_finished_run_has_a_verdict(name: str) -> None:
    spec = read_spec((SPECIFICATIONS / f"{name}.toml").read_text(encoding="utf-8"))
    figures = run_figures(kept_lines(spec, RESULTS / f"{name}.jsonl"))
    unseen = []
    for judged in judge(spec, figures):
        entry = judged.entry
        if judged.method or entry.standing in ("not obtainable", "not run"):
            continue
        metrics = [name.partition(": ")[0] for name in judged.names]
        where = {"method": list(entry.by), "metric": metrics, **entry.where, **judged.settings}
        unseen += [(entry.table, entry.system, where)] if any(fits(run.parts, where) for run in figures) else []
    assert not unseen, unseen[:5]
