"""Asking sites for releases of statistics: the verbs, the sites, the transports and the trusts."""
