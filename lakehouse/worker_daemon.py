"""`spark.python.daemon.module`: the process that Spark forks its Python workers from, with the tasks' imports done.

Spark ends a worker that has waited for a minute. A new one would import for seconds before its first row.
"""

import gc

import pandas as pd  # noqa: F401  pyarrow imports it when it first takes an array of numpy
import pyiceberg_core.transform  # noqa: F401
from pyspark.daemon import manager

import lakehouse.history.log_reading
import lakehouse.tables.merge_job  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # the collector leaves these objects alone, so that workers go on sharing their pages
    manager()  # type: ignore[no-untyped-call]
