"""The routes of a gateway's configuration: table schemas, sync rules, settings and connectors.

A gateway is one app's stream of changes. A schema has the columns and types of a table; sync rules decide which rows a
client sees; a connector reaches an external system, such as Jira. An admin reads and changes them. A client reads the
schema of one table, and anyone lists the types of connectors. The engine (`caller.gateway`) validates and stores what
the routes receive. `create_app` includes the router.

The routes are plain functions, which FastAPI calls in worker threads: they wait for the store, and reading the largest
body, or writing the largest rules, takes more than 50 ms.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import WithJsonSchema

from gateway.dependencies import AdminCaller, ClientCaller, ServicesDependency
from gateway.openapi_schemas import (
    CALLER_ERRORS,
    CONNECTOR,
    ApiModel,
    Identifier,
    Struct,
    error_responses,
    example,
    request_body,
)
from gateway.request_body import LimitedBody, json_response, parse_json
from lakesync.connectors import ConnectorDescriptor
from lakesync.model.errors import DuplicateError, NotFoundError, PayloadTooLargeError, SchemaError, ValidationError
from lakesync.model.schema import Column, Reference, TableSchema, parse_schema
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.staging.records import SchemaVersion, WriteScope

router = APIRouter()


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A registered schema."""

    table: str
    version: int
    schema: TableSchema


class RegisteredSchemas(msgspec.Struct, frozen=True):
    """All registered schemas of a gateway, ordered by table."""

    schemas: tuple[RegisteredSchema, ...]
    tables: list[str] | None
    """The tables of which the gateway has rows, with and without a schema, ordered by name; null unless requested."""


class ColumnBody(Column, frozen=True):
    """A column; `references` may be an object `{table, column}` too, as the TypeScript client sends it."""

    references: str | Reference | None = None  # type: ignore[assignment]  # `parse_schema` converts it to text


class SchemaBody(TableSchema, frozen=True, rename="camel"):
    """A table's schema as an admin sends it."""

    columns: tuple[ColumnBody, ...]


class SavedSchema(ApiModel):
    """The response to a registration; an equal schema keeps its version."""

    saved: bool
    version: int


class RetiredSchema(ApiModel):
    """The response to a retirement; a schema that is registered later gets a higher version."""

    retired: bool
    version: int


@router.get(
    "/sync/{gateway}/schema",
    summary="Read a table's schema",
    response_model=Struct[RegisteredSchema],
    responses=error_responses(*CALLER_ERRORS),
)
def read_schema(
    caller: ClientCaller,
    table: Annotated[Identifier, Query(description="The table", openapi_examples=example("todos"))],
) -> Response:
    """Return one table's schema."""
    if not table:
        raise ValidationError("name the table: ?table=NAME")
    schemas = caller.gateway.config().schemas
    if table not in schemas:
        raise NotFoundError(f"no schema is registered for table {table!r}")
    return json_response(_registered(table, schemas[table]))


@router.get(
    "/admin/schema/{gateway}",
    summary="List all schemas",
    response_model=Struct[RegisteredSchemas],
    responses=error_responses(*CALLER_ERRORS),
)
def list_schemas(
    caller: AdminCaller,
    services: ServicesDependency,
    tables: Annotated[
        Literal["true", "false"],
        Query(description="`true`: the tables that have rows too; pushes wait while each is searched"),
    ] = "false",
) -> Response:
    """Return all tables' schemas."""
    schemas = caller.gateway.config().schemas
    registered = tuple(_registered(table, schemas[table]) for table in sorted(schemas))
    with_rows = services.engine.tables(caller.gateway.gateway_id) if tables == "true" else None
    return json_response(RegisteredSchemas(registered, with_rows))


@router.post(
    "/admin/schema/{gateway}",
    summary="Register a table's schema, or add nullable columns to it",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError, SchemaError),
    openapi_extra=request_body(SchemaBody),
)
def register_schema(caller: AdminCaller, body: LimitedBody) -> SavedSchema:
    """Register a schema, or add columns to a registered one."""
    version = caller.gateway.register_schema(parse_schema(parse_json(body)))
    return SavedSchema(saved=True, version=version)


@router.delete(
    "/admin/schema/{gateway}/{table}",
    summary="Retire a table's schema: pushes to the table are no longer checked; rows and the lake's columns stay",
    responses=error_responses(*CALLER_ERRORS),
)
def retire_schema(
    caller: AdminCaller,
    table: Annotated[Identifier, Path(description="The table", openapi_examples=example("todos"))],
) -> RetiredSchema:
    """Retire a schema: pushes to its table are no longer checked."""
    version = caller.gateway.retire_schema(table)
    return RetiredSchema(retired=True, version=version)


class ActiveRules(msgspec.Struct, frozen=True, rename="camel"):
    """The active rules of a gateway; null and 0 before any were set."""

    rules: SyncRules | None
    rules_version: int
    """Incremented by every change; not the version inside the rules."""


class SavedRules(ApiModel):
    """The response to new rules."""

    saved: bool
    rules_version: int


@router.get(
    "/admin/sync-rules/{gateway}",
    summary="Read the sync rules",
    response_model=Struct[ActiveRules],
    responses=error_responses(*CALLER_ERRORS),
)
def read_rules(caller: AdminCaller) -> Response:
    """Return the active sync rules."""
    config = caller.gateway.config()
    return json_response(ActiveRules(config.rules, config.rules_version))


@router.post(
    "/admin/sync-rules/{gateway}",
    summary="Activate sync rules",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError),
    openapi_extra=request_body(SyncRules),
)
def set_rules(caller: AdminCaller, body: LimitedBody) -> SavedRules:
    """Activate sync rules. Clients gain and lose rows accordingly."""
    version = caller.gateway.set_rules(parse_rules(parse_json(body)))
    return SavedRules(saved=True, rules_version=version)


class SettingsBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of a gateway."""

    write_scope: WriteScope
    """Rows that a client may push to, if there are sync rules. `visible`: rows that the rules show to the client, and
    new rows. `rules`: the same, and the rules must also show the row after the push. `any`: every row; a client can
    then make any row visible to itself and read it."""


class SavedSettings(ApiModel):
    """The response to new settings."""

    saved: bool


@router.get(
    "/admin/settings/{gateway}", summary="Read the gateway's settings", responses=error_responses(*CALLER_ERRORS)
)
def read_settings(caller: AdminCaller) -> Struct[SettingsBody]:
    """Return the active settings: those that were set here, else those of the configuration file."""
    config = caller.gateway.config()
    return SettingsBody(config.write_scope or caller.gateway.declared_write_scope)


@router.post(
    "/admin/settings/{gateway}",
    summary="Change the gateway's settings",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError),
    openapi_extra=request_body(SettingsBody),
)
def set_settings(caller: AdminCaller, body: LimitedBody) -> SavedSettings:
    """Change the settings; they override those of the configuration file, also after a restart."""
    try:
        settings = msgspec.convert(parse_json(body), SettingsBody)
    except msgspec.ValidationError as error:
        raise ValidationError(f'the settings are {{"writeScope": "visible", "rules" or "any"}}: {error}') from None
    caller.gateway.set_write_scope(settings.write_scope)
    return SavedSettings(saved=True)


class Connector(msgspec.Struct, frozen=True):
    """A connector to register. A further key, named like the type, has its settings: `{"jira": {…}}`."""

    name: str
    type: str
    ingest: dict[str, Any] | None = None
    """When and how the connector is polled; null if it is not."""


class RegisteredConnector(ApiModel):
    """The response to a registration."""

    registered: bool
    name: str


class UnregisteredConnector(ApiModel):
    """The response to an unregistration."""

    unregistered: bool
    name: str


class ConnectorSummary(ApiModel):
    """A registered connector without its settings, which may contain secrets."""

    name: str
    type: str
    has_ingest: bool
    """Whether the connector is polled."""


@router.get("/connectors/types", summary="List the connector types", responses=error_responses())
def list_connector_types(services: ServicesDependency) -> Struct[list[ConnectorDescriptor]]:
    """Return all connector types with the JSON Schema of their settings."""
    return services.engine.connectors.descriptors()


@router.get(
    "/admin/connectors/{gateway}",
    summary="List the registered connectors",
    responses=error_responses(*CALLER_ERRORS),
)
def list_connectors(caller: AdminCaller) -> list[ConnectorSummary]:
    """Return the registered connectors."""
    return [
        ConnectorSummary(name=each.name, type=each.type, has_ingest=each.ingest is not None)
        for each in caller.gateway.connectors()
    ]


@router.post(
    "/admin/connectors/{gateway}",
    summary="Register a connector",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError, DuplicateError),
    openapi_extra=request_body(Connector),
)
def register_connector(caller: AdminCaller, body: LimitedBody) -> RegisteredConnector:
    """Register a connector."""
    connector = caller.gateway.register_connector(parse_json(body))
    return RegisteredConnector(registered=True, name=connector.name)


@router.delete(
    "/admin/connectors/{gateway}/{name}",
    summary="Unregister a connector",
    responses=error_responses(*CALLER_ERRORS),
)
def unregister_connector(
    caller: AdminCaller,
    name: Annotated[
        str, WithJsonSchema(CONNECTOR), Path(description="The connector's name", openapi_examples=example("crm"))
    ],
) -> UnregisteredConnector:
    """Unregister a connector."""
    caller.gateway.unregister_connector(name)
    return UnregisteredConnector(unregistered=True, name=name)


def _registered(table: str, known: SchemaVersion) -> RegisteredSchema:
    """Convert the store's record of a schema to the response's."""
    return RegisteredSchema(table, known.version, known.schema)
