"""Actions: a client asks for them and for what there is to ask, an admin reads what was done."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.exchange import Exchange
from gateway.limits import read_body
from gateway.operations import JSON, PROTOBUF, Operation, Parameter
from gateway.services import Services
from gateway.serving import KNOWS_RESYNC
from gateway.waiting import outcome
from lakesync.actions import BUSY, PENDING
from lakesync.model.action_handlers import ActionDiscovery
from lakesync.model.errors import ClockDriftError, PayloadTooLargeError, StagingUnavailableError, ValidationError
from lakesync.model.types import ActionFailure, ActionPush, ActionResponse, ActionResult
from lakesync.staging.records import ActionEntry
from lakesync.wire import actions as wire

MAX_ENTRIES = 1000
_LIMIT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES, "default": 100}
_SEQ: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": (1 << 63) - 1}


class OutcomeBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How one action ended: `data` and `serverHlc` where it was done, the others where it was not."""

    action_id: str
    data: dict[str, Any] | UnsetType = UNSET
    server_hlc: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET


class OutcomesBody(msgspec.Struct, frozen=True, rename="camel"):
    """One outcome an action, in order."""

    results: tuple[OutcomeBody, ...]
    server_hlc: int


class ActionLog(msgspec.Struct, frozen=True):
    """Attempts at actions, newest first."""

    entries: tuple[ActionEntry, ...]


async def execute_actions(request: Request) -> Response:
    """Do a client's actions."""
    caller = await admit(request)
    body = await read_body(request, Services.of(request).settings.max_body_bytes)
    in_protobuf = bodies.sends_protobuf(request)
    push = wire.decode_push(body) if in_protobuf else wire.decode_push_json(body)
    exchange = Exchange.of(request)
    exchange.client = push.client_id
    response = await outcome(caller.gateway.submit_action(push, caller.claims(push.client_id)))
    if KNOWS_RESYNC not in request.headers:
        _check_all_ended(response)
    for result in response.results:
        Services.of(request).metrics.actions.labels(_ending(result)).inc()
    if in_protobuf:
        return Response(wire.encode_response(response), media_type=PROTOBUF)
    return Response(wire.encode_response_json(response), media_type=JSON)


async def describe_actions(request: Request) -> Response:
    """What a client may ask for."""
    caller = await admit(request)
    return bodies.json_response(await run_in_threadpool(caller.gateway.describe_actions))


async def action_log(request: Request) -> Response:
    """What was done, by whom, when, and how it ended."""
    caller = await admit(request, admin=True)
    before = _whole(request, "before", _SEQ)
    limit = _whole(request, "limit", _LIMIT)
    entries = await run_in_threadpool(caller.gateway.action_log, before, limit or _LIMIT["default"])
    return bodies.json_response(ActionLog(tuple(entries)))


def _check_all_ended(response: ActionResponse) -> None:
    """The reference's client drops an action whose answer is no transport error: it is to send all of them again.

    Raises:
        StagingUnavailableError: some are not done yet.
    """
    waiting = [each for each in response.results if isinstance(each, ActionFailure) and each.code in (PENDING, BUSY)]
    if waiting:
        raise StagingUnavailableError(
            f"{len(waiting)} of {len(response.results)} actions are not done yet: send the same request again, what is "
            "done is not done twice",
            retry_after=1,
        )


def _ending(result: ActionResult | ActionFailure) -> str:
    if isinstance(result, ActionResult):
        return "done"
    return "repeated" if result.retryable else "failed"


def _whole(request: Request, name: str, form: dict[str, Any]) -> int | None:
    """A whole number in the query; None where it is left out.

    Raises:
        ValidationError: it is something else, or out of range.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if not form["minimum"] <= number <= form["maximum"]:
        raise ValidationError(f"{name} is {text[:40]!r}, it must be from {form['minimum']} to {form['maximum']}")
    return number


OPERATIONS = (
    Operation(
        "POST",
        "/sync/{gateway}/action",
        execute_actions,
        "Have actions done; each is done once, however often it is asked for",
        parameters=(
            Parameter(
                "X-LakeSync-Client",
                "The client understands ACTION_PENDING; without it a request is 503 while an action is at work",
                {"type": "string"},
                "header",
            ),
        ),
        body=ActionPush,
        answer=OutcomesBody,
        media=(JSON, PROTOBUF),
        errors=(ValidationError, PayloadTooLargeError, ClockDriftError),
    ),
    Operation(
        "GET",
        "/sync/{gateway}/actions",
        describe_actions,
        "What may be asked of each connector",
        answer=ActionDiscovery,
    ),
    Operation(
        "GET",
        "/admin/actions/{gateway}",
        action_log,
        "Read which actions were tried, newest first",
        access="admin",
        parameters=(
            Parameter("before", "Only those with a lower seq: the last seq of the page before", _SEQ),
            Parameter("limit", "Most entries to send", _LIMIT),
        ),
        answer=ActionLog,
        errors=(ValidationError,),
    ),
)
