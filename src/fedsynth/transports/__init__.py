"""What carries messages between a server and sites, each engine in a folder of its own."""
