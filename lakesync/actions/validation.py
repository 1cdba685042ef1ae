"""Validates a request with actions before any of them is executed. `Dispatcher` calls it."""

from __future__ import annotations

from lakesync.actions.limits import ActionLimits
from lakesync.model import hlc
from lakesync.model.delta import action_id
from lakesync.model.errors import ClockDriftError, ForbiddenError, ValidationError
from lakesync.model.types import Action, ActionPush, Claims
from lakesync.model.validation import check_hlc, check_id


def validate_request(push: ActionPush, claims: Claims, now_ms: int, limits: ActionLimits) -> None:
    """Validate a request. If it is invalid, none of its actions is executed.

    Args:
        push: the request.
        claims: the token's claims.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.

    Raises:
        ValidationError: there are too many actions, or an action is malformed; names its position.
        ForbiddenError: the request or an action has a client id that is not the token's `sub`.
        ClockDriftError: an hlc is too far ahead of the server.
    """
    if len(push.actions) > limits.max_actions:
        raise ValidationError(
            f"the request has {len(push.actions)} actions, the maximum is {limits.max_actions}: split it"
        )
    sender = claims.get("sub")
    for where, client_id in _client_ids(push):
        if client_id != sender:
            raise ForbiddenError(
                f"{where} is {client_id!r} but the token's sub is {sender!r}: use a token of that client"
            )
    for index, action in enumerate(push.actions):
        problem = _problem(action, limits)
        if problem is not None:
            raise ValidationError(f"actions[{index}].{problem}")
        ahead_ms = hlc.decode(action.hlc)[0] - now_ms
        if ahead_ms > hlc.MAX_DRIFT_MS:
            raise ClockDriftError(
                f"actions[{index}].hlc {action.hlc} is {ahead_ms} ms ahead of the server, the maximum is "
                f"{hlc.MAX_DRIFT_MS}: correct the client's clock"
            )


def validate_action_id(action: Action) -> str | None:
    """Check that an action's id is the hash of its content. Returns the error message, or None."""
    expected = action_id(
        client_id=action.client_id,
        hlc=action.hlc,
        connector=action.connector,
        action_type=action.action_type,
        params=action.params,
    )
    if action.action_id == expected:
        return None
    return f"actionId is not the SHA-256 of the action's canonical JSON, expected {expected}"


def _client_ids(push: ActionPush) -> list[tuple[str, str]]:
    """Return every client id in a request, each after the path of its field."""
    of_actions = [(f"actions[{index}].clientId", action.client_id) for index, action in enumerate(push.actions)]
    return [("clientId", push.client_id), *of_actions]


def _problem(action: Action, limits: ActionLimits) -> str | None:
    """Return what is wrong with an action's fields, starting with the field's name; None if they are valid."""
    size = len(bytes(action.params))
    if size > limits.max_params_bytes:
        return f"params has {size} bytes, the maximum is {limits.max_params_bytes}: make them smaller"
    key = action.idempotency_key
    return (
        check_id("actionId", action.action_id)
        or check_id("clientId", action.client_id)
        or check_id("connector", action.connector)
        or check_id("actionType", action.action_type)
        or (check_id("idempotencyKey", key) if key is not None else None)
        or check_hlc("hlc", action.hlc)
    )
