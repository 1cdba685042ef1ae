"""The named sources of one gateway: adapters from which clients pull with `source=NAME`."""

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
from lakesync.engine.source_pages import SourcePage, read_source, with_deletes
from lakesync.feed.client_state import current
from lakesync.model.errors import NotFoundError
from lakesync.model.types import Claims, SyncPull, SyncResponse
from lakesync.rules.model import pass_all
from lakesync.staging.records import ClientRecord
from lakesync.staging.records.clients import SourcePosition
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import ClientCommit

log = structlog.get_logger("gateway")

_WORKERS = 4
"""Threads that read sources."""


class Sources:
    """Registers adapters by name and serves pulls from them. All methods may be called from any thread."""

    def __init__(self, gateway_id: str, store: TransactionStore, wall: Callable[[], int], rules: RulesCache) -> None:
        """Create it without sources.

        Args:
            gateway_id: the gateway's id.
            store: holds the clients' records.
            wall: returns the server's wall time in milliseconds since 1970.
            rules: the gateway's cache of compiled sync rules.
        """
        self._gateway_id = gateway_id
        self._store = store
        self._wall = wall
        self._rules = rules
        self._adapters: dict[str, DatabaseAdapter] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def register(self, name: str, adapter: DatabaseAdapter) -> None:
        """Register an adapter as a source; it replaces one with the same name."""
        with self._lock:
            self._adapters[name] = adapter

    def unregister(self, name: str) -> None:
        """Unregister a source; its adapter stays open.

        Raises:
            NotFoundError: no source has this name.
        """
        with self._lock:
            if self._adapters.pop(name, None) is None:
                raise self._unknown(name)

    def names(self) -> list[str]:
        """Return the names of the sources."""
        with self._lock:
            return sorted(self._adapters)

    def submit_pull(self, source: str, pull: SyncPull, claims: Claims, *, live: bool = False) -> Future[SyncResponse]:
        """Return a page of the changes of a source that a client lacks. It is read in a thread, because adapters block.

        Args:
            source: name of the source.
            pull: the request.
            claims: the verified claims of the client's token.
            live: whether the pull came over a connection that also receives broadcasts.

        Returns:
            A future of the page. It raises AdapterError if the source cannot be read.

        Raises:
            NotFoundError: no source has this name.
        """
        with self._lock:
            adapter = self._adapters.get(source)
            if adapter is None:
                raise self._unknown(source)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, f"sources of {self._gateway_id}")
            return self._pool.submit(self._pull, adapter, source, pull, claims, live)

    def read_page(self, view: ClientView, request: PullRequest) -> Reading:
        """Read a page of the gateway's own feed, for a client that may have cursors and rows of sources.

        Args:
            view: a consistent read of the gateway's store.
            request: the pull, after its checks.
        """
        pull = request.pull
        record = current(view.client(pull.client_id), view.epoch)
        if record is None or not record.sources:
            return read_page(view, request, self._rules)
        since = positions.resolve(record, pull.since_hlc)
        own = replace(pull, since_hlc=since, source=None)
        reading = read_page(view, request._replace(pull=own), self._rules)
        self._note(pull, positions.started_again if reading.at.resync else None, record)
        deltas = with_deletes(reading.page.deltas, record)
        return reading._replace(page=reading.page._replace(deltas=deltas))

    def close(self) -> None:
        """Finish the pulls that are in progress."""
        if self._pool is not None:
            self._pool.shutdown()

    def _pull(self, adapter: DatabaseAdapter, source: str, pull: SyncPull, claims: Claims, live: bool) -> SyncResponse:
        """Read a page, again if another request of the client changed its position in the source meanwhile."""
        while (page := self._try_pull(adapter, source, pull, claims, live)) is None:
            pass
        return page

    def _try_pull(
        self, adapter: DatabaseAdapter, source: str, pull: SyncPull, claims: Claims, live: bool
    ) -> SyncResponse | None:
        """Return a page; None if the client's position in the source changed while the page was read."""
        record, config = self._store.read(
            self._gateway_id,
            lambda view: (current(view.client(pull.client_id), view.epoch), view.config),
        ).result()
        relevant = self._rules.index(config).relevant(claims)
        rules = config.rules or pass_all()
        start = positions.begin(record, source, pull.since_hlc, rules, relevant, adapter.newest_position)
        page = read_source(adapter, start.after, start.known.access_periods, pull.max_deltas)
        known, cursor = positions.end(start, record, pull.since_hlc, page.end, page.tables, more=page.more)
        before = positions.position_in(record, source)
        if record is None or known != before:
            now = self._wall()
            kept = self._store.submit(
                self._gateway_id, lambda commit: _keep(commit, before, start, pull, page, now, live=live)
            ).result()
            if kept is None:
                return None
            cursor = kept
        return SyncResponse(tuple(page.deltas), cursor, page.more)

    def _note(self, pull: SyncPull, again: Callable[[ClientRecord], ClientRecord] | None, record: ClientRecord) -> None:
        """Store what the cursor of a pull from the gateway's own feed confirms about sources.

        Nothing waits for this write: if it is lost, pages of sources are sent again.
        """
        update = again or (lambda known: positions.after_request(known, pull.since_hlc))
        if update(record) == record:
            return

        def work(commit: ClientCommit) -> None:
            known = current(commit.client(pull.client_id), commit.epoch)
            if known is not None:
                commit.put_client(update(known))

        self._store.submit(self._gateway_id, work).add_done_callback(_log_failure)

    def _unknown(self, name: str) -> NotFoundError:
        known = ", ".join(sorted(self._adapters)) or "none"
        return NotFoundError(f"no source {name!r} is registered at gateway {self._gateway_id!r} (known: {known})")


def _keep(
    commit: ClientCommit,
    before: SourcePosition,
    start: positions.Start,
    pull: SyncPull,
    page: SourcePage,
    now_ms: int,
    *,
    live: bool,
) -> int | None:
    """Store a client's position in a source after a page, and return the client's cursor.

    Args:
        commit: the open transaction in the gateway's store.
        before: the position that was stored when the page was read.
        start: the position at which the page starts.
        pull: the request.
        page: the page.
        now_ms: server wall time in milliseconds since 1970.
        live: whether the pull came over a connection that also receives broadcasts.

    Returns:
        None if another position is stored now; nothing is changed then.
    """
    record = current(commit.client(pull.client_id), commit.epoch)
    if positions.position_in(record, start.known.source) != before:
        return None
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
        log.warning("receipt of a source's page not stored; the page will be sent again", reason=str(error))
