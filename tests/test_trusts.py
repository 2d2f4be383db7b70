"""Tests of the facts about trust models that are stated without their classes."""

from __future__ import annotations

import pytest

from fedsynth.federation.policy_file import trust_named
from fedsynth.trusts import TRUSTS


@pytest.mark.parametrize("name", TRUSTS)
def test_facts_are_those_of_the_class(name: str) -> None:
    facts, trust = TRUSTS[name], trust_named(name, {})
    vault = trust.vault
    assert (trust.name, trust.pooled) == (name, facts.pooled)
    assert (trust.sums is not None, vault is not None) == (facts.sums, facts.vault)
    assert facts.scores == (vault is not None and vault.opens_scores)
