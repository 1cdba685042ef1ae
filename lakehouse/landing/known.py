"""`known` brought up to a page by Spark: from the rows that there are and from what has landed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException

from lakehouse.landing.commits import TRIES, commit, is_busy
from lakehouse.landing.landed_files import BUCKETS
from lakehouse.landing.tables import KNOWN_COLUMNS, ConnectorTables, Mark, known_name
from lakehouse.table_definitions import set_properties
from lakehouse.task_runner import in_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakehouse.landing.folding import Folding


def fold(tables: ConnectorTables, folding: Folding, snapshot: int | None) -> None:
    """Write `known` of one table anew, a task a bucket. A repeat changes nothing.

    Args:
        tables: of the connector.
        folding: the rows, up to a page.
        snapshot: of `known`, which was read.

    Raises:
        FlushError: somebody has written this table's rows meanwhile: the next poll does it.
    """
    table, name = folding.landed.table, known_name(tables.names)
    constants = (tables.gateway, tables.connector, table)

    def rows(bucket: int) -> Iterator[pa.RecordBatch]:
        for found in folding.rows(bucket):
            for batch in found.to_batches():
                same = [pa.repeat(pa.scalar(value), batch.num_rows) for value in constants]
                yield pa.record_batch([*same, *batch.columns], names=_NAMES)

    written = in_tasks(tables.spark, BUCKETS, rows, KNOWN_COLUMNS)
    batch = ("known", *constants, str(folding.upto))
    commit(tables, name, written, tables.condition(table_name=table), snapshot, batch)


def note(tables: ConnectorTables, table: str, mark: Mark) -> Mark:
    """Store how far a table is read, without a snapshot.

    Args:
        tables: the connector's.
        table: the table's name.
        mark: how far.

    Returns:
        The mark that is noted: never behind the one that was there.
    """
    name = known_name(tables.names)
    for attempt in range(1, TRIES + 1):
        with tables.opened(name) as known:
            joined = tables.marks(known, [table])[table].joined(mark)
        try:
            set_properties(tables.spark, name, {tables.property_of(table): joined.text()})
        except PySparkException as error:
            if attempt == TRIES or not is_busy(error):
                raise
        else:
            break
    return joined


_NAMES = ["gateway", "connector", "table_name", "row_id", "columns"]
