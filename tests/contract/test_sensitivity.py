"""Every registered task is held to its declared sensitivity on neighbouring tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.contract.world import SCHEMA, SIZES, random_table

from fedsynth.federation.task import CHOICES, QUERIES, Choice, Query, marginals
from fedsynth.models.estimate import Measurement, estimate
from fedsynth.privacy.release import Sensitivity
from fedsynth.table import Table

PAIRS = [(0, 1), (1, 2), (2, 3), (0, 3)]


def flaim_params(seed: int, by_column: bool = False, by_candidate: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    measured = [Measurement((j,), rng.random(n) * 50, 3.0) for j, n in enumerate(SIZES)]
    meta, arrays = estimate(SIZES, measured, 100.0, iterations=20).to_arrays()
    shares = [rng.dirichlet(np.ones(SIZES[a] * SIZES[b])) for a, b in PAIRS]
    return {
        "model": {"meta": meta, "arrays": arrays},
        "candidates": PAIRS,
        "weight": [1.0, 4.0, 2.0, 3.0],
        "penalty": [1.0, 2.0, 0.0, 5.0],
        "by_column": [rng.dirichlet(np.ones(n)) for n in SIZES] if by_column else [],
        "by_candidate": shares if by_candidate else [],
        "steering": {},
        "scale": 30.0 + seed,
    }


QUERY_CASES: dict[str, list[dict[str, Any]]] = {
    "size": [{}, {"label": "site-1"}],
    "marginals": [{"cliques": [(0,)]}, {"cliques": PAIRS}, {"cliques": [(0, 1, 2), (1,), (0, 1, 2, 3)]}],
}
QUERY_CASES["sketches"] = [
    {"pairs": PAIRS, "width": 4, "seed": 0},
    {"pairs": PAIRS, "width": 9, "seed": 1},
    {"pairs": [(0, 1)], "width": 100, "seed": 0},
]
# A record's encoded numbers reach the declarations where all of them are equal, or all but one are zero.
_LEVEL = [{"scores": [700] * n} for n in SIZES]
_ONLY_FIRST = [{"scores": [900 * (j == 0)] * n} for j, n in enumerate(SIZES)]
QUERY_CASES["histograms"] = [{"bins": 8}, {"bins": 256}]
QUERY_CASES["products"] = [{"columns": _LEVEL, "bound": 4 * 700**2}]
QUERY_CASES["moments"] = [{"columns": _ONLY_FIRST, "bound": 900**2}]
# Held to its declaration beside its method's tests, on tables that have numbers.
ELSEWHERE = {"mixture_sums"}
_GROUPS = [{"groups": np.arange(n) // 2} for n in SIZES]
QUERY_CASES["grouped_counts"] = [
    {"columns": _GROUPS, "cliques": PAIRS},
    {"columns": [{"groups": np.arange(n)} for n in SIZES], "cliques": [(0, 1, 2), (3,)], "label": "site-1"},
]
CHOICE_CASES: dict[str, list[dict[str, Any]]] = {
    "flaim_scores": [flaim_params(1), flaim_params(2, by_column=True), flaim_params(3, by_candidate=True)],
}
SHARED_ONLY = {"scale"}  # parameters that a request addresses to one site


def neighbours(seed: int) -> tuple[Table, Table]:
    table = random_table(1 + seed % 40, seed)
    gone = np.random.default_rng(seed).integers(len(table))
    return table, table.take(np.arange(len(table)) != gone)


def query_excess(query: Query, params: dict[str, Any], seeds: int = 60) -> float:
    """Return by what factor the worst of ``seeds`` neighbouring pairs passes the declaration (1 is just within)."""
    declared = query.sensitivity(SCHEMA, **params)
    worst = 0.0
    for seed in range(seeds):
        one, other = neighbours(seed)
        moved = query.answer(one, **params) - query.answer(other, **params)
        worst = max(worst, np.abs(moved).sum() / declared.l1, np.sqrt((moved**2).sum()) / declared.l2)
    return worst


def choice_excess(choice: Choice, params: dict[str, Any], seeds: int = 60) -> float:
    """Return by what factor the worst of ``seeds`` neighbouring pairs passes the declaration."""
    shared = {name: value for name, value in params.items() if name not in SHARED_ONLY}
    declared = choice.sensitivity(SCHEMA, **shared)
    prepared = choice.prepare(SCHEMA, **shared)
    worst = 0.0
    for seed in range(seeds):
        one, other = neighbours(seed)
        moved = choice.utilities(one, prepared, [], **params) - choice.utilities(other, prepared, [], **params)
        worst = max(worst, np.abs(moved).max() / declared)
    return worst


def test_every_task_has_a_case():
    assert set(QUERIES) == set(QUERY_CASES) | ELSEWHERE
    assert set(CHOICES) == set(CHOICE_CASES)


@pytest.mark.parametrize("name", sorted(QUERY_CASES))
def test_a_query_moves_no_further_than_declared(name):
    for params in QUERY_CASES[name]:
        # The declarations are met exactly by a record that lands in one cell of each table.
        assert query_excess(QUERIES[name], params) == pytest.approx(1)


@pytest.mark.parametrize("name", sorted(CHOICE_CASES))
def test_a_choice_moves_no_further_than_declared(name):
    for params in CHOICE_CASES[name]:
        assert 0.3 < choice_excess(CHOICES[name], params) <= 1 + 1e-9


@pytest.mark.parametrize("name", sorted(QUERY_CASES))
def test_the_size_of_an_answer_is_declared_and_public(name):
    for params in QUERY_CASES[name]:
        cells = QUERIES[name].cells(SCHEMA, **params)
        assert {QUERIES[name].answer(random_table(rows, 1), **params).size for rows in (0, 1, 7, 500)} == {cells}


def test_a_wrong_declaration_is_caught():
    wrong = Query("wrong", marginals.answer, lambda schema, cliques: Sensitivity(1, 1), marginals.cells)
    assert query_excess(wrong, {"cliques": PAIRS}) > 1.9

    right = CHOICES["flaim_scores"]
    unscaled = Choice("unscaled", right.utilities, lambda schema, **params: 1.0, right.prepare)
    assert choice_excess(unscaled, flaim_params(2, by_column=True)) > 1.5


def test_normalising_by_the_sites_own_count_breaks_the_published_bound():
    # Why scores are kept in records: || c / N - p ||_1 of a normalised table moves by up to 2 / (N + 1),
    # not 1 / N.
    share = np.array([1.0, 0.0])
    before, after = np.array([440, 0]), np.array([440, 1])
    moved = np.abs(after / after.sum() - share).sum() - np.abs(before / before.sum() - share).sum()
    assert moved > 1.9 / 440
