"""Sources of rows, partitions for simulations, and drafts of schemas."""
