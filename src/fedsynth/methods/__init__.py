"""The published methods, one file per family."""

from __future__ import annotations

from typing import Protocol

from fedsynth.federation.federation import Federation
from fedsynth.methods.aim import AIM
from fedsynth.methods.bayes import FedChowLiu
from fedsynth.methods.flaim import FLAIM, AugFLAIM, AugFLAIMOracle, FedNaiveBayes, RandomFLAIM
from fedsynth.methods.marginals import OneShot
from fedsynth.methods.migration import FedMigration, FedMigrationPaper
from fedsynth.methods.privbayes import PrivBayes
from fedsynth.methods.privsyn import AdaFedPrivSyn, AllMarginals, FedPrivSyn, PrivSyn, RandomMarginals
from fedsynth.methods.tda import FedTDA
from fedsynth.methods.tda_exact import FedTDAMixture, FedTDAPaper
from fedsynth.models.synthesizer import Synthesizer


class Method(Protocol):
    """A frozen dataclass of hyper-parameters that can be fitted to a federation."""

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend what the federation's budget has left, and return the generator."""


METHODS: dict[str, type[Method]] = {
    "oneshot": OneShot,
    "aim": AIM,
    "flaim": FLAIM,
    "augflaim": AugFLAIM,
    "augflaim-oracle": AugFLAIMOracle,
    "randomflaim": RandomFLAIM,
    "fednaivebayes": FedNaiveBayes,
    "privsyn": PrivSyn,
    "fedprivsyn": FedPrivSyn,
    "adafedprivsyn": AdaFedPrivSyn,
    "allmarginals": AllMarginals,
    "randommarginals": RandomMarginals,
    "tda": FedTDA,
    "tdamixture": FedTDAMixture,
    "tdapaper": FedTDAPaper,
    "fedchowliu": FedChowLiu,
    "fedmigration": FedMigration,
    "fedmigrationpaper": FedMigrationPaper,
    "privbayes": PrivBayes,
}

NEEDS_VAULT = frozenset({"aim", "privsyn", "privbayes"})  # run only under a trust that can hold exact sums

NEEDS_EXACT = frozenset({"augflaim-oracle", "tdamixture", "tdapaper", "fedmigrationpaper"})  # not private

__all__ = [
    "AIM",
    "FLAIM",
    "METHODS",
    "NEEDS_EXACT",
    "NEEDS_VAULT",
    "AdaFedPrivSyn",
    "AllMarginals",
    "AugFLAIM",
    "AugFLAIMOracle",
    "FedChowLiu",
    "FedMigration",
    "FedMigrationPaper",
    "FedNaiveBayes",
    "FedPrivSyn",
    "FedTDA",
    "FedTDAMixture",
    "FedTDAPaper",
    "Method",
    "OneShot",
    "PrivBayes",
    "PrivSyn",
    "RandomFLAIM",
    "RandomMarginals",
]
