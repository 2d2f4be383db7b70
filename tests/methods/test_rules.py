"""Rules and derived columns, method by method: no row breaks one, and what is stored instead keeps what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.contract.world import VARIANTS
from tests.telco import SCHEMA, SERVICES, broken, customers

from fedsynth import Budget, federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.bayes import FedChowLiu
from fedsynth.methods.generators import PGM
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.privsyn import FedPrivSyn
from fedsynth.methods.registry import Method, Registration, all_methods
from fedsynth.models.synthesizer import Synthesizer

METHODS: dict[str, Method] = {
    "oneshot": OneShot(),
    "fedprivsyn": FedPrivSyn(),
    "fedprivsyn-pgm": FedPrivSyn(generator=PGM()),
    "fedchowliu": FedChowLiu(),
    "oneshot-bins": OneShot(bins_share=0.25),
    "fedprivsyn-bins": FedPrivSyn(bins_share=0.25),
}


def fitted(method: Method, rows: int, seed: int, *, exact: bool = False, queries=()) -> Synthesizer:
    frame = customers(rows, seed)
    sites = [frame.iloc[site::3].reset_index(drop=True) for site in range(3)]
    budget = Budget(epsilon=1, delta=1e-6)
    trust = TrustedServer()
    return method.fit(federate(sites, SCHEMA, budget, trust=trust, seed=seed, exact=exact, queries=queries))


@pytest.mark.parametrize("name", METHODS)
def test_no_row_breaks_a_rule_and_a_derived_column_keeps_its_correlation(name):
    off = []
    for seed in range(5):
        made = fitted(METHODS[name], 7000, seed).sample(7000, seed)
        assert broken(made) == {}
        assert made.attrs["redrawn"] < 0.2
        real = customers(7000, seed)
        off.append(made["tenure"].corr(made["total"]) - real["tenure"].corr(real["total"]))
    assert abs(np.mean(off)) < 0.05


@pytest.mark.parametrize("name", ["oneshot", "fedprivsyn-pgm"])
def test_graphical_models_rule_out_what_rules_forbid(name):
    made = fitted(METHODS[name], 3000, 0)
    internet = SCHEMA.index("internet")
    for service in SERVICES:
        table = made.model.marginal((internet, SCHEMA.index(service)))  # type: ignore[attr-defined]
        assert table[0, 1:].sum() + table[1:, 0].sum() < 1e-9
        assert table.sum() == pytest.approx(made.model.total)


def rows_keep_to_the_rules(declared: Registration, options: Mapping[str, Any]) -> None:
    made = fitted(declared.kind(**options), 2000, 0, exact=not declared.private, queries=declared.queries)
    assert broken(made.sample(1000, 0)) == {}


@pytest.mark.parametrize("declared", all_methods(), ids=lambda declared: declared.name)
def test_rows_of_every_method_keep_to_the_rules(declared):
    """Networks are small here: rules are kept by redrawing, whatever a network has learnt."""
    small = next(iter(VARIANTS[declared.name].values())) if declared.trains else {}
    if not declared.private:
        small = {"not_private": True}
    rows_keep_to_the_rules(declared, small)


@pytest.mark.slow
@pytest.mark.parametrize("declared", [one for one in all_methods() if one.trains], ids=lambda declared: declared.name)
def test_rows_of_networks_of_the_usual_size_keep_to_the_rules(declared):
    rows_keep_to_the_rules(declared, {})
