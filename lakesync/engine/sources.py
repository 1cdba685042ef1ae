"""The named sources of one gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from msgspec.structs import replace

from lakesync.adapters.base import DatabaseAdapter
from lakesync.engine import source_positions as positions
from lakesync.engine.access import RulesCache
from lakesync.engine.pulling import PullRequest, Reading, read_page, tell_followers
from lakesync.engine.sourcing import SourcePage, beside_sources, read_source
from lakesync.feed.memory import current
from lakesync.model.errors import NotFoundError
from lakesync.model.types import Claims, SyncPull, SyncResponse
from lakesync.rules.presets import pass_all
from lakesync.staging.records import ClientRecord
from lakesync.staging.store import Commit, StagingStore, View

log = structlog.get_logger("gateway")

_WORKERS = 4


class Sources:
    """Adapters by name, and the pulls that are answered from them. Safe between threads."""

    def __init__(self, gateway_id: str, store: StagingStore, wall: Callable[[], int], rules: RulesCache) -> None:
        self._gateway_id = gateway_id
        self._store = store
        self._wall = wall
        self._rules = rules
        self._adapters: dict[str, DatabaseAdapter] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def register(self, name: str, adapter: DatabaseAdapter) -> None:
        """Make an adapter a source, in place of one that had the name."""
        with self._lock:
            self._adapters[name] = adapter

    def unregister(self, name: str) -> None:
        """Take a source away; the adapter stays open.

        Raises:
            NotFoundError: there is none of this name.
        """
        with self._lock:
            if self._adapters.pop(name, None) is None:
                raise self._unknown(name)

    def names(self) -> list[str]:
        """The registered names."""
        with self._lock:
            return sorted(self._adapters)

    def submit_pull(self, source: str, pull: SyncPull, claims: Claims, *, live: bool = False) -> Future[SyncResponse]:
        """A page of what a client lacks of a source; adapters block, so this runs in threads of its own.

        Args:
            source: its name.
            pull: what is asked.
            claims: of the client.
            live: whether it is asked on a connection that is told of what is new.

        Raises:
            NotFoundError: there is no such source.
        Raises (in the future):
            AdapterError: the source cannot be read.
        """
        with self._lock:
            adapter = self._adapters.get(source)
            if adapter is None:
                raise self._unknown(source)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, f"sources of {self._gateway_id}")
            return self._pool.submit(self._pull, adapter, source, pull, claims, live)

    def read_page(self, view: View, request: PullRequest) -> Reading:
        """`pulling.read_page` for a client that may have been given marks and rows by sources."""
        pull = request.pull
        record = current(view.client(pull.client_id), view.epoch)
        if record is None or not record.sources:
            return read_page(view, request, self._rules)
        since = positions.resolve(record, pull.since_hlc)
        meant = replace(pull, since_hlc=since, source=None)
        reading = read_page(view, request._replace(pull=meant), self._rules)
        self._note(pull, positions.started_again if reading.at.resync else None, record)
        told = beside_sources(reading.page.deltas, record)
        return reading._replace(page=reading.page._replace(deltas=told))

    def close(self) -> None:
        """Finish what was asked."""
        if self._pool is not None:
            self._pool.shutdown()

    def _pull(self, adapter: DatabaseAdapter, source: str, pull: SyncPull, claims: Claims, live: bool) -> SyncResponse:
        record, config = self._store.read(
            self._gateway_id,
            lambda view: (current(view.client(pull.client_id), view.epoch), view.config),
        ).result()
        relevant = self._rules.index(config).relevant(claims)
        rules = config.rules or pass_all()
        start = positions.begin(record, source, pull.since_hlc, rules, relevant, adapter.newest_position)
        page = read_source(adapter, start.after, start.known.sights, pull.max_deltas)
        known, cursor = positions.end(start, record, pull.since_hlc, page.end, page.tables, more=page.more)
        if record is None or known != positions.position_in(record, source):
            now = self._wall()
            keeping = self._store.submit(
                self._gateway_id, lambda commit: _keep(commit, start, pull, page, now, live=live)
            )
            cursor = keeping.result()
        return SyncResponse(tuple(page.deltas), cursor, page.more)

    def _note(self, pull: SyncPull, again: Callable[[ClientRecord], ClientRecord] | None, record: ClientRecord) -> None:
        """Keep what the cursor of a pull of the gateway's own feed says of sources.

        Nobody waits for it: where it is lost, pages are sent again.
        """
        update = again or (lambda known: positions.after_request(known, pull.since_hlc))
        if update(record) == record:
            return

        def work(commit: Commit) -> None:
            known = current(commit.client(pull.client_id), commit.epoch)
            if known is not None:
                commit.put_client(update(known))

        self._store.submit(self._gateway_id, work).add_done_callback(_log_failure)

    def _unknown(self, name: str) -> NotFoundError:
        known = ", ".join(sorted(self._adapters)) or "none"
        return NotFoundError(f"no source {name!r} is registered at gateway {self._gateway_id!r} (known: {known})")


def _keep(commit: Commit, start: positions.Start, pull: SyncPull, page: SourcePage, now_ms: int, *, live: bool) -> int:
    """Remember a page; the cursor that it hands out."""
    record = current(commit.client(pull.client_id), commit.epoch)
    known, cursor = positions.end(start, record, pull.since_hlc, page.end, page.tables, more=page.more)
    record = record or ClientRecord(pull.client_id, commit.epoch, now_ms)
    seen = positions.after_request(replace(record, last_seen_ms=now_ms), pull.since_hlc)
    commit.put_client(positions.with_position(seen, known))
    if page.deltas:
        tell_followers(commit, record, live=live)
    return cursor


def _log_failure(ended: Future[None]) -> None:
    error = ended.exception()
    if error is not None:
        log.warning("a source's page is not known as received, and will be sent again", reason=str(error))
