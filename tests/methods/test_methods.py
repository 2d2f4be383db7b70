"""Each method does what its algorithm box says, on tables small enough to know the answer."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.contract.world import SCHEMA, SIZES, random_table, tables
from tests.world import Faulty, contingency, losing

from fedsynth.errors import InvalidParameter
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import all_methods
from fedsynth.methods.aim import AIM
from fedsynth.methods.flaim import FLAIM, AugFLAIM, FedNaiveBayes, FLAIMOptions, FLAIMState, RandomFLAIM
from fedsynth.methods.flaim_scores import GRID, FLAIMSelection, _Layout
from fedsynth.methods.measure import fits, measure, weights_for, with_sums_of
from fedsynth.methods.oneshot import OneShot, strongest_pairs
from fedsynth.methods.registry import options_of
from fedsynth.models.estimate import Measurement
from fedsynth.models.gum import simplex
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy.cost import Budget, Norms
from fedsynth.privacy.release import AdaptiveSelection, Exponential
from fedsynth.rows import Table, concatenate


def test_pairs_add_their_sums_to_what_is_known_of_their_columns():
    """A table of variance v summed over m values has variance m v; independent means weigh by the inverse of theirs."""
    ones = [Measurement((0,), np.array([10.0, 20.0]), 2.0), Measurement((1,), np.array([9.0, 12.0, 9.0]), 3.0)]
    pair = Measurement((0, 1), np.array([[4.0, 4.0, 6.0], [6.0, 6.0, 4.0]]), 1.0)
    first, second = with_sums_of(ones, [pair])
    np.testing.assert_allclose(
        first.values, (np.array([10.0, 20.0]) / 4 + np.array([14.0, 16.0]) / 3) / (1 / 4 + 1 / 3)
    )
    assert first.std**2 == pytest.approx(1 / (1 / 4 + 1 / 3))
    np.testing.assert_allclose(second.values, (np.array([9.0, 12.0, 9.0]) / 9 + 5.0) / (1 / 9 + 1 / 2))
    assert [one.values.tolist() for one in with_sums_of(ones, [])] == [one.values.tolist() for one in ones]


def test_a_table_of_three_columns_adds_its_sums_as_well():
    values = np.arange(12.0).reshape(2, 3, 2)
    (found,) = with_sums_of(
        [Measurement((5,), np.array([20.0, 20.0, 20.0]), 2.0)], [Measurement((2, 5, 7), values, 1.0)]
    )
    np.testing.assert_allclose(found.values, (20.0 + values.sum(axis=(0, 2))) / 2)
    assert found.std == pytest.approx(math.sqrt(2))


def federation(epsilon: float, sites: int = 8, rows: int = 300, delta: float = 1e-6, **options: object) -> Federation:
    data = [random_table(rows, seed) for seed in range(sites)]
    options = {"seed": 1, **options}
    return federate(data, SCHEMA, Budget(epsilon, delta), trust=TrustedServer(), public_sizes=True, **options)  # type: ignore[arg-type]


def pooled(sites: int = 8, rows: int = 300) -> Table:
    return concatenate([random_table(rows, seed) for seed in range(sites)])


def model_of(fitted: Synthesizer) -> MarkovRandomField:
    assert isinstance(fitted.model, MarkovRandomField)
    return fitted.model


def error(fitted: Synthesizer, table: Table) -> float:
    model = model_of(fitted)
    pairs = [(i, j) for i in range(4) for j in range(i)]
    return float(
        np.mean(
            [
                np.abs(model.marginal((j, i)) / model.total - contingency(table, (j, i)) / len(table)).sum()
                for i, j in pairs
            ]
        )
    )


def test_oneshot_finds_the_chain_that_made_the_rows():
    fitted = OneShot(max_megabytes=1e-9).fit(federation(50.0))
    assert sorted(map(tuple, fitted.info["cliques"])) == [(0, 1), (1, 2), (2, 3)]


def test_oneshot_adds_clear_pairs_only_and_only_while_they_fit():
    whole = pooled()
    total = float(len(whole))

    def measured(std: float) -> tuple[list[Measurement], list[Measurement]]:
        rng = np.random.default_rng(3)
        ones, pairs = (
            [Measurement(q, contingency(whole, q) + rng.normal(0, std, SCHEMA.shape(q)), std) for q in cliques]
            for cliques in ([(j,) for j in range(4)], [(i, j) for i in range(4) for j in range(i + 1, 4)])
        )
        return ones, pairs

    clear = strongest_pairs(SIZES, *measured(1.0), total, 8.0)
    assert len(clear) > 3
    assert len(strongest_pairs(SIZES, *measured(1.0), total, 1e-9)) == 3
    assert len(strongest_pairs(SIZES, *measured(1000.0), total, 8.0)) == 3  # in noise, the tree alone


def test_oneshot_on_one_column():
    from fedsynth.schema import Categorical, Schema

    schema = Schema((Categorical("only", ("a", "b")),))
    data = [Table(schema, (np.array([0] * 70 + [1] * 30, dtype=np.uint8),))]
    fitted = OneShot().fit(federate(data, schema, Budget(5.0, 1e-6), trust=TrustedServer(), seed=0))
    np.testing.assert_allclose(model_of(fitted).marginal((0,)), [70, 30], atol=5)


def test_more_budget_and_more_rounds_fit_better():
    whole = pooled()
    assert error(AIM(rounds=4).fit(federation(20.0)), whole) < error(AIM(rounds=4).fit(federation(0.05)), whole)
    # selection is worth its price: the dependent pairs are found, and independence is beaten clearly
    floor = error(FedNaiveBayes(rate=1.0).fit(federation(20.0)), whole)
    assert error(OneShot().fit(federation(20.0)), whole) < floor / 3
    assert error(AIM().fit(federation(20.0)), whole) < floor / 3
    assert error(AugFLAIM(rounds=4, rate=1.0).fit(federation(20.0)), whole) < floor / 2


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_annealed_aim_spends_everything_and_slows_down(delta):
    link = federation(3.0, delta=delta)
    AIM().fit(link)
    opened = [entry.std for entry in link.ledger.entries if entry.verb == "open"]
    assert link.ledger.share_spent == pytest.approx(1)
    assert min(opened[1:]) <= opened[0] / 2  # noise is halved where rounds no longer tell anything
    spent = sum(link.budget.share_of(e.cost) for e in link.ledger.entries if e.verb in ("open", "select"))
    assert spent == pytest.approx(1)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_local_steps_cost_two_s_minus_one_measurements(steps):
    link = federation(2.0)
    FLAIM(rounds=3, rate=1.0, steps=steps).fit(link)
    chosen = [entry for entry in link.ledger.entries if entry.verb == "choose"]
    assert len(chosen) == 3  # sites of one size are asked one question a round
    measured = [entry.cost.rho for entry in link.ledger.entries if entry.verb == "sum"][-1]
    for entry in chosen:
        assert isinstance(entry.release, Exponential if steps == 1 else AdaptiveSelection)
        if isinstance(entry.release, AdaptiveSelection):
            assert entry.release.look.cost(Norms(1, 1)).rho == pytest.approx(measured)
            assert entry.release.steps == steps
    # s picks, s measurements and s - 1 looks a round, and the 1-way tables once: nothing is left over
    rho = 3 * (chosen[0].cost.rho + steps * measured) + len(SIZES) * measured
    assert rho == pytest.approx(link.ledger.budget.rho)
    assert link.ledger.spent.rho <= rho * (1 + 1e-9)


@pytest.mark.parametrize("cap", [None, 2])
@pytest.mark.parametrize("method", [FLAIM, AugFLAIM, RandomFLAIM])
@pytest.mark.parametrize("seed", range(3))
def test_noise_is_sized_for_the_most_rounds_that_a_site_joins(method, cap, seed):
    link = federation(1.0, sites=12, rows=60, seed=seed)
    method(rounds=8, rate=0.2, cap=cap, iterations=5, final_iterations=5).fit(link)
    # One question a round: the draw, or without draws the sum, of which one more measured the columns at the start.
    verb, start = ("sum", 1) if method is RandomFLAIM else ("choose", 0)
    asked = [entry for entry in link.ledger.entries if entry.verb == verb][start:]
    joined = Counter({name: len({e.step for e in asked if name in e.sites}) for name in link.sites})
    assert max(joined.values()) <= (cap or 8)
    assert link.ledger.share_spent == pytest.approx(1)  # of the most charged site; nobody spends more
    spent = {name: link.budget.share_of(cost) for name, cost in link.ledger.per_site.items()}
    if method is AugFLAIM:  # who is in most rounds pays most
        most = max(joined.values())
        assert {name for name, n in joined.items() if n == most} == {
            name for name, share in spent.items() if share == pytest.approx(1)
        }


def test_sites_lost_midway_never_raise_the_charge():
    def spent(loses: int) -> dict[str, float]:
        gone = losing(lambda message: network.exchanges > loses and message.site in ("site-001", "site-002"))
        link = federation(1.0, sites=6, rows=80, transport=(network := Faulty(gone)))
        AugFLAIM(rounds=4, rate=0.5, iterations=5, final_iterations=5).fit(link)
        return {name: link.budget.share_of(cost) for name, cost in link.ledger.per_site.items()}

    whole = spent(100)
    assert max(whole.values()) == pytest.approx(1)
    for exchange in (1, 3, 5):  # two sites are gone from here on
        lossy = spent(exchange)
        assert all(lossy[name] <= whole[name] * (1 + 1e-9) for name in lossy)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 65}, "steps must be a whole number from 1 to 64, not 65"),
        ({"steps": 0}, "steps must be a whole number from 1 to 64, not 0"),
        ({"steps": 2, "iterations": 1001}, "at most 1000 iterations, not 1001; lower iterations, or set steps = 1"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"cap": 0}, "cap must be a whole number"),
    ],
)
def test_options_of_flaim_that_no_site_takes_are_refused_when_it_is_made(options, says):
    for kind in (FLAIM, AugFLAIM, RandomFLAIM):
        with pytest.raises(InvalidParameter, match=says):
            kind(**options)


@pytest.mark.parametrize("rate", [1.5, 0.0, -0.1, math.nan])
def test_a_rate_of_cohorts_is_refused_before_sites_are_counted(rate):
    for kind in (FLAIM, FedNaiveBayes):
        with pytest.raises(InvalidParameter, match=r"rate must lie in \(0, 1\], not"):
            kind(rate=rate)
    with pytest.raises(InvalidParameter, match="size_share"):
        FedNaiveBayes(size_share=0.0)


def test_the_most_steps_and_iterations_are_messages_that_a_site_answers():
    link = federation(50.0, sites=1)
    FLAIM(rounds=1, rate=1.0, steps=64, iterations=1000, final_iterations=5, workload=((0, 1),)).fit(link)
    assert max(entry.release.steps for entry in link.ledger.entries if entry.verb == "choose") == 64  # type: ignore[union-attr]


def test_random_flaim_chooses_without_looking():
    link = federation(1.0)
    RandomFLAIM(rounds=4, rate=0.5).fit(link)
    assert {entry.verb for entry in link.ledger.entries} == {"sum"}


@pytest.mark.parametrize("kind", [FLAIM, AugFLAIM, RandomFLAIM])
def test_annealing_lowers_the_noise_and_spends_no_more_than_the_budget(kind):
    """Rows without any dependence: after a few rounds tables tell nothing, and the noise falls until all is spent."""
    rng = np.random.default_rng(0)
    data = [Table(SCHEMA, tuple(rng.integers(0, size, 200, dtype=np.uint8) for size in SIZES)) for _ in range(6)]
    stds = {}
    for annealing in (False, True):
        link = federate(data, SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=3, public_sizes=True)
        kind(rounds=24, rate=0.9, annealing=annealing, iterations=20, final_iterations=20).fit(link)
        stds[annealing] = [entry.std for entry in link.ledger.entries if entry.verb == "sum"]
        assert 0.9 < link.ledger.share_spent <= 1 + 1e-9
    assert min(stds[True]) < 0.6 * min(stds[False])
    assert len(stds[True]) < len(stds[False])


def test_each_half_of_augflaim_can_be_turned_off():
    questions: dict[str, list[FLAIMSelection]] = {}
    methods = {"both": AugFLAIM(rounds=3, rate=1.0)}
    methods |= {"proxy": replace(methods["both"], combine=False), "combine": replace(methods["both"], proxy=False)}
    for name, augflaim in methods.items():
        link = federation(3.0, sites=4)
        seen = questions[name] = []
        choose = type(link).choose

        def noted(self, selection, share, seen=seen, choose=choose):
            seen.extend(selection.values())
            return choose(self, selection, share)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(link), "choose", noted)
            augflaim.fit(link)
    assert all(one.by_column is not None for one in questions["both"] + questions["proxy"])
    assert all(one.by_column is None for one in questions["combine"])
    least = {name: min(len(q) for one in seen for q in one.candidates) for name, seen in questions.items()}
    assert least == {"both": 2, "proxy": 1, "combine": 2}
    with pytest.raises(InvalidParameter, match="choose --method flaim"):
        AugFLAIM(proxy=False, combine=False)


def test_sums_of_a_cohort_stand_for_all_rows():
    """A cohort's tables are scaled to all records: the model's total and its shares are those of everybody."""
    link = federation(500.0, sites=20, rows=150)
    fitted = FedNaiveBayes(rate=0.4).fit(link)
    model = model_of(fitted)
    assert model.total == 3000
    whole = pooled(20, 150)
    for j in range(4):
        np.testing.assert_allclose(model.marginal((j,)) / 3000, contingency(whole, (j,)) / 3000, atol=0.05)


def test_distances_by_row_and_by_cell_are_the_same_integers():
    rng = np.random.default_rng(0)
    cliques = [(0,), (1, 3), (0, 2, 3)]
    layout = _Layout.of(cliques, SIZES)
    cells = [int(np.prod(SCHEMA.shape(q))) for q in cliques]
    shares = [rng.multinomial(GRID, rng.dirichlet(np.full(size, 0.3))) for size in cells]
    for rows in (0, 1, 40):
        table = random_table(rows, 4)
        for records in (1, 37, 2**28):
            dense = [
                int(np.abs(GRID * contingency(table, q).ravel() - records * share).sum())
                for q, share in zip(cliques, shares, strict=True)
            ]
            flat = np.concatenate(shares)
            assert layout._by_row(table, records, [flat])[0].tolist() == dense
            assert layout._by_cell(table, records, [flat])[0].tolist() == dense


def test_scores_are_those_of_the_algorithm_box():
    """u(q) = w ( || M_q - n p_q ||_1 - penalty - mean over the columns of q of || M_j - n p_j ||_1 ), in records."""
    table, candidates, weights = random_table(60, 3), ((0, 1), (1, 2, 3)), np.array([2, 9])
    potentials = np.random.default_rng(1).normal(size=6)
    exact = np.exp(potentials) / np.exp(potentials).sum()
    ones = [np.full(size, 1 / size) for size in SIZES]
    scores = FLAIMSelection(
        records=60,
        candidates=candidates,
        weights=weights,
        penalties=np.array([5, 7]) * weights * GRID,
        factors=((0, 1),),
        potentials=potentials,
        by_column=np.rint(GRID * np.concatenate(ones)).astype(np.int64),
    )
    model = [exact, np.einsum("b,c,d->bcd", exact.reshape(2, 3).sum(axis=0), ones[2], ones[3]).ravel()]
    apart = [np.abs(contingency(table, (j,)) - 60 * one).sum() for j, one in enumerate(ones)]
    wrong = [np.abs(contingency(table, q).ravel() - 60 * p).sum() for q, p in zip(candidates, model, strict=True)]
    by_hand = [2 * (wrong[0] - 5) - (apart[0] + apart[1]), 9 * (wrong[1] - 7) - 3 * (apart[1] + apart[2] + apart[3])]
    np.testing.assert_allclose(scores.utilities(table, []) / GRID, by_hand, atol=1e-3)


def test_sites_of_all_sizes_share_one_evaluation_of_the_model(monkeypatch):
    from fedsynth.methods import flaim_scores

    evaluated = []
    evaluate = flaim_scores.model_shares

    def counted(model, cliques):
        evaluated.append(model)
        return evaluate(model, cliques)

    monkeypatch.setattr(flaim_scores, "model_shares", counted)
    data = [random_table(rows, seed) for seed, rows in enumerate(range(30, 60))]
    link = federate(data, SCHEMA, Budget(1.0, 1e-6), trust=LocalNoise(), seed=1, public_sizes=True)
    FLAIM(rounds=2, rate=1.0).fit(link)
    assert len([entry for entry in link.ledger.entries if entry.verb == "choose"]) == 60  # one question a size
    assert len(evaluated) == 2  # and one evaluation a round


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_weights_spend_the_shares_that_were_asked_for(delta):
    budget = Budget(1.0, delta)
    power = 2 if delta else 1
    for pair_share in (0.2, 0.5, 0.8, 0.99):
        shares = [(1 - pair_share) / 14] * 14 + [pair_share / 91] * 91
        weights = np.array(weights_for(shares, budget), dtype=float) ** power
        np.testing.assert_allclose(weights / weights.sum(), shares, rtol=0.05)
    assert weights_for([0.25] * 4, budget) == (1, 1, 1, 1)
    with pytest.raises(InvalidParameter, match="must not be negative"):
        weights_for([1.5, -0.5], budget)


def test_weighted_tables_have_the_noise_that_they_say():
    link = federation(1.0)
    light, heavy = measure(link, [(0, 1), (2, 3)], 1.0, (1, 4))
    assert light.std == pytest.approx(4 * heavy.std)
    whole = pooled()
    for table in (light, heavy):
        assert np.abs(table.values - contingency(whole, table.clique)).max() < 5 * table.std


def test_simplex_is_the_nearest_point():
    rng = np.random.default_rng(1)
    for _ in range(20):
        noisy = rng.normal(3, 5, (4, 5))
        near = simplex(noisy, 60.0)
        assert near.shape == noisy.shape
        assert near.min() >= 0
        assert near.sum() == pytest.approx(60.0)
        for _ in range(30):
            other = rng.dirichlet(np.full(20, 0.3)).reshape(4, 5) * 60.0
            assert ((near - noisy) ** 2).sum() <= ((other - noisy) ** 2).sum() + 1e-9


def test_a_model_is_as_big_as_its_junction_tree():
    assert fits((10, 10, 10), [(0, 1), (1, 2)], (0, 1), 0.0)  # held already
    assert fits((10, 10, 10), [(0, 1), (1, 2)], (0, 2), 8 * 1000 / 2**20)
    assert not fits((10, 10, 10), [(0, 1), (1, 2)], (0, 2), 8 * 999 / 2**20)


def test_options_are_fields_and_methods_are_values():
    for kind in (one.kind for one in all_methods()):
        consent = {"not_private": True} if "not_private" in options_of(kind) else {}
        made = kind(**consent)
        assert made == kind(**consent)
        assert hash(made) == hash(kind(**consent))
    assert [len(table) for table in tables()] == [400, 150, 40, 1, 0]


def test_what_sites_pick_together_stays_within_the_models_limit():
    """Each of ten sites may pick a pair that fits alone; the cycle that they close together would not."""
    from fedsynth.models.estimate import estimate
    from fedsynth.models.junction_tree import junction_tree_cells

    sizes = (50,) * 5
    ones = [Measurement((j,), np.full(50, 2.0), 1.0) for j in range(5)]
    megabytes = 3 * 50**3 * 8 / 2**20
    options = FLAIMOptions(max_megabytes=megabytes)
    run = FLAIMState(federation(1.0), options, {}, 1.0, [], ones, estimate(sizes, ones, 100.0))
    pairs: list[tuple[int, ...]] = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    picks = {f"site-{k}": [pair, (0, 1)] for k, pair in enumerate(pairs)}
    kept = {q for chosen in run.together(picks).values() for q in chosen}
    assert (0, 1) in kept  # what most sites picked comes first
    assert 4 <= len(kept) < 10
    assert junction_tree_cells(sizes, kept) * 8 <= megabytes * 2**20
    assert junction_tree_cells(sizes, pairs) * 8 > megabytes * 2**20
