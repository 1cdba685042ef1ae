"""Events that an app can listen to with `Client.on`. Their names are those of the reference, the TypeScript client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from lakesync.model.errors import ValidationError

Event = Literal["onChange", "onSyncComplete", "onError", "onRejected", "onActionComplete", "onProgress"]
"""
The name of an event. A listener is called with the arguments of its event:

- `onChange(count: int, tables: set[str])`: rows were changed by other clients, and in which tables.
- `onSyncComplete(report: SyncReport)`: a synchronisation ended without an error.
- `onError(error: LakeSyncError)`: a request failed.
- `onRejected(edits: tuple[Edit, ...])`: the gateway rejected these changes, whose status is now `refused`.
- `onActionComplete(action_id: str, queued: QueuedAction)`: an action is done or has failed for good.
- `onProgress(progress: Progress)`: a part of the first sync's checkpoint arrived.
"""
EVENT_NAMES: tuple[Event, ...] = get_args(Event)


class EventListeners:
    """The listeners of a client. They are called in the thread that synchronises, in the order of registration.

    A listener must not wait for the synchronisation. If it raises, later listeners of the event are not called;
    `sync()` raises the exception, and auto-sync logs it and continues after its interval. Applied changes are kept.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENT_NAMES}

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Call a function whenever an event occurs.

        Args:
            event: the event's name.
            listener: called with the event's arguments; its result is ignored.

        Raises:
            ValidationError: the event is unknown.
        """
        self._listeners_of(event).append(listener)

    def off(self, event: Event, listener: Callable[..., Any]) -> None:
        """Remove a listener; do nothing if `on` did not add it.

        Args:
            event: the event's name.
            listener: the function that was passed to `on`.

        Raises:
            ValidationError: the event is unknown.
        """
        if listener in (listeners := self._listeners_of(event)):
            listeners.remove(listener)

    def emit(self, event: Event, *arguments: Any) -> None:
        """Call all listeners of an event. The parts of the client call it; `Event` lists the arguments."""
        for listener in tuple(self._listeners[event]):
            listener(*arguments)

    def _listeners_of(self, event: str) -> list[Callable[..., Any]]:
        if event not in self._listeners:
            raise ValidationError(f"event {event!r} is unknown: choose one of {', '.join(EVENT_NAMES)}")
        return self._listeners[event]
