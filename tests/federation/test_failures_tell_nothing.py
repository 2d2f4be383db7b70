"""Whether a made-up request fails does not depend on rows: failing is seen, and no noise hides it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import InvalidParameter
from fedsynth.methods.bayes import grouped_counts
from fedsynth.methods.tda_sums import products

TABLES = [random_table(rows, 0) for rows in (0, 1, 200)]


@pytest.mark.parametrize("table", TABLES, ids=["empty", "one row", "many rows"])
@pytest.mark.parametrize("groups", [[0], [-1] * SCHEMA.sizes[0], [0] * (SCHEMA.sizes[0] + 1)])
def test_groups_must_be_those_of_the_column(table, groups):
    with pytest.raises(InvalidParameter, match="each needs a group"):
        grouped_counts.answer(table, [{"groups": np.array(groups)}], [[0]])


@pytest.mark.parametrize("table", TABLES, ids=["empty", "one row", "many rows"])
@pytest.mark.parametrize("scores", [[1], [1] * (SCHEMA.sizes[0] + 1)])
def test_scores_must_be_those_of_the_column(table, scores):
    with pytest.raises(InvalidParameter, match="each needs a score"):
        products.answer(table, bins=8, columns=[{"scores": np.array(scores)}] * 2, bound=100)
