"""The routes of a gateway's configuration: table schemas, sync rules, settings and connectors.

An admin reads and changes them. A client reads the schema of one table, and anyone lists the types of connectors. The
engine (`caller.gateway`) validates and stores what the routes receive. `create_app` includes the router.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import Field, WithJsonSchema
from starlette.concurrency import run_in_threadpool

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
from gateway.request_body import JsonBody
from lakesync.connectors import ConnectorDescriptor
from lakesync.model.errors import DuplicateError, NotFoundError, PayloadTooLargeError, SchemaError, ValidationError
from lakesync.model.schema import Column, Reference, TableSchema, parse_schema
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.staging.records import SchemaVersion, WriteScope

router = APIRouter()


class RegisteredSchema(ApiModel):
    """A registered schema."""

    table: str
    version: int
    table_schema: Annotated[Struct[TableSchema], Field(alias="schema")]


class RegisteredSchemas(ApiModel):
    """All registered schemas of a gateway, ordered by table."""

    schemas: tuple[RegisteredSchema, ...]


class ColumnBody(Column, frozen=True):
    """A column; `references` may be an object too, as the TypeScript client sends it."""

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


@router.get("/sync/{gateway}/schema", summary="Read a table's schema", responses=error_responses(*CALLER_ERRORS))
async def read_schema(
    caller: ClientCaller,
    table: Annotated[Identifier, Query(description="The table", openapi_examples=example("todos"))],
) -> RegisteredSchema:
    """Return one table's schema."""
    if not table:
        raise ValidationError("name the table: ?table=NAME")
    schemas = (await run_in_threadpool(caller.gateway.config)).schemas
    if table not in schemas:
        raise NotFoundError(f"no schema is registered for table {table!r}")
    return _registered(table, schemas[table])


@router.get("/admin/schema/{gateway}", summary="List all schemas", responses=error_responses(*CALLER_ERRORS))
async def list_schemas(caller: AdminCaller) -> RegisteredSchemas:
    """Return all tables' schemas."""
    schemas = (await run_in_threadpool(caller.gateway.config)).schemas
    return RegisteredSchemas(schemas=tuple(_registered(table, schemas[table]) for table in sorted(schemas)))


@router.post(
    "/admin/schema/{gateway}",
    summary="Register a table's schema, or add nullable columns to it",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError, SchemaError),
    openapi_extra=request_body(SchemaBody),
)
async def register_schema(caller: AdminCaller, body: JsonBody) -> SavedSchema:
    """Register a schema, or add columns to a registered one."""
    version = await run_in_threadpool(caller.gateway.register_schema, parse_schema(body))
    return SavedSchema(saved=True, version=version)


@router.delete(
    "/admin/schema/{gateway}/{table}",
    summary="Retire a table's schema: pushes to the table are no longer checked; rows and the lake's columns stay",
    responses=error_responses(*CALLER_ERRORS),
)
async def retire_schema(
    caller: AdminCaller,
    table: Annotated[Identifier, Path(description="The table", openapi_examples=example("todos"))],
) -> RetiredSchema:
    """Retire a schema: pushes to its table are no longer checked."""
    version = await run_in_threadpool(caller.gateway.retire_schema, table)
    return RetiredSchema(retired=True, version=version)


def _registered(table: str, known: SchemaVersion) -> RegisteredSchema:
    """Convert the store's record of a schema to the response's."""
    return RegisteredSchema(table=table, version=known.version, table_schema=known.schema)


class ActiveRules(ApiModel):
    """The active rules of a gateway; null and 0 before any were set."""

    rules: Struct[SyncRules] | None
    rules_version: int
    """Incremented by every change; not the version inside the rules."""


class SavedRules(ApiModel):
    """The response to new rules."""

    saved: bool
    rules_version: int


@router.get("/admin/sync-rules/{gateway}", summary="Read the sync rules", responses=error_responses(*CALLER_ERRORS))
async def read_rules(caller: AdminCaller) -> ActiveRules:
    """Return the active sync rules."""
    config = await run_in_threadpool(caller.gateway.config)
    return ActiveRules(rules=config.rules, rules_version=config.rules_version)


@router.post(
    "/admin/sync-rules/{gateway}",
    summary="Activate sync rules",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError),
    openapi_extra=request_body(SyncRules),
)
async def set_rules(caller: AdminCaller, body: JsonBody) -> SavedRules:
    """Activate sync rules. Clients gain and lose rows accordingly."""
    version = await run_in_threadpool(caller.gateway.set_rules, parse_rules(body))
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
async def read_settings(caller: AdminCaller) -> Struct[SettingsBody]:
    """Return the active settings: those that were set here, else those of the configuration file."""
    config = await run_in_threadpool(caller.gateway.config)
    return SettingsBody(config.write_scope or caller.gateway.declared_write_scope)


@router.post(
    "/admin/settings/{gateway}",
    summary="Change the gateway's settings",
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError),
    openapi_extra=request_body(SettingsBody),
)
async def set_settings(caller: AdminCaller, body: JsonBody) -> SavedSettings:
    """Change the settings; they override those of the configuration file, also after a restart."""
    try:
        settings = msgspec.convert(body, SettingsBody)
    except msgspec.ValidationError as error:
        raise ValidationError(f'the settings are {{"writeScope": "visible", "rules" or "any"}}: {error}') from None
    await run_in_threadpool(caller.gateway.set_write_scope, settings.write_scope)
    return SavedSettings(saved=True)


class Connector(msgspec.Struct, frozen=True):
    """A connector to register. A further key, named like the type, has its settings: `{"jira": {…}}`."""

    name: str
    type: str
    ingest: dict[str, Any] | None = None


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
