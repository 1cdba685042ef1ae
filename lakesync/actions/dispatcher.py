"""`Dispatcher`: executes the actions of one gateway, across repeated requests, restarts and processes.

An action is a request of a client to do something in an external system; the handler of a connector does it. A gateway
is one app's stream of changes; its engine calls `Dispatcher.submit`. A claim in the staging store
(`lakesync.actions.claims`, not a claim of a token) decides which process executes an action. It is valid for a time,
its *lease*, which the process renews while the handler runs. The stored outcome is returned to repeated requests, also
to those of another action of the client with the same *idempotency key*, a key that the client may choose.

So an action is executed once. It is attempted again only if its process died, or could not store the outcome, or if the
handler failed with an error that may be retried. The handler then recognises by the action's id what it has done.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import msgspec
import structlog

from lakesync.actions.action_services import (
    INVALID_PARAMS,
    ActionLimits,
    ActionService,
    ActionServices,
    failure,
    unknown_connector,
)
from lakesync.actions.claims import claim, decode, kept_outcome, record_outcome, renew
from lakesync.actions.runner import ActionRunner, run_attempt
from lakesync.model.action_handlers import ActionContext
from lakesync.model.crash_points import crash_point
from lakesync.model.delta import action_id
from lakesync.model.errors import ClockDriftError, ForbiddenError, StagingUnavailableError, ValidationError
from lakesync.model.hlc import HLC, MAX_DRIFT_MS, wall_of
from lakesync.model.types import Action, ActionFailure, ActionOutcome, ActionPush, ActionResponse, Claims
from lakesync.model.validation import check_hlc, check_id
from lakesync.staging.records import ActionEntry, ActionRecord
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.operations import ActionCommit

T = TypeVar("T")

PENDING = "ACTION_PENDING"
"""Error code of an action without an outcome at the request's deadline: it is running, or waits for others of the
request. Repeat the request to get the outcome."""
BUSY = "ACTION_BUSY"
"""Error code of an action that was not started, because too many are waiting."""

_FIRST_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 0.5
"""Bounds of the pause between two checks of an action that another process is executing."""
_STORE_RETRY_SECONDS = (0.5, 2.0, 5.0)
"""Pauses between attempts to store an outcome."""

_log = structlog.get_logger(__name__)


class Dispatcher:
    """Executes the actions of one gateway on the event loop of an `ActionRunner`. Any thread may call `submit`."""

    def __init__(
        self,
        gateway_id: str,
        store: TransactionStore,
        wall: Callable[[], int],
        services: ActionServices,
        runner: ActionRunner,
        limits: ActionLimits,
    ) -> None:
        """Create a dispatcher.

        Args:
            gateway_id: the gateway id.
            store: the staging store, which stores claims and outcomes.
            wall: returns the server's time, in milliseconds since 1970.
            services: finds the handlers.
            runner: provides the event loop.
            limits: the gateway's limits.
        """
        self._gateway = gateway_id
        self._store = store
        self._wall = wall
        self._services = services
        self._runner = runner
        self._limits = limits
        self._clock = HLC(wall)
        self._slots = asyncio.Semaphore(limits.max_running)
        """Limits the handlers that run at the same time."""
        self._running: dict[tuple[str, str], asyncio.Task[ActionOutcome]] = {}
        """Every running action's task, by client id and action id."""
        self._running_by_key: dict[tuple[str, str], asyncio.Task[ActionOutcome]] = {}
        """The tasks whose actions have an idempotency key, by client id and key."""

    def submit(self, push: ActionPush, claims: Claims) -> Future[ActionResponse]:
        """Execute a client's actions one after another, and return a future of the outcome of each.

        Args:
            push: the request.
            claims: the token's claims.

        Raises:
            ValidationError, ForbiddenError, ClockDriftError: nothing was executed.
            StagingUnavailableError: in the future, if the store cannot be reached. Repeat the request to get the
                outcomes.
        """
        _validate_request(push, claims, self._wall(), self._limits)
        return self._runner.submit(self._respond(push, claims))

    async def _respond(self, push: ActionPush, claims: Claims) -> ActionResponse:
        """Return the outcomes of a valid request's actions, in their order; `submit` returns it as a future."""
        deadline = time.monotonic() + self._limits.timeout
        results = [await self._outcome(action, claims, deadline) for action in push.actions]
        return ActionResponse(tuple(results), self._clock.now())

    async def _outcome(self, action: Action, claims: Claims, deadline: float) -> ActionOutcome:
        """Return an action's outcome; a retryable failure if it has none at the deadline.

        The deadline is a time of `time.monotonic`. An action with the idempotency key of a running one waits for that
        one, and has the same outcome.
        """
        problem = _id_problem(action)
        if problem is not None:
            return self._log_rejection(action, failure(action, INVALID_PARAMS, problem))
        identity = (action.client_id, action.action_id)
        same_key = self._running_by_key.get((action.client_id, action.idempotency_key or ""))
        if same_key is not None and identity not in self._running:
            outcome = await self._wait(same_key, action, deadline)
            if not isinstance(outcome, ActionFailure) or outcome.retryable:
                return outcome
            # the other action failed for good: this one may have other parameters, so it is executed
        task = self._running.get(identity)
        if task is None:
            if time.monotonic() >= deadline:
                return _pending(action)
            if len(self._running) >= self._limits.max_waiting:
                return failure(action, BUSY, "too many actions are waiting: retry later", retryable=True)
            task = self._start(action, claims)
        return await self._wait(task, action, deadline)

    async def _wait(self, task: asyncio.Task[ActionOutcome], action: Action, deadline: float) -> ActionOutcome:
        """Return a task's outcome under the action's id; a retryable failure if it is still running at the deadline."""
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            return _pending(action)
        if task.cancelled():
            raise StagingUnavailableError("the gateway is stopping; send the actions again", retry_after=1)
        return msgspec.structs.replace(task.result(), action_id=action.action_id)

    def _start(self, action: Action, claims: Claims) -> asyncio.Task[ActionOutcome]:
        """Start an action, and remember its task until it ends."""
        task = self._runner.start(self._look_up_or_execute(action, claims))
        entries = [(self._running, (action.client_id, action.action_id))]
        if action.idempotency_key is not None:
            entries.append((self._running_by_key, (action.client_id, action.idempotency_key)))
        for tasks, key in entries:
            tasks[key] = task

        def forget(_: asyncio.Task[ActionOutcome]) -> None:
            for tasks, key in entries:
                if tasks.get(key) is task:  # not the task of a later action with the same idempotency key
                    del tasks[key]

        task.add_done_callback(forget)
        return task

    async def _look_up_or_execute(self, action: Action, claims: Claims) -> ActionOutcome:
        """Return the stored outcome of an action; otherwise claim and execute it, or wait for its claim's holder."""
        service = await self._services.find(action.connector)
        rejection = unknown_connector(action) if service is None else service.actions.reject(action)
        if service is None or rejection is not None:
            # an outcome from before the connector was deleted or changed is still returned
            key = (action.client_id, action.action_id, action.idempotency_key)
            stored = await asyncio.wrap_future(self._store.read(self._gateway, lambda view: view.action(*key)))
            kept = kept_outcome(stored, self._wall(), self._limits)
            if kept is not None:
                return decode(kept, action.action_id)
            return self._log_rejection(action, rejection or unknown_connector(action))
        attempt_id = uuid.uuid4().hex
        deadline = time.monotonic() + self._limits.timeout
        pause = _FIRST_POLL_SECONDS
        while True:
            async with self._slots:
                record = await self._commit(
                    lambda commit: claim(commit, action, attempt_id, self._wall(), self._limits)
                )
                if record.claim == attempt_id:
                    outcome = await self._execute_under_lease(service, action, claims, record)
                    if outcome is not None:
                        return outcome
                    continue  # read the claim of the process that has taken over the action
            # another attempt has the claim, or had it: return its outcome once it is stored
            if record.outcome is not None:
                return decode(record.outcome, action.action_id)
            if time.monotonic() >= deadline:
                return _pending(action)
            await asyncio.sleep(pause)
            pause = min(_MAX_POLL_SECONDS, pause * 1.5)

    async def _execute_under_lease(
        self, service: ActionService, action: Action, claims: Claims, record: ActionRecord
    ) -> ActionOutcome | None:
        """Execute a claimed action, store its outcome, and log it.

        The lease is renewed until the outcome is stored, so that no other process executes the action again.

        Returns:
            The outcome; None if another process has claimed the action meanwhile, whose outcome is the action's.
        """
        crash_point("actions.claimed")
        executing = asyncio.create_task(self._execute_and_store(service, action, claims, record))
        renewing = asyncio.create_task(self._renew_lease(record))
        try:
            await asyncio.wait({executing, renewing}, return_when=asyncio.FIRST_COMPLETED)
            outcome = executing.result() if executing.done() else None
        finally:
            executing.cancel()
            renewing.cancel()
        if outcome is None:
            _log.warning(
                "action left to another process",
                gateway=self._gateway,
                client=action.client_id,
                action_id=action.action_id,
                attempt=record.attempts,
            )
        return outcome

    async def _execute_and_store(
        self, service: ActionService, action: Action, claims: Claims, record: ActionRecord
    ) -> ActionOutcome | None:
        """Let the handler execute an action, store its outcome, and log it.

        Returns:
            As `_execute_under_lease`.
        """
        context = ActionContext(self._gateway, claims, record.attempts)
        started = time.monotonic()
        outcome = await run_attempt(service.handler, action, context, self._clock.now, self._limits.max_data_bytes)
        crash_point("actions.done")
        entry = ActionEntry(
            seq=0,  # the store numbers it
            at_ms=self._wall(),
            client_id=action.client_id,
            action_id=action.action_id,
            connector=action.connector,
            action_type=action.action_type,
            attempt=record.attempts,
            code=outcome.code if isinstance(outcome, ActionFailure) else "OK",
            ms=round((time.monotonic() - started) * 1000),
        )
        if not await self._store_outcome(record, outcome, entry):
            return None
        _log.info(
            "action",
            gateway=self._gateway,
            client=entry.client_id,
            connector=entry.connector,
            type=entry.action_type,
            action_id=entry.action_id,
            attempt=entry.attempt,
            code=entry.code,
            ms=entry.ms,
        )
        return outcome

    async def _renew_lease(self, record: ActionRecord) -> None:
        """Renew the lease until this task is cancelled; return if another process has the claim."""
        while True:
            await asyncio.sleep(self._limits.lease / 3)
            try:
                if not await self._commit(lambda commit: renew(commit, record, self._wall(), self._limits)):
                    return
            except Exception:
                _log.warning("lease not renewed", gateway=self._gateway, action_id=record.action_id, exc_info=True)

    async def _store_outcome(self, record: ActionRecord, outcome: ActionOutcome, entry: ActionEntry) -> bool:
        """Store an outcome, with retries. If all fail, the client still gets it, but a repeated action runs again.

        Returns:
            False if another process has claimed the action meanwhile.
        """
        for pause in (*_STORE_RETRY_SECONDS, None):
            try:
                return await self._commit(
                    lambda commit: record_outcome(commit, record, outcome, entry, self._wall(), self._limits)
                )
            except StagingUnavailableError:
                if pause is None:
                    _log.exception("outcome not stored", gateway=self._gateway, action_id=record.action_id)
                    break
                await asyncio.sleep(pause)
        return True

    def _log_rejection(self, action: Action, rejection: ActionFailure) -> ActionFailure:
        """Log that no handler executes an action, and return the failure that says why."""
        _log.info(
            "action rejected",
            gateway=self._gateway,
            client=action.client_id,
            connector=action.connector,
            type=action.action_type,
            code=rejection.code,
        )
        return rejection

    async def _commit(self, function: Callable[[ActionCommit], T]) -> T:
        """Return the result of a function that runs in a transaction of the store, after its commit."""
        return await asyncio.wrap_future(self._store.submit(self._gateway, function))


def _pending(action: Action) -> ActionFailure:
    """Return the retryable failure of an action that has no outcome yet."""
    return failure(action, PENDING, "the action is still running: retry under the same id", retryable=True)


def _validate_request(push: ActionPush, claims: Claims, now_ms: int, limits: ActionLimits) -> None:
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
    for field, client_id in _client_ids(push):
        if client_id != sender:
            raise ForbiddenError(
                f"{field} is {client_id!r} but the token's sub is {sender!r}: use a token of that client"
            )
    for index, action in enumerate(push.actions):
        problem = _form_problem(action, limits)
        if problem is not None:
            raise ValidationError(f"actions[{index}].{problem}")
        ahead_ms = wall_of(action.hlc) - now_ms
        if ahead_ms > MAX_DRIFT_MS:
            raise ClockDriftError(
                f"actions[{index}].hlc {action.hlc} is {ahead_ms} ms ahead of the server, the maximum is "
                f"{MAX_DRIFT_MS}: correct the client's clock"
            )


def _id_problem(action: Action) -> str | None:
    """Return what is wrong with an action's id; None if it is the hash of the action's content."""
    try:
        expected = action_id(
            client_id=action.client_id,
            hlc=action.hlc,
            connector=action.connector,
            action_type=action.action_type,
            params=action.params,
        )
    except ValidationError as error:  # JSON with a number out of range has no canonical form
        return f"params have no canonical JSON: {error}"
    if action.action_id == expected:
        return None
    return f"actionId is not the SHA-256 of the action's canonical JSON, expected {expected}"


def _client_ids(push: ActionPush) -> list[tuple[str, str]]:
    """Return every client id in a request, each after the path of its field."""
    of_actions = [(f"actions[{index}].clientId", action.client_id) for index, action in enumerate(push.actions)]
    return [("clientId", push.client_id), *of_actions]


def _form_problem(action: Action, limits: ActionLimits) -> str | None:
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
