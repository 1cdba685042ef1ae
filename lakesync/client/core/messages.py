"""Requests that the core returns to its driver, and responses that the driver passes to it.

The core is the client's state machine, which does no input or output; its driver sends the requests. `SyncPush`,
`SyncPull` and their results are the wire's own types; the others are defined here.
"""

from __future__ import annotations

from typing import NamedTuple

from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse


class FetchCheckpoint(NamedTuple):
    """Request for the gateway's checkpoint: all rows that the client may see, for its first sync.

    The driver passes each `CheckpointFrame` and then `CheckpointEnd` to the core; or `ErrorResponse` or `NoResponse`.
    """

    client_id: str


class Wait(NamedTuple):
    """Returned in place of a request if no request is due."""

    seconds: float | None
    """Seconds until one is due; None: until an edit is made, a pull is requested or a broadcast arrives."""


Request = SyncPush | SyncPull | FetchCheckpoint


class CheckpointFrame(NamedTuple):
    """A part of a checkpoint."""

    page: SyncResponse
    """The deltas of some rows; its cursor is not used."""


class CheckpointEnd(NamedTuple):
    """All frames of a checkpoint were received."""

    cursor: int
    """The cursor of the pull that follows it (header `X-Checkpoint-Hlc`)."""
    highest_hlc: int = 0
    """The highest hlc of the checkpoint's deltas, if the driver stored rows without the core; else 0."""


class Broadcast(NamedTuple):
    """A page that the gateway sent over a WebSocket without a pull."""

    page: SyncResponse


class ErrorResponse(NamedTuple):
    """The gateway responded with an error."""

    code: str
    """The error code, such as `VALIDATION_ERROR`."""
    message: str
    rejected: tuple[Rejection, ...] = ()
    """The rejected deltas of a push."""
    retry_after: float | None = None
    """Seconds after which the gateway asks for a retry; None if it does not."""


class NoResponse(NamedTuple):
    """No complete response arrived; the gateway may or may not have processed the request."""

    reason: str
    """The reason why there is none, as a sentence for the user."""


Response = PushResult | SyncResponse | CheckpointFrame | CheckpointEnd | Broadcast | ErrorResponse | NoResponse
