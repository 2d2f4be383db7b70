"""Three servers that see nothing."""
