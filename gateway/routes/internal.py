"""The pipeline's way into a staging store that only this process may write, and connectors' way into a gateway."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.auth import shows
from gateway.exposure import is_loopback
from gateway.limits import read_body
from gateway.operations import JSON, Operation, Parameter
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.engine.gateway import SyncGateway
from lakesync.model.errors import (
    AuthError,
    BackpressureError,
    ClockDriftError,
    ForbiddenError,
    IntegrityError,
    NotFoundError,
    SchemaError,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import PushResult, SyncPush
from lakesync.staging.protocol import dispatch, methods

MAX_BODY_BYTES = 64 << 20
"""A cut names every one of its frame files."""


async def staging(request: Request) -> Response:
    """Call a method of the staging store."""
    services = Services.of(request)
    _check_caller(request, services.settings.service_token)
    method = request.path_params["method"]
    body = await read_body(request, MAX_BODY_BYTES)
    answer = await run_in_threadpool(dispatch, services.engine.store, method, body)
    return Response(answer, media_type=JSON)


async def bring(request: Request) -> Response:
    """Take the deltas of a connector: a push as any other, in the connector's name."""
    gateway = await _gateway(request)
    push = await bodies.read_push(request, MAX_BODY_BYTES)
    return bodies.push_response(
        request, await outcome(gateway.submit_push(push, {"sub": push.client_id}, trusted=True))
    )


async def tables(request: Request) -> Response:
    """Register the schema of a connector's table, unless the table has one."""
    gateway = await _gateway(request)
    schema = parse_schema(await bodies.read_object(request, MAX_BODY_BYTES))
    return bodies.json_response(await run_in_threadpool(gateway.ensure_schema, schema))


async def _gateway(request: Request) -> SyncGateway:
    services = Services.of(request)
    _check_caller(request, services.settings.service_token)
    return await run_in_threadpool(services.engine.gateway, request.path_params["gateway"])


def _check_caller(request: Request, expected: str | None) -> None:
    if request.client is None or not is_loopback(request.client.host):
        raise ForbiddenError("this route serves processes on the same machine alone")
    if expected is None:
        raise ForbiddenError("this route is closed: the server was started without LAKESYNC_SERVICE_TOKEN")
    if not shows(request, expected):
        raise AuthError("the service token is missing or wrong; both sides read LAKESYNC_SERVICE_TOKEN")


OPERATIONS = (
    Operation(
        "POST",
        "/internal/staging/{method}",
        staging,
        "Call a method of the staging store with its arguments by name",
        access="service",
        parameters=(
            Parameter(
                "method",
                "A method of PipelineStore",
                {"type": "string", "enum": sorted(methods())},
                "path",
                example="gateways",
            ),
        ),
        body=dict,
        answer=Any,
        errors=(ValidationError, NotFoundError, IntegrityError),
    ),
    Operation(
        "POST",
        "/internal/push/{gateway}",
        bring,
        "Push the deltas of a connector in its name",
        access="service",
        body=SyncPush,
        answer=PushResult,
        errors=(ValidationError, NotFoundError, ClockDriftError, SchemaMismatchError, BackpressureError),
    ),
    Operation(
        "POST",
        "/internal/tables/{gateway}",
        tables,
        "Register the schema of a connector's table, unless the table has one",
        access="service",
        body=TableSchema,
        answer=bool,
        errors=(ValidationError, NotFoundError, SchemaError),
    ),
)
