"""The internal routes, for processes on the same machine with the service token: the pipeline and its connectors.

Only the server's process may open a staging store (the gateways' database) on SQLite, so the pipeline calls the store's
methods through it (`lakesync.staging.remote`). The pipeline also pushes to a gateway, an app's stream of changes:
polled rows as a connector, and the deltas of a flow (a copy from a backend) in the name of the clients that wrote them.
If staging is on Postgres, the pipeline opens the store itself and calls none of these routes.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import GatewayId, ServicesDependency, local_service
from gateway.futures import result_of
from gateway.openapi_schemas import JSON, SERVICE_ERRORS, Struct, error_responses, example, request_body
from gateway.request_body import decode_if_large, json_response, parse_json, push_decoder, push_response, read_body
from lakesync.engine.pushing import PushRequest
from lakesync.model.errors import (
    BackpressureError,
    ClockDriftError,
    IntegrityError,
    NotFoundError,
    SchemaError,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import PushResult, SyncPush
from lakesync.staging.remote import METHODS, dispatch

router = APIRouter(prefix="/internal", dependencies=[Depends(local_service)])

MAX_BODY_BYTES = 64 << 20
"""Largest body of a request, such as a call that records a checkpoint with the names of all its files."""

_METHODS = {"type": "string", "enum": sorted(METHODS)}
"""The JSON Schema of the name of a method of the staging store."""


@router.post(
    "/staging/{method}",
    summary="Call a method of the staging store with its arguments by name",
    response_model=Any,
    responses=error_responses(*SERVICE_ERRORS, ValidationError, NotFoundError, IntegrityError),
    openapi_extra=request_body(dict),
)
async def call_staging(
    request: Request,
    services: ServicesDependency,
    method: Annotated[
        str,
        WithJsonSchema(_METHODS),
        Path(description="A method of PipelineStore", openapi_examples=example("gateways")),
    ],
) -> Response:
    """Call a method of the staging store and return its result as JSON."""
    body = await read_body(request, MAX_BODY_BYTES)
    result = await run_in_threadpool(dispatch, services.engine.store, method, body)
    return Response(result, media_type=JSON)


@router.post(
    "/push/{gateway}",
    summary="Push deltas as a connector",
    response_model=Struct[PushResult],
    responses=error_responses(
        *SERVICE_ERRORS, ValidationError, NotFoundError, ClockDriftError, SchemaMismatchError, BackpressureError
    ),
    openapi_extra=request_body(SyncPush),
)
async def push_as_connector(request: Request, services: ServicesDependency, gateway: GatewayId) -> Response:
    """Commit the deltas of a connector or a flow. The write scope, which limits what clients may write, does not apply.

    Any client id is accepted: a flow pushes in the name of other clients.
    """
    found = await run_in_threadpool(services.engine.gateway, gateway)
    decode = await decode_if_large(push_decoder(request), await read_body(request, MAX_BODY_BYTES))

    def receive() -> PushRequest:
        push, fault = decode()  # `fault`: of malformed deltas; the response names them with all other rejected ones
        return PushRequest(push, {"sub": push.client_id}, trusted=True, fault=fault)

    result = await result_of(found.submit_push(receive))
    return push_response(request, result)


@router.post(
    "/tables/{gateway}",
    summary="Register the schema of a connector's table, unless the table has one",
    response_model=bool,
    responses=error_responses(*SERVICE_ERRORS, ValidationError, NotFoundError, SchemaError),
    openapi_extra=request_body(TableSchema),
)
async def ensure_table_schema(request: Request, services: ServicesDependency, gateway: GatewayId) -> Response:
    """Register a schema unless the table has one, and return whether it was registered.

    A schema that the table has, or had before it was retired, is kept, even if it differs.
    """
    found = await run_in_threadpool(services.engine.gateway, gateway)
    body = await read_body(request, MAX_BODY_BYTES)
    return json_response(await run_in_threadpool(lambda: found.ensure_schema(parse_schema(parse_json(body)))))
