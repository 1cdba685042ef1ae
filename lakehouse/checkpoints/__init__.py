"""Checkpoints: all rows of a gateway at one arrival, as Iceberg snapshots and as files for the first sync of clients."""
