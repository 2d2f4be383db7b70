"""Noise samples per CPU second: fedsynth beside OpenDP's vector sampler, in one run, into benchmarks/tables.md.

python -m benchmarks.noise
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import opendp.prelude as dp

from benchmarks import PAGE
from fedsynth.bench.page import write_section
from fedsynth.privacy.noise import KeyedBits, discrete_gaussian, discrete_laplace

OURS, THEIRS = 2_000_000, 20_000  # draws
SCALES = (1.0, 20.9, 100.0, 500.0, 5e4)


def per_second(draw: Callable[[int], Any], size: int) -> float:
    """Return integers drawn per CPU second; a first short call is a warm-up."""
    draw(10)
    start = time.process_time()
    draw(size)
    return size / (time.process_time() - start)


def zeros_through(measurement: Callable[[list[int]], Any], size: int) -> None:
    """Draw noise with OpenDP, which only adds it to a vector: here of zeros."""
    measurement([0] * size)


def main() -> None:
    """Measure, print, and write one line for each distribution and scale into the benchmark page."""
    dp.enable_features("contrib")
    vector, bits = dp.vector_domain(dp.atom_domain(T="i64")), KeyedBits(os.urandom(32), b"benchmark")
    lines = ["| law | scale | ours, million/s | OpenDP, million/s | ratio |", "|---|---|---|---|---|"]
    for name, sampler, make, metric in (
        ("gaussian", discrete_gaussian, dp.m.make_gaussian, dp.l2_distance(T="f64")),
        ("laplace", discrete_laplace, dp.m.make_laplace, dp.l1_distance(T="i64")),
    ):
        for scale in SCALES:
            ours = per_second(partial(sampler, scale, bits=bits), OURS)
            theirs = per_second(partial(zeros_through, make(vector, metric, scale=scale)), THEIRS)
            lines.append(f"| {name} | {scale:g} | {ours / 1e6:.1f} | {theirs / 1e6:.3f} | {ours / theirs:.0f} |")
    text = "Exact integer noise: draws per CPU second on one core.\n\n" + "\n".join(lines)
    print(text)
    write_section(PAGE, "noise", "Noise", text)


if __name__ == "__main__":
    main()
