"""Clipped sums of rows whose slopes and inputs are chosen: what the proof of their sensitivity says step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from scipy.stats import binom
from tests.attacks.training_world import exactly, gradient_sum, only

from fedsynth.deep.dpsgd import BLOCK, CHUNK, clipped_sum, poisson
from fedsynth.deep.training import _PADDED
from fedsynth.privacy.noise import KeyedBits


def total(slopes: np.ndarray, inputs: np.ndarray, clip: float) -> np.ndarray:
    """Return the clipped sum of the gradients (g a^T, g) of rows with these slopes g and inputs a, flat."""
    g, a = (torch.from_numpy(one.astype(np.float32)) for one in (slopes, inputs))
    zeros = [torch.zeros(g.shape[1], a.shape[1]), torch.zeros(g.shape[1])]
    return clipped_sum(lambda tape, rows: (tape.linear(0, a[rows]) * g[rows]).sum(1), zeros, len(g), clip)


def exact(slopes: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return the sum without clipping, in float64."""
    g, a = (one.astype(np.float32).astype(np.float64) for one in (slopes, inputs))
    return np.concatenate([(g.T @ a).ravel(), g.sum(0)])


def one_way(rows: int) -> np.ndarray:
    """Return inputs of which float32 loses the last bit, once more than 128 of them are added up, in any order."""
    return np.full((rows, 1), 1 + 0.999 * 2.0**-17)


def test_a_block_is_off_by_less_than_the_proof_says_where_each_addition_rounds_the_same_way():
    slopes, inputs = np.ones((BLOCK, 1)), one_way(BLOCK)
    clip = float(np.hypot(inputs[0, 0], 1))
    off = np.linalg.norm(total(slopes, inputs, 2 * clip) - exact(slopes, inputs))
    assert off <= 0.005 * clip
    assert off > 2.0**-14 * clip  # float64 would lose nothing


@pytest.mark.parametrize("rows", [1, BLOCK, CHUNK, CHUNK + 1, 5 * CHUNK - 100])
def test_a_row_that_the_last_one_replaces_moves_a_sum_by_the_clip_norm_and_two_blocks_rounding(rows):
    rng = np.random.default_rng(rows)
    inputs = one_way(rows + 1) * rng.choice([1.0, 1 + 2.0**-18, 2.0], (rows + 1, 3))
    slopes = rng.choice([1.0, 1 + 2.0**-17], (rows + 1, 2))
    clip = 1.5
    whole = total(slopes, inputs, clip)
    for gone in {0, rows // 2, rows}:
        order = np.arange(rows)
        order[gone:][:1] = rows
        moved = np.linalg.norm(whole - total(slopes[order], inputs[order], clip))
        assert 0.99 * clip <= moved <= clip * (1 + 2.0**-9 * (1 + 2.0**-5) + 0.0203)


def test_the_time_of_training_counts_a_padded_pass():
    assert _PADDED == CHUNK == 2 * BLOCK
    assert CHUNK % 48 == CHUNK % 64 == 0


def test_a_row_is_drawn_where_its_word_is_below_the_rate():
    """Also at the edges: the rate is a number of 53 bits, and a row is never drawn more often."""
    words = np.array([2**62 - 1, 2**62, 0, 2**64 - 1, 2**61], dtype=np.uint64)
    assert poisson(5, 0.25, lambda rows: words[:rows]).tolist() == [0, 2, 4]
    assert poisson(5, 0.125, lambda rows: words[:rows]).tolist() == [2]
    assert poisson(5, 1.0, lambda rows: words[:rows]).tolist() == [0, 1, 2, 3, 4]
    assert poisson(5, 0.25 * (1 - 2.0**-53), lambda rows: words[:rows]).tolist() == [2, 4]


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.7])
def test_rows_are_drawn_independently_at_the_rate(rate):
    """Of 200,000 rows, and of pairs of neighbours among them, as many are drawn as independent draws give.

    Each of the three numbers is binomial and outside its bounds with probability 2e-9 at most: 2e-8 over all rates.
    """
    rows = 200_000
    drawn = np.zeros(rows, dtype=bool)
    drawn[poisson(rows, rate, KeyedBits(b"a fixed key for the tests of samples", b"rows").words)] = True
    pairs, both = drawn[: rows // 2] & drawn[rows // 2 :], drawn[::2] & drawn[1::2]
    for found, chance in ((drawn, rate), (pairs, rate**2), (both, rate**2)):
        assert binom.ppf(1e-9, found.size, chance) <= found.sum() <= binom.isf(1e-9, found.size, chance)


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_a_step_adds_up_as_many_rows_as_its_rate_says(rate):
    """Equal rows have equal gradients, each of the clip norm, so the norm of the sum counts the rows that were drawn.

    The number is binomial, and outside its bounds with probability 2e-9 at most.
    """
    rows = only("a", 2000)
    whole = np.linalg.norm(exactly(gradient_sum(rate=1.0), rows).astype(float))
    part = np.linalg.norm(exactly(gradient_sum(rate=rate), rows).astype(float))
    drawn = 2000 * part / whole
    assert drawn == pytest.approx(round(drawn), abs=1e-3)
    assert binom.ppf(1e-9, 2000, rate) <= round(drawn) <= binom.isf(1e-9, 2000, rate)


def test_slopes_whose_squares_underflow_are_clipped_all_the_same():
    """The product of small slopes and large inputs is a gradient of 2^-15; the slopes' norm is 0 in float32."""
    clip = 2.0**-30
    slopes, inputs = np.full((1, 64), 2.0**-80), np.full((1, 16), 2.0**60)
    assert not torch.linalg.vector_norm(torch.from_numpy(slopes.astype(np.float32)))
    assert np.linalg.norm(exact(slopes, inputs)) == pytest.approx(2.0**-15)
    assert np.linalg.norm(total(slopes, inputs, clip)) <= clip * (1 + 2.0**-9 * (1 + 2.0**-5))
    assert np.linalg.norm(total(slopes * 2.0**40, inputs * 2.0**-40, clip)) == pytest.approx(clip, rel=1e-6)


@pytest.mark.parametrize(("slope", "reach"), [(1.0, 2.0**65), (2.0**65, 0.0), (2.0**-126, 2.0**66)])
def test_rows_beyond_all_reason_add_nothing(slope, reach):
    """What goes into a layer, or a gradient, above 2^64; other rows of the chunk count."""
    slopes, inputs = np.ones((3, 2)), np.ones((3, 2))
    slopes[1], inputs[1] = slope, reach
    np.testing.assert_array_equal(total(slopes, inputs, 1e9), exact(slopes[::2], inputs[::2]))


def test_products_are_in_full_float32_whatever_this_process_asked_for():
    """With "medium" a processor may multiply in bfloat16, of 8 bits."""
    rng = np.random.default_rng(0)
    slopes, inputs = rng.standard_normal((CHUNK, 64)), rng.standard_normal((CHUNK, 64))
    full = total(slopes, inputs, 1e9)
    np.testing.assert_allclose(full, exact(slopes, inputs), atol=1e-3)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        np.testing.assert_array_equal(total(slopes, inputs, 1e9), full)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kernels", [("AVX2", "avx2"), ("SSE4_2", "default")], ids=" ".join)
def test_a_row_counts_alike_everywhere_with_the_kernels_of_other_processors(kernels):
    """MKL and PyTorch choose kernels when they are loaded, so a process of its own runs the tests of each network."""
    folder = Path(__file__).parent
    names = "bit_for_bit or does_not_depend_on_other_rows"
    tests = [str(folder / name) for name in ("test_diffusion.py", "test_gan.py", "test_vae.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", names, *tests],
        env={**os.environ, "MKL_ENABLE_INSTRUCTIONS": kernels[0], "ATEN_CPU_CAPABILITY": kernels[1]},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
