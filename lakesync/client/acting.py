"""Queued actions, sent to the gateway, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.errors import UnreachableError
from lakesync.client.transports.base import ActionTransport
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.types import Action, ActionFailure, ActionPush, ActionResult

if TYPE_CHECKING:
    from lakesync.client.actions import ActionQueue
    from lakesync.client.events import Events
    from lakesync.client.exchange import Tally
    from lakesync.client.transports.base import SyncTransport


class Acting:
    """Sends the actions of a queue."""

    def __init__(self, queue: ActionQueue, transport: SyncTransport, client_id: str, events: Events) -> None:
        """Args: events: `onActionComplete` tells each action's end."""
        self._queue = queue
        self._transport = transport
        self._client_id = client_id
        self._events = events

    @property
    def transport(self) -> ActionTransport:
        """What carries them.

        Raises:
            ConfigurationError: the transport carries no actions.
        """
        if not isinstance(self._transport, ActionTransport):
            raise ConfigurationError("this transport carries no actions: use HttpTransport or LocalTransport")
        return self._transport

    def send(self, tally: Tally) -> float | None:
        """Send those that are due; seconds until one is."""
        while isinstance(self._transport, ActionTransport) and (actions := self._queue.peek()):
            tally.asked = True
            try:
                outcomes = self._ask(*actions)
            except LakeSyncError as error:
                if error.retryable or error.code in ("AUTH_ERROR", "NOT_FOUND"):
                    tally.error = error
                    return self._queue.put_off(actions, getattr(error, "retry_after", None))
                outcomes = [self._alone(action) for action in actions]
            for ended in self._queue.finish(outcomes):
                self._events.emit("onActionComplete", ended.action_id, ended)
        return self._queue.delay()

    def _alone(self, action: Action) -> ActionResult | ActionFailure:
        """The outcome of one of several that were refused together."""
        try:
            (outcome,) = self._ask(action)
        except LakeSyncError as own:
            return ActionFailure(action.action_id, own.code, str(own), own.retryable)
        return outcome

    def _ask(self, *actions: Action) -> list[ActionResult | ActionFailure]:
        """The outcome of each; an empty answer, of whatever stands between, is a readable one of no outcomes."""
        outcomes = list(self.transport.execute_actions(ActionPush(self._client_id, actions)).results)
        if {outcome.action_id for outcome in outcomes} != {action.action_id for action in actions}:
            raise UnreachableError("the answer does not say what became of the actions: is the address right?")
        return outcomes
