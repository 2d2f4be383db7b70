"""Make one synthetic table of the patients of three hospitals, whose tables are data frames.

The sites are simulated in this process, with the same queries, noise and accounting as between real organisations, but
without the network.
"""

from __future__ import annotations

from fedsynth import Budget, federate
from fedsynth.datasets import patients, patients_schema
from fedsynth.methods.auto import Auto
from fedsynth.secure.site import SecureSum

schema = patients_schema()
names = ["north", "south", "east"]
tables = {name: patients(4000, number) for number, name in enumerate(names)}

budget = Budget(epsilon=1, delta=1e-6)
federation = federate(tables, schema, budget, trust=SecureSum(min_honest=2))
synthesizer = Auto().fit(federation)
table = synthesizer.sample(10_000)

print(table.head())
print(federation.ledger)  # the queries, their noise and their cost
print(federation.statement.text)  # the guarantee: who is protected, and against whom
