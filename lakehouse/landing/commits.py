"""Commits batches of rows to `landing` and `known`, validated from the snapshot that was read."""

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
"""Attempts to commit one batch while the catalogue is busy."""

_REFUSED = "org.apache.iceberg.exceptions.ValidationException"
_BUSY = ("SQLITE_BUSY", "database is locked", "org.apache.iceberg.exceptions.CommitFailedException")


def commit(
    tables: ConnectorTables, name: str, rows: DataFrame, where: Column, snapshot: int | None, batch: Sequence[str]
) -> None:
    """Replace the rows that meet a condition, in one commit. Iceberg refuses it if others wrote such rows meanwhile.

    Args:
        tables: the connector's tables.
        name: the table's full, quoted name.
        rows: the new rows.
        where: a condition that all of `rows` meet.
        snapshot: the snapshot that was read; None: the table was empty.
        batch: identifies this commit.

    Raises:
        FlushError: the rows were not committed.
        Exception: the error of Spark or the catalogue, if it is unknown whether the rows were committed.
    """
    identity = json.dumps(list(batch))
    for attempt in range(1, TRIES + 1):
        try:
            overwrite(rows, name, where, snapshot, identity)
        except PySparkException as error:
            with tables.opened(name) as table:
                if list(batch) in map(batch_of, table.metadata.snapshots):
                    return  # the response to the commit was lost
            if is_busy(error) and attempt < TRIES:
                continue
            if _REFUSED in str(error) or is_busy(error):
                raise FlushError(
                    f"{' '.join(batch[:4])} was not written ({brief(error)}): another poll of it may be in progress; "
                    "the next one continues from the last landing"
                ) from error
            raise
        else:
            return


def is_busy(error: PySparkException) -> bool:
    """Return whether a commit failed because others committed at the same time."""
    return any(sign in str(error) for sign in _BUSY)
