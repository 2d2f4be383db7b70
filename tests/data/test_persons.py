"""Rows of a person: at most so many, chosen by that person's rows alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.errors import InvalidParameter
from fedsynth.persons import keep_rows, keep_sites

KEY = bytes(range(32))
persons = st.lists(st.sampled_from(["ann", "bob", "", "a", "é", "7"]), max_size=40)


@given(ids=persons, most=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_a_person_keeps_all_rows_up_to_the_limit_and_no_more(ids, most):
    kept = keep_rows(ids, most, KEY)
    assert kept.dtype == bool
    assert kept.shape == (len(ids),)
    for person in set(ids):
        rows = np.array([one == person for one in ids])
        assert kept[rows].sum() == (min(most, rows.sum()) if person else 0)


@given(ids=persons, others=persons, places=st.lists(st.integers(0, 40), max_size=40), most=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_rows_of_other_persons_change_nothing(ids, others, places, most):
    mixed = [(person, row) for row, person in enumerate(ids)]
    for person, place in zip(others, places, strict=False):
        mixed.insert(min(place, len(mixed)), ("not " + person, -1))
    among = keep_rows([person for person, _ in mixed], most, KEY)
    own = [row for row, (_, number) in enumerate(mixed) if number >= 0]
    np.testing.assert_array_equal(among[own], keep_rows(ids, most, KEY))


def test_which_rows_are_kept_is_random_in_the_key_and_even_over_the_rows():
    ids = np.repeat(np.arange(3000), 4)
    first, again, other = (keep_rows(ids, 1, key) for key in (KEY, KEY, bytes(32)))
    np.testing.assert_array_equal(first, again)
    assert 0.15 < (first & other).sum() / 3000 < 0.35  # a quarter by chance
    assert abs(first.reshape(-1, 4).sum(axis=0) - 750).max() < 100  # 4.2 standard deviations


def test_an_identifier_is_the_same_in_whatever_type_its_column_has():
    ids = [7, 8, 7, 7, 8, 7]
    kept = keep_rows(ids, 2, KEY)
    for same in (
        np.array(ids, dtype=np.int16),
        pd.Series(ids, dtype="Int64"),
        np.array(ids, dtype=float),
        pd.Series(map(str, ids), dtype="string"),
        pd.Series(pd.Categorical(list(map(str, ids)))),
        [7, 8, "7", 7.0, "8", np.float32(7)],
    ):
        np.testing.assert_array_equal(keep_rows(same, 2, KEY), kept)


def test_rows_without_an_identifier_are_left_out():
    assert keep_rows(["a", None, "", np.nan, pd.NA, "a"], 3, KEY).tolist() == [True, False, False, False, False, True]
    assert keep_rows([], 1, KEY).tolist() == []
    with pytest.raises(InvalidParameter, match="at least 1"):
        keep_rows(["a"], 0, KEY)


@given(sites=st.lists(persons, min_size=1, max_size=5), others=persons, most=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_a_person_keeps_the_rows_of_as_many_sites_and_displaces_nobody(sites, others, most):
    ids = {f"s{at}": of for at, of in enumerate(sites)}
    kept = keep_sites(ids, most, KEY)
    for person in {one for of in sites for one in of} - {""}:
        at = [name for name, of in ids.items() if person in of]
        used = [name for name in at if kept[name][np.array(ids[name]) == person].all()]
        assert len(used) == min(most, len(at))
        assert not any(kept[name][np.array(ids[name]) == person].any() for name in set(at) - set(used))
    more = {**ids, "s0": [*ids["s0"], *("not " + person for person in others)]}
    np.testing.assert_array_equal(keep_sites(more, most, KEY)["s0"][: len(ids["s0"])], kept["s0"])
