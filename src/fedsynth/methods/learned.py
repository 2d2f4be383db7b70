"""Learned lookups: which value of one category leads to which of another, found out by a run's first question.

A city determines its country, but nobody has the list. The tables of both columns of each such lookup are counted in
one sum, before the method's own questions and for a share of the budget that the schema declares. A value leads to the
one with which most of its noisy count lies, if that is :data:`CLEAR` times as likely as any other, given the noise.
What is found is a function of the released counts, so that its use has no further privacy cost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.errors import Unsupported
from fedsynth.federation.query import Counts
from fedsynth.methods.measure import EXACT_STD, weights_for
from fedsynth.schema.bins import Floats
from fedsynth.schema.coarse import CoarseColumn
from fedsynth.schema.forms import Lookup

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation

_log = logging.getLogger(__name__)

CLEAR = 100.0  # odds, by likelihood, of a value's result against the next one

Tables = Mapping[str, Mapping[str, str | int | bool]]
"""For each learned column, its value for each value of the finer column, as text, that clearly leads to one."""


def learn(federation: Federation) -> tuple[Federation, Tables]:
    """Ask for the tables of all learned lookups of the schema; return what is left of the budget, and the tables.

    A record is in one cell of each table (:meth:`Counts.sensitivity <fedsynth.federation.query.Counts.sensitivity>`).
    Without such lookups nothing is asked. Raises :class:`Unsupported` under a trust model that has no sums.
    """
    schema = federation.schema
    if not schema.learned:
        return federation, {}
    if federation.trust.sums is None:
        raise Unsupported(
            f"a learned lookup needs a sum over sites, which --trust {federation.trust.name} does not have; write its "
            "table in the schema, or choose another trust"
        )
    shares = [share for one in schema.learned if isinstance(one.form, Lookup) and (share := one.form.learned)]
    cliques = [(schema.index(one.finer.name), schema.index(one.column.name)) for one in schema.learned]
    query = Counts.of(len(schema.stored), cliques, weights_for(shares, federation.budget))
    released = federation.sum(query, sum(shares))
    found = {
        one.column.name: _leading(one, table, std)
        for one, table, std in zip(schema.learned, released.tables, released.stds, strict=True)
    }
    for lookup in schema.learned:
        known = found[lookup.column.name]
        _log.warning(
            "column %r: noise lets %d of the values of %r be looked up; rows with any other value of it get 'other'",
            *(lookup.column.name, len(known), lookup.finer.name),
        )
    return replace(federation, part=federation.part * (1 - sum(shares))), found


def _leading(lookup: CoarseColumn, table: Floats, std: float) -> dict[str, str | int | bool]:
    """Return the column's value for each value of the finer column in ``table`` (finer x coarse codes, in records).

    If all rows of a value have one result, and the other cells hold noise of variance s^2 alone, the likelihood of the
    result with the noisy count n, at the best number of rows, is exp(n^2 / (2 s^2)) times that of no rows.
    """
    assert not lookup.finer.is_number
    values, results = lookup.finer.labels, lookup.column.labels
    known = table[: len(values), : len(results)]
    ascending = np.sort(np.maximum(np.column_stack([known, np.zeros(len(known))]), 0.0), axis=1)
    odds = (ascending[:, -1] ** 2 - ascending[:, -2] ** 2) / (2 * max(std, EXACT_STD) ** 2)
    clear = np.flatnonzero(odds >= math.log(CLEAR))
    best = known.argmax(axis=1)
    return {str(values[code]): results[best[code]] for code in clear}
