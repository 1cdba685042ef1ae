"""The part of `SyncGateway` that uses adapters: flush, statistics of the backlog, sources, rehydration.

A *gateway* is one app's stream of changes. *Staging* is the store that pushes are committed to; its *log* has one row
for each push. An *adapter* gives access to a database or object store. A *flush* copies the deltas (changes of rows) in
the log to the gateway's adapter, its *outlet*; without one, the data pipeline flushes them to the lake (Iceberg
tables). A *source* is another adapter, from which clients pull. *Sync rules* decide which rows a client may see.
*Rehydration* fills a staging store that was lost, or is always empty at the start, from the deltas in the adapter. Apps
call these methods on the gateway of `open_gateway`; `engine.housekeeping` calls the flusher in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice

import msgspec

from lakesync.adapters.deltas import DeltaQuery, StoredDelta
from lakesync.adapters.registry import Adapter, as_database
from lakesync.adapters.transfer.loads import LoadBarrier
from lakesync.engine.checks import EngineLimits
from lakesync.engine.gateway_base import GatewayBase, SharedParts
from lakesync.engine.names import PushNames
from lakesync.engine.pushing import PushRequest, commit_push
from lakesync.engine.source_reading import Source, read_all
from lakesync.engine.sources import Sources
from lakesync.flush import BufferStats, Flusher, FlushReport, TableStats
from lakesync.model.types import PushResult, RowDelta, RowKey, SyncPush
from lakesync.model.validation import user_of
from lakesync.staging.rebuild_commit import ANY_CLIENT
from lakesync.staging.records import LOST, Backlog
from lakesync.staging.store import StagingStore
from lakesync.staging.store.push import PushCommit
from lakesync.wire.log import MAX_BODY_BYTES

_DELTAS_PER_READ = 10_000
"""Deltas that `rehydrate` reads before it commits them."""
_DELTAS_PER_COMMIT = 1000
"""Deltas that `restore` commits at a time, in one commit for each client."""
_BYTES_PER_COMMIT = MAX_BODY_BYTES // 4
"""Bytes of values at which it ends a commit, which may exceed them by one delta. They are far below
`MAX_BODY_BYTES`, because a log row also has ids and column names."""


class GatewayStats(msgspec.Struct, frozen=True, rename="camel"):
    """The counters of a gateway's log of pushes and of the log's flush to the lake. Admin routes return it as JSON."""

    log_size: int
    """Number of unflushed deltas."""
    byte_size: int
    """Stored bytes of the unflushed deltas."""
    oldest_ms: int | None
    """Server wall time of the oldest unflushed delta, in milliseconds since 1970; null if everything is flushed."""
    last_arrival: int = msgspec.field(name="lastArrivalHlc")
    """The newest arrival (the gateway's own HLC timestamp of a commit); 0 before the first push."""
    last_seq: int
    """Sequence number of the newest log row."""
    flushed_seq: int
    """Sequence number of the newest log row that is in the lake."""
    flushed_ms: int | None
    """Server wall time of the last confirmed flush, in milliseconds since 1970; null before the first one."""

    @staticmethod
    def of(shards: Sequence[Backlog]) -> GatewayStats:
        """Return the counters of a gateway, given its backlog in each shard (a store with some of the tables)."""
        return GatewayStats(
            log_size=sum(shard.deltas for shard in shards),
            byte_size=sum(shard.bytes for shard in shards),
            oldest_ms=min((shard.oldest_ms for shard in shards if shard.oldest_ms is not None), default=None),
            last_arrival=max((shard.last_arrival for shard in shards), default=0),
            last_seq=max((shard.last_seq for shard in shards), default=0),
            flushed_seq=max((shard.flushed_seq for shard in shards), default=0),
            flushed_ms=max((shard.flushed_ms for shard in shards if shard.flushed_ms is not None), default=None),
        )


class AdapterGateway(GatewayBase):
    """A base class of `SyncGateway` with the methods that use adapters; it is never used alone."""

    def __init__(self, gateway_id: str, store: StagingStore, limits: EngineLimits, shared: SharedParts) -> None:
        """Create the flusher and the sources; see `GatewayBase` for the arguments."""
        super().__init__(gateway_id, store, limits, shared)
        self.flusher = Flusher(gateway_id, store, shared.wall, shared.outlet)
        self.sources = Sources(gateway_id, store, shared.wall, self.rules)

    # -- statistics --------------------------------------------------------------------------------------------------

    def buffer_stats(self) -> BufferStats:
        """Return the numbers of unflushed deltas, rows and stored bytes."""
        return self.flusher.backlog_stats.buffer_stats()

    def table_stats(self) -> list[TableStats]:
        """Return the numbers of unflushed deltas and stored bytes of each table."""
        return self.flusher.backlog_stats.table_stats()

    def backlog(self) -> list[Backlog]:
        """Return the size and age of the unflushed deltas in each shard (a store with some of the tables)."""
        return self.flusher.backlog_stats.backlog()

    def stats(self) -> GatewayStats:
        """Return the size and age of the unflushed deltas, over all shards."""
        return GatewayStats.of(self.backlog())

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
        from_adapter = deltas is None
        if deltas is None:
            stored_deltas = read_all(self.flusher.destination, DeltaQuery(gateway=self.gateway_id))
            deltas = (stored.delta for stored in stored_deltas)
        self._mark_client_records_lost()
        remaining = iter(deltas)
        total = 0
        while chunk := list(islice(remaining, _DELTAS_PER_READ)):
            self._restore(chunk)
            total += len(chunk)
            if from_adapter:
                # They are in the adapter already, so `adopt` marks them as flushed without writing them. It compares
                # identities, which do not depend on the arrival (the commit's timestamp), so it is 0. A background
                # flush may write them before that, which changes nothing: the adapter leaves a delta that it has
                # unchanged.
                self.flusher.adopt([StoredDelta(self.gateway_id, 0, delta).identity for delta in chunk])
        return total

    def _mark_client_records_lost(self) -> None:
        """If the store is empty, record that the clients' records are lost; a sharded gateway does so in each shard.

        Any client may then have any row, as after a rebuild.
        """
        if not any(shard.last_seq for shard in self.backlog()):
            self._store.submit(self.gateway_id, lambda commit: commit.put_client(ANY_CLIENT)).result()

    def _restore(self, deltas: Sequence[RowDelta]) -> None:
        """Commit deltas as pushes of the clients that wrote them, unchecked; a sharded gateway overrides this.

        Known deltas are recognised by their ids and change nothing. Each client gets a record, as if it had pushed the
        deltas itself. The deltas may be in any order.

        Raises:
            StagingUnavailableError: the store does not respond. Some commits may still follow; a repeat continues.
        """
        now_ms = self._wall()
        restored: list[Future[PushResult]] = []
        for part in _in_parts(deltas):
            by_client: dict[str, list[RowDelta]] = {}
            for delta in part:
                by_client.setdefault(delta.client_id, []).append(delta)
            restored += [
                self._store.submit(self.gateway_id, self._restore_job(client_id, own, now_ms))
                for client_id, own in by_client.items()
            ]
        for each in restored:
            each.result()

    def _restore_job(
        self, client_id: str, deltas: Sequence[RowDelta], now_ms: int
    ) -> Callable[[PushCommit], PushResult]:
        """Return the transaction that commits some deltas of one client.

        Args:
            client_id: the id of the client that wrote the deltas.
            deltas: the deltas.
            now_ms: server wall time in milliseconds since 1970.
        """
        push, names = SyncPush(client_id, tuple(deltas)), PushNames(self.names)
        # `already_accepted`: they were accepted once, so they are not checked
        request = PushRequest(push, {"sub": user_of(client_id)}, now_ms=now_ms, already_accepted=True)

        def restore(commit: PushCommit) -> PushResult:
            record = commit.client(client_id)
            result = commit_push(commit, request, self.rules, self._limits, names)
            if record is not None and record.epoch == LOST:  # the claims of its next request say what it may have
                commit.put_client(record)
            return result

        return restore

    # -- sources -----------------------------------------------------------------------------------------------------

    def register_source(self, name: str, adapter: Adapter, *, gateway: str | None = None) -> None:
        """Let clients pull from an adapter, through this gateway's rules.

        Pass `gateway` if the adapter has deltas of several gateways. Otherwise clients may get rows of all of them, and
        deltas of two gateways with the same table and row id are merged into one row.

        Args:
            name: the name that clients pass as `source`; an adapter registered under it is replaced.
            adapter: an open adapter, a database or an object store, which the caller closes. While a bulk load into it
                is in progress, pulls return empty pages, so that no client skips deltas that are still to be written.
            gateway: the gateway whose deltas clients get, such as this gateway's own id; None for all deltas of the
                adapter.
        """
        until = self._flushed_until if gateway == self.gateway_id else lambda: None
        self.sources.register(name, Source(LoadBarrier(as_database(adapter)), gateway, until))

    def _flushed_until(self) -> int | None:
        """Return the arrival up to which all deltas are flushed, for sources of this gateway's own deltas.

        None for no bound: one store is flushed in order of arrival. A sharded gateway overrides this.
        """
        return None

    def unregister_source(self, name: str) -> None:
        """Unregister a source; its adapter stays open.

        Raises:
            NotFoundError: no source has this name.
        """
        self.sources.unregister(name)

    def list_sources(self) -> list[str]:
        """Return the names of the registered sources, sorted."""
        return self.sources.names()


def _in_parts(deltas: Iterable[RowDelta]) -> Iterator[list[RowDelta]]:
    """Yield parts of the deltas, each with about `_DELTAS_PER_COMMIT` deltas or `_BYTES_PER_COMMIT` bytes at most.

    A part has one delta of a row. So the feed shows that a row existed before it was deleted, and under which bucket
    keys: clients may have it from then.
    """
    part: dict[RowKey, RowDelta] = {}
    size = 0
    for delta in deltas:
        if delta.key in part or len(part) >= _DELTAS_PER_COMMIT or size >= _BYTES_PER_COMMIT:
            yield list(part.values())
            part, size = {}, 0
        part[delta.key] = delta
        size += sum(len(cell.value) for cell in delta.columns)
    if part:
        yield list(part.values())
