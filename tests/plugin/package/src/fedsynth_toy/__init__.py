"""A toy package: what it takes to add to fedsynth from outside."""
