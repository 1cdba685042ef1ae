"""What must be equal, and what must be unique, in the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resources.lake.tables import LakeNames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync.staging.store import PipelineStore


class LedgerDifference(msgspec.Struct, frozen=True):
    """A gateway's arrival day whose confirmed deltas differ between staging's ledger and the lake."""

    gateway: str
    day: str
    """`YYYY-MM-DD`."""
    ledger_count: int
    lake_count: int
    ledger_id_sum: int
    lake_id_sum: int


class DuplicateKey(msgspec.Struct, frozen=True):
    """A key that must be there once."""

    gateway: str
    key: str
    """Row id, or client id and delta id."""
    count: int


def ledger_against_lake(
    spark: SparkSession, store: PipelineStore, names: LakeNames = LakeNames()
) -> list[LedgerDifference]:
    """The days on which what staging says is flushed is not what `deltas` holds; empty when all agree.

    What was flushed and not yet confirmed shows as a difference, so ask when no flush runs.
    """
    raise NotImplementedError


def duplicate_keys(spark: SparkSession, table: str, names: LakeNames = LakeNames(), limit: int = 100) -> list[DuplicateKey]:
    """Rows that a state table holds more than once."""
    raise NotImplementedError


def duplicate_deltas(spark: SparkSession, names: LakeNames = LakeNames(), limit: int = 100) -> list[DuplicateKey]:
    """Deltas of one client that `deltas` holds more than once."""
    raise NotImplementedError
