"""The public description of a table (columns, bins, rules), agreed before a run and never fitted to pooled rows."""

from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, Numeric
from fedsynth.schema.derive import Rule
from fedsynth.schema.forms import Difference, Identifier, Lookup, Product, StoredDifference, StoredRatio, Sum
from fedsynth.schema.schema import MISSING, Schema

__all__ = [
    "MISSING",
    "Boolean",
    "Categorical",
    "Column",
    "Datetime",
    "Difference",
    "Identifier",
    "Lookup",
    "Numeric",
    "Product",
    "Rule",
    "Schema",
    "StoredDifference",
    "StoredRatio",
    "Sum",
]
