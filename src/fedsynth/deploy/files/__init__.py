"""Signed files in a folder as the transport: for sites without a network route to the server."""
