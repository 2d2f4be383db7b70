"""Write your own method: this one measures every column together with a target column, in a single round.

A method is a frozen dataclass. Its fields are its options; ``fit`` asks the federation for noisy statistics and returns
a synthesizer. The federation handles trust, accounting, noise and messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedsynth import Budget, Synthesizer, federate
from fedsynth.datasets import patients, patients_schema
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.methods import COLUMN, method


@method("star")
@dataclass(frozen=True)
class Star:
    """Counts every column together with the target; columns are modelled as independent given the target."""

    target: str = field(default="", metadata=COLUMN)  # a column; --set target=NAME on the command line
    iterations: int = 300

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the fitted synthesizer."""
        from fedsynth.methods.measure import fit_noisy, measurements  # models are imported where they are used
        from fedsynth.models.synthesizer import own_bins

        schema = federation.schema
        centre = schema.index(self.target or schema.names[-1])
        pairs = [(min(centre, at), max(centre, at)) for at in range(len(schema.stored)) if at != centre]
        released = federation.sum(Counts.of(len(schema.stored), pairs), share=1.0)  # the whole budget, in one query
        measured = measurements(pairs, released.tables, released.stds)
        total = max(1.0, float(np.mean([table.values.sum() for table in measured])))
        model = fit_noisy(schema.sizes, measured, total, self.iterations, zeros=schema.forbidden_cells())
        return Synthesizer(schema, own_bins(schema), model, {"method": "star", "cliques": [list(one) for one in pairs]})


if __name__ == "__main__":
    schema = patients_schema()
    tables = {name: patients(4000, number) for number, name in enumerate(["north", "south", "east"])}
    federation = federate(tables, schema, Budget(epsilon=1, delta=1e-6), trust=LocalNoise())
    table = Star(target="readmitted").fit(federation).sample(10_000)
    print(table.groupby("readmitted")["age"].mean())
    print(federation.ledger)
