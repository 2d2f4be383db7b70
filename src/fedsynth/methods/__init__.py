"""The published methods, one file per family; a method is imported when it is first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.methods.aim import AIM as AIM
    from fedsynth.methods.bayes import FedChowLiu as FedChowLiu
    from fedsynth.methods.flaim import FLAIM as FLAIM
    from fedsynth.methods.flaim import AugFLAIM as AugFLAIM
    from fedsynth.methods.flaim import AugFLAIMOracle as AugFLAIMOracle
    from fedsynth.methods.flaim import FedNaiveBayes as FedNaiveBayes
    from fedsynth.methods.flaim import RandomFLAIM as RandomFLAIM
    from fedsynth.methods.migration import FedMigration as FedMigration
    from fedsynth.methods.migration import FedMigrationPaper as FedMigrationPaper
    from fedsynth.methods.oneshot import OneShot as OneShot
    from fedsynth.methods.privbayes import PrivBayes as PrivBayes
    from fedsynth.methods.privsyn import AdaFedPrivSyn as AdaFedPrivSyn
    from fedsynth.methods.privsyn import AllMarginals as AllMarginals
    from fedsynth.methods.privsyn import FedPrivSyn as FedPrivSyn
    from fedsynth.methods.privsyn import PrivSyn as PrivSyn
    from fedsynth.methods.privsyn import RandomMarginals as RandomMarginals
    from fedsynth.methods.tda import FedTDA as FedTDA
    from fedsynth.methods.tda_exact import FedTDAMixture as FedTDAMixture
    from fedsynth.methods.tda_exact import FedTDAPaper as FedTDAPaper
    from fedsynth.models.synthesizer import Synthesizer


class Method(Protocol):
    """A frozen dataclass of hyper-parameters that can be fitted to a federation."""

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""


_PLACES = {
    "oneshot": "oneshot:OneShot",
    "aim": "aim:AIM",
    "flaim": "flaim:FLAIM",
    "augflaim": "flaim:AugFLAIM",
    "augflaim-oracle": "flaim:AugFLAIMOracle",
    "randomflaim": "flaim:RandomFLAIM",
    "fednaivebayes": "flaim:FedNaiveBayes",
    "privsyn": "privsyn:PrivSyn",
    "fedprivsyn": "privsyn:FedPrivSyn",
    "adafedprivsyn": "privsyn:AdaFedPrivSyn",
    "allmarginals": "privsyn:AllMarginals",
    "randommarginals": "privsyn:RandomMarginals",
    "tda": "tda:FedTDA",
    "tdamixture": "tda_exact:FedTDAMixture",
    "tdapaper": "tda_exact:FedTDAPaper",
    "fedchowliu": "bayes:FedChowLiu",
    "fedmigration": "migration:FedMigration",
    "fedmigrationpaper": "migration:FedMigrationPaper",
    "privbayes": "privbayes:PrivBayes",
}
_MODULES = {name: module for module, _, name in (place.partition(":") for place in _PLACES.values())}


class _Methods(Mapping[str, type[Method]]):
    """Names on the command line and their classes, each imported when it is looked up."""

    def __getitem__(self, name: str) -> type[Method]:
        found: type[Method] = __getattr__(_PLACES[name].partition(":")[2])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


METHODS: Mapping[str, type[Method]] = _Methods()

NEEDS_VAULT = frozenset({"aim", "privsyn", "privbayes"})
"""Methods that run only under a trust that can hold exact sums."""

NOT_PRIVATE = frozenset({"augflaim-oracle", "tdamixture", "tdapaper", "fedmigrationpaper"})
"""Published replicas that release without noise whatever the budget."""


COLUMN_OPTIONS = frozenset({"target"})
"""Options of methods that hold the position of a column; whoever writes them down may give the column's name."""

ALTERNATIVES: Mapping[str, Mapping[str, str]] = {"generator": {"gum": "generators:GUM", "pgm": "generators:PGM"}}
"""Options of methods that hold an object, and by which names such objects may be written down."""


def alternative(option: str, name: str) -> Any:
    """Return the object that a name of ``ALTERNATIVES`` stands for, with its defaults."""
    module, _, kind = ALTERNATIVES[option][name].partition(":")
    return getattr(import_module(f"fedsynth.methods.{module}"), kind)()


def __getattr__(name: str) -> Any:
    """Import a method's class from its family's module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedsynth.methods' has no attribute {name!r}")
    return getattr(import_module(f"fedsynth.methods.{_MODULES[name]}"), name)
