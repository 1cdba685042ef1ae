"""Runs the handlers of actions: an event loop in a thread of its own, and one attempt at an action on it.

An action is a request of a client that a connector executes in an external system, by a handler. `ActionRunner` is the
event loop, so that a slow handler delays neither the store nor the server. `run_attempt` runs a handler once, and
converts its result or error to the action's outcome. `Dispatcher` calls this module; the engine closes the runner. A
gateway is one app's stream of changes.
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

from lakesync.actions.action_services import failure
from lakesync.model.action_handlers import ActionContext, ActionData, ActionHandler
from lakesync.model.errors import ConfigurationError, LakeSyncError, StagingUnavailableError, TransientError
from lakesync.model.types import Action, ActionOutcome, ActionResult

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_FAILED = "ACTION_EXECUTION_ERROR"
"""Error code of a failure without a more specific one."""


class ActionRunner:
    """Runs the actions of all gateways of an engine. Its thread starts with the first action."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        """The tasks of `start` that have not ended."""

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

        Actions that do not end in time are cancelled. Another process may retry them when this one's claims expire.

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


async def run_attempt(
    handler: Callable[[], ActionHandler],
    action: Action,
    context: ActionContext,
    server_hlc: Callable[[], int],
    max_data_bytes: int,
) -> ActionOutcome:
    """Let a handler execute an action once.

    Unexpected errors and those of the configuration are logged; clients get a message without internal details.

    Args:
        handler: returns the handler, or raises an error of `ActionHandler.execute_action`.
        action: the action.
        context: the gateway, the claims of the token, and the number of the attempt.
        server_hlc: returns the gateway's timestamp for the result.
        max_data_bytes: maximum size of the result as JSON.

    Returns:
        The result; or a failure, which is retryable if the handler raised a `TransientError` or an `OSError`.
    """
    try:
        data = await _call_handler(handler(), action, context)
        return ActionResult(action.action_id, _encode_data(data, max_data_bytes), server_hlc())
    except ConfigurationError as error:  # it may name settings and files of the operator, which clients must not see
        _log_failure(action, context, error)
        return failure(action, error.code, "the connector is not configured correctly; see the gateway's log")
    except LakeSyncError as error:
        return failure(action, _code(error), error.public_message, retryable=isinstance(error, TransientError))
    except OSError as error:
        _log_failure(action, context, error)
        return failure(action, _FAILED, "the connector could not reach what it needs: retry", retryable=True)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # this attempt is cancelled, and not only a task of the handler
        _log_failure(action, context, error)
        return failure(action, _FAILED, "the handler failed; see the gateway's log")


async def _call_handler(handler: ActionHandler, action: Action, context: ActionContext) -> ActionData:
    """Let a handler execute an action: a coroutine on this loop, any other function in a thread of its own.

    With one thread per action, a handler that never returns blocks neither other actions nor the end of the process.

    Args:
        handler: executes the action.
        action: the action.
        context: the gateway, the claims of the token, and the number of the attempt.

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
        except (LakeSyncError, OSError) as error:
            future.set_exception(error)
        except BaseException as error:  # asyncio cannot pass on StopIteration; SystemExit would stop the gateway
            wrapped = RuntimeError(f"the handler raised {error!r}")
            wrapped.__cause__ = error
            future.set_exception(wrapped)

    threading.Thread(target=run, name=f"action {action.connector}", daemon=True).start()
    returned = await asyncio.wrap_future(future)
    data: ActionData = await returned if inspect.isawaitable(returned) else returned
    return data


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
