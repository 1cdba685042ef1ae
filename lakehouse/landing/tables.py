"""The tables `landing` and `known`: their definitions, one connector's files in them, and the marks.

A table's mark is the property `lakesync.read.…` of `known`: two pages, up to which `known` and the gateway have its
landings. A lost mark is harmless: the first page is also in the snapshot that updated `known`, and without the second
the deltas are pushed again.
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
    # tasks read the files themselves, and no file may keep an erased value
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
    """Return the full, quoted name of `landing`."""
    return f"`{names.catalogue}`.`{names.system}`.`landing`"


def known_name(names: LakeNames = NAMES) -> str:
    """Return the full, quoted name of `known`."""
    return f"`{names.catalogue}`.`{names.system}`.`known`"


def ensure_landing(spark: SparkSession, names: LakeNames = NAMES) -> None:
    """Create `landing` and `known` if they are missing.

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
    """The page up to which landings are in `known`."""
    delivered: int = KNOWN
    """The page up to which the gateway has the deltas of landings."""

    def text(self) -> str:
        """Return the value of the property."""
        return f"{self.known} {self.delivered}"

    def joined(self, other: Mark) -> Mark:
        """Return the later page of each. The gateway has all that `known` has."""
        known = max(self.known, other.known)
        return Mark(known, max(self.delivered, other.delivered, known))


class ConnectorTables(NamedTuple):
    """One connector's part of both tables."""

    spark: SparkSession
    names: LakeNames
    gateway: str
    connector: str

    @contextmanager
    def opened(self, name: str) -> Iterator[Table]:
        """Open the current version of a table.

        Raises:
            ConfigurationError: as `open_table`.
        """
        with open_table(self.spark, name) as table:
            yield table

    def landed(self, landing: Table) -> list[LandedFile]:
        """Return the connector's files of `landing`, in order of pages."""
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
        """Return the connector's files of `known`, by table."""
        found: dict[str, list[KnownFile]] = {}
        for task in self._planned(known, known_name(self.names)):
            table, bucket = task.file.partition[2], task.file.partition[3]
            found.setdefault(table, []).append(KnownFile(task.file.file_path, task.file.record_count, bucket))
        return found

    def marks(self, known: Table, tables: Iterable[str]) -> dict[str, Mark]:
        """Return each table's mark.

        Args:
            known: the table `known`, which has the marks.
            tables: names of the connector's tables.
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
        """Return the marks that the snapshots of `known` have, by table."""
        found: dict[str, Mark] = {}
        for batch in filter(None, map(batch_of, known.metadata.snapshots)):
            if batch[:3] == ["known", self.gateway, self.connector]:
                mark = Mark(int(batch[4]), int(batch[4]))
                found[batch[3]] = found.get(batch[3], Mark()).joined(mark)
        return found

    def condition(self, **more: str | int) -> Column:
        """Return the condition for the connector's rows with certain values, in either table."""
        values = {"gateway": self.gateway, "connector": self.connector, **more}
        return reduce(and_, (sf.col(name) == sf.lit(value) for name, value in values.items()))

    def property_of(self, table: str) -> str:
        """Return the name of the property of `known` with a table's mark."""
        return f"lakesync.read.{self.gateway}.{self.connector}.{table}"

    def _planned(self, table: Table, name: str) -> list[FileScanTask]:
        """Plan the connector's files. Files with deleted rows are first rewritten without them.

        LakeSync no longer writes delete files here, but earlier versions did and other engines may.
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
    """Return the batch that a snapshot of either table has committed; None if it has no batch."""
    text = snapshot.summary.additional_properties.get(BATCH_PROPERTY) if snapshot.summary is not None else None
    return None if text is None else json.loads(text)


def _texts(bounds: tuple[object, object]) -> tuple[str, str]:
    low, high = bounds
    assert isinstance(low, str), "these tables have column bounds for names"
    assert isinstance(high, str), "these tables have column bounds for names"
    return low, high


def _int(bound: str | int | None) -> int:
    assert isinstance(bound, int), "these tables have column bounds for numbers"
    return bound
