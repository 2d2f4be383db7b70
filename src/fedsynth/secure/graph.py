"""The graph of a secure sum: with whom a site shares masks and secrets, so that large sums cost a site little.

Sites of a small sum are neighbours of one another. Beyond :data:`COMPLETE` members, where fewer neighbours are safe,
each site has k of them, on the graph of Bell, Bonawitz, Gascon, Lepoint & Raykova, "Secure Single-Server Aggregation
with (Poly)Logarithmic Overhead", CCS 2020 (doi 10.1145/3372297.3417885): the members stand on a ring in random order,
and a site's neighbours are the h = k / 2 before it and the h behind it, its two *arcs*. It splits its secrets among its
k neighbours and itself, and t of these k + 1 shares open one. The paper's graph is for a server that follows the
protocol; its variant against a malicious one lets the server sum up subsets of the sites. Here all sites agree on one
set U of survivors (`site`), so that the graph has less to do, and k, t are such that what follows holds against a
malicious server.

**Who draws the graph.** Nobody: the order on the ring is a hash of the session, that is of the question, the terms, all
members' names and keys, which all sites know. Each derives its own neighbours and refuses any others. The server can
choose the session: it can leave sites out, ask another question, and have colluding sites sign other keys, as often as
it computes the hash, without asking anybody. With the hash for a random oracle, each new session has an independent
uniform graph, so that an adversary who computes 2^80 hashes (:data:`TRIES_BITS`) finds a graph on which something fails
that has probability 2^-120 with 2^-40 (:data:`SECURITY_BITS`) at most. Who colludes is fixed before the honest sites
draw their keys, which are part of what is hashed.

**What must not fail.** Let at most c members collude with the server. An *arc* is h consecutive sites on the ring, and
*bad* if more than x of them collude. :func:`layout` takes t >= h + x + 2, and k, t, x such that each of these has
probability 2^-121 at most:

(a) two disjoint arcs are bad. The colluders in an arc are hypergeometric (c of n members, h drawn), and the numbers in
    disjoint arcs of a random order are negatively associated (Joag-Dev & Proschan 1983, doi 10.1214/aos/1176346079,
    theorem 2.11), so this has at most n^2 / 2 times the square of the tail beyond x.
(b) some honest site has t colluders or more, or 2x + 3 or more, among its neighbours: n times that tail (c of the n - 1
    others, k drawn).

(c), that more than k - t neighbours of some site drop out, where d members do whoever they are, is no matter of
secrecy: the sum fails then. Its probability is 2^-30 at most (:data:`SUCCESS_BITS`), n times the tail beyond k - t (d
of the n - 1 others, k drawn).

**Theorem.** If neither (a) nor (b) happens, all that the server learns of the honest sites' vectors is their sum over
*all* honest sites in the one set U that the sites agreed on, each a member by keys that it made itself.

*Proof.* Honest sites that *act*, that is give shares, act on one set U (`site`, rule 4). They give shares of self-masks
for sites in U, and of mask secrets for the others; with (b) no mask secret of an honest site in U is opened, and no
self-mask of one outside, whose vector stays hidden. Let V be the honest sites in U whose keys are their own. The masks
between two of them stay unknown. Site i has put on the mask that it shares with its neighbour j if j is among the
senders S_i that the server showed to it, at least t of which, itself included, sent it boxes that open. (Nobody can
make a box of an honest site, so these are colluders or honest members of the same session.) If i acts, then S_i has all
its neighbours in U, and at least t of these, itself included. No neighbour of a site that sends anything is an honest
one by keys that the server made up: sites verify their neighbours' signatures first. What the server learns are sums
over sets A, subsets of V, in which all unknown masks cancel, and whose self-masks were all opened, each by its owner,
which then acts, or by t shares. (Other linear combinations come to the same: a mask is uniform modulo 2^64 and cancels
only where both its ends have it on, with the same coefficient.) Suppose that A is neither empty nor V, and let W be
the rest of V.

1.  An acting site of A has no neighbour in W: its vector has the mask between them, which does not cancel within A.
2.  A site a of A that does not act and has neighbours in W has an acting neighbour in A. No site of W is in S_a, since
    their mask would stay. So at most k - (t - 1) <= h - x - 1 neighbours of a are in W. At least t of its neighbours
    gave shares of its self-mask. By (b) at most 2x + 2 of them collude, which leaves one or more that act and are in A.
3.  Such a site a has neighbours in W on one side only: those on the side of its acting neighbour in A would be within h
    of that one, against step 1.
4.  Let a in A and w in W be next to each other among the sites of V on the ring, w after a, at distance r. If r > h the
    arc after a has no site of V. If a acts, t - 1 of its neighbours are in U, else t gave shares: in either case x + 1
    or more are in that arc, and they collude: it is bad. If r <= h, a does not act (step 1). Of the arc of the h sites
    before w, those after a are not in V; those before a that are in V are in A by step 3, and do not act by step 1; nor
    does a. So all that gave shares of a's self-mask there collude. Of the k neighbours of a at most h + 1 are outside
    that arc, so x + 1 in it collude: it is bad.
5.  Likewise for w before a. Take a stretch of the ring between two sites of W (or from one all the way round to it)
    with sites of A and none of W in it: both its ends have a bad arc within the stretch. They are disjoint: where an
    end is of the second kind, the acting neighbour of step 2 lies more than h from both ends, and outside that end's
    arc, on the far side of it; where it is of the first kind, the arc lies between the last site of A and the end. So
    (a) happened, and A = V after all.

Now let some honest site p in U be a member by keys that the server made up. No neighbour of p sent a vector, so that
none is in A = V. Then the last site of V before p is more than h away from it, as is the first one after it, and by the
first half of step 4 both the arc after the one and the arc before the other are bad: (a) happened. So every sum that
the server can open has the vectors and the noise of |U| - c honest sites or more, and it is enough that a site verifies
the keys of its neighbours. []

On the complete graph the same holds without chance, with t for :meth:`SecureSum.threshold`, 2t > n + c: t - c honest
sites or more act, on the one U; if one is in A, then A = V (step 1); else a site of A has t senders and none of these t
- c among them, more than n in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import comb

COMPLETE = 64
"""Members up to which all are neighbours of one another; beyond, they are where no sparse graph is safe."""

SECURITY_BITS = 40
"""An adversary within the bounds splits a sum, or opens both secrets of a site, with probability 2^-40 at most ..."""

TRIES_BITS = 80
"""... although it may look at 2^80 graphs and choose one."""

SUCCESS_BITS = 30
"""A sum from which no more sites drop out than it tolerates fails for lack of shares with probability 2^-30 at most."""


@dataclass(frozen=True)
class SumGraph:
    """The graph of a secure sum in numbers.

    Each of the ``members`` sites has ``degree`` neighbours. A site splits its secrets among these and itself, and
    ``threshold`` of these ``degree + 1`` shares open a secret. ``dropouts`` members may drop out before it becomes
    likely that a secret cannot be opened any more.
    """

    members: int
    degree: int
    threshold: int
    dropouts: int

    @property
    def complete(self) -> bool:
        """Whether every member is a neighbour of every other one."""
        return self.degree == self.members - 1


@lru_cache(maxsize=256)
def layout(members: int, colluding: int, dropouts: int, bits: int = SECURITY_BITS + TRIES_BITS) -> SumGraph | None:
    """Return the sparsest graph that is safe for a sum; ``None`` if only the complete graph is.

    Of the sum's ``members`` at most ``colluding`` collude with the server, and at most ``dropouts`` drop out. On one
    such graph an adversary learns more than the sum with probability 2^-``bits`` at most (events (a) and (b) of the
    module's docstring). Probabilities are computed in integers, without rounding. The least number of neighbours is
    found by bisection, and the returned graph itself was checked.
    """
    low, high = 0, (members - 2) // 2  # arcs: the shortest is longer than low; high is tried first
    best = None
    arc = high
    while low < high:
        threshold = _threshold(members, colluding, dropouts, arc, bits)
        if threshold is None:
            if best is None:
                return None
            low = arc
        else:
            best = SumGraph(members, 2 * arc, threshold, dropouts)
            high = arc
        arc = (low + high + 1) // 2 if best is None else (low + high) // 2
        if arc in (low, high):
            break
    return best


def _threshold(members: int, colluding: int, dropouts: int, arc: int, bits: int) -> int | None:
    """Return the least threshold for arcs of that length, ``None`` if too few sites could drop out with it."""
    degree, others = 2 * arc, members - 1
    bad = _bound(members, colluding, arc, lambda tail, all_: (tail * members) ** 2 << bits <= all_**2)
    among = _bound(others, min(colluding, others), degree, lambda tail, all_: tail * members << bits + 1 <= all_)
    bad = max(bad, (among - 1) // 2)
    gone = _bound(others, min(dropouts, others), degree, lambda tail, all_: tail * members << SUCCESS_BITS <= all_)
    threshold = max(arc + bad + 2, among + 1)
    return threshold if threshold + gone <= degree else None


def _bound(population: int, marked: int, drawn: int, rare: Callable[[int, int], bool]) -> int:
    """Return the least number that the marked ones among ``drawn`` exceed as rarely as ``rare(tail, all)`` demands."""
    all_, tail, bound = comb(population, drawn), 0, min(marked, drawn)
    for number, ways in _ways(population, marked, drawn):
        tail += ways
        if not rare(tail, all_):
            break
        bound = number - 1
    return max(bound, 0)


def _ways(population: int, marked: int, drawn: int) -> Iterator[tuple[int, int]]:
    """Yield the possible numbers of marked ones among those drawn, the most first, and in how many ways each comes."""
    number, least = min(marked, drawn), max(0, drawn - (population - marked))
    ways = comb(marked, number) * comb(population - marked, drawn - number)
    while number >= least:
        yield number, ways
        ways = ways * number * (population - marked - drawn + number)
        ways //= (marked - number + 1) * (drawn - number + 1)
        number -= 1


def neighbours(seed: bytes, site: int, layout: SumGraph) -> tuple[int, ...]:
    """Return the sorted positions of a member's neighbours and of itself, among the members in alphabetical order.

    ``seed`` is the digest of the sum's session, and ``site`` the member's own position.
    """
    if layout.complete:
        return tuple(range(layout.members))
    order, places = ring(seed, layout.members)
    arc, at = layout.degree // 2, places[site]
    return tuple(sorted(order[place % layout.members] for place in range(at - arc, at + arc + 1)))


@lru_cache(maxsize=8)
def ring(seed: bytes, members: int) -> tuple[list[int], list[int]]:
    """Return the members (0 to ``members`` - 1) in their order on a ring, and the place of each member in this order.

    They are sorted by 256 bits of a hash each, which depend on ``seed``. The order is uniform unless two hashes are
    equal, which nobody can bring about.
    """
    order = sorted(range(members), key=lambda at: hashlib.sha256(b"fedsynth ring" + seed + at.to_bytes(4)).digest())
    places = [0] * members
    for place, at in enumerate(order):
        places[at] = place
    return order, places
