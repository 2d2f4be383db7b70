"""Flower as the transport; nothing else imports flwr."""
