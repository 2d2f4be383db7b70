"""The genetic search: the thesis's fitness, valid individuals, and bests close to the exact optimum."""

from __future__ import annotations

import numpy as np
import pytest

from fedsynth.models.evolution import Population, migrate
from fedsynth.models.structure import best_structure


def by_hand(order: list[int], sets: list[list[int]], weights: np.ndarray) -> float:
    """The fitness as the thesis describes it, one individual at a time."""
    degree, total = len(sets[0]), 0.0
    for place, column in enumerate(order):
        before = order[:place]
        parents = before if place <= degree else [one for one in sets[column] if one in before]
        total += sum(weights[column, one] for one in parents)
    return total


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_fitness_is_the_thesiss_and_breeding_keeps_individuals_valid(degree):
    rng = np.random.default_rng(0)
    weights = rng.random((7, 7))
    weights += weights.T
    population = Population.random(40, 7, degree, rng)
    for _ in range(15):
        fitness = population.fitness(weights)
        for one in range(0, 40, 7):
            expected = by_hand(population.orders[one].tolist(), population.sets[one].tolist(), weights)
            assert fitness[one] == pytest.approx(expected)
        assert (np.sort(population.orders, axis=1) == np.arange(7)).all()
        assert (np.diff(np.sort(population.sets, axis=2), axis=2) > 0).all()
        assert (population.sets != np.arange(7)[:, None]).all()
        elite = population.take(np.argsort(-fitness, kind="stable")[:5])
        bred = population.next(elite, rng)
        assert len(bred) == 40
        assert (bred.orders[:5] == elite.orders).all()
        assert bred.fitness(weights).max() >= fitness.max()  # the best are kept
        population = bred


def test_random_individuals_take_their_candidates_from_what_comes_before():
    population = Population.random(50, 8, 3, np.random.default_rng(0))
    for order, sets in zip(population.orders.tolist(), population.sets.tolist(), strict=True):
        for place, column in enumerate(order):
            assert len(set(sets[column]) & set(order[:place])) == min(3, place)


def test_the_search_comes_close_to_the_best_structure_and_never_beats_it():
    rng = np.random.default_rng(0)
    for degree in (1, 2):
        search = {"degree": degree, "rounds": 5, "interval": 10, "population": 60, "selection": 6}
        weights = rng.gamma(0.4, size=(10, 10))
        weights += weights.T
        np.fill_diagonal(weights, 0.0)
        best = best_structure(weights, degree, [2] * 10)
        bound = sum(weights[column, j] for column, own in enumerate(best.parents) for j in own)
        found = float(migrate([weights] * 3, rng, **search).fitness(weights)[0])
        assert 0.93 * bound < found <= bound * (1 + 1e-9)


def test_the_best_of_the_island_that_matters_most_wins():
    rng = np.random.default_rng(1)
    here, there = ((one + one.T) * (1 - np.eye(8)) for one in rng.gamma(0.2, size=(2, 8, 8)))
    search = {"degree": 2, "rounds": 6, "interval": 5, "population": 40, "selection": 5}
    for weights, loud in (([here, 5 * there], 5 * there), ([5 * here, there], 5 * here)):
        winner = migrate(weights, np.random.default_rng(0), **search)
        alone = migrate([loud], np.random.default_rng(0), **search)
        assert winner.fitness(loud)[0] > 0.95 * alone.fitness(loud)[0]
