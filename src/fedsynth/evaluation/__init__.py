"""How good, how useful and how private a synthetic table is."""
