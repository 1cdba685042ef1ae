"""Actions on their way: asked for, sent until their end is known, and kept with their outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from lakesync.client.core.limits import RetryPolicy
from lakesync.client.replica import Replica
from lakesync.model.delta import make_action
from lakesync.model.errors import NotFoundError
from lakesync.model.types import Action, ActionFailure, ActionResult

ActionStatus = Literal["waiting", "done", "failed"]
AT_ONCE = 50
_UNDER_WAY = frozenset({"ACTION_PENDING", "ACTION_BUSY"})
"""Codes that say that an action is not at its end: they are no attempt."""

_TABLE = """CREATE TABLE IF NOT EXISTS _lakesync_actions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, due REAL NOT NULL,
    attempts INTEGER NOT NULL, body BLOB NOT NULL, data BLOB, code TEXT NOT NULL, message TEXT NOT NULL)"""
_COLUMNS = "body, status, attempts, data, code, message"
_decode = msgspec.json.Decoder(Action).decode
_encode = msgspec.json.Encoder().encode


class QueuedAction(msgspec.Struct, frozen=True):
    """An action and how far it is."""

    action: Action
    status: ActionStatus
    """`failed`: for good, or after too many attempts; it stays until it is retried or dropped by hand."""
    attempts: int
    data: Any = None
    """What it gave back, once done."""
    code: str = ""
    message: str = ""

    @property
    def action_id(self) -> str:
        """Its identity."""
        return self.action.action_id


class ActionQueue:
    """The actions of a client, in its database: they outlive the process, and none is done twice."""

    def __init__(
        self, replica: Replica, *, retry: RetryPolicy | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        """Args: wall: seconds since the Unix epoch."""
        self._replica = replica
        self._db = replica.db
        self._retry = retry or RetryPolicy()
        self._wall = wall
        self._failures = 0
        replica.step(lambda _: self._db.execute(_TABLE))

    def push(
        self, connector: str, action_type: str, params: Mapping[str, Any], idempotency_key: str | None = None
    ) -> Action:
        """Keep an action to be sent.

        Raises:
            ValidationError: the params are no JSON object.
        """
        make = partial(make_action, connector, action_type, params, idempotency_key=idempotency_key)

        def work(core: Any) -> Action:
            action = make(client_id=core.client_id, hlc=core.stamp())
            self._db.execute(
                "INSERT INTO _lakesync_actions (id, status, due, attempts, body, code, message) "
                "VALUES (?, 'waiting', 0, 0, ?, '', '')",
                (action.action_id, _encode(action)),
            )
            return action

        return self._replica.step(work)

    def peek(self, limit: int = AT_ONCE) -> list[Action]:
        """What is to be sent now, oldest first."""
        found = self._replica.read(
            "SELECT body FROM _lakesync_actions WHERE status = 'waiting' AND due <= ? ORDER BY number LIMIT ?",
            (self._wall(), limit),
        )
        return [_decode(body) for (body,) in found]

    def delay(self) -> float | None:
        """Seconds until something is to be sent; None where nothing waits."""
        ((due,),) = self._replica.read("SELECT min(due) FROM _lakesync_actions WHERE status = 'waiting'")
        return None if due is None else max(0.0, due - self._wall())

    def finish(self, outcomes: Sequence[ActionResult | ActionFailure]) -> list[QueuedAction]:
        """Note what became of actions; those that are at their end."""
        self._failures = 0

        def work(_: Any) -> list[QueuedAction]:
            return [self.get(outcome.action_id) for outcome in outcomes if self._finish(outcome)]

        return self._replica.step(work)

    def put_off(self, actions: Sequence[Action], retry_after: float | None = None) -> float:
        """Nobody could be asked: try again later; seconds until then."""
        self._failures += 1
        wait = max(retry_after or 0.0, self._delay(self._failures - 1))
        due = [(self._wall() + wait, action.action_id) for action in actions]
        statement = "UPDATE _lakesync_actions SET due = ? WHERE id = ?"
        self._replica.step(lambda _: self._db.executemany(statement, due))
        return wait

    def hurry(self) -> None:
        """Forget all delays."""
        self._failures = 0
        self._replica.step(lambda _: self._db.execute("UPDATE _lakesync_actions SET due = 0 WHERE due > 0"))

    def get(self, action_id: str) -> QueuedAction:
        """How far an action is.

        Raises:
            NotFoundError: there is none of that id.
        """
        found = self._replica.read(f"SELECT {_COLUMNS} FROM _lakesync_actions WHERE id = ?", (action_id,))
        if not found:
            raise NotFoundError(f"no action {action_id!r} is kept here: it was dropped, or asked for by another client")
        return _queued(found[0])

    def all(self, status: ActionStatus | None = None) -> list[QueuedAction]:
        """Actions, oldest first."""
        statement = f"SELECT {_COLUMNS} FROM _lakesync_actions WHERE ? IN (status, '') ORDER BY number"
        return [_queued(row) for row in self._replica.read(statement, (status or "",))]

    def depth(self) -> int:
        """How many wait for their end."""
        ((count,),) = self._replica.read("SELECT count(*) FROM _lakesync_actions WHERE status = 'waiting'")
        return int(count)

    def retry(self, action_id: str) -> None:
        """Let a failed action be sent again, under the same id.

        Raises:
            NotFoundError: it has not failed.
        """
        self._change(
            "UPDATE _lakesync_actions SET status = 'waiting', due = 0, attempts = 0 WHERE id = ? AND status = 'failed'",
            action_id,
            "has not failed",
        )

    def drop(self, action_id: str) -> None:
        """Forget an action that is at its end.

        Raises:
            NotFoundError: it is not at its end.
        """
        self._change(
            "DELETE FROM _lakesync_actions WHERE id = ? AND status <> 'waiting'", action_id, "is not at its end"
        )

    def _finish(self, outcome: ActionResult | ActionFailure) -> bool:
        set_to = "UPDATE _lakesync_actions SET status = ?, due = ?, attempts = ?, data = ?, code = ?, message = ?"
        where = " WHERE id = ? AND status = 'waiting'"
        name = outcome.action_id
        if isinstance(outcome, ActionResult):
            done = ("done", 0, self.get(name).attempts + 1, bytes(outcome.data), "", "", name)
            return bool(self._db.execute(set_to + where, done).rowcount)
        attempts = self.get(name).attempts + (outcome.code not in _UNDER_WAY)
        ended = not outcome.retryable or attempts >= self._retry.actions
        due = self._wall() + self._delay(attempts)
        failed = ("failed" if ended else "waiting", due, attempts, None, outcome.code, outcome.message, name)
        return bool(self._db.execute(set_to + where, failed).rowcount) and ended

    def _delay(self, failures: int) -> float:
        return min(self._retry.longest_delay, self._retry.first_delay * 2.0 ** min(failures, 10))

    def _change(self, statement: str, name: str, why: str) -> None:
        if not self._replica.step(lambda _: self._db.execute(statement, (name,)).rowcount):
            raise NotFoundError(f"action {name!r} {why}")


def _queued(row: tuple[Any, ...]) -> QueuedAction:
    body, status, attempts, data, code, message = row
    return QueuedAction(
        _decode(body), status, attempts, None if data is None else msgspec.json.decode(data), code, message
    )
