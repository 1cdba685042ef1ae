"""The lake's history: flushing deltas into the table `deltas` exactly once, and reading them in order."""
