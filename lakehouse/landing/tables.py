"""The tables `landing` and `known`: how they are made, and which of their files are one connector's.

How far `known` and the gateway have a table's landings is a property of `known`: `lakesync.read.…`, two pages. The
first moves in the commit that brings `known` up to it. The second may be lost, which costs a repeated push.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from pyiceberg.expressions import And

from lakehouse.bounds import bounds_of
from lakehouse.catalogue import iceberg_table
from lakehouse.landing.row_versions import KNOWN
from lakehouse.maintenance import join_deleted
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync.analysis.scans import holds
from lakesync.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import SparkSession

_LANDING = """
gateway string, connector string, day date COMMENT 'UTC day of the landing', landing bigint, table_name string,
kind string COMMENT 'row, gone, whole or place', page bigint COMMENT 'the first stamp of its page',
hlc bigint COMMENT 'the stamp of the delta that it makes', row_id string,
columns string COMMENT 'the row, or the place, as JSON', name string, value string
"""
_KNOWN = "gateway string, connector string, table_name string, row_id string, columns string"
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

BUCKETS = 4
"""Of `known`, by row id."""

OLD_MARK = ""
"""The row id under which `known` had its page before there was a property for it: no row of a source has it."""


def landing_name(names: LakeNames = NAMES) -> str:
    """The full name, quoted, of the table of landings."""
    return f"`{names.catalogue}`.`{names.system}`.`landing`"


def known_name(names: LakeNames = NAMES) -> str:
    """The full name, quoted, of the table of the rows that landings add up to."""
    return f"`{names.catalogue}`.`{names.system}`.`known`"


def ensure_landing(spark: SparkSession, names: LakeNames = NAMES) -> None:
    """Make both tables where they are missing."""
    if spark.catalog.tableExists(known_name(names)):
        return
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{names.catalogue}`.`{names.system}`")
    for name, columns, parts in (
        (landing_name(names), _LANDING, "gateway, connector, day"),
        (known_name(names), _KNOWN, f"gateway, connector, table_name, bucket({BUCKETS}, row_id)"),
    ):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg PARTITIONED BY ({parts}) "
            f"TBLPROPERTIES ({properties})"
        )


class LandedFile(NamedTuple):
    """A file of `landing`, and what is in it."""

    path: str
    rows: int
    landing: int
    """The newest landing."""
    first: int
    """The first page."""
    last: int
    """The last page."""
    hlc: int
    """The highest stamp."""
    claims: bool
    """Whether pages of it claim rows by a name."""


class Mark(NamedTuple):
    """How far a table's landings are read."""

    known: int = KNOWN
    """`known` is what all pages up to this one add up to."""
    told: int = KNOWN
    """The gateway has what follows from all pages up to this one."""

    def spelled(self) -> str:
        """As the property has it."""
        return f"{self.known} {self.told}"


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
            ConfigurationError: only Spark knows the catalogue.
        """
        with iceberg_table(self.spark, name) as table:
            if table is None:
                raise ConfigurationError(
                    "connectors land where pyiceberg can commit as well: keep the lake's catalogue in SQLite, in "
                    "Postgres, or behind REST"
                )
            yield table

    def landed(self, landing: Table) -> list[LandedFile]:
        """The connector's files of `landing`, in order of pages."""
        found = []
        for task in self._planned(landing, landing_name(self.names)):
            file = task.file
            (_, number), (first, last), (_, stamp) = (bounds_of(landing, file, of) for of in ("landing", "page", "hlc"))
            found.append(
                LandedFile(
                    file.file_path,
                    file.record_count,
                    landing=_int(number),
                    first=_int(first),
                    last=_int(last),
                    hlc=_int(stamp),
                    claims=bounds_of(landing, file, "name")[0] is not None,
                )
            )
        return sorted(found, key=lambda each: each.first)

    def known(self, known: Table) -> dict[str, dict[int, list[FileScanTask]]]:
        """The connector's files of `known`, by table and bucket."""
        found: dict[str, dict[int, list[FileScanTask]]] = {}
        for task in self._planned(known, known_name(self.names)):
            table, bucket = task.file.partition[2], task.file.partition[3]
            found.setdefault(table, {}).setdefault(bucket, []).append(task)
        return found

    def mark(self, known: Table, table: str) -> Mark:
        """How far a table is read."""
        told = known.properties.get(self.property_of(table))
        if told is not None:
            return Mark(*map(int, told.split()))
        marked = holds("row_id", "=", OLD_MARK)
        rows = known.scan(And(self._mine(), holds("table_name", "=", table), marked)).to_arrow()["columns"].to_pylist()
        return Mark(int(rows[0]), int(rows[0])) if rows else Mark()

    def property_of(self, table: str) -> str:
        """The property of `known` that has a table's mark."""
        return f"lakesync.read.{self.gateway}.{self.connector}.{table}"

    def partition(self, *values: object) -> str:
        """The folder of a partition of either table: the connector's, and what follows."""
        names = ("gateway", "connector", *(("day",) if len(values) == 1 else ("table_name", "row_id_bucket")))
        pairs = zip(names, (self.gateway, self.connector, *values), strict=True)
        return "/".join(f"{name}={quote(str(value), safe='')}" for name, value in pairs)

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
        return And(holds("gateway", "=", self.gateway), holds("connector", "=", self.connector))


def _int(bound: str | int | None) -> int:
    assert isinstance(bound, int), "whoever writes these tables notes the bounds of numbers"
    return bound
