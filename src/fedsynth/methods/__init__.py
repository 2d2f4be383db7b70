"""The published methods, one file per family, and the registry that finds them (:mod:`fedsynth.methods.registry`)."""

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
