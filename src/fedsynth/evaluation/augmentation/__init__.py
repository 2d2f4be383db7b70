"""Data augmentation: how much synthetic rows improve a classifier that sites train federatedly.

This is an evaluation in a simulation, NOT a private release: the classifier learns from the sites' own rows without
noise, and hold-outs and class counts are read exactly. Only the synthetic rows can have a privacy guarantee: that of
the run that made them.
"""
