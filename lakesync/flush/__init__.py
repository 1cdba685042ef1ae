"""Flush for gateways that run without a pipeline, and the updates of destination tables that follow it."""

from lakesync.flush.backlog_stats import BufferStats, TableStats
from lakesync.flush.flusher import Flusher, FlushReport, Outlet
from lakesync.flush.materialiser import Materialiser
from lakesync.flush.object_queue import ObjectFlushQueue
from lakesync.flush.queue import FlushContext, FlushQueue, Job, MemoryFlushQueue, TableWork
from lakesync.flush.settings import AdaptiveBuffer, FlushSettings
from lakesync.flush.staging_queue import StagingFlushQueue

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
