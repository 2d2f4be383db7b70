"""A small world for the contract suite: a schema, sites of very different rows, and transports to reach them."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedsynth import trusts
from fedsynth.federation.trust import Trust
from fedsynth.methods import Method, Registration, all_methods
from fedsynth.methods.generators import PGM
from fedsynth.methods.registry import Promise
from fedsynth.plugins import named
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema

SIZES = (2, 3, 4, 5)
SCHEMA = Schema(tuple(Categorical(f"c{j}", tuple(f"v{v}" for v in range(size))) for j, size in enumerate(SIZES)))

NETWORK = {"width": 16, "depth": 1, "tokens": 8, "steps": 3, "rate": 0.5}
# Options with which a method is quick here, or shows more than by default; a method that is not named needs none.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "oneshot": {"oneshot": {}, "oneshot-bins": {"bins_share": 0.25}},
    "aim": {
        "aim": {"rounds": 3},
        "aim-annealed": {},
        "aim-cohorts": {"rounds": 3, "rate": 0.6},
        "aim-bins": {"rounds": 3, "bins_share": 0.25},
    },
    "mst": {"mst": {}, "mst-bins": {"bins_share": 0.25}},
    "auto": {"auto": {}, "auto-target": {"target": "c1", "workload": ((0, 2),)}},
    "privsyn": {"privsyn": {}, "privsyn-bins": {"bins_share": 0.25}},
    "allmarginals": {"allmarginals": {}, "allmarginals-bins": {"bins_share": 0.25}},
    "flaim": {"flaim": {"rounds": 3, "rate": 0.6}, "flaim-steps": {"rounds": 2, "rate": 0.6, "steps": 3}},
    "augflaim": {
        "augflaim": {"rounds": 3, "rate": 0.6},
        "augflaim-capped": {"rounds": 4, "rate": 0.6, "cap": 2},
        "augflaim-proxy": {"rounds": 3, "rate": 0.6, "combine": False},
        "augflaim-annealing": {"rounds": 8, "rate": 0.6, "annealing": True},
    },
    "augflaim-oracle": {"augflaim-oracle": {"rounds": 2, "rate": 0.6, "not_private": True}},
    "randomflaim": {"randomflaim": {"rounds": 3, "rate": 0.6}},
    "fednaivebayes": {"fednaivebayes": {"rate": 0.6}},
    "fedprivsyn": {"fedprivsyn": {}, "fedprivsyn-pgm": {"width": 4, "generator": PGM()}},
    "adafedprivsyn": {
        "adafedprivsyn": {"bound": 1.0, "batch": 2},
        "adafedprivsyn-bins": {"bound": 1.0, "batch": 2, "bins_share": 0.25},
    },
    "tdamixture": {"tdamixture": {"not_private": True}},
    "tdapaper": {"tdapaper": {"not_private": True}},
    "tda": {"tda": {}, "tda-target": {"target": "c1"}},
    "fedchowliu": {"fedchowliu": {}, "fedchowliu-tree": {"degree": 1, "survey_share": 0.25, "pair_share": 0.75}},
    "fedmigration": {
        "fedmigration": {"rounds": 2, "interval": 3, "population": 12, "selection": 3},
        "fedmigration-own": {"rounds": 2, "interval": 3, "population": 12, "selection": 3, "own_rows": True},
    },
    "fedmigrationpaper": {
        "fedmigrationpaper": {"rounds": 2, "interval": 3, "population": 12, "selection": 3, "not_private": True}
    },
    "fedtabdiff": {
        "fedtabdiff": {**NETWORK, "rounds": 2, "updates": 2, "batch": 32, "times": 10},
        "fedtabdiff-local": {
            **NETWORK,
            "local": True,
            "rounds": 2,
            "updates": 2,
            "batch": 32,
            "times": 10,
            "target": "c1",
            "sampling": 10,
        },
    },
    "fedvae": {
        "fedvae": {**NETWORK, "latent": 4},
        "fedvae-cohorts": {**NETWORK, "latent": 4, "site_rate": 0.8, "decay": 0.01},
    },
    "fedctgan": {"fedctgan": {**NETWORK, "noise": 8}},
    "fedtgan": {"fedtgan": {"width": 16, "depth": 1, "tokens": 8, "noise": 8, "rounds": 2, "not_private": True}},
    "fedavggan": {"fedavggan": {**NETWORK, "noise": 8, "rounds": 2, "updates": 2, "batch": 32}},
}
# Adaptive by a survey alone, which a table of categories does without by default.
_SURVEYING = {"oneshot", "aim", "privsyn", "allmarginals", "randommarginals"}
VARIANT_EXEMPT: dict[str, dict[Promise, str]] = {
    "aim-cohorts": {"any split": "the vault holds the tables of the sites that were drawn"}
}
DECLARED: dict[str, Registration] = {
    variant: dataclasses.replace(
        one,
        adaptive=(one.adaptive and one.name not in _SURVEYING)
        or "bins_share" in VARIANTS.get(one.name, {}).get(variant, {}),
        exempt={**one.exempt, **VARIANT_EXEMPT.get(variant, {})},
    )
    for one in all_methods()
    if not one.trains or find_spec("torch")
    for variant in VARIANTS.get(one.name, {one.name: {}})
}
"""What each case's method declares; methods of other packages that are installed take part.

Those that train networks do where PyTorch is installed (the extra ``deep``).
"""
METHODS: dict[str, Method] = {
    variant: one.kind(**VARIANTS.get(one.name, {}).get(variant, {})) for variant, one in DECLARED.items()
}
TRUSTS: dict[str, Trust] = {
    name: named(facts.place)()
    for name, facts in trusts.TRUSTS.items()
    if find_spec(".".join(facts.place.split(".")[:2]))
}


def random_table(rows: int, seed: int) -> Table:
    """Return dependent columns: each follows its predecessor most of the time."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, SIZES[0], rows)]
    for size in SIZES[1:]:
        noise = rng.integers(0, size, rows)
        columns.append(np.where(rng.random(rows) < 0.7, columns[-1] % size, noise))
    return Table(SCHEMA, tuple(column.astype(np.uint8) for column in columns))


def tables() -> list[Table]:
    """Return five sites: big, middling, small, one row, none."""
    return [random_table(rows, seed) for seed, rows in enumerate((400, 150, 40, 1, 0))]
