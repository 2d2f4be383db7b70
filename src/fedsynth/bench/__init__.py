"""Benchmarks: grids of runs from one TOML file, and pages of their results."""
