"""Generate one synthetic table, with a differential-privacy guarantee, from many sites that may not pool their rows.

The library in three lines: ``tables`` are one data frame per site, ``LocalNoise`` lets each site add noise to its own
answers, and the last line also prints the ledger, the list of all releases and their privacy costs::

    federation = federate(tables, schema, Budget(epsilon=1.0, delta=1e-6), trust=LocalNoise())
    synthesizer = Auto().fit(federation)
    synthesizer.sample(10_000).to_csv("synthetic.csv"); print(federation.ledger)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers and editors; tests/test_names.py checks that it agrees with the table below
    from fedsynth.deep.fedctgan import FedCTGAN as FedCTGAN
    from fedsynth.deep.fedtabdiff import FedTabDiff as FedTabDiff
    from fedsynth.deep.fedvae import FedVAE as FedVAE
    from fedsynth.errors import BudgetExceeded as BudgetExceeded
    from fedsynth.errors import DataWarning as DataWarning
    from fedsynth.errors import FedsynthError as FedsynthError
    from fedsynth.errors import Incomplete as Incomplete
    from fedsynth.errors import InvalidParameter as InvalidParameter
    from fedsynth.errors import Refused as Refused
    from fedsynth.errors import SchemaError as SchemaError
    from fedsynth.errors import SiteLost as SiteLost
    from fedsynth.errors import Unsupported as Unsupported
    from fedsynth.evaluation.frames import evaluate as evaluate
    from fedsynth.federation.local import LocalNoise as LocalNoise
    from fedsynth.federation.simulate import federate as federate
    from fedsynth.federation.trusted import TrustedServer as TrustedServer
    from fedsynth.methods.aim import AIM as AIM
    from fedsynth.methods.auto import Auto as Auto
    from fedsynth.methods.bayes import FedChowLiu as FedChowLiu
    from fedsynth.methods.flaim import FLAIM as FLAIM
    from fedsynth.methods.flaim import AugFLAIM as AugFLAIM
    from fedsynth.methods.flaim import FedNaiveBayes as FedNaiveBayes
    from fedsynth.methods.flaim import RandomFLAIM as RandomFLAIM
    from fedsynth.methods.generators import GUM as GUM
    from fedsynth.methods.generators import PGM as PGM
    from fedsynth.methods.migration import FedMigration as FedMigration
    from fedsynth.methods.mst import MST as MST
    from fedsynth.methods.oneshot import OneShot as OneShot
    from fedsynth.methods.privbayes import PrivBayes as PrivBayes
    from fedsynth.methods.privsyn import AdaFedPrivSyn as AdaFedPrivSyn
    from fedsynth.methods.privsyn import AllMarginals as AllMarginals
    from fedsynth.methods.privsyn import FedPrivSyn as FedPrivSyn
    from fedsynth.methods.privsyn import PrivSyn as PrivSyn
    from fedsynth.methods.privsyn import RandomMarginals as RandomMarginals
    from fedsynth.methods.tda import FedTDA as FedTDA
    from fedsynth.models.synthesizer import Synthesizer as Synthesizer
    from fedsynth.models.synthesizer import load as load
    from fedsynth.privacy.cost import Budget as Budget
    from fedsynth.privacy.cost import Unit as Unit
    from fedsynth.rows import Table as Table
    from fedsynth.schema import Boolean as Boolean
    from fedsynth.schema import Categorical as Categorical
    from fedsynth.schema import Computed as Computed
    from fedsynth.schema import Datetime as Datetime
    from fedsynth.schema import Identifier as Identifier
    from fedsynth.schema import Numeric as Numeric
    from fedsynth.schema import Rule as Rule
    from fedsynth.schema import Schema as Schema
    from fedsynth.schema import Stored as Stored
    from fedsynth.secure.site import SecureSum as SecureSum
    from fedsynth.servers.trust import ThreeServers as ThreeServers

# Names are imported on first use, so that the command line answers --help quickly.
_HOME = {
    name: f"fedsynth.{module}"
    for module, names in {
        "errors": "BudgetExceeded DataWarning FedsynthError Incomplete InvalidParameter Refused SchemaError SiteLost "
        "Unsupported",
        "evaluation.frames": "evaluate",
        "federation.simulate": "federate",
        "federation.local": "LocalNoise",
        "secure.site": "SecureSum",
        "servers.trust": "ThreeServers",
        "federation.trusted": "TrustedServer",
        "methods.aim": "AIM",
        "methods.mst": "MST",
        "methods.bayes": "FedChowLiu",
        "methods.auto": "Auto",
        "deep.fedctgan": "FedCTGAN",
        "deep.fedtabdiff": "FedTabDiff",
        "deep.fedvae": "FedVAE",
        "methods.flaim": "FLAIM AugFLAIM FedNaiveBayes RandomFLAIM",
        "methods.generators": "GUM PGM",
        "methods.migration": "FedMigration",
        "methods.oneshot": "OneShot",
        "methods.privbayes": "PrivBayes",
        "methods.privsyn": "AdaFedPrivSyn AllMarginals FedPrivSyn PrivSyn RandomMarginals",
        "methods.tda": "FedTDA",
        "models.synthesizer": "Synthesizer load",
        "privacy.cost": "Budget Unit",
        "rows": "Table",
        "schema": "Boolean Categorical Computed Datetime Identifier Numeric Rule Schema Stored",
    }.items()
    for name in names.split()
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'fedsynth' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names, including those that have not been imported yet."""
    return __all__
