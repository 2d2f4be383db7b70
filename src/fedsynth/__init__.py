"""Generate one synthetic table, with a differential-privacy guarantee, from many sites that may not pool their rows.

The library in five lines, for one data frame or several by site name; the last line prints what is guaranteed::

    frame = fedsynth.read_table("patients.csv")  # of text: types are the schema's
    schema = fedsynth.Schema.draft(frame)  # a proposal from the rows: put public facts in their place
    train, held = fedsynth.split(frame, holdout=0.1)
    synthesizer = fedsynth.fit(train, schema, epsilon=1.0, delta=1e-6)
    synthesizer.sample(10_000).to_csv("synthetic.csv"); print(synthesizer.statement)

Methods, trusts, errors and relations of columns are imported from their modules, such as :mod:`fedsynth.methods.aim`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers and editors; tests/test_names.py checks that it agrees with the table below
    from fedsynth.api import advise as advise
    from fedsynth.api import fit as fit
    from fedsynth.api import read_table as read_table
    from fedsynth.api import split as split
    from fedsynth.bench.compare import compare as compare
    from fedsynth.deploy.run import load_run as load_run
    from fedsynth.errors import FedsynthError as FedsynthError
    from fedsynth.evaluation.frames import evaluate as evaluate
    from fedsynth.federation.simulate import federate as federate
    from fedsynth.models.synthesizer import Synthesizer as Synthesizer
    from fedsynth.models.synthesizer import load as load
    from fedsynth.privacy.cost import Budget as Budget
    from fedsynth.privacy.cost import Unit as Unit
    from fedsynth.schema import Boolean as Boolean
    from fedsynth.schema import Categorical as Categorical
    from fedsynth.schema import Computed as Computed
    from fedsynth.schema import Datetime as Datetime
    from fedsynth.schema import Identifier as Identifier
    from fedsynth.schema import Numeric as Numeric
    from fedsynth.schema import Rule as Rule
    from fedsynth.schema import Schema as Schema
    from fedsynth.schema import Stored as Stored

# Names are imported on first use, so that the command line answers --help quickly.
_HOME = {
    name: f"fedsynth.{module}"
    for module, names in {
        "api": "advise fit read_table split",
        "bench.compare": "compare",
        "deploy.run": "load_run",
        "errors": "FedsynthError",
        "evaluation.frames": "evaluate",
        "federation.simulate": "federate",
        "models.synthesizer": "Synthesizer load",
        "privacy.cost": "Budget Unit",
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
