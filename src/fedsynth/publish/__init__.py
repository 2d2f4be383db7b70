"""The pack: what is published of a run, in a form that a stranger can verify without a network."""
