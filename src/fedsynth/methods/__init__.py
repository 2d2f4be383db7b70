"""The published methods, one file per family."""

from __future__ import annotations

from typing import Protocol

from fedsynth.federation.federation import Federation
from fedsynth.methods.aim import AIM
from fedsynth.methods.flaim import FLAIM, AugFLAIM, AugFLAIMOracle, FedNaiveBayes, RandomFLAIM
from fedsynth.methods.marginals import OneShot
from fedsynth.methods.privsyn import AdaFedPrivSyn, AllMarginals, FedPrivSyn, PrivSyn, RandomMarginals
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
}

NEEDS_VAULT = frozenset({"aim", "privsyn"})  # run only under a trust that can hold exact sums

__all__ = [
    "AIM",
    "FLAIM",
    "METHODS",
    "NEEDS_VAULT",
    "AdaFedPrivSyn",
    "AllMarginals",
    "AugFLAIM",
    "AugFLAIMOracle",
    "FedNaiveBayes",
    "FedPrivSyn",
    "Method",
    "OneShot",
    "PrivSyn",
    "RandomFLAIM",
    "RandomMarginals",
]
