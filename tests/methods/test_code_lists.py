"""Code lists: what noise hides becomes a shorter code or "other", never a code that no row has."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedsynth as fs
from fedsynth.methods.code_lists import at_least, is_code_list, kept_codes
from fedsynth.models.adaptive_bins import AdaptiveBins

CHAPTERS = [f"{letter}{number:02d}" for letter in "ABCDEFGH" for number in range(30)]
CODES = tuple(code for chapter in CHAPTERS for code in (chapter, *(f"{chapter}.{digit}" for digit in range(10))))


def schema() -> fs.Schema:
    return fs.Schema((fs.Categorical("icd", CODES, missing=True, unknown="other"), fs.Categorical("sex", ("f", "m"))))


@pytest.mark.parametrize("method", ["auto", "oneshot", "fedchowliu", "mst"])
def test_no_row_gets_a_code_that_no_row_has(method):
    rng = np.random.default_rng(1)
    used = rng.choice(len(CODES), 500, replace=False)
    weight = 1 / np.arange(1, 501)
    code = rng.choice(used, 20_000, p=weight / weight.sum())
    frame = pd.DataFrame({"icd": np.array(CODES)[code], "sex": np.where(rng.random(20_000) < 0.4, "f", "m")})
    trust = "trusted" if method == "mst" else "secure"
    synthesizer = fs.fit(
        [frame.iloc[at::4] for at in range(4)], schema(), method=method, epsilon=1.0, delta=1e-6, trust=trust, seed=2
    )
    rows = synthesizer.sample(20_000, 3)
    known = set(frame.icd) | {code[:3] for code in frame.icd} | {"other"}
    assert (~rows.icd.dropna().isin(known)).mean() < 0.001
    common = frame.icd.value_counts()[:5]
    drawn = rows.icd.value_counts().reindex(common.index)
    assert (drawn / common - 1).abs().max() < 0.3


def test_hidden_codes_add_up_to_the_code_with_which_they_begin():
    column = fs.Categorical("icd", CODES, missing=True, unknown="other")
    counts = np.zeros(column.size)
    place = {code: at for at, code in enumerate(column.labels)}
    counts[place["A00.3"]] = 1000.0
    for digit in range(10):
        counts[place[f"B07.{digit}"]] = 60.0  # below the threshold of about 81 rows each, 600 together
    counts[place["C01.1"]], counts[place["C01"]] = 30.0, 20.0
    counts[-1] = 70.0
    cells = kept_codes(column, AdaptiveBins.of(column), counts, 20.0, counts.sum())
    assert cells.counts[place["A00.3"]] == 1000
    assert cells.counts[place["B07"]] == 600
    assert cells.counts[place["other"]] == 50
    assert cells.counts[-1] == 70
    assert np.count_nonzero(cells.counts) == 4
    assert cells.counts.sum() == counts.sum()
    assert cells.groups[place["B07.4"]] == cells.groups[place["B07"]] != cells.groups[place["other"]]
    assert cells.groups[place["C01.1"]] == cells.groups[place["other"]] == cells.groups[place["H29.9"]]


def test_a_code_list_has_other_and_many_values_and_its_part_of_the_budget():
    assert is_code_list(schema().stored[0])
    assert not is_code_list(fs.Categorical("icd", CODES))
    assert not is_code_list(fs.Categorical("icd", CODES[:1000], unknown="other"))
    prices = at_least([1.0, 5.0, 1.0], [0, 2], 0.2)
    assert prices[1] == 5.0
    assert prices[0] / sum(prices) == pytest.approx(0.05 / 0.2)
    assert sum(at_least([1.0, 2.0], [0], 0.01)) == 4.0  # others keep half
