"""Fitted generators: pure numerics, independent of privacy and federation."""
