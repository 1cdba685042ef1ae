"""The flush of a gateway without a pipeline, and what follows it at the destination."""

from lakesync.flush.consumer import Materialiser
from lakesync.flush.flusher import Flusher, FlushReport, Outlet
from lakesync.flush.object_queue import ObjectFlushQueue
from lakesync.flush.queue import FlushContext, FlushQueue, Job, MemoryFlushQueue, TableWork
from lakesync.flush.settings import AdaptiveBuffer, FlushSettings
from lakesync.flush.staging_queue import StagingFlushQueue
from lakesync.flush.waiting import BufferStats, TableStats

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
