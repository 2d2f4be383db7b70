"""Where a run meets the world: the command line, and the transports that need a network."""
