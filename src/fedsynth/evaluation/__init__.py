"""Evaluation of synthetic tables: fidelity, utility and privacy."""
