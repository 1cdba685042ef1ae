"""The Iceberg side of LakeSync, on PySpark and without Dagster.

`history` has `deltas`, `tables` the state tables merged from it, `checkpoints` the frames made of these, `landing` the
polls of connectors, `backends` destinations, flows, tiers and migrations, `erasure` the deletion of data. Assets and
sensors call it. Every function takes a Spark session and the lake's names, and is safe to repeat. Modules that
import pyspark are imported when a step runs, so that the Dagster code location loads without Spark.
"""
