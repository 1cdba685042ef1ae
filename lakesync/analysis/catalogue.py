"""Opens the lake's Iceberg catalogue by pyiceberg, and reads its tables and the bounds of their files.

`LakeReader` loads each table once, so that a query sees one version of it. The table `deltas` has the history: all
deltas (changes of rows). A state table has the current rows of one synced table. A gateway is one app's stream of
changes, and an arrival its timestamp of a push. A flush copies new deltas from the staging store (the gateways'
database) to `deltas`, and a merge applies them to the state tables. A namespace is Iceberg's, like a schema in
Postgres. The other modules of `lakesync.analysis` and `lakehouse` use this module. pyiceberg is imported when a
function is called, because it is slow to import, and neither Dagster's code location nor every task of Spark needs it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from lakesync.config.iceberg_catalogue import catalogue_settings, catalogue_uri, pyiceberg_properties
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.secrets import without_password

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from lakesync.config import Config

MARKS_PROPERTY = "lakesync.merged"
"""Property of a state table: JSON, gateway → the arrival up to which its deltas are merged."""
NAMESPACE_PROPERTY = "lakesync.namespace."
"""Prefix of properties of the table `gateways`; a gateway id follows. The value is the namespace of its rows."""
UNFILLED_PROPERTY = "lakesync.unfilled"
"""Property of a state table: JSON list of columns that were added and are not filled in older rows yet."""
CHECKPOINT_TAG = "cut-"
"""Prefix of the tags of snapshots from which a checkpoint, all rows of a gateway at one arrival, was made;
`GATEWAY-ARRIVAL` follows."""

_LOCAL_FILE_IO = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
"""Opens local files without pyarrow, whose import takes 80 MiB. Metadata can be read without it; a scan imports it."""


def open_catalogue(config: Config) -> Catalog:
    """Open the Iceberg catalogue that `[lake]` names.

    Raises:
        LakeUnavailableError: it is a REST catalogue that does not answer, or a file that is not a database.
    """
    import requests
    from pyiceberg.exceptions import RESTError
    from sqlalchemy.exc import SQLAlchemyError

    lake = config.lake
    try:
        return open_iceberg(
            lake.catalog, catalogue_uri(config), {"warehouse": lake.warehouse, **catalogue_settings(config)}
        )
    except (SQLAlchemyError, RESTError, requests.ConnectionError, requests.Timeout) as error:
        raise _unavailable(config, error) from error


def open_iceberg(name: str, uri: str, settings: Mapping[str, str]) -> Catalog:
    """Open an Iceberg catalogue with the settings of Spark's catalogue. Does not connect to a database yet.

    `lakehouse.table_access`, which has a Spark session instead of the configuration, calls it too.

    Args:
        name: the catalogue's name in Spark.
        uri: `http(s)://…` of a REST catalogue, or a database URL of SQLAlchemy.
        settings: the settings below `spark.sql.catalog.NAME.`. S3 settings that they omit come from the AWS variables,
            as in Spark's tasks.

    Raises:
        RESTError, requests.ConnectionError, requests.Timeout: the REST catalogue responds with an error, or not at all.
    """
    properties = _s3_variables() | pyiceberg_properties(settings)
    properties["warehouse"] = settings.get("warehouse", "")
    if properties["warehouse"].startswith("file:"):
        properties |= _LOCAL_FILE_IO
    if uri.startswith(("http://", "https://")):
        from lakesync.wire.compat_pyiceberg import BoundedRestCatalog

        return BoundedRestCatalog(name, uri=uri, **properties)
    from pyiceberg.catalog.sql import SqlCatalog

    from lakesync.wire.sqlalchemy_limits import with_limits

    return SqlCatalog(name, uri=with_limits(uri), init_catalog_tables="false", **properties)


def may_have_catalogue(config: Config) -> bool:
    """Return False if the catalogue is a file that the first flush has not created yet."""
    _, is_file, path = config.lake.catalog_uri.partition("sqlite:///")
    return not is_file or (Path(path).is_file() and Path(path).stat().st_size > 0)


class UnreadableTableError(LakeUnavailableError):
    """The catalogue has a table whose metadata cannot be read, for example because the lake was moved."""


class LakeReader:
    """The lake's tables at one moment: each is loaded at most once. Use it as a context manager."""

    def __init__(self, config: Config) -> None:
        """Open the catalogue of a configuration.

        Raises:
            LakeUnavailableError: as for `open_catalogue`.
        """
        self._config = config
        self.system_namespace = config.lake.system_namespace
        """The Iceberg namespace of `deltas`, `rejected` and `gateways`."""
        self.namespaces = config.namespaces
        """The Iceberg namespaces of the state tables: a shared one, and those that gateways have for themselves."""
        self._may_exist = may_have_catalogue(config)
        self._catalogue = open_catalogue(config)
        self._loaded: dict[tuple[str, str], Table] = {}
        """`(namespace, table)` → the table, as it was first read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._catalogue.close()

    @cached_property
    def state_tables(self) -> dict[str, tuple[str, str]]:
        """Qualified name of each state table → its namespace and name.

        Qualified names are `TABLE`, or `NAMESPACE.TABLE` for a table in a gateway's own namespace.

        Raises:
            LakeUnavailableError: there is no catalogue.
        """
        namespaces, tables = self.namespaces, {}
        for namespace in (namespaces.shared, *namespaces.declared):
            for name in sorted(self._names(namespace)):
                tables[namespaces.table_name(namespace, name)] = (namespace, name)
        return tables

    @property
    def deltas(self) -> Table | None:
        """The history of all deltas; None before the first flush."""
        return self._system_table("deltas")

    @property
    def rejected(self) -> Table | None:
        """The table of current values of rows that do not fit their column; None if there never was one."""
        return self._system_table("rejected")

    @property
    def gateways(self) -> Table | None:
        """The table with the configuration of gateways; None before the first checkpoint."""
        return self._system_table("gateways")

    def state_table(self, qualified: str) -> Table | None:
        """Return a state table by its qualified name; None if it does not exist."""
        return self._load(*self.state_tables[qualified]) if qualified in self.state_tables else None

    def state_table_of(self, gateway: str, table: str) -> Table | None:
        """Return the state table with a gateway's rows of `table`; None if it does not exist."""
        return self.state_table(self.namespaces.table_name(self.namespaces.of(gateway), table))

    def current_snapshot_of(self, namespace: str, name: str) -> int | None:
        """Return the id of the current snapshot of any table of the lake; None for a table without snapshots."""
        snapshot = self._load(namespace, name).current_snapshot() if name in self._names(namespace) else None
        return snapshot.snapshot_id if snapshot is not None else None

    def _system_table(self, name: str) -> Table | None:
        """Return a table of the system namespace; None if it does not exist."""
        space = self.system_namespace
        return self._load(space, name) if name in self._names(space) else None

    def _load(self, namespace: str, name: str) -> Table:
        """Return a table, which is loaded at its first use only.

        Raises:
            UnreadableTableError: the metadata of the table cannot be read.
        """
        if (namespace, name) not in self._loaded:
            try:
                table = self._catalogue.load_table((namespace, name))
            except FileNotFoundError as error:
                raise UnreadableTableError(
                    f"the catalogue names a file of the lake's table {namespace}.{name} that does not exist ({error}). "
                    "Iceberg stores absolute paths: if the data folder was moved, put it back at its old path"
                ) from error
            except OSError as error:
                raise UnreadableTableError(
                    f"the table {namespace}.{name} of the lake cannot be read: {str(error).rstrip('.')}; check that "
                    "its storage can be reached with the settings and credentials of this process"
                ) from error
            self._check_not_copied(table)
            self._loaded[namespace, name] = table
        return self._loaded[namespace, name]

    def _check_not_copied(self, table: Table) -> None:
        """Raise UnreadableTableError if this catalogue is a copy, and the data folder of its table has the original.

        The pipelines of both catalogues would write the same files, and each would delete those of the other.
        """
        _, is_file, catalogue = self._config.lake.catalog_uri.partition("sqlite:///")
        _, is_local, location = table.location().partition("file://")
        if not is_file or not is_local:
            return
        folder = Path(location).parent.parent.parent  # a table is in FOLDER/warehouse/NAMESPACE/NAME
        original = folder / Path(catalogue).name
        if original.is_file() and not original.samefile(catalogue) and _has_table_at(original, table.location()):
            raise UnreadableTableError(
                f"the catalogue {catalogue} is a copy of {original}: the files of its tables are in {folder}, "
                "because Iceberg stores absolute paths. To restore a backup, put catalogue and warehouse at their old "
                "path; to try one out, use another machine"
            )

    def _names(self, namespace: str) -> list[str]:
        """Return the names of a namespace's tables; empty if there is no such namespace."""
        import requests
        from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
        from sqlalchemy.exc import SQLAlchemyError

        if not self._may_exist:  # a connection to SQLite would create an empty file
            raise _unavailable(self._config)
        try:
            return [name for *_, name in self._catalogue.list_tables(namespace)]
        except NoSuchNamespaceError:
            return []
        except (SQLAlchemyError, RESTError, requests.ConnectionError, requests.Timeout) as error:
            if self._has_no_tables_yet():
                return []
            raise _unavailable(self._config, error) from error

    def _has_no_tables_yet(self) -> bool:
        """Return whether the catalogue is a database that can be read, and in which no catalogue was created yet."""
        from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
        from sqlalchemy import inspect
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return isinstance(self._catalogue, SqlCatalog) and not inspect(self._catalogue.engine).has_table(
                IcebergTables.__tablename__
            )
        except SQLAlchemyError:
            return False


def merge_marks(properties: Mapping[str, str]) -> dict[str, int]:
    """Return gateway → the arrival up to which all of its deltas are merged into a state table."""
    marks: dict[str, int] = json.loads(properties.get(MARKS_PROPERTY, "{}"))
    return marks


def unfilled_columns(properties: Mapping[str, str]) -> list[str]:
    """Return the columns of a state table that were added later and are not filled in older rows yet."""
    columns: list[str] = json.loads(properties.get(UNFILLED_PROPERTY, "[]"))
    return columns


def checkpoint_snapshots(table: Table) -> dict[str, dict[int, int]]:
    """Return gateway → arrival of a checkpoint → id of the state table's snapshot with exactly that state."""
    snapshots: dict[str, dict[int, int]] = {}
    for name, ref in table.metadata.refs.items():
        gateway, _, arrival = name.removeprefix(CHECKPOINT_TAG).rpartition("-")
        if name.startswith(CHECKPOINT_TAG) and arrival.isdecimal():
            snapshots.setdefault(gateway, {})[int(arrival)] = ref.snapshot_id
    return snapshots


def column_bounds(table: Table, file: DataFile, column: str) -> tuple[str | int | None, str | int | None]:
    """Return the lower and upper bound of a column in a data file, as its manifest records them.

    Args:
        table: the file's table.
        file: a data file.
        column: a column of strings or integers. Bounds of long strings may be truncated, unless the table's property
            `write.metadata.metrics.column.COLUMN` is `full`.

    Returns:
        The bounds; None for a bound that was not recorded.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(column)
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    iceberg_type = field.field_type
    assert isinstance(iceberg_type, PrimitiveType)
    return (
        None if low is None else from_bytes(iceberg_type, low),
        None if high is None else from_bytes(iceberg_type, high),
    )


def _has_table_at(catalogue: Path, location: str) -> bool:
    """Return whether a catalogue on SQLite names a table in a folder; False if the file is no catalogue."""
    query = "SELECT 1 FROM iceberg_tables WHERE substr(metadata_location, 1, ?) = ?"
    with closing(sqlite3.connect(f"{catalogue.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute(query, (len(location) + 1, f"{location}/")).fetchone() is not None
        except sqlite3.DatabaseError:
            return False


def _s3_variables() -> dict[str, str]:
    """Return pyiceberg's settings for S3 from the variables that AWS's own tools read."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    variables = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL"), "s3.region": region}
    return {key: value for key, value in variables.items() if value}


def _unavailable(config: Config, error: Exception | None = None) -> LakeUnavailableError:
    """Return the error for a catalogue that does not exist or does not answer, without its password.

    Args:
        config: names the catalogue.
        error: why it cannot be read; None if it does not exist.
    """
    location = config.lake.catalog_uri.rpartition("@")[2]
    if error is None:
        return LakeUnavailableError(
            f"there is no Iceberg catalogue at {location}; name the data folder of a `lakesync up` with --data, or set "
            "LAKESYNC_LAKE_CATALOG_URI"
        )
    cause = str(getattr(error, "orig", None) or error).partition("\n")[0]
    return LakeUnavailableError(
        f"the Iceberg catalogue at {location} cannot be read: {without_password(cause)}; start its server, or correct "
        "[lake] catalog_uri"
    )
