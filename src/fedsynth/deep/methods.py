"""The methods of this feature, as the registry of methods (:mod:`fedsynth.methods.registry`) finds them."""

from fedsynth.deep.fedavggan import FedAvgGAN
from fedsynth.deep.fedctgan import FedCTGAN
from fedsynth.deep.fedtabdiff import FedTabDiff
from fedsynth.deep.fedvae import FedVAE

__all__ = ["FedAvgGAN", "FedCTGAN", "FedTabDiff", "FedVAE"]
