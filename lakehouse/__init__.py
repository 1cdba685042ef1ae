"""The Iceberg side of LakeSync, on PySpark and without Dagster.

`history` writes the table `deltas` of all accepted deltas (changes of rows); `tables` writes the state tables, the
current rows that result from it; `checkpoints` writes the files from which new clients start. `landing` polls
connectors (external systems such as Jira). `backends` copies deltas to and between other databases. `erasure` deletes a
row's or a client's data everywhere. Assets and sensors call them.

Functions that work on tables take a Spark session and the names of the lake's tables, and are safe to repeat. Modules
that import pyspark are imported only when a step runs, so that the Dagster code location loads without Spark.
"""
