"""The lake's history: flushing deltas into the Iceberg table `deltas` exactly once, and reading them in order."""
