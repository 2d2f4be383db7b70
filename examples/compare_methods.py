"""Compare several methods on one table, with the same sites, budget and seed.

The scores are computed from the patients' rows without noise, so use this only for tables that need no protection, such
as this made-up one. With real rows, choosing a method by such scores is a release that no guarantee covers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedsynth import AIM, Auto, Budget, FedChowLiu, FedTDA, OneShot, TrustedServer, evaluate, federate
from fedsynth.datasets import patients, patients_schema

schema = patients_schema()
tables = {name: patients(4000, number) for number, name in enumerate(["north", "south", "east"])}
everybody = pd.concat(tables.values(), ignore_index=True)
measures = ["column-similarity", "pair-similarity", "correlation-difference"]

columns = {}
for method in (OneShot(), Auto(), FedChowLiu(), FedTDA(), AIM(rounds=5)):
    federation = federate(tables, schema, Budget(epsilon=1, delta=1e-6), trust=TrustedServer(), seed=0)
    table = method.fit(federation).sample(len(everybody), np.random.default_rng(0))
    scores = evaluate(everybody, table, schema, metrics=measures, repeats=1)
    means = scores[scores["column"] == ""].set_index("score")
    columns[type(method).__name__] = means["value"]
columns["real rows"] = means["reference"]  # the scores of other real rows, for comparison

print(pd.DataFrame(columns).round(3).to_string())
