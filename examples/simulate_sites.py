"""Make one synthetic table of the patients of three hospitals, whose tables are data frames.

The sites are simulated in this process, with the same queries, noise and accounting as between real organisations, but
without the network.
"""

from __future__ import annotations

import fedsynth as fs
from fedsynth.datasets import patients, patients_schema

tables = {name: patients(4000, number) for number, name in enumerate(["north", "south", "east"])}
synth = fs.fit(tables, patients_schema(), epsilon=1, delta=1e-6, trust_options={"min_honest": 2})  # secure sums

print(synth.sample(10_000).head())
print(synth)  # the guarantee, who is protected and against whom, and the queries with their noise and cost
