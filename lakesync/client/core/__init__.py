"""The client's sync state machine, without I/O.

The core decides which request to send next, applies the gateway's responses, and stores the result. A driver, which is
`lakesync.client.sync` or a test, sends each `next_request()` to the gateway and passes the response to `receive()`.
Everything durable is in a `ClientStore`; each step changes it in one `commit`. See `docs/client-core.md`.
"""

from lakesync.client.core.messages import (
    Broadcast,
    CheckpointEnd,
    CheckpointFrame,
    CoreLimits,
    ErrorResponse,
    FetchCheckpoint,
    NoResponse,
    RetryPolicy,
    Wait,
)
from lakesync.client.core.state_machine import ClientCore, Mode
from lakesync.client.core.store import Changes, ClientStore, Edit, KnownRow, LocalChange, MemoryStore, Position

__all__ = [
    "Broadcast",
    "Changes",
    "CheckpointEnd",
    "CheckpointFrame",
    "ClientCore",
    "ClientStore",
    "CoreLimits",
    "Edit",
    "ErrorResponse",
    "FetchCheckpoint",
    "KnownRow",
    "LocalChange",
    "MemoryStore",
    "Mode",
    "NoResponse",
    "Position",
    "RetryPolicy",
    "Wait",
]
