"""Polls of connectors: rows are stored in Iceberg, compared with the known rows, and the changes pushed to gateways."""
