"""What a table can be used for, from its scores and its card."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fedsynth.evaluation.plot_data import ColumnPlotData, PlotData
from fedsynth.evaluation.purposes import purposes
from fedsynth.evaluation.score import Estimate, Family, Score
from fedsynth.models.card import Limitations, ModelCard

CARD = ModelCard("auto", 3, 10_000.0, limitations=Limitations(value=8.0, crossing=30.0))
NAMES = (
    "count of a group", "cross table of two columns", "mean of a subgroup", "regression", "classifier", "rare events",
    "time", "outliers",
)  # fmt: skip


def score(metric: str, name: str, synthetic: float, reference: float, **more: Any) -> Score:
    family: Family = "utility" if metric == "learning" else "fidelity"
    return replace(Score(family, name, Estimate(synthetic), Estimate(reference), metric=metric), **more)


def told(*scores: Score, card: ModelCard | None = CARD, plotted: PlotData | None = None) -> dict[str, str]:
    return {purpose.name: purpose.answer for purpose in purposes(scores, card, plotted or PlotData())}


def test_every_purpose_has_an_answer_and_outliers_never_can_be_used():
    assert tuple(told()) == NAMES
    assert told()["outliers"] == "no"
    assert set(told(card=None).values()) == {"with care", "no"}


@pytest.mark.parametrize(
    ("crossing", "value", "count", "rare"),
    [(30.0, 8.0, "yes", "yes"), (150.0, 30.0, "with care", "with care"), (300.0, 60.0, "no", "no")],
)
def test_the_noise_in_counts_decides_on_groups_and_rare_events(crossing, value, count, rare):
    card = replace_card(Limitations(value=value, crossing=crossing))
    assert (told(card=card)["count of a group"], told(card=card)["rare events"]) == (count, rare)


def replace_card(limits: Limitations) -> ModelCard:
    return ModelCard("auto", 3, 10_000.0, limitations=limits)


@pytest.mark.parametrize(("similarity", "answer"), [(0.93, "yes"), (0.85, "with care"), (0.7, "no")])
def test_cross_tables_are_judged_beside_other_real_rows(similarity, answer):
    pair = score("pair-similarity", "pair similarity", similarity, 0.95)
    assert told(pair)["cross table of two columns"] == answer


def test_means_regressions_and_classifiers():
    good = told(
        score("means", "means kept", 1.0, 1.0, verdict="good"),
        score("correlations-kept", "strong correlations kept, Spearman", 0.1, 1.0),
        score("correlations-kept", "strong correlations kept, Pearson", 1.0, 1.0),
        score("learning", "ROC AUC", 0.79, 0.8),
    )
    assert [good[name] for name in NAMES[2:5]] == ["yes", "yes", "yes"]
    bad = told(
        score("means", "means kept", 0.5, 1.0, verdict="alarm", off=("bill",)),
        score("correlations-kept", "strong correlations kept, Pearson", 0.2, 1.0),
        score("learning", "ROC AUC", 0.6, 0.8),
    )
    assert [bad[name] for name in NAMES[2:5]] == ["no", "no", "no"]
    assert told(score("learning", "ROC AUC", math.nan, 0.8))["classifier"] == "with care"


def test_the_worst_column_of_times_decides_on_time():
    columns = tuple(ColumnPlotData(name, "datetime", (), (), (), ()) for name in ("born", "seen"))
    similar = score(
        "column-similarity", "column similarity", 0.9, 0.95, details={"born": (0.94, 0.95), "seen": (0.6, 0.95)}
    )
    assert told(similar, plotted=PlotData(columns))["time"] == "no"
    assert told(similar, plotted=PlotData(columns[:1]))["time"] == "yes"
    assert told(similar)["time"] == "with care"
