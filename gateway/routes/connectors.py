"""The routes of connectors: anyone lists the types, an admin registers, lists and unregisters connectors."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller
from gateway.openapi_schemas import CALLER_ERRORS, CONNECTOR, ApiModel, Struct, error_responses, example, request_body
from gateway.request_body import JsonBody
from gateway.services import ServicesDependency
from lakesync.connectors import ConnectorDescriptor
from lakesync.model.errors import DuplicateError, PayloadTooLargeError

router = APIRouter()


class Connector(msgspec.Struct, frozen=True):
    """A connector to register; its settings are under the key that is its type's name."""

    name: str
    type: str
    ingest: dict[str, Any] | None = None


class RegisteredConnector(ApiModel):
    """The answer to a registration."""

    registered: bool
    name: str


class UnregisteredConnector(ApiModel):
    """The answer to an unregistration."""

    unregistered: bool
    name: str


class ConnectorSummary(ApiModel):
    """A registered connector without its settings, which may hold secrets."""

    name: str
    type: str
    has_ingest: bool


@router.get("/connectors/types", summary="List the connector types", responses=error_responses())
async def list_connector_types(services: ServicesDependency) -> Struct[list[ConnectorDescriptor]]:
    """Return all connector types with the JSON Schema of their settings."""
    return await run_in_threadpool(services.engine.connectors.descriptors)


@router.get(
    "/admin/connectors/{gateway}",
    summary="List the registered connectors",
    responses=error_responses(*CALLER_ERRORS),
)
async def list_connectors(caller: AdminCaller) -> list[ConnectorSummary]:
    """Return the registered connectors."""
    connectors = await run_in_threadpool(caller.gateway.connectors)
    return [ConnectorSummary(name=each.name, type=each.type, has_ingest=each.ingest is not None) for each in connectors]


@router.post(
    "/admin/connectors/{gateway}",
    summary="Register a connector",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError, DuplicateError),
    openapi_extra=request_body(Connector),
)
async def register_connector(caller: AdminCaller, body: JsonBody) -> RegisteredConnector:
    """Register a connector."""
    connector = await run_in_threadpool(caller.gateway.register_connector, body)
    return RegisteredConnector(registered=True, name=connector.name)


@router.delete(
    "/admin/connectors/{gateway}/{name}",
    summary="Unregister a connector",
    responses=error_responses(*CALLER_ERRORS),
)
async def unregister_connector(
    caller: AdminCaller,
    name: Annotated[
        str, WithJsonSchema(CONNECTOR), Path(description="The connector's name", openapi_examples=example("crm"))
    ],
) -> UnregisteredConnector:
    """Unregister a connector."""
    await run_in_threadpool(caller.gateway.unregister_connector, name)
    return UnregisteredConnector(unregistered=True, name=name)
