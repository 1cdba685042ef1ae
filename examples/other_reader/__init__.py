"""ClickHouse reads the lake by itself, with an Iceberg reader that shares no code with ours, and the two agree."""
