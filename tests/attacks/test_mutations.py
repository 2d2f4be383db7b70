"""Thousands of messages and replies that were valid before somebody changed their bytes."""

from __future__ import annotations

import pytest
from tests.attacks.world import found_by


def run(seed: int, messages: int) -> None:
    """Run one process over mutated messages, and half as many mutated replies; see :mod:`tests.attacks.mutate`."""
    found = found_by("mutate", seed, messages)
    assert sum(found["requests"].values()) == messages
    assert found["megabytes"] < 200
    assert found["requests"]["refused"] > messages / 2  # mutations are none if most are still answered
    assert found["requests"]["answered"] > messages / 50  # and go no further than a signature if none are
    assert found["replies"]["heard"] > 0
    assert found["replies"]["lost"] > messages / 10


def test_no_mutated_message_raises_out_of_a_site_or_is_answered_free():
    """Of 20,000 messages none raises, each gets a code, and the accounts add up: no charge without salt and terms."""
    run(0, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 51))
def test_no_mutated_message_of_a_million_does(seed):
    """The same with other seeds."""
    run(seed, 20_000)
