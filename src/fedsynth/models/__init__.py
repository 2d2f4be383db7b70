"""Fitted generators: pure numerics that know nothing of privacy or federation."""
