"""The routes of table schemas: a client reads one; an admin lists, registers and retires them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller, ClientCaller
from gateway.openapi_schemas import CALLER_ERRORS, ApiModel, Identifier, Struct, error_responses, example, request_body
from gateway.request_body import JsonBody
from lakesync.model.errors import NotFoundError, PayloadTooLargeError, SchemaError, ValidationError
from lakesync.model.schema import Column, Reference, TableSchema, parse_schema
from lakesync.staging.records import SchemaVersion

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
    """A column; `references` may be an object too, as the reference's clients send it."""

    references: str | Reference | None = None  # type: ignore[assignment]  # `parse_schema` converts it to text


class SchemaBody(TableSchema, frozen=True, rename="camel"):
    """A table's schema as an admin sends it."""

    columns: tuple[ColumnBody, ...]


class SavedSchema(ApiModel):
    """The answer to a registration; an equal schema keeps its version."""

    saved: bool
    version: int


class RetiredSchema(ApiModel):
    """The answer to a retirement; a schema that is registered later gets a higher version."""

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
    return RegisteredSchema(table=table, version=known.version, table_schema=known.schema)
