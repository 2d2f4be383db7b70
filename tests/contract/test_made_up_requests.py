"""A request that a dishonest server makes up tells nothing past the noise: neither by failing nor by its answer.

Every registered task is asked with parameters that are nearly right. Whether and how it fails must not depend on the
rows; and where it answers, one record must move the answer no further than declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.contract.test_sensitivity import CHOICE_CASES, QUERY_CASES, SHARED_ONLY
from tests.contract.world import SCHEMA, SIZES, random_table

from fedsynth.federation.task import CHOICES, QUERIES
from fedsynth.models.cells import Cells
from fedsynth.privacy.noise import KeyedBits, exponential_mechanism
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.table import Table

STRANGE: tuple[Any, ...] = (-1, 0, 3, 1000, 0.5, float("nan"), float("inf"), -float("inf"), None, "x", [], [0])
# No rows, one row of the lowest and of the highest codes, some, many.
TABLES = [
    random_table(0, 0),
    Table(SCHEMA, tuple(np.zeros(1, dtype=np.uint8) for _ in SIZES)),
    Table(SCHEMA, tuple(np.full(1, size - 1, dtype=np.uint8) for size in SIZES)),
    random_table(7, 1),
    random_table(30, 2),
]


def made_up(value: Any) -> Iterator[Any]:
    """Yield values that differ from ``value`` in one place, at any depth."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from ({**value, name: other} for other in made_up(part))
        return
    if isinstance(value, np.ndarray):
        yield from ([] if value.ndim == 0 else [value[:-1], np.concatenate([value, value[-1:]]), value[:0]])
        for strange in (-1, 0, 1000, np.nan, np.inf):
            for place in {0, value.size - 1} if value.size else ():
                other = value.astype(np.float64)
                other.flat[place] = strange
                yield other if not np.isfinite(strange) else other.astype(value.dtype)
        return
    if isinstance(value, list | tuple):
        if value:
            yield value[:-1]
            yield [*value, value[-1]]
        for at in sorted({0, len(value) - 1}) if value else ():
            yield from ([*value[:at], other, *value[at + 1 :]] for other in made_up(value[at]))
    yield from STRANGE


@cache
def number_tables() -> list[Table]:
    """Return tables with a number that may be missing: no rows, one at either bound, a missing one, some, many."""
    schema = Schema((Numeric("x", 0, 9, bins=4, missing=True), Categorical("c", ("a", "b", "c"))))
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame({"x": np.array(x, dtype=float), "c": [*"abcabcabca"][: len(x)]})
        for x in ([], [0.0], [9.0], [np.nan], [1.0, np.nan, 9.0], rng.uniform(0, 9, 10))
    ]
    return [schema.encode(frame) for frame in frames]


def number_cases() -> list[tuple[str, dict[str, Any]]]:
    """Return requests about them: grids of cells, mixtures, E steps."""
    schema = number_tables()[0].schema
    cells = [Cells.of(column).params for column in schema.columns]
    scores = [{**one, "scores": one["groups"] + 1} for one in cells]
    mixture = {"mixture": np.array([[0.5, 0.5], [2.0, 7.0], [1.0, 2.0]]), "scores": np.array([5, -5, 9])}
    return [
        ("grouped_counts", {"columns": cells, "cliques": [(0,), (0, 1)]}),
        ("histograms", {"bins": 8}),
        ("products", {"columns": scores, "bound": 500}),
        ("moments", {"columns": [mixture, scores[1]], "bound": 500}),
        ("mixture_sums", {"columns": [0], "coefficients": np.array([[[0.0, -1.0]], [[1.0, 0.5]], [[-2.0, -3.0]]])}),
    ]


def outcome(name: str, params: dict[str, Any], table: Table) -> str:
    """Return what a server sees of a site's success: an answer's size, or the kind of error."""
    shared = {key: value for key, value in params.items() if key not in SHARED_ONLY}
    try:
        with np.errstate(all="ignore"):
            if name in QUERIES:
                QUERIES[name].sensitivity(table.schema, **params)
                return f"{QUERIES[name].answer(table, **params).size} numbers"
            choice = CHOICES[name]
            prepared, sensitivity = choice.prepare(SCHEMA, **shared), choice.sensitivity(SCHEMA, **shared)
            utilities = choice.utilities(table, prepared, [], **params)
            exponential_mechanism(utilities, sensitivity, 1.0, KeyedBits(b"k" * 32, b""))
            return f"one of {utilities.size}"
    except Exception as error:
        return type(error).__name__


CASES = [(name, params, TABLES) for name, cases in (QUERY_CASES | CHOICE_CASES).items() for params in cases]
CASES += [(name, params, number_tables()) for name, params in number_cases()]
NAMES = [name for name, _, _ in CASES]


def test_every_task_is_asked():
    assert set(NAMES) == {*QUERIES, *CHOICES}


@pytest.mark.parametrize(("name", "params", "tables"), CASES, ids=NAMES)
def test_failing_does_not_depend_on_the_rows(name, params, tables):
    assert outcome(name, params, tables[-1])[0] in "0123456789o"  # as asked, it answers
    for other in made_up(params):
        seen = {outcome(name, other, table) for table in tables}
        assert len(seen) == 1, (seen, other)


@pytest.mark.parametrize(("name", "params", "tables"), [case for case in CASES if case[0] in QUERIES])
def test_what_is_answered_all_the_same_moves_no_further_than_declared(name, params, tables):
    for other in made_up(params):
        if not outcome(name, other, tables[0]).endswith("numbers"):
            continue
        declared = QUERIES[name].sensitivity(tables[0].schema, **other)
        for table in tables[1:]:
            one, less = table, table.take(np.arange(1, len(table)))
            with np.errstate(all="ignore"):
                moved = QUERIES[name].answer(one, **other) - QUERIES[name].answer(less, **other)
            assert np.abs(moved).sum() <= declared.l1 * (1 + 1e-9), other
            assert np.sqrt((moved.astype(np.float64) ** 2).sum()) <= declared.l2 * (1 + 1e-9), other
