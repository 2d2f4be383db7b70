"""Commands of a deployment, of the server and of sites."""
