"""The public description of a table (columns, bins, rules), agreed before a run and never fitted to pooled rows."""

from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, Numeric
from fedsynth.schema.derive import Rule
from fedsynth.schema.forms import Identifier
from fedsynth.schema.schema import MISSING, Computed, Schema, Stored

__all__ = [
    "MISSING",
    "Boolean",
    "Categorical",
    "Column",
    "Computed",
    "Datetime",
    "Identifier",
    "Numeric",
    "Rule",
    "Schema",
    "Stored",
]
