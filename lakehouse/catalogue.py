"""Opens tables in a Spark session's catalogue by pyiceberg, to read their metadata in this process. It never commits.

Spark Connect has no interface to a table's snapshots and files; pyiceberg has. All modules of `lakehouse` that plan
which files to read call it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakehouse.data_files import is_readable
from lakesync.analysis.catalogue import open_iceberg
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import SparkSession

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
    opened = _opened(catalogue, _settings(spark, catalogue))
    try:
        yield opened.load_table((namespace, table))
    finally:
        opened.close()


def current_snapshot(table: Table) -> int | None:
    """Return the id of a table's newest snapshot; None if nothing was ever written."""
    found = table.current_snapshot()
    return found.snapshot_id if found is not None else None


def planned_files(table: Table, snapshot: int | None, where: BooleanExpression | None = None) -> list[FileScanTask]:
    """Return the data files of a snapshot that may have rows which meet a condition, with their delete files.

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
    found = list(table.scan(where if where is not None else AlwaysTrue(), snapshot_id=snapshot).plan_files())
    for task in found:
        for file in (task.file, *task.delete_files):
            if not is_readable(file.file_path) or file.file_format.value != "PARQUET":
                raise ConfigurationError(
                    f"tasks cannot open the file {file.file_path} of {'.'.join(table.name())}: keep the warehouse in a "
                    "folder or on S3, and its files in Parquet"
                )
    return found


@lru_cache(16)  # a session's catalogue does not change
def _settings(spark: SparkSession, catalogue: str) -> dict[str, str]:
    """Return the session's settings of a catalogue, without their prefix."""
    prefix = f"spark.sql.catalog.{catalogue}."
    return {key.removeprefix(prefix): value for key, value in spark.conf.getAll.items() if key.startswith(prefix)}


def _opened(name: str, settings: Mapping[str, str]) -> Catalog:
    """Open a Spark catalogue by pyiceberg, with the session's settings of it."""
    kind, uri = settings.get("type"), settings.get("uri", "")
    if kind == "jdbc":
        uri = _database(uri, settings) or ""
    if kind not in ("jdbc", "rest") or not uri:
        raise ConfigurationError(
            f"the catalogue {name} is of type {kind!r} at {settings.get('uri', '')!r}; it must be of type jdbc on "
            "SQLite or Postgres, or of type rest: set lake.catalog_uri"
        )
    return open_iceberg(name, uri, settings)


def _database(uri: str, settings: Mapping[str, str]) -> str | None:
    """Return SQLAlchemy's URL for a JDBC URL; None if it is neither SQLite nor Postgres."""
    if uri.startswith(_SQLITE):
        return f"sqlite:///{uri.removeprefix(_SQLITE)}"
    if not uri.startswith(_POSTGRES):
        return None
    user, password = (quote(settings.get(f"jdbc.{part}", ""), safe="") for part in ("user", "password"))
    place = uri.removeprefix(f"{_POSTGRES}//")
    return f"postgresql+psycopg://{user}{f':{password}' if password else ''}{'@' if user else ''}{place}"
