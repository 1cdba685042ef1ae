"""Checkpoints: all rows of a gateway at one arrival, as Iceberg snapshots and as files from which new clients start."""
