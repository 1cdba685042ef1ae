"""Connectors as data sources of Spark, `spark.read.format("lakesync_TYPE")`, for polls and notebooks.

One class serves every connector type, also those of users. Settings with their secrets are attributes of the class,
which Spark sends to its Python processes as a pickle. They are not options, which Spark's pages show.
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


class SourceSettings(NamedTuple):
    """The settings of a registered data source."""

    open_source: OpenSource
    configs: tuple[ConnectorConfig, ...] = ()
    """The connectors that can be read by name."""
    work: PollWork | None = None
    """The poll that the data source reads; None: a notebook reads connectors by name."""


class ConnectorSource(DataSource):
    """The connectors of one type. Options: `connector`, `gateway` if several have that name, and `path` or `table`."""

    format_name: ClassVar[str]
    settings: ClassVar[SourceSettings]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def schema(self) -> str:
        """Return the columns: those of `landing` for a poll, otherwise `row_id` and the table's known columns."""
        if self.settings.work is not None:
            return LANDED_COLUMNS
        schema = self._table().schema()
        return ", ".join(f"`{name}` {kind}" for name, kind in _columns(schema))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 Spark passes the one above
        """Return the reader of a poll or of one table."""
        return PollReader(self.settings.work) if self.settings.work is not None else self._table()

    def _table(self) -> TableReader:
        name, gateway = self.options.get("connector"), self.options.get("gateway")
        table = self.options.get("path") or self.options.get("table")
        found = [
            config for config in self.settings.configs if config.name == name and gateway in (None, config.gateway)
        ]
        if len(found) != 1:
            known = ", ".join(f"{config.gateway}/{config.name}" for config in self.settings.configs)
            raise NotFoundError(
                f"connector {name!r} of gateway {gateway!r} is not registered here, or several: {known}"
            )
        if table is None:
            raise ConfigurationError("no table is named: use .load(TABLE)")
        return TableReader(self.settings.open_source, found[0], table)


class PollReader(DataSourceReader):
    """Reads the rows that a poll lands."""

    def __init__(self, work: PollWork) -> None:
        """Store the poll.

        Args:
            work: the poll.
        """
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the poll, one for each task."""
        return self._work.parts()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        assert isinstance(partition, Part)
        return self._work.read(partition)


class TableReader(DataSourceReader):
    """Reads all rows of one table, in several parts if the source can divide it."""

    def __init__(self, open_source: OpenSource, config: ConnectorConfig, table: str) -> None:
        """Store what is read.

        Args:
            open_source: opens the connector's source.
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
            whole = source.split(self._table, None) if isinstance(source, ParallelSource) else None
        return [InputPartition(piece) for piece in (whole.parts if whole is not None else [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
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
        kind: the connector type.
        configs: the connectors, secrets in plain text.
    """
    _register(spark, format_of(kind.descriptor.type), SourceSettings(kind.open_source, tuple(configs)))


def read_poll(spark: SparkSession, work: PollWork) -> DataFrame:
    """Return the rows that a poll's tasks read: rows of `landing`, and reports. Each evaluation polls the source again.

    Each connector has its own format name, because runs share a session, and a plan finds its source by name.

    Args:
        spark: a session.
        work: the poll.
    """
    config = work.config
    own = hashlib.sha256(msgspec.json.encode((config.gateway, config.name))).hexdigest()
    name = f"{format_of(config.type)}_{own}"
    _register(spark, name, SourceSettings(work.open_source, work=work))
    return spark.read.format(name).load()


def format_of(kind: str) -> str:
    """Return the name of the format of a connector type."""
    return f"lakesync_{kind}"


def _register(spark: SparkSession, name: str, settings: SourceSettings) -> None:
    # a class created here is pickled with its attributes; a class of this module would be imported without them
    made = type("RegisteredSource", (ConnectorSource,), {"format_name": name, "settings": settings})
    spark.dataSource.register(made)


def _columns(schema: TableSchema | None) -> list[tuple[str, str]]:
    """Return names and Spark types of the columns."""
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
