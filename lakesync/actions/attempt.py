"""Runs one attempt at an action, and converts the handler's result or error to an outcome. `Dispatcher` calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from lakesync.actions.leases import Outcome
from lakesync.actions.runner import call_handler
from lakesync.actions.supported_actions import failure
from lakesync.model.action_handlers import ActionContext, ActionData, ActionHandler
from lakesync.model.errors import LakeSyncError, TransientError
from lakesync.model.types import Action, ActionResult

FAILED = "ACTION_EXECUTION_ERROR"
"""Code of a failure without a more specific one."""

_log = structlog.get_logger(__name__)


async def run_attempt(
    handler: Callable[[], ActionHandler],
    action: Action,
    context: ActionContext,
    server_hlc: Callable[[], int],
    max_data_bytes: int,
) -> Outcome:
    """Let a handler execute an action.

    Unexpected errors are logged; clients get a message without internal details.

    Args:
        handler: returns the handler, or raises an error of `ActionHandler.execute_action`.
        action: the action.
        context: gateway, claims and number of the attempt.
        server_hlc: returns the hlc of the result.
        max_data_bytes: maximum size of the result as JSON.

    Returns:
        The result; or a failure, which is retryable if the handler raised a `TransientError` or an `OSError`.
    """
    try:
        data = await call_handler(handler(), action, context)
        return ActionResult(action.action_id, _encode_data(data, max_data_bytes), server_hlc())
    except asyncio.CancelledError:
        raise
    except LakeSyncError as error:
        return failure(action, _code(error), str(error), retryable=isinstance(error, TransientError))
    except OSError as error:
        _log_failure(action, context, error)
        return failure(action, FAILED, "the connector could not reach what it needs: retry", retryable=True)
    except BaseException as error:
        _log_failure(action, context, error)
        return failure(action, FAILED, "the handler failed; see the gateway's log")


def _encode_data(data: ActionData, limit: int) -> msgspec.Raw:
    """Encode a handler's result. One above the limit is omitted and not an error, because the action was executed.

    Raises:
        TypeError: the result is not a mapping.
    """
    if data is not None and not isinstance(data, Mapping):
        raise TypeError(f"the handler returned a {type(data).__name__}, expected a mapping or None")
    text = msgspec.json.encode(dict(data or {}))
    if len(text) > limit:
        text = msgspec.json.encode({"omitted": f"the data has {len(text)} bytes, the maximum is {limit}"})
    return msgspec.Raw(text)


def _code(error: LakeSyncError) -> str:
    return FAILED if error.code == LakeSyncError.code else error.code


def _log_failure(action: Action, context: ActionContext, error: BaseException) -> None:
    _log.error(
        "action handler failed",
        gateway=context.gateway,
        connector=action.connector,
        type=action.action_type,
        action_id=action.action_id,
        exc_info=error,
    )
