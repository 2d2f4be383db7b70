"""Genetic search for the structure of a Bayesian network, on islands (populations) that exchange individuals.

Source: the FedBN thesis, after Hittmeir, Mayer & Ekelhart (genetic structure search for PrivBayes).
:func:`~fedsynth.models.structure.best_structure` maximises the same objective (:meth:`Population.fitness`), exactly for
up to 20 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.models.structure import Structure

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Population:
    """Individuals of a genetic search for the structure of a Bayesian network, as arrays.

    An individual is an order of the columns with a few candidate parents for each column. ``orders``, shape
    ``(individuals, columns)``, lists column numbers; ``sets``, shape ``(individuals, columns, candidates)``, the
    numbers of the candidates of each column (not of each place in the order). A column's parents are those of its
    candidates that come earlier in the order; the first columns of the order take all earlier ones (:meth:`parents`).
    """

    orders: Integers
    sets: Integers

    @classmethod
    def random(cls, count: int, columns: int, degree: int, rng: np.random.Generator) -> Population:
        """Draw ``count`` individuals: random orders, and ``degree`` candidate parents of each of ``columns`` columns.

        Candidates are columns earlier in the order; later ones are taken only where fewer than ``degree`` are earlier.
        """
        orders = rng.permuted(np.tile(np.arange(columns), (count, 1)), axis=1)
        before = _before(orders)
        keys = rng.random(before.shape) + before
        keys[:, np.arange(columns), np.arange(columns)] = -1.0
        return cls(orders, np.argsort(-keys, axis=2)[:, :, :degree])

    def __len__(self) -> int:
        return len(self.orders)

    def take(self, which: Integers) -> Population:
        """Return the individuals at the positions ``which``."""
        return Population(self.orders[which], self.sets[which])

    def joined(self, other: Population) -> Population:
        """Return the individuals of both, those of ``other`` last."""
        return Population(np.concatenate([self.orders, other.orders]), np.concatenate([self.sets, other.sets]))

    def parents(self) -> NDArray[np.bool_]:
        """Return who is whose parent as a mask, shape ``(individuals, columns, columns)``; the last axis is the parent.

        The columns at places 1 to k of an order (counted from 0; k is the number of candidates) take all earlier
        columns as parents; later columns take their candidates that come earlier.
        """
        before = _before(self.orders)
        early = np.argsort(self.orders, axis=1) <= self.sets.shape[2]
        found: NDArray[np.bool_] = before & (early[:, :, None] | _held(self.sets))
        return found

    def fitness(self, weights: Array) -> Array:
        """Return each individual's fitness: the sum of ``weights[i, j]`` over columns i and their parents j."""
        found: Array = (self.parents() * weights).sum(axis=(1, 2))
        return found

    def next(self, elite: Population, rng: np.random.Generator) -> Population:
        """Return the next generation: the individuals of ``elite``, and their crossed and mutated offspring."""
        bred = elite.take(rng.integers(len(elite), size=(len(self) - len(elite),)))
        return elite.joined(bred._crossed(elite, rng)._flipped(rng)._swapped(rng))

    def _crossed(self, elite: Population, rng: np.random.Generator) -> Population:
        """Cross some individuals with another of the elite: a prefix of [order, set 1, ..., set d] is kept."""
        count, columns = self.orders.shape
        other = elite.take(rng.integers(len(elite), size=(count,)))
        crossed = rng.random(count) < 1 / columns
        cut = np.where(crossed, rng.integers(columns + 1, size=count), columns + 1)
        orders = np.where((cut > 0)[:, None], self.orders, other.orders)
        kept = np.arange(1, columns + 1) < cut[:, None]
        return Population(orders, np.where(kept[:, :, None], self.sets, other.sets))

    def _flipped(self, rng: np.random.Generator) -> Population:
        """Mutate orders: swap some columns with others at random places."""
        count, columns = self.orders.shape
        orders, rows = self.orders.copy(), np.arange(count)
        flipped, places = rng.random((count, columns)) < 1 / columns, rng.integers(columns, size=(count, columns))
        for place in range(columns):
            other = np.where(flipped[:, place], places[:, place], place)
            orders[rows, place], orders[rows, other] = orders[rows, other], orders[rows, place]
        return Population(orders, self.sets)

    def _swapped(self, rng: np.random.Generator) -> Population:
        """Mutate candidates: replace those that come later in the order, then some of all, by earlier columns."""
        before, sets = _before(self.orders), self.sets.copy()
        late = ~np.take_along_axis(before, sets, axis=2)
        for replaced in (late, rng.random(sets.shape) < 1 / self.orders.shape[1]):
            for slot in range(sets.shape[2]):
                able = before & ~_held(sets)
                drawn = np.where(able, rng.random(able.shape), -1.0).argmax(axis=2)
                taken = replaced[:, :, slot] & able.any(axis=2)
                sets[:, :, slot] = np.where(taken, drawn, sets[:, :, slot])
        return Population(self.orders, sets)


def _before(orders: Integers) -> NDArray[np.bool_]:
    """Return whether the column of the last axis comes before the column of the second-last axis."""
    place = np.argsort(orders, axis=1)
    found: NDArray[np.bool_] = place[:, None, :] < place[:, :, None]
    return found


def _held(sets: Integers) -> NDArray[np.bool_]:
    """Return whether the column of the last axis is a candidate of the column of the second-last axis."""
    held = np.zeros((*sets.shape[:2], sets.shape[1]), dtype=bool)
    np.put_along_axis(held, sets, True, axis=2)
    return held


def migrate(
    weights: Sequence[Array],
    rng: np.random.Generator,
    *,
    degree: int,
    rounds: int,
    interval: int,
    population: int,
    selection: int,
) -> Population:
    """Search for a network's structure by genetic algorithms on islands; return the individual of highest mean fitness.

    The result is a population of one (:func:`structure_of`). An island is a population with a fitness of its own
    (:meth:`Population.fitness`): ``weights`` holds one matrix per island, shape ``(columns, columns)``. A column has at
    most ``degree`` candidate parents. Of an island's ``population`` individuals, the ``selection`` fittest breed. In
    each of the ``rounds``, every island receives the individuals that the others sent in the previous round, breeds
    ``interval`` generations and sends its fittest individual. Of the individuals sent last, the one with the highest
    mean fitness over all islands is returned.
    """
    columns = len(weights[0])
    degree = min(degree, columns - 1)
    islands = [Population.random(population, columns, degree, rng) for _ in weights]
    bests: list[Population] = []
    for _ in range(rounds):
        sent = []
        for at, own in enumerate(weights):
            island = islands[at]
            guests = [best for other, best in enumerate(bests) if other != at]
            for generation in range(interval):
                fitness = island.fitness(own)
                elite = island.take(np.argsort(-fitness, kind="stable")[:selection])
                for guest in guests if generation == 0 else ():
                    elite = elite.joined(guest)
                island = island.next(elite, rng)
            islands[at] = island
            sent.append(island.take(np.array([island.fitness(own).argmax()])))
        bests = sent
    everybody = bests[0]
    for best in bests[1:]:
        everybody = everybody.joined(best)
    mean = np.mean([everybody.fitness(own) for own in weights], axis=0)
    return everybody.take(np.array([mean.argmax()]))


def structure_of(individual: Population, weights: Array, sizes: Sequence[int], max_cells: float) -> Structure:
    """Return the network of an ``individual`` (a population of one) whose tables have at most ``max_cells`` cells.

    A table is that of a column together with its parents. A column's parents of positive weight are added from the
    heaviest to the lightest; a parent with which the table would be too large is left out. ``sizes`` holds each
    column's number of codes.
    """
    chosen = individual.parents()[0]
    parents = []
    for column in range(len(chosen)):
        kept: list[int] = []
        cells = float(sizes[column])
        for parent in sorted(np.flatnonzero(chosen[column]).tolist(), key=lambda parent: -weights[column, parent]):
            if weights[column, parent] > 0 and cells * sizes[parent] <= max_cells:
                kept.append(parent)
                cells *= sizes[parent]
        parents.append(tuple(sorted(kept)))
    return Structure(tuple(individual.orders[0].tolist()), tuple(parents))
