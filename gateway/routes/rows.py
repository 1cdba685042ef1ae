"""The route `GET /admin/rows/{gateway}`: an admin reads a table's rows, as `lakesync rules try` does."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import Field

from gateway.dependencies import AdminCaller
from gateway.futures import result_of
from gateway.openapi_schemas import CALLER_ERRORS, DIGITS, AnyId, Identifier, Struct, error_responses, example
from gateway.request_body import json_response
from gateway.services import ServicesDependency
from lakesync.model.errors import ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.validation import check_id

router = APIRouter()

MAX_ROWS = 10_000
"""Number of rows that one request reads, at most."""


class TableRow(msgspec.Struct, frozen=True, rename="camel"):
    """A visible row with its merged values."""

    row_id: str
    arrival_hlc: int
    """Arrival of its latest change."""
    values: dict[str, msgspec.Raw]


class TableRows(msgspec.Struct, frozen=True, rename="camel"):
    """A page of rows, ordered by row id."""

    rows: list[TableRow]
    next: str | None
    """`after` of the next request; null on the last page."""


@router.get(
    "/admin/rows/{gateway}",
    summary="Read the rows of a table, whatever the sync rules are",
    response_model=Struct[TableRows],
    responses=error_responses(*CALLER_ERRORS),
)
async def list_rows(
    caller: AdminCaller,
    services: ServicesDependency,
    table: Annotated[Identifier, Query(description="The table", openapi_examples=example("todos"))],
    after: Annotated[AnyId | None, Query(description="Only rows with ids after this one")] = None,
    limit: Annotated[
        int,
        Field(ge=1, le=MAX_ROWS),
        DIGITS,
        Query(description="Most rows to read; deleted ones are left out"),
    ] = 1000,
) -> Response:
    """Return a page of a table's rows, whatever the sync rules are. The values are written as they were pushed."""
    if not is_identifier(table):
        raise ValidationError(f"table {table!r} is no identifier: name a table as pushes do")
    fault = check_id("after", after) if after is not None else None
    if fault is not None:
        raise ValidationError(fault)
    start = (table, after or "")
    store = services.engine.home(table)
    found = await result_of(store.submit(caller.gateway.gateway_id, lambda commit: commit.scan_rows(start, limit)))
    of_table = [row for row in found if row.table == table]
    visible = [TableRow(row.row_id, row.arrival, row.state.values()) for row in of_table if row.state.visible]
    has_more = len(found) == limit == len(of_table)
    return json_response(TableRows(visible, of_table[-1].row_id if has_more else None))
