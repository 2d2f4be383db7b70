"""Budgets, costs, releases, ledgers, exact noise and the statement of the guarantee."""
