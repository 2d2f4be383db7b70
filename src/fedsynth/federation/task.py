"""What a site can be asked: registered pure functions of its table, each with its sensitivity declared beside it.

A task sees one site's table and the request's public parameters, and nothing else; it makes no noise, no I/O
and no random draws. The contract suite runs every registered task on neighbouring tables and holds it to its
declaration. It also asks every task with made-up parameters: whether and how a task fails must follow from schema and
parameters alone, since no noise hides a failure (see :func:`finite`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.privacy.release import Sensitivity
from fedsynth.schema import Schema
from fedsynth.table import Table

T = TypeVar("T")
Taken = Sequence[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True)
class Query:
    """A statistic to be summed over sites.

    ``answer(table, **params)`` returns a flat int64 array whose size depends on schema and parameters alone;
    ``sensitivity(schema, **params)`` bounds how far one record moves it; ``cells(schema, **params)`` is its
    size.
    """

    name: str
    answer: Callable[..., NDArray[np.int64]]
    sensitivity: Callable[..., Sensitivity]
    cells: Callable[..., int]


@dataclass(frozen=True)
class Choice:
    """Utilities of public candidates, from which the runtime draws one privately.

    ``utilities(table, prepared, taken, **params, **own)`` returns one float per candidate, of which one
    record moves none by more than ``sensitivity(schema, **params)``; ``own`` are parameters of this site
    alone. ``prepare(schema, **params)`` is the part that needs no table; it runs once per question. When
    several draws are asked for, ``look`` and ``look_params(index, params)`` say which statistic is looked at
    (with noise) after each draw but the last; ``taken`` holds the draws and looks so far.
    """

    name: str
    utilities: Callable[..., NDArray[np.float64]]
    sensitivity: Callable[..., float]
    prepare: Callable[..., Any]
    look: Query | None = None
    look_params: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None


QUERIES: dict[str, Query] = {}
CHOICES: dict[str, Choice] = {}


def _add(registry: dict[str, T], name: str, task: T) -> None:
    if name in registry:
        raise ValueError(f"a task named {name!r} is registered already; tasks need unique function names")
    registry[name] = task


def _find(registry: dict[str, T], name: str) -> T:
    if name not in registry:
        raise Unsupported(f"no task named {name!r} here; install the same fedsynth version at server and sites")
    return registry[name]


def query(
    *, sensitivity: Callable[..., Sensitivity], cells: Callable[..., int]
) -> Callable[[Callable[..., NDArray[np.int64]]], Query]:
    """Register a statistic under its function's name, with its declared sensitivity and size."""

    def register(answer: Callable[..., NDArray[np.int64]]) -> Query:
        task = Query(answer.__name__, answer, sensitivity, cells)
        _add(QUERIES, task.name, task)
        return task

    return register


def choice(
    *,
    sensitivity: Callable[..., float],
    prepare: Callable[..., Any],
    look: Query | None = None,
    look_params: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None,
) -> Callable[[Callable[..., NDArray[np.float64]]], Choice]:
    """Register utilities of candidates under their function's name, with their declared sensitivity."""

    def register(utilities: Callable[..., NDArray[np.float64]]) -> Choice:
        task = Choice(utilities.__name__, utilities, sensitivity, prepare, look, look_params)
        _add(CHOICES, task.name, task)
        return task

    return register


def find_query(name: str) -> Query:
    """Return the registered statistic of that name; a request can run nothing else."""
    return _find(QUERIES, name)


def find_choice(name: str) -> Choice:
    """Return the registered choice of that name; a request can run nothing else."""
    return _find(CHOICES, name)


def finite(value: Any, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    """Return numbers of a request as an array of ``shape``; raises :class:`InvalidParameter` for any others.

    For whatever a task looks rows up in, before it looks at a row: a list too short would fail for some rows only, a
    number that is not finite would lead to a failure for some rows only, and a server that makes up such a request
    would learn whether there are any.
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.full((), np.nan)
    if array.shape != shape or not np.isfinite(array).all():
        raise InvalidParameter(f"{what} must be finite numbers of shape {shape}; start the run again")
    return array


@query(sensitivity=lambda schema, label="": Sensitivity(l1=1, l2=1), cells=lambda schema, label="": 1)
def size(table: Table, label: str = "") -> NDArray[np.int64]:
    """Number of records, shape ``(1,)``; one record moves it by one. Sites of different labels are summed apart."""
    return np.array([len(table)], dtype=np.int64)


def marginals_sensitivity(schema: Schema, cliques: Sequence[Sequence[int]]) -> Sensitivity:
    """One record moves one cell of each of the m tables by one: m in L1, sqrt(m) in L2."""
    return Sensitivity(l1=len(cliques), l2=float(np.sqrt(len(cliques))))


def marginals_cells(schema: Schema, cliques: Sequence[Sequence[int]]) -> int:
    """Cells of all the tables together."""
    return sum(math.prod(schema.shape(clique)) for clique in cliques)


@query(sensitivity=marginals_sensitivity, cells=marginals_cells)
def marginals(table: Table, cliques: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Contingency tables of ``cliques``, each flattened in C order, one after the other."""
    result = np.empty(marginals_cells(table.schema, cliques), dtype=np.int64)
    start = 0
    for clique in cliques:
        counts = table.counts(clique).ravel()
        result[start : start + counts.size] = counts
        start += counts.size
    return result
