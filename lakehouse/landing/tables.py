"""The tables `landing` and `known`: how they are made, and which of their files are one connector's.

How far `known` and the gateway have a table's landings is a property of `known`: `lakesync.read.…`, two pages. Both may
be lost. The first is in the snapshot that brings `known` up to it too; the second then costs a repeated push.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import date, timedelta
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.expressions import And
from pyspark.sql import functions as sf

from lakehouse.catalogue import open_table
from lakehouse.landing.landed_files import BUCKETS, OLD_MARK, LandedFile
from lakehouse.landing.row_versions import KNOWN
from lakehouse.maintenance import join_deleted
from lakehouse.table_definitions import BATCH_PROPERTY, NAMES, LakeNames
from lakesync.analysis.column_bounds import column_bounds
from lakesync.analysis.scans import condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, SparkSession

_LANDING = """
gateway string, connector string, day date COMMENT 'UTC day of the landing', landing bigint, table_name string,
kind string COMMENT 'row, gone, whole or place', page bigint COMMENT 'the first stamp of its page',
hlc bigint COMMENT 'the stamp of the delta that it makes', row_id string,
columns string COMMENT 'the row, or the place, as JSON', name string, value string
"""
KNOWN_COLUMNS = "gateway string, connector string, table_name string, row_id string, columns string"
_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # who reads these tables opens their files, and an erased value may stay in none
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.metadata.metrics.column.connector": "full",
    "write.metadata.metrics.column.table_name": "full",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.retry.num-retries": "10",
}
EPOCH = date(1970, 1, 1)


def landing_name(names: LakeNames = NAMES) -> str:
    """The full name, quoted, of the table of landings."""
    return f"`{names.catalogue}`.`{names.system}`.`landing`"


def known_name(names: LakeNames = NAMES) -> str:
    """The full name, quoted, of the table of the rows that landings add up to."""
    return f"`{names.catalogue}`.`{names.system}`.`known`"


def ensure_landing(spark: SparkSession, names: LakeNames = NAMES) -> None:
    """Create `landing` and `known` where they are missing.

    Args:
        spark: a session.
        names: the lake's names.
    """
    if spark.catalog.tableExists(known_name(names)):
        return
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{names.catalogue}`.`{names.system}`")
    for name, columns, parts in (
        (landing_name(names), _LANDING, "gateway, connector, day"),
        (known_name(names), KNOWN_COLUMNS, f"gateway, connector, table_name, bucket({BUCKETS}, row_id)"),
    ):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg PARTITIONED BY ({parts}) "
            f"TBLPROPERTIES ({properties})"
        )


class KnownFile(NamedTuple):
    """A file of `known`."""

    path: str
    rows: int
    bucket: int


class Mark(NamedTuple):
    """How far a table's landings are read."""

    known: int = KNOWN
    """`known` is what all pages up to this one add up to."""
    delivered: int = KNOWN
    """The gateway has what follows from all pages up to this one."""

    def text(self) -> str:
        """As the property has it."""
        return f"{self.known} {self.delivered}"

    def joined(self, other: Mark) -> Mark:
        """The further one of each page; what `known` has, the gateway has."""
        known = max(self.known, other.known)
        return Mark(known, max(self.delivered, other.delivered, known))


class ConnectorTables(NamedTuple):
    """Both tables as far as they are one connector's."""

    spark: SparkSession
    names: LakeNames
    gateway: str
    connector: str

    @contextmanager
    def opened(self, name: str) -> Iterator[Table]:
        """A table as it is now.

        Raises:
            ConfigurationError: as `open_table`.
        """
        with open_table(self.spark, name) as table:
            yield table

    def landed(self, landing: Table) -> list[LandedFile]:
        """The connector's files of `landing`, in order of pages."""
        found = []
        for task in self._planned(landing, landing_name(self.names)):
            file = task.file
            (_, number), (first, last), (_, stamp) = (
                column_bounds(landing, file, of) for of in ("landing", "page", "hlc")
            )
            found.append(
                LandedFile(
                    file.file_path,
                    file.record_count,
                    file.file_size_in_bytes,
                    EPOCH + timedelta(days=file.partition[2]),
                    landing=_int(number),
                    first=_int(first),
                    last=_int(last),
                    hlc=_int(stamp),
                    claims=column_bounds(landing, file, "name")[0] is not None,
                    tables=_texts(column_bounds(landing, file, "table_name")),
                )
            )
        return sorted(found, key=lambda each: each.first)

    def known(self, known: Table) -> dict[str, list[KnownFile]]:
        """The connector's files of `known`, by table."""
        found: dict[str, list[KnownFile]] = {}
        for task in self._planned(known, known_name(self.names)):
            table, bucket = task.file.partition[2], task.file.partition[3]
            found.setdefault(table, []).append(KnownFile(task.file.file_path, task.file.record_count, bucket))
        return found

    def marks(self, known: Table, tables: Iterable[str]) -> dict[str, Mark]:
        """Return how far each table is read.

        Args:
            known: the table that has the marks.
            tables: the connector's.
        """
        in_snapshots = self._folded(known)
        return {table: self._mark(known, table).joined(in_snapshots.get(table, Mark())) for table in tables}

    def _mark(self, known: Table, table: str) -> Mark:
        delivered = known.properties.get(self.property_of(table))
        if delivered is not None:
            return Mark(*map(int, delivered.split()))
        marked = condition("row_id", "=", OLD_MARK)
        rows = (
            known.scan(And(self._mine(), condition("table_name", "=", table), marked)).to_arrow()["columns"].to_pylist()
        )
        return Mark(int(rows[0]), int(rows[0])) if rows else Mark()

    def _folded(self, known: Table) -> dict[str, Mark]:
        """By table, the newest page that a snapshot says `known` was brought up to."""
        found: dict[str, Mark] = {}
        for batch in filter(None, map(batch_of, known.metadata.snapshots)):
            if batch[:3] == ["known", self.gateway, self.connector]:
                mark = Mark(int(batch[4]), int(batch[4]))
                found[batch[3]] = found.get(batch[3], Mark()).joined(mark)
        return found

    def condition(self, **more: str | int) -> Column:
        """A condition over either table: the connector's rows, with these values."""
        values = {"gateway": self.gateway, "connector": self.connector, **more}
        return reduce(and_, (sf.col(name) == sf.lit(value) for name, value in values.items()))

    def property_of(self, table: str) -> str:
        """The property of `known` that has a table's mark."""
        return f"lakesync.read.{self.gateway}.{self.connector}.{table}"

    def _planned(self, table: Table, name: str) -> list[FileScanTask]:
        """The connector's files, whole ones: those from which rows were deleted are first written anew.

        Nobody here leaves such files, but versions before this one did, and other engines may.
        """
        tasks = list(table.scan(self._mine()).plan_files())
        if any(task.delete_files for task in tasks):
            join_deleted(self.spark, self.names, name)
            table.refresh()
            tasks = list(table.scan(self._mine()).plan_files())
        return tasks

    def _mine(self) -> BooleanExpression:
        return And(condition("gateway", "=", self.gateway), condition("connector", "=", self.connector))


def batch_of(snapshot: Snapshot) -> list[str] | None:
    """The batch that a snapshot of either table says it commits."""
    text = snapshot.summary.additional_properties.get(BATCH_PROPERTY) if snapshot.summary is not None else None
    return None if text is None else json.loads(text)


def _texts(bounds: tuple[object, object]) -> tuple[str, str]:
    low, high = bounds
    assert isinstance(low, str), "whoever writes these tables notes the bounds of names"
    assert isinstance(high, str), "whoever writes these tables notes the bounds of names"
    return low, high


def _int(bound: str | int | None) -> int:
    assert isinstance(bound, int), "whoever writes these tables notes the bounds of numbers"
    return bound
