"""What synthetic rows are worth to a classifier that sites train together.

An evaluation in a simulation, and NOT a private release: the classifier learns from the sites' own rows without noise,
hold-outs and class counts are read as they are, and nothing is guaranteed for any of it. The synthetic rows alone
carry the guarantee of the ledger that they were fitted under.
"""
