"""Opens the lake's tables by pyiceberg, to read their metadata, and replaces their rows by Spark's writer.

Spark Connect has no interface to a table's snapshots and files; pyiceberg has. It reads the metadata in this process,
with the settings of the session's catalogue, and never commits. `overwrite` commits by Spark: Iceberg rejects the
commit if another writer has changed the replaced rows since the snapshot that the caller read, so two runs cannot
overwrite each other's rows. All modules of `lakehouse` that plan which files to read, or commit rows, call this module.

A *state table* has the current rows of one synced table, which merges compute from its deltas (changes of rows). Its
mark for a gateway (one app's stream of deltas) is the arrival, the gateway's timestamp of a push, up to which deltas
are merged.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from lakehouse.data_files import has_known_scheme
from lakesync.analysis.catalogue import open_iceberg
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import Column, DataFrame, SparkSession

_SQLITE, _POSTGRES = "jdbc:sqlite:file:", "jdbc:postgresql:"


@contextmanager
def open_table(spark: SparkSession, name: str) -> Iterator[Table]:
    """Open the current version of a table of the lake.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: there is no such table.
        ConfigurationError: the session's catalogue is neither JDBC on SQLite or Postgres, nor REST.
    """
    catalogue, namespace, table = name.replace("`", "").split(".")
    opened = _open_catalogue(catalogue, _settings(spark, catalogue))
    try:
        yield opened.load_table((namespace, table))
    finally:
        opened.close()


class TableVersion(msgspec.Struct, frozen=True):
    """A table's current snapshot and properties."""

    snapshot_id: int | None
    """Id of the snapshot; None if nothing was ever written."""
    properties: dict[str, str]


def read_version(spark: SparkSession, name: str) -> TableVersion:
    """Return a table's current snapshot and properties.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: there is no such table.
    """
    with open_table(spark, name) as table:
        return TableVersion(table.metadata.current_snapshot_id, table.properties)


def version_if_there(spark: SparkSession, name: str) -> TableVersion | None:
    """Return a table's current snapshot and properties; None if there is no such table.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    from pyiceberg.exceptions import NoSuchTableError
    from sqlalchemy.exc import DBAPIError

    try:
        return read_version(spark, name)
    except NoSuchTableError:
        return None
    except DBAPIError:  # a new catalogue lacks its own tables until Spark first opens it
        return read_version(spark, name) if spark.catalog.tableExists(name) else None


def at_snapshot(spark: SparkSession, name: str, snapshot: int | None) -> DataFrame:
    """Return the rows of a table at one of its snapshots.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
        snapshot: id of the snapshot; None for the newest, unlike in `planned_files` and `overwrite`.
    """
    if snapshot is None:
        return spark.table(name)
    return spark.read.option("versionAsOf", str(snapshot)).table(name)


def planned_files(table: Table, snapshot: int | None, where: BooleanExpression | None = None) -> list[FileScanTask]:
    """Return the data files of a snapshot that may have rows which meet a condition, with their delete files.

    Each is a scan task of pyiceberg.

    Args:
        table: the table, opened by pyiceberg.
        snapshot: id of the snapshot; None for an empty table, which has no files.
        where: the condition; None for every row.

    Raises:
        ConfigurationError: Spark tasks cannot open a file: it is neither on a disk nor on S3, or is not Parquet.
    """
    from pyiceberg.expressions import AlwaysTrue

    if snapshot is None:
        return []
    planned = list(table.scan(where if where is not None else AlwaysTrue(), snapshot_id=snapshot).plan_files())
    for scan_task in planned:
        for file in (scan_task.file, *scan_task.delete_files):
            if not has_known_scheme(file.file_path) or file.file_format.value != "PARQUET":
                raise ConfigurationError(
                    f"tasks cannot open the file {file.file_path} of {'.'.join(table.name())}: keep the warehouse in a "
                    "folder or on S3, and its files in Parquet"
                )
    return planned


class TableSize(msgspec.Struct, frozen=True):
    """Totals of a table, from the summary of its newest snapshot."""

    rows: int = 0
    """Number of rows as `count(*)` counts them. State tables keep deleted rows too."""
    data_files: int = 0
    delete_files: int = 0
    """Files that mark rows of data files as deleted, until these are rewritten without them."""
    bytes: int = 0
    """Bytes of the data and delete files."""


def table_size(spark: SparkSession, name: str) -> TableSize:
    """Return a table's rows, files and bytes; zeros for an empty table.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.

    Raises:
        pyiceberg.exceptions.NoSuchTableError, ConfigurationError: as `open_table`.
    """
    with open_table(spark, name) as table:
        current = table.current_snapshot()
    summary = current.summary.additional_properties if current is not None and current.summary is not None else {}
    totals = {key: int(value) for key, value in summary.items() if key.startswith("total-")}
    return TableSize(
        totals.get("total-records", 0) - totals.get("total-position-deletes", 0),
        totals.get("total-data-files", 0),
        totals.get("total-delete-files", 0),
        totals.get("total-files-size", 0),
    )


BATCH_PROPERTY = "lakesync.batch"
"""Snapshot property: the id that the writer of the commit gave it, such as the id of a flush batch (text, or JSON)."""

PARTITION_AFTER_PARTITION = {"use-table-distribution-and-ordering": "false", "fanout-enabled": "false"}
"""Options of a writer, if each task has its rows in the order of their partitions.

The task then has one open file. Otherwise it has one for each partition, whose buffers would fill the JVM's heap. Spark
raises an error if a task returns to an earlier partition."""


def overwrite(
    rows: DataFrame,
    name: str,
    where: Column,
    snapshot: int | None,
    batch: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
) -> None:
    """Replace the rows that meet a condition. Iceberg rejects it if others have written such rows since `snapshot`.

    Args:
        rows: the new rows, all of which must meet the condition.
        name: the table's full, quoted name.
        where: the condition for the rows to replace.
        snapshot: id of the snapshot that the caller read; None if the table was empty.
        batch: an id of the commit, stored in the summary of its snapshot (`BATCH_PROPERTY`); None to store none.
        options: further options of Spark's writer.

    Raises:
        PySparkException: the error of Spark or the catalogue. Only the table shows whether the rows were committed.
    """
    writer = rows.writeTo(name).option("isolation-level", "serializable").options(**options or {})
    if batch is not None:
        writer = writer.option(f"snapshot-property.{BATCH_PROPERTY}", batch)
    if snapshot is not None:  # without one, Iceberg validates against all of the table's history
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    writer.overwrite(where)


@lru_cache(16)  # a session's catalogue does not change
def _settings(spark: SparkSession, catalogue: str) -> dict[str, str]:
    """Return the session's settings of a catalogue, without their prefix."""
    prefix = f"spark.sql.catalog.{catalogue}."
    return {key.removeprefix(prefix): value for key, value in spark.conf.getAll.items() if key.startswith(prefix)}


def _open_catalogue(name: str, settings: Mapping[str, str]) -> Catalog:
    """Open a Spark catalogue by pyiceberg, with the session's settings of it."""
    catalogue_type, uri = settings.get("type"), settings.get("uri", "")
    if catalogue_type == "jdbc":
        uri = _sqlalchemy_url(uri, settings) or ""
    if catalogue_type not in ("jdbc", "rest") or not uri:
        raise ConfigurationError(
            f"the catalogue {name} is of type {catalogue_type!r} at {settings.get('uri', '')!r}; it must be of type "
            "jdbc on SQLite or Postgres, or of type rest: set lake.catalog_uri"
        )
    return open_iceberg(name, uri, settings)


def _sqlalchemy_url(uri: str, settings: Mapping[str, str]) -> str | None:
    """Return SQLAlchemy's URL for a JDBC URL; None if it is neither SQLite nor Postgres."""
    if uri.startswith(_SQLITE):
        return f"sqlite:///{uri.removeprefix(_SQLITE)}"
    if not uri.startswith(_POSTGRES):
        return None
    user, password = (quote(settings.get(f"jdbc.{part}", ""), safe="") for part in ("user", "password"))
    host_and_database = uri.removeprefix(f"{_POSTGRES}//")
    return f"postgresql+psycopg://{user}{f':{password}' if password else ''}{'@' if user else ''}{host_and_database}"
