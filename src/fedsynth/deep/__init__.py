"""Generative networks trained under differential privacy: their training, their models and the methods."""
