"""Who is told of what happens, under the reference's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lakesync.model.errors import ValidationError

Event = Literal["onChange", "onSyncComplete", "onError", "onRejected", "onActionComplete", "onProgress"]
"""
onChange(count, tables): rows were changed by others. onSyncComplete(report). onError(error).
onRejected(edits): edits were set aside. onActionComplete(action_id, queued). onProgress(progress): of a first sync.
"""
EVENTS: tuple[Event, ...] = (
    "onChange",
    "onSyncComplete",
    "onError",
    "onRejected",
    "onActionComplete",
    "onProgress",
)


class Events:
    """Listeners; they are called in the thread that synchronises, and must not wait for it."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Tell the listener from now on.

        Raises:
            ValidationError: there is no such event.
        """
        self._of(event).append(listener)

    def off(self, event: Event, listener: Callable[..., Any]) -> None:
        """Tell it no more, if it was told."""
        if listener in (listeners := self._of(event)):
            listeners.remove(listener)

    def emit(self, event: Event, *what: Any) -> None:
        """Tell all listeners."""
        for listener in tuple(self._listeners[event]):
            listener(*what)

    def _of(self, event: str) -> list[Callable[..., Any]]:
        if event not in self._listeners:
            raise ValidationError(f"there is no event {event!r}: choose one of {', '.join(EVENTS)}")
        return self._listeners[event]
