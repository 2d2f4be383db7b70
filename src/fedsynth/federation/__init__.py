"""Questions to sites and the releases that answer them: verbs, queries, sites, transports and trust models."""
