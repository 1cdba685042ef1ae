"""The Iceberg side of LakeSync, on PySpark and without Dagster.

`history` writes the table `deltas` of all accepted deltas, `tables` the state tables merged from it, `checkpoints` the
files from which new clients start. `landing` polls connectors, `backends` serves destinations, flows, tiers and
migrations, and `erasure` deletes data. Assets and sensors call them. Functions that work on tables take a Spark session
and the names of the lake's tables, and are safe to repeat. Modules that import pyspark are imported only when a step
runs, so that the Dagster code location loads without Spark.
"""
