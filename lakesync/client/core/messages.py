"""Requests and answers between the core and its driver, besides the wire's own `SyncPush`, `SyncPull` and results."""

from __future__ import annotations

from typing import NamedTuple

from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse


class FetchCheckpoint(NamedTuple):
    """Request for the gateway's checkpoint.

    The driver answers with any number of `CheckpointFrame`, then `CheckpointEnd`; or with `ErrorAnswer` or `NoAnswer`.
    """

    client_id: str


class Wait(NamedTuple):
    """There is no request to send now."""

    seconds: float | None
    """Seconds until one is due; None: until an edit is made, a pull is requested or a broadcast arrives."""


Request = SyncPush | SyncPull | FetchCheckpoint


class CheckpointFrame(NamedTuple):
    """One message of a checkpoint."""

    page: SyncResponse


class CheckpointEnd(NamedTuple):
    """All frames of a checkpoint were received."""

    cursor: int
    """The header `X-Checkpoint-Hlc`: where pulling continues."""
    highest_hlc: int = 0
    """The highest hlc of the checkpoint, if the driver stored its rows without the core."""


class Broadcast(NamedTuple):
    """A page that the gateway sent without a pull."""

    page: SyncResponse


class ErrorAnswer(NamedTuple):
    """The gateway answered with an error."""

    code: str
    message: str
    rejected: tuple[Rejection, ...] = ()
    retry_after: float | None = None
    """Seconds."""


class NoAnswer(NamedTuple):
    """No complete answer arrived; the gateway may or may not have processed the request."""

    reason: str


Answer = PushResult | SyncResponse | CheckpointFrame | CheckpointEnd | Broadcast | ErrorAnswer | NoAnswer
