"""Sends an app's queued actions: requests that the gateway executes once in an external system.

`SyncCoordinator` and `AutoSync` call the sender of their `SyncSession`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.client.errors import UnreachableError
from lakesync.client.status import EventListeners
from lakesync.client.sync.action_queue import ActionQueue
from lakesync.client.sync.exchange import CycleResult
from lakesync.client.transports.base import ActionTransport, SyncTransport
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.types import Action, ActionFailure, ActionPush, ActionResult

_POSTPONING_CODES = ("AUTH_ERROR", "NOT_FOUND")
"""Codes of errors after which all actions stay queued: a rejected token, or an unknown gateway."""


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
