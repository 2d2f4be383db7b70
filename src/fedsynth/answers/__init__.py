"""Declared questions: what a run is asked beside its table, answered with intervals under the run's budget."""
