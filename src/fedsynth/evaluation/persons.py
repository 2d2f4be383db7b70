"""Rows of one person in an evaluation: draws by person, scores of persons, and bands where rows are not independent.

Rows of one person resemble each other. A figure whose band takes all rows for independent then has too narrow a band,
and one that compares rows with other rows of the same persons is too good. A table without persons
(:attr:`Table.persons <fedsynth.rows.Table.persons>`) is treated as if each row were a person's only one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.rows import Table

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
_LEAST = 100  # persons that are drawn even if they have more rows than asked for


def numbered_persons(table: Table) -> Numbers:
    """Return a number for the person of each row, from 0 without gaps, shape ``(rows,)``."""
    if table.persons is None:
        return np.arange(len(table))
    return np.unique(table.persons[: len(table)], return_inverse=True)[1]


def count_persons(table: Table) -> int:
    """Return the number of persons with rows in the table; without persons, its number of rows."""
    return len(table) if table.persons is None else len(np.unique(table.persons[: len(table)]))


def rows_per_person(table: Table) -> Numbers:
    """Return the number of rows of each person, in the order of :func:`numbered_persons`, shape ``(persons,)``."""
    return np.bincount(numbered_persons(table))


def take_persons(table: Table, persons: Numbers) -> Table:
    """Return all rows of the persons with these numbers (:func:`numbered_persons`), person by person in this order."""
    if table.persons is None:
        return table.take(persons)
    of = numbered_persons(table)
    place = np.full(int(of.max()) + 1, len(persons))
    place[persons] = np.arange(len(persons))
    order = np.argsort(place[of], kind="stable")
    return table.take(order[place[of[order]] < len(persons)])


def drawn_persons(table: Table, most: int, rng: np.random.Generator) -> Table:
    """Return all rows of at most ``most`` persons, drawn by ``rng``; the table itself if it has no more persons."""
    if (number := count_persons(table)) <= most:
        return table
    return take_persons(table, rng.choice(number, most, replace=False, shuffle=False))


def persons_with(table: Table, rows: int) -> int:
    """Return how many persons have about so many ``rows`` in all, but at least 100 if rows have persons."""
    return rows if table.persons is None else max(_LEAST, rows * count_persons(table) // len(table))


def mean_by_person(scores: Floats, table: Table) -> Floats:
    """Return the mean score of each person's rows, shape ``(persons,)``; ``scores`` has one for each row of ``table``.

    Without persons, they are the scores themselves.
    """
    if table.persons is None:
        return scores
    of = numbered_persons(table)
    means: Floats = np.bincount(of, scores) / np.bincount(of)
    return means


def standard_error(values: NDArray[Any], table: Table) -> float:
    """Return the standard error of the mean of ``values``, one for each row of ``table``; nan for a single person.

    Persons are independent, the rows of one are not: with ``s_p`` the sum of person p's deviations from the mean, it is
    the root of ``P / (P - 1) * sum(s_p^2)`` over the number of rows, for P persons (linearised variance of a ratio,
    Cochran 1977, section 9A). If each person has one row, it is the usual standard error.
    """
    if table.persons is None:
        return float(values.std(ddof=1)) / math.sqrt(len(values))
    sums = np.bincount(numbered_persons(table), values - values.mean())
    if len(sums) < 2:
        return math.nan
    return math.sqrt(len(sums) / (len(sums) - 1) * float((sums**2).sum())) / len(values)


def effective_rows(hits: NDArray[np.bool_], table: Table) -> float:
    """Return how many independent rows would tell as much of the share of ``hits``, one for each row of ``table``.

    It is the number of rows, divided by the ratio of the share's variance (:func:`standard_error`) to that of
    independent rows, and never more; if all rows agree, it is the number of persons.
    """
    rows, share = len(hits), float(hits.mean())
    if table.persons is None:
        return float(rows)
    variance = standard_error(hits.astype(np.float64), table) ** 2
    if not 0 < share < 1 or not variance > 0:
        return float(count_persons(table))
    return min(float(rows), max(1.0, rows * share * (1 - share) / (rows - 1) / variance))
