"""The survey as an option: methods that count over groups of cells that follow the rows, not over the schema's bins."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsynth import Budget, Categorical, Numeric, Schema, federate
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.aim import AIM
from fedsynth.methods.domain import Domain
from fedsynth.methods.generators import GUM, PGM
from fedsynth.methods.measure import NOISE_L1, free_numbers, noise_weight, without_noise
from fedsynth.methods.mst import MST
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.pilot import CoarseTable, pilot
from fedsynth.methods.privbayes import PrivBayes
from fedsynth.methods.privsyn import AdaFedPrivSyn, AllMarginals, FedPrivSyn, PrivSyn, RandomMarginals
from fedsynth.methods.survey import SurveyOption, one_way, with_survey
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.estimate import Measurement
from fedsynth.models.synthesizer import load
from fedsynth.rows import Table

KINDS: list[Any] = [OneShot, FedPrivSyn, AdaFedPrivSyn, PrivSyn, AllMarginals, RandomMarginals, AIM, MST, PrivBayes]
SCHEMA = Schema(
    (
        Numeric("gain", 0.0, 1e5),
        Numeric("spend", 0.0, 1e6),
        Numeric("tenure", 0, 72, integer=True),
        Numeric("total", 0.0, 20_000.0, decimals=2),
        Categorical("plan", ("month", "year", "two years")),
        Categorical("region", tuple(f"r{k}" for k in range(6))),
    )
)
STRONG = (("tenure", "total"), ("tenure", "plan"), ("total", "plan"))


def customers(seed: int, rows: int = 7000) -> pd.DataFrame:
    """Return rows of which 78 % gain nothing, whose spending has a heavy tail, and whose total follows the tenure."""
    rng = np.random.default_rng(seed)
    tenure = rng.integers(0, 73, rows)
    gain = np.where(rng.random(rows) < 0.78, 0.0, np.minimum(np.exp(5 + 1.2 * rng.standard_normal(rows)), 1e5))
    return pd.DataFrame(
        {
            "gain": gain,
            "spend": np.minimum(np.exp(np.log(48) + 1.7 * rng.standard_normal(rows)), 1e6),
            "tenure": tenure,
            "total": np.round(tenure * (40 + 60 * rng.random(rows)), 2),
            "plan": np.array(["month", "year", "two years"])[
                np.digitize(tenure / 72 + rng.normal(0, 0.3, rows), [0.45, 0.8])
            ],
            "region": np.array([f"r{k}" for k in range(6)])[rng.choice(6, rows, p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01])],
        }
    )


def at_sites(seed: int, sites: int = 3) -> list[Table]:
    table = encode(SCHEMA, customers(seed))
    return [table.take(np.arange(k, len(table), sites)) for k in range(sites)]


def correlation(frame: pd.DataFrame, pair: tuple[str, str]) -> float:
    """Return the rank correlation of two columns; plans are in the order of the schema."""
    plans = ["month", "year", "two years"]
    held = [frame[name].astype(str).map(plans.index) if name == "plan" else frame[name] for name in pair]
    return float(held[0].astype(float).corr(held[1].astype(float), method="spearman"))


@pytest.mark.parametrize("generator", [GUM(), PGM()])
def test_fedprivsyn_keeps_zeros_tails_and_correlations(generator):
    """At epsilon 1, where bins of one width lose nearly all zeros and the median of the tail."""
    zeros, medians, moved = [], [], []
    for seed in range(5):
        real = customers(seed)
        federation = federate(at_sites(seed), SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=seed)
        rows = FedPrivSyn(bins_share=0.25, generator=generator).fit(federation).sample(7000, seed)
        zeros.append((rows["gain"] == 0).mean() - (real["gain"] == 0).mean())
        medians.append(rows["spend"].median() / real["spend"].median() - 1)
        moved.append([correlation(rows, pair) - correlation(real, pair) for pair in STRONG])
        assert min(abs(correlation(real, pair)) for pair in STRONG) > 0.5
    assert abs(np.mean(zeros)) < 0.02
    assert abs(np.mean(medians)) < 0.1
    assert np.abs(np.mean(moved, axis=0)).max() < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_that_counts_keeps_zeros_and_the_strongest_pair_and_spends_the_whole_budget(kind):
    federation = federate(at_sites(0), SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    rows = kind(bins_share=0.25).fit(federation).sample(7000, 0)
    assert federation.ledger.share_spent == pytest.approx(1)
    assert federation.ledger.entries[0].release.rho == pytest.approx(0.25 * Budget(1.0, 1e-6).rho)  # type: ignore[union-attr]
    assert abs((rows["gain"] == 0).mean() - 0.78) < 0.03
    assert rows["spend"].median() == pytest.approx(48, rel=0.25)
    if kind is not RandomMarginals:  # which may not have drawn the pair
        assert correlation(rows, STRONG[0]) > 0.7


def test_a_survey_makes_wide_columns_affordable():
    """All pairs of 14 columns of 1,000 values have 91 million cells, more than an answer may have."""
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(1000))) for j in range(14)))
    rng = np.random.default_rng(0)
    often = 1 / np.arange(1, 1001)
    table = Table(
        schema, tuple(rng.choice(1000, 10_000, p=often / often.sum()).astype(np.uint16) for _ in schema.columns)
    )
    with pytest.raises(InvalidParameter, match="smaller tables"):
        OneShot().fit(federate([table], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0))
    start = time.process_time()
    rows = OneShot(bins_share=0.25).fit(federate([table], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0))
    drawn = rows.sample_table(10_000, 0)
    assert time.process_time() - start < 30
    real = np.bincount(table.codes[3], minlength=1000)
    assert np.abs(np.bincount(drawn.codes[3], minlength=1000) - real)[:5].max() < 0.03 * 10_000


@pytest.mark.parametrize("kind", [FedPrivSyn, MST])
def test_saved_and_loaded_it_draws_the_same_rows_and_those_that_meet_a_condition(kind, tmp_path):
    federation = federate(at_sites(1), SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=1)
    fitted = kind(bins_share=0.25).fit(federation)
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    pd.testing.assert_frame_equal(again.sample(300, 3), fitted.sample(300, 3))
    long = again.sample(200, 0, {"tenure": (60, 72)})
    assert long["tenure"].between(60, 72).all()
    assert long["total"].median() > 3000 > fitted.sample(200, 0)["total"].median()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_shares_that_cannot_be_are_refused(kind, share):
    with pytest.raises(InvalidParameter, match="bins_share"):
        kind(bins_share=share)


@pytest.mark.parametrize("kind", [OneShot, FedPrivSyn, AllMarginals, MST])
def test_a_single_column_is_surveyed_and_measured_again(kind):
    schema = Schema((Numeric("gain", 0.0, 1e5),))
    table = encode(schema, customers(0)[["gain"]])
    federation = federate([table], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    rows = kind(bins_share=0.5).fit(federation).sample(5000, 0)
    assert abs((rows["gain"] == 0).mean() - 0.78) < 0.03


def test_a_survey_says_something_of_columns_that_are_measured_again():
    """Two estimates of a column together are nearer to the truth than each alone, or as near.

    The variance of a survey's groups is overstated: that of a cell's parts is added up, though their sum is known.
    """
    errors = {"survey": 0.0, "measured": 0.0, "both": 0.0}
    table = encode(SCHEMA, customers(2))
    for seed in range(30):
        federation = federate([table], SCHEMA, Budget(0.5, 1e-6), trust=LocalNoise(), seed=seed)
        domain = SurveyOption(bins_share=0.5).surveyed(federation, 1, 0.1)
        ones = [(column,) for column in range(6)]
        truth = [found.astype(np.float64) for found in table.tables(domain.axes, ones)]
        query = domain.counts(ones)
        released = federation.sum(query, 0.1)
        measured = [
            Measurement(one, found, std) for one, found, std in zip(ones, released.tables, released.stds, strict=True)
        ]
        assert domain.columns is not None
        for name, tables in (
            ("survey", one_way(domain.columns)),
            ("measured", measured),
            ("both", with_survey(domain, measured)),
        ):
            errors[name] += sum(float(((t.values - x) ** 2).sum()) for t, x in zip(tables, truth, strict=True))
    assert errors["both"] < 0.8 * errors["measured"]
    assert errors["both"] < 1.1 * errors["survey"]


# ---------------------------------------------------------------------------------------------------------------------
# Steps


def grouped(sizes: tuple[int, ...]) -> Domain:
    """Return numbers in as many groups, of which nothing is known."""
    schema = Schema(tuple(Numeric(f"n{k}", 0.0, 1.0, bins=size) for k, size in enumerate(sizes)))
    return Domain(schema, tuple(AdaptiveBins.of_bins(column) for column in schema.stored))


def correlated(size: int, total: float) -> np.ndarray:
    """Return a table in which two ordered columns of even groups follow each other."""
    at = np.arange(size)
    table = np.exp(-(np.subtract.outer(at, at) ** 2) / 8.0)
    for _ in range(50):
        table /= table.sum(axis=0) * size
        table = (table.T / (table.sum(axis=1) * size)).T
    return total * table


def test_noise_is_taken_out_of_pairs_over_groups_and_left_over_the_schemas_own_bins():
    rng = np.random.default_rng(0)
    domain, truth, std = grouped((12, 12)), correlated(12, 5000.0), 25.0
    before, after = 0.0, 0.0
    for _ in range(20):
        pair = Measurement((0, 1), truth + std * rng.normal(size=truth.shape), std)
        ones = [Measurement((at,), truth.sum(axis=1 - at) + 10 * rng.normal(size=12), 10.0) for at in (0, 1)]
        assert without_noise(Domain(domain.schema), [*ones, pair], 5000.0) == [*ones, pair]
        *_, clean = without_noise(domain, [*ones, pair], 5000.0)
        assert clean.clique == (0, 1)
        assert clean.std < std
        before += float(((pair.values - truth) ** 2).sum())
        after += float(((clean.values - truth) ** 2).sum())
    assert after < before / 3


def test_tables_of_one_clique_are_averaged_and_those_of_three_columns_stay():
    domain, truth = grouped((6, 6, 2)), correlated(6, 900.0)
    ones = [Measurement((at,), truth.sum(axis=0), 5.0) for at in (0, 1)] + [Measurement((2,), np.full(2, 450.0), 5.0)]
    three = Measurement((0, 1, 2), np.repeat(truth[:, :, None] / 2, 2, axis=2), 9.0)
    twice = [Measurement((0, 1), truth + step, 3.0) for step in (-1.0, 1.0)]
    found = without_noise(domain, [*ones, *twice, three], 900.0)
    assert [table.clique for table in found] == [(0,), (1,), (2,), (0, 1), (0, 1, 2)]
    assert found[-1].values == pytest.approx(three.values)
    np.testing.assert_allclose(found[-2].values.sum(axis=0), truth.sum(axis=0), rtol=0.02)


def test_the_noise_that_is_left_is_that_of_rows_and_columns():
    domain = grouped((12, 9, 2))
    own = Domain(domain.schema)
    assert noise_weight(own, (0, 1)) == NOISE_L1 * 108
    assert free_numbers(domain, (0, 1)) == 21
    assert free_numbers(domain, (0,)) == 12
    assert free_numbers(domain, (0, 1, 2)) == 216
    # The L1 norm of what a rank-one remainder lets through of pure noise is below what is reckoned with.
    rng = np.random.default_rng(0)
    ones = [Measurement((0,), np.full(12, 400.0), 1.0), Measurement((1,), np.full(9, 4800 / 9), 1.0)]
    left = []
    for _ in range(50):
        noisy = Measurement((0, 1), np.full((12, 9), 4800 / 108) + 20 * rng.normal(size=(12, 9)), 20.0)
        *_, clean = without_noise(domain, [*ones, Measurement((2,), np.full(2, 2400.0), 1.0), noisy], 4800.0)
        left.append(np.abs(clean.values - 4800 / 108).sum())
    assert np.mean(left) < 20 * noise_weight(domain, (0, 1)) < 20 * noise_weight(own, (0, 1))


def test_the_distance_of_a_coarse_table_is_unbiased():
    rng = np.random.default_rng(0)
    truth, other = correlated(6, 900.0), np.full((6, 6), 25.0)
    exact = float(((truth - other) ** 2).sum())
    noise = 30 * rng.normal(size=(4000, 6, 6))
    for axis in (1, 2):  # the margins of the table are known
        noise -= noise.mean(axis=axis, keepdims=True)
    found = [CoarseTable(Measurement((0, 1), truth + one, 30.0)).distance(other) for one in noise]
    assert np.mean(found) == pytest.approx(exact, abs=3 * float(np.std(found)) / math.sqrt(len(found)))


def test_a_pilot_tells_the_pairs_that_depend_from_those_that_do_not():
    table = encode(SCHEMA, customers(3))
    pairs = list(itertools.combinations(range(6), 2))
    strong = {tuple(sorted(SCHEMA.index(name) for name in pair)) for pair in STRONG}
    for seed in range(10):
        federation = federate([table], SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=seed)
        domain = SurveyOption(bins_share=0.25).surveyed(federation, 5, 0.5)
        assert domain.columns is not None
        found = pilot(federation, domain, pairs, 0.1, one_way(domain.columns), 7000.0)
        assert set(sorted(pairs, key=lambda pair: -found.strengths[pair])[:3]) == strong
        # Coarse tables are of the axes that come with them.
        assert [t.measured.values.shape for t in found.tables.values()] == [
            t.shape for t in table.tables(found.domain.axes, pairs)
        ]
        assert Counts(found.domain.axes, tuple(pairs)).cells(SCHEMA) <= domain.counts(pairs).cells(SCHEMA)
