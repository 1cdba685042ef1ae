"""What an app learns about its synchronisation: status, reports and progress."""

from __future__ import annotations

from datetime import datetime

import msgspec

from lakesync.client.core import Edit, Mode
from lakesync.model.errors import LakeSyncError


class SyncReport(msgspec.Struct, frozen=True):
    """The result of one synchronisation."""

    pushed: int
    """Edits that the gateway accepted."""
    pulled: int
    """Rows that other clients changed."""
    refused: tuple[Edit, ...]
    """Edits that the gateway rejected: see `pending`, `retry` and `drop`."""


class Progress(msgspec.Struct, frozen=True):
    """How much of a checkpoint was received."""

    rows: int
    bytes: int


class SyncStatus(msgspec.Struct, frozen=True):
    """The current state of the synchronisation."""

    connected: bool
    """Whether the newest request was answered."""
    live: bool
    """Whether a WebSocket is open, on which the gateway sends changes as they happen."""
    last_sync: datetime | None
    """When the client last had everything that the gateway had, in UTC."""
    pending: int
    """Unacknowledged changes, without refused ones."""
    refused: int
    """Changes that the gateway rejected."""
    oldest_pending: datetime | None
    """When the oldest pending change was made, in UTC."""
    lag: float | None
    """Seconds since `last_sync`."""
    last_error: LakeSyncError | None
    """Why the newest request failed; None after a success."""
    clock_offset: float | None
    """Seconds by which this machine's clock is ahead of the gateway's; None if unknown."""
    mode: Mode
    """`full`; `pushOnly` never pulls, `pullOnly` never pushes."""
