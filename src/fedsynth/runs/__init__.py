"""Runs: the job (all settings of a run), its execution, and the folder with its results."""
