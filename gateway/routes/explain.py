"""The route `GET /admin/explain/{gateway}`: it tells an operator why a client has a row or lacks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from gateway.client_lag import refresh_client
from gateway.client_tracker import ClientStatus
from gateway.dependencies import AdminCaller
from gateway.futures import result_of
from gateway.openapi_schemas import CALLER_ERRORS, JSON, AnyId, Identifier, Struct, error_responses, example
from gateway.request_body import json_response
from gateway.request_log import RequestRecord
from gateway.services import ServicesDependency
from lakesync.engine.explanation import Explanation
from lakesync.engine.reasons import moment
from lakesync.engine.rejections import RejectedDelta
from lakesync.model.errors import ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.types import Claims
from lakesync.model.validation import check_id

router = APIRouter()

_CLAIMS: dict[str, Any] = {
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

    refused: RejectedDelta | None
    """The latest rejected delta of the row since it last changed; null if this process remembers none."""
    standing: ClientStatus | None
    """The client's status; null if this process has not seen it since it started."""


@router.get(
    "/admin/explain/{gateway}",
    summary="Explain why a client has a row or lacks it",
    response_model=Struct[RowExplanation],
    responses=error_responses(*CALLER_ERRORS),
    openapi_extra={"parameters": [_CLAIMS]},
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
    for name, value in (("clientId", client_id), ("rowId", row_id)):
        fault = check_id(name, value)
        if fault is not None:
            raise ValidationError(fault)
    if not is_identifier(table):
        raise ValidationError(f"table {table!r} is no identifier: name a table as pushes do")
    claims = _parse_claims(request.query_params.get("claims"))
    RequestRecord.of(request).client = caller.client_id(None)
    gateway = caller.gateway
    await refresh_client(services, gateway.gateway_id, client_id)
    connected = services.connected_clients(gateway.gateway_id)
    position = services.clients.position(gateway.gateway_id, client_id, connected.get(client_id))
    found = await result_of(gateway.submit_explain(client_id, table, row_id, claims, position))
    rejected = gateway.rejections.latest(gateway.gateway_id, table, row_id, found.row.arrival_hlc or 0)
    status = services.clients.status(gateway.gateway_id, client_id, connected)
    return json_response(_with_status(found, rejected, status))


def _with_status(found: Explanation, rejected: RejectedDelta | None, status: ClientStatus | None) -> RowExplanation:
    first, *others = found.reasons
    reasons = (first, *([rejected.sentence] if rejected is not None else ()), *_status_reasons(found, status), *others)
    fields = msgspec.structs.asdict(found) | {"reasons": reasons}
    return RowExplanation(**fields, refused=rejected, standing=status)


def _status_reasons(found: Explanation, status: ClientStatus | None) -> Iterator[str]:
    """Yield sentences about the client's connection and its last pull."""
    if not found.row.exists:
        return
    if status is not None and status.unsent_since_ms is not None:
        yield f"the oldest unsent change by others that it may see is from {moment(status.unsent_since_ms)}"
    if status is None:
        yield "this process of the gateway has not seen the client since it started"
    elif status.repeats:
        yield (
            f"it has asked {status.repeats + 1} times in a row with the same cursor, though each answer brought "
            "something: it cannot keep what it is sent, as its db.status.last_error says, or no answer comes through"
        )
    elif status.connected:
        yield "it is connected and is sent changes as they happen"
    elif status.pulled_ms is None:
        yield "it has pushed, and not pulled, since this process started: it is offline, in mode pushOnly, or failing"
    else:
        yield f"it last pulled at {moment(status.pulled_ms)}" + (", and more waits for it" * status.has_more)


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
