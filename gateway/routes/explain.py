"""Why a client has a row or lacks it, for an operator."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.exchange import Exchange
from gateway.forms import ID, IDENTIFIER
from gateway.operations import Operation, Parameter
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.engine.explain import explain
from lakesync.engine.explanation import Explanation
from lakesync.exceptions import ValidationError
from lakesync.schema import is_identifier
from lakesync.types import Claims
from lakesync.validation import check_id


async def explain_row(request: Request) -> Response:
    """Hold a row against what is known of a client."""
    caller = await admit(request, admin=True)
    client_id, row_id = _id(request, "clientId"), _id(request, "rowId")
    table = request.query_params.get("table", "")
    if not is_identifier(table):
        raise ValidationError(f"table {table!r} is no identifier: name a table as pushes do")
    claims = _claims(request.query_params.get("claims"))
    Exchange.of(request).client = caller.client_id(None)
    gateway = caller.gateway
    reading = (
        Services.of(request)
        .engine.home(table)
        .read(gateway.gateway_id, lambda view: explain(view, client_id, table, row_id, claims, gateway.rules))
    )
    return bodies.json_response(await outcome(reading))


def _id(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    fault = check_id(name, value)
    if fault is not None:
        raise ValidationError(fault)
    return value


def _claims(text: str | None) -> Claims | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=Claims)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValidationError(
            f"claims must be a JSON object of strings and lists of strings, as in a token: {error}"
        ) from error


_CLAIMS = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}

OPERATIONS = (
    Operation(
        "GET",
        "/admin/explain/{gateway}",
        explain_row,
        "Say in words why a client has a row or lacks it",
        access="admin",
        parameters=(
            Parameter("clientId", "The client", ID, required=True, example="client-1"),
            Parameter("table", "The row's table", IDENTIFIER, required=True, example="todos"),
            Parameter("rowId", "The row", ID, required=True, example="t1"),
            Parameter(
                "claims",
                "JSON object of the client's claims; without it, those that its last pull had are used",
                _CLAIMS,
                as_json=True,
            ),
        ),
        answer=Explanation,
        errors=(ValidationError,),
    ),
)
