"""Flower as the transport; no module outside this package imports Flower's package ``flwr``."""
