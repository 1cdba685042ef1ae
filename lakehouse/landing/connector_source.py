"""Makes connectors readable as Spark data sources: `spark.read.format("lakesync_TYPE")`.

A connector is an external system that is polled, such as a Jira site. One class, `ConnectorSource`, serves every
connector type, also the types that users register. Polls (`lakehouse.landing.lake_landing`) call `read_poll`, notebooks
`register_connectors`. Spark's UI shows the options of a data source, and a connector's settings contain secrets. So the
settings are attributes of the class instead, which Spark sends to its Python processes as a pickle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from lakehouse.landing.poll_tasks import OpenSource, PollPlan
from lakehouse.landing.rows import LANDED_COLUMNS
from lakehouse.landing.task_messages import Part
from lakehouse.table_definitions import SPARK_TYPES
from lakehouse.task_runner import column_ddl
from lakesync.connectors.base import ConnectorConfig, ParallelSource, SourceRow, TablePart
from lakesync.model.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakesync.connectors.base import ConnectorType
    from lakesync.model.schema import TableSchema

_ARROW_TYPES = {"string": pa.string(), "double": pa.float64(), "boolean": pa.bool_()}
"""Spark type → Arrow type."""
_encode = msgspec.json.Encoder().encode


class SourceSettings(NamedTuple):
    """What a registered data source reads: either one poll, or connectors by name."""

    open_source: OpenSource
    """Opens the source of a connector: its external system."""
    configs: tuple[ConnectorConfig, ...] = ()
    """The connectors that a notebook can read by name."""
    plan: PollPlan | None = None
    """The poll to read; None if connectors are read by name."""


class ConnectorSource(DataSource):
    """The data source of all connectors of one type, or of one poll.

    Options, which a poll does not have: `connector`, the connector's name; `gateway`, if connectors of several gateways
    have that name; the table's name as `path`, which `load(TABLE)` sets, or as `table`. `_register` makes a subclass
    for each registration, with its own `format_name` and `settings`.
    """

    format_name: ClassVar[str]
    settings: ClassVar[SourceSettings]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def schema(self) -> str:
        """Return the columns: those of `landing` for a poll, otherwise `row_id` and the table's known columns."""
        if self.settings.plan is not None:
            return column_ddl(LANDED_COLUMNS)
        schema = self._table().schema()
        return ", ".join(f"`{name}` {kind}" for name, kind in _columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 Spark passes the result of `schema`
        """Return the reader of a poll or of one table."""
        return PollReader(self.settings.plan) if self.settings.plan is not None else self._table()

    def _table(self) -> TableReader:
        """Return the reader of the table that the options name."""
        name, gateway = self.options.get("connector"), self.options.get("gateway")
        table = self.options.get("path") or self.options.get("table")
        # without the option `gateway`, connectors of all gateways match
        matching = [
            config for config in self.settings.configs if config.name == name and gateway in (None, config.gateway)
        ]
        if len(matching) != 1:
            known = ", ".join(f"{config.gateway}/{config.name}" for config in self.settings.configs)
            raise NotFoundError(
                f"{len(matching)} connectors have the name {name!r} and the gateway {gateway!r}; choose one of: {known}"
            )
        if table is None:
            raise ConfigurationError("no table is named: use .load(TABLE)")
        return TableReader(self.settings.open_source, matching[0], table)


class PollReader(DataSourceReader):
    """Reads the rows that a poll writes to `landing`."""

    def __init__(self, plan: PollPlan) -> None:
        """Store the poll.

        Args:
            plan: the poll to read.
        """
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the poll, one for each task."""
        return self._plan.parts()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        assert isinstance(partition, Part)
        return self._plan.read(partition)


class TableReader(DataSourceReader):
    """Reads all rows of one table, in several parts if the source can divide it."""

    def __init__(self, open_source: OpenSource, config: ConnectorConfig, table: str) -> None:
        """Create the reader.

        Args:
            open_source: opens the connector's source (the external system).
            config: the connector.
            table: the table's name.
        """
        self._open_source = open_source
        self._config = config
        self._table = table

    def schema(self) -> TableSchema | None:
        """Return the table's schema; None if its source does not know it.

        Raises:
            NotFoundError: the connector has no such table.
        """
        with closing(self._open_source(self._config)) as source:
            for table in source.tables:
                if table.name == self._table:
                    return table.schema()
            known = ", ".join(table.name for table in source.tables)
        raise NotFoundError(f"connector {self._config.name!r} has no table {self._table!r}: it has {known}")

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts: one, or several of a large table."""
        with closing(self._open_source(self._config)) as source:
            # without a cursor (None), a source returns all rows
            division = source.split(self._table, None) if isinstance(source, ParallelSource) else None
        return [InputPartition(piece) for piece in (division.parts if division is not None else [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        schema = self.schema()
        for rows in self._rows(partition.value):
            yield _batch(rows, schema)

    def _rows(self, piece: TablePart | None) -> Iterator[Sequence[SourceRow]]:
        """Yield the rows of one part, or, if the source cannot be divided, of the whole table."""
        if piece is not None:
            yield from piece.pages()
            return
        with closing(self._open_source(self._config)) as source:
            for page in source.changes(self._table, None):
                yield page.rows


def register_connectors(spark: SparkSession, connector_type: ConnectorType, configs: Sequence[ConnectorConfig]) -> None:
    """Make connectors of one type readable as `spark.read.format("lakesync_TYPE")` in a session.

    Args:
        spark: an open Spark session.
        connector_type: the connector type.
        configs: the connectors, secrets in plain text.
    """
    _register(
        spark, format_of(connector_type.descriptor.type), SourceSettings(connector_type.open_source, tuple(configs))
    )


def read_poll(spark: SparkSession, plan: PollPlan) -> DataFrame:
    """Return what a poll's tasks read: rows for `landing`, and reports. Each evaluation polls the source again.

    Each connector gets a format name of its own, because concurrent polls may share the session, and Spark looks up
    data sources by format name.

    Args:
        spark: an open Spark session.
        plan: the poll.
    """
    config = plan.config
    digest = hashlib.sha256(msgspec.json.encode((config.gateway, config.name))).hexdigest()
    name = f"{format_of(config.type)}_{digest}"
    _register(spark, name, SourceSettings(plan.open_source, plan=plan))
    return spark.read.format(name).load()


def format_of(connector_type: str) -> str:
    """Return the format name under which Spark reads connectors of a type. A poll adds a digest of its connector."""
    return f"lakesync_{connector_type}"


def _register(spark: SparkSession, name: str, settings: SourceSettings) -> None:
    """Register the source with Spark under a name."""
    # A class that is created at run time is pickled with its attributes. A class of this module would be pickled as a
    # reference, and imported in the other process without the attributes.
    registered = type("RegisteredSource", (ConnectorSource,), {"format_name": name, "settings": settings})
    spark.dataSource.register(registered)


def _columns(schema: TableSchema | None) -> list[tuple[str, str]]:
    """Return names and Spark types of a table's columns; without a schema, all columns are one JSON text."""
    if schema is None:
        return [("row_id", "string"), ("columns", "string")]
    return [("row_id", "string"), *((column.name, SPARK_TYPES[column.type]) for column in schema.columns)]


def _batch(rows: Sequence[SourceRow], schema: TableSchema | None) -> pa.RecordBatch:
    """Return rows as an Arrow batch with the columns that `_columns` returns for the schema."""
    columns = _columns(schema)
    values: list[list[Any]] = [[row.row_id for row in rows]]
    if schema is None:
        values.append([_encode(row.columns).decode() for row in rows])
    else:
        values += [[_value(row.columns, name, spark_type) for row in rows] for name, spark_type in columns[1:]]
    arrays = [pa.array(each, _ARROW_TYPES[spark_type]) for each, (_, spark_type) in zip(values, columns, strict=True)]
    return pa.record_batch(arrays, names=[name for name, _ in columns])


def _value(row: Mapping[str, Any], name: str, spark_type: str) -> Any:
    """Return a column's value as its Spark type takes it; objects and lists become JSON text."""
    value = row.get(name)
    if value is None:
        return None
    if spark_type == "double":
        return float(value)
    return value if spark_type == "boolean" or isinstance(value, str) else _encode(value).decode()
