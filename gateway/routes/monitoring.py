"""The routes by which operators and their tools observe the server: `/health`, `/ready` and the metrics.

Orchestrators such as Kubernetes call `/health` to restart a process, and `/ready` to route requests to it. The console
and `lakesync status` read the metrics of one gateway (one app's stream of changes) as JSON: the size of the unflushed
log of changes (deltas), how far clients are behind, dead letters (values and work that were set aside), and the report
of the pipeline's lags that Dagster's sensors store. Prometheus reads the metrics of the whole server. A *shard* is a
store with some of a gateway's tables. A *checkpoint* has all rows of a gateway, for new clients. A *mark* says how far
a part of the pipeline is.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from gateway.client_lag import refresh_all_gateways, refresh_gateway
from gateway.dependencies import AdminCaller, ClientCaller, Services, ServicesDependency, has_token
from gateway.futures import result_of
from gateway.metrics import dead_letter_counts
from gateway.openapi_schemas import CALLER_ERRORS, DIGITS, ApiModel, Struct, error_responses
from gateway.request_body import json_response
from gateway.tracked_client import ClientStatus
from lakesync.analysis.marks import DeadLetters, QueuedRun, Report, report_in
from lakesync.engine import GatewayStats
from lakesync.flush import TableStats
from lakesync.flush.thresholds import BacklogStats
from lakesync.model.errors import AuthError, StagingUnavailableError
from lakesync.staging.records import Backlog, Checkpoint

router = APIRouter()

STORE_TIMEOUT_SECONDS = 5.0
"""Seconds within which the staging store must respond to a small query."""


class Health(ApiModel):
    """`ok` for `/health`, `ready` for `/ready`."""

    status: str


@router.get("/health", summary="Check that the process answers", responses=error_responses())
async def health() -> Health:
    """Return `ok` while the process responds."""
    return Health(status="ok")


@router.get(
    "/ready",
    summary="Check that the server accepts requests; the error begins with what is missing: "
    "starting, draining, store, disk, behind",
    responses=error_responses(),
)
async def ready(services: ServicesDependency) -> Health:
    """Return `ready` while the server accepts requests; otherwise the error of `check_ready`, with status 503."""
    await check_ready(services)
    return Health(status="ready")


async def check_ready(services: Services) -> None:
    """Check everything that the server needs to accept requests: the store, free disk space and the backlog.

    Args:
        services: the server's shared objects.

    Raises:
        StagingUnavailableError: something is missing; the message begins with `starting`, `draining`, `store`, `disk`
            or `behind`.
    """
    if services.gate.rejection_reason is not None:
        raise StagingUnavailableError(services.gate.rejection_reason, retry_after=1)
    try:
        async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
            backlog = await run_in_threadpool(services.engine.store.backlog)
    except TimeoutError:
        raise StagingUnavailableError(f"store: staging did not answer within {STORE_TIMEOUT_SECONDS:g} s") from None
    except StagingUnavailableError as error:
        raise StagingUnavailableError(f"store: {error.public_message}", details=error.details) from error
    settings = services.settings
    for folder in settings.staging_folders:
        _check_disk(folder, settings.limits.min_free_disk_bytes)
    _check_backlog(backlog, settings.engine_limits.max_backpressure_bytes)


MAX_CLIENTS_LISTED = 1000
"""Number of clients in a response, at most."""


class ShardStats(msgspec.Struct, frozen=True, rename="camel"):
    """The unflushed log of one shard; each shard has its own sequence."""

    shard: str
    log_size: int
    """Deltas not yet confirmed in the lake."""
    byte_size: int
    """Stored bytes of these deltas."""
    last_arrival: int = msgspec.field(name="lastArrivalHlc")
    """The gateway's timestamp of the newest push."""
    last_seq: int
    """Number of the newest push in the log."""
    flushed_seq: int
    """Number of the last push that is in the lake."""

    @staticmethod
    def of(backlog: Backlog) -> ShardStats:
        """Convert the store's record."""
        return ShardStats(
            shard=backlog.shard,
            log_size=backlog.deltas,
            byte_size=backlog.bytes,
            last_arrival=backlog.last_arrival,
            last_seq=backlog.last_seq,
            flushed_seq=backlog.flushed_seq,
        )


class CheckpointSnapshot(msgspec.Struct, frozen=True, rename="camel"):
    """The newest checkpoint: all rows of the gateway in files, from which new clients get their first rows."""

    arrival_hlc: int
    """The gateway's timestamp of the newest push that it contains."""
    created_ms: int
    """When it was made, in milliseconds since 1970."""
    rules_version: int
    """It is served only while the gateway's sync rules have this version."""
    rows: int
    bytes: int
    tables: tuple[str, ...]
    not_served_reason: str | None
    """Why new clients are not sent it, such as an erasure after it; null if they are."""

    @staticmethod
    def of(checkpoint: Checkpoint, not_served_reason: str | None) -> CheckpointSnapshot:
        """Convert the store's record."""
        return CheckpointSnapshot(
            arrival_hlc=checkpoint.arrival,
            created_ms=checkpoint.created_ms,
            rules_version=checkpoint.rules_version,
            rows=sum(table.rows for table in checkpoint.tables),
            bytes=sum(table.bytes for table in checkpoint.tables),
            tables=tuple(table.table for table in checkpoint.tables),
            not_served_reason=not_served_reason,
        )


class PartLag(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the pipeline that is behind: its mark (how far it is) is lower than that of the part upstream."""

    part: str
    """`deltas`, `table`, `checkpoint`, `destination`, `flow`, `tier`, `migration`, `poll` or `erasure`."""
    name: str
    """Name of the table, destination, flow, tiers, migration or connector, or `CONNECTOR/TABLE` if other tables of the
    connector succeed; shard of `deltas`; empty for a checkpoint or an erasure."""
    deltas: int
    """Deltas that it lacks: exact for `deltas`, 0 for a part that is due by the clock, otherwise an upper bound."""
    since_ms: int
    """When the oldest of them arrived; of a part that is due by the clock, when it was due or began to fail. In
    milliseconds since 1970."""
    requests: int
    """Runs requested for it since its mark last moved, or failed polls; three or more mean that they fail."""
    retry_ms: int | None
    """When the next run is requested if the mark does not move, in milliseconds since 1970; null before the first."""


class PipelineLag(msgspec.Struct, frozen=True, rename="camel"):
    """What the pipeline's sensors last reported of one gateway."""

    reported_ms: int
    """Sensors report every ten seconds; an old report means that the pipeline does not run."""
    behind: tuple[PartLag, ...]
    queued: tuple[QueuedRun, ...]
    """Runs of all gateways that were requested more than 30 s ago and have not started."""

    @staticmethod
    def of(report: Report, gateway: str) -> PipelineLag:
        """Select the part of a report that concerns one gateway."""
        behind = tuple(
            PartLag(
                lag.part,
                lag.name,
                lag.deltas,
                lag.since_ms,
                report.requests.get(lag.key, 0),
                report.retries.get(lag.key),
            )
            for lag in report.of(gateway)
        )
        return PipelineLag(report.at_ms, behind, report.queued)


class OperatorStats(GatewayStats, frozen=True, rename="camel"):
    """The gateway's metrics, and how far its clients are behind."""

    rules_version: int
    """Version of the active rules; 0 before any were set."""
    checkpoint: CheckpointSnapshot | None
    """The newest checkpoint; null before the first."""
    max_backpressure_bytes: int
    """Pushes to a shard with more unflushed bytes are rejected."""
    clients: list[ClientStatus]
    """Clients that this process saw, the one furthest behind first."""
    tables: list[TableStats] | None
    """The unflushed log by table; null unless requested."""
    shards: list[ShardStats]
    """One, unless tables are sharded; the sequences above are those of the shard that is furthest."""
    pipeline: PipelineLag | None
    """Null if no pipeline ever reported to this store."""
    dead_letters: list[DeadLetters]
    """Counts of the gateway's dead letters, by kind and place."""


@router.get(
    "/sync/{gateway}/metrics",
    summary="Read the gateway's metrics",
    response_model=Struct[GatewayStats],
    responses=error_responses(*CALLER_ERRORS),
)
async def gateway_metrics(caller: ClientCaller) -> Response:
    """Return one gateway's metrics, for its clients."""
    return json_response(await run_in_threadpool(caller.gateway.stats))


@router.get(
    "/admin/metrics/{gateway}",
    summary="Read the gateway's metrics and its clients' status",
    response_model=Struct[OperatorStats],
    responses=error_responses(*CALLER_ERRORS),
)
async def admin_metrics(
    caller: AdminCaller,
    services: ServicesDependency,
    clients: Annotated[
        int,
        Field(ge=0, le=MAX_CLIENTS_LISTED),
        DIGITS,
        Query(description="Most clients to list"),
    ] = 100,
    tables: Annotated[
        Literal["true", "false"],
        Query(description="`true`: the unflushed log by table too; that reads the log"),
    ] = "false",
) -> Response:
    """Return one gateway's metrics and its clients' status, for an admin."""
    gateway, store = caller.gateway, services.engine.store
    backlog = await run_in_threadpool(gateway.backlog)
    by_table = None
    if tables == "true":
        by_table = await run_in_threadpool(BacklogStats(gateway.gateway_id, store).table_stats)
    if clients:
        await refresh_gateway(services, gateway.gateway_id, backlog)
    connected = services.connected_clients(gateway.gateway_id)
    statuses = await run_in_threadpool(services.clients.statuses, gateway.gateway_id, connected, clients)
    fields: dict[str, Any] = msgspec.structs.asdict(GatewayStats.of(backlog))
    snapshot = await run_in_threadpool(store.newest_checkpoint, gateway.gateway_id)
    checkpoint = None
    if snapshot is not None:
        reason = await result_of(await run_in_threadpool(gateway.submit_not_served_reason))
        checkpoint = CheckpointSnapshot.of(snapshot, reason)
    report = report_in(await run_in_threadpool(store.marks))
    operator_stats = OperatorStats(
        **fields,
        rules_version=(await run_in_threadpool(gateway.config)).rules_version,
        checkpoint=checkpoint,
        max_backpressure_bytes=services.settings.engine_limits.max_backpressure_bytes,
        clients=statuses,
        tables=by_table,
        shards=[ShardStats.of(shard) for shard in backlog],
        pipeline=PipelineLag.of(report, gateway.gateway_id) if report is not None else None,
        dead_letters=await run_in_threadpool(dead_letter_counts, report, services.engine.queue, gateway.gateway_id),
    )
    return await run_in_threadpool(json_response, operator_stats)


@router.get(
    "/metrics",
    summary="Read the server's metrics for Prometheus; needs LAKESYNC_METRICS_TOKEN as bearer token if it is set",
    response_class=PlainTextResponse,
    responses=error_responses(AuthError),
)
async def prometheus(request: Request, services: ServicesDependency) -> Response:
    """Return the server's metrics in Prometheus's text format. They name gateways, so they may need a token."""
    expected = services.settings.metrics_token
    if expected is not None and not has_token(request.headers.getlist("authorization"), expected):
        raise AuthError("the metrics token is missing or wrong: send the LAKESYNC_METRICS_TOKEN that the server has")
    with suppress(StagingUnavailableError):  # then the metrics have the lag of earlier checks
        await refresh_all_gateways(services)
    services.metrics.lags = services.clients.lags(services.connected_clients)
    text = await run_in_threadpool(services.metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _check_disk(folder: Path, min_free_bytes: int) -> None:
    """Check that the disk of the staging store has room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StagingUnavailableError("disk: the folder of staging cannot be read", details=str(error)) from error
    if free < min_free_bytes:
        raise StagingUnavailableError(
            f"disk: {free:,} bytes are free for staging, [limits] min_free_disk_bytes is {min_free_bytes:,}: free space"
        )


def _check_backlog(backlog: list[Backlog], max_bytes: int) -> None:
    """Check that at least one shard (a store with some of the tables) of one gateway accepts pushes.

    Each shard of a gateway has its own limit. If only some are above it, their pushes are rejected, and the server is
    ready nevertheless.
    """
    if backlog and all(shard.bytes > max_bytes for shard in backlog):
        raise StagingUnavailableError(
            f"behind: all gateways have more than {max_bytes} bytes that are not yet in the lake: "
            "check that the pipeline runs"
        )
