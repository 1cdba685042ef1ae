"""The route `GET /sync/{gateway}/peek`: it returns what a client may see, to a reader that is not the client's app.

Unlike a pull it records nothing about the client. A pull records the client's cursor, so a pull by another reader would
change what the app receives next.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from gateway.dependencies import ClientCaller
from gateway.futures import result_of
from gateway.openapi_schemas import CALLER_ERRORS, CURSOR, ID, JSON, Struct, error_responses, query_parameter
from gateway.request_log import RequestRecord
from gateway.routes.sync import LIMIT
from lakesync.model.errors import ForbiddenError, ResyncRequiredError
from lakesync.model.types import RowDelta
from lakesync.wire.encoded import encode_array
from lakesync.wire.json import parse_pull

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
    if client_id != claims["sub"]:
        raise ForbiddenError(f"clientId is {client_id!r} but the token's sub is {claims['sub']!r}")
    pull = parse_pull({"clientId": client_id, **{name: query[name] for name in query if name == "limit"}})
    record = RequestRecord.of(request)
    record.client = client_id
    page = await result_of(caller.gateway.submit_peek(claims, query.get("since"), pull.max_deltas))
    record.deltas = len(page.deltas)
    has_more = b"true" if page.has_more else b"false"
    cursor = msgspec.json.encode(page.cursor)
    body = b'{"deltas":%b,"cursor":%b,"hasMore":%b}' % (encode_array(page.deltas), cursor, has_more)
    return Response(body, media_type=JSON)
