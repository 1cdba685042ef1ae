"""What a client may see, for somebody who looks at it without being its app."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.admission import admit
from gateway.exchange import Exchange
from gateway.forms import CURSOR, ID
from gateway.operations import JSON, Operation, Parameter
from gateway.routes.sync import LIMIT
from gateway.waiting import outcome
from lakesync.model.errors import ForbiddenError, ResyncRequiredError, ValidationError
from lakesync.model.types import RowDelta
from lakesync.wire.json import parse_pull
from lakesync.wire.spelled import encode_array


class Peeked(msgspec.Struct, frozen=True, rename="camel"):
    """Rows that the client may see, or their changes since a cursor."""

    deltas: tuple[RowDelta, ...]
    cursor: str
    """For the next look, with the same claims."""
    has_more: bool


async def peek(request: Request) -> Response:
    """Show what a client may see; nothing is remembered of it."""
    caller = await admit(request)
    query = request.query_params
    client_id = caller.client_id(query.get("clientId"))
    claims = caller.claims(client_id)
    if client_id != claims["sub"]:
        raise ForbiddenError(f"clientId is {client_id!r} but the token's sub is {claims['sub']!r}")
    asked = parse_pull({"clientId": client_id, **{name: query[name] for name in query if name == "limit"}})
    exchange = Exchange.of(request)
    exchange.client = client_id
    page = await outcome(caller.gateway.submit_peek(claims, query.get("since"), asked.max_deltas))
    exchange.deltas = len(page.deltas)
    more = b"true" if page.has_more else b"false"
    cursor = msgspec.json.encode(page.cursor)
    body = b'{"deltas":%b,"cursor":%b,"hasMore":%b}' % (encode_array(page.deltas), cursor, more)
    return Response(body, media_type=JSON)


OPERATIONS = (
    Operation(
        "GET",
        "/sync/{gateway}/peek",
        peek,
        "Look at what the client may see, without counting as its app: nothing is remembered",
        parameters=(
            Parameter(
                "since", "The cursor of the page before; without it, all that is there; `now`: nothing of that", CURSOR
            ),
            Parameter("clientId", "Whose rows; equals the token's sub", ID),
            Parameter("limit", "Most deltas to show", LIMIT),
        ),
        answer=Peeked,
        errors=(ValidationError, ResyncRequiredError),
    ),
)
