"""Reads and writes the schema snapshot: a file with the tables and connectors that are registered at gateways.

A gateway is one app's stream of changes; a connector is an external system that is polled into it. Dagster's code
location creates its assets from the file, so that it needs no connection to the staging store (the gateways' database),
which has the registrations. The schema sensor writes the file when they have changed. The steps of runs, which have a
connection, call `registered` instead.

A *state table* has the current rows of one synced table in the lake. It is in the Iceberg namespace that gateways
share, or in a gateway's own.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from lakesync.analysis.lags import StateTable
from lakesync.connectors import Connectors
from lakesync.connectors.polling import IngestSettings
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema
from lakesync.model.secrets import replace_private_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lakesync.adapters.deltas import TableSelection
    from lakesync.config import Config
    from lakesync.model.namespaces import Namespaces
    from lakesync.model.types import StoredConnector
    from lakesync.staging.store.pipeline import FlushStore, GatewayStore


class PolledConnector(msgspec.Struct, frozen=True):
    """A connector that is polled into a gateway."""

    gateway: str
    name: str
    type: str
    tables: tuple[str, ...]
    """The tables that its polls fill."""
    interval_ms: int
    """Milliseconds between two polls."""


class SchemaSnapshot(msgspec.Struct, frozen=True):
    """The registered tables and the polled connectors.

    Several gateways may register the same table. Its schema here has the columns of all of them (`join_schemas`).
    """

    tables: tuple[TableSchema, ...] = ()
    """The tables' schemas, sorted by name. A state table in a gateway's own namespace may have fewer columns."""
    gateways: dict[str, tuple[str, ...]] = {}
    """Table → ids of the gateways that registered it."""
    connectors: tuple[PolledConnector, ...] = ()
    """The polled connectors, sorted by gateway and name."""
    namespaces: dict[str, tuple[TableSchema, ...]] = {}
    """If gateways have their own namespaces: namespace → its tables, with the joined schemas of its gateways; `""` is
    the shared one."""
    first_day: str | None = None
    """The first UTC day of arrival, `YYYY-MM-DD`, if the configuration does not set the first partition. The schema
    sensor sets it."""

    @property
    def states(self) -> tuple[tuple[TableSchema, str], ...]:
        """Schema and namespace of each state table (the current rows of a table); `""` is the shared namespace."""
        by_namespace = self.namespaces or {"": self.tables}
        return tuple((schema, namespace) for namespace, tables in sorted(by_namespace.items()) for schema in tables)

    def state(self, table: str, namespace: str) -> TableSchema:
        """Return the schema of a state table; a schema without columns if none is registered.

        Args:
            table: the table's name.
            namespace: the table's namespace; empty for the shared one.
        """
        schemas = (schema for schema, of_namespace in self.states if (schema.table, of_namespace) == (table, namespace))
        return next(schemas, TableSchema(table, columns=()))

    def select(self, selection: TableSelection) -> tuple[TableSchema, ...]:
        """Return the schemas of the selected tables, in order of their names."""
        return tuple(each for each in self.tables if selection.has_table(each.table))

    def schema(self, table: str) -> TableSchema:
        """Return a table's schema; a schema without columns if none is registered."""
        return next((schema for schema in self.tables if schema.table == table), TableSchema(table, columns=()))


def merged_tables(snapshot: SchemaSnapshot, namespaces: Namespaces) -> list[StateTable]:
    """Return the state tables that a flush merges, for comparing how far each is merged.

    Args:
        snapshot: the registered tables.
        namespaces: the configured namespaces.
    """
    return [StateTable(schema.table, namespace or namespaces.shared) for schema, namespace in snapshot.states]


def registered(store: GatewayStore, own_namespaces: Mapping[str, str] = MappingProxyType({})) -> SchemaSnapshot:
    """Return a snapshot of what is registered now at all gateways of a staging store, without `first_day`.

    Args:
        store: the staging store.
        own_namespaces: gateway → its own namespace; gateways that are missing share one.
    """
    types = Connectors()
    joined: dict[str, TableSchema] = {}
    by_namespace: dict[str, dict[str, TableSchema]] = (
        {name: {} for name in ("", *own_namespaces.values())} if own_namespaces else {}
    )
    gateways: dict[str, tuple[str, ...]] = {}
    polled: list[PolledConnector] = []
    for gateway in sorted(store.gateways()):
        for table, version in sorted(store.gateway_config(gateway).schemas.items()):
            schemas_of_namespace = by_namespace.get(own_namespaces.get(gateway, ""), {})
            for schemas in (joined, schemas_of_namespace):
                schemas[table] = join_schemas(schemas[table], version.schema) if table in schemas else version.schema
            gateways[table] = (*gateways.get(table, ()), gateway)
        polled += _polled(gateway, store.connectors(gateway), types)
    return SchemaSnapshot(
        _by_name(joined),
        dict(sorted(gateways.items())),
        tuple(polled),
        {namespace: _by_name(tables) for namespace, tables in sorted(by_namespace.items())},
    )


def first_arrival_day(store: FlushStore) -> str | None:
    """Return the UTC day of the first accepted push, `YYYY-MM-DD`; None before it. The schema sensor calls it.

    Raises:
        StagingUnavailableError: the store cannot be reached.
    """
    return min((days[0].day for gateway in store.gateways() if (days := store.ledger(gateway))), default=None)


def join_schemas(first: TableSchema, second: TableSchema) -> TableSchema:
    """Join the schemas of one table at two gateways.

    A column that both have gets the type of the first. A value that does not fit it is null in the state table's typed
    column, and unchanged in its column `_cells`, which has all values as JSON. What destinations read, such as the
    source table, is that of the first too: a destination has one table for all gateways.

    Args:
        first: the schema of the gateway whose id sorts first.
        second: the schema whose further columns are added.
    """
    names = {column.name for column in first.columns}
    added = tuple(column for column in second.columns if column.name not in names)
    return msgspec.structs.replace(first, columns=(*first.columns, *added))


def read_snapshot(path: Path) -> SchemaSnapshot:
    """Read a snapshot from its file. Return an empty snapshot if there is no file yet.

    Raises:
        ConfigurationError: the file is not a schema snapshot.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=SchemaSnapshot)
    except FileNotFoundError:
        return SchemaSnapshot()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the schema snapshot {path} cannot be read: {error}; delete it, the schema sensor writes it again"
        ) from error


def write_snapshot(path: Path, snapshot: SchemaSnapshot) -> None:
    """Replace the file of a snapshot atomically.

    Args:
        path: the file's path.
        snapshot: the new snapshot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_private_file(path, msgspec.json.format(msgspec.json.encode(snapshot)))


def snapshot_file(config: Config) -> Path:
    """Return the path of a project's snapshot file."""
    return config.data_dir / "schemas.json"


def _by_name(tables: Mapping[str, TableSchema]) -> tuple[TableSchema, ...]:
    """Return the schemas in order of their tables' names."""
    return tuple(tables[table] for table in sorted(tables))


def _polled(gateway: str, connectors: Iterable[StoredConnector], types: Connectors) -> Iterator[PolledConnector]:
    """Yield the connectors of a gateway that are polled, with their tables."""
    for each in connectors:
        connector_type = types.find(each.type)
        tables = connector_type.polled_tables(each.settings, each.ingest) if connector_type is not None else ()
        if tables:
            interval = IngestSettings.of(each.ingest or {}).interval_ms
            yield PolledConnector(gateway, each.name, each.type, tables, interval)
