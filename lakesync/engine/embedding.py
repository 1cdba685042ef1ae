"""What an application that holds a gateway itself asks of it, besides push and pull."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from lakesync.adapters.base import Adapter
from lakesync.adapters.deltas import StoredDelta
from lakesync.adapters.registry import as_database
from lakesync.adapters.transfer.loads import LoadBarrier
from lakesync.engine.access import RulesCache
from lakesync.engine.rehydration import kept_by, rehydrate
from lakesync.engine.sources import Sources
from lakesync.flush import BufferStats, Flusher, FlushReport, Outlet, TableStats
from lakesync.model.types import RowDelta
from lakesync.staging.store import StagingStore

_AT_ONCE = 10_000


class Embedding:
    """The part of a gateway that deals with adapters: flush, sources, figures, rehydration."""

    def __init__(
        self,
        gateway_id: str,
        store: StagingStore,
        wall: Callable[[], int],
        outlet: Outlet | None = None,
    ) -> None:
        """Args: wall: the server's clock in milliseconds; outlet: None where a pipeline, or nobody, flushes."""
        self.gateway_id = gateway_id
        self.rules = RulesCache()
        self.flusher = Flusher(gateway_id, store, wall, outlet)
        self.sources = Sources(gateway_id, store, wall, self.rules)
        self._store = store
        self._wall = wall

    # -- figures -----------------------------------------------------------------------------------------------------

    def buffer_stats(self) -> BufferStats:
        """What waits for a flush: deltas, the rows that they are of, stored bytes."""
        return self.flusher.backlog_stats.buffer_stats()

    def table_stats(self) -> list[TableStats]:
        """What waits, table by table."""
        return self.flusher.backlog_stats.table_stats()

    # -- flush -------------------------------------------------------------------------------------------------------

    def should_flush(self) -> bool:
        """Whether what waits is above `max_buffer_bytes` or older than `max_buffer_age_ms`."""
        return self.flusher.thresholds.exceeded()

    def get_tables_exceeding_budget(self) -> list[str]:
        """The tables of which more than `per_table_budget_bytes` waits; none without a budget."""
        return self.flusher.thresholds.tables_exceeding_budget()

    def flush(self) -> FlushReport:
        """Carry everything that waits to the adapter; on failure nothing is lost, and it waits for the next flush.

        Raises:
            FlushError: there is no adapter, a flush is under way, or the adapter failed.
            IntegrityError: the adapter does not hold what was written.
        """
        return self.flusher.flush()

    def flush_table(self, table: str) -> FlushReport:
        """Carry everything up to the last push that names a table: batches are whole prefixes of what waits.

        Raises:
            As `flush`.
        """
        return self.flusher.flush_table(table)

    def rehydrate(self, deltas: Iterable[RowDelta] | None = None) -> int:
        """Bring state back from deltas that were accepted before; what is known already changes nothing.

        Args:
            deltas: from anywhere; they wait for a flush afterwards. None: everything that the gateway's own adapter
                holds of it, which is not written there again.

        Returns:
            How many deltas there were.

        Raises:
            FlushError: none are given and the gateway has no adapter.
            AdapterError: the adapter cannot be read.
        """
        now = self._wall()
        if deltas is not None:
            return rehydrate(self._store, self.gateway_id, self.rules, deltas, now)
        kept = kept_by(self.flusher.destination, self.gateway_id)
        total = 0
        while some := list(islice(kept, _AT_ONCE)):
            total += rehydrate(self._store, self.gateway_id, self.rules, some, now)
            self.flusher.adopt([StoredDelta(self.gateway_id, 0, delta).identity for delta in some])
        return total

    # -- sources -----------------------------------------------------------------------------------------------------

    def register_source(self, name: str, adapter: Adapter) -> None:
        """Let clients pull from an adapter by `source=name`, through this gateway's rules."""
        self.sources.register(name, LoadBarrier(as_database(adapter)))

    def unregister_source(self, name: str) -> None:
        """Take a source away; the adapter stays open.

        Raises:
            NotFoundError: there is none of this name.
        """
        self.sources.unregister(name)

    def list_sources(self) -> list[str]:
        """The names of the sources."""
        return self.sources.names()
