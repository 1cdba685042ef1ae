"""Commits rows to the tables of polled rows: `landing`, which has every poll's rows, and `known`, the current ones.

Iceberg validates each commit from the snapshot that the caller read, so of two polls of one connector one fails. A
commit whose response was lost is recognised by its batch id. `landings` and `reading` in this package call it.
"""

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

COMMIT_ATTEMPTS = 5
"""Attempts to commit one batch, or one property, while the catalogue is busy."""

_REJECTED = "org.apache.iceberg.exceptions.ValidationException"
"""Error text if another commit has written rows that meet the condition."""
_CATALOGUE_BUSY = ("SQLITE_BUSY", "database is locked", "org.apache.iceberg.exceptions.CommitFailedException")
"""Error texts if another commit of any table is in progress. A further attempt may succeed."""


def commit_rows(
    tables: ConnectorTables,
    table_name: str,
    rows: DataFrame,
    where: Column,
    snapshot_id: int | None,
    batch: Sequence[str],
) -> None:
    """Replace the rows that meet a condition by new ones, in one commit.

    Iceberg rejects the commit if others have written rows that meet the condition since `snapshot_id`. While the
    catalogue is busy the commit is retried. After an error the snapshots of the table are searched for `batch`: if one
    has it, only the response was lost, and the call succeeds.

    Args:
        tables: the connector's part of `landing` and `known`.
        table_name: full, quoted name of `landing` or `known`.
        rows: the new rows.
        where: condition for the rows to replace. All of `rows` must meet it.
        snapshot_id: the snapshot that the caller read; None if the table was empty.
        batch: identifies this commit, and is stored in its snapshot: `landing` or `known`, gateway, connector, and
            parts that distinguish it from other commits.

    Raises:
        FlushError: the rows were not committed; the next poll tries again.
        Exception: the error of Spark or the catalogue, if it is unknown whether the rows were committed.
    """
    batch_id = json.dumps(list(batch))
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            overwrite(rows, table_name, where, snapshot_id, batch_id)
        except PySparkException as error:
            with tables.open(table_name) as table:
                if list(batch) in map(batch_of, table.metadata.snapshots):
                    return  # the response to the commit was lost
            if is_busy(error) and attempt < COMMIT_ATTEMPTS:
                continue
            if _REJECTED in str(error) or is_busy(error):
                raise FlushError(
                    f"{' '.join(batch[:4])} was not written ({brief(error)}): another poll of it may be in progress; "
                    "the next one continues from the last landing"
                ) from error
            raise
        else:
            return


def is_busy(error: PySparkException) -> bool:
    """Return whether a commit failed only because others committed at the same time."""
    return any(text in str(error) for text in _CATALOGUE_BUSY)
