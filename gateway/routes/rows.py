"""The routes that read rows outside of the sync: a client peeks at what it may see, an admin inspects rows.

A client's app *pulls* the changes of rows that it lacks, and the gateway (the app's stream of changes) records how far
it is (its cursor). A *peek* reads the same without recording anything, for a reader that is not the app: a pull by it
would change what the app receives next.

An admin reads the rows of a table, and learns why a client has a row or lacks it: that follows from the sync rules,
which decide what a client sees, the claims (fields of the token) of its last pull, and its cursor. `lakesync pull`,
`rules test`, `rules diff`, `explain` and `trace` call these routes, and so does the console.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from gateway.client_lag import refresh_client
from gateway.dependencies import AdminCaller, ClientCaller, ServicesDependency
from gateway.futures import result_of
from gateway.openapi_schemas import (
    CALLER_ERRORS,
    CURSOR,
    DIGITS,
    ID,
    JSON,
    AnyId,
    Identifier,
    Struct,
    error_responses,
    example,
    query_parameter,
)
from gateway.request_body import json_response
from gateway.request_log import RequestRecord
from gateway.routes.sync import LIMIT
from gateway.tracked_client import ClientStatus
from lakesync.engine.checks import check_client
from lakesync.engine.inspection.explanation import Explanation
from lakesync.engine.inspection.rejections import RejectedDelta
from lakesync.feed.pull import MAX_PAGE_BYTES
from lakesync.model.errors import ResyncRequiredError, ValidationError
from lakesync.model.hlc import iso_time
from lakesync.model.schema import IDENTIFIER_FORM, is_identifier
from lakesync.model.types import Claims, RowDelta, RowKey
from lakesync.model.validation import check_id
from lakesync.staging.records import StoredRow
from lakesync.staging.store.push import RowCommit
from lakesync.wire.encoded import encode_array
from lakesync.wire.json import encode_json, parse_pull

router = APIRouter()


class PeekPage(msgspec.Struct, frozen=True, rename="camel"):
    """Rows that the client may see, or their changes since a cursor."""

    deltas: tuple[RowDelta, ...]
    cursor: str
    """`since` of the next request, which must have the same claims."""
    has_more: bool


@router.get(
    "/sync/{gateway}/peek",
    summary="Read what the client may see, without affecting what its app receives",
    response_model=Struct[PeekPage],
    responses=error_responses(*CALLER_ERRORS, ResyncRequiredError),
    openapi_extra={
        "parameters": [
            query_parameter(
                "since", "The cursor of the page before; without it, all rows; `now`: later changes only", CURSOR
            ),
            query_parameter("clientId", "Client id; equals the token's sub", ID),
            query_parameter("limit", "Most deltas to return", LIMIT),
        ]
    },
)
async def peek(request: Request, caller: ClientCaller) -> Response:
    """Return a page of what a client may see, without recording anything about the client.

    The limit is read from the query by the same parser as a pull's.
    """
    query = request.query_params
    client_id = caller.client_id(query.get("clientId"))
    claims = caller.claims(client_id)
    check_client(client_id, claims)
    pull = parse_pull({"clientId": client_id, **{name: query[name] for name in query if name == "limit"}})
    record = RequestRecord.of(request)
    record.set_client(client_id)
    page = await result_of(caller.gateway.submit_peek(claims, query.get("since"), pull.max_deltas))
    record.deltas = len(page.deltas)
    has_more = b"true" if page.has_more else b"false"
    cursor = msgspec.json.encode(page.cursor)
    body = b'{"deltas":%b,"cursor":%b,"hasMore":%b}' % (encode_array(page.deltas), cursor, has_more)
    return Response(body, media_type=JSON)


MAX_ROWS = 10_000
"""Number of rows that one request reads, at most."""
_ROWS_PER_READ = 32
"""Number of rows that one read of the store returns, at most."""


class TableRow(msgspec.Struct, frozen=True, rename="camel"):
    """A visible row with its merged values."""

    row_id: str
    arrival_hlc: int
    """The gateway's timestamp of its latest change."""
    values: dict[str, msgspec.Raw]
    """Column → its value, as JSON."""


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
    _check_row_key(table, {"after": after} if after is not None else {})
    store = services.engine.store_of(table)
    read = partial(_read_page, table=table, after=after or "", limit=limit)
    page = await result_of(store.submit(caller.gateway.gateway_id, read))
    return Response(await run_in_threadpool(_encode_rows, page), media_type=JSON)


_CLAIMS_PARAMETER: dict[str, Any] = {
    "name": "claims",
    "in": "query",
    "required": False,
    "description": "JSON object of the client's claims; by default those of its last pull",
    "content": {
        JSON: {
            "schema": {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            }
        }
    },
}


class RowExplanation(Explanation, frozen=True, rename="camel"):
    """Why a client has a row or lacks it, with what this process knows of the client and of rejected pushes."""

    rejected: RejectedDelta | None = msgspec.field(name="refused")
    """The latest rejected change of the row since it last changed; null if this process remembers none."""
    client_status: ClientStatus | None = msgspec.field(name="standing")
    """The client's status; null if this process has not seen it since it started."""


@router.get(
    "/admin/explain/{gateway}",
    summary="Explain why a client has a row or lacks it",
    response_model=Struct[RowExplanation],
    responses=error_responses(*CALLER_ERRORS),
    openapi_extra={"parameters": [_CLAIMS_PARAMETER]},
)
async def explain_row(
    request: Request,
    caller: AdminCaller,
    services: ServicesDependency,
    client_id: Annotated[
        AnyId, Query(alias="clientId", description="The client", openapi_examples=example("client-1"))
    ],
    table: Annotated[Identifier, Query(description="The row's table", openapi_examples=example("todos"))],
    row_id: Annotated[AnyId, Query(alias="rowId", description="The row", openapi_examples=example("t1"))],
) -> Response:
    """Explain why a client has a row or lacks it."""
    _check_row_key(table, {"clientId": client_id, "rowId": row_id})
    claims = _parse_claims(request.query_params.get("claims"))
    RequestRecord.of(request).set_client(caller.client_id(None))
    gateway = caller.gateway
    await refresh_client(services, gateway.gateway_id, client_id)
    connected = services.connected_clients(gateway.gateway_id)
    tracked = services.clients.tracked_cursor(gateway.gateway_id, client_id, connected.get(client_id))
    explanation = await result_of(gateway.submit_explain(client_id, table, row_id, claims, tracked))
    rejected = gateway.rejections.latest(gateway.gateway_id, table, row_id, explanation.row.arrival_hlc or 0)
    status = services.clients.status(gateway.gateway_id, client_id, connected)
    return await run_in_threadpool(json_response, _with_status(explanation, rejected, status))


def _read_page(commit: RowCommit, table: str, after: str, limit: int) -> TableRows:
    """Read a page of a table's rows, which ends at `limit` rows or once its values have `MAX_PAGE_BYTES` bytes.

    Args:
        commit: the store's transaction.
        table: the table.
        after: the row id after which to begin.
        limit: the most rows to read, including deleted ones, which stay in the store as tombstones.
    """
    rows: list[TableRow] = []
    size = 0
    for count, row in enumerate(_rows_after(commit, (table, after), min(_ROWS_PER_READ, limit)), 1):
        if row.table != table:
            break
        if row.state.visible:
            values = row.state.values()
            rows.append(TableRow(row.row_id, row.arrival, values))
            size += sum(memoryview(value).nbytes for value in values.values())
        if count == limit or size >= MAX_PAGE_BYTES:
            return TableRows(rows, row.row_id)
    return TableRows(rows, None)


def _encode_rows(page: TableRows) -> bytes:
    """Encode a page row by row: encoding a large one at once would stop all other threads for 30 ms."""
    return b'{"rows":[%b],"next":%b}' % (b",".join(map(encode_json, page.rows)), encode_json(page.next))


def _rows_after(commit: RowCommit, key: RowKey, at_a_time: int) -> Iterator[StoredRow]:
    """Yield the gateway's rows after a row key, in key order.

    They are read a few at a time, because all rows of a page could fill the memory and delay other gateways.

    Args:
        commit: the store's transaction.
        key: the row key.
        at_a_time: the most rows of one read.
    """
    while True:
        found = commit.scan_rows(key, at_a_time)
        yield from found
        if len(found) < at_a_time:
            return
        key = found[-1].key


def _check_row_key(table: str, ids: Mapping[str, str]) -> None:
    """Check a table's name and ids, as pushes are checked.

    Args:
        table: the table.
        ids: query parameter → the row's or client's id in it.

    Raises:
        ValidationError: one of them is malformed.
    """
    if not is_identifier(table):
        raise ValidationError(f"table {table!r} is no identifier: use {IDENTIFIER_FORM}")
    for name, value in ids.items():
        fault = check_id(name, value)
        if fault is not None:
            raise ValidationError(fault)


def _with_status(
    explanation: Explanation, rejected: RejectedDelta | None, status: ClientStatus | None
) -> RowExplanation:
    """Add the latest rejected change of the row, and the client's status, to an explanation."""
    verdict, *details = explanation.reasons  # sentences, the most important first
    rejection = [rejected.sentence] if rejected is not None else []
    reasons = (verdict, *rejection, *_status_reasons(explanation, status), *details)
    fields = msgspec.structs.asdict(explanation) | {"reasons": reasons}
    return RowExplanation(**fields, rejected=rejected, client_status=status)


def _status_reasons(explanation: Explanation, status: ClientStatus | None) -> Iterator[str]:
    """Yield sentences about the client's connection and its last pull."""
    if not explanation.row.exists:
        return
    if status is not None and status.unsent_since_ms is not None:
        yield f"the oldest unsent change by others that it may see is from {iso_time(status.unsent_since_ms)}"
    if status is None:
        yield "this process of the gateway has not seen the client since it started"
    elif status.repeats:
        yield (
            f"it has asked {status.repeats + 1} times in a row with the same cursor, though each answer brought "
            "something: it cannot keep what it is sent, as its db.status.last_error says, no answer comes through, or "
            "two databases use its id"
        )
    elif status.connected:
        yield "it is connected and is sent changes as they happen"
    elif status.pulled_ms is None:
        yield "it has pushed, and not pulled, since this process started: it is offline, in mode pushOnly, or failing"
    else:
        yield f"it last pulled at {iso_time(status.pulled_ms)}" + (", and more waits for it" * status.has_more)


def _parse_claims(text: str | None) -> Claims | None:
    """Parse the query parameter `claims`; None if it is missing.

    Raises:
        ValidationError: the claims are not a JSON object of strings and lists of strings.
    """
    if text is None:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=Claims)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValidationError(
            f"claims must be a JSON object of strings and lists of strings, as in a token: {error}"
        ) from error
