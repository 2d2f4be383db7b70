"""The graph of a large secure sum: exact tails, a random ring, and the theorem that its bounds rest on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from fedsynth.federation.trust.secure import graph
from fedsynth.federation.trust.secure.graph import SUCCESS_BITS, Layout, layout, neighbours, ring
from fedsynth.federation.trust.secure.site import SecureSum


def exceeds(population: int, marked: int, drawn: int, bound: int) -> Fraction:
    """Return how likely more than ``bound`` of those drawn are marked."""
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


def rates(members: int, colluding: int, found: Layout, tries: int) -> tuple[float, float]:
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
    looser = Layout(members, found.degree, found.threshold - 4, 0)
    assert sum(rates(members, colluding, looser, 200)) > 1 / 8  # the check can fail


def test_the_ring_is_a_uniform_order_that_the_session_decides():
    order, places = ring(bytes(32), 100)
    assert sorted(order) == list(range(100))
    assert [order[place] for place in places] == list(range(100))
    assert ring(b"\1" + bytes(31), 100)[0] != order
    first = np.bincount([ring(bytes([seed % 256, seed // 256]) + bytes(30), 5)[0][0] for seed in range(2000)])
    assert (abs(first - 400) < 100).all()


def test_neighbours_are_mutual_and_as_many_as_the_degree():
    found = Layout(100, 34, 29, 5)
    near = [neighbours(bytes(32), site, found) for site in range(100)]
    for site, others in enumerate(near):
        assert len(others) == 35
        assert site in others
        assert list(others) == sorted(others)
        assert all(site in near[other] for other in others)
    assert neighbours(bytes(32), 3, Layout(5, 4, 4, 1)) == (0, 1, 2, 3, 4)


# ------------------------------------------------------------------------------------------------------- the theorem


def sums_that_open(
    members: int, arc: int, threshold: int, colluders: set[int], survivors: set[int]
) -> set[frozenset[int]]:
    """Return the sets of honest survivors that a malicious server can sum up, over all senders that it shows to sites.

    The sites stand in order on the ring. The server shows each site the senders of its choice (``shown``); a site takes
    part if ``threshold`` of its neighbours and itself are among them, and acts if all survivors near it are as well.
    """
    near = [[(site + step) % members for step in range(-arc, arc + 1)] for site in range(members)]
    honest = survivors - colluders
    opened = set()
    for cut in itertools.combinations(sorted(honest), 2) if len(honest) > 1 else []:
        side = {site for site in honest if cut[0] <= site < cut[1]}
        # the server wants the sum over one side: it shows these sites no one of the other side, and the other way round
        for blind in ("one side", "both sides"):
            hidden = {
                site: honest - side if site in side else side if blind == "both sides" else set() for site in honest
            }
            shown = {site: {other for other in near[site] if other not in hidden[site]} for site in honest}
            if any(len(shown[site]) < threshold for site in side):
                continue
            acts = {
                site
                for site in honest
                if set(near[site]) & survivors <= shown[site] and len(set(near[site]) & survivors) >= threshold
            }
            given = {site: sum(other in acts or other in colluders for other in near[site]) for site in side}
            if any(given[site] < threshold and site not in acts for site in side):
                continue
            cancels = all(
                (other in shown[site]) == (site in shown[other]) == (other in side)
                for site in side
                for other in near[site]
                if other in honest and other != site and (other in shown[site] or other in side)
            )
            if cancels:
                opened.add(frozenset(side))
    return opened


def disjoint_bad_arcs(members: int, arc: int, most: int, colluders: set[int]) -> bool:
    bad = [at for at in range(members) if sum((at + step) % members in colluders for step in range(arc)) > most]
    return any(arc <= abs(a - b) <= members - arc for a, b in itertools.combinations(bad, 2))


def exceptions(members: int, arc: int, most: int, threshold: int) -> int:
    """Return for how many sets of colluders and survivors a part opens although neither (a) nor (b) happens."""
    found = 0
    for held in itertools.product((0, 1, 2), repeat=members):  # colludes, survives, is lost
        colluders = {site for site, state in enumerate(held) if state == 0}
        if len(colluders) > members // 2:
            continue
        survivors = colluders | {site for site, state in enumerate(held) if state == 1}
        near = [sum((site + step) % members in colluders for step in range(-arc, arc + 1)) for site in range(members)]
        if disjoint_bad_arcs(members, arc, most, colluders) or any(
            near[site] > min(threshold - 1, 2 * most + 2) for site in range(members) if site not in colluders
        ):
            continue
        found += bool(sums_that_open(members, arc, threshold, colluders, survivors))
    return found


@pytest.mark.parametrize(("members", "arc", "most"), [(9, 2, 0), (9, 3, 0), (9, 3, 1)])
def test_no_part_of_the_honest_sites_opens_unless_two_disjoint_arcs_are_bad(members, arc, most):
    """Every set of colluders and of survivors, and servers that hide the sites of one side from the other."""
    assert exceptions(members, arc, most, arc + most + 2) == 0
    assert exceptions(members, arc, most, arc + most + 1) > 0  # a threshold one smaller would not do


# ------------------------------------------------------------------------------------------------------ the trust


def trust(number: int, min_honest: int | None = None, dropouts: int | None = None) -> SecureSum:
    return SecureSum(min_honest, dropouts).among({f"s{k:04d}": k.to_bytes(32) for k in range(number)})


def test_some_tens_of_sites_are_all_neighbours_and_more_are_not():
    for number in (1, 2, 10, 64):
        found = trust(number, min_honest=max(1, number * 9 // 10)).layout(number)
        assert found.complete
        assert found.threshold == trust(number, min_honest=max(1, number * 9 // 10)).threshold(number)
    assert trust(80, min_honest=72).layout(80) == Layout(80, 28, 24, 4)
    assert trust(80).layout(80).complete  # 39 of 80 may collude: nothing sparser is safe
    assert trust(1000).layout(1000) == Layout(1000, 422, 378, 50)
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
