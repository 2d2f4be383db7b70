"""Transports, which carry messages between a server and sites: signed files, or Flower, each in its own folder."""
