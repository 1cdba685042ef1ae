"""The server's metrics for Prometheus: counters that routes increment, and gauges that are read at each scrape.

`create_app` creates them. `gateway.routes.monitoring` serves them. A *gateway* is one app's stream of changes; a server
serves many. The gauges come from the staging store:

- The *log* of pushed deltas (changes of rows). The pipeline, or the server itself, *flushes* them: it moves them to the
  lake.
- *Marks*, small values by which the steps of the pipeline store how far they are. One mark is the pipeline's latest
  report, with its lags and *dead letters*: values, tables and jobs that were set aside, so that the others go on.

An *arrival* is the gateway's timestamp of a commit. A *destination table* has the current rows of a synced table, in a
database to which the server or the pipeline copies changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.client_tracker import GatewayLag
from lakesync.analysis.marks import DeadLetters, Report, report_in
from lakesync.flush import FlushQueue
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import wall_of
from lakesync.staging.records import Backlog

disable_created_metrics()  # type: ignore[no-untyped-call]  # it would double the number of series

log = structlog.get_logger("gateway")

_MAX_TABLE_LABELS = 1000
"""Number of tables with a label of their own; the others share the label `other`."""
_BUCKET_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of the histograms' buckets."""
_Values = Iterator[tuple[str, list[str], float]]
"""Metrics of `_GAUGES`, each with the values of its labels and its value."""


class Metrics:
    """All metrics of one server."""

    def __init__(
        self,
        backlog: Callable[[], list[Backlog]],
        marks: Callable[[], Mapping[str, str]],
        backpressure_limit: int,
        queue: Callable[[], FlushQueue | None] = lambda: None,
    ) -> None:
        """Create the registry and its metrics.

        Args:
            backlog: returns the size of the unflushed log by gateway and shard (a store with some of its tables).
            marks: returns staging's marks, name → value.
            backpressure_limit: unflushed bytes of a gateway and shard above which pushes are rejected.
            queue: returns the queue of work for destination tables after this server's own flushes; it returns None if
                the pipeline flushes.
        """
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, buckets=_BUCKET_SECONDS, registry=registry)
        self.requests = counter("lakesync_requests", "Answered requests", ["route", "method", "status"])
        self.seconds = histogram("lakesync_request_seconds", "Seconds from request to end of answer", ["route"])
        self.errors = counter("lakesync_errors", "Rejected and failed requests", ["code"])
        self.pushed = counter("lakesync_pushed_deltas", "Deltas accepted, repeats included")
        self.pulled = counter("lakesync_pulled_deltas", "Deltas sent in answers to pulls")
        self.actions = counter("lakesync_actions", "Answered actions by outcome", ["outcome"])
        # a checkpoint has all rows of a gateway for the first sync of a client, which gets them as frames
        self.checkpoints = counter("lakesync_checkpoints", "Started checkpoint streams")
        self.checkpoint_bytes = counter("lakesync_checkpoint_bytes", "Bytes of frames served")
        self.connections = gauge("lakesync_websocket_connections", "Open WebSocket connections")
        gauge(
            "lakesync_backpressure_limit_bytes",
            "Unflushed bytes of a gateway and shard above which pushes are rejected",
        ).set(backpressure_limit)
        self.connection_ends = counter(
            "lakesync_websocket_closes", "WebSocket connections ended, by close code", ["code"]
        )
        # a broadcast sends changes over a WebSocket without a request
        self.broadcast = counter("lakesync_broadcast_deltas", "Deltas sent as broadcasts")
        self.flushes = counter("lakesync_flushes", "Flushes by this server itself")
        self.flushed = counter("lakesync_flushed_deltas", "Deltas flushed by this server itself")
        self.flush_seconds = histogram("lakesync_flush_seconds", "Seconds of a flush by this server itself")
        self.flush_failures = counter(
            "lakesync_flush_failures", "Failed flushes by this server itself, which are retried"
        )
        # a destination's table has the current rows of a synced table in a database that follows the changes
        self.table_failures = counter(
            "lakesync_materialisation_failures",
            "Work for a destination's table that failed all its retries",
            ["table"],
        )
        self._backlog, self._marks, self._queue = backlog, marks, queue
        self.lags: Mapping[str, GatewayLag] = {}
        """Lag of the clients by gateway; the route sets it before each scrape."""
        registry.register(_GaugeCollector(self._read_gauges))
        self._tables: set[str] = set()
        """Tables with a label of their own."""
        self._by_request: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """Route, method and status → the metrics with these labels."""

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request to which a response was sent.

        Args:
            route: path template of the route.
            method: HTTP method, or the kind of a WebSocket message.
            status: HTTP status.
            seconds: duration from the request to the end of the response.
        """
        labelled = self._by_request.get((route, method, status))
        if labelled is None:  # to look labels up in Prometheus's client takes longer
            labelled = (self.requests.labels(route, method, str(status)), self.seconds.labels(route))
            self._by_request[route, method, status] = labelled
        requests, duration = labelled
        requests.inc()
        duration.observe(seconds)

    def count_table_failure(self, table: str) -> None:
        """Count work for a destination's table that failed all its retries, and so became a dead letter.

        Clients choose the names of tables, so only the first 1,000 get a label of their own; the others share `other`.
        """
        if len(self._tables) < _MAX_TABLE_LABELS:
            self._tables.add(table)
        self.table_failures.labels(table if table in self._tables else "other").inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format. It reads the staging store, so call it in a worker thread.

        If the store fails, the metrics that are read from it are missing, and the cause is logged.
        """
        return generate_latest(self.registry)

    def _read_gauges(self) -> _Values:
        """Read the staging store, and yield the metrics in `_GAUGES`."""
        yield from _lag_values(self.lags)
        backlog, report, queue = self._backlog(), report_in(self._marks()), self._queue()
        yield from _backlog_values(backlog)
        if report is not None:
            yield from _pipeline_values(report)
        gateways = {shard.gateway for shard in backlog}
        # `dead_letter_counts` returns a dead letter without a gateway for each gateway: the set has it once
        yield from _dead_letter_values({each for name in gateways for each in dead_letter_counts(report, queue, name)})


_GATEWAY, _SHARD, _PART = ("gateway",), ("gateway", "shard"), ("gateway", "part", "name")
_DEAD_LETTER = ("gateway", "kind", "name")
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "lakesync_unflushed_bytes": ("Unflushed bytes", _SHARD),
    "lakesync_unflushed_deltas": ("Unflushed deltas", _SHARD),
    "lakesync_oldest_unflushed_timestamp_seconds": ("Commit of the oldest unflushed push", _SHARD),
    # a flush is complete when its batch was read back from the lake
    "lakesync_last_flush_timestamp_seconds": ("When a batch was last read back from the lake", _SHARD),
    "lakesync_last_arrival_timestamp_seconds": ("Arrival of the newest commit", _SHARD),
    "lakesync_pipeline_report_timestamp_seconds": ("When the pipeline last reported its lag", ()),
    "lakesync_pipeline_queued_runs": ("Runs requested more than 30 s ago that have not started", ()),
    # a part is a step of the pipeline that stores a mark, such as the flush or a destination; Dagster runs it
    "lakesync_pipeline_behind_deltas": ("Deltas by which a part of the pipeline is behind, at most", _PART),
    "lakesync_pipeline_behind_timestamp_seconds": ("Arrival of the oldest of these deltas", _PART),
    "lakesync_pipeline_behind_requests": ("Runs requested for the part since its mark moved", _PART),
    "lakesync_dead_letters": ("Dead letters", _DEAD_LETTER),
    "lakesync_dead_letters_timestamp_seconds": ("When the first dead letter was seen", _DEAD_LETTER),
    "lakesync_clients": ("Clients that this process saw", _GATEWAY),
    "lakesync_clients_behind": ("Clients with an unsent change that they may see", _GATEWAY),
    "lakesync_oldest_unsent_timestamp_seconds": ("Commit of the oldest unsent change", _GATEWAY),
}
"""Metric → its help text and its labels, for those that are read at each scrape."""


class _GaugeCollector(Collector):
    """Reports the metrics in `_GAUGES`. Prometheus's client calls `describe` once, and `collect` at each scrape."""

    def __init__(self, read: Callable[[], _Values]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        for name, (text, labels) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterator[Metric]:
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _GAUGES.items()}
        try:
            for name, labels, value in self._read():
                families[name].add_metric(labels, value)
        except LakeSyncError as error:  # the counters, with the failed requests, are needed most in an outage
            log.warning("metrics are incomplete", code=error.code, reason=str(error))
        yield from families.values()


def dead_letter_counts(report: Report | None, queue: FlushQueue | None, gateway: str) -> list[DeadLetters]:
    """Count a gateway's dead letters: those that the pipeline last reported, and those of the server's own flushes.

    The metrics and the route of a gateway's status call it.

    Args:
        report: the pipeline's latest report; None if no pipeline has ever reported.
        queue: the queue of work after the server's own flushes; None if the pipeline flushes.
        gateway: the gateway's id.
    """
    # dead letters without a gateway are of a destination that follows several
    found = [each for each in report.dead_letters if each.gateway in ("", gateway)] if report is not None else []
    failed_since_ms: dict[str, list[int]] = {}
    for job in queue.failed(gateway) if queue is not None else ():
        failed_since_ms.setdefault(job.flushed.table, []).append(wall_of(job.context.arrival))
    of_queue = [DeadLetters("work", table, gateway, len(since), min(since)) for table, since in failed_since_ms.items()]
    return [*found, *of_queue]


def _backlog_values(backlog: Sequence[Backlog]) -> _Values:
    """Yield the metrics of the unflushed log."""
    for shard in backlog:
        labels = [shard.gateway, shard.shard]
        yield "lakesync_unflushed_bytes", labels, shard.bytes
        yield "lakesync_unflushed_deltas", labels, shard.deltas
        if shard.last_arrival:
            yield "lakesync_last_arrival_timestamp_seconds", labels, wall_of(shard.last_arrival) / 1000
        if shard.oldest_ms is not None:
            yield "lakesync_oldest_unflushed_timestamp_seconds", labels, shard.oldest_ms / 1000
        if shard.flushed_ms is not None:
            yield "lakesync_last_flush_timestamp_seconds", labels, shard.flushed_ms / 1000


def _pipeline_values(report: Report) -> _Values:
    """Yield the metrics of the pipeline, by its latest report."""
    yield "lakesync_pipeline_report_timestamp_seconds", [], report.at_ms / 1000
    yield "lakesync_pipeline_queued_runs", [], len(report.queued)
    for lag in report.lags:
        labels = [lag.gateway, lag.part, lag.name]
        yield "lakesync_pipeline_behind_deltas", labels, lag.deltas
        yield "lakesync_pipeline_behind_timestamp_seconds", labels, lag.since_ms / 1000
        yield "lakesync_pipeline_behind_requests", labels, report.requests.get(lag.key, 0)


def _dead_letter_values(dead_letters: Iterable[DeadLetters]) -> _Values:
    """Yield the metrics of dead letters (values, tables and jobs that were set aside)."""
    for each in dead_letters:
        labels = [each.gateway, each.kind, each.name]
        yield "lakesync_dead_letters", labels, each.count
        yield "lakesync_dead_letters_timestamp_seconds", labels, each.since_ms / 1000


def _lag_values(lags: Mapping[str, GatewayLag]) -> _Values:
    """Yield the metrics of the clients' lag by gateway; a series for each client would be too many."""
    for gateway, lag in lags.items():
        yield "lakesync_clients", [gateway], lag.clients
        yield "lakesync_clients_behind", [gateway], lag.behind
        if lag.unsent_since_ms is not None:
            yield "lakesync_oldest_unsent_timestamp_seconds", [gateway], lag.unsent_since_ms / 1000
