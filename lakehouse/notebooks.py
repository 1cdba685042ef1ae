"""Makes connectors' sources and staging's unflushed log readable in a Spark session, for notebooks.

A connector polls an external system, its source. Staging's log has the deltas (changes of rows) that gateways have
accepted and that are not in the lake yet. Spark reads a data source by the name of its *format*. The notebooks that
`lakesync` ships, and users' own, call `register_sources`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import structlog
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import lakesync.config
from lakehouse.gateway_connections import pipeline_store
from lakehouse.history.decoding import decode_log
from lakehouse.landing.connector_source import format_of, register_connectors
from lakehouse.table_definitions import DELTAS_FIELDS
from lakesync.cli.data_folder import with_running_services
from lakesync.connectors import Connectors
from lakesync.model.errors import ConfigurationError
from lakesync.staging.log_reader import LogRange, log_rows
from lakesync.staging.records import Backlog, LogSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from lakesync.config import Config
    from lakesync.connectors import ConnectorConfig
    from lakesync.staging.store.pipeline import FlushStore

_log = structlog.get_logger(__name__)


def project_config() -> Config:
    """Return the project's configuration, with the services and secrets of a `lakesync up` on its data folder.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    return with_running_services(lakesync.config.load())


def register_sources(spark: SparkSession, config: Config) -> list[str]:
    """Register the connectors of all gateways as the format `lakesync_TYPE`, and the unflushed log as `lakesync_log`.

    Args:
        spark: the Spark session in which they become readable.
        config: the project's configuration.

    Returns:
        The names of the formats, for `spark.read.format`.

    Raises:
        StagingUnavailableError: staging cannot be reached.
        ConfigurationError: the gateway's URL or the service token is not configured.
    """
    types = Connectors.configured(config)
    configs_by_type: dict[str, list[ConnectorConfig]] = defaultdict(list)
    with pipeline_store(config) as store:
        register_log(spark, store)
        for gateway in store.gateways():
            for stored in store.connectors(gateway):
                try:
                    configs_by_type[stored.type].append(types.open(gateway, stored))
                except ConfigurationError as error:
                    _log.warning("connector_not_readable", gateway=gateway, connector=stored.name, error=str(error))
    for name, configs in configs_by_type.items():
        connector_type = types.find(name)
        assert connector_type is not None, "a connector of an unknown type cannot be opened"
        register_connectors(spark, connector_type, configs)
    return [*map(format_of, sorted(configs_by_type)), LOG_FORMAT]


LOG_FORMAT = "lakesync_log"
"""Name of the log's format."""
PUSHES_PER_TASK = 5_000
"""Number of pushes that one task decodes."""


class UnflushedLog(NamedTuple):
    """The unflushed log of one gateway in one shard (a staging store with some of the tables)."""

    source: LogSource
    """Where tasks find the log."""
    backlog: Backlog
    """The range of its unflushed pushes."""


class StagingLog(DataSource):
    """The unflushed deltas, with the columns of the history `deltas`. The option `gateway` selects one gateway."""

    logs: ClassVar[tuple[UnflushedLog, ...]]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return LOG_FORMAT

    def schema(self) -> str:
        """Return the columns of `deltas`. The batch id is empty."""
        return DELTAS_FIELDS

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 Spark passes the result of `schema`
        """Return the reader of the log."""
        gateway = self.options.get("gateway")
        return LogReader([log for log in self.logs if gateway in (None, log.backlog.gateway)])


class LogReader(DataSourceReader):
    """Reads the log, also while the gateway's process writes it."""

    def __init__(self, logs: Sequence[UnflushedLog]) -> None:
        """Store the logs to read."""
        self._logs = logs

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of pushes, one for each task. A push has a sequence number in the log."""
        partitions = []
        for source, backlog in self._logs:
            for first in range(backlog.flushed_seq + 1, backlog.last_seq + 1, PUSHES_PER_TASK):
                last = min(first + PUSHES_PER_TASK - 1, backlog.last_seq)
                log_range = LogRange(backlog.gateway, backlog.shard, backlog.epoch, first, last)
                partitions.append(InputPartition((source, log_range)))
        return partitions

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the deltas of a range of pushes."""
        if partition is None:  # Spark passes None if there are no partitions
            return
        source, log_range = partition.value
        unflushed = (row for row in log_rows(source, log_range) if row.body is not None)  # others are in the lake now
        yield from decode_log(unflushed, log_range, "")


def register_log(spark: SparkSession, store: FlushStore) -> None:
    """Register the log, up to its current end, as the data source `lakesync_log` of a session.

    Args:
        spark: an open Spark session.
        store: the staging store.
    """
    logs = tuple(UnflushedLog(store.log_source(backlog.shard), backlog) for backlog in store.backlog())
    # a class that is created at run time is pickled with its attributes, one of this module only as a reference
    spark.dataSource.register(type("RegisteredLog", (StagingLog,), {"logs": logs}))
