"""Runs the handlers of actions, and stores the claims by which processes agree which of them executes an action.

An action is a request of a client that a connector executes once in an external system, by a handler. A process that
executes it has a claim on it. The claim expires at the end of its lease, unless the process renews it; then another
process may take over.

`ActionRunner` is an event loop in a thread of its own, so that a slow handler delays neither the store nor the server.
`run_attempt` runs a handler once, and converts its result or error to an outcome, which is stored. `Dispatcher` calls
this module; the engine closes the runner.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
import structlog

from lakesync.actions.action_services import ActionLimits, failure
from lakesync.model.action_handlers import ActionContext, ActionData, ActionHandler
from lakesync.model.errors import LakeSyncError, StagingUnavailableError, TransientError
from lakesync.model.types import Action, ActionFailure, ActionResult
from lakesync.staging.records import ActionEntry, ActionRecord
from lakesync.staging.store.operations import ActionCommit

Outcome = ActionResult | ActionFailure
"""An action's result or failure; a retryable failure may also mean that it is still running."""
T = TypeVar("T")

_log = structlog.get_logger(__name__)

_FAILED = "ACTION_EXECUTION_ERROR"
"""Error code of a failure without a more specific one."""


class _StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome as JSON in the store."""

    hlc: int = 0
    """The gateway's timestamp of a result."""
    data: msgspec.Raw = msgspec.Raw(b"{}")
    code: str = ""
    """The code of a failure; empty for a result."""
    message: str = ""


_decode = msgspec.json.Decoder(_StoredOutcome).decode
"""Decodes a stored outcome from JSON."""


def claim(commit: ActionCommit, action: Action, attempt_id: str, now_ms: int, limits: ActionLimits) -> ActionRecord:
    """Claim an action, unless it is done or claimed by another process. Return the action's record after that.

    The record is that of another action of the client if that one has the same idempotency key.

    Args:
        commit: the store's transaction.
        action: the action.
        attempt_id: identifies the attempt; the record has it as its `claim` if the attempt now has the claim.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.
    """
    known = commit.action(action.client_id, action.action_id)
    same_key = commit.action(action.client_id, "", action.idempotency_key)  # with an empty id, it is found by key only
    for record in (known, same_key):
        if record is not None and is_done_or_claimed(record, now_ms, limits):
            return record
    earlier = known or same_key
    claimed = ActionRecord(
        client_id=action.client_id,
        action_id=action.action_id,
        idempotency_key=action.idempotency_key,
        attempts=1 if earlier is None else earlier.attempts + 1,
        claim=attempt_id,
        lease_ms=now_ms + round(limits.lease * 1000),
        touched_ms=now_ms,
    )
    commit.put_action(claimed)
    return claimed


def is_done_or_claimed(record: ActionRecord, now_ms: int, limits: ActionLimits) -> bool:
    """Return whether an action must not be executed now: it has a recent outcome, or another process runs it.

    Args:
        record: the action's record.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits; an outcome is recent within `retention_ms`.
    """
    if record.outcome is not None:
        return record.touched_ms >= now_ms - limits.retention_ms
    return record.lease_ms > now_ms


def renew(commit: ActionCommit, record: ActionRecord, now_ms: int, limits: ActionLimits) -> bool:
    """Extend the lease of an action that is still running. That of one whose outcome was stored stays ended.

    Args:
        commit: the store's transaction.
        record: the action's record, as `claim` returned it.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.

    Returns:
        False if another attempt has the claim.
    """
    stored = commit.action(record.client_id, record.action_id, record.idempotency_key)
    if stored is not None and stored.claim == record.claim and stored.lease_ms:
        lease_ms = now_ms + round(limits.lease * 1000)
        commit.put_action(msgspec.structs.replace(record, lease_ms=lease_ms, touched_ms=now_ms))
    return not _is_taken_over(stored, record)


def record_outcome(
    commit: ActionCommit, record: ActionRecord, outcome: Outcome, entry: ActionEntry, now_ms: int, limits: ActionLimits
) -> bool:
    """Store an action's outcome and a log entry, and end the lease. A retryable failure is not stored.

    If another process has taken over the claim, or if it was erased, the action's record is left unchanged.

    Args:
        commit: the store's transaction.
        record: the action's record, as `claim` returned it.
        outcome: the attempt's outcome.
        entry: the log entry for admins.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.

    Returns:
        False if another attempt has the claim, whose outcome is the action's.
    """
    known = commit.action(record.client_id, record.action_id, record.idempotency_key)
    if known is not None and known.claim == record.claim:
        is_retryable = isinstance(outcome, ActionFailure) and outcome.retryable
        stored = None if is_retryable else encode(outcome)
        commit.put_action(msgspec.structs.replace(record, lease_ms=0, touched_ms=now_ms, outcome=stored))
    commit.note_action(entry, limits.kept_entries)
    commit.drop_actions(now_ms - limits.retention_ms)
    return not _is_taken_over(known, record)


def encode(outcome: Outcome) -> bytes:
    """Encode a final outcome for the store."""
    if isinstance(outcome, ActionResult):
        return msgspec.json.encode(_StoredOutcome(hlc=outcome.server_hlc, data=outcome.data))
    return msgspec.json.encode(_StoredOutcome(code=outcome.code, message=outcome.message))


def decode(stored: bytes, action_id: str) -> Outcome:
    """Decode a stored outcome as that of an action.

    Args:
        stored: the stored outcome.
        action_id: the id of the requested action, which may only share its idempotency key with the executed one.
    """
    outcome = _decode(stored)
    if outcome.code:
        return ActionFailure(action_id, outcome.code, outcome.message, retryable=False)
    return ActionResult(action_id, outcome.data, outcome.hlc)


def _is_taken_over(stored: ActionRecord | None, record: ActionRecord) -> bool:
    """Return whether another attempt has the claim, by the stored record; None if the record was erased.

    An erased action has no claim, and is not executed again.
    """
    return stored is not None and stored.claim != record.claim


class ActionRunner:
    """Runs the actions of all gateways of an engine. Its thread starts with the first action."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. Any thread may call it.

        Returns:
            A future of the coroutine's result.

        Raises:
            StagingUnavailableError: the runner is closed.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise StagingUnavailableError("the gateway is stopping; send the actions again", retry_after=1)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="actions", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as a task for which `close` waits. Call it on the loop."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def close(self, timeout: float) -> None:
        """Reject further coroutines, and wait for running actions.

        Actions that do not end in time are cancelled. Another process may retry them when their leases have expired.

        Args:
            timeout: seconds to wait.
        """
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._finish(timeout), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    async def _finish(self, seconds: float) -> None:
        """Wait for running actions, then cancel those that are left and let waiting requests get their results."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        if self._tasks:
            _log.warning("actions left unfinished", count=len(self._tasks))
        for task in self._tasks:
            task.cancel()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        if waiting:  # these coroutines return the results to waiting requests, and then end
            await asyncio.wait(waiting, timeout=1)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        """Run an event loop until it is stopped. The target of the runner's thread."""
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Forget a task that has ended."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved, so that asyncio does not log it: waiting requests raise it


async def _call_handler(handler: ActionHandler, action: Action, context: ActionContext) -> ActionData:
    """Let a handler execute an action: a coroutine on this loop, any other function in a thread of its own.

    With one thread per action, a handler that never returns blocks neither other actions nor the end of the process.

    Args:
        handler: executes the action.
        action: the action.
        context: gateway, claims and number of the attempt.

    Raises:
        Exception: any error of the handler.
    """
    if inspect.iscoroutinefunction(handler.execute_action):
        result: ActionData = await handler.execute_action(action, context)
        return result
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(handler.execute_action(action, context))
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # SystemExit in a handler must not stop the gateway
            future.set_exception(RuntimeError(f"the handler raised {error!r}"))

    threading.Thread(target=run, name=f"action {action.connector}", daemon=True).start()
    returned = await asyncio.wrap_future(future)
    data: ActionData = await returned if inspect.isawaitable(returned) else returned
    return data


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
        server_hlc: returns the gateway's timestamp for the result.
        max_data_bytes: maximum size of the result as JSON.

    Returns:
        The result; or a failure, which is retryable if the handler raised a `TransientError` or an `OSError`.
    """
    try:
        data = await _call_handler(handler(), action, context)
        return ActionResult(action.action_id, _encode_data(data, max_data_bytes), server_hlc())
    except asyncio.CancelledError:
        raise
    except LakeSyncError as error:
        return failure(action, _code(error), str(error), retryable=isinstance(error, TransientError))
    except OSError as error:
        _log_failure(action, context, error)
        return failure(action, _FAILED, "the connector could not reach what it needs: retry", retryable=True)
    except BaseException as error:
        _log_failure(action, context, error)
        return failure(action, _FAILED, "the handler failed; see the gateway's log")


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
    """Return the error code that the client gets."""
    return _FAILED if error.code == LakeSyncError.code else error.code


def _log_failure(action: Action, context: ActionContext, error: BaseException) -> None:
    """Log an unexpected error of a handler, with its traceback."""
    _log.error(
        "action handler failed",
        gateway=context.gateway,
        connector=action.connector,
        type=action.action_type,
        action_id=action.action_id,
        exc_info=error,
    )
