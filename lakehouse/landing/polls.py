"""Polls one connector, from its source to its gateway, or replays what landed on past days.

The asset of the connector's tables calls it.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.landing.delivery import Delivery, DeliveryReport
from lakehouse.landing.landings import LakeLanding, Polled
from lakesync.connectors import Connectors
from lakesync.connectors.polling import IngestSettings, PollReport, TableReport
from lakesync.model.errors import LakeSyncError, LakeUnavailableError, NotFoundError, StagingUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import date

    from pyspark.sql import SparkSession

    from lakehouse.landing.gateway_intake import OpenIntake
    from lakehouse.table_definitions import LakeNames
    from lakesync.config import Config
    from lakesync.connectors.source import Table
    from lakesync.staging.store.pipeline import FlushStore


class Connection(NamedTuple):
    """The connections that a poll needs."""

    config: Config
    spark: SparkSession
    names: LakeNames
    store: FlushStore
    now_ms: Callable[[], int]
    """Server wall time in milliseconds, by the gateways' clock."""
    open_intake: OpenIntake


@dataclass
class TablePoll:
    """The result of a poll or replay for one table."""

    table: str
    read: TableReport | None = None
    """What was read; None in a replay."""
    delivered: DeliveryReport = field(default_factory=DeliveryReport)
    error: LakeSyncError | None = None
    """Why it was not read or pushed completely. The next poll continues from there."""


@dataclass
class ConnectorPoll:
    """The result of a poll or replay."""

    tables: list[TablePoll]
    report: PollReport = field(default_factory=PollReport)

    @property
    def errors(self) -> list[LakeSyncError]:
        """Return the errors of its tables, each once."""
        found = {str(each.error): each.error for each in self.tables if each.error is not None}
        return list(found.values())


def poll_connector(
    connection: Connection, gateway: str, name: str, tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Read the changes at a connector's source, land them, and push the deltas. Tables fail independently.

    Args:
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.
        tables: the tables to poll; None: all.

    Raises:
        NotFoundError: there is no such connector.
        ConfigurationError: its secrets cannot be read.
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached.
    """
    with ExitStack() as stack:
        polled, landing, delivery, ingest = _open(stack, connection, gateway, name)
        report = landing.poll(ingest, tables)
        done = ConnectorPoll([], report)
        for table, read in zip(polled.tables, report.tables, strict=True):
            if tables is None or table.name in tables:
                done.tables.append(_deliver(delivery, table, read))
        return done


def replay_connector(
    connection: Connection, gateway: str, name: str, days: Sequence[date], tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Push the deltas of the landings of past days again, without a call to the source.

    Args:
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.
        days: UTC days of landing.
        tables: the tables whose deltas are pushed; None: all.

    Raises:
        As `poll_connector`.
    """
    with ExitStack() as stack:
        polled, _, delivery, _ = _open(stack, connection, gateway, name)
        done = ConnectorPoll([])
        for table in polled.tables:
            if tables is not None and table.name not in tables:
                continue
            each = TablePoll(table.name)
            done.tables.append(each)
            try:
                each.delivered = delivery.replay(table, days)
            except (LakeUnavailableError, StagingUnavailableError):
                raise
            except LakeSyncError as error:
                each.error = error
        return done


def _open(
    stack: ExitStack, connection: Connection, gateway: str, name: str
) -> tuple[Polled, LakeLanding, Delivery, IngestSettings]:
    config, spark, names, store, now_ms, open_intake = connection
    stored = next((each for each in store.connectors(gateway) if each.name == name), None)
    if stored is None or stored.ingest is None:
        raise NotFoundError(f"gateway {gateway!r} has no connector {name!r} that is polled: register it with `ingest`")
    types = Connectors.configured(config)
    opened = types.open(gateway, stored)
    kind = types.find(stored.type)
    assert kind is not None
    source = stack.enter_context(closing(kind.open_source(opened)))
    ingest = IngestSettings.of(stored.ingest)
    polled = Polled(opened, kind.open_source, source.tables)
    landing = LakeLanding(spark, polled, now_ms, names)
    delivery = Delivery(
        landing,
        open_intake,
        gateway,
        lambda: store.request_flush(gateway),
        chunk=ingest.chunk_size,
    )
    return polled, landing, delivery, ingest


def _deliver(delivery: Delivery, table: Table, read: TableReport) -> TablePoll:
    """Push what has landed of a table, also if reading it failed."""
    done = TablePoll(table.name, read, error=read.error)
    try:
        done.delivered = delivery.deliver(table)
    except (LakeUnavailableError, StagingUnavailableError):
        raise
    except LakeSyncError as error:
        done.error = done.error or error
    return done
