"""Connectors: anyone reads which types there are, an admin registers, lists and unregisters them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.forms import CONNECTOR
from gateway.operations import Operation, Parameter
from gateway.services import Services
from lakesync.connectors import ConnectorDescriptor
from lakesync.model.errors import DuplicateError, NotFoundError, PayloadTooLargeError, ValidationError


class Connector(msgspec.Struct, frozen=True):
    """A connector to register: its settings stand under the key that is its type's name."""

    name: str
    type: str
    ingest: dict[str, Any] | None = None


class Registered(msgspec.Struct, frozen=True):
    """The answer to a registration."""

    registered: bool
    name: str


class Unregistered(msgspec.Struct, frozen=True):
    """The answer to an unregistration."""

    unregistered: bool
    name: str


class KnownConnector(msgspec.Struct, frozen=True, rename="camel"):
    """A registered connector, without its settings."""

    name: str
    type: str
    has_ingest: bool


async def connector_types(request: Request) -> Response:
    """Every connector type, with the JSON Schema of its settings."""
    engine = Services.of(request).engine
    return bodies.json_response(await run_in_threadpool(engine.connectors.descriptors))


async def register_connector(request: Request) -> Response:
    """Register a connector."""
    caller = await admit(request, admin=True)
    body = await bodies.read_object(request, Services.of(request).settings.max_body_bytes)
    connector = await run_in_threadpool(caller.gateway.register_connector, body)
    return bodies.json_response(Registered(True, connector.name))


async def list_connectors(request: Request) -> Response:
    """The registered connectors, never what is in them."""
    caller = await admit(request, admin=True)
    connectors = await run_in_threadpool(caller.gateway.connectors)
    return bodies.json_response([KnownConnector(each.name, each.type, each.ingest is not None) for each in connectors])


async def unregister_connector(request: Request) -> Response:
    """Forget a connector."""
    caller = await admit(request, admin=True)
    name = request.path_params["name"]
    await run_in_threadpool(caller.gateway.unregister_connector, name)
    return bodies.json_response(Unregistered(True, name))


OPERATIONS = (
    Operation(
        "GET",
        "/connectors/types",
        connector_types,
        "Which types of connector there are",
        access="open",
        answer=list[ConnectorDescriptor],
    ),
    Operation(
        "GET",
        "/admin/connectors/{gateway}",
        list_connectors,
        "List the registered connectors",
        access="admin",
        answer=list[KnownConnector],
    ),
    Operation(
        "POST",
        "/admin/connectors/{gateway}",
        register_connector,
        "Register a connector",
        access="admin",
        body=Connector,
        answer=Registered,
        errors=(ValidationError, PayloadTooLargeError, DuplicateError),
    ),
    Operation(
        "DELETE",
        "/admin/connectors/{gateway}/{name}",
        unregister_connector,
        "Unregister a connector",
        access="admin",
        parameters=(Parameter("name", "The connector's name", CONNECTOR, "path", example="crm"),),
        answer=Unregistered,
        errors=(NotFoundError,),
    ),
)
