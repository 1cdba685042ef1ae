"""Reads the lake with pyiceberg, without Spark: SQL queries on DuckDB, a row's history, and the pipeline's marks.

Deltas that are not flushed yet are added from staging. Nothing here writes to the lake or opens the store as its owner.
`lakesync.cli`, `lakehouse`, sensors and the gateway use it.
"""
