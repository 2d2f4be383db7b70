"""Where rows come from, how a simulation splits them, and drafts of schemas."""
