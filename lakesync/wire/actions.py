"""Encodes and decodes actions and their outcomes, in JSON and protobuf (`lakesync.proto`).

An *action* is a client's command to an external system, which the gateway executes once. Its *hlc* is the client's
timestamp, by a hybrid logical clock. Gateway and client call this module.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from lakesync.model.delta import jcs_raw
from lakesync.model.errors import ValidationError
from lakesync.model.types import Action, ActionFailure, ActionOutcome, ActionPush, ActionResponse, ActionResult
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.json import read
from lakesync.wire.malformed import check_range, hlc_problem, replace_lone_surrogates
from lakesync.wire.protobuf import parse


class _UntypedHlc(msgspec.Struct):
    """The hlc (the client's timestamp) of an action as the request has it.

    It is checked because `_decode_push` also accepts texts such as `1e3`.
    """

    hlc: Any


class _Envelope(msgspec.Struct):
    """An action request, with nothing but the hlcs."""

    actions: list[_UntypedHlc]


_decode_push = msgspec.json.Decoder(ActionPush, strict=False).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def decode_push_json(body: bytes) -> ActionPush:
    """Decode an action request in JSON.

    Raises:
        ValidationError: the body has another form.
    """
    # This changes an action's content, so its id, a hash of the content, no longer fits: only that action is rejected.
    body = replace_lone_surrogates(body)
    push = read("actions", _decode_push, body)
    hlcs = [action.hlc for action in read("actions", _decode_envelope, body).actions]
    for index, (action, hlc) in enumerate(zip(push.actions, hlcs, strict=True)):
        problem = hlc_problem("hlc", hlc)
        if problem is not None:
            raise ValidationError(f"actions[{index}]: {problem}")
        _check(action, f"actions[{index}]")
    return push


def encode_push(push: ActionPush) -> bytes:
    """Encode an action request as the protobuf message `ActionPush`."""
    return pb.ActionPush(
        client_id=push.client_id,
        actions=[
            pb.Action(**(asdict(action) | {"params": bytes(action.params)}))  # the message has the same fields
            for action in push.actions
        ],
    ).SerializeToString()


def decode_push(data: bytes) -> ActionPush:
    """Decode an action request from the protobuf message `ActionPush`.

    Raises:
        ValidationError: `data` has another form.
    """
    message = parse(pb.ActionPush(), data)
    actions = tuple(
        Action(
            item.client_id,
            item.hlc,
            item.connector,
            item.action_type,
            _raw(item.params),
            item.action_id,
            item.idempotency_key if item.HasField("idempotency_key") else None,
        )
        for item in message.actions
    )
    for index, action in enumerate(actions):
        _check(action, f"actions[{index}]")
    return ActionPush(message.client_id, actions)


def encode_response(response: ActionResponse) -> bytes:
    """Encode the response to an action request as the protobuf message `ActionResponse`."""
    return pb.ActionResponse(
        results=[_outcome(result) for result in response.results], server_hlc=response.server_hlc
    ).SerializeToString()


def decode_response(data: bytes) -> ActionResponse:
    """Decode the response to an action request from the protobuf message `ActionResponse`.

    Raises:
        ValidationError: `data` has another form.
    """
    message = parse(pb.ActionResponse(), data)
    check_range("serverHlc", message.server_hlc)
    results: list[ActionOutcome] = []
    for index, item in enumerate(message.results):
        kind = item.WhichOneof("outcome")
        if kind == "result":
            succeeded = item.result
            check_range(f"results[{index}].serverHlc", succeeded.server_hlc)
            result = ActionResult(succeeded.action_id, _raw(succeeded.data), succeeded.server_hlc)
            _check_json(result.data, f"results[{index}].data")
            results.append(result)
        elif kind == "error":
            failed = item.error
            results.append(ActionFailure(failed.action_id, failed.code, failed.message, failed.retryable))
        else:
            raise ValidationError(f"results[{index}] is neither a result nor an error")
    return ActionResponse(tuple(results), message.server_hlc)


def _outcome(result: ActionOutcome) -> pb.ActionOutcome:
    """Return an action's outcome as a protobuf message."""
    if isinstance(result, ActionResult):
        return pb.ActionOutcome(result=pb.ActionResult(**(asdict(result) | {"data": bytes(result.data)})))
    return pb.ActionOutcome(error=pb.ActionError(**asdict(result)))


def _raw(data: bytes) -> msgspec.Raw:
    """Return the JSON in a protobuf field, without space around it; an empty object if the field is empty."""
    return msgspec.Raw(replace_lone_surrogates(data.strip(b" \t\r\n")) or b"{}")


def _check(action: Action, where: str) -> None:
    """Check that an action's hlc is in range, and that its params are a JSON object with a canonical form (JCS).

    Args:
        action: the action.
        where: the action's place in the request, with which the message begins.

    Raises:
        ValidationError: they are not; the message starts with `where`.
    """
    check_range(f"{where}.hlc", action.hlc)
    if memoryview(action.params)[0] != ord("{"):
        raise ValidationError(f"{where}.params is not a JSON object")
    _check_json(action.params, f"{where}.params")


def _check_json(raw: msgspec.Raw, where: str) -> None:
    """Check that a value has a canonical form (JCS, RFC 8785); a ValidationError begins with `where`."""
    try:
        jcs_raw(raw)
    except ValidationError as error:
        raise ValidationError(f"{where}: {error}") from None
