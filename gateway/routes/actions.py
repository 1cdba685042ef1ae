"""The routes of actions: a client lists and requests them, an admin reads the log.

A gateway is one app's stream of changes. An action is a request of a client that one of the gateway's connectors
executes once in an external system, such as opening a ticket. The engine (`caller.gateway`) executes it and stores its
outcome. `create_app` includes the router.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller, ClientCaller, ServicesDependency
from gateway.futures import result_of
from gateway.openapi_schemas import (
    CALLER_ERRORS,
    DIGITS,
    JSON,
    PROTOBUF,
    Struct,
    error_responses,
    header_parameter,
    request_body,
)
from gateway.request_body import LimitedBody, decode_if_large, json_response, sends_protobuf
from gateway.request_log import RequestRecord, header
from gateway.sync_service import CLIENT_HEADER
from lakesync.actions import BUSY, PENDING
from lakesync.model.action_handlers import ActionDiscovery
from lakesync.model.errors import ClockDriftError, PayloadTooLargeError, StagingUnavailableError
from lakesync.model.types import ActionFailure, ActionPush, ActionResponse, ActionResult
from lakesync.staging.records import ActionEntry
from lakesync.wire import actions as wire
from lakesync.wire import json

router = APIRouter()

MAX_ENTRIES = 1000
"""Number of log entries in a response, at most."""
_MAX_SEQ = (1 << 63) - 1
"""The greatest number of a log entry."""


class ActionOutcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The outcome of one action: with `data` and `serverHlc` for a success, with the other fields for a failure."""

    action_id: str
    data: dict[str, Any] | UnsetType = UNSET
    server_hlc: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET


class ActionOutcomes(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of each action, in the order of the request."""

    results: tuple[ActionOutcome, ...]
    server_hlc: int


class ActionLog(msgspec.Struct, frozen=True):
    """Attempts at actions, newest first."""

    entries: tuple[ActionEntry, ...]


@router.post(
    "/sync/{gateway}/action",
    summary="Execute actions; each is executed once, also if the request is repeated",
    response_model=Struct[ActionOutcomes],
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError, ClockDriftError)
    | {200: {"content": {PROTOBUF: {}}}},
    openapi_extra={
        "parameters": [
            header_parameter(
                "X-LakeSync-Client",
                "The client understands ACTION_PENDING; without it a request is 503 while an action is at work",
            )
        ],
        **request_body(ActionPush, PROTOBUF),
    },
)
async def execute_actions(
    request: Request, caller: ClientCaller, services: ServicesDependency, body: LimitedBody
) -> Response:
    """Execute a client's actions. An action that was executed before returns its first outcome."""
    in_protobuf = sends_protobuf(request)
    push = (await decode_if_large(wire.decode_push if in_protobuf else wire.decode_push_json, body))()
    RequestRecord.of(request).set_client(push.client_id)
    response = await result_of(caller.gateway.submit_action(push, caller.claims(push.client_id)))
    if header(request.scope, CLIENT_HEADER) is None:  # not LakeSync's own client, which understands ACTION_PENDING
        _check_all_finished(response)
    for result in response.results:
        services.metrics.actions.labels(_outcome_label(result)).inc()
    encode, media_type = (wire.encode_response, PROTOBUF) if in_protobuf else (json.encode_json, JSON)
    return Response(await run_in_threadpool(encode, response), media_type=media_type)  # up to 25 MiB of results


@router.get(
    "/sync/{gateway}/actions",
    summary="List the actions of each connector",
    response_model=Struct[ActionDiscovery],
    responses=error_responses(*CALLER_ERRORS),
)
def describe_actions(caller: ClientCaller) -> Response:
    """Return the actions of each connector."""
    return json_response(caller.gateway.describe_actions())


@router.get(
    "/admin/actions/{gateway}",
    summary="Read the log of attempts at actions, newest first",
    response_model=Struct[ActionLog],
    responses=error_responses(*CALLER_ERRORS),
)
def read_action_log(
    caller: AdminCaller,
    before: Annotated[
        Annotated[int, Field(ge=1, le=_MAX_SEQ), DIGITS] | None,
        Query(description="Only those with a lower seq: the last seq of the page before"),
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES), DIGITS, Query(description="Most entries to return")] = 100,
) -> Response:
    """Return a page of the log of attempts at actions."""
    return json_response(ActionLog(tuple(caller.gateway.action_log(before, limit))))


def _check_all_finished(response: ActionResponse) -> None:
    """Reject the whole request while an action is running.

    The TypeScript client, whose protocol LakeSync speaks, retries only after transport errors. It would drop an action
    whose outcome says that it is still running.

    Raises:
        StagingUnavailableError: some actions have not finished.
    """
    running = [each for each in response.results if isinstance(each, ActionFailure) and each.code in (PENDING, BUSY)]
    if running:
        raise StagingUnavailableError(
            f"{len(running)} of {len(response.results)} actions are still running. "
            "Retry the same request; completed actions are not repeated.",
            retry_after=1,
        )


def _outcome_label(result: ActionResult | ActionFailure) -> str:
    """Return the label of an outcome in the metrics: `done`, `failed`, or `repeated` for a retryable failure."""
    if isinstance(result, ActionResult):
        return "done"
    return "repeated" if result.retryable else "failed"
