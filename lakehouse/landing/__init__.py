"""Polls of connectors: rows land in Iceberg, are compared with known rows, and their changes are pushed."""
