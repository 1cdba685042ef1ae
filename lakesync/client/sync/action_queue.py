"""The queue of an app's actions, in the app's database, and the sender of its actions.

An action is a request that the gateway executes once in an external system, such as opening a ticket; its outcome is
its result or its error. Apps reach the queue as `client.coordinator.actions`, and by methods of `Client`. The replica
is the app's database; each change of the queue is a step of it, which is one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from lakesync.client.errors import UnreachableError
from lakesync.client.status import EventListeners
from lakesync.client.sync.exchange import CycleResult
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import ActionTransport, SyncTransport
from lakesync.model.delta import make_action
from lakesync.model.errors import ConfigurationError, LakeSyncError, NotFoundError
from lakesync.model.types import Action, ActionFailure, ActionPush, ActionResult

ActionStatus = Literal["waiting", "done", "failed"]
"""`waiting`: to be sent, again if necessary. `done`: executed. `failed`: rejected for good, or attempted too often."""
_SENT_TOGETHER = 50
"""Actions of one request, at most."""
_LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""Seconds for which the gateway can postpone an action, at most."""
_STILL_RUNNING = frozenset({"ACTION_PENDING", "ACTION_BUSY"})
"""Error codes of an action that the gateway is still executing; they do not count as an attempt."""

_POSTPONING_CODES = ("AUTH_ERROR", "NOT_FOUND")
"""Codes of errors after which all actions stay queued: a rejected token, or an unknown gateway."""
_TABLE = """CREATE TABLE IF NOT EXISTS _lakesync_actions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, due REAL NOT NULL,
    attempts INTEGER NOT NULL, body BLOB NOT NULL, data BLOB, code TEXT NOT NULL, message TEXT NOT NULL)"""
"""Creates the table of actions. `due` is in seconds since 1970, `body` the action and `data` its result, both as
JSON."""
_COLUMNS = "body, status, attempts, data, code, message"
"""The columns that `_queued_action` decodes."""
_decode = msgspec.json.Decoder(Action).decode
_encode = msgspec.json.Encoder().encode


class QueuedAction(msgspec.Struct, frozen=True):
    """An action and its state."""

    action: Action
    status: ActionStatus
    """`failed` actions stay until they are retried or dropped; `done` ones until they are dropped."""
    attempts: int
    """How often the gateway has responded with a result or an error, other than that it is still executing the action.
    """
    data: Any = None
    """The decoded result of a `done` action."""
    code: str = ""
    """The error code of the newest failure; empty before the first."""
    message: str = ""
    """The message of the newest failure."""

    @property
    def action_id(self) -> str:
        """The action's id."""
        return self.action.action_id


class ActionQueue:
    """The actions of a client. They survive the process, and each is executed once, however often it is sent."""

    def __init__(self, replica: Replica, wake: Callable[[], object]) -> None:
        """Create the queue's table in a replica's database, if it does not exist.

        Args:
            replica: the app's database.
            wake: called when there may be an action to send.
        """
        self._replica = replica
        self._wake = wake
        self._db = replica.db
        self._retry = replica.retry
        self._longest_delay = max(_LONGEST_RETRY_AFTER_SECONDS, self._retry.longest_delay)
        """Seconds. An action that is due later was postponed while this machine's clock was ahead, and is due now."""
        self._failures = 0
        """Consecutive requests that failed as a whole."""
        replica.step(lambda _: self._db.execute(_TABLE))

    def push(
        self, connector: str, action_type: str, params: Mapping[str, Any], idempotency_key: str | None = None
    ) -> Action:
        """Queue an action.

        Args:
            connector: name of the connector at the gateway that executes it.
            action_type: one of the connector's actions.
            params: a JSON object.
            idempotency_key: actions with the same key are executed once; None if every call is an action of its own.

        Raises:
            ValidationError: `params` is not a JSON object.
        """
        make = partial(make_action, connector, action_type, params, idempotency_key=idempotency_key)

        def insert(core: Any) -> Action:
            action = make(client_id=core.client_id, hlc=core.next_hlc())
            self._db.execute(
                "INSERT INTO _lakesync_actions (id, status, due, attempts, body, code, message) "
                "VALUES (?, 'waiting', 0, 0, ?, '', '')",
                (action.action_id, _encode(action)),
            )
            return action

        action = self._replica.step(insert)
        self._wake()
        return action

    def peek(self, limit: int = _SENT_TOGETHER) -> list[Action]:
        """Return the waiting actions that are due, oldest first, at most `limit`."""
        now = time.time()
        rows = self._replica.read(
            "SELECT body FROM _lakesync_actions WHERE status = 'waiting' AND (due <= ? OR due > ?) "
            "ORDER BY number LIMIT ?",
            (now, now + self._longest_delay, limit),
        )
        return [_decode(body) for (body,) in rows]

    def delay(self) -> float | None:
        """Return the seconds until an action is due; None if none is waiting."""
        now = time.time()
        ((due,),) = self._replica.read(
            "SELECT min(CASE WHEN due > ? THEN 0 ELSE due END) FROM _lakesync_actions WHERE status = 'waiting'",
            (now + self._longest_delay,),
        )
        return None if due is None else max(0.0, due - now)

    def record_outcomes(self, outcomes: Sequence[ActionResult | ActionFailure]) -> list[QueuedAction]:
        """Store the outcomes of actions; return the actions that are done or have failed for good."""
        self._failures = 0

        def record(_: Any) -> list[QueuedAction]:
            return [self.get(outcome.action_id) for outcome in outcomes if self._record_outcome(outcome)]

        return self._replica.step(record)

    def postpone(self, actions: Sequence[Action], retry_after: float | None = None) -> float:
        """Make actions due later, after a request that failed as a whole.

        Args:
            actions: the actions of the request.
            retry_after: seconds that the gateway asked for; None if it did not.

        Returns:
            Seconds until they are due.
        """
        delay = min(self._longest_delay, max(retry_after or 0.0, self._retry.delay(self._failures)))
        self._failures += 1
        due = [(time.time() + delay, action.action_id) for action in actions]
        statement = "UPDATE _lakesync_actions SET due = ? WHERE id = ?"
        self._replica.step(lambda _: self._db.executemany(statement, due))
        return delay

    def clear_delays(self) -> None:
        """Make all waiting actions due now."""
        self._failures = 0
        self._replica.step(lambda _: self._db.execute("UPDATE _lakesync_actions SET due = 0 WHERE due > 0"))

    def get(self, action_id: str) -> QueuedAction:
        """Return an action.

        Raises:
            NotFoundError: the queue does not contain it.
        """
        rows = self._replica.read(f"SELECT {_COLUMNS} FROM _lakesync_actions WHERE id = ?", (action_id,))
        if not rows:
            raise NotFoundError(
                f"action {action_id!r} is not in this client's queue: it was dropped, or queued by another client"
            )
        return _queued_action(rows[0])

    def all(self, status: ActionStatus | None = None) -> list[QueuedAction]:
        """Return actions, oldest first.

        Args:
            status: only actions with this status; None for all.
        """
        where, params = ("", ()) if status is None else ("WHERE status = ?", (status,))
        rows = self._replica.read(f"SELECT {_COLUMNS} FROM _lakesync_actions {where} ORDER BY number", params)
        return [_queued_action(row) for row in rows]

    def depth(self) -> int:
        """Return the number of waiting actions."""
        ((count,),) = self._replica.read("SELECT count(*) FROM _lakesync_actions WHERE status = 'waiting'")
        return int(count)

    def retry(self, action_id: str) -> None:
        """Send a failed action again, under the same id.

        Raises:
            NotFoundError: no failed action has this id.
        """
        self._update_one(
            "UPDATE _lakesync_actions SET status = 'waiting', due = 0, attempts = 0 WHERE id = ? AND status = 'failed'",
            action_id,
            "has not failed, so it cannot be retried",
        )
        self._wake()

    def drop(self, action_id: str) -> None:
        """Delete an action that is done or has failed.

        Raises:
            NotFoundError: no such action has this id.
        """
        self._update_one(
            "DELETE FROM _lakesync_actions WHERE id = ? AND status <> 'waiting'",
            action_id,
            "is still waiting or unknown, so it cannot be dropped",
        )

    def _record_outcome(self, outcome: ActionResult | ActionFailure) -> bool:
        """Store an outcome; return whether the action has ended: done, rejected for good, or failed too often."""
        set_to = "UPDATE _lakesync_actions SET status = ?, due = ?, attempts = ?, data = ?, code = ?, message = ?"
        where = " WHERE id = ? AND status = 'waiting'"
        action_id = outcome.action_id
        if isinstance(outcome, ActionResult):
            done = ("done", 0, self.get(action_id).attempts + 1, bytes(outcome.data), "", "", action_id)
            return bool(self._db.execute(set_to + where, done).rowcount)
        attempts = self.get(action_id).attempts + (outcome.code not in _STILL_RUNNING)
        ended = not outcome.retryable or attempts >= self._retry.actions
        due = time.time() + self._retry.delay(attempts)
        failed = ("failed" if ended else "waiting", due, attempts, None, outcome.code, outcome.message, action_id)
        return bool(self._db.execute(set_to + where, failed).rowcount) and ended

    def _update_one(self, statement: str, action_id: str, problem: str) -> None:
        """Run a statement for one action; raise NotFoundError with `problem` if no row matched."""
        if not self._replica.step(lambda _: self._db.execute(statement, (action_id,)).rowcount):
            raise NotFoundError(f"action {action_id!r} {problem}")


class ActionSender:
    """Sends the actions of a queue. A repeated action is executed once, because it keeps its id."""

    def __init__(self, queue: ActionQueue, transport: SyncTransport, client_id: str, listeners: EventListeners) -> None:
        """Create a sender; nothing is sent yet.

        Args:
            queue: the queued actions.
            transport: sends the actions, if it is an `ActionTransport`.
            client_id: this client's id.
            listeners: those of `onActionComplete` are called for each action that ends.
        """
        self._queue = queue
        self._transport = transport
        self._client_id = client_id
        self._listeners = listeners

    @property
    def transport(self) -> ActionTransport:
        """The transport.

        Raises:
            ConfigurationError: the transport cannot send actions.
        """
        if not isinstance(self._transport, ActionTransport):
            raise ConfigurationError("this transport cannot send actions: use HttpTransport or LocalTransport")
        return self._transport

    def send_due(self, result: CycleResult) -> float | None:
        """Send the actions that are due. After a failed request, they are sent again later.

        Args:
            result: the outcome of the request is added to it; its errors are not raised.

        Returns:
            Seconds until another action is due; None if none is waiting.
        """
        while isinstance(self._transport, ActionTransport) and (actions := self._queue.peek()):
            result.had_contact = True
            try:
                outcomes = self._outcomes(actions)
            except LakeSyncError as error:
                result.error = error
                return self._queue.postpone(actions, getattr(error, "retry_after", None))
            for ended in self._queue.record_outcomes(outcomes):
                self._listeners.emit("onActionComplete", ended.action_id, ended)
        return self._queue.delay()

    def _outcomes(self, actions: Sequence[Action]) -> list[ActionResult | ActionFailure]:
        """Send actions in one request, and return the outcome of each.

        One action may make the gateway reject the request. Sent alone, the others are executed.

        Raises:
            LakeSyncError: the actions may succeed later.
        """
        try:
            return self._execute(*actions)
        except LakeSyncError as error:
            if error.retryable or error.code in _POSTPONING_CODES:
                raise
        return [self._execute_alone(action) for action in actions]

    def _execute_alone(self, action: Action) -> ActionResult | ActionFailure:
        """Send one action alone, after the gateway rejected the request that it was in, and return its outcome."""
        try:
            (outcome,) = self._execute(action)
        except LakeSyncError as error:
            if error.code in _POSTPONING_CODES:
                raise
            return ActionFailure(action.action_id, error.code, str(error), error.retryable)
        return outcome

    def _execute(self, *actions: Action) -> list[ActionResult | ActionFailure]:
        """Send actions in one request, and return the outcome of each.

        Raises:
            UnreachableError: an outcome is missing. An empty response, as from a proxy, decodes as no outcomes.
        """
        outcomes = list(self.transport.execute_actions(ActionPush(self._client_id, actions)).results)
        if {outcome.action_id for outcome in outcomes} != {action.action_id for action in actions}:
            raise UnreachableError(
                f"the response has {len(outcomes)} outcomes for {len(actions)} actions: check that the address is a "
                "gateway's"
            )
        return outcomes


def _queued_action(row: tuple[Any, ...]) -> QueuedAction:
    """Decode a row of _COLUMNS."""
    body, status, attempts, data, code, message = row
    result = None if data is None else msgspec.json.decode(data)
    return QueuedAction(_decode(body), status, attempts, result, code, message)
