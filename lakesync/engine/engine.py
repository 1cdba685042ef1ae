"""`Engine`: all gateways of one staging store. It opens the store, creates gateways, and replays the log after a crash.

A *gateway* is one app's stream of changes; the *staging store* is the database that pushes are committed to. Its *log*
has one row for each push. The store also has the merged rows, each with the *bucket keys* by which the sync rules show
it to clients. A *shard* is a store with some of the tables. An *adapter* gives access to another database or object
store: the *outlet*, to which deltas (changes of rows) are flushed, or a *source*, from which clients pull. A
*connector* is an external system in which clients can request actions. The gateway server and `open_gateway` create one
engine per process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lakesync.actions import ActionRunner
from lakesync.connectors import Connectors
from lakesync.engine.active_rules import RulesCache
from lakesync.engine.checks import EngineLimits
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.gateway_base import SharedParts
from lakesync.engine.inspection.rejections import RejectionLog
from lakesync.engine.names import Names
from lakesync.engine.sharding.gateway import ShardedGateway
from lakesync.engine.sources import SharedSource
from lakesync.feed.apply import Sender, apply
from lakesync.feed.astray import mark_astray
from lakesync.feed.push_rows import by_row
from lakesync.feed.reindex import rewrite_rows
from lakesync.flush import FlushQueue, Outlet
from lakesync.model.errors import NotFoundError, ValidationError
from lakesync.model.namespaces import Namespaces
from lakesync.model.validation import check_gateway_id
from lakesync.staging.records import LogEntry, StoredRow, WriteScope
from lakesync.staging.sharded import ShardedStore, tables_with_rows
from lakesync.staging.store import StagingStore
from lakesync.staging.store.push import RowCommit
from lakesync.wire.log import decode_body

ACTION_SECONDS = 5.0
"""Seconds for which `Engine.close` waits for running actions; the next process continues unfinished ones."""


class Engine:
    """Opens a staging store and creates its gateways.

    It is the store's `Replayer`: a store on SQLite passes it the committed log rows whose effect on rows was not
    written before a crash.
    """

    def __init__(
        self,
        store: StagingStore,
        wall: Callable[[], int],
        limits: EngineLimits | None = None,
        *,
        auto_create: bool = True,
        connectors: Connectors | None = None,
        write_scopes: Mapping[str, WriteScope] | None = None,
        outlet: Outlet | None = None,
        sources: Mapping[str, SharedSource] | None = None,
        namespaces: Namespaces | None = None,
    ) -> None:
        """Create the engine; `open` opens its store.

        Args:
            store: the staging store of all gateways, not opened yet.
            wall: returns the server's wall time in milliseconds since 1970.
            limits: limits of requests, and of the deltas that are not flushed to the lake; None for the defaults.
            auto_create: whether a gateway is created when it is first named; otherwise only those of `write_scopes`
                exist.
            connectors: the connector types, and the keys that encrypt their secrets; None for the built-in types.
            write_scopes: the write scope (which rows clients may push to) of each gateway that the configuration
                declares, by gateway id. These gateways exist from the start.
            outlet: the adapter that gateways flush to; None if the data pipeline flushes, or nothing does.
            sources: sources that clients of every gateway can pull from, by name. Each gateway gets the deltas of one
                gateway from each: its own, unless the source names another.
            namespaces: which gateways share a namespace of the lake, and with it its tables of current rows and the
                spelling of table and column names; None if all gateways share one.
        """
        self.store = store
        self.wall = wall
        """The clock: returns the server's wall time in milliseconds since 1970."""
        self._limits = limits or EngineLimits()
        self._auto_create = auto_create
        self.connectors = connectors or Connectors()
        """The connector types, and the keys that encrypt their secrets."""
        self._write_scopes = dict(write_scopes or {})
        self._shared = SharedParts(
            wall=wall,
            connectors=self.connectors,
            runner=ActionRunner(),
            # the queue of updates of destination tables is in the staging store, unless the outlet has one of its own
            outlet=outlet.with_queue_in(store) if outlet is not None else None,
            names=Names(namespaces.of if namespaces is not None else lambda _: ""),
            rejections=RejectionLog(wall),
        )
        self._sources = dict(sources or {})
        self._gateways: dict[str, SyncGateway] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the store and all gateways in it. Gateways continue what an earlier process left unfinished.

        Raises:
            StagingVersionError: a newer version of LakeSync wrote the store.
            StagingUnavailableError: the store cannot be opened, or another process owns it.
            ConfigurationError, IntegrityError: the configured shards do not fit the stores, or data is missing.
        """
        self.store.open(self)
        for gateway_id in self._write_scopes:
            self.store.ensure_gateway(gateway_id)
        for gateway_id in self.store.gateways():
            gateway = self._gateways.setdefault(gateway_id, self._create_gateway(gateway_id))
            # what an earlier process may have left: secrets under the previous key, an unfinished re-index (an update
            # of all rows' bucket keys), schemas whose names are not stored, and shards without a change of
            # configuration that a crash interrupted
            gateway.reseal_connectors()
            gateway.continue_reindex()
            gateway.add_names()
            if isinstance(gateway, ShardedGateway):
                gateway.align_shards()

    def close(self) -> None:
        """Complete submitted requests, and close the store. Running actions have `ACTION_SECONDS` to end."""
        self._shared.runner.close(ACTION_SECONDS)
        for gateway in self._gateways.values():
            gateway.sources.close()
        self.store.close()

    def gateways(self) -> list[str]:
        """Return the ids of all gateways in the store."""
        return self.store.gateways()

    def known_gateway(self, gateway_id: str) -> SyncGateway | None:
        """Return a gateway that this process has created, without waiting; None if it has created none."""
        return self._gateways.get(gateway_id)

    def gateway(self, gateway_id: str) -> SyncGateway:
        """Return a gateway by its id. With `auto_create`, an unknown one is created.

        Raises:
            ValidationError: the id is invalid.
            NotFoundError: the gateway is unknown, and `auto_create` is false.
            StagingUnavailableError: the store does not respond.
        """
        known = self.known_gateway(gateway_id)
        if known is not None:
            return known
        if fault := check_gateway_id(gateway_id):
            raise ValidationError(fault)
        with self._lock:
            if gateway_id not in self._gateways:
                if not self._auto_create and gateway_id not in self.store.gateways():
                    raise NotFoundError(f"no gateway {gateway_id!r}: declare it, or set auto_create")
                self.store.ensure_gateway(gateway_id)
                self._gateways[gateway_id] = self._create_gateway(gateway_id)
            return self._gateways[gateway_id]

    @property
    def queue(self) -> FlushQueue | None:
        """The queue of updates of destination tables (tables with the current rows, beside the flushed deltas).

        None without an outlet, or if it has no such tables.
        """
        return self._shared.outlet.queue if self._shared.outlet is not None else None

    def store_of(self, table: str) -> StagingStore:
        """Return the store that contains a table's rows: its shard's, or the only one."""
        return self.store.store_of(table) if isinstance(self.store, ShardedStore) else self.store

    def tables(self, gateway: str) -> list[str]:
        """Return the tables of which a gateway has rows, deleted ones included, ordered by name."""
        stores = self.store.stores.values() if isinstance(self.store, ShardedStore) else (self.store,)
        return sorted({table for store in stores for table in tables_with_rows(store, gateway)})

    def replay(self, commit: RowCommit, entry: LogEntry) -> None:
        """Apply a committed log row to the rows again, exactly as its push did; a store calls this after a crash.

        Args:
            commit: the open transaction in the gateway's store.
            entry: the log row, with its body (the push's deltas).

        Raises:
            NotFoundError: the log row's body was trimmed (deleted after its flush).
        """
        if entry.body is None:
            raise NotFoundError(f"log row {entry.seq} of gateway {entry.gateway!r} was trimmed and cannot be replayed")
        rules = self._rules_of(commit)
        access = rules.access(commit, entry.claims)
        rows = by_row(decode_body(entry.body))
        # `sees_by_values` is None unless a re-index is unfinished
        sender = Sender(entry.client_id, access.keys, reindexed=access.sees_by_values is None)
        apply(commit, rows, sender, entry.arrival, rules.index(commit.config))
        client = commit.client(entry.client_id)
        if client is not None and entry.arrival <= client.lost_push:  # of earlier pushes it may have lost some too
            mark_astray(commit, rows.deltas.keys(), entry.client_id)

    def rewrite_rows(self, commit: RowCommit, rows: Sequence[StoredRow]) -> None:
        """Store rows that an erasure changed, with the bucket keys of their new values; a store calls this.

        Args:
            commit: the open transaction in the gateway's store.
            rows: copies of the rows, changed.
        """
        rewrite_rows(commit, rows, self._rules_of(commit).index(commit.config))

    def _rules_of(self, commit: RowCommit) -> RulesCache:
        """Return the rules cache of the commit's gateway; a replay comes before `open` has created the gateways."""
        known = self._gateways.get(commit.gateway)
        return (known or self._gateways.setdefault(commit.gateway, self._create_gateway(commit.gateway))).rules

    def _create_gateway(self, gateway_id: str) -> SyncGateway:
        """Create a gateway with its write scope, the shared parts of the engine, and the sources."""
        scope = self._write_scopes.get(gateway_id, self._limits.write_scope)
        limits = msgspec.structs.replace(self._limits, write_scope=scope)
        gateway = (
            ShardedGateway(gateway_id, self.store, limits, self._shared)
            if isinstance(self.store, ShardedStore)
            else SyncGateway(gateway_id, self.store, limits, self._shared)
        )
        for name, source in self._sources.items():
            gateway.register_source(name, source.adapter, gateway=source.gateway or gateway_id)
        return gateway
