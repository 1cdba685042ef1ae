"""Why a client has a row or lacks it, for an operator."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.clients import ClientStanding
from gateway.exchange import Exchange
from gateway.forms import ID, IDENTIFIER
from gateway.lag import look_at_client
from gateway.operations import Operation, Parameter
from gateway.refusals import Refusal
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.engine.explanation import Explanation
from lakesync.engine.reasons import moment
from lakesync.model.errors import ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.types import Claims
from lakesync.model.validation import check_id


class Explained(Explanation, frozen=True, rename="camel"):
    """Why a client has a row or lacks it, and what was refused of it."""

    refused: Refusal | None
    """The latest refusal of a push of it since it last changed, where this process remembers one."""
    standing: ClientStanding | None
    """How far the client is; null where this process has not seen it since it started."""


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
    await look_at_client(services, gateway.gateway_id, client_id)
    followed = services.hub.followed(gateway.gateway_id)
    where = services.clients.whereabouts(gateway.gateway_id, client_id, followed.get(client_id))
    found = await outcome(gateway.submit_explain(client_id, table, row_id, claims, where))
    refused = services.refusals.of(gateway.gateway_id, table, row_id, found.row.arrival_hlc or 0)
    standing = services.clients.of(gateway.gateway_id, client_id, followed)
    return bodies.json_response(_explained(found, refused, standing))


def _explained(found: Explanation, refused: Refusal | None, standing: ClientStanding | None) -> Explained:
    """With what was refused, and how far the client is."""
    first, *others = found.reasons
    reasons = (first, *([refused.said] if refused is not None else ()), *_how_far(found, standing), *others)
    told = msgspec.structs.asdict(found) | {"reasons": reasons}
    return Explained(**told, refused=refused, standing=standing)


def _how_far(found: Explanation, standing: ClientStanding | None) -> Iterator[str]:
    if not found.row.exists:
        return
    if standing is not None and standing.unsent_since_ms is not None:
        yield f"the oldest change by others that it may see and was not sent is of {moment(standing.unsent_since_ms)}"
    if standing is None:
        yield "this process of the gateway has not seen the client since it started"
    elif standing.repeats:
        yield (
            f"it has asked {standing.repeats + 1} times in a row with the same cursor, though each answer brought "
            "something: it cannot keep what it is sent, as its db.status.last_error says, or no answer comes through"
        )
    elif standing.connected:
        yield "it is connected, and told of what is new as it comes"
    elif standing.pulled_ms is None:
        yield "it has pushed, and not pulled, since this process started: it is offline, in mode pushOnly, or failing"
    else:
        yield f"it last pulled at {moment(standing.pulled_ms)}" + (", and more waits for it" * standing.has_more)


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
