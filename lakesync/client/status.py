"""What a client returns to its app about the synchronisation: `db.status`, reports of `db.sync()`, and progress."""

from __future__ import annotations

from datetime import datetime

import msgspec

from lakesync.client.core import Edit, Mode
from lakesync.model.errors import LakeSyncError


class SyncReport(msgspec.Struct, frozen=True):
    """The result of one synchronisation."""

    pushed: int
    """Number of edits (changes of this client) that the gateway accepted."""
    pulled: int
    """Number of rows that other clients changed."""
    refused: tuple[Edit, ...]
    """Edits that the gateway rejected; `Client.retry` pushes them again, and `Client.drop` deletes them."""


class Progress(msgspec.Struct, frozen=True):
    """How much was received of the checkpoint, the snapshot of all rows from which a new client starts."""

    rows: int
    bytes: int
    """Size of the received messages."""


class SyncStatus(msgspec.Struct, frozen=True):
    """The current state of the synchronisation."""

    connected: bool
    """Whether the newest request succeeded; False before the first request."""
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
    """Why the newest request failed; None after a success."""
    clock_offset: float | None
    """Seconds by which this machine's clock is ahead of the gateway's; None if unknown."""
    mode: Mode
    """`full`; `pushOnly` never pulls, `pullOnly` never pushes."""
