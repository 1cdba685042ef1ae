"""Flush for gateways that run without a pipeline, and the updates of destination tables that follow it."""

from lakesync.flush.flusher import Flusher, FlushReport, Outlet
from lakesync.flush.materialiser import Materialiser
from lakesync.flush.object_queue import ObjectFlushQueue
from lakesync.flush.queue import FlushContext, FlushQueue, Job, MemoryFlushQueue, StagingFlushQueue, TableWork
from lakesync.flush.thresholds import AdaptiveBuffer, BufferStats, FlushSettings, TableStats

__all__ = [
    "AdaptiveBuffer",
    "BufferStats",
    "FlushContext",
    "FlushQueue",
    "FlushReport",
    "FlushSettings",
    "Flusher",
    "Job",
    "Materialiser",
    "MemoryFlushQueue",
    "ObjectFlushQueue",
    "Outlet",
    "StagingFlushQueue",
    "TableStats",
    "TableWork",
]
