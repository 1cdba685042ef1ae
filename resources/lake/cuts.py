"""Cuts: the state of all tables of a gateway at one arrival, and the checkpoint frames made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resources.lake.tables import LakeNames

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.schema import TableSchema
    from lakesync.staging.records import Cut
    from lakesync.staging.store import PipelineStore


def make_cut(
    spark: SparkSession,
    store: PipelineStore,
    gateway: str,
    arrival: int,
    schemas: Collection[TableSchema],
    directory_uri: str,
    names: LakeNames = LakeNames(),
) -> Cut:
    """Make and publish a cut at `arrival`: tables that lag are merged, their snapshots tagged, the frames written.

    Frames go to `directory_uri/gateway/epoch-arrival/`, on a file system or S3 that Spark's tasks reach. When a cut at
    this or a later arrival is published already, that one is the answer and nothing is done.

    Raises:
        IntegrityError: a table holds deltas above `arrival`; make the cut at a later one.
        SchemaError, LakeUnavailableError: as `merge_table`.
    """
    raise NotImplementedError


def state_as_of(
    spark: SparkSession,
    schema: TableSchema,
    gateway: str,
    arrival: int,
    cut: Cut | None = None,
    names: LakeNames = LakeNames(),
) -> DataFrame:
    """The rows of a table as of `arrival`, in the columns of its state table, invisible ones included.

    Read from the cut's snapshot when `cut` is exactly there, else reduced from `deltas`. What is not flushed is not in it.
    """
    raise NotImplementedError
