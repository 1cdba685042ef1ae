"""What an app is told of the state of its synchronisation."""

from __future__ import annotations

from datetime import datetime

import msgspec

from lakesync.client.core import Edit, Mode
from lakesync.model.errors import LakeSyncError


class SyncReport(msgspec.Struct, frozen=True):
    """What one cycle came to."""

    pushed: int
    """Edits that the gateway took."""
    pulled: int
    """Rows changed by others."""
    refused: tuple[Edit, ...]
    """Edits that were set aside: see `pending`, `retry` and `drop`."""


class SyncStatus(msgspec.Struct, frozen=True):
    """How things are now."""

    connected: bool
    """The newest request was answered."""
    live: bool
    """A WebSocket is open, on which changes come by themselves."""
    last_sync: datetime | None
    """When the client last had all that the gateway had, in UTC."""
    pending: int
    """Changes that the gateway is not known to have, without those set aside."""
    refused: int
    """Changes that were set aside."""
    oldest_pending: datetime | None
    """When the oldest pending change was made, in UTC."""
    lag: float | None
    """Seconds since `last_sync`."""
    last_error: LakeSyncError | None
    """Why the newest request failed."""
    clock_offset: float | None
    """Seconds that this machine's clock is ahead of the gateway's, as far as that is known."""
    mode: Mode
    """`full`, or what it does alone: in `pushOnly` nothing comes, in `pullOnly` nothing is sent."""
