"""What bins of one width lose, and the default method keeps: zeros, medians of heavy tails, correlations of numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from _pytest.mark import ParameterSet
from tests.data.shapes import DOSES, SCHEMA, at_sites, shapes
from tests.public_data import public_data

from fedsynth.data.draft import draft_schema
from fedsynth.encoding import encode, problems
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.auto import Auto
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Numeric
from fedsynth.secure.site import SecureSum

TRUSTS: dict[str, Trust] = {"trusted": TrustedServer(), "secure": SecureSum()}
SITES, SEEDS = 5, 12  # of 12 seeds, the mean of a lost correlation has a standard error of .01
SHOPPERS_SEEDS = 10
ZEROS_MEAN, ZEROS_EACH, MEDIANS, RANKS, CORRELATIONS = 0.02, 0.05, 0.1, 0.01, 0.1
STRONG = 0.5  # correlations above it are looked at

# What is not kept yet, each with the reason.
_NOISE = "the pair's own noise: its table has .85 (trusted) and .65 (secure) once the noise is taken out"
LOST: dict[tuple[str, ...], str] = {
    ("BounceRates", "ExitRates", "trusted"): _NOISE,
    ("BounceRates", "ExitRates", "secure"): _NOISE,
}


# Of the 2,400 rows beside both heaps of zeros, noise hides the correlation of .6 in some seeds, and they come out
# independent: a mean over ten seeds has a standard error of .04.
HIDDEN = {("Informational", "Informational_Duration"): 0.2}


def over_trusts(*cases: tuple[str, ...]) -> list[ParameterSet]:
    """Return cases under each trust; those that are :data:`LOST` must fail."""
    return [
        pytest.param(
            *case,
            trust,
            marks=[pytest.mark.xfail(reason=LOST[*case, trust], strict=True)] if (*case, trust) in LOST else [],
        )
        for case in cases
        for trust in TRUSTS
    ]


Frames = tuple[pd.DataFrame, pd.DataFrame]


@cache
def made(trust: str) -> list[Frames]:
    """Return the made table and a synthetic one of as many rows, once for each seed."""
    found = []
    for seed in range(SEEDS):
        federation = federate(at_sites(seed, SITES), SCHEMA, Budget(1.0, 1e-6), trust=TRUSTS[trust], seed=seed)
        real = shapes(seed)
        found.append((real, Auto().fit(federation).sample(len(real), seed)))
    return found


@cache
def shoppers(trust: str) -> list[Frames]:
    """Return the shoppers and synthetic ones, under the schema that is drafted from them."""
    real = pd.read_parquet(public_data("shoppers.parquet"))
    schema = draft_schema(real).schema
    table = encode(schema, real)
    sites = [table.take(np.arange(k, len(table), SITES)) for k in range(SITES)]
    found = []
    for seed in range(SHOPPERS_SEEDS):
        federation = federate(sites, schema, Budget(1.0, 1e-6), trust=TRUSTS[trust], seed=seed)
        found.append((real, Auto().fit(federation).sample(len(real), seed)))
    return found


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return columns of numbers, truths and times, as numbers."""
    found = {}
    for name in frame:
        if pd.api.types.is_datetime64_any_dtype(frame[name]):
            found[name] = frame[name].astype("datetime64[s]").astype("int64") / 86_400
        elif pd.api.types.is_numeric_dtype(frame[name]) and name != "account":
            found[name] = frame[name].astype(float)
    return pd.DataFrame(found)


def zeros(frames: list[Frames], column: str) -> np.ndarray:
    """Return how much more often the column is zero in synthetic rows, by seed."""
    return np.array([(b[column].dropna() == 0).mean() - (a[column].dropna() == 0).mean() for a, b in frames])


def medians(frames: list[Frames], column: str) -> np.ndarray:
    """Return the ratio of the synthetic rows' median to the real ones', by seed."""
    return np.array([b[column].median() / a[column].median() for a, b in frames])


def correlations(frames: list[Frames], first: str, second: str) -> float:
    """Return the mean difference of Pearson's correlation, towards zero: positive where it is lost."""
    found = [[float(numbers(one)[[first, second]].corr().to_numpy()[0, 1]) for one in pair] for pair in frames]
    assert abs(np.mean(found, axis=0)[0]) > STRONG
    return float(np.mean([abs(real) - np.sign(real) * synthetic for real, synthetic in found]))


@pytest.mark.parametrize("trust", TRUSTS)
def test_zeros_of_nearly_eight_rows_in_ten_stay(trust):
    difference = zeros(made(trust), "gain")
    assert abs(difference.mean()) < ZEROS_MEAN
    assert np.abs(difference).max() < ZEROS_EACH


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("column", ["tenure", "monthly", "total", "spend", "dose"])
def test_medians_stay_however_wide_the_bounds(column, trust):
    assert medians(made(trust), column).mean() == pytest.approx(1, abs=MEDIANS)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("column", ["start", "end"])
def test_the_middle_of_dates_stays_within_a_hundred_days(column, trust):
    days = [numbers(b)[column].median() - numbers(a)[column].median() for a, b in made(trust)]
    assert abs(np.mean(days)) < 100


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_commonest_of_a_few_values_stay(trust):
    for dose in DOSES[1:4]:
        difference = [(b["dose"] == dose).mean() - (a["dose"] == dose).mean() for a, b in made(trust)]
        assert abs(np.mean(difference)) < ZEROS_MEAN


@pytest.mark.parametrize(
    ("first", "second", "trust"),
    over_trusts(("tenure", "total"), ("tenure", "left"), ("monthly", "total"), ("start", "end")),
)
def test_correlations_stay(first, second, trust):
    assert correlations(made(trust), first, second) < CORRELATIONS


def test_integers_beyond_doubles_and_categories_stay_what_they_are():
    real, synthetic = made("trusted")[0]
    assert set(synthetic["account"]) <= set(real["account"].astype(str))
    assert problems(SCHEMA, synthetic) == []
    for name in ("account", "region", "plan"):
        shares = [one[name].astype(str).value_counts(normalize=True) for one in (real, synthetic)]
        assert (shares[0] - shares[1]).abs().max() < 0.03


# ---------------------------------------------------------------------------------------------------------------------
# Shoppers: 12,330 visits of a shop, of which 77.9 % see no page that anything is bought from


@pytest.mark.slow
@pytest.mark.parametrize("trust", TRUSTS)
def test_shoppers_keep_their_zeros(trust):
    frames = shoppers(trust)
    schema = draft_schema(frames[0][0]).schema
    for column in schema.columns:
        if isinstance(column, Numeric):
            difference = zeros(frames, column.name)
            assert abs(difference.mean()) < ZEROS_MEAN
            assert np.abs(difference).max() < ZEROS_EACH


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "trust"),
    over_trusts(
        ("Administrative_Duration",),
        ("ProductRelated",),
        ("ProductRelated_Duration",),
        ("BounceRates",),
        ("ExitRates",),
    ),
)
def test_shoppers_keep_their_medians(column, trust):
    """By rank: next to a heap (as many zeros as other rows), a thousandth of the rows moves a median by a fifteenth."""
    up_to = [
        (b[column] <= a[column].median()).mean() - (a[column] <= a[column].median()).mean() for a, b in shoppers(trust)
    ]
    assert abs(np.mean(up_to)) < RANKS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "trust"),
    over_trusts(
        ("Administrative", "Administrative_Duration"),
        ("Informational", "Informational_Duration"),
        ("ProductRelated", "ProductRelated_Duration"),
        ("BounceRates", "ExitRates"),
    ),
)
def test_shoppers_keep_their_correlations(first, second, trust):
    assert correlations(shoppers(trust), first, second) < HIDDEN.get((first, second), CORRELATIONS)
