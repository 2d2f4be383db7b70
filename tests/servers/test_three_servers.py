"""Three servers: what each alone sees, what all three open and draw, and what each refuses by its own rules."""

from __future__ import annotations

import dataclasses
import itertools
import math
from decimal import Context, Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.contract.world import SCHEMA, random_table
from tests.servers.three_servers_world import COORDINATOR, DEPOSIT, QUERY, Secrets, Silent, World, draw_of, open_of

from fedsynth import keys
from fedsynth.errors import BudgetExceeded, InvalidParameter, Refused, SiteLost
from fedsynth.federation.query import Counts
from fedsynth.federation.wire import sign_request
from fedsynth.keys import Keys, seal
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import ONE_ROW, Budget, Norms, ProtectedChange, Unit
from fedsynth.privacy.noise import KeyedBits, discrete_gumbel, gumbel_scale
from fedsynth.privacy.release import Deposit, Exact, Exponential, Gaussian, Laplace
from fedsynth.rows import concatenate
from fedsynth.schema.bins import Axis
from fedsynth.servers import server as servers_file
from fedsynth.servers.ideal import drawn, utilities
from fedsynth.servers.questions import (
    GRAIN,
    MOST_CANDIDATES,
    MOST_PENALTY,
    MOST_RECORDS,
    MOST_WEIGHT,
    SelectTable,
    ShareLayout,
    noise_part,
    opened_std,
)
from fedsynth.servers.server import ComputeParty, part_for
from fedsynth.servers.shares import (
    MODULUS,
    SERVERS,
    added,
    check_publics,
    expand,
    held,
    last_share,
    numbers_of,
    product,
    roots,
    score,
    subtracted,
    summed,
    total,
    widened,
    words_of,
    zero_share,
)
from fedsynth.servers.vault import Servers

ROWS = (30, 12, 0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def vault(world: World) -> str:
    return world.filled()


@pytest.fixture
def servers(world: World) -> tuple[ComputeParty, ...]:
    return world.parties


def exact(world: World, *cliques: tuple[int, ...]) -> np.ndarray:
    pooled = concatenate(world.tables(ROWS))
    return Counts.of(4, list(cliques)).answer(pooled)


# ---------------------------------------------------------------------------------------------------------------------
# Shares

integers = st.integers(-(2**24), 2**24) | st.integers(2**56 - 2**24, 2**56)
LARGEST_COUNT = 2**31 - 1
unhurried = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(st.lists(integers, min_size=1, max_size=30), st.binary(min_size=32, max_size=32), st.data())
@unhurried
def test_shares_add_up_and_scores_are_sums_of_squares_modulo_2_128(values, secret, data):
    table = np.array(values, dtype=np.int64)
    expected = np.array(data.draw(st.lists(st.integers(0, LARGEST_COUNT), min_size=len(values), max_size=len(values))))
    first, second = secret, secret[::-1] + b"2"
    shares = [expand(first, table.size), expand(second[:32], table.size), last_share(table, first, second[:32])]
    assert (total([share[0] for share in shares]) == table).all()
    assert (added(added(*shares[:2]), shares[2]) == widened(table)).all()
    parts = [score(*held(shares, server), expected, server) for server in range(SERVERS)]
    assert sum(parts) % MODULUS == sum((int(x) - int(m)) ** 2 for x, m in zip(table, expected, strict=True))


edges = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**96 - 1, 2**127, MODULUS - 2**64, MODULUS - 1])
wide_numbers = st.integers(0, MODULUS - 1) | edges


@given(st.lists(st.tuples(wide_numbers, wide_numbers), min_size=1, max_size=30))
@unhurried
def test_wide_arithmetic_is_that_of_integers_modulo_2_128(pairs):
    ones, others = ([pair[at] for pair in pairs] for at in range(2))
    first, second = words_of(ones), words_of(others)
    assert numbers_of(first) == ones
    assert numbers_of(added(first, second)) == [(one + other) % MODULUS for one, other in pairs]
    assert numbers_of(subtracted(first, second)) == [(one - other) % MODULUS for one, other in pairs]
    assert product(first, second) == sum(one * other for one, other in pairs) % MODULUS
    assert numbers_of(summed(first[:, :, None], (0,))) == [sum(ones) % MODULUS]


def test_the_largest_tables_do_not_wrap_where_they_are_summed_and_multiplied():
    ones = np.full((2, 2**20), 2**64 - 1, dtype=np.uint64)  # 2^128 - 1, or -1, a million times
    assert product(ones, ones) == 2**20
    assert numbers_of(summed(ones.reshape(2, 2**10, 2**10), (0,))) == [MODULUS - 2**10] * 2**10


@given(st.lists(st.integers(0, 2**126), min_size=1, max_size=20))
@unhurried
def test_roots_are_those_of_integers_and_large_ones_count_as_a_constant(numbers):
    rng = np.random.default_rng(len(numbers))
    shares = rng.integers(0, 2**64, (2, 2, len(numbers)), dtype=np.uint64)
    third = subtracted(subtracted(words_of(numbers), shares[0]), shares[1])
    assert roots(shares[0], shares[1], third).tolist() == [min(math.isqrt(number), 47453132) for number in numbers]


def test_zero_shares_add_up_to_nothing_and_are_uniform(world):
    keys = [Keys(secret) for secret in world.secrets]
    shares = [zero_share(keys[at], world.publics, at, 20_000, b"context") for at in range(SERVERS)]
    assert not total(shares).any()
    for share in shares:
        assert stats.kstest(share / 2.0**64, "uniform").pvalue > 1e-4
    other = zero_share(keys[0], world.publics, 0, 20_000, b"another context")
    assert not (other == shares[0]).any()


@pytest.mark.parametrize("server", range(SERVERS))
def test_one_servers_view_is_uniform_whatever_the_table_is(server):
    """Both numbers that a server holds of a cell, and their differences, fill 64 bits evenly: bits and correlations."""
    views = []
    for values in (np.zeros(4000, dtype=np.int64), np.arange(4000) ** 2, np.full(4000, 2**56)):
        for salt in range(5):
            first, second = bytes([salt]) * 32, bytes([salt + 100]) * 32
            shares = [expand(first, 4000), expand(second, 4000), last_share(values, first, second)]
            own, following = (share.ravel() for share in held(shares, server))
            for vector in (own, following, own - following, own + following):
                assert stats.kstest(vector / 2.0**64, "uniform").pvalue > 1e-5
                ones = np.unpackbits(vector.view(np.uint8)).mean()
                assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(128 * 4000)
            correlation = np.corrcoef(own[:4000].astype(float), values.astype(float) + np.arange(4000))[0, 1]
            assert abs(correlation) < 5 / math.sqrt(4000)
            views.append(own[:50].tobytes() + following[:50].tobytes())
    assert len(set(views)) == (5 if server == 0 else 15)  # the first server's shares are of secrets alone


def test_what_a_server_sends_on_is_uniform_too(world, vault):
    question = open_of(vault, (1, 2, 3))
    servers = world.parties
    statements = [server.ask(question) for server in servers]
    opened = []
    for server in servers:
        server.agree(statements)
        opened.append(server.share())
    assert (total(opened) - exact(world, (1, 2, 3))).std() < 20
    for share in opened:  # one share alone: a cell's value is lost in 64 random bits
        assert stats.kstest(share / 2.0**64, "uniform").pvalue > 1e-4
    scores = draw_of(vault, (0, 1), (1, 2), (3,), number=1)
    statements = [server.ask(scores) for server in servers]
    for server in servers:
        server.agree(statements)
    assert len({numbers_of(server.scores())[0] >> 96 for server in servers}) == SERVERS


# ---------------------------------------------------------------------------------------------------------------------
# Dealing


def test_boxes_open_for_their_server_and_context_alone():
    keys = [Keys(bytes([at]) * 32) for at in range(SERVERS)]
    box = b"".join(seal(keys[1].public, b"s" * 32, b"a" * 32 + b"b" * 32, "1", "question"))
    assert keys[1].unseal(box, "1", "question") == b"a" * 32 + b"b" * 32
    for other, context in ((keys[0], ("1", "question")), (keys[1], ("2", "question")), (keys[1], ("1", "another"))):
        with pytest.raises(Refused):
            other.unseal(box, *context)


def test_keys_are_of_three_servers():
    publics = World().publics
    check_publics(publics)
    for wrong in (publics[:2], (*publics[:2], publics[0]), (*publics[:2], publics[2][:32])):
        with pytest.raises(InvalidParameter, match="three"):
            check_publics(wrong)


def test_the_first_server_is_sent_no_share_in_full(world):
    dealt = world.dealt("a", QUERY.answer(random_table(5, 0)), world.request().question)
    assert part_for(dealt, 0).body.size == 0
    assert part_for(dealt, 1).body.size == part_for(dealt, 2).body.size == 16 * QUERY.cells(SCHEMA) + 16


def changed(dealt, **fields):
    return msgspec.structs.replace(dealt, **fields)


@pytest.mark.parametrize("spoil", ["box 0", "box 1", "box 2", "body", "signature", "another question", "stranger"])
def test_a_deal_that_one_server_cannot_open_is_dropped_everywhere(world, spoil):
    request = world.request()
    vault = world.begin(request)
    values = [QUERY.answer(table) for table in world.tables(ROWS)]
    first = world.dealt("a", values[0], vault)
    assert world.ideal.take(vault, "a", first)
    dealt, name = world.dealt("b", values[1], vault), "b"
    flipped = dealt.keys.copy()
    if spoil.startswith("box"):
        flipped[int(spoil[-1]), -1] ^= 1
        dealt = changed(dealt, keys=flipped)
    elif spoil == "body":
        body = dealt.body.copy()
        body[3] ^= 1
        dealt = changed(dealt, body=body)
    elif spoil == "signature":
        dealt = changed(dealt, signature=bytes(64))
    elif spoil == "another question":
        dealt = world.dealt("b", values[1], "0" * 64)
    else:
        name = "stranger"
    assert not world.ideal.take(vault, name, dealt)
    assert world.ideal.take(vault, "c", world.dealt("c", values[2], vault))
    world.ideal.keep(vault, ("a", "c"))
    noisy = world.ideal.open(open_of(vault, (0, 1), rho=0.9))
    pooled = concatenate([world.tables(ROWS)[0], world.tables(ROWS)[2]])
    assert np.abs(noisy - Counts.of(4, [(0, 1)]).answer(pooled)).max() < 12


@pytest.mark.parametrize("pair", range(SERVERS))
def test_two_servers_that_hold_different_shares_drop_the_site_everywhere(world, pair):
    """A site seals another secret for one of the two servers that hold a share, and signs all of it."""
    vault = world.begin(world.request())
    values = QUERY.answer(random_table(30, 0))

    one, other = world.dealt("a", values, vault), world.dealt("a", values, vault, salt=b"another")
    boxes = one.keys.copy()
    boxes[pair] = other.keys[pair]
    signed = (*(box.tobytes() for box in boxes), one.digest)
    signature = keys.sign(Secrets("a").identity, servers_file._DEAL, vault, "a", world.terms, *signed)
    lied = changed(one, keys=boxes, signature=signature)
    assert not world.ideal.take(vault, "a", lied)
    assert world.ideal.take(vault, "b", world.dealt("b", values, vault))
    world.ideal.keep(vault, ("b",))
    for server in world.parties:
        statement = server.ask(open_of(vault, (0,))).statement
        assert statement.sites == ("b",)


def test_no_server_can_test_guesses_of_a_share_that_it_does_not_hold(world):
    """What two servers tell each other of a common share is keyed by what only they share."""
    vault = world.begin(world.request())
    dealt = world.dealt("a", QUERY.answer(random_table(30, 0)), vault)
    told = [server.take(vault, "a", part_for(dealt, at)) for at, server in enumerate(world.parties)]
    for at in range(SERVERS):
        assert told[at][1] == told[(at + 1) % SERVERS][0]
    assert len(set(itertools.chain(*told))) == SERVERS
    again = dataclasses.replace(World(), seed=1)
    vault = again.begin(again.request())
    dealt = again.dealt("a", QUERY.answer(random_table(30, 0)), vault)
    other = [server.take(vault, "a", part_for(dealt, at)) for at, server in enumerate(again.parties)]
    assert not set(itertools.chain(*told)) & set(itertools.chain(*other))


def test_a_site_deals_once(world, vault):
    world.begin(world.request(step=1), vault)
    again = world.dealt("a", QUERY.answer(random_table(5, 0)), world.request(step=1).question)
    assert not world.ideal.take(vault, "a", again)
    fresh = World()
    vault = fresh.begin(fresh.request())
    values = QUERY.answer(random_table(5, 0))
    assert fresh.ideal.take(vault, "a", fresh.dealt("a", values, vault))
    fresh.begin(fresh.request())  # the run is resumed before anything was kept
    assert not fresh.ideal.take(vault, "a", fresh.dealt("a", values, vault, salt=b"others"))
    assert fresh.ideal.take(vault, "a", fresh.dealt("a", values, vault))


def test_sites_join_under_the_terms_that_a_vault_began_with(world):
    vault = world.filled(rows=ROWS)
    for request in (world.request(Counts.of(4, [(0, 1)]), step=1), world.request(release=Deposit(rho=2.0), step=1)):
        with pytest.raises(Refused, match="terms that it began with"):
            world.begin(request, vault)
    with pytest.raises(Refused, match="does not hold the vault"):
        world.begin(world.request(step=1), "0" * 64)


def test_a_site_deals_to_one_vault_and_is_not_in_another_for_the_same_charge():
    """Two questions with the same terms: what sites dealt to the first, and paid for once, must not fill the second."""
    world = World(budget=Budget(1.0, 0.0))
    first, second = (world.request(release=Deposit(epsilon=0.5), step=step) for step in (0, 1))
    vault, other = world.begin(first), world.begin(second)
    with pytest.raises(Refused, match="another vault"):
        world.begin(first, other)
    values = QUERY.answer(random_table(30, 0))
    assert world.ideal.take(vault, "a", world.dealt("a", values, vault))
    later = world.request(release=Deposit(epsilon=0.5), step=2)
    world.ideal.keep(vault, ("a",))
    world.begin(later, vault)
    again = World(budget=world.budget, books=world.books)
    again.begin(second)
    with pytest.raises(Refused, match="another vault"):  # nor a cohort's question, in a later process too
        again.begin(later, other)
    with pytest.raises(Refused, match="another vault"):  # nor as the first question of a vault of its own
        World(budget=Budget(9.0, 0.0), books=world.books).begin(later)


@pytest.mark.parametrize("run", ["run", "another"])
def test_a_cheap_question_in_a_vaults_name_does_not_hide_its_price(run):
    world = World(budget=Budget(1.0, 0.0))
    dear = world.request(release=Deposit(epsilon=500.0))
    cheap = world.request(release=Deposit(epsilon=0.001), step=1, run=run)
    for server in world.parties:
        with pytest.raises(Refused, match="does not hold the vault"):
            server.begin(dear.question, cheap.agreement.data, cheap.body, sign_request(COORDINATOR, cheap.body))
        with pytest.raises(BudgetExceeded, match="of this run"):
            server.begin(dear.question, dear.agreement.data, dear.body, sign_request(COORDINATOR, dear.body))


def test_the_prices_of_a_run_are_of_one_kind():
    """An epsilon of 0.9 is a rho of 0.4, which is 18 times what (1, 1e-6) covers: it does not fit beside all of it."""
    world = World(budget=Budget(1.0, 1e-6))
    world.begin(world.request(release=Deposit(rho=0.9 * world.budget.rho)))
    with pytest.raises(BudgetExceeded, match="of this run"):
        world.begin(world.request(release=Deposit(epsilon=0.9), step=1))
    pure = World(budget=Budget(1.0, 0.0))
    with pytest.raises(BudgetExceeded, match="of this run"):  # no zCDP is pure
        pure.begin(pure.request(release=Deposit(rho=0.1)))


def test_a_deposit_holds_a_column_over_one_axis(world):
    """Tables of one clique with fewer cells lie one after the other: read as one table, a record moves many cells."""
    whole = np.zeros(5, dtype=np.int64)
    axes = (*(Axis(3, groups=whole) for _ in range(4)), Axis(3))
    query = Counts(axes, tuple((at,) for at in range(5)))
    query.check(SCHEMA)
    with pytest.raises(Refused, match="over one axis"):
        world.begin(world.request(query))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"release": Deposit(rho=1e6)}, "exceed the budget"),
        ({"release": Deposit()}, "without noise"),
        ({"query": Counts.of(4, [(0, 1)], [3])}, "without weights"),
    ],
)
def test_a_server_refuses_deposits_beyond_its_terms(world, change, says):
    request = world.request(**change)
    with pytest.raises((Refused, BudgetExceeded, InvalidParameter), match=says):
        world.begin(request)


def test_a_server_refuses_what_another_coordinator_asks(world):
    request = world.request()
    request.signature = sign_request(Keys(b"another coordinator's own secret"), request.body)
    with pytest.raises(Refused, match="not signed by the coordinator"):
        world.begin(request)
    assert COORDINATOR.public  # the right one is pinned


# ---------------------------------------------------------------------------------------------------------------------
# Opening


def test_what_is_opened_has_the_noise_of_all_three_and_two_have_enough():
    release, norms = Gaussian(0.005), Norms(1.0, 1.0)
    sigma = release.sigma(1.0)
    part = noise_part(release, norms)
    assert part is not None
    assert math.sqrt(2) * part.std >= sigma
    assert opened_std(release, norms) == pytest.approx(math.sqrt(1.5) * sigma)
    errors = []
    for seed in range(40):
        world = World(seed=seed)
        vault = world.filled()
        errors.append(world.ideal.open(open_of(vault, (1, 2, 3), rho=0.005)) - exact(world, (1, 2, 3)))
    seen = np.concatenate(errors)
    spread = opened_std(release, norms) ** 2
    assert seen.mean() == pytest.approx(0, abs=5 * math.sqrt(spread / seen.size))
    assert seen.var() == pytest.approx(spread, rel=5 * math.sqrt(2 / seen.size))


@pytest.mark.parametrize("release", [Gaussian(0.01), Gaussian(8.0), Laplace(0.2), Laplace(3.0)])
@pytest.mark.parametrize("norms", [Norms(1.0, 1.0), Norms(5.0, math.sqrt(5.0))])
def test_any_two_honest_servers_have_what_the_release_promises(release, norms):
    part = noise_part(release, norms)
    assert part is not None
    promised = release.sigma(norms.l2) if isinstance(release, Gaussian) else math.sqrt(2) * release.scale(norms.l1)
    assert math.sqrt(2) * part.std >= promised * (1 - 1e-12)
    draws = part.noise(40_000, bytes(32)) + part.noise(40_000, bytes([1]) * 32)
    assert draws.var() >= 0.9 * promised**2 - 0.5


def test_tables_of_fewer_columns_and_weights_come_from_what_was_dealt():
    world = World(exact=True)
    vault = world.filled(release=Deposit())
    layout = ShareLayout(QUERY, SCHEMA)
    assert layout.cells == QUERY.cells(SCHEMA)
    question = open_of(vault, (3, 1), (0,), (2,))
    question = msgspec.structs.replace(question, release=Exact(), weights=(1, 4, 64))
    found = world.ideal.open(question)
    pooled = concatenate(world.tables(ROWS))
    assert (found == Counts.of(4, [(3, 1), (0,), (2,)], [1, 4, 64]).answer(pooled)).all()
    with pytest.raises(Refused, match="not deposited together"):
        world.ideal.open(msgspec.structs.replace(question, cliques=((0, 3),), weights=(), number=1))
    with pytest.raises(Refused, match="not deposited together"):
        world.ideal.open(msgspec.structs.replace(question, cliques=((1, 1),), weights=(), number=1))


# ---------------------------------------------------------------------------------------------------------------------
# Rosters and ledgers


def test_a_question_is_answered_once_and_from_what_is_stored_then(world, vault):
    first = world.ideal.open(open_of(vault, (0, 1)))
    assert (world.ideal.open(open_of(vault, (0, 1))) == first).all()
    index = world.ideal.draw(draw_of(vault, (0,), (1,), (2, 3), number=1))
    assert world.ideal.draw(draw_of(vault, (0,), (1,), (2, 3), number=1)) == index
    assert {count for count, _ in world.spent(vault)} == {2}
    assert [cost for _, cost in world.spent(vault)] == pytest.approx([0.2] * SERVERS)
    with pytest.raises(Refused, match="differs from the one"):
        world.ideal.open(open_of(vault, (0,)))
    with pytest.raises(Refused, match="out of order"):
        world.ideal.open(open_of(vault, (0,), number=5))
    assert [count for count, _ in world.spent(vault)] == [2] * SERVERS


def test_a_server_that_starts_again_goes_on_from_its_book_and_gives_the_same_bits(world, vault):
    first = world.ideal.open(open_of(vault, (0, 1)))
    drew = world.ideal.draw(draw_of(vault, (0,), (1,), (2, 3), number=1))
    again = World(books=world.books)
    assert again.filled() == vault
    assert (again.ideal.open(open_of(vault, (0, 1))) == first).all()
    assert again.ideal.draw(draw_of(vault, (0,), (1,), (2, 3), number=1)) == drew
    assert {count for count, _ in world.spent(vault)} == {2}
    assert [cost for _, cost in world.spent(vault)] == pytest.approx([0.2] * SERVERS)
    with pytest.raises(BudgetExceeded, match="deposited"):
        again.ideal.open(open_of(vault, (0, 1), rho=0.81, number=2))
    other = World(books=world.books, seed=0)
    request = other.request()
    other.begin(request)
    values = [QUERY.answer(table) for table in other.tables(ROWS)]
    for name, table in zip(("a", "b"), values, strict=False):
        assert other.ideal.take(vault, name, other.dealt(name, table, vault))
    other.ideal.keep(vault, ("a", "b"))
    for server in other.parties:  # the same question, of other sites: nothing new is made of it
        with pytest.raises(Refused, match="differs from the one"):
            server.ask(open_of(vault, (0, 1)))
    with pytest.raises(Refused, match="differs from the one"):
        other.ideal.open(open_of(vault, (0, 1)))


def test_a_vault_opens_no_more_than_was_deposited(world, vault):
    world.ideal.open(open_of(vault, (0,), rho=0.6))
    with pytest.raises(BudgetExceeded):
        world.ideal.draw(draw_of(vault, (0,), (1,), rho=0.41, number=1))
    with pytest.raises(BudgetExceeded):
        world.ideal.open(msgspec.structs.replace(open_of(vault, (0,), number=1), release=Exact()))
    world.ideal.draw(draw_of(vault, (0,), (1,), rho=0.4, number=1))
    assert set(world.spent(vault)) == {(2, 1.0)}
    pure = World(budget=Budget(1.0, 0.0))
    vault = pure.filled(release=Deposit(epsilon=1.0))
    with pytest.raises(BudgetExceeded):  # Gaussian noise has no pure price
        pure.ideal.open(open_of(vault, (0,), rho=1e-5))
    pure.ideal.open(msgspec.structs.replace(open_of(vault, (0,)), release=Laplace(0.5)))
    pure.ideal.draw(draw_of(vault, (0,), (1,), rho=0.5**2 / 8, number=1))
    with pytest.raises(BudgetExceeded):
        pure.ideal.open(msgspec.structs.replace(open_of(vault, (0,), number=2), release=Laplace(0.01)))


def test_the_vaults_of_a_run_add_up():
    world = World(budget=Budget(1.0, 0.0))
    world.filled(release=Deposit(epsilon=0.6))
    with pytest.raises(BudgetExceeded, match="of this run"):
        world.begin(world.request(release=Deposit(epsilon=0.6), step=1))


def test_no_share_leaves_for_a_question_that_the_book_did_not_charge(tmp_path):
    world = World(books=tuple(Book(tmp_path / f"ledger-{number}") for number in range(SERVERS)), questions=1)
    vault = world.filled()
    world.ideal.open(open_of(vault, (0,)))
    server = world.parties[0]
    assert server.share().size == SCHEMA.sizes[0]
    with pytest.raises(BudgetExceeded, match="at most 1 questions"):
        world.ideal.draw(draw_of(vault, (0,), (1,), number=1))
    assert server.book.said(vault, "statement 1") is not None  # agreed to, and not charged
    for step in (server.scores, server.gumbels, lambda: server.answered(b"")):
        with pytest.raises(Refused, match="nothing is opened"):
            step()


@pytest.mark.parametrize("spoil", ["sites", "inputs", "question", "spent", "held", "signature", "missing"])
def test_nothing_leaves_unless_three_rosters_agree(world, vault, servers, spoil):
    statements = [server.ask(open_of(vault, (0,))) for server in servers]
    others = {"sites": ("a", "b"), "inputs": "1" * 64, "question": "2" * 64, "spent": 0.5, "held": "3" * 64}
    if spoil in others:
        lied = msgspec.structs.replace(statements[1].statement, **{spoil: others[spoil]})
        signature = Keys(world.secrets[1]).sign("statement", lied.body)
        statements[1] = msgspec.structs.replace(statements[1], statement=lied, signature=signature)
    elif spoil == "signature":
        statements[1] = msgspec.structs.replace(statements[1], signature=statements[0].signature)
    else:
        statements = statements[:2]
    for server in (servers[0], servers[2]):
        with pytest.raises(Refused, match="nothing is opened"):
            server.agree(statements)
        for leaks in (server.share, server.scores, server.gumbels):
            with pytest.raises(Refused):
                leaks()
    assert world.spent(vault) == [(0, 0)] * SERVERS


def test_another_roster_at_one_server_is_refused(vault, servers):
    """A coordinator that shows one server other sites, or asks it something else, gets nothing from any."""
    asked = (open_of(vault, (0,)), open_of(vault, (1,)), open_of(vault, (0,)))
    statements = [server.ask(question) for server, question in zip(servers, asked, strict=True)]
    for server in servers:
        with pytest.raises(Refused, match="nothing is opened"):
            server.agree(statements)


def test_a_dead_server_is_named_and_nothing_is_opened_or_charged(world, vault):
    stopped = Servers(Silent(world.parties))
    with pytest.raises(SiteLost, match="server 2"):
        stopped.open(open_of(vault, (0,)))
    with pytest.raises(SiteLost, match="server 2"):
        stopped.draw(draw_of(vault, (0,), (1,)))
    assert set(world.spent(vault)) == {(0, 0)}
    world.ideal.open(open_of(vault, (0,)))
    assert {count for count, _ in world.spent(vault)} == {1}


def test_a_server_knows_its_own_place(world):
    with pytest.raises(InvalidParameter, match="position"):
        dataclasses.replace(world.server(1), secret=world.secrets[0])


# ---------------------------------------------------------------------------------------------------------------------
# Public inputs and sensitivity

CLIQUES = ((0,), (3,), (0, 1), (1, 2), (2, 3), (1, 2, 3))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"weights": [0, 1]}, "weights must lie between"),
        ({"weights": [MOST_WEIGHT + 1, 1]}, "weights must lie between"),
        ({"weights": [1]}, "1 weights are given"),
        ({"penalties": [-1, 0]}, "penalties must lie between"),
        ({"penalties": [0, MOST_PENALTY + 1]}, "penalties must lie between"),
        ({"expected": np.array([0, 0, 0, -1, 0, 0, 0])}, "expected counts must be at least 0"),
        ({"expected": np.zeros(6)}, "6 expected counts are given for 7 cells"),
        ({"rho": 1e-30}, "more noise than"),
    ],
)
def test_public_inputs_that_could_wrap_are_refused_by_every_server(world, vault, fields, says):
    for server in world.parties:
        with pytest.raises(Refused, match=says):
            server.ask(draw_of(vault, (0,), (3,), **fields))
    assert world.ideal.draw(
        draw_of(
            vault, (0,), (3,), weights=[1, MOST_WEIGHT], penalties=[MOST_PENALTY, 0], expected=np.full(7, LARGEST_COUNT)
        )
    ) in (0, 1)


def test_more_candidates_than_three_processes_can_draw_among_are_refused_before_the_charge():
    question = draw_of(World().filled(), (0,))
    with pytest.raises(Refused, match="at most 16384"):
        msgspec.structs.replace(question, cliques=question.cliques * (MOST_CANDIDATES + 1)).check()


@st.composite
def neighbouring_tables(draw):
    """Return two tables as sites deal them that differ in a person's rows, and how neighbours are defined."""
    cells = draw(st.integers(1, 12))
    most = MOST_RECORDS // 12 - 5
    sizes = st.integers(0, 2**20) | st.integers(most - 2**20, most) | st.just(2**25)
    table = np.array(draw(st.lists(sizes, min_size=cells, max_size=cells)), dtype=np.int64)
    rows = draw(st.integers(1, 4))
    cell = st.integers(0, cells - 1)
    other = table.copy()
    neighbours = draw(st.sampled_from(["add-remove", "replace"]))
    for _ in range(draw(st.integers(0, rows))):
        other[draw(cell)] += 1
        if neighbours == "replace":
            at = draw(cell)
            if other[at] > 0:
                other[at] -= 1
    return table, other, Unit(rows, 1), neighbours


@given(neighbouring_tables(), st.data())
@settings(unhurried, max_examples=300)
def test_no_utility_moves_by_more_than_the_noise_is_made_for(tables, data):
    table, other, unit, neighbours = tables
    expected = np.array(
        data.draw(st.lists(st.integers(0, LARGEST_COUNT), min_size=table.size, max_size=table.size)), dtype=np.int64
    )
    question = SelectTable(
        "0" * 64,
        0,
        ((0,),),
        expected.astype(np.int32),
        np.array([data.draw(st.integers(1, MOST_WEIGHT))], dtype=np.int32),
        np.array([data.draw(st.integers(0, MOST_PENALTY))], dtype=np.int32),
        Exponential(0.1),
    )
    question.check()
    question.tables([table.size])
    sums = [sum(int(gap) ** 2 for gap in one - expected) for one in (table, other)]
    assert max(sums) < 2**113
    nothing = words_of([0])
    found = [utilities(roots(words_of([one]), nothing, nothing), question)[0] for one in sums]
    assert abs(int(found[0]) - int(found[1])) <= question.moved(ProtectedChange(unit, neighbours))
    assert abs(int(found[0])) < 2**52


def test_sensitivity_is_reached_and_scaled_by_persons():
    question = draw_of("0" * 64, (0,), (3,), weights=[3, 7])
    assert question.moved(ProtectedChange()) == GRAIN * 7
    assert question.moved(ProtectedChange(Unit(2, 3))) == GRAIN * 7 * 6
    assert question.moved(ProtectedChange(ONE_ROW, "replace")) == GRAIN * 7 * 2
    assert question.moved(ProtectedChange(Unit(5, 2), "replace")) == GRAIN * 7 * 15  # ceil(10 sqrt(2))
    assert question.scale(ProtectedChange()) == pytest.approx(2 * GRAIN * 7 / Exponential(0.1).epsilon, rel=1e-3)


# ---------------------------------------------------------------------------------------------------------------------
# The draw


def two_gumbels(gaps: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Return how often each candidate wins with two continuous Gumbel numbers of scale 1 each."""
    rng = np.random.default_rng(seed)
    noisy = gaps + rng.gumbel(size=(draws, gaps.size)) + rng.gumbel(size=(draws, gaps.size))
    return np.bincount(noisy.argmax(axis=1), minlength=gaps.size)


def test_draws_have_the_frequencies_of_the_exponential_mechanism_with_two_gumbels():
    """10,000 draws of the steps that servers take, against 10 times as many of the plain mechanism."""
    question = draw_of("0" * 64, (0,), (1,), (2,), (3,), weights=[4, 3, 2, 1], penalties=[2, 0, 1, 0], rho=0.02)
    scale = question.scale(ProtectedChange())
    assert scale is not None
    sums = words_of([90, 60, 500, 700])
    counts = np.zeros(4)
    rng = np.random.default_rng(0)
    for number in range(10_000):
        shares = [*rng.integers(0, 2**64, (2, 2, 4), dtype=np.uint64)]
        shares.append(subtracted(subtracted(sums, shares[0]), shares[1]))
        gumbels = [discrete_gumbel(scale, 4, KeyedBits(bytes([at]) * 32, str(number).encode())) for at in (1, 2)]
        counts[drawn(shares, question, [*gumbels, None])] += 1
    gaps = utilities(roots(sums, np.zeros_like(sums), np.zeros_like(sums)), question) / scale
    plain = two_gumbels(gaps, 1_000_000, 1)
    assert counts.min() > 300
    assert stats.chisquare(counts, plain * (10_000 / 1_000_000)).pvalue > 1e-3
    one = np.exp(gaps - gaps.max())
    assert stats.chisquare(counts, one / one.sum() * 10_000).pvalue < 1e-6  # not those of one Gumbel number


def test_with_one_servers_gumbels_known_the_other_alone_makes_the_exponential_mechanism():
    question = draw_of("0" * 64, (0,), (1,), (2,), weights=[2, 1, 1], rho=0.05)
    scale = question.scale(ProtectedChange())
    assert scale is not None
    known = discrete_gumbel(scale, 3, KeyedBits(b"k" * 32, b"known"))
    exact = utilities(np.array([5, 20, 8]), question) + known
    own = discrete_gumbel(scale, 3 * 40_000, KeyedBits(b"o" * 32, b"own")).reshape(-1, 3)
    counts = np.bincount((exact + own).argmax(axis=1), minlength=3)
    law = np.exp((exact - exact.max()) / scale)
    assert stats.chisquare(counts, law / law.sum() * counts.sum()).pvalue > 1e-3


def test_servers_add_two_full_sets_of_gumbels_and_the_third_none(vault, servers):
    question = draw_of(vault, *CLIQUES)
    statements = [server.ask(question) for server in servers]
    for server in servers:
        server.agree(statements)
    first, second, third = (server.gumbels() for server in servers)
    assert first is not None
    assert second is not None
    assert third is None
    assert first.shape == second.shape == (len(CLIQUES),)
    assert not (first == second).any()


@pytest.mark.parametrize("scale", [0.3, 4.0, 1000.7, 3e9, 2.0**50])
def test_gumbels_have_their_law(scale):
    draws = discrete_gumbel(scale, 20_000 if scale < 2**40 else 2000, KeyedBits(b"g" * 32, b"law"))
    assert draws.dtype == np.int64
    places = (draws + 1) / scale if scale < 100 else (draws + 0.5) / scale
    if scale >= 100:
        assert stats.kstest(places, "gumbel_r").pvalue > 1e-4
    for quantile in np.linspace(0.05, 0.95, 7):
        cell = math.floor(-scale * math.log(-math.log(quantile)))
        law = math.exp(-math.exp(-(cell + 1) / scale))
        assert (draws <= cell).mean() == pytest.approx(law, abs=5 * math.sqrt(law * (1 - law) / draws.size) + 1e-9)


class Digits:
    """Words that start with chosen digits, then others."""

    def __init__(self, *words: int) -> None:
        self.first, self.rest = list(words), KeyedBits(b"r" * 32, b"rest")

    def words(self, n: int) -> np.ndarray:
        given, self.first = self.first[:n], self.first[n:]
        return np.concatenate([np.array(given, dtype=np.uint64), self.rest.words(n - len(given))])


@pytest.mark.parametrize(
    ("word", "low", "high"), [(0, -1e4, -3.7e3), (2**64 - 1, 42e3, 1e5), (2**63, 366, 367), (2**63 - 4, 366, 367)]
)
def test_extreme_and_doubtful_words_are_decided_with_more_digits(word, low, high):
    (draw,) = discrete_gumbel(1000.0, 1, Digits(word))
    assert low <= draw <= high


def test_a_doubtful_gumbel_is_that_of_the_digits_that_follow():
    scale, edge = 1000.0, 400
    context = Context(prec=80)
    place = context.exp(-context.exp(-Decimal(edge) / Decimal(1000)))  # exactly at the edge of two cells
    digits = int(place * (1 << 126))
    head, tail = digits >> 64, digits & (2**64 - 1)
    below = discrete_gumbel(scale, 1, Digits(head << 2, max(0, tail - 2**40)))
    above = discrete_gumbel(scale, 1, Digits(head << 2, min(2**64 - 1, tail + 2**40)))
    assert (below[0], above[0]) == (edge - 1, edge)


def win(utilities_: list[int], scale: float, first: bool) -> list[float]:
    """Return each candidate's probability to have the largest noisy utility, ties to the first (or the last)."""
    q = math.exp(-1 / scale)
    rates = np.exp(np.array(utilities_) / scale)
    found = np.zeros(len(rates))
    low = math.floor(-scale * math.log(60 / rates.sum()))
    high = math.ceil(scale * (math.log(rates.sum()) + 40))
    for cell in range(low, high):
        below, upto = np.exp(-rates * q**cell), np.exp(-rates * q ** (cell + 1))
        for i in range(len(rates)):
            before, after = (below, upto) if first else (upto, below)
            found[i] += (upto[i] - below[i]) * np.prod(before[:i]) * np.prod(after[i + 1 :])
    return list(found)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_gumbels_rounded_down_keep_a_draws_bounded_range(epsilon, first):
    moved = 3
    scale = gumbel_scale(moved, epsilon)
    tables = [0, 2, -1]
    laws = {
        change: np.log(win([u + d for u, d in zip(tables, change, strict=True)], scale, first))
        for change in itertools.product((-moved, 0, moved), repeat=3)
    }
    base = laws[0, 0, 0]
    ranges = [np.ptp(law - base) for law in laws.values()]
    assert max(ranges) <= epsilon
    assert max(ranges) > 0.4 * epsilon
    assert np.exp(base).sum() == pytest.approx(1)


def test_a_scale_needs_a_movement_and_an_epsilon():
    with pytest.raises(ValueError, match="positive integer"):
        gumbel_scale(0, 1.0)
    with pytest.raises(ValueError, match="epsilon"):
        gumbel_scale(1, 0.0)
    with pytest.raises(ValueError, match="scale"):
        discrete_gumbel(2.0**51, 1, KeyedBits(b"g" * 32, b""))
    assert gumbel_scale(1, 1e9) == 4.0
    assert DEPOSIT.rho == 1.0
