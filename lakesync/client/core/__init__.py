"""The client's state machine, without I/O: it says what to ask next, takes answers in, and says what to store.

A driver, blocking or asyncio, over HTTP or WebSocket, carries `next_request()` to the gateway and gives `receive()`
what came back. All that must outlive the process is in a `ClientStore`, changed by one `commit` a step.
"""

from lakesync.client.core.core import ClientCore, Mode
from lakesync.client.core.limits import CoreLimits, RetryPolicy
from lakesync.client.core.memory import MemoryStore
from lakesync.client.core.messages import Broadcast, CheckpointEnd, FetchCheckpoint, Frame, Lost, Refused, Wait
from lakesync.client.core.records import Changes, Edit, KnownRow, LocalChange, Position
from lakesync.client.core.store import ClientStore

__all__ = [
    "Broadcast",
    "Changes",
    "CheckpointEnd",
    "ClientCore",
    "ClientStore",
    "CoreLimits",
    "Edit",
    "FetchCheckpoint",
    "Frame",
    "KnownRow",
    "LocalChange",
    "Lost",
    "MemoryStore",
    "Mode",
    "Position",
    "Refused",
    "RetryPolicy",
    "Wait",
]
