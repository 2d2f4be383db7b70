"""The methods of this feature, as the registry of methods (:mod:`fedsynth.methods.registry`) finds them."""

from importlib.util import find_spec

from fedsynth.bench.published.flaim import AugFLAIMOracle
from fedsynth.bench.published.migration import FedMigrationPaper
from fedsynth.bench.published.tda import FedTDAMixture, FedTDAPaper

__all__ = ["AugFLAIMOracle", "FedMigrationPaper", "FedTDAMixture", "FedTDAPaper"]

if find_spec("fedsynth.deep"):  # its replica trains networks of that feature
    from fedsynth.bench.published.tgan import FedTGAN

    __all__ += ["FedTGAN"]
