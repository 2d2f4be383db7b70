"""Runs: a job, the running of it, and the folder that it leaves."""
