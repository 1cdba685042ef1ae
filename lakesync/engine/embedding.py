"""The part of `SyncGateway` for applications that embed a gateway: flush, sources, statistics, rehydration.

A flush writes staging's deltas to the gateway's adapter. A source is another adapter, from which clients pull.
Rehydration fills an empty staging store from the deltas in the adapter. Apps call these methods on the gateway of
`open_gateway`; `engine.flushing` calls the flusher in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from lakesync.adapters.deltas import StoredDelta
from lakesync.adapters.registry import Adapter, as_database
from lakesync.adapters.transfer.loads import LoadBarrier
from lakesync.engine.access import RulesCache
from lakesync.engine.rehydration import rehydrate, stored_deltas
from lakesync.engine.sources import Sources
from lakesync.flush import BufferStats, Flusher, FlushReport, Outlet, TableStats
from lakesync.model.types import RowDelta
from lakesync.staging.store import StagingStore

_CHUNK = 10_000
"""Deltas that `rehydrate` reads from the adapter before it commits them."""


class Embedding:
    """A base class of `SyncGateway` with the methods that use adapters; it is never used alone."""

    def __init__(
        self,
        gateway_id: str,
        store: StagingStore,
        wall: Callable[[], int],
        outlet: Outlet | None = None,
    ) -> None:
        """Create the flusher and the sources.

        Args:
            gateway_id: the gateway's id.
            store: the staging store that contains the gateway.
            wall: returns the server's wall time in milliseconds since 1970.
            outlet: the adapter that the gateway flushes to, with its settings; None if a pipeline flushes, or nothing
                does.
        """
        self.gateway_id = gateway_id
        self.rules = RulesCache()
        self.flusher = Flusher(gateway_id, store, wall, outlet)
        self.sources = Sources(gateway_id, store, wall, self.rules)
        self._store = store
        self._wall = wall

    # -- statistics --------------------------------------------------------------------------------------------------

    def buffer_stats(self) -> BufferStats:
        """Return the numbers of unflushed deltas, rows and stored bytes."""
        return self.flusher.backlog_stats.buffer_stats()

    def table_stats(self) -> list[TableStats]:
        """Return the numbers of unflushed deltas and stored bytes of each table."""
        return self.flusher.backlog_stats.table_stats()

    # -- flush -------------------------------------------------------------------------------------------------------

    def should_flush(self) -> bool:
        """Return whether unflushed deltas exceed the outlet's `max_buffer_bytes` or `max_buffer_age_ms`."""
        return self.flusher.thresholds.exceeded()

    def get_tables_exceeding_budget(self) -> list[str]:
        """Return the tables with more unflushed bytes than the outlet's `per_table_budget_bytes`; none without one."""
        return self.flusher.thresholds.tables_exceeding_budget()

    def flush(self) -> FlushReport:
        """Write all unflushed deltas to the adapter. If that fails, nothing is lost; the next flush includes them.

        Raises:
            FlushError: there is no adapter, another flush is in progress, or the adapter failed.
            IntegrityError: the adapter returned other deltas than were written.
        """
        return self.flusher.flush()

    def flush_table(self, table: str) -> FlushReport:
        """Flush the log up to the last push that changed a table. Deltas of other tables before it are flushed too.

        Raises:
            FlushError, IntegrityError: as `flush`.
        """
        return self.flusher.flush_table(table)

    def rehydrate(self, deltas: Iterable[RowDelta] | None = None) -> int:
        """Restore staging from deltas that were accepted before, after staging was lost. Known deltas change nothing.

        Args:
            deltas: the deltas, from any source; the next flush writes them to the adapter. None reads all deltas of the
                gateway from its adapter, and does not write them there again.

        Returns:
            The number of deltas that were read, known ones included.

        Raises:
            FlushError: `deltas` is None and the gateway has no adapter.
            AdapterError: the adapter cannot be read.
            StagingUnavailableError: staging does not respond; a repeat continues.
        """
        now = self._wall()
        if deltas is not None:
            return rehydrate(self._store, self.gateway_id, self.rules, deltas, now)
        stored = stored_deltas(self.flusher.destination, self.gateway_id)
        total = 0
        while chunk := list(islice(stored, _CHUNK)):  # an iterator: each slice continues after the one before
            total += rehydrate(self._store, self.gateway_id, self.rules, chunk, now)
            # They are in the adapter already (an identity does not depend on the arrival, 0 here). A flush before this
            # writes them again, which changes nothing: the adapter leaves a delta that it has unchanged.
            self.flusher.adopt([StoredDelta(self.gateway_id, 0, delta).identity for delta in chunk])
        return total

    # -- sources -----------------------------------------------------------------------------------------------------

    def register_source(self, name: str, adapter: Adapter) -> None:
        """Let clients pull from an adapter, through this gateway's rules.

        Args:
            name: the name that clients pass as `source`; an adapter registered under it is replaced.
            adapter: an open adapter, a database or an object store, which the caller closes. While a bulk load into it
                is in progress, pulls return empty pages, so that no client skips deltas that are still to be written.
        """
        self.sources.register(name, LoadBarrier(as_database(adapter)))

    def unregister_source(self, name: str) -> None:
        """Unregister a source; its adapter stays open.

        Raises:
            NotFoundError: no source has this name.
        """
        self.sources.unregister(name)

    def list_sources(self) -> list[str]:
        """Return the names of the registered sources, sorted."""
        return self.sources.names()
