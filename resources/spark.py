"""Sessions on any Spark: the embedded Connect server, a remote one, or a master."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lakesync.config import Config


def connect(config: Config) -> SparkSession:
    """A new session; the caller stops it (`session` does both).

    Raises:
        LakeUnavailableError: nothing listens there, or no session came about within 30 s.
    """
    raise NotImplementedError


@contextmanager
def session(config: Config) -> Iterator[SparkSession]:
    """A new session for one step, stopped at its end.

    Raises:
        LakeUnavailableError: as `connect`.
    """
    spark = connect(config)
    try:
        yield spark
    finally:
        spark.stop()
