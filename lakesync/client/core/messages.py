"""What passes between the core and its driver, beside the wire's own `SyncPush`, `SyncPull` and their answers."""

from __future__ import annotations

from typing import NamedTuple

from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse


class FetchCheckpoint(NamedTuple):
    """Request: the checkpoint. Answered by any number of `Frame`, then `CheckpointEnd`; or `Refused`, or `Lost`."""

    client_id: str


class Wait(NamedTuple):
    """Nothing to ask now."""

    seconds: float | None
    """Until something is due; None: until an edit is made, `sync()` is called or a broadcast comes."""


Request = SyncPush | SyncPull | FetchCheckpoint


class Frame(NamedTuple):
    """One message of a checkpoint."""

    page: SyncResponse


class CheckpointEnd(NamedTuple):
    """A checkpoint came whole."""

    cursor: int
    """`X-Checkpoint-Hlc`."""
    seen: int = 0
    """The highest hlc in it, where its rows were stored past the core."""


class Broadcast(NamedTuple):
    """A page that the gateway sent of itself."""

    page: SyncResponse


class Refused(NamedTuple):
    """The gateway's answer is an error."""

    code: str
    message: str
    rejected: tuple[Rejection, ...] = ()
    retry_after: float | None = None
    """Seconds."""


class Lost(NamedTuple):
    """No answer came, or half of one: what was asked may or may not have been done."""

    reason: str


Answer = PushResult | SyncResponse | Frame | CheckpointEnd | Broadcast | Refused | Lost
