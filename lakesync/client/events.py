"""Events that an app can listen to, under the reference's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from lakesync.model.errors import ValidationError

Event = Literal["onChange", "onSyncComplete", "onError", "onRejected", "onActionComplete", "onProgress"]
"""
The arguments of a listener: onChange(count, tables) after other clients changed rows; onSyncComplete(report);
onError(error); onRejected(edits) after the gateway rejected edits; onActionComplete(action_id, queued);
onProgress(progress) during a first sync.
"""
EVENTS: tuple[Event, ...] = get_args(Event)


class Events:
    """The listeners of a client. They are called in the thread that synchronises, and must not wait for it."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Call a listener whenever an event occurs.

        Args:
            event: its name.
            listener: called with the event's arguments.

        Raises:
            ValidationError: the event is unknown.
        """
        self._listeners_of(event).append(listener)

    def off(self, event: Event, listener: Callable[..., Any]) -> None:
        """Remove a listener, if it was added.

        Args:
            event: its name.
            listener: the one that was added.

        Raises:
            ValidationError: the event is unknown.
        """
        if listener in (listeners := self._listeners_of(event)):
            listeners.remove(listener)

    def emit(self, event: Event, *arguments: Any) -> None:
        """Call all listeners of an event."""
        for listener in tuple(self._listeners[event]):
            listener(*arguments)

    def _listeners_of(self, event: str) -> list[Callable[..., Any]]:
        if event not in self._listeners:
            raise ValidationError(f"event {event!r} is unknown: choose one of {', '.join(EVENTS)}")
        return self._listeners[event]
