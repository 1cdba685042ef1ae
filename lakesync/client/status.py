"""What an app learns of its client: `db.status`, reports of `db.sync()`, progress, versions of a row, and events.

`Client` and `AsyncClient` return these values; `lakesync.client.sync` creates them, and calls the listeners that an app
registers with `Client.on`. The names of events are those of the TypeScript client. A gateway is one app's stream of
changes. An *edit* is a change of the app that the gateway has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from lakesync.client.core import Edit, KnownRow, Mode
from lakesync.model.errors import LakeSyncError, ValidationError
from lakesync.model.hlc import wall_of

Event = Literal["onChange", "onSyncComplete", "onError", "onRejected", "onActionComplete", "onProgress"]
"""
The name of an event. A listener is called with the arguments of its event:

- `onChange(count: int, tables: set[str])`: rows were changed by other clients, and in which tables.
- `onSyncComplete(report: SyncReport)`: a synchronisation ended without an error.
- `onError(error: LakeSyncError)`: a request failed.
- `onRejected(edits: tuple[Edit, ...])`: the gateway rejected these changes, whose status is now `refused`.
- `onActionComplete(action_id: str, queued: QueuedAction)`: an action is done or has failed for good.
- `onProgress(progress: Progress)`: a part of the first sync's checkpoint, or a page that others follow, was received.
"""
_EVENT_NAMES: tuple[Event, ...] = get_args(Event)


class SyncReport(msgspec.Struct, frozen=True):
    """The result of one synchronisation."""

    pushed: int
    """Number of edits (changes of this client) that the gateway accepted."""
    pulled: int
    """Number of rows that other clients changed. If everything is pulled, as in a first sync, own rows count too."""
    refused: tuple[Edit, ...]
    """Edits that the gateway rejected; `Client.retry` pushes them again, and `Client.drop` deletes them."""


class Progress(msgspec.Struct, frozen=True):
    """How much one synchronisation has received so far, if that comes in several parts."""

    rows: int
    """Number of rows of the checkpoint, the snapshot from which a new client starts, and of the pages of a pull."""
    bytes: int
    """Size of the checkpoint's messages. The pages are not counted."""


class SyncStatus(msgspec.Struct, frozen=True):
    """The current state of the synchronisation."""

    connected: bool
    """Whether the newest synchronisation succeeded; False before the first one."""
    live: bool
    """Whether a WebSocket is open, on which the gateway sends changes as they happen."""
    last_sync: datetime | None
    """When the client last had everything that the gateway had, in UTC; None: not since the process opened it."""
    pending: int
    """Number of changes that the gateway has not acknowledged, without refused ones."""
    refused: int
    """Number of changes that the gateway rejected."""
    oldest_pending: datetime | None
    """When the oldest pending change was made, in UTC; None if none is pending."""
    lag: float | None
    """Seconds since `last_sync`; None if that is None."""
    last_error: LakeSyncError | None
    """Why the newest synchronisation failed; None after a success."""
    clock_offset: float | None
    """Seconds by which this machine's clock is ahead of the gateway's; None if unknown."""
    mode: Mode
    """`full`; `pushOnly` never pulls, `pullOnly` never pushes."""


class Checksum(msgspec.Struct, frozen=True):
    """A checksum of a table that does not depend on the order of its rows."""

    rows: int
    """Number of rows."""
    value: int
    """The sum of 8 bytes of BLAKE2 of each row, modulo 2^64."""


class TableCheck(msgspec.Struct, frozen=True):
    """A table's checksums before and after verification."""

    found: Checksum
    """Before the full pull."""
    repaired: Checksum
    """After the full pull."""

    @property
    def differed(self) -> bool:
        """Whether the table differed from the gateway's; a row that another client changed meanwhile counts too."""
        return self.found != self.repaired


class Version(msgspec.Struct, frozen=True):
    """One write to a row: a write of any client that the gateway has, or an edit of this client."""

    hlc: int
    """The write's hybrid logical clock."""
    client_id: str
    """The client that made the write."""
    columns: dict[str, Any]
    """Column values, decoded. A `synced` write has only columns whose value no later write replaced; others have
    all."""
    status: Literal["synced", "waiting", "sent", "refused"]
    """`synced`: the gateway has it. `waiting`: not pushed yet. `sent`: pushed, but not acknowledged. `refused`: the
    gateway rejected it."""
    deleted: bool = False
    """Whether the write deleted the row."""

    @property
    def at(self) -> datetime:
        """When the write was made, by the clock of the client that made it, in UTC."""
        return datetime.fromtimestamp(wall_of(self.hlc) / 1000, UTC)


def versions(row: KnownRow | None, edits: list[Edit]) -> list[Version]:
    """Return the writes to a row, oldest first.

    Args:
        row: the row as the gateway has it; None if the gateway does not have the row.
        edits: this client's unacknowledged changes of the row.
    """
    result: list[Version] = []
    if row is not None:
        for write in row.state.live:  # the writes whose value some column still has
            values = {name: msgspec.json.decode(value) for name, value in write.columns.items()}
            result.append(Version(write.hlc, write.client_id, values, "synced"))
        if not row.state.cells and row.state.inserted is not None:  # a row without values shows only its INSERT
            result.append(Version(*row.state.inserted, {}, "synced"))
    for edit in edits:
        delta = edit.delta
        values = {cell.column: cell.decoded() for cell in delta.columns}
        result.append(Version(delta.hlc, delta.client_id, values, edit.status, deleted=delta.op == "DELETE"))
    return sorted(result, key=lambda version: (version.hlc, version.client_id))


class EventListeners:
    """The listeners of a client. They are called in the thread that synchronises, in the order of registration.

    A listener must not wait for the synchronisation. If it raises, later listeners of the event are not called;
    `sync()` raises the exception, and auto-sync logs it and continues after its interval. Applied changes are kept.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = {event: [] for event in _EVENT_NAMES}

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
        """Return the listeners of an event."""
        if event not in self._listeners:
            raise ValidationError(f"event {event!r} is unknown: choose one of {', '.join(_EVENT_NAMES)}")
        return self._listeners[event]
