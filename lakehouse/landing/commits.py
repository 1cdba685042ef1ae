"""Commits of `landing` and `known`: Spark writes each batch on top of the snapshot that was read, or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from lakehouse.landing.tables import ConnectorTables, batch_of
from lakehouse.overwrites import overwrite
from lakehouse.spark_errors import brief
from lakesync.model.errors import FlushError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

TRIES = 5
"""Commits of one batch while the catalogue is busy."""

_REFUSED = "org.apache.iceberg.exceptions.ValidationException"
_BUSY = ("SQLITE_BUSY", "database is locked", "org.apache.iceberg.exceptions.CommitFailedException")


def commit(
    tables: ConnectorTables, name: str, rows: DataFrame, where: Column, snapshot: int | None, batch: Sequence[str]
) -> None:
    """Replace the rows of a condition, in one commit that Iceberg refuses where others wrote such rows meanwhile.

    Args:
        tables: of the connector.
        name: of the table, quoted.
        rows: those that are to be there.
        where: a condition that holds for all of `rows`.
        snapshot: the table's snapshot that was read; None where it was empty.
        batch: names this commit alone.

    Raises:
        FlushError: it was not committed.
        Exception: what Spark or the catalogue raised, where it is unknown whether it was committed.
    """
    identity = json.dumps(list(batch))
    for attempt in range(1, TRIES + 1):
        try:
            overwrite(rows, name, where, snapshot, identity)
        except PySparkException as error:
            with tables.opened(name) as table:
                if list(batch) in map(batch_of, table.metadata.snapshots):
                    return  # the answer to the commit was lost
            if is_busy(error) and attempt < TRIES:
                continue
            if _REFUSED in str(error) or is_busy(error):
                raise FlushError(
                    f"{' '.join(batch[:4])} was not written ({brief(error)}): another poll of it may be under way; "
                    "the next one goes on from the last landing"
                ) from error
            raise
        else:
            return


def is_busy(error: PySparkException) -> bool:
    """Whether a commit did not happen because others commit at the same moment."""
    return any(sign in str(error) for sign in _BUSY)
