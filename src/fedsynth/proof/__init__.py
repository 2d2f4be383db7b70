"""What a stranger checks without a network: the proof of a run, its printed sheet, and extracts of accounts."""
