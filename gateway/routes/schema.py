"""Table schemas: a client reads one, an admin registers and lists them."""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.forms import IDENTIFIER
from gateway.operations import Operation, Parameter
from gateway.services import Services
from lakesync.model.errors import NotFoundError, PayloadTooLargeError, SchemaError, ValidationError
from lakesync.model.schema import Column, Reference, TableSchema, parse_schema
from lakesync.staging.records import SchemaVersion


class KnownSchema(msgspec.Struct, frozen=True, rename="camel"):
    """A registered schema."""

    table: str
    version: int
    schema: TableSchema


class KnownSchemas(msgspec.Struct, frozen=True, rename="camel"):
    """Every registered schema of a gateway, by table."""

    schemas: tuple[KnownSchema, ...]


class GivenColumn(Column, frozen=True):
    """A column, whose `references` may be an object too, as the reference's clients send it."""

    references: str | Reference | None = None  # type: ignore[assignment]  # `parse_schema` makes it text


class GivenSchema(TableSchema, frozen=True, rename="camel"):
    """A table's schema as an admin gives it."""

    columns: tuple[GivenColumn, ...]


class SavedSchema(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to a registration; an equal schema keeps its version."""

    saved: bool
    version: int


class RetiredSchema(msgspec.Struct, frozen=True):
    """The answer to a retirement; a schema that is registered later has a higher version."""

    retired: bool
    version: int


async def table_schema(request: Request) -> Response:
    """One table's schema."""
    caller = await admit(request)
    table = request.query_params.get("table")
    if not table:
        raise ValidationError("name the table: ?table=NAME")
    schemas = (await run_in_threadpool(caller.gateway.config)).schemas
    if table not in schemas:
        raise NotFoundError(f"no schema is registered for table {table!r}")
    return bodies.json_response(_known(table, schemas[table]))


async def all_schemas(request: Request) -> Response:
    """Every table's schema."""
    caller = await admit(request, admin=True)
    schemas = (await run_in_threadpool(caller.gateway.config)).schemas
    return bodies.json_response(KnownSchemas(tuple(_known(table, schemas[table]) for table in sorted(schemas))))


async def register(request: Request) -> Response:
    """Register a schema, or evolve one."""
    caller = await admit(request, admin=True)
    schema = parse_schema(await bodies.read_object(request, Services.of(request).settings.max_body_bytes))
    version = await run_in_threadpool(caller.gateway.register_schema, schema)
    return bodies.json_response(SavedSchema(True, version))


async def retire(request: Request) -> Response:
    """Retire a schema."""
    caller = await admit(request, admin=True)
    version = await run_in_threadpool(caller.gateway.retire_schema, request.path_params["table"])
    return bodies.json_response(RetiredSchema(True, version))


def _known(table: str, known: SchemaVersion) -> KnownSchema:
    return KnownSchema(table, known.version, known.schema)


OPERATIONS = (
    Operation(
        "GET",
        "/sync/{gateway}/schema",
        table_schema,
        "Read a table's schema",
        parameters=(Parameter("table", "The table", IDENTIFIER, required=True, example="todos"),),
        answer=KnownSchema,
        errors=(ValidationError, NotFoundError),
    ),
    Operation("GET", "/admin/schema/{gateway}", all_schemas, "List every schema", access="admin", answer=KnownSchemas),
    Operation(
        "POST",
        "/admin/schema/{gateway}",
        register,
        "Register a table's schema, or evolve it by nullable columns",
        access="admin",
        body=GivenSchema,
        answer=SavedSchema,
        errors=(ValidationError, PayloadTooLargeError, SchemaError),
    ),
    Operation(
        "DELETE",
        "/admin/schema/{gateway}/{table}",
        retire,
        "Retire a table's schema: pushes to the table are no longer checked; rows and the lake's columns stay",
        access="admin",
        parameters=(Parameter("table", "The table", IDENTIFIER, "path", example="todos"),),
        answer=RetiredSchema,
        errors=(NotFoundError,),
    ),
)
