"""Thousands of model files that were valid before somebody changed them, and small ones that unpack to gigabytes.

Before files were bounded and checked, 132 of 1,500 mutated models raised raw errors (``IndexError``, ``TypeError``,
``MemoryError`` and others, while they were loaded or sampled), and a file of .24 MB took 1.5 GiB.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.world import found_by


def mutated(kinds: str, seed: int, number: int) -> None:
    """Every mutated file is refused with a sentence that names it, or is a model that samples."""
    found = found_by("mutate_models", kinds, seed, number)
    seen = found["seen"]
    assert sum(seen.values()) == number
    assert seen["refused"] > number / 2  # mutations are none if most files are still models
    assert seen["a model"] > number / 50  # and go no further than a checksum if none are
    if kinds == "plain":  # PyTorch takes more by itself
        assert found["megabytes"] < 200


def test_a_mutated_model_is_refused_or_samples():
    mutated("plain", 0, 600)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_two_thousand_mutated_models_are_refused_or_sample(seed):
    mutated("plain", seed, 2000)


@pytest.mark.slow
def test_two_thousand_mutated_networks_are_refused_or_sample():
    pytest.importorskip("torch")
    mutated("networks", 1, 2000)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is that of Linux")
def test_small_files_that_unpack_to_gigabytes_are_refused_in_time_and_memory():
    found = found_by("mutate_models", "bombs")
    assert len(found) == 10
    for name, took in found.items():
        assert took["outcome"] == "refused", name
        assert took["seconds"] < 2, name
        assert took["megabytes"] < 200, name
