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
from gateway.refusals import Refusal
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.engine.explain import explain
from lakesync.engine.explanation import Explanation
from lakesync.exceptions import ValidationError
from lakesync.schema import is_identifier
from lakesync.types import Claims
from lakesync.validation import check_id


class Explained(Explanation, frozen=True, rename="camel"):
    """Why a client has a row or lacks it, and what was refused of it."""

    refused: Refusal | None
    """The latest refusal of a push of it since it last changed, where this process remembers one."""


async def explain_row(request: Request) -> Response:
    """Hold a row against what is known of a client."""
    caller = await admit(request, admin=True)
    client_id, row_id = _id(request, "clientId"), _id(request, "rowId")
    table = request.query_params.get("table", "")
    if not is_identifier(table):
        raise ValidationError(f"table {table!r} is no identifier: name a table as pushes do")
    claims = _claims(request.query_params.get("claims"))
    Exchange.of(request).client = caller.client_id(None)
    gateway, services = caller.gateway, Services.of(request)
    reading = services.engine.home(table).read(
        gateway.gateway_id, lambda view: explain(view, client_id, table, row_id, claims, gateway.rules)
    )
    refused = services.refusals.of(gateway.gateway_id, table, row_id)
    return bodies.json_response(_explained(await outcome(reading), refused))


def _explained(found: Explanation, refused: Refusal | None) -> Explained:
    """With what was refused, unless the row has changed since."""
    told = msgspec.structs.asdict(found)
    if refused is None or refused.at_ms < (found.row.changed_ms or 0):
        return Explained(**told, refused=None)
    return Explained(**told | {"reasons": (found.reasons[0], refused.said, *found.reasons[1:])}, refused=refused)


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
        answer=Explained,
        errors=(ValidationError,),
    ),
)
