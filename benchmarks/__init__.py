"""Published tables, ours beside them: one TOML per table, and what runs it."""
