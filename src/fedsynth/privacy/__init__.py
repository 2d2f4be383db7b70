"""Releases, budgets, ledgers and noise."""
