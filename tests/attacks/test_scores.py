"""Parameters that break a declared sensitivity: shares below zero, weights without end, tied components.

The sensitivity of every query over its whole domain is tested in the contract suite; here are the parameters that
broke it once, and that a site now refuses or bears.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.attacks.world import AGE, DIAGNOSIS, SCHEMA, SEX, ask, question, site, table

from fedsynth.bench.published.tda_sums import FIXED, MixtureSums
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import MOST_ROWS, PUBLISHED
from fedsynth.federation.wire import Reply, WireError
from fedsynth.methods.flaim_scores import GRID, MOST_PENALTY, FLAIMSelection
from fedsynth.privacy.release import Exponential

CANDIDATES = ((SEX, DIAGNOSIS), (SEX, AGE))
CELLS = [10, 20]
RARE = 1 * 5 + 4
"""The cell of the first candidate that holds the record looked for, and nobody else."""


def scores(**change: Any) -> FLAIMSelection:
    """Return a choice between two candidates, under a uniform model, with some of its parameters changed."""
    usual: dict[str, Any] = {
        "records": 40,
        "candidates": CANDIDATES,
        "weights": np.array([1, 1]),
        "penalties": np.array([0, 0]),
        "factors": ((SEX,),),
        "potentials": np.zeros(2),
    }
    return FLAIMSelection(**{**usual, **change})


def choose(query: FLAIMSelection, step: int, target: bool, rows: int = 40, rho: float = 1e-6) -> Reply:
    """Return what a site with or without the record says when asked to choose."""
    asked = question(query, verb="choose", release=Exponential(rho), step=step)
    return ask(site(table(rows, target=target)), asked)


def moved(query: FLAIMSelection) -> float:
    """Return how far the record moves any score, in units of what is declared."""
    query.check(SCHEMA)
    with_it, without = (query.utilities(table(target=target), []) for target in (True, False))
    return float(np.abs(with_it - without).max() / query.span(SCHEMA).add)


def shares_that_look_for(cell: int, depth: int) -> NDArray[np.int64]:
    """Return shares of both candidates that sum to one, one of them far below zero."""
    pointed = np.full(CELLS[0], (GRID + depth) // (CELLS[0] - 1))
    pointed[cell] = -depth
    return np.concatenate([pointed, np.full(CELLS[1], GRID // CELLS[1])])


def test_an_honest_choice_is_answered():
    """The attacks below are refused for what they are, if they are, and not for their form."""
    assert choose(scores(), 0, target=True).code == "answered"
    assert 0 < moved(scores()) <= 1


UNFIT = {
    "shares below zero": {"by_candidate": shares_that_look_for(RARE, GRID)},
    "shares beyond all": {"by_candidate": np.full(30, GRID)},
    "shares of one table for two": {"by_candidate": np.full(10, GRID // 10)},
    "both kinds of shares": {"by_candidate": np.full(30, GRID // 20), "by_column": np.full(17, GRID // 10)},
    "a weight of zero": {"weights": np.array([0, 1])},
    "a weight below zero": {"weights": np.array([-1, 1])},
    "a weight beyond all": {"weights": np.array([2**62, 1])},
    "a penalty that reaches the largest number": {"penalties": np.array([MOST_PENALTY, 0])},
    "potentials beyond all": {"potentials": np.array([1e300, 0.0])},
    "no records": {"records": 0},
    "more records than sites have": {"records": MOST_ROWS + 1},
    "columns of a candidate out of order": {"candidates": ((DIAGNOSIS, SEX), (SEX, AGE))},
    "a column twice": {"candidates": ((SEX, SEX), (SEX, AGE))},
}


@pytest.mark.parametrize("change", UNFIT.values(), ids=UNFIT)
def test_a03_parameters_that_break_a_span_are_refused(change):
    """Whatever would let a record move a score further than declared is refused, with and without the record."""
    for target in (True, False):
        asked = site(table(target=target))
        try:
            message = question(scores(**change), verb="choose", release=Exponential(1e-6))
        except (InvalidParameter, WireError):  # not even an honest coordinator's own program writes it
            continue
        assert ask(asked, message).code == "refused"
        assert asked.account.spent().rho == 0


EXTREME = {
    "largest weights": {"weights": np.array([255, 255])},
    "one weight of each": {"weights": np.array([1, 255])},
    "most records": {"records": MOST_ROWS},
    "penalties at both ends": {"penalties": np.array([MOST_PENALTY - 1, 1 - MOST_PENALTY])},
    "cancelling proxies": {"by_candidate": np.concatenate([np.full(n, GRID // (2 * n)) for n in CELLS])},
    "twice a whole": {"by_candidate": np.concatenate([np.full(n, 2 * GRID // n) for n in CELLS])},
    "by column": {"by_column": np.full(17, GRID // 10), "weights": np.array([255, 1])},
    "a model of one cell": {"potentials": np.array([1e12, -1e12])},
    "a model that looks for the record": {"factors": ((SEX, DIAGNOSIS),), "potentials": np.eye(10)[RARE] * 1e12},
}


@pytest.mark.parametrize("change", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("records", [1, 40, 501, MOST_ROWS])
def test_a03_a_record_moves_a_score_no_further_than_declared(change, records):
    """The sensitivity of a choice holds for every parameter that a site accepts, exactly: nothing is rounded."""
    assert moved(scores(**{"records": records, **change})) <= 1


def test_a03_one_record_is_not_read_from_choices_that_cost_nothing():
    """At the least price a choice tells next to nothing of one record: the draws of both tables look alike.

    500 draws between two candidates, at epsilon 0.0028 each: frequencies have a difference of standard deviation 0.032,
    which is beyond 0.17 once in 10^7 times.
    """
    looking = scores(factors=((SEX, DIAGNOSIS),), potentials=np.eye(10)[RARE] * 1e12, weights=np.array([255, 255]))
    drawn = {
        target: [choose(looking, step, target).answer.values[0] for step in range(500)]  # type: ignore[union-attr]
        for target in (True, False)
    }
    assert abs(np.mean(drawn[True]) - np.mean(drawn[False])) < 0.17


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_a04_no_choice_fails_at_a_threshold(rows):
    """A draw never fails: utilities at both ends of their range are no oracle for an exact score."""
    for penalty in (MOST_PENALTY - 1, 2**58, 0, -(2**58), 1 - MOST_PENALTY):
        query = scores(penalties=np.array([penalty, 0]), records=MOST_ROWS, weights=np.array([255, 255]))
        for target in (True, False):
            assert choose(query, 0, target, rows).code == "answered"
            assert np.abs(query.utilities(table(rows, target=target), [])).max() < 2**62


COEFFICIENTS = {
    "tied at the end of the range": np.tile([[[2.0**100]], [[0.0]], [[0.0]]], (1, 1, 256)),
    "tied at zero": np.zeros((3, 1, 256)),
    "far apart": np.stack([np.linspace(-1e30, 1e30, 256), np.zeros(256), np.zeros(256)])[:, None],
    "a spike": np.stack([np.zeros(256), np.linspace(0, 2.0**100, 256), np.full(256, -(2.0**100))])[:, None],
}


@pytest.mark.parametrize("coefficients", COEFFICIENTS.values(), ids=COEFFICIENTS)
def test_a05_responsibilities_of_a_record_sum_to_one(coefficients):
    """One record moves the sums of an E step no further than declared, for every coefficient that is accepted."""
    query = MixtureSums((AGE,), coefficients)
    query.check(SCHEMA)
    declared = query.sensitivity(SCHEMA)
    sums = [query.answer(table(target=target)) for target in (True, False)]
    difference = (sums[0] - sums[1]).astype(float)
    assert difference[:256].sum() == FIXED
    assert np.abs(difference).sum() <= declared.l1
    assert np.sqrt((difference**2).sum()) <= declared.l2


@pytest.mark.parametrize("value", [2.0**101, -(2.0**1000)])
def test_a05_coefficients_beyond_the_range_are_refused(value):
    """Coefficients whose log densities might not be finite are refused before a row is looked at."""
    asked = site(kinds=PUBLISHED)
    assert ask(asked, question(MixtureSums((AGE,), np.full((3, 1, 2), value)))).code == "refused"
    assert asked.account.spent().rho == 0
