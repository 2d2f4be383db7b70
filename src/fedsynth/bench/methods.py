"""The methods of this feature, as the registry of methods (:mod:`fedsynth.methods.registry`) finds them."""

from fedsynth.bench.published.flaim import AugFLAIMOracle
from fedsynth.bench.published.migration import FedMigrationPaper
from fedsynth.bench.published.tda import FedTDAMixture, FedTDAPaper
from fedsynth.bench.published.tgan import FedTGAN

__all__ = ["AugFLAIMOracle", "FedMigrationPaper", "FedTDAMixture", "FedTDAPaper", "FedTGAN"]
