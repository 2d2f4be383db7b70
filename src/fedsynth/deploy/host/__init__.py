"""A site's own machine: its configuration, its state, and what is checked there."""
