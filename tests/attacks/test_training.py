"""Training as a hostile coordinator asks for it: prices below what is told, and weights that look for one person."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import norm

pytest.importorskip("torch")

import torch
from tests.attacks.test_faulty_sites import FAULTY, TRUSTS, five, in_first_cell
from tests.attacks.training_world import CELLS, NETWORK, WEIGHTS, exactly, gradient_sum, local_training, only, training
from tests.attacks.world import (
    BUDGET,
    SCHEMA,
    ask,
    converse,
    counts,
    forged,
    question,
    secure_sites,
    site,
    table,
    values,
)
from tests.public_data import public_data
from tests.world import agreed

from fedsynth.deep import dpsgd
from fedsynth.deep.diffusion import Diffusion
from fedsynth.deep.encoders import BatchLayout, EncodedBatch, Encoder, encode_rows
from fedsynth.deep.networks import size_of
from fedsynth.deep.training import GradientSum, _equal_positions, grid_for
from fedsynth.encoding import encode
from fedsynth.errors import Refused
from fedsynth.federation.agreement import PlannedQuestion
from fedsynth.federation.policy import _check_step
from fedsynth.federation.query import RecordCount, weights_digest
from fedsynth.federation.simulate import _seeded
from fedsynth.federation.site import Site
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import Request
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget, Cost, Norms, ProtectedChange, Sensitivity, Unit, protect
from fedsynth.privacy.noise import add_noise
from fedsynth.privacy.release import Deposit, Exact, Gaussian, Laplace, SampledGaussian
from fedsynth.rows import Rows, Table, concatenate
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum

AMPLE = Budget(20.0, 1e-6)


@dataclass(frozen=True)
class Closed:
    """Rows that must not be looked at."""

    schema: Schema = SCHEMA
    holds_rows: bool = True

    def require(self, run: str) -> None:
        """Find nothing wrong without a look."""

    @contextmanager
    def opened(self, run: str) -> Iterator[Rows]:
        pytest.fail("rows were looked at for a question that must be refused")
        yield  # pragma: no cover


def refused(message: Request, **policy: Any) -> bool:
    """Whether a site refuses a message without a look at its rows, and charges nothing."""
    of = replace(site(**{"budget": AMPLE, **policy}), rows=Closed())
    return ask(of, message).code == "refused" and of.account.spent() == Cost() and not of.account.charges()


# ---------------------------------------------------------------------------------------------------------------------
# Prices


def test_what_is_honest_is_answered():
    """Or all refusals below would mean nothing."""
    for message in (training(), training(local_training())):
        of = site(budget=AMPLE)
        assert ask(of, message).code == "answered"
        assert len(of.account.charges()) == 1


@pytest.mark.parametrize(
    "message",
    [
        training(release=SampledGaussian(0.1, 2.0, 1)),
        training(release=SampledGaussian(0.5, 2.0, 2)),
        training(local_training(8), release=SampledGaussian(0.5, 2.0, 1)),
        training(local_training(8), release=SampledGaussian(0.01, 2.0, 8)),
        training(release=Gaussian(1e-4)),
        training(release=Laplace(0.01)),
        training(release=Exact()),
        training(local_training(clip=0.0, batch=8), release=Exact()),
        question(counts((1,)), release=SampledGaussian(0.5, 2.0, 1)),
        question(RecordCount(), release=SampledGaussian(1e-4, 1e4, 1)),
        question(counts((1,)), verb="average", release=SampledGaussian(0.5, 2.0, 1)),
    ],
    ids=["rate", "more", "fewer", "rarer", "gaussian", "laplace", "exact", "batches", "counts", "size", "average"],
)
def test_a_release_pays_for_the_steps_and_the_rate_that_the_question_takes(message):
    """Another rate or number of steps would be priced for less than it tells; what is not sampled is not amplified."""
    assert refused(message)


@pytest.mark.parametrize(
    ("query", "verb", "release"),
    [
        (gradient_sum(), "average", SampledGaussian(0.5, 2.0, 1)),
        (gradient_sum(), "each", Gaussian(1e-4)),
        (gradient_sum(), "each", SampledGaussian(0.5, 2.0, 1)),
        (gradient_sum(), "deposit", Deposit(rho=1e-3)),
        (local_training(), "sum", SampledGaussian(0.5, 2.0, 3)),
        (local_training(), "each", Gaussian(1e-4)),
        (local_training(), "deposit", Deposit(rho=1e-3)),
    ],
)
@pytest.mark.parametrize("trust", ["local", "trusted"])
def test_training_is_asked_for_by_its_own_verb(query, verb, release, trust):
    """A sum of what sites trained would have noise for one step; an average of gradients would have none at all."""
    options = {"trust": TrustedServer()} if trust == "trusted" else {}
    assert refused(training(query, verb=verb, release=release, trust=trust), **options)


def test_a_machine_that_rounds_the_last_rows_of_a_batch_differently_refuses(monkeypatch):
    """The row that takes a removed one's place would add something else there: up to two clip norms of difference."""
    wide = dpsgd._wide_linear

    def uneven(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        z = wide(x, weight, bias)
        return torch.cat([z[:-2], z[-2:] * (1 + 2.0**-22)])

    monkeypatch.setattr(dpsgd, "_wide_linear", uneven)
    _equal_positions.cache_clear()
    try:
        assert refused(training())
        assert refused(training(local_training()))
        for query in (local_training(clip=0.0, batch=8), local_training()):
            exact = training(query, release=Exact())
            assert ask(site(budget=AMPLE, exact=True), exact).code == "answered"  # nothing is guaranteed
    finally:
        _equal_positions.cache_clear()


def test_what_is_not_clipped_is_not_released_with_noise():
    """Batches are not clipped, and without clip or batch there is nothing to do."""
    unclipped = local_training(clip=0.0, batch=8)
    assert refused(training(unclipped, release=SampledGaussian(0.5, 2.0, 3)))
    assert refused(training(unclipped, release=SampledGaussian(0.5, 2.0, 3)), exact=True)
    assert refused(training(local_training(clip=0.0, batch=0), release=SampledGaussian(0.5, 2.0, 3)), exact=True)
    assert refused(training(local_training(clip=1.0, batch=8)), exact=True)
    assert ask(site(exact=True), training(unclipped, release=Exact())).code == "answered"


def test_sampled_noise_is_refused_where_numbers_of_rows_are_public():
    """No accountant covers sampled rows that are replaced."""
    assert refused(training(neighbours="replace"), size_is_public=True)
    assert refused(training(), size_is_public=True)


@pytest.mark.parametrize("number", [math.nan, math.inf, -0.0, -1.0, 2.0**21], ids=str)
def test_clip_norms_that_are_none_do_not_travel(number):
    """An undefined clip norm would pass every comparison that is false for it."""
    clip = 1.234567
    frame = training(gradient_sum(clip=clip)).frame
    written = b"\xcb" + struct.pack(">d", clip)
    assert frame.count(written) == 1
    message = forged(frame.replace(written, b"\xcb" + struct.pack(">d", number)))
    message.weights = WEIGHTS.tobytes()
    assert refused(message)
    assert refused(message, exact=True)


def test_an_approved_plan_bounds_prices_and_numbers_of_sampled_questions():
    """Two steps at the agreed price; no third, no dearer one, no other kind."""
    budget = Budget(2.0, 1e-6)
    release = SampledGaussian(0.5, 6.0, 1)
    price = budget.price(release.cost(Norms(1, 1)))
    slots = (PlannedQuestion("sum", "gradient-sum", "sampled", price, 2, rate=0.5, multiplier=6.0, steps=1),)
    plan = agreed(method="fedtabdiff", schema=SCHEMA.digest, budget=budget, slots=slots)
    policy: dict[str, Any] = {"any_plan": False, "plans": {plan.digest: plan}, "budget": Budget(5.0, 1e-6)}
    of = site(**policy)
    dear = training(release=SampledGaussian(0.5, 5.0, 1), plan=plan, step=7)
    assert ask(of, dear).answer is None
    rare = SampledGaussian(0.01, 2.0, 1)  # its price is lower, and its noise weaker
    assert budget.price(rare.cost(Norms(1, 1))) < price
    assert ask(of, training(gradient_sum(rate=0.01), release=rare, plan=plan, step=8)).answer is None
    asked = [training(release=release, plan=plan, step=step) for step in range(3)]
    assert [ask(of, one).answer is not None for one in asked] == [True, True, False]
    assert len(of.account.charges()) == 2
    assert budget.price(of.account.spent()) == pytest.approx(2 * price)
    other = training(local_training(1), release=release, plan=plan)
    assert ask(site(**policy), other).answer is None
    assert refused(training(release=release), **policy)


class Coarse(GradientSum, frozen=True):
    """A gradient sum that one row changes by few integers."""

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return what a plan's exact accounting does not cover."""
        return Sensitivity(100.0, 100.0)


def test_planned_noise_on_samples_is_in_many_integers():
    """Or the guarantee of a plan, which counts it as continuous noise, would be too small."""
    fine = gradient_sum()
    coarse = Coarse(*(getattr(fine, name) for name in fine.__struct_fields__))
    _check_step(training(fine).head, fine, SCHEMA)
    with pytest.raises(Refused, match="let the question count in finer units"):
        _check_step(training(fine).head, coarse, SCHEMA)


def test_a_site_stops_at_its_limit_whatever_the_server_counts():
    """The curve is charged, and the question that would pass the limit is not answered, nor any after it."""
    of = site(budget=BUDGET)
    codes = [ask(of, training(release=SampledGaussian(0.5, 8.0, 1), step=step)).code for step in range(200)]
    answered = codes.index("spent")
    assert set(codes[answered:]) == {"spent"}
    assert 0 < answered < 200
    one = SampledGaussian(0.5, 8.0, 1).cost(Norms(1, 1))
    assert BUDGET.covers(one * answered)
    assert not BUDGET.covers(one * (answered + 1))
    assert of.account.spent().curve == pytest.approx((one * answered).curve)


# ---------------------------------------------------------------------------------------------------------------------
# Weights


def _with(weights: np.ndarray) -> Request:
    """Return a question that names exactly these weights."""
    return training(gradient_sum(weights), weights)


def _one(value: float) -> np.ndarray:
    changed = WEIGHTS.copy()
    changed[3] = value
    return changed


@pytest.mark.parametrize(
    "message",
    [
        training(weights=None),
        training(weights=_one(0.5)),
        training(weights=WEIGHTS[:-1]),
        training(weights=np.append(WEIGHTS, np.float32(0))),
        _with(WEIGHTS[:-1]),
        _with(np.append(WEIGHTS, np.float32(0))),
        _with(_one(np.nan)),
        _with(_one(np.inf)),
        _with(_one(-1025.0)),
        question(counts((1,))).at(0, None, WEIGHTS.tobytes()),
        question(counts((1,))).at(0, None, b"\0"),
    ],
    ids=["none", "other", "cut", "longer", "fewer", "more", "nan", "inf", "large", "counts", "byte"],
)
def test_weights_that_are_not_the_questions_are_refused_before_a_row_is_read(message):
    assert refused(message)


def test_a_question_is_answered_once_whatever_weights_come_with_it():
    """Repeated with its own weights it is the stored reply; with others it is refused, and the reply stays."""
    of, message = site(budget=AMPLE), training()
    first = ask(of, message)
    spent = of.account.spent()
    other = _one(0.5)
    assert ask(of, message.at(0, None, other.tobytes())).code == "refused"
    assert ask(of, message.at(0, None, b"")).code == "refused"
    assert ask(of, message).data == first.data
    assert of.account.spent() == spent
    # A question for other weights is another question: it is charged, and has noise of its own.
    second = ask(of, training(gradient_sum(other), other))
    assert of.account.spent() == spent + spent
    assert len(of.account.charges()) == 2
    same = np.abs(values(second) - values(first))
    assert np.median(same) > 0.1 * SampledGaussian(0.5, 2.0, 1).noise.sigma(gradient_sum().sensitivity(SCHEMA).l2)


def test_weights_belong_to_the_turn_of_a_secure_sum_that_reads_rows():
    """In any other turn they are refused; without them the turn that reads is."""
    trust = SecureSum(min_honest=2, dropouts=0)
    for verb, query in (("sum", gradient_sum()), ("average", local_training())):
        members = [replace(of, policy=replace(of.policy, budget=AMPLE)) for of in secure_sites(3, trust)]
        of = members[0]
        reads = trust.reads
        assert reads > 0
        asked = training(query, None, trust=trust, verb=verb)
        early = asked.at(0, None, WEIGHTS.tobytes())
        assert ask(of, early).code == "refused"
        turns = converse(members, asked, reads - 1)
        assert len(turns) == reads
        assert all(said.reply.answer is not None for turn in turns for said in turn.values())
        assert not of.account.charges()
        # What the next turn's event is, the server's end says; without weights and with others it is refused.
        event = _next_event(members, asked, turns)
        for weights in (b"", _one(0.5).tobytes()):
            assert ask(of, asked.at(reads, event, weights)).code == "refused"
        assert not of.account.charges()
        assert ask(of, asked.at(reads, event, WEIGHTS.tobytes())).answer is not None
        assert len(of.account.charges()) == 1


def _next_event(members: list[Site], asked: Request, turns: list[Any]) -> Any:
    """Return the event of the first member's next turn, from what all have said."""
    from tests.attacks.world import aggregator

    session = aggregator(members, asked)
    for turn in turns:
        session.ask()
        for name, said in turn.items():
            session.receive(name, said.reply.answer)
    return session.ask()[members[0].name]


# ---------------------------------------------------------------------------------------------------------------------
# A faulty site


@pytest.mark.parametrize("trust", ["local", "trusted"])
@pytest.mark.parametrize("number", [2**62, -(2**62), 2**63 - 1, 2**44])
def test_one_site_does_not_spoil_an_average(trust, number):
    """What no training can arrive at is left out; sums of several such numbers would overflow."""
    federation = five(TRUSTS[trust], in_first_cell(number))
    names = tuple((name, 100) for name in federation.sites)
    query = msgspec.structs.replace(local_training(), sizes=names)
    found = federation.average(query, 0.5, WEIGHTS)
    assert found.sites == tuple(name for name in federation.sites if name != FAULTY)
    assert federation.lost == [FAULTY]
    assert np.abs(found.tables[0]).max() <= 4 * 2**31 * 2**12 * 2.0**-query.grid


# ---------------------------------------------------------------------------------------------------------------------
# A person with several rows


def test_a_person_of_many_rows_is_charged_for_all_of_them():
    """40 rows: noise for 40 times the norm, and the price of being drawn with probability 1 - (1 - q)^40.

    The sum of squares of 105 normal numbers is seven standard deviations off once in 10^8 times.
    """
    unit, query = Unit(rows=40), gradient_sum(rate=0.01)
    release = SampledGaussian(0.01, 3.0, 1)
    of = site(unit=unit, budget=Budget(5.0, 1e-6))
    assert ask(of, training(query, release=release)).code == "refused"  # a smaller unit than the site's
    reply = ask(of, training(query, release=release, unit=unit))
    spent = of.account.spent()
    caught = 1 - (1 - 0.01) ** 40
    assert spent.curve == pytest.approx(SampledGaussian(caught, 3.0, 1).cost(Norms(1, 1)).curve, rel=1e-9)
    single = release.cost(Norms(1, 1))
    assert min(many / one for many, one in zip(spent.curve, single.curve, strict=True)) > 1
    assert spent.curve[0] > 500 * single.curve[0]
    sigma = release.noise.sigma(40 * query.sensitivity(SCHEMA).l2)
    scaled = values(reply) / sigma  # at rate .01 there are next to no rows in it
    assert abs((scaled**2).sum() - CELLS) < 7 * math.sqrt(2 * CELLS) + 5


def test_all_rows_of_a_patient_move_a_sum_no_further_than_the_unit_declares():
    """71,518 patients with up to 40 rows each: who has 40 is taken out of a sum over 2,000 others' rows."""
    data = public_data("diabetes.parquet")
    pytest.importorskip("pyarrow")
    import pandas as pd

    names = ["gender", "age", "max_glu_serum", "medical_specialty"]
    whole = pd.read_parquet(data, columns=["patient_nbr", *names]).fillna("none").astype(str)
    rows_of = whole["patient_nbr"].value_counts()
    assert (len(rows_of), rows_of.iloc[0]) == (71_518, 40)
    columns = tuple(Categorical(name, tuple(sorted(whole[name].unique()))) for name in names)
    schema = Schema(columns)
    mine = whole["patient_nbr"] == rows_of.index[0]
    others, patient = (encode(schema, part[names]) for part in (whole[~mine].head(2000), whole[mine]))
    groups = [np.zeros(column.size, dtype=np.int64) for column in columns[:-1]]
    encoders = (*map(Encoder, groups), Encoder(np.arange(columns[-1].size)))
    cells = size_of(NETWORK.shapes(BatchLayout.of(encoders)))
    weights = np.random.default_rng(1).uniform(-1, 1, cells).astype(np.float32)
    weights[-1] = -30.0
    for rate in (1.0, 0.3):
        query = GradientSum(rate, weights_digest(weights), NETWORK, encoders, 1.0, grid_for(1.0, cells))
        declared = [
            protect(query.sensitivity(schema), ProtectedChange(Unit(rows)), pooled=False).l2 for rows in (1, 40)
        ]
        moved = exactly(query, concatenate([others, patient]), weights) - exactly(query, others, weights)
        assert declared[1] == 40 * declared[0]
        assert 0.5 * rate * declared[1] < np.linalg.norm(moved.astype(float)) <= declared[1] * min(1, 1.5 * rate)
        assert np.linalg.norm(moved.astype(float)) > declared[0]  # one row's norm would not cover the patient


# ---------------------------------------------------------------------------------------------------------------------
# A canary

RATE, MULTIPLIER, ASKED = 0.5, 1.0, 1200
SURE = 4.0
POSSIBLE = RATE * (2 * norm.cdf(0.5 / MULTIPLIER) - 1)
"""Advantage of the best test between N(0, m^2) and its mixture with N(1, m^2): that at equal densities."""


def advantage(rows: Table) -> tuple[float, float]:
    """Return how much more often a site with the row looks like it than one without, and its standard error.

    The server's weights make every gradient as long as the clip norm. It knows the row, and that nobody else is there;
    the best test between the two laws asks on which side of the middle the reply lies along the row's own gradient.
    """
    query = gradient_sum(rate=RATE)
    release = SampledGaussian(RATE, MULTIPLIER, 1)
    direction = exactly(gradient_sum(rate=1.0), only("rare", 1)).astype(float)
    length = float(np.linalg.norm(direction))
    declared = query.sensitivity(SCHEMA).l2
    assert 0.95 * declared < length <= declared
    found = []
    for held, secret in ((rows, b"a" * 32), (only("rare", 0), b"b" * 32)):
        account = Book(entropy=_seeded(secret))
        of = site(held, budget=Budget(1e5, 0.5), secret=secret, account=account)
        replies = (values(ask(of, training(query, release=release, step=step))) for step in range(ASKED))
        sides = np.array([float(reply @ direction) / length > length / 2 for reply in replies])
        found.append(float(sides.mean()))
    error = math.sqrt(sum(part * (1 - part) / ASKED for part in found))
    return found[0] - found[1], error


def allowed() -> float:
    """Return the largest advantage that the curve allows: (e^eps - 1 + 2 delta) / (e^eps + 1), at its best delta."""
    cost = SampledGaussian(RATE, MULTIPLIER, 1).cost(Norms(1, 1))
    pairs = [(math.exp(cost.at(delta)), delta) for delta in np.geomspace(1e-8, 0.5, 200)]
    return float(min((growth - 1 + 2 * delta) / (growth + 1) for growth, delta in pairs))


def test_a_row_is_found_no_more_surely_than_the_curve_says_and_as_surely_as_can_be():
    """Below the bound, and neither above nor below what the two laws allow."""
    found, error = advantage(only("rare", 1))
    assert found + SURE * error < allowed()
    assert abs(found - POSSIBLE) < SURE * error
    assert found > 0.7 * POSSIBLE


@pytest.mark.parametrize("broken", ["noise", "sampling", "clipping"])
def test_the_canary_sings_where_noise_sampling_or_clipping_is_missing(broken, monkeypatch):
    """Half the noise, every row in every sample, or gradients of twice the norm: each is found out."""
    if broken == "noise":
        whole = add_noise

        def half(answer: Any, release: Any, norms: Norms, bits: Any) -> Any:
            return whole(answer, release, Norms(norms.l1 / 2, norms.l2 / 2), bits)

        monkeypatch.setattr("fedsynth.federation.local.add_noise", half)
    elif broken == "sampling":
        monkeypatch.setattr(dpsgd, "poisson", lambda rows, rate, words: np.arange(rows))
    else:
        clipped, honest = dpsgd.clipped_sum, exactly
        monkeypatch.setattr(dpsgd, "clipped_sum", lambda *args: 2 * clipped(*args))
        monkeypatch.setattr("tests.attacks.test_training.exactly", lambda *args: honest(*args) // 2)
    found, error = advantage(only("rare", 1))
    assert found - SURE * error > POSSIBLE


def test_no_server_knows_which_rows_are_drawn(monkeypatch):
    """They follow from the site's secret and the question's salt: sites of one secret draw others for the question.

    A share of 400 rows is seven standard deviations off once in 10^12 times; draws that are the same agree in all.
    """
    drawn: list[np.ndarray] = []
    whole = dpsgd.poisson

    def watched(rows: int, rate: float, words: Any) -> np.ndarray:
        found = whole(rows, rate, words)
        drawn.append(np.isin(np.arange(rows), found))
        return found

    monkeypatch.setattr(dpsgd, "poisson", watched)
    held = table(400)
    for secret in (b"a" * 32, b"b" * 32, b"b" * 32):
        assert ask(site(held, secret=secret, budget=AMPLE), training(local_training(2))).answer is not None
    assert len(drawn) == 6
    for one, part in enumerate(drawn):
        assert abs(part.mean() - 0.5) < 7 * math.sqrt(0.25 / 400)
        for other in drawn[:one]:
            assert abs((part == other).mean() - 0.5) < 7 * math.sqrt(0.25 / 400)


def test_rows_of_a_step_come_in_a_random_order_that_no_server_knows(monkeypatch):
    """The sensitivity's proof compares random orders: in the order of the table one row would move all blocks."""
    orders: list[np.ndarray] = []
    whole = encode_rows

    def watched(rows: Table, encoders: Any, part: np.ndarray) -> EncodedBatch:
        orders.append(part)
        return whole(rows, encoders, part)

    monkeypatch.setattr("fedsynth.deep.training.encode_rows", watched)
    held = table(400)
    query = local_training(2, rate=1.0)
    release = SampledGaussian(1.0, 2.0, 2)
    for secret in (b"a" * 32, b"b" * 32, b"b" * 32):
        of = site(held, secret=secret, budget=AMPLE)
        assert ask(of, training(query, release=release)).answer is not None
    assert len(orders) == 6
    for at, one in enumerate(orders):
        assert sorted(one) == list(range(400))
        for other in (np.arange(400), *orders[:at]):
            assert (one == other).mean() < 0.05


def test_a_row_before_all_others_moves_a_hostile_sum_no_further_however_many_threads_there_are():
    """Threads that split a layer round the last numbers of their parts otherwise; these weights enlarge that 10^6-fold.

    Computed by three threads, one row more moved such a sum by many times the clip norm.
    """
    layout, network = BatchLayout((2,) * 9, ()), Diffusion(width=8, depth=1, embedding=16)
    parameters = [torch.zeros(shape) for shape in network.shapes(layout)]
    parameters[5][:] = 0.5438596606254578  # whose SiLU has another last bit at the end of a thread's part
    parameters[6][0, 165], parameters[6][0, 0] = -1024, 1024
    parameters[8][0, 0], parameters[10][1::2, 0] = 1024, 1024
    rows = 512 * 16
    tokens = np.repeat(np.concatenate([[0], np.arange(rows - 1) % 2])[:, None], 9, axis=1)
    losses = network.losses(layout, EncodedBatch(tokens, np.zeros((rows, 0))), np.random.default_rng(0))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            more = dpsgd.clipped_sum(losses, parameters, rows, 1.0)
            less = dpsgd.clipped_sum(lambda tape, chosen: losses(tape, chosen + 1), parameters, rows - 1, 1.0)
            assert np.linalg.norm(more - less) <= 1 + 2.0**-20
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
