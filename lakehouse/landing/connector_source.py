"""Connectors as data sources of Spark: `spark.read.format("lakesync_TYPE")`, for polls and for notebooks.

One adapter serves every connector type, a user's own included. Spark sends the class to its Python processes as a
pickle, which shows in none of its pages: settings, and secrets with them, travel there and never in options.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from lakehouse.landing.poll_tasks import OpenSource, Part, PollWork
from lakehouse.landing.rows import LANDED_COLUMNS
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.source import ParallelSource, SourceRow, TablePart
from lakesync.model.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakesync.connectors.base import ConnectorType
    from lakesync.model.schema import TableSchema

_TYPES = {"string": "string", "number": "double", "boolean": "boolean", "json": "string", "null": "string"}
"""Schema type → Spark type."""
_ARROW_TYPES = {"string": pa.string(), "double": pa.float64(), "boolean": pa.bool_()}
_encode = msgspec.json.Encoder().encode


class Given(NamedTuple):
    """What the class of a data source has from its session."""

    open_source: OpenSource
    configs: tuple[ConnectorConfig, ...] = ()
    """The connectors that can be read by name."""
    work: PollWork | None = None
    """What a poll reads instead."""


class ConnectorSource(DataSource):
    """The connectors of one type. Options: `connector`, `gateway` where it is not clear, and `path` or `table`."""

    format_name: ClassVar[str]
    given: ClassVar[Given]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.format_name

    def schema(self) -> str:
        """The columns of `landing` in a poll; else `row_id` and the table's columns, as far as its schema is known."""
        if self.given.work is not None:
            return LANDED_COLUMNS
        schema = self._table().schema()
        return ", ".join(f"`{name}` {kind}" for name, kind in _columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 Spark passes the one above
        """What reads a poll's tables, or one table."""
        return PollReader(self.given.work) if self.given.work is not None else self._table()

    def _table(self) -> TableReader:
        name, gateway = self.options.get("connector"), self.options.get("gateway")
        table = self.options.get("path") or self.options.get("table")
        found = [config for config in self.given.configs if config.name == name and gateway in (None, config.gateway)]
        if len(found) != 1:
            known = ", ".join(f"{config.gateway}/{config.name}" for config in self.given.configs)
            raise NotFoundError(
                f"connector {name!r} of gateway {gateway!r} is not registered here, or several: {known}"
            )
        if table is None:
            raise ConfigurationError("no table is named: use .load(TABLE)")
        return TableReader(self.given.open_source, found[0], table)


class PollReader(DataSourceReader):
    """Reads what a poll lands."""

    def __init__(self, work: PollWork) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the work."""
        return self._work.parts()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One part."""
        assert isinstance(partition, Part)
        return self._work.read(partition)


class TableReader(DataSourceReader):
    """Reads all of one table, in parts where its source divides it."""

    def __init__(self, open_source: OpenSource, config: ConnectorConfig, table: str) -> None:
        self._open_source = open_source
        self._config = config
        self._table = table

    def schema(self) -> TableSchema | None:
        """The table's schema, as far as its source knows it.

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
        """One, or one a part of a large table."""
        with closing(self._open_source(self._config)) as source:
            whole = source.split(self._table, None) if isinstance(source, ParallelSource) else None
        return [InputPartition(piece) for piece in (whole.parts if whole is not None else [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        columns = _columns(self.schema())
        for rows in self._rows(partition.value):
            yield _batch(rows, columns)

    def _rows(self, piece: TablePart | None) -> Iterator[Sequence[SourceRow]]:
        if piece is not None:
            yield from piece.pages()
            return
        with closing(self._open_source(self._config)) as source:
            for page in source.changes(self._table, None):
                yield page.rows


def register_connectors(spark: SparkSession, kind: ConnectorType, configs: Sequence[ConnectorConfig]) -> None:
    """Make connectors of one type readable as `spark.read.format("lakesync_TYPE")` in a session.

    Args:
        spark: the session.
        kind: the type.
        configs: connectors of it, secrets in plain text.
    """
    _register(spark, format_of(kind.descriptor.type), Given(kind.open_source, tuple(configs)))


def read_poll(spark: SparkSession, work: PollWork) -> DataFrame:
    """Return what a poll's tasks read: rows of `landing`, and reports. Each evaluation asks the source again.

    The format has a name of the connector's own: runs share a session, and a plan looks its source up by name.

    Args:
        spark: a session.
        work: what the tasks do.
    """
    config = work.config
    own = hashlib.sha256(msgspec.json.encode((config.gateway, config.name))).hexdigest()
    name = f"{format_of(config.type)}_{own}"
    _register(spark, name, Given(work.open_source, work=work))
    return spark.read.format(name).load()


def format_of(kind: str) -> str:
    """The name of the format of a connector type."""
    return f"lakesync_{kind}"


def _register(spark: SparkSession, name: str, given: Given) -> None:
    # a class made here is pickled with its attributes; one that has a name in this module would be imported without
    made = type("RegisteredSource", (ConnectorSource,), {"format_name": name, "given": given})
    spark.dataSource.register(made)


def _columns(schema: TableSchema | None) -> list[tuple[str, str]]:
    """Names and Spark types."""
    if schema is None:
        return [("row_id", "string"), ("columns", "string")]
    return [("row_id", "string"), *((column.name, _TYPES[column.type]) for column in schema.columns)]


def _batch(rows: Sequence[SourceRow], columns: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    if [name for name, _ in columns] == ["row_id", "columns"]:
        values = [[row.row_id for row in rows], [_encode(row.columns).decode() for row in rows]]
    else:
        values = [[row.row_id for row in rows]]
        values += [[_value(row.columns, name, kind) for row in rows] for name, kind in columns[1:]]
    arrays = [pa.array(each, _ARROW_TYPES[kind]) for each, (_, kind) in zip(values, columns, strict=True)]
    return pa.record_batch(arrays, names=[name for name, _ in columns])


def _value(row: Mapping[str, Any], name: str, kind: str) -> Any:
    value = row.get(name)
    if value is None:
        return None
    if kind == "double":
        return float(value)
    return value if kind == "boolean" or isinstance(value, str) else _encode(value).decode()
