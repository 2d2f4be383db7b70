"""The draw among three processes: bit for bit what plain integers give, at every edge of its arithmetic."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

pytest.importorskip("mpyc", reason="the extra 'mpc' is not installed")

from tests.servers.draw_party import gumbel_bits

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.privacy.noise import discrete_gumbel, gumbel_scale
from fedsynth.privacy.release import Exponential
from fedsynth.servers.draw import LARGEST_NOISE, Candidates, draw
from fedsynth.servers.questions import GRAIN, MOST_PENALTY, MOST_WEIGHT
from fedsynth.servers.shares import MODULUS, numbers_of, words_of

WORD = 2**64
LARGEST = 2**51 - 1  # larger squared distances count as this one
MOST = 2**126 - 1


@dataclass
class Cases:
    """Draws that three processes make one after the other, over the same connections as real ones but for TLS."""

    arrays: dict[str, Any] = field(default_factory=dict)
    count: int = 0

    def add(
        self,
        shares: list[list[int]],
        weights: list[int] | None = None,
        penalties: list[int] | None = None,
        noise: list[list[int]] | None = None,
        kind: str = "draw",
    ) -> None:
        size = len(shares[0])
        self.arrays[f"kind {self.count}"] = np.array(kind)
        self.arrays[f"weights {self.count}"] = np.array(weights or [1] * size, dtype=np.int64)
        self.arrays[f"penalties {self.count}"] = np.array(penalties or [0] * size, dtype=np.int64)
        for party in range(3):
            self.arrays[f"shares {self.count} {party}"] = words_of(shares[party])
        for party, numbers in enumerate(noise or []):
            self.arrays[f"noise {self.count} {party}"] = np.array(numbers, dtype=np.int64)
        self.count += 1

    def run(self, folder: Path) -> list[list[Any]]:
        """Return what each party found in each case."""
        np.savez(folder / "cases.npz", count=np.array(self.count), **self.arrays)
        ends: dict[tuple[int, int, int], socket.socket] = {}
        for case in range(self.count):
            for one in range(3):
                for other in range(one + 1, 3):
                    ends[case, one, other], ends[case, other, one] = socket.socketpair()
        started = []
        for party in range(3):
            others = [other for other in range(3) if other != party]
            own = [ends[case, party, other].fileno() for case in range(self.count) for other in others]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.servers.draw_party", str(party), str(folder / "cases.npz")]
                    + [str(descriptor) for descriptor in own],
                    pass_fds=own,
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).parents[2],
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )
        for end in ends.values():
            end.close()
        said = [process.communicate(timeout=1800)[0] for process in started]
        assert [process.returncode for process in started] == [0, 0, 0]
        return [json.loads(text)["found"] for text in said]


def split(sums: list[int], rng: np.random.Generator) -> list[list[int]]:
    """Return three uniform additive shares of each number."""
    first, second = (numbers_of(rng.integers(0, WORD, (2, len(sums)), dtype=np.uint64)) for _ in range(2))
    third = [(total - one - two) % MODULUS for total, one, two in zip(sums, first, second, strict=True)]
    return [first, second, third]


def plain(sums: list[int], weights: list[int], penalties: list[int], noise: list[list[int]]) -> int:
    """Return the index of the largest utility, of equal ones the first, in Python's integers."""
    utilities = [
        weight * (math.isqrt(min(total, LARGEST)) - penalty) * GRAIN + sum(own)
        for total, weight, penalty, *own in zip(sums, weights, penalties, *noise, strict=True)
    ]
    return utilities.index(max(utilities))


def test_roots_are_exact_at_every_edge(tmp_path):
    rng = np.random.default_rng(1)
    sums = [0, 1, 2, 3, 4, LARGEST, LARGEST - 1, 2**50, 2**50 - 1]
    for root in (2, 3, 1000, 2**20, 2**25, math.isqrt(LARGEST), *rng.integers(2, 2**25, 8).tolist()):
        sums += [root**2 - 1, root**2, root**2 + 1]
    sums += rng.integers(0, 2**51, 20).tolist()
    # Sums that count as the largest: some have low words of a small number, or wrap beside a word.
    sums += [LARGEST + 1, 2**62, WORD - 1, WORD, WORD + 4, 2 * WORD - 1, 2 * WORD, 3 * WORD, 2**113, MOST - 1, MOST]
    sums += [at * WORD + more for at in (2**32, 2**61, 2**62 - 1) for more in (0, 1, LARGEST, LARGEST + 1, WORD - 1)]
    shares = split(sums, rng)
    # Shares whose low words, or high words, add up to a number beside 2^64 and 2^65, where one more or less is carried.
    wide = MODULUS
    for total in (0, 1, LARGEST, LARGEST + 1, WORD - 1, WORD, 2**62 * WORD - 1):
        for edges in (
            (0, 0, total),
            (wide - 1, (total + 1) % wide, 0),
            (wide - 1, wide - 1, (total + 2) % wide),
            (2**127, 2**127, total),
            ((wide + total) // 2, (wide + total + 1) // 2, 0),
            (wide - 1, (wide + total + 1) // 2, (wide + total + 2) // 2 % wide),
            (2**51 - 1, 2**51 - 1, (total - 2**52 + 2) % wide),
            (WORD - 1, (total - WORD + 1) % wide, 0),
            (WORD - 1, WORD - 1, (total - 2 * WORD + 2) % wide),
            (2**63, 2**63, (total - WORD) % wide),
            (wide - WORD, wide - WORD, (total + 2 * WORD) % wide),
            (wide - WORD, WORD - 1, (total + 1) % wide),
        ):
            sums.append(sum(edges) % wide)
            for party in range(3):
                shares[party].append(edges[party])
    assert max(sums) == MOST
    for word in (lambda share: share % WORD, lambda share: share >> 64):
        assert {sum(map(word, column)) // WORD for column in zip(*shares, strict=True)} == {0, 1, 2}
    cases = Cases()
    cases.add(shares, kind="roots")
    assert cases.run(tmp_path) == [[[math.isqrt(min(total, LARGEST)) for total in sums]]] * 3


def test_a_draw_is_that_of_plain_integers(tmp_path):
    rng = np.random.default_rng(2)
    cases, expected = Cases(), []
    for size, scale in ((1, 1), (2, 2**10), (7, 2**20), (30, 2**40)):
        sums = rng.integers(0, LARGEST + 1, size).tolist()
        weights = rng.integers(1, MOST_WEIGHT + 1, size).tolist()
        penalties = rng.integers(0, MOST_PENALTY + 1, size).tolist()
        noise = [rng.integers(-scale, scale, size).tolist() for _ in range(2)]
        cases.add(split(sums, rng), weights, penalties, noise)
        expected.append(plain(sums, weights, penalties, noise))
    # The largest numbers of either sign, equal ones, and a draw without noise.
    ends = ([LARGEST, 0, MOST, 0], [MOST_WEIGHT] * 4, [0, MOST_PENALTY, 0, MOST_PENALTY])
    signs = [[LARGEST_NOISE, -LARGEST_NOISE, LARGEST_NOISE, LARGEST_NOISE]] * 2
    cases.add(split(ends[0], rng), ends[1], ends[2], signs)
    expected.append(plain(*ends, signs))
    cases.add(split(ends[0], rng), ends[1], ends[2])
    expected.append(plain(*ends, []))
    assert expected[-2:] == [0, 0]
    assert cases.run(tmp_path) == [expected] * 3


def test_what_is_opened_says_nothing_of_the_numbers(tmp_path):
    """All openings of two draws, over the smallest and the largest sums, look the same: to each party, and together.

    They are masked by random numbers of the operating system. The bounds fail by chance about once in 10^8 times; what
    is not masked is beyond them by far, as there are more than 40,000 openings.
    """
    rng = np.random.default_rng(4)
    cases, size = Cases(), 40
    for total in (0, MOST):
        cases.add(split([total] * size, rng), [MOST_WEIGHT] * size, [0] * size, [[0] * size] * 2, kind="view")
    for (least, no_least, least_ends), (most, no_most, most_ends) in cases.run(tmp_path):
        assert least == most > 1000 * size  # numbers: squares of random ones, masked ones, and tests for zero
        comparisons = size * (4 + 1 + 26 + 1) - 1  # lift, digits and the largest of all; half of their tests are zero
        for zeros in (no_least, no_most):
            assert abs(zeros - comparisons / 2) < 6 * math.sqrt(comparisons / 4)
        for ends in (least_ends, most_ends):
            assert chisquare(ends).pvalue > 1e-9
        assert chi2_contingency([least_ends, most_ends]).pvalue > 1e-9


@pytest.mark.slow
def test_secure_draws_have_the_frequencies_of_the_plain_mechanism_with_two_gumbels(tmp_path):
    """10,000 draws among three processes: each is that of plain integers, and together they follow the law."""
    rng = np.random.default_rng(5)
    draws, sums, weights, penalties = 10_000, [90, 60, 500, 700], [4, 3, 2, 1], [2, 0, 1, 0]
    scale = gumbel_scale(GRAIN * max(weights), Exponential(0.02).epsilon)
    cases = Cases()
    cases.add(split(sums, rng), weights, penalties, kind=f"draws {draws} {scale!r}")
    ((found,), *others) = cases.run(tmp_path)
    assert others == [[found]] * 2
    noise = [
        [discrete_gumbel(scale, 4, gumbel_bits(party, number)).tolist() for party in (0, 1)] for number in range(draws)
    ]
    assert found == [plain(sums, weights, penalties, own) for own in noise]
    counts = np.bincount(found, minlength=4)
    assert counts.min() > 300
    gaps = np.array([w * (math.isqrt(s) - p) for s, w, p in zip(sums, weights, penalties, strict=True)]) * GRAIN / scale
    continuous = gaps + rng.gumbel(size=(1_000_000, 4)) + rng.gumbel(size=(1_000_000, 4))
    law = np.bincount(continuous.argmax(axis=1), minlength=4) / 1_000_000
    assert chisquare(counts, law * draws).pvalue > 1e-3
    one = np.exp(gaps - gaps.max())
    assert chisquare(counts, one / one.sum() * draws).pvalue < 1e-6  # not those of one Gumbel number


def test_a_party_that_is_away_ends_the_draw_for_the_others_and_not_the_next_one(tmp_path):
    rng = np.random.default_rng(3)
    cases = Cases()
    cases.add(split([4, 9], rng), kind="away 1")
    cases.add(split([4, 9], rng))
    found = cases.run(tmp_path)
    assert [one[1] for one in found] == [1, 1, 1]
    assert found[1][0] == "away"
    said = [found[party][0] for party in (0, 2)]
    assert all(text.startswith("DrawFailed: server") for text in said)
    assert any("server 2 is lost" in text for text in said)  # the other one may lose who noticed first


@pytest.mark.parametrize(
    ("weights", "penalties"),
    [([0], [0]), ([MOST_WEIGHT + 1], [0]), ([1], [-1]), ([1], [MOST_PENALTY + 1]), ([1, 1], [0]), ([], [])],
)
def test_numbers_that_could_wrap_are_refused(weights, penalties):
    with pytest.raises(InvalidParameter):
        Candidates(np.array(weights, dtype=np.int64), np.array(penalties, dtype=np.int64))


def test_noise_beyond_its_room_and_of_the_third_party_is_refused():
    one, share = np.array([1], dtype=np.int64), np.zeros((2, 1), dtype=np.uint64)
    candidates = Candidates(one, one)

    class Nobody:
        def close(self) -> None:
            raise AssertionError("nothing was begun")

    links: Any = {other: Nobody() for other in (1, 2)}
    with pytest.raises(Unsupported, match="too large"):
        draw(0, links, candidates, share, one * (LARGEST_NOISE + 1))
    links = {other: Nobody() for other in (0, 1)}
    with pytest.raises(InvalidParameter, match="parties 0 and 1"):
        draw(2, links, candidates, share, one)
