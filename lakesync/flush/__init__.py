"""Flush for gateways that run without a pipeline, and the updates of destination tables that follow it."""

from lakesync.flush.flusher import Flusher, FlushReport, Materialiser, Outlet
from lakesync.flush.queue import (
    FlushContext,
    FlushedTable,
    FlushJob,
    FlushQueue,
    MemoryFlushQueue,
    ObjectFlushQueue,
    StagingFlushQueue,
)
from lakesync.flush.thresholds import AdaptiveBuffer, BufferStats, FlushSettings, TableStats

__all__ = [
    "AdaptiveBuffer",
    "BufferStats",
    "FlushContext",
    "FlushJob",
    "FlushQueue",
    "FlushReport",
    "FlushSettings",
    "FlushedTable",
    "Flusher",
    "Materialiser",
    "MemoryFlushQueue",
    "ObjectFlushQueue",
    "Outlet",
    "StagingFlushQueue",
    "TableStats",
]
