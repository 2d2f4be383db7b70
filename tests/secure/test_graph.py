"""The graph of a large secure sum: exact tails, a random ring, and the theorem that its bounds rest on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from fedsynth.secure import graph
from fedsynth.secure.graph import SUCCESS_BITS, SumGraph, layout, neighbours, ring
from fedsynth.secure.site import SecureSum


def exceeds(population: int, marked: int, drawn: int, bound: int) -> Fraction:
    ways = sum(
        math.comb(marked, number) * math.comb(population - marked, drawn - number)
        for number in range(max(0, bound + 1), min(marked, drawn) + 1)
    )
    return Fraction(ways, math.comb(population, drawn))


def at_most(tail: Fraction) -> Callable[[int, int], bool]:
    return lambda rare, all_: Fraction(rare, all_) <= tail


@pytest.mark.parametrize(("population", "marked", "drawn"), [(9, 4, 5), (12, 0, 4), (12, 12, 5), (10, 7, 6), (8, 3, 8)])
def test_tails_are_those_of_all_draws(population, marked, drawn):
    counts = np.bincount(
        [sum(at < marked for at in draw) for draw in itertools.combinations(range(population), drawn)],
        minlength=drawn + 1,
    )
    for bound in range(drawn + 1):
        tail = Fraction(int(counts[bound + 1 :].sum()), int(counts.sum()))
        assert exceeds(population, marked, drawn, bound) == tail
        if tail == 1:  # any bound would do
            continue
        found = graph._bound(population, marked, drawn, at_most(tail))
        assert exceeds(population, marked, drawn, found) <= tail
        assert found == 0 or exceeds(population, marked, drawn, found - 1) > tail


CASES = [
    (n, c, d) for n in (65, 100, 300, 1000) for c in (0, n // 10, n // 3, (n - 1) // 2) for d in (n // 50, n // 20)
]


@pytest.mark.parametrize(("members", "colluding", "dropouts"), CASES)
def test_the_graph_keeps_what_its_head_promises(members, colluding, dropouts):
    found = layout(members, colluding, dropouts)
    if found is None:
        assert members < 300
        return
    arc = found.degree // 2
    assert found.degree < members - 1
    most = found.threshold - arc - 2  # colluders of an arc that is not bad
    a = exceeds(members, colluding, arc, most) ** 2 * members**2 / 2
    b = members * exceeds(members - 1, colluding, found.degree, min(found.threshold - 1, 2 * most + 2))
    assert a + b <= Fraction(1, 2**120)
    assert members * exceeds(members - 1, dropouts, found.degree, found.degree - found.threshold) <= Fraction(
        1, 2**SUCCESS_BITS
    )


def test_a_sparser_graph_would_break_a_promise():
    """What is found is not larger than it must be: with shorter arcs no threshold does."""
    for members, colluding, dropouts in CASES:
        found = layout(members, colluding, dropouts)
        if found is not None:
            assert graph._threshold(members, colluding, dropouts, found.degree // 2 - 1, 120) is None


def test_degrees_grow_slowly():
    degrees = {n: layout(n, n // 3, -(-n // 20)) for n in (100, 1000, 10_000)}
    assert [found.degree for found in degrees.values() if found] == [80, 262, 356]


def rates(members: int, colluding: int, found: SumGraph, tries: int) -> tuple[float, float]:
    """Return how often (a) and (b) happen on rings of random seeds."""
    arc, most = found.degree // 2, found.threshold - found.degree // 2 - 2
    split = many = 0
    for seed in range(tries):
        order, _ = ring(seed.to_bytes(32), members)
        marked = np.tile(np.array(order) < colluding, 3)
        sums = np.cumsum(np.concatenate([[0], marked]))
        arcs = sums[arc : arc + members] - sums[:members]
        bad = np.flatnonzero(arcs > most)
        gaps = np.abs(bad[:, None] - bad[None, :])
        split += bool((np.minimum(gaps, members - gaps) >= arc).any())
        at = np.arange(members, 2 * members)
        near = sums[at + arc + 1] - sums[at - arc]
        many += bool((near[~marked[:members]] > min(found.threshold - 1, 2 * most + 2)).any())
    return split / tries, many / tries


@pytest.mark.parametrize(("members", "colluding"), [(100, 20), (150, 50)])
def test_bad_graphs_are_as_rare_as_computed(members, colluding):
    """With a promise of 2^-3 bad graphs can be counted: there are some, and not more."""
    found = layout(members, colluding, 0, bits=3)
    assert found is not None
    split, many = rates(members, colluding, found, 2000)
    assert split + many <= 1 / 8
    looser = SumGraph(members, found.degree, found.threshold - 4, 0)
    assert sum(rates(members, colluding, looser, 200)) > 1 / 8  # the check can fail


def test_the_ring_is_a_uniform_order_that_the_session_decides():
    order, places = ring(bytes(32), 100)
    assert sorted(order) == list(range(100))
    assert [order[place] for place in places] == list(range(100))
    assert ring(b"\1" + bytes(31), 100)[0] != order
    first = np.bincount([ring(bytes([seed % 256, seed // 256]) + bytes(30), 5)[0][0] for seed in range(2000)])
    assert (abs(first - 400) < 100).all()


def test_neighbours_are_mutual_and_as_many_as_the_degree():
    found = SumGraph(100, 34, 29, 5)
    near = [neighbours(bytes(32), site, found) for site in range(100)]
    for site, others in enumerate(near):
        assert len(others) == 35
        assert site in others
        assert list(others) == sorted(others)
        assert all(site in near[other] for other in others)
    assert neighbours(bytes(32), 3, SumGraph(5, 4, 4, 1)) == (0, 1, 2, 3, 4)


# ------------------------------------------------------------------------------------------------------- the theorem


COLLUDES, SURVIVES, LOST, INVENTED = range(4)
"""What a member is: the server's; honest in the sum, or not; honest and in the sum by keys that the server made."""


def opens(near: list[int], threshold: int, states: Sequence[int]) -> bool:
    """Whether a malicious server can open a sum other than that of all honest sites in the sum.

    Sets of sites are the bits of integers. For each set A that it may want to sum up the server plays what is best for
    it: it shows each site of A everybody but the other honest survivors, whose masks would stay, and every other site
    everybody. Then a site of A sends its vector if ``threshold`` of its neighbours and itself were shown to it and none
    has invented keys; any site acts if all survivors near it were shown to it and these are ``threshold``; and a
    self-mask opens by its owner, or by ``threshold`` neighbours that act or collude. Other choices of senders open no
    more: to show fewer keeps sites from sending and acting, and to show one of the others leaves a mask in the sum.
    """
    here = {state: sum(1 << site for site, held in enumerate(states) if held == state) for state in range(4)}
    survivors = here[COLLUDES] | here[SURVIVES] | here[INVENTED]
    honest = here[SURVIVES]
    able = [site for site in range(len(near)) if honest >> site & 1 and not near[site] & here[INVENTED]]
    mayact = [site for site in able if (near[site] & survivors).bit_count() >= threshold]
    for chosen in itertools.product((False, True), repeat=len(able)):
        wanted = [site for site, is_in in zip(able, chosen, strict=True) if is_in]
        inside = sum(1 << site for site in wanted)
        others = honest & ~inside
        if not inside or (not others and not here[INVENTED]):
            continue  # nothing, or the one sum that is the release
        if any((near[site] & ~others).bit_count() < threshold for site in wanted):
            continue
        acts = sum(1 << site for site in mayact if not (inside >> site & 1 and near[site] & others))
        given = [(near[site] & ~(1 << site) & (acts | here[COLLUDES])).bit_count() for site in wanted]
        if all(acts >> site & 1 or shares >= threshold for site, shares in zip(wanted, given, strict=True)):
            return True
    return False


def disjoint_bad_arcs(members: int, arc: int, most: int, colluders: set[int]) -> bool:
    bad = [at for at in range(members) if sum((at + step) % members in colluders for step in range(arc)) > most]
    return any(arc <= abs(a - b) <= members - arc for a, b in itertools.combinations(bad, 2))


def exceptions(members: int, arc: int, most: int, threshold: int) -> int:
    """Return for how many rings a sum opens that should not although neither (a) nor (b) happens."""
    near = [sum(1 << (site + step) % members for step in range(-arc, arc + 1)) for site in range(members)]
    found = 0
    for states in itertools.product(range(4), repeat=members):
        if any(states[turn:] + states[:turn] < states for turn in range(1, members)):
            continue  # the same ring, seen from another site
        colluders = {site for site, state in enumerate(states) if state == COLLUDES}
        held = sum(1 << site for site in colluders)
        if disjoint_bad_arcs(members, arc, most, colluders) or any(
            (near[site] & held).bit_count() > min(threshold - 1, 2 * most + 2)
            for site in range(members)
            if site not in colluders
        ):
            continue
        found += opens(near, threshold, states)
    return found


@pytest.mark.parametrize(("members", "arc", "most"), [(7, 2, 0), (8, 2, 0), (8, 3, 0), (8, 3, 1)])
def test_no_other_sum_opens_than_that_of_all_honest_sites_unless_two_disjoint_arcs_are_bad(members, arc, most):
    """Every ring of colluders, survivors, lost and invented sites, and every set of senders shown to every site."""
    assert exceptions(members, arc, most, arc + most + 2) == 0
    assert exceptions(members, arc, most, arc + most + 1) > 0  # a threshold one smaller would not do


# ------------------------------------------------------------------------------------------------------ the trust


def trust(number: int, min_honest: int | None = None, dropouts: int | None = None) -> SecureSum:
    return SecureSum(min_honest, dropouts).with_roster({f"s{k:04d}": k.to_bytes(32) for k in range(number)})


def test_some_tens_of_sites_are_all_neighbours_and_more_are_not():
    for number in (1, 2, 10, 64):
        found = trust(number, min_honest=max(1, number * 9 // 10)).layout(number)
        assert found.complete
        assert found.threshold == trust(number, min_honest=max(1, number * 9 // 10)).threshold(number)
    assert trust(80, min_honest=72).layout(80) == SumGraph(80, 28, 24, 4)
    assert trust(80).layout(80).complete  # 39 of 80 may collude: nothing sparser is safe
    assert trust(1000).layout(1000) == SumGraph(1000, 422, 378, 50)
    assert trust(1000, dropouts=100).layout(1000).dropouts == 100
    assert trust(1000, min_honest=501).layout(70).complete  # all others of a small sum may collude


@pytest.mark.parametrize("number", [1, 2, 5, 10, 99, 100, 1000])
def test_two_quorums_share_an_honest_site_and_smaller_ones_need_not(number):
    for least in {1, number // 3 + 1, number // 2 + 1, number}:
        here = trust(number, min_honest=least)
        colluding = min(here.colluding, number - 1)
        for signers in (here.quorum(number), here.quorum(number) - 1):
            common = len(set(range(signers)) & set(range(number - signers, number)))
            assert (common > colluding) == (signers == here.quorum(number)) or number == 1
