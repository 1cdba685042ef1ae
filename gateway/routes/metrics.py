"""Figures: of one gateway as JSON, of the server for Prometheus."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.auth import shows
from gateway.clients import ClientStanding
from gateway.dead_letters import dead_letters
from gateway.lag import look_at_clients, look_at_gateways
from gateway.operations import Operation, Parameter
from gateway.services import Services
from lakesync.analysis.marks import DeadLetters, QueuedRun, Report, report_in
from lakesync.engine import GatewayStats
from lakesync.flush import TableStats
from lakesync.flush.waiting import Waiting
from lakesync.model.errors import AuthError, StagingUnavailableError, ValidationError
from lakesync.staging.records import Backlog, Cut

MAX_CLIENTS_TOLD = 1000


class ShardStats(msgspec.Struct, frozen=True, rename="camel"):
    """What waits for the lake in one shard, whose sequence has nothing to do with those of others."""

    shard: str
    log_size: int
    """Deltas not yet confirmed in the lake."""
    byte_size: int
    last_arrival: int = msgspec.field(name="lastArrivalHlc")
    last_seq: int
    flushed_seq: int

    @staticmethod
    def of(waiting: Backlog) -> ShardStats:
        """As the store tells it."""
        return ShardStats(
            shard=waiting.shard,
            log_size=waiting.deltas,
            byte_size=waiting.bytes,
            last_arrival=waiting.last_arrival,
            last_seq=waiting.last_seq,
            flushed_seq=waiting.flushed_seq,
        )


class CutStanding(msgspec.Struct, frozen=True, rename="camel"):
    """The newest cut, from which a new client's checkpoint is served."""

    arrival_hlc: int
    created_ms: int
    rules_version: int
    """Served while the gateway's is the same."""
    rows: int
    bytes: int
    tables: tuple[str, ...]

    @staticmethod
    def of(cut: Cut) -> CutStanding:
        """As the store tells it."""
        return CutStanding(
            arrival_hlc=cut.arrival,
            created_ms=cut.created_ms,
            rules_version=cut.rules_version,
            rows=sum(table.rows for table in cut.tables),
            bytes=sum(table.bytes for table in cut.tables),
            tables=tuple(table.table for table in cut.tables),
        )


class PartStanding(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the pipeline that is behind the one upstream."""

    part: str
    """`deltas`, `table`, `checkpoint` or `destination`."""
    name: str
    """Of the table or destination; the shard of `deltas`; empty for the checkpoint."""
    deltas: int
    """How many it lacks: exact for `deltas`, else at most about so many."""
    since_ms: int
    """Arrival of the oldest of these."""
    requests: int
    """Runs that were requested for it since its mark moved; three or more: they fail."""


class PipelineStanding(msgspec.Struct, frozen=True, rename="camel"):
    """What the pipeline lacked of this gateway when its sensors last looked."""

    reported_ms: int
    """They look every ten seconds: an old report means that the pipeline does not run."""
    behind: tuple[PartStanding, ...]
    queued: tuple[QueuedRun, ...]
    """Runs, of all gateways, that were requested more than half a minute ago and have not started."""

    @staticmethod
    def of(report: Report, gateway: str) -> PipelineStanding:
        """As the pipeline reported it."""
        behind = tuple(
            PartStanding(lag.part, lag.name, lag.deltas, lag.since_ms, report.requests.get(lag.key, 0))
            for lag in report.of(gateway)
        )
        return PipelineStanding(report.at_ms, behind, report.queued)


class OperatorStats(GatewayStats, frozen=True, rename="camel"):
    """What the gateway holds, and how far its clients are."""

    rules_version: int
    """Of the rules in force; 0 before any were set."""
    cut: CutStanding | None
    """None before the first."""
    max_backpressure_bytes: int
    """Pushes to tables of a shard that holds more are turned away until the lake has some of it."""

    clients: list[ClientStanding]
    """Those that this process saw, the one that is furthest behind first."""
    tables: list[TableStats] | None
    """What waits by table, where that was asked for."""
    shards: list[ShardStats]
    """One, unless tables are sharded; above, sequences are those of the shard that is furthest."""
    pipeline: PipelineStanding | None
    """None where no pipeline ever reported to this store."""
    dead_letters: list[DeadLetters]
    """What is set aside of this gateway, by kind and place."""


async def gateway_metrics(request: Request) -> Response:
    """What one gateway holds, for its clients."""
    caller = await admit(request)
    return bodies.json_response(await run_in_threadpool(caller.gateway.stats))


async def admin_metrics(request: Request) -> Response:
    """What one gateway holds and how far its clients are, for an admin."""
    caller = await admit(request, admin=True)
    services, gateway = Services.of(request), caller.gateway
    limit = _asked(request.query_params.get("clients"))
    by_table = request.query_params.get("tables", "false")
    if by_table not in ("true", "false"):
        raise ValidationError(f"tables is {by_table!r}, it must be true or false")
    stats = await run_in_threadpool(gateway.stats)
    backlog = await run_in_threadpool(gateway.backlog)
    shards = [ShardStats.of(waiting) for waiting in backlog]
    tables = None
    if by_table == "true":
        tables = await run_in_threadpool(Waiting(gateway.gateway_id, services.engine.store).table_stats)
    if limit:
        await look_at_clients(services, gateway.gateway_id, backlog)
    followed = services.hub.followed(gateway.gateway_id)
    clients = await run_in_threadpool(services.clients.standing, gateway.gateway_id, followed, limit)
    known: dict[str, Any] = msgspec.structs.asdict(stats)
    cut = await run_in_threadpool(services.engine.store.newest_cut, gateway.gateway_id)
    marks = await run_in_threadpool(services.engine.store.marks)
    report = report_in(marks)
    told = OperatorStats(
        **known,
        rules_version=(await run_in_threadpool(gateway.config)).rules_version,
        cut=CutStanding.of(cut) if cut is not None else None,
        max_backpressure_bytes=services.settings.limits.max_backpressure_bytes,
        clients=clients,
        tables=tables,
        shards=shards,
        pipeline=PipelineStanding.of(report, gateway.gateway_id) if report is not None else None,
        dead_letters=await run_in_threadpool(dead_letters, marks, services.engine.queue, gateway.gateway_id),
    )
    return bodies.json_response(told)


async def prometheus(request: Request) -> Response:
    """The server's metrics, which name gateways: where a token is set, only for who shows it."""
    services = Services.of(request)
    if services.settings.metrics_token is not None and not shows(request, services.settings.metrics_token):
        raise AuthError("the metrics token is missing or wrong: send the LAKESYNC_METRICS_TOKEN that the server has")
    await look_at_gateways(services)
    services.metrics.lags = services.clients.lags(services.hub.followed)
    text = await run_in_threadpool(services.metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _asked(clients: str | None) -> int:
    if clients is None:
        return 100
    if not (clients.isascii() and clients.isdigit() and len(clients) <= 4 and int(clients) <= MAX_CLIENTS_TOLD):
        raise ValidationError(f"clients is {clients!r}, it must be from 0 to {MAX_CLIENTS_TOLD}")
    return int(clients)


OPERATIONS = (
    Operation("GET", "/sync/{gateway}/metrics", gateway_metrics, "What the gateway holds", answer=GatewayStats),
    Operation(
        "GET",
        "/admin/metrics/{gateway}",
        admin_metrics,
        "What the gateway holds, and how far its clients are",
        access="admin",
        parameters=(
            Parameter(
                "clients",
                "Most clients to tell of",
                {"type": "integer", "minimum": 0, "maximum": MAX_CLIENTS_TOLD, "default": 100},
            ),
            Parameter(
                "tables",
                "`true`: what waits table by table too, which is read from the log",
                {"type": "string", "enum": ["true", "false"]},
            ),
        ),
        answer=OperatorStats,
        errors=(ValidationError,),
    ),
    Operation(
        "GET",
        "/metrics",
        prometheus,
        "Metrics of the server for Prometheus; only with LAKESYNC_METRICS_TOKEN as bearer token where that is set",
        access="open",
        answer_media=("text/plain",),
        errors=(AuthError, StagingUnavailableError),
    ),
)
