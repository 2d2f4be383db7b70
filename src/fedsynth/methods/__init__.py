"""The synthesis methods, one file per family, and their registry by name (:mod:`fedsynth.methods.registry`)."""

from fedsynth.methods.registry import (
    COHORT_RATE,
    COLUMN,
    Method,
    Registration,
    all_methods,
    find_method,
    method,
    method_names,
    one_of,
)

__all__ = [
    "COHORT_RATE",
    "COLUMN",
    "Method",
    "Registration",
    "all_methods",
    "find_method",
    "method",
    "method_names",
    "one_of",
]
