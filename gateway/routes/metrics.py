"""Figures: of one gateway as JSON, of the server for Prometheus."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.operations import Operation
from gateway.services import Services
from lakesync.engine import GatewayStats
from lakesync.exceptions import StagingUnavailableError


async def gateway_metrics(request: Request) -> Response:
    """What one gateway holds, for its clients."""
    caller = await admit(request)
    return bodies.json_response(await run_in_threadpool(caller.gateway.stats))


async def admin_metrics(request: Request) -> Response:
    """What one gateway holds, for an admin."""
    caller = await admit(request, admin=True)
    return bodies.json_response(await run_in_threadpool(caller.gateway.stats))


async def prometheus(request: Request) -> Response:
    """The server's metrics."""
    text = await run_in_threadpool(Services.of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


OPERATIONS = (
    Operation("GET", "/sync/{gateway}/metrics", gateway_metrics, "What the gateway holds", answer=GatewayStats),
    Operation(
        "GET", "/admin/metrics/{gateway}", admin_metrics, "What the gateway holds", access="admin", answer=GatewayStats
    ),
    Operation(
        "GET",
        "/metrics",
        prometheus,
        "Metrics of the server for Prometheus",
        access="open",
        answer_media=("text/plain",),
        errors=(StagingUnavailableError,),
    ),
)
