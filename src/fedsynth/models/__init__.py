"""Models that draw synthetic rows, with their fitting and sampling: numerics only, without privacy or network code."""
