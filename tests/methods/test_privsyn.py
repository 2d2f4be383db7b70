"""Sketches, the unbiased estimate of dependence, and what FedPrivSyn chooses by it."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.world import contingency, warned_of_empty

from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.vault import GRAIN, CandidateScores
from fedsynth.methods import sketch as module
from fedsynth.methods.generators import GUM, PGM
from fedsynth.methods.measure import measure
from fedsynth.methods.privsyn import AdaFedPrivSyn, FedPrivSyn, PrivSyn, RandomMarginals, pairs_worth_releasing
from fedsynth.methods.sketch import Sketches, dependence, project, sketch
from fedsynth.models.synthesizer import load
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Categorical, Schema

SIZES = (4, 6, 5, 3)
SCHEMA = Schema(tuple(Categorical(f"c{j}", tuple(f"v{v}" for v in range(size))) for j, size in enumerate(SIZES)))
TRUSTS: dict[str, Trust] = {"trusted": TrustedServer(), "local": LocalNoise()}


def rows(count: int, seed: int, copy: float = 0.6) -> Table:
    """Return rows whose columns 0 and 1 depend, and 2 and 3 a little; the others are independent."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 4, count)
    b = np.where(rng.random(count) < copy, a, rng.integers(0, 6, count))
    c = rng.choice(5, count, p=[0.5, 0.2, 0.15, 0.1, 0.05])
    d = np.where(rng.random(count) < 0.2, c % 3, rng.integers(0, 3, count))
    return Table(SCHEMA, tuple(column.astype(np.uint8) for column in (a, b, c, d)))


# ---------------------------------------------------------------------------------------------------------------------
# Sketches


def test_a_sketch_is_the_same_everywhere_and_another_for_another_pair_or_seed():
    table = contingency(rows(200, 0), (0, 1)).ravel()
    assert (project(table, (0, 1), 7, 3) == project(table.copy(), [0, 1], 7, 3)).all()
    assert (project(table, (0, 1), 7, 3) != project(table, (1, 0), 7, 3)).any()
    assert (project(table, (0, 1), 7, 3) != project(table, (0, 1), 7, 4)).any()


def test_a_sketch_is_linear_exact_and_of_integers():
    one, two = rows(150, 1), rows(90, 2)
    query = Sketches(((0, 1), (1, 2), (2, 3)), 10, 0)
    both = query.answer(concatenate([one, two]))
    assert both.dtype == np.int64
    assert (both == query.answer(one) + query.answer(two)).all()
    assert both.size == query.cells(SCHEMA) == 10 * 3


@given(st.integers(1, 400), st.integers(0, 300), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_counts_are_projected_alike_from_the_cells_that_hold_rows(cells, count, width, seed):
    rng = np.random.default_rng(seed)
    table = np.bincount(rng.integers(0, cells, count), minlength=cells)
    assert (module.project_counts(table, (0, 1), width, seed) == project(table, (0, 1), width, seed)).all()


def test_a_large_table_is_projected_block_by_block(monkeypatch):
    table = np.random.default_rng(0).integers(0, 9, 5000)
    whole = project(table, (0, 1), 7, 3)
    monkeypatch.setattr(module, "_BLOCK", 999)
    assert (project(table, (0, 1), 7, 3) == whole).all()


def test_projections_that_would_take_a_site_too_long_are_refused():
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(3000))) for j in range(2)))
    with pytest.raises(InvalidParameter, match=r"columns 'c0' and 'c1' has 9000000 cells.* fewer values or bins"):
        Sketches(((0, 1),), 1, 0).check(schema)
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(1000))) for j in range(20)))
    pairs = tuple(itertools.combinations(range(20), 2))
    with pytest.raises(InvalidParameter, match=r"too long; set a smaller --set width="):
        Sketches(pairs, 25, 0).check(schema)
    Sketches(pairs[:100], 25, 0).check(schema)


def test_a_record_moves_a_sketch_by_the_same_norm_wherever_it_lies():
    cells = 24
    for width, norm in ((10, math.sqrt(10)), (25, 5.0), (30, 5.0)):  # 25 and 30 numbers hold the table itself
        norms = [np.linalg.norm(project(row, (0, 1), width, 0)) for row in np.eye(cells, dtype=int)]
        assert norms == pytest.approx([norm] * cells)


def test_squared_norms_are_kept_on_average_over_projections():
    table = contingency(rows(300, 0), (0, 1)).ravel()
    squared = [(project(table, (0, 1), 9, seed) ** 2).sum() / 9 for seed in range(3000)]
    assert np.mean(squared) == pytest.approx((table**2).sum(), abs=4 * np.std(squared) / math.sqrt(3000))


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (2, 3)])
@pytest.mark.parametrize("width", [4, 10, 100])
def test_the_estimate_of_dependence_is_unbiased_for_unequal_sites(trust, pair, width):
    sites = [rows(count, seed) for seed, count in enumerate((900, 60, 3, 0))]
    pooled = concatenate(sites)
    exact = contingency(pooled, pair)
    truth = ((exact - np.outer(exact.sum(axis=1), exact.sum(axis=0)) / len(pooled)) ** 2).sum()
    estimates = []
    for seed in range(1000, 1200):
        with warned_of_empty(sites):
            federation = federate(sites, SCHEMA, Budget(3.0, 1e-6), trust=TRUSTS[trust], seed=seed)
        ones = measure(federation, [(column,) for column in pair], 1 / 4)
        (found,) = sketch(federation, [pair], 1 / 2, width, seed)
        estimates.append(dependence(found, ones[0], ones[1], len(pooled)))
    assert np.mean(estimates) == pytest.approx(truth, abs=3 * float(np.std(estimates)) / math.sqrt(len(estimates)))
    # The corrections matter: without them the mean would be off by many standard errors.
    assert np.std(estimates) > 0


def test_pairs_are_told_apart_by_their_names_not_by_their_shapes():
    # Equal sizes: a transposed product would go unnoticed by shapes, and be far from the table.
    schema = Schema((Categorical("a", (0, 1, 2)), Categorical("b", (0, 1, 2))))
    rng = np.random.default_rng(0)
    a, b = rng.choice(3, 4000, p=[0.7, 0.2, 0.1]), rng.choice(3, 4000, p=[0.1, 0.1, 0.8])
    table = Table(schema, (a.astype(np.uint8), b.astype(np.uint8)))
    federation = federate([table], schema, Budget(50.0, 1e-6), trust=TrustedServer(), seed=0)
    ones = measure(federation, [(0,), (1,)], 1 / 4)
    (found,) = sketch(federation, [(0, 1)], 1 / 2, 4, 0)
    independent = math.sqrt(max(0.0, dependence(found, ones[0], ones[1], 4000)))
    transposed = math.sqrt(max(0.0, dependence(found, ones[1], ones[0], 4000)))
    assert independent < 120 < transposed


# ---------------------------------------------------------------------------------------------------------------------
# Selection


@pytest.mark.parametrize("pure", [False, True])
def test_the_greedy_choice_is_the_best_of_all_subsets_of_equal_cells(pure):
    rng = np.random.default_rng(0)
    power = 2.0 if pure else 1.5
    for _ in range(50):
        strengths: dict[tuple[int, ...], float] = {
            (0, k): float(x) for k, x in enumerate(rng.exponential(1.0, 6), start=1)
        }
        weight = dict.fromkeys(strengths, 2.0)
        std = rng.uniform(0.02, 0.4)

        def error(chosen, strengths=strengths, std=std):
            left = sum(strength for pair, strength in strengths.items() if pair not in chosen)
            return 2.0 * std * len(chosen) ** power + left

        best = min(error(subset) for size in range(7) for subset in itertools.combinations(sorted(strengths), size))
        assert error(pairs_worth_releasing(strengths, weight, std, 6, pure=pure)) == pytest.approx(best)


def test_strong_pairs_are_released_and_weak_ones_are_not():
    sites = [rows(1500, seed) for seed in range(3)]
    for trust in TRUSTS.values():
        chosen = []
        for seed in range(20):
            federation = federate(sites, SCHEMA, Budget(1.0, 1e-6), trust=trust, seed=seed)
            chosen += [tuple(clique) for clique in FedPrivSyn(bound=1.0).fit(federation).info["cliques"]]
        assert chosen.count((0, 1)) == 20
        assert chosen.count((0, 2)) < 15  # independent: released only where noise makes it look otherwise


def test_no_more_than_the_bound_and_each_pair_once():
    sites = [rows(4000, seed, copy=0.9) for seed in range(3)]
    for method in (FedPrivSyn(bound=1 / 6), AdaFedPrivSyn(bound=1 / 3, batch=1)):
        federation = federate(sites, SCHEMA, Budget(5.0, 1e-6), trust=TrustedServer(), seed=0)
        cliques = [tuple(clique) for clique in method.fit(federation).info["cliques"]]
        assert len(cliques) == len(set(cliques)) <= math.floor(method.bound * 6)
        assert federation.ledger.share_spent == pytest.approx(1)


@pytest.mark.parametrize("trust", TRUSTS)
def test_where_no_pair_is_worth_its_noise_the_rest_goes_to_the_columns(trust):
    rng = np.random.default_rng(0)
    table = Table(SCHEMA, tuple(rng.integers(0, size, 500).astype(np.uint8) for size in SIZES))
    none = 0
    for seed in range(120):
        federation = federate([table], SCHEMA, Budget(0.1, 1e-6), trust=TRUSTS[trust], seed=seed)
        synthesizer = FedPrivSyn().fit(federation)
        assert federation.ledger.share_spent == pytest.approx(1)
        assert len(synthesizer.sample(50, 0)) == 50
        if not synthesizer.info["cliques"]:
            none += 1
            assert [entry.cells for entry in federation.ledger.entries][-1] == sum(SIZES)
    assert none


@pytest.mark.parametrize("generator", [GUM(), PGM()])
@pytest.mark.parametrize("kind", [FedPrivSyn, AdaFedPrivSyn, PrivSyn])
def test_with_a_large_budget_rows_show_the_dependence(kind, generator):
    sites = [rows(2000, seed) for seed in range(2)]
    federation = federate(sites, SCHEMA, Budget(100.0, 1e-6), trust=TrustedServer(), seed=0)
    synthetic = kind(bound=1.0, generator=generator).fit(federation).sample_table(4000, 0)
    for pair in ((0, 1), (2, 3)):
        real = contingency(concatenate(sites), pair) / 4000
        assert np.abs(contingency(synthetic, pair) / 4000 - real).sum() < 0.06


def test_scores_of_a_vault_are_exact_but_for_their_noise_and_paid_for():
    table = rows(800, 0)
    pairs = list(itertools.combinations(range(4), 2))
    expected = tuple(np.full(contingency(table, pair).shape, 3.25) for pair in pairs)
    distances = CandidateScores(tuple(pairs), expected, np.ones(len(pairs)), np.zeros(len(pairs)))
    scores = distances.l1
    exact = scores.utilities(partial(contingency, table)) / (GRAIN * scores.integer_weights)
    rho = Budget(1.0, 1e-6).rho
    errors = []
    for seed in range(200):
        federation = federate([table], SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=seed)
        vault = federation.deposit(Counts.of(4, pairs), 1.0)
        noisy, std = vault.scores(distances, 0.5)
        assert vault.left == pytest.approx(0.5)
        errors.append(noisy - exact)
    # One record moves each of six scores by at most 1: sigma = sqrt(6 / (2 rho)).
    assert std == pytest.approx(math.sqrt(6 / rho))
    assert np.std(errors) == pytest.approx(std, rel=0.06)
    assert np.mean(errors) == pytest.approx(0.0, abs=4 * std / math.sqrt(1200))


def test_one_column_has_no_pairs():
    schema = Schema((Categorical("a", ("x", "y", "z")),))
    table = encode(schema, pd.DataFrame({"a": ["x", "x", "y", "z"] * 50}))
    for method in (FedPrivSyn(), AdaFedPrivSyn()):
        federation = federate([table], schema, Budget(1.0, 1e-6), trust=LocalNoise(), seed=0)
        assert len(method.fit(federation).sample(seed=0)) == pytest.approx(200, abs=40)


def test_saved_and_loaded_it_samples_the_same_rows(tmp_path):
    federation = federate([rows(500, 0)], SCHEMA, Budget(2.0, 1e-6), trust=TrustedServer(), seed=0)
    fitted = FedPrivSyn().fit(federation)
    fitted.save(tmp_path / "m.fedsynth")
    again = load(tmp_path / "m.fedsynth")
    pd.testing.assert_frame_equal(again.sample(300, 3), fitted.sample(300, 3))
    assert again.info == fitted.info
    assert len(again.sample(seed=0)) == len(fitted.sample(seed=0))


@pytest.mark.parametrize(
    "options", [{"one_share": 0.6, "sketch_share": 0.5}, {"bound": 0.0}, {"bound": 1.5}, {"width": 0}, {"one_share": 0}]
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(InvalidParameter):
        FedPrivSyn(**options)


@pytest.mark.parametrize("share", [-3, 0, 1.001, 7.0, math.nan, math.inf])
def test_a_part_of_the_pairs_that_cannot_be_is_refused_when_the_method_is_made(share):
    with pytest.raises(InvalidParameter, match=r"^share must lie in \(0, 1\]"):
        RandomMarginals(share=share)
    for kind in (FedPrivSyn, AdaFedPrivSyn, PrivSyn):
        with pytest.raises(InvalidParameter, match=r"^bound must lie in \(0, 1\]"):
            kind(bound=share)
    assert RandomMarginals(share=1) == RandomMarginals(share=1.0)


def test_a_refusal_names_an_option_that_the_method_has():
    with pytest.raises(InvalidParameter, match=r"^score_share must"):
        PrivSyn(score_share=2)
    with pytest.raises(InvalidParameter, match=r"score_share = 0\.5 leave nothing for the pairs"):
        PrivSyn(one_share=0.5, score_share=0.5)
    with pytest.raises(InvalidParameter, match=r"^sketch_share must"):
        FedPrivSyn(sketch_share=2)


@pytest.mark.parametrize("number", [0, -1, 1.5, math.nan, math.inf])
def test_a_generator_that_cannot_draw_rows_is_refused_before_a_method_has_it(number):
    with pytest.raises(InvalidParameter, match=r"^sweeps must be a whole number"):
        GUM(sweeps=number)
    with pytest.raises(InvalidParameter, match=r"^iterations must be a whole number"):
        PGM(iterations=number)
    if number != 1.5:
        with pytest.raises(InvalidParameter, match=r"^max_megabytes must be a positive number"):
            PGM(max_megabytes=number)


def test_central_privsyn_needs_a_vault():
    federation = federate([rows(50, 0)], SCHEMA, Budget(1.0, 1e-6), trust=LocalNoise(), seed=0)
    with pytest.raises(Unsupported, match="--trust trusted"):
        PrivSyn().fit(federation)
