"""DataFrames that Spark computes once and keeps, while several jobs read them."""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import grpc
from pyspark.errors import PySparkException
from pyspark.storagelevel import StorageLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def computed_once(spark: SparkSession, rows: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows of a DataFrame on the executors' disks from the first job that reads them on.

    A local checkpoint would do the same, and is bound to another session where a process has several.

    Args:
        spark: a session.
        rows: the DataFrame.
    """
    name = f"lakesync_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    spark.catalog.cacheTable(name, StorageLevel.DISK_ONLY)
    try:
        yield spark.table(name)
    finally:
        with suppress(PySparkException, grpc.RpcError):  # a lost session has neither any more
            spark.catalog.uncacheTable(name)
            spark.catalog.dropTempView(name)
