"""Federated training: the same as central training where nothing keeps it from that, and as private as it says."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.deep.training_world import (  # noqa: E402
    CELLS,
    ENCODERS,
    NETWORK,
    ROWS,
    START,
    TASK,
    WIDE,
    central,
    gradient,
    gradient_sum,
    local_training,
    parts,
)
from tests.world import SCHEMA, TRUSTS, Faulty, losing, start, table, tables  # noqa: E402  (needs torch)

from fedsynth.deep import training  # noqa: E402
from fedsynth.deep.diffusion import Diffusion  # noqa: E402
from fedsynth.deep.encoders import Encoder  # noqa: E402
from fedsynth.deep.fedavggan import FedAvgGAN  # noqa: E402
from fedsynth.deep.fedctgan import FedCTGAN  # noqa: E402
from fedsynth.deep.fedtabdiff import FedTabDiff  # noqa: E402
from fedsynth.deep.fedvae import FedVAE  # noqa: E402
from fedsynth.deep.gan import GAN, Adversaries, Generator  # noqa: E402
from fedsynth.deep.networks import Adam, size_of  # noqa: E402
from fedsynth.deep.training import GradientSum, LocalTraining, TrainingOptions, bounded, grid_for, mean_slope  # noqa: E402
from fedsynth.deep.vae import AutoEncoder  # noqa: E402
from fedsynth.errors import BudgetExceeded, InvalidParameter, SchemaError, Unsupported  # noqa: E402
from fedsynth.federation import site as sites  # noqa: E402
from fedsynth.federation.query import weights_digest  # noqa: E402
from fedsynth.federation.simulate import federate, secret_file  # noqa: E402
from fedsynth.privacy.cost import Budget  # noqa: E402
from fedsynth.privacy.release import SampledGaussian  # noqa: E402
from fedsynth.schema import Categorical, Schema  # noqa: E402
from fedsynth.secure.site import SecureSum  # noqa: E402

BUDGET = Budget(3.0, 1e-5)
SURE = 5.0  # standard errors: one in 2 million
each_trust = pytest.mark.parametrize("trust", TRUSTS.values(), ids=TRUSTS)

TINY: dict[str, Any] = {
    "fedtabdiff": FedTabDiff(steps=4, rounds=3, updates=2, batch=8, rate=0.5, width=8, depth=1, times=10, sampling=5),
    "fedvae": FedVAE(steps=4, rounds=3, updates=2, batch=8, rate=0.5, width=8, depth=1, latent=2),
    "fedctgan": FedCTGAN(steps=4, rate=0.5, width=8, depth=1, noise=2),
    "fedavggan": FedAvgGAN(rounds=4, updates=2, batch=8, rate=0.5, width=8, depth=1, noise=2),
}
each_method = pytest.mark.parametrize("name", TINY)


@pytest.fixture
def known_order(monkeypatch):
    """Let sites take rows in an order that is known here."""
    monkeypatch.setattr(training, "_generator", lambda bits: np.random.default_rng(5))


# ---------------------------------------------------------------------------------------------------------------------
# The same as central training


@each_trust
def test_a_gradient_sum_of_all_rows_is_the_central_gradient(trust):
    """PyTorch's gradient of the mean loss, but for the grid and float32, over however many sites the rows are."""
    federation = start(held=parts(ROWS, 20), trust=trust, budget=Budget.none())
    slope = mean_slope(federation, TASK._replace(total=len(ROWS)), START, 0.5, 1.0, WIDE)
    assert np.abs(slope).max() > 0.01
    np.testing.assert_allclose(slope * len(ROWS), gradient(ROWS), atol=2.0 ** -grid_for(WIDE, CELLS) + 1e-5)
    assert not federation.statement.private
    assert federation.statement.headline == "NOT PRIVATE"


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_at_the_server_is_pytorchs(decay):
    """Twenty slopes, of which some are zero at some weights."""
    rng = np.random.default_rng(0)
    slopes = rng.standard_normal((20, CELLS)) * rng.integers(0, 2, (20, CELLS))
    ours, weights = Adam(CELLS, 2e-3, decay=decay), START
    theirs = torch.from_numpy(START.copy()).double().requires_grad_()
    plain = torch.optim.Adam([theirs], lr=2e-3, weight_decay=decay)
    for slope in slopes:
        weights = ours.step(weights, slope)
        theirs.grad = torch.from_numpy(slope)
        plain.step()
    np.testing.assert_allclose(weights, theirs.detach().numpy(), atol=1e-6)
    assert np.abs(weights - START).max() > 0.01


def test_a_round_of_one_site_is_central_training_on_the_same_batches(known_order):
    query = local_training((("site-0", len(ROWS)),))
    federation = start(held={"site-0": ROWS}, budget=Budget.none())
    found = federation.average(query, 0.5, START)
    assert query.weights_of(found.sites) == [4096]
    order = np.random.default_rng(5)
    rows = np.concatenate([order.permutation(len(ROWS)) for _ in range(3)])  # 12 batches of 16 are three times 64
    expected = central(ROWS, list(rows.reshape(12, 16)), query.learning_rate)
    moved = found.tables[0] / 4096
    assert np.abs(moved).max() > 0.05
    np.testing.assert_allclose(START + moved, expected, atol=1e-5)


def test_epochs_are_passes_over_the_rows_that_a_site_has(known_order):
    """Three passes over 64 rows are twelve batches of 16, over 20 rows four, and Adam's weights decay in each."""
    held = {"big": ROWS, "small": table(20, 9)}
    query = local_training((("big", 64), ("small", 20)), epochs=3, decay=0.1)
    assert [query.updates_of(site) for site in held] == [12, 4]
    for site, rows in held.items():
        found = start(held={site: rows}, budget=Budget.none()).average(query, 0.5, START)
        order, taken = np.random.default_rng(5), 16 * query.updates_of(site)
        chosen = np.concatenate([order.permutation(len(rows)) for _ in range(4)])[:taken]
        expected = central(rows, list(chosen.reshape(-1, 16)), query.learning_rate, decay=0.1)
        moved = found.tables[0] / query.weights_of([site])[0]
        assert np.abs(moved).max() > 0.02
        np.testing.assert_allclose(START + moved, expected, atol=1e-5)


def test_epochs_are_refused_where_rows_are_private(known_order):
    with pytest.raises(InvalidParameter, match="need batches"):
        local_training((), batch=0, clip=1.0, epochs=1).check(SCHEMA)
    for local in (False, True):
        network = Faulty()
        federation = start(network, tables(3), budget=BUDGET)
        with pytest.raises(InvalidParameter, match="leave epochs = 0"):
            FedVAE(epochs=2, updates=2, local=local, width=8, depth=1, latent=2).fit(federation)
        assert not network.sent
    with pytest.raises(InvalidParameter, match="at most 4096 are allowed in a round"):
        FedVAE(epochs=4000, batch=1, width=8, depth=1, latent=2).fit(start(held=tables(3), budget=Budget.none()))


@each_trust
@pytest.mark.parametrize("local", [False, True], ids=["sums", "local"])
def test_sites_that_are_drawn_for_a_round_pay_in_full_and_for_no_other(trust, local):
    network, method = Faulty(), FedVAE(steps=9, rounds=9, updates=2, rate=0.5, width=8, depth=1, latent=2, local=local)
    federation = start(network, tables(4, 40), trust, BUDGET, seed=2)
    replace(method, site_rate=0.5).fit(federation)
    assert federation.statement.private
    rounds = [entry for entry in federation.ledger.entries if entry.kind in ("gradient-sum", "local-training")]
    joined = Counter(site for entry in rounds for site in entry.sites)
    assert len(rounds) == 9
    assert 0 < min(joined.values()) < max(joined.values()) < 9
    spent = {name: BUDGET.price(door.account.spent()) / BUDGET.rho for name, door in network.doors.items()}
    before = 0.1 + 0.02 * local  # for the survey, and the numbers of rows
    for site, share in spent.items():
        assert share == pytest.approx(before + (1 - before) * joined[site] / max(joined.values()), abs=5e-3)


def test_a_round_of_both_networks_is_training_at_the_server_with_the_same_sums(known_order):
    """Without noise, on a sample of all rows: a site's two steps are those of FedCTGAN's server over that site."""
    network = GAN(NETWORK, Generator(noise=2, hidden=(8,)), (0.25,) * 4)
    weights = network.initial(TASK.layout, np.random.default_rng(1))
    critic, generator = network.split(TASK.layout, weights)
    federation = start(held={"site-0": ROWS}, budget=Budget.none())
    finest = 24
    query = LocalTraining(
        1.0, weights_digest(weights), network, ENCODERS, WIDE, finest, 2, 0, 0.01, 0.0, (("site-0", len(ROWS)),)
    )
    found = federation.average(query, 0.5, weights)
    pair = Adversaries(NETWORK, network.generator, TASK.layout, np.full(4, 0.25), WIDE, critic, generator, rate=0.01)
    rng = np.random.default_rng(5)
    for _ in range(2):
        asked = GradientSum(1.0, weights_digest(pair.critic_weights), NETWORK, ENCODERS, WIDE, finest)
        pair.step(federation.sum(asked, 0.1, pair.critic_weights).tables[0] / len(ROWS), rng)
    moved = found.tables[0] / 4096
    trained = np.concatenate([pair.critic_weights, pair.generator_weights])
    assert min(np.abs(part).max() for part in network.split(TASK.layout, moved)) > 0.015
    np.testing.assert_allclose(weights + moved, trained, atol=1e-4)


@pytest.mark.parametrize("shares", [(0.25,) * 3, (0.0,) * 4])
def test_a_gan_without_a_condition_for_each_column_is_refused(shares):
    network = GAN(NETWORK, Generator(noise=2, hidden=(8,)), shares)
    query = LocalTraining(1.0, "0" * 64, network, ENCODERS, WIDE, grid_for(WIDE, 300), 2, 0, 0.01, 0.0, ())
    with pytest.raises(InvalidParameter, match="conditions need"):
        query.check(SCHEMA)


@pytest.mark.filterwarnings("ignore:sites site-0, site-1, site-2 have the same rows")
def test_equal_sites_train_as_one(known_order):
    rounds = {}
    for count in (1, 3):
        names = [f"site-{k}" for k in range(count)]
        federation = start(held=dict.fromkeys(names, ROWS), budget=Budget.none())
        query = local_training(tuple((name, len(ROWS)) for name in names))
        found = federation.average(query, 0.5, START)
        rounds[count] = found.tables[0] / sum(query.weights_of(found.sites))
    np.testing.assert_array_equal(rounds[1], rounds[3])
    assert rounds[1].any()


def test_sites_weigh_as_their_public_numbers_of_rows_say(known_order):
    """A site of twice as many rows moves the average twice as far, and one that is not named not at all."""
    held = {"big": ROWS, "small": table(32, 9), "unnamed": table(50, 11)}
    query = local_training((("big", 64), ("small", 32)))
    assert query.weights_of(["big", "small", "unnamed"]) == [4096, 2048, 0]
    alone = {
        name: start(held={name: rows}, budget=Budget.none()).average(query, 0.5, START).tables[0]
        for name, rows in held.items()
    }
    together = start(held=held, budget=Budget.none()).average(query, 0.5, START).tables[0]
    np.testing.assert_allclose(together, alone["big"] + alone["small"], atol=1e-9)
    assert alone["small"].any()
    assert not alone["unnamed"].any()


def test_gradient_sums_do_not_ask_which_site_has_a_row():
    """Five steps over differently split rows end at the same weights, but for a rounding to the grid at each site."""
    ends = []
    for cuts in ((), (10, 11, 50), (0, 32)):
        federation = start(held=parts(ROWS, *cuts), budget=Budget.none())
        weights = START  # plain steps: Adam would make large steps of a slope that is rounding alone
        for _ in range(5):
            slope = mean_slope(federation, TASK._replace(total=len(ROWS)), weights, 0.1, 1.0, WIDE)
            weights = bounded(weights - 0.1 * slope)
        first = start(held=parts(ROWS, *cuts), budget=Budget.none()).sum(gradient_sum(), 0.5, START)
        ends.append((first.values, weights))
    for values, weights in ends[1:]:
        assert np.abs(values - ends[0][0]).max() <= 4
        np.testing.assert_allclose(weights, ends[0][1], atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Noise


@pytest.mark.parametrize("kind", ["trusted", "local", "secure"])
def test_released_sums_have_the_noise_that_was_paid_for(kind):
    """Of 25 sums, each less the exact one: mean 0, and the deviation of the release, sqrt(K) times for K noises.

    The squares of N standard normal numbers add up to N with a deviation of sqrt(2 N).
    """
    trust = SecureSum(min_honest=3, dropouts=0) if kind == "secure" else TRUSTS[kind]
    held = parts(ROWS, 20, 40)
    exact = start(held=held, budget=Budget.none()).sum(gradient_sum(), 0.5, START).values
    seen = []
    for seed in range(25):
        federation = start(held=held, trust=trust, budget=BUDGET, seed=seed)
        found = federation.sum(gradient_sum(), 0.25, START)
        release = federation.ledger.entries[0].release
        assert isinstance(release, SampledGaussian)
        sigma = release.noise.sigma(gradient_sum().sensitivity(SCHEMA).l2)
        assert sigma == pytest.approx(release.multiplier * gradient_sum().sensitivity(SCHEMA).l2)
        seen.append((found.values - exact) / (sigma * (math.sqrt(3) if kind == "local" else 1)))
        assert found.std == pytest.approx(sigma * (math.sqrt(3) if kind == "local" else 1))
    _standard_normal(np.concatenate(seen))
    assert abs(np.corrcoef(seen[0], seen[1])[0, 1]) < SURE / math.sqrt(CELLS)


@pytest.mark.parametrize("kind", ["trusted", "local", "secure"])
def test_every_step_of_local_training_has_noise_of_its_own(kind, monkeypatch):
    """Under every trust each site adds the whole noise of the release to each step, another one each time."""
    added: list[np.ndarray] = []
    whole = sites._Turn._noisy

    def noisy(turn: Any, values: np.ndarray, step: int) -> np.ndarray:
        found = whole(turn, values, step)
        added.append(found - values)
        return found

    monkeypatch.setattr(sites._Turn, "_noisy", noisy)
    federation = start(held=parts(ROWS, 20, 40), trust=TRUSTS[kind], budget=BUDGET)
    names = tuple((name, 20) for name in federation.sites)
    query = local_training(names, rate=0.5, clip=1.0, batch=0, updates=8)
    found = federation.average(query, 0.5, START)
    assert found.sites == federation.sites
    assert np.abs(found.tables[0]).max() > 0
    (entry,) = federation.ledger.entries
    assert isinstance(entry.release, SampledGaussian)
    assert (entry.release.rate, entry.release.steps) == (0.5, 8)
    assert len(added) == 3 * 8
    sigma = entry.release.noise.sigma(query.sensitivity(SCHEMA).l2)
    assert sigma >= entry.release.multiplier * query.sensitivity(SCHEMA).l2
    _standard_normal(np.concatenate(added) / sigma)
    alike = np.corrcoef(np.stack(added))[~np.eye(len(added), dtype=bool)]
    assert np.abs(alike).max() < SURE / math.sqrt(CELLS) + 0.05


def _standard_normal(values: np.ndarray) -> None:
    """Hold numbers to mean 0 and variance 1, and to as many beyond two deviations as there should be."""
    many = len(values)
    assert abs(values.mean()) < SURE / math.sqrt(many)
    assert abs((values**2).sum() - many) < SURE * math.sqrt(2 * many)
    assert abs((np.abs(values) > 2).mean() - 0.0455) < SURE * math.sqrt(0.0455 / many)


# ---------------------------------------------------------------------------------------------------------------------
# Budgets


@each_trust
@pytest.mark.parametrize("local", [False, True], ids=["sums", "local"])
def test_the_whole_budget_is_spent_and_not_a_step_more(trust, local):
    """Server and sites count the same; what is left is what the last digits of the multiplier take."""
    network, steps = Faulty(), 6
    federation = start(network, parts(ROWS, 20, 40), trust, BUDGET)
    names = tuple((name, 20) for name in federation.sites)

    def ask() -> None:
        if local:
            query = local_training(names, rate=0.3, clip=1.0, batch=0, updates=3)
            federation.average(query, 1 / steps, START)
        else:
            federation.sum(gradient_sum(rate=0.3, clip=1.0), 1 / steps, START)

    for _ in range(steps):
        ask()
    for name, door in network.doors.items():
        spent = door.account.spent()
        assert spent == pytest.approx(federation.ledger.per_site[name])
        assert 1 - 1e-3 < BUDGET.price(spent) / BUDGET.rho <= 1 + 1e-9
        assert len(door.account.charges()) == steps
        # An account adds up at one order, the limit's; seen at all orders, few steps have cost a little less.
        assert 0.9 * BUDGET.epsilon < spent.at(BUDGET.delta) <= BUDGET.epsilon * (1 + 1e-9)
    assert BUDGET.covers(federation.ledger.spent)
    messages = len(network.sent)
    with pytest.raises(BudgetExceeded):
        ask()
    assert len(network.sent) == messages


@each_method
def test_what_cannot_be_trained_is_refused_before_anything_is_spent(name):
    for options, says in (({"budget": Budget(1.0, 0.0)}, "--delta"), ({"public_sizes": True}, "--public-sizes")):
        network = Faulty()
        federation = start(network, tables(3), **options)
        with pytest.raises(Unsupported, match=says):
            TINY[name].fit(federation)
        assert not network.sent
        assert not federation.ledger.entries


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        (SCHEMA.names[2], InvalidParameter, "is a number, and the target must be a categorical column: choose one of"),
        ("nothing", SchemaError, "no column 'nothing' in the schema"),
    ],
)
def test_a_target_that_is_no_category_is_refused_before_anything_is_spent(target, error, says):
    network = Faulty()
    federation = start(network, tables(3), budget=BUDGET)
    with pytest.raises(error, match=says):
        FedTabDiff(target=target, steps=2, width=8, depth=1).fit(federation)
    assert not network.sent


@each_method
def test_without_a_budget_nothing_is_private_and_with_one_all_is_paid(name):
    plain = start(held=tables(3, 40), budget=Budget.none())
    TINY[name].fit(plain)
    assert plain.statement.headline == "NOT PRIVATE"
    assert all(entry.exact for entry in plain.ledger.entries)
    network = Faulty()
    private = start(network, tables(3, 40), budget=BUDGET)
    TINY[name].fit(private)
    assert private.statement.private
    assert all(entry.cost.rho < math.inf for entry in private.ledger.entries)
    assert 0.97 < private.ledger.share_spent <= 1
    for name, door in network.doors.items():
        assert BUDGET.price(door.account.spent()) == pytest.approx(BUDGET.price(private.ledger.per_site[name]))


# ---------------------------------------------------------------------------------------------------------------------
# Sites of few rows, sites that are lost, runs that are interrupted


@each_trust
@each_method
def test_empty_sites_and_lost_ones_are_borne(name, trust):
    """A site without rows, one with a single row, and one that falls silent in the middle."""
    loses = {"turned": 0}

    def silent(message: Any) -> bool:
        lost: bool = message.request.head.step >= 3 and message.site == "site-4"
        loses["turned"] += lost
        return lost

    held = dict(
        zip([f"site-{k}" for k in range(5)], [table(60), table(0), table(1), table(30, 2), table(30, 3)], strict=True)
    )
    network = Faulty(losing(silent))
    federation = start(network, held, trust, BUDGET)
    model = TINY[name].fit(federation)
    assert loses["turned"] > 1
    assert set(federation.lost) == {"site-4"}
    assert len(model.sample(20, federation.rng)) == 20
    assert {door.account.spent() for door in network.doors.values() if door.name != "site-4"} == {
        federation.ledger.per_site["site-0"]
    }


class Interrupted(Exception):
    """What stops a run in the middle."""


@each_trust
@pytest.mark.parametrize("name", ["fedtabdiff", "local", "fedctgan"])
def test_a_run_that_stops_goes_on_to_the_same_weights_and_pays_once(name, trust, tmp_path):
    """Without a seed: killed before step 2, and resumed from its transcript, twice."""
    method = FedTabDiff(steps=4, rounds=4, updates=2, rate=0.5, width=8, depth=1, times=10, local=name == "local")
    if name == "fedctgan":
        method = TINY[name]

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "training" and done == 2:
            raise Interrupted

    def run(at: str, **options: Any) -> tuple[np.ndarray, Faulty, Any]:
        network = Faulty()
        options = {"trust": trust, "transcript": tmp_path / at, "transport": network, **options}
        federation = federate(tables(4), SCHEMA, BUDGET, **options)
        model: Any = method.fit(federation).model
        return model.weights, network, federation

    with pytest.raises(Interrupted):
        run("t", progress=interrupt)
    shutil.copyfile(tmp_path / "t", tmp_path / "copy")
    shutil.copyfile(secret_file(tmp_path / "t"), secret_file(tmp_path / "copy"))
    weights, network, federation = run("t")
    again, others, _ = run("copy")
    assert weights.tobytes() == again.tobytes()
    steps = [entry.step for entry in federation.ledger.entries]
    assert len(steps) == len(set(steps))
    for door in (*network.doors.values(), *others.doors.values()):
        charged = [charge["step"] for charge in door.account.charges()]
        assert len(charged) == len(set(charged))
        assert set(charged) <= set(steps)
    if not trust.confidential:  # answers are in the transcript: what was answered is not asked again
        answered = {charge["step"] for charge in next(iter(network.doors.values())).account.charges()}
        assert min(answered) > min(steps) + 1


# ---------------------------------------------------------------------------------------------------------------------
# What one question may ask of a site


def _codes(columns: int) -> Schema:
    return Schema(tuple(Categorical(f"c{at}", ("a", "b")) for at in range(columns)))


def test_memory_and_work_of_a_question_are_bounded_by_its_public_numbers():
    """Few bytes of tokens, layers, updates and batches must not ask for gigabytes, or for days."""
    wide = tuple(Encoder(np.array([0, 15_999])) for _ in range(20))
    question = gradient_sum()
    with pytest.raises(InvalidParameter, match="tokens in total"):
        _changed(question, encoders=wide, network=Diffusion(width=8, depth=1)).check(_codes(20))
    for network in (AutoEncoder((8,), 2), NETWORK):
        with pytest.raises(InvalidParameter, match="numbers per row"):
            _changed(question, encoders=wide[:4], network=network).check(_codes(4))
    usual: dict[str, Any] = {"rate": 0.1, "clip": 1.0, "batch": 0}
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"updates": 4096, "rate": 1.0, "network": Diffusion(width=256, depth=2)}, "too much for one round"),
        ({"updates": 4096, "rate": 1e-4, "network": Diffusion(width=512, depth=8)}, "too much for one round"),
        ({"updates": 4096, "clip": 0.0, "batch": 2**16}, "rows in batches"),
        (
            {"updates": 1, "clip": 0.0, "batch": 2**16, "network": Diffusion(width=2048, depth=1)},
            "too large for layers",
        ),
    )
    for fields, says in cases:
        network = fields.pop("network", NETWORK)
        asked = local_training((), **{**usual, **fields})
        grid = grid_for(asked.clip, size_of(network.shapes(TASK.layout)))
        with pytest.raises(InvalidParameter, match=says):
            _changed(asked, network=network, grid=grid).check(SCHEMA)


@pytest.mark.parametrize(
    "settings",
    [TrainingOptions(), FedTabDiff(width=1024), FedVAE(), FedTabDiff(updates=200), FedTabDiff(local=True, updates=100)],
    ids=["usual", "paper", "vae", "epochs", "local"],
)
def test_what_methods_ask_for_by_default_and_in_the_papers_is_within_the_bounds(settings):
    """Of 48 columns with 256 tokens each."""
    columns = 48
    encoders = tuple(Encoder(np.array([0, 255])) for _ in range(columns))
    network: Any = Diffusion(width=getattr(settings, "width", 256))
    if isinstance(settings, FedVAE):
        network = AutoEncoder((settings.width,) * settings.depth, settings.latent)
    cells = size_of(network.shapes(TASK._replace(encoders=encoders).layout))
    private = settings.local
    fields = {"updates": settings.updates, "clip": 1.0 if private else 0.0, "batch": 0 if private else settings.batch}
    asked = local_training((), **fields, rate=settings.rate)
    grid = grid_for(asked.clip, cells)
    _changed(asked, network=network, encoders=encoders, grid=grid).check(_codes(columns))
    step = gradient_sum(clip=settings.clip)
    _changed(step, network=network, encoders=encoders, grid=grid_for(1.0, cells)).check(_codes(columns))


def _changed(query: Any, **changes: Any) -> Any:
    return type(query)(**{**{name: getattr(query, name) for name in query.__struct_fields__}, **changes})


def test_a_grid_that_overflows_or_rounds_too_much_is_refused():
    for grid in (0, 40):
        with pytest.raises(InvalidParameter, match="does not suit"):
            _changed(gradient_sum(clip=1.0), grid=grid).check(SCHEMA)
    with pytest.raises(InvalidParameter, match="is not allowed"):
        _changed(gradient_sum(), clip=-0.0)
    with pytest.raises(InvalidParameter, match="clip norm"):
        _changed(gradient_sum(), clip=0.0).check(SCHEMA)
    with pytest.raises(InvalidParameter, match="either a batch or a clip norm"):
        _changed(local_training(()), clip=1.0).check(SCHEMA)
    with pytest.raises(InvalidParameter, match="twice"):
        local_training((("a", 1), ("a", 2))).check(SCHEMA)
    assert ENCODERS[1].tokens == 4
