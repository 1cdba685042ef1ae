"""Reads the lake with pyiceberg, without Spark: SQL queries on DuckDB, a row's history, and the pipeline's marks.

A mark says how far a part of the pipeline has processed a gateway's deltas. Deltas that are not flushed to the lake yet
are added from staging. Nothing here writes to the lake, or opens the store as a gateway does. `lakesync.cli`,
`lakehouse`, sensors and the gateway use it.
"""
