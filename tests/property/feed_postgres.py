"""Histories over Postgres: with one process, with two that share a database, and with lost connections."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st

from lakesync.engine import Engine, SyncGateway
from lakesync.model.delta import dedup_key
from lakesync.model.errors import StagingUnavailableError
from lakesync.rules.model import SyncRules
from lakesync.staging import open_store
from lakesync.staging.records import Reindex
from lakesync.staging.store import StagingStore
from tests.postgres_proxy import Proxy
from tests.postgres_server import empty
from tests.property.feed_history import History, PatientEngine
from tests.property.feed_model import StockClient
from tests.property.feed_steps import people, troubled

CLOCKS = (0, -25)
"""Milliseconds by which each process' clock is ahead."""


class PostgresHistory(History):
    """A history over a database, which is emptied before."""

    url = ""

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        empty(self.url)
        super().__init__(folder, skews, rules)

    def _store(self) -> StagingStore:
        return open_store(self.url, lambda: self.now + self.ahead)

    def _write_behind(self, store: StagingStore) -> None:
        """Nothing to do: Postgres writes every commit."""

    def _crash(self) -> None:
        """Restart the process; committed data remains."""
        self.close()
        self.world.engine = self._open()


class Processes:
    """The methods of an engine, called in one of the processes at random, the same for the same history."""

    def __init__(self, make: Callable[[int], Engine]) -> None:
        self._make = make
        self.engines = [make(number) for number in range(len(CLOCKS))]
        self._asked = itertools.count()

    def any(self) -> Engine:
        """The next process to call."""
        return self.engines[zlib.crc32(b"%d" % next(self._asked)) % len(self.engines)]

    def gateway(self, name: str) -> SyncGateway:
        """A gateway of the next process."""
        return self.any().gateway(name)

    @property
    def store(self) -> StagingStore:
        """The store of the next process."""
        return self.any().store

    def restart(self, number: int) -> None:
        """Restart a process."""
        self.engines[number].close()
        self.engines[number] = self._make(number)

    def close(self) -> None:
        """Close all processes."""
        for engine in self.engines:
            engine.close()


class ProcessesHistory(PostgresHistory):
    """A history of two gateway processes, whose clocks differ."""

    @property
    def processes(self) -> Processes:
        """Both processes."""
        return cast("Processes", self.world.engine)

    def _open(self) -> Engine:
        return cast("Engine", Processes(self._process))

    def _process(self, number: int) -> Engine:
        ahead = CLOCKS[number]
        store = open_store(self.url, lambda: self.now + self.ahead + ahead)
        return self._opened(PatientEngine(store, lambda: self.now + 60, self.limits))

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        if kind == "restart" and detail[0] <= len(CLOCKS):
            self.processes.restart(detail[0] - 1)
        else:
            super()._do(kind, client, *detail)

    def _reindex(self, rows: int) -> None:
        """Each process continues its own reindex, because every process notices a change of rules."""
        done: dict[SyncGateway, Reindex] = {}
        while rows and not any(last.done for last in done.values()):
            gateway = self.world.gateway
            done[gateway] = gateway._reindexer.submit(done.get(gateway)).result()
            rows -= 1


class LostCommitsHistory(PostgresHistory):
    """A history in which the connection is sometimes lost in a COMMIT, before or after its execution."""

    histories = troubled(st.tuples(st.just("cut"), people, st.sampled_from(["before", "after"])))

    proxy: Proxy
    """The proxy of the open store."""

    def close(self) -> None:
        """Release the store."""
        super().close()
        self.proxy.close()

    def _store(self) -> StagingStore:
        self.proxy = Proxy(self.url)
        return open_store(self.proxy.url, lambda: self.now + self.ahead)

    def _rest(self) -> None:
        self.proxy.cut = None
        super()._rest()

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        if kind == "cut":
            (self.proxy.cut,) = detail
            return
        try:
            super()._do(kind, client, *detail)
        except StagingUnavailableError:
            client.disconnect()
            self._find_out()

    def _do_core(self, kind: str, place: int, *detail: Any) -> None:
        cuts = self.proxy.cuts
        super()._do_core(kind, place, *detail)
        if self.proxy.cuts > cuts:
            self._find_out()

    def _find_out(self) -> None:
        """Find out the result of uncertain commits."""
        world = self.world
        sent = [delta for client in self.clients for push in client.pushed for delta in push.deltas]
        for delta in (*sent, *self.core.outbox):
            if (delta.hlc, dedup_key(delta.delta_id)) in self._known(delta.client_id):
                world.pushed((delta,))
        world.rules = world.gateway.config().rules or SyncRules(1, ())
        world.look()
        cut = world.engine.store.newest_checkpoint("g")
        if cut is not None and cut.arrival not in self.cuts:
            rows = world.engine.store.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
            self.cuts[cut.arrival] = world.rows(), rows
        for erasure in world.engine.store.erasures("g"):
            assert erasure.row_id is not None
            world.erase(erasure.row_id, erasure.hlc)
            if erasure.done_ms is None:
                self._erase(erasure.row_id)

    def _known(self, client_id: str) -> set[tuple[int, bytes]]:
        store = self.world.engine.store
        return store.submit("g", lambda commit: commit.known_ids(client_id, 0, 1 << 62)).result()
