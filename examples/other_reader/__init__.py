"""Reads the lake with ClickHouse, whose Iceberg reader shares no code with LakeSync, and compares the results."""
