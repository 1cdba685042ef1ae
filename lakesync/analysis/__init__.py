"""Reads the lake with pyiceberg, without Spark: SQL queries on DuckDB, a row's history, and the pipeline's marks.

A gateway is one app's stream of changes (deltas). A mark says how far a part of the pipeline has processed them. Deltas
that are not flushed to the lake yet are added from staging. Nothing here writes to the lake, or opens the store as a
gateway does. `lakesync.cli`, `lakehouse`, sensors and the gateway use it.
"""
