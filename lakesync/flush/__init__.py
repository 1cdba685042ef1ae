"""The flush of gateways that run without a pipeline: it copies deltas from staging's log to an adapter.

A *gateway* is one app's stream of changes, and a *delta* a change of some columns of one row. *Staging* is the store
that clients' pushes are committed to, and its *log* has them until they are flushed. An *adapter* is a database or an
object store. The *pipeline* (Dagster and Spark) flushes to Iceberg tables instead.

`Flusher` flushes to an `Outlet`, when the thresholds of `FlushSettings` are exceeded. It leaves a `FlushJob` for each
flushed table in a `FlushQueue`. `Materialiser` runs these jobs, which update the tables of current rows at the adapter.
The engine, the gateway server and `lakesync materialise` use them. The pipeline's flush uses the thresholds only.
"""

from lakesync.flush.flusher import Flusher, FlushReport, Outlet, record_target
from lakesync.flush.materialiser import Materialiser, OnFailure
from lakesync.flush.object_queue import ObjectFlushQueue, open_object_queue
from lakesync.flush.queue import FlushContext, FlushedTable, FlushJob, FlushQueue, MemoryFlushQueue, StagingFlushQueue
from lakesync.flush.thresholds import BufferStats, FlushSettings, TableStats, WideRowThreshold

__all__ = [
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
    "OnFailure",
    "Outlet",
    "StagingFlushQueue",
    "TableStats",
    "WideRowThreshold",
    "open_object_queue",
    "record_target",
]
