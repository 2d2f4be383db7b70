"""One synthetic table from many sites that may not pool their rows, with a differential-privacy guarantee.

The three lines that everything is about::

    federation = federate(tables, schema, Budget(epsilon=1.0, delta=1e-6), trust=LocalNoise())
    synthesizer = OneShot().fit(federation)
    synthesizer.sample(10_000).to_csv("synthetic.csv"); print(federation.ledger)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedsynth.evaluation.frames import evaluate
    from fedsynth.federation.simulate import federate
    from fedsynth.federation.trust.local import LocalNoise
    from fedsynth.federation.trust.secure.site import SecureSum
    from fedsynth.federation.trust.trusted import TrustedServer
    from fedsynth.methods.aim import AIM
    from fedsynth.methods.flaim import FLAIM, AugFLAIM, AugFLAIMOracle, FedNaiveBayes, RandomFLAIM
    from fedsynth.methods.generators import GUM, PGM
    from fedsynth.methods.oneshot import OneShot
    from fedsynth.methods.privsyn import AdaFedPrivSyn, FedPrivSyn, PrivSyn
    from fedsynth.methods.tda import FedTDA
    from fedsynth.methods.tda_exact import FedTDAMixture, FedTDAPaper
    from fedsynth.models.synthesizer import Synthesizer, load
    from fedsynth.privacy.cost import Budget
    from fedsynth.rows import Table
    from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

# Names are imported when first used, so that the command line answers --help at once.
_HOME = {
    "evaluate": "fedsynth.evaluation.frames",
    "federate": "fedsynth.federation.simulate",
    "LocalNoise": "fedsynth.federation.trust.local",
    "SecureSum": "fedsynth.federation.trust.secure.site",
    "TrustedServer": "fedsynth.federation.trust.trusted",
    "AIM": "fedsynth.methods.aim",
    "FLAIM": "fedsynth.methods.flaim",
    "AugFLAIM": "fedsynth.methods.flaim",
    "AugFLAIMOracle": "fedsynth.methods.flaim",
    "FedNaiveBayes": "fedsynth.methods.flaim",
    "RandomFLAIM": "fedsynth.methods.flaim",
    "GUM": "fedsynth.methods.generators",
    "PGM": "fedsynth.methods.generators",
    "OneShot": "fedsynth.methods.oneshot",
    "AdaFedPrivSyn": "fedsynth.methods.privsyn",
    "FedPrivSyn": "fedsynth.methods.privsyn",
    "PrivSyn": "fedsynth.methods.privsyn",
    "FedTDA": "fedsynth.methods.tda",
    "FedTDAMixture": "fedsynth.methods.tda_exact",
    "FedTDAPaper": "fedsynth.methods.tda_exact",
    "Synthesizer": "fedsynth.models.synthesizer",
    "load": "fedsynth.models.synthesizer",
    "Budget": "fedsynth.privacy.cost",
    "Boolean": "fedsynth.schema",
    "Categorical": "fedsynth.schema",
    "Datetime": "fedsynth.schema",
    "Numeric": "fedsynth.schema",
    "Schema": "fedsynth.schema",
    "Table": "fedsynth.rows",
}

__all__ = [
    "AIM",
    "FLAIM",
    "GUM",
    "PGM",
    "AdaFedPrivSyn",
    "AugFLAIM",
    "AugFLAIMOracle",
    "Boolean",
    "Budget",
    "Categorical",
    "Datetime",
    "FedNaiveBayes",
    "FedPrivSyn",
    "FedTDA",
    "FedTDAMixture",
    "FedTDAPaper",
    "LocalNoise",
    "Numeric",
    "OneShot",
    "PrivSyn",
    "RandomFLAIM",
    "Schema",
    "SecureSum",
    "Synthesizer",
    "Table",
    "TrustedServer",
    "__version__",
    "evaluate",
    "federate",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'fedsynth' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Name what can be imported, before it is."""
    return __all__
