"""The server's metrics for Prometheus: counters that routes increment, and collectors that read the staging store.

`create_app` creates them. `gateway.routes.monitoring` serves them. The staging store has the log of pushed deltas until
the pipeline, or the server itself, has flushed them to the lake. It also has *marks*: small values by which the parts
of the pipeline store how far they are. One mark is the pipeline's latest report, with its lags and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.client_tracker import GatewayLag
from lakesync.analysis.marks import DeadLetters, report_in
from lakesync.flush import FlushQueue
from lakesync.model.hlc import wall_of
from lakesync.staging.records import Backlog

disable_created_metrics()  # type: ignore[no-untyped-call]  # it would double the number of series

_MAX_TABLE_LABELS = 1000
"""Number of tables with a label of their own; the others share the label `other`."""
_BUCKET_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of the histograms' buckets."""


class Metrics:
    """All metrics of one server."""

    def __init__(
        self,
        backlog: Callable[[], list[Backlog]],
        marks: Callable[[], Mapping[str, str]],
        queue: Callable[[], FlushQueue | None] = lambda: None,
    ) -> None:
        """Create the registry and its metrics.

        Args:
            backlog: returns the unflushed log by gateway and shard (a store with some of its tables); called at every
                scrape.
            marks: returns staging's marks, which include the pipeline's report; called at every scrape.
            queue: returns the queue of work for destination tables after this server's own flushes; it returns None if
                the pipeline flushes.
        """
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "lakesync_requests", "Answered requests", ["route", "method", "status"], registry=registry
        )
        self.seconds = Histogram(
            "lakesync_request_seconds",
            "Seconds from request to end of answer",
            ["route"],
            buckets=_BUCKET_SECONDS,
            registry=registry,
        )
        self.errors = Counter("lakesync_errors", "Rejected and failed requests", ["code"], registry=registry)
        self.pushed = Counter("lakesync_pushed_deltas", "Deltas accepted, repeats included", registry=registry)
        self.pulled = Counter("lakesync_pulled_deltas", "Deltas sent in answers to pulls", registry=registry)
        self.actions = Counter("lakesync_actions", "Answered actions by outcome", ["outcome"], registry=registry)
        self.checkpoints = Counter("lakesync_checkpoints", "Started checkpoint streams", registry=registry)
        self.checkpoint_bytes = Counter("lakesync_checkpoint_bytes", "Bytes of frames served", registry=registry)
        self.connections = Gauge("lakesync_websocket_connections", "Open WebSocket connections", registry=registry)
        self.connection_ends = Counter(
            "lakesync_websocket_closes", "WebSocket connections ended, by close code", ["code"], registry=registry
        )
        self.broadcast = Counter("lakesync_broadcast_deltas", "Deltas sent as broadcasts", registry=registry)
        self.flushes = Counter("lakesync_flushes", "Flushes by this server itself", registry=registry)
        self.flushed = Counter("lakesync_flushed_deltas", "Deltas flushed by this server itself", registry=registry)
        self.flush_seconds = Histogram(
            "lakesync_flush_seconds",
            "Seconds of a flush by this server itself",
            buckets=_BUCKET_SECONDS,
            registry=registry,
        )
        self.flush_failures = Counter(
            "lakesync_flush_failures", "Failed flushes by this server itself, which are retried", registry=registry
        )
        self.table_failures = Counter(
            "lakesync_materialisation_failures",
            "Work for a destination's table that failed all its retries",
            ["table"],
            registry=registry,
        )
        registry.register(_BacklogCollector(backlog))
        registry.register(_PipelineCollector(marks))
        registry.register(_DeadLetterCollector(backlog, marks, queue))
        self.lags: Mapping[str, GatewayLag] = {}
        """Lag of the clients by gateway; the route sets it before each scrape."""
        registry.register(_LagCollector(lambda: self.lags))
        self._tables: set[str] = set()
        self._by_request: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

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
        """Return all metrics in Prometheus's text format. It reads the staging store, so call it in a worker thread."""
        return generate_latest(self.registry)


class _LagCollector(Collector):
    """Reports the lag of the clients by gateway; a series for each client would be too many."""

    def __init__(self, lags: Callable[[], Mapping[str, GatewayLag]]) -> None:
        self._lags = lags

    # Prometheus's client calls `describe` when a collector is registered, and `collect` for each scrape.

    def describe(self) -> Iterator[Metric]:
        yield from _lag_families().values()

    def collect(self) -> Iterator[Metric]:
        families = _lag_families()
        for gateway, lag in self._lags().items():
            families["clients"].add_metric([gateway], lag.clients)
            families["behind"].add_metric([gateway], lag.behind)
            if lag.unsent_since_ms is not None:
                families["unsent"].add_metric([gateway], lag.unsent_since_ms / 1000)
        yield from families.values()


def _lag_families() -> dict[str, GaugeMetricFamily]:
    """Return the metrics of `_LagCollector`, without values."""
    labels = ["gateway"]
    return {
        "clients": GaugeMetricFamily("lakesync_clients", "Clients that this process saw", labels=labels),
        "behind": GaugeMetricFamily(
            "lakesync_clients_behind", "Clients with an unsent change that they may see", labels=labels
        ),
        "unsent": GaugeMetricFamily(
            "lakesync_oldest_unsent_timestamp_seconds", "Commit of the oldest unsent change", labels=labels
        ),
    }


class _BacklogCollector(Collector):
    """Reports the unflushed log, read from the staging store at each scrape."""

    def __init__(self, backlog: Callable[[], list[Backlog]]) -> None:
        self._backlog = backlog

    def describe(self) -> Iterator[Metric]:
        yield from _backlog_families().values()

    def collect(self) -> Iterator[Metric]:
        families = _backlog_families()
        for backlog in self._backlog():
            labels = [backlog.gateway, backlog.shard]
            families["bytes"].add_metric(labels, backlog.bytes)
            families["deltas"].add_metric(labels, backlog.deltas)
            families["arrival"].add_metric(labels, wall_of(backlog.last_arrival) / 1000)
            if backlog.oldest_ms is not None:
                families["oldest"].add_metric(labels, backlog.oldest_ms / 1000)
            if backlog.flushed_ms is not None:
                families["flushed"].add_metric(labels, backlog.flushed_ms / 1000)
        yield from families.values()


class _PipelineCollector(Collector):
    """Reports what the pipeline's sensors last wrote to staging."""

    def __init__(self, marks: Callable[[], Mapping[str, str]]) -> None:
        self._marks = marks

    def describe(self) -> Iterator[Metric]:
        yield from _pipeline_families().values()

    def collect(self) -> Iterator[Metric]:
        families = _pipeline_families()
        report = report_in(self._marks())
        if report is not None:
            families["reported"].add_metric([], report.at_ms / 1000)
            families["queued"].add_metric([], len(report.queued))
            for lag in report.lags:
                labels = [lag.gateway, lag.part, lag.name]
                families["deltas"].add_metric(labels, lag.deltas)
                families["since"].add_metric(labels, lag.since_ms / 1000)
                families["requests"].add_metric(labels, report.requests.get(lag.key, 0))
        yield from families.values()


class _DeadLetterCollector(Collector):
    """Reports counts of dead letters (values, tables and jobs that were set aside) by gateway, kind and name."""

    def __init__(
        self,
        backlog: Callable[[], list[Backlog]],
        marks: Callable[[], Mapping[str, str]],
        queue: Callable[[], FlushQueue | None],
    ) -> None:
        self._backlog, self._marks, self._queue = backlog, marks, queue

    def describe(self) -> Iterator[Metric]:
        yield from _dead_letter_families()

    def collect(self) -> Iterator[Metric]:
        counts, since = _dead_letter_families()
        marks, queue = self._marks(), self._queue()
        gateways = {each.gateway for each in self._backlog()}
        found = {each for gateway in gateways for each in dead_letter_counts(marks, queue, gateway)}
        for each in found:
            labels = [each.gateway, each.kind, each.name]
            counts.add_metric(labels, each.count)
            since.add_metric(labels, each.since_ms / 1000)
        yield from (counts, since)


def _dead_letter_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """Return the metrics of `_DeadLetterCollector`, without values."""
    labels = ["gateway", "kind", "name"]
    return (
        GaugeMetricFamily("lakesync_dead_letters", "Dead letters", labels=labels),
        GaugeMetricFamily(
            "lakesync_dead_letters_timestamp_seconds", "When the first dead letter was seen", labels=labels
        ),
    )


def _pipeline_families() -> dict[str, GaugeMetricFamily]:
    """Return the metrics of `_PipelineCollector`, without values."""
    labels = ["gateway", "part", "name"]
    return {
        "reported": GaugeMetricFamily(
            "lakesync_pipeline_report_timestamp_seconds", "When the pipeline last reported its lag"
        ),
        "queued": GaugeMetricFamily(
            "lakesync_pipeline_queued_runs", "Runs requested more than 30 s ago that have not started"
        ),
        "deltas": GaugeMetricFamily(
            "lakesync_pipeline_behind_deltas",
            "Deltas by which a part of the pipeline is behind, at most",
            labels=labels,
        ),
        "since": GaugeMetricFamily(
            "lakesync_pipeline_behind_timestamp_seconds", "Arrival of the oldest of these deltas", labels=labels
        ),
        "requests": GaugeMetricFamily(
            "lakesync_pipeline_behind_requests", "Runs requested for the part since its mark moved", labels=labels
        ),
    }


def _backlog_families() -> dict[str, GaugeMetricFamily]:
    """Return the metrics of `_BacklogCollector`, without values."""
    labels = ["gateway", "shard"]
    return {
        "bytes": GaugeMetricFamily("lakesync_unflushed_bytes", "Unflushed bytes", labels=labels),
        "deltas": GaugeMetricFamily("lakesync_unflushed_deltas", "Unflushed deltas", labels=labels),
        "oldest": GaugeMetricFamily(
            "lakesync_oldest_unflushed_timestamp_seconds", "Commit of the oldest unflushed push", labels=labels
        ),
        "flushed": GaugeMetricFamily(
            "lakesync_last_flush_timestamp_seconds", "When a batch was last read back from the lake", labels=labels
        ),
        "arrival": GaugeMetricFamily(
            "lakesync_last_arrival_timestamp_seconds", "Arrival of the newest commit", labels=labels
        ),
    }


def dead_letter_counts(marks: Mapping[str, str], queue: FlushQueue | None, gateway: str) -> list[DeadLetters]:
    """Count a gateway's dead letters: those that the pipeline last reported, and those of the server's own flushes.

    Args:
        marks: name → value of staging's marks, which include the pipeline's report.
        queue: the queue of work after the server's own flushes; None if the pipeline flushes.
        gateway: the gateway's id.
    """
    report = report_in(marks)
    # dead letters without a gateway are of a destination that follows several
    found = [each for each in report.dead_letters if each.gateway in ("", gateway)] if report is not None else []
    failed_since_ms: dict[str, list[int]] = {}
    for job in queue.failed(gateway) if queue is not None else ():
        failed_since_ms.setdefault(job.flushed.table, []).append(wall_of(job.context.arrival))
    of_queue = [DeadLetters("work", table, gateway, len(since), min(since)) for table, since in failed_since_ms.items()]
    return [*found, *of_queue]
