"""The named sources of one gateway: adapters from which clients pull with `source=NAME`, beside the gateway's own feed.

An *adapter* gives access to a database or object store with deltas: INSERTs, UPDATEs and DELETEs of rows, in an order
in which each has a *position*. A client has one *cursor* for the gateway's own feed and all sources. The cursor of a
source's page is a *mark*: a client that sends it back has received the page (`engine.source_progress`). How far a
client is with each source is in its *record* in the staging store, the database that pushes are committed to. A
*gateway* is one app's stream of changes, and its *feed* has the rows in the order of their latest change. `SyncGateway`
calls `submit_pull` for pulls from a source, and `read_page` for every other pull.

`engine.source_reading` reads the page of a source, through the gateway's sync rules.

An adapter may have the deltas of several gateways, which may have rows with the same table and id. So a source reads
the deltas of one gateway. One that an application registers without a gateway reads all deltas of its adapter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from lakesync.adapters.registry import Adapter
from lakesync.engine import page_reading, source_progress
from lakesync.engine.active_rules import RulesCache
from lakesync.engine.page_reading import PullRequest, Reading
from lakesync.engine.pulling import announce_other_connection
from lakesync.engine.source_reading import Source, SourcePage, read_source, with_deletes
from lakesync.feed.client_state import current_record
from lakesync.model.errors import NotFoundError, StagingUnavailableError
from lakesync.model.types import Claims, SyncPage, SyncPull
from lakesync.rules.model import all_rows_rules
from lakesync.staging.records import ClientRecord
from lakesync.staging.records.clients import SourceProgress
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import ClientCommit

_WORKERS = 4
"""Number of threads of a gateway that read its sources."""

log = structlog.get_logger("gateway")


class SharedSource(NamedTuple):
    """A source of every gateway of an engine."""

    adapter: Adapter
    """An open adapter, which may have deltas of several gateways."""
    gateway: str | None = None
    """The gateway whose deltas all gateways read; None if each gateway reads its own."""


class Sources:
    """Registers adapters by name and serves pulls from them. All methods may be called from any thread."""

    def __init__(self, gateway_id: str, store: TransactionStore, wall: Callable[[], int], rules: RulesCache) -> None:
        """Create it without sources.

        Args:
            gateway_id: the gateway's id.
            store: the staging store that contains the clients' records.
            wall: returns the server's wall time in milliseconds since 1970.
            rules: the gateway's cache of compiled sync rules.
        """
        self._gateway_id = gateway_id
        self._store = store
        self._wall = wall
        self._rules = rules
        self._sources: dict[str, Source] = {}
        """The registered sources, by name."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        """The threads that read sources; None before the first pull from one."""
        self._is_closed = False

    def register(self, name: str, source: Source) -> None:
        """Register a source, in place of an earlier one with the same name.

        Clients keep their progress in the earlier one, so the new one must have the same deltas. Register a source with
        other deltas under another name.

        Args:
            name: the name that clients pass as `source`.
            source: the source, with an open adapter, which the caller closes.
        """
        with self._lock:
            self._sources[name] = source

    def unregister(self, name: str) -> None:
        """Unregister a source; its adapter stays open.

        Raises:
            NotFoundError: no source has this name.
        """
        with self._lock:
            if self._sources.pop(name, None) is None:
                raise self._unknown_source(name)

    def names(self) -> list[str]:
        """Return the names of the sources, sorted."""
        with self._lock:
            return sorted(self._sources)

    def submit_pull(self, name: str, pull: SyncPull, claims: Claims, *, live: bool = False) -> Future[SyncPage]:
        """Read a page of the changes of a source that a client lacks, in a thread, because adapters block.

        Args:
            name: the source's name.
            pull: the decoded request.
            claims: the verified claims of the client's token.
            live: whether the pull came over the connection on which the client gets broadcasts (pages without a
                request). Otherwise that connection's process is notified that the client may have these rows.

        Returns:
            A future of the page.

        Raises:
            NotFoundError: no source has this name.
            StagingUnavailableError: the gateway is closed.
        Raises (in the future):
            AdapterError: the source cannot be read.
            StagingUnavailableError: the store does not respond.
        """
        with self._lock:
            source = self._sources.get(name)
            if source is None:
                raise self._unknown_source(name)
            if self._is_closed:
                raise StagingUnavailableError(f"gateway {self._gateway_id!r} is closed: open it again")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, f"sources of {self._gateway_id}")
            return self._pool.submit(self._pull, name, source, pull, claims, live)

    def read_page(self, view: ClientView, request: PullRequest) -> Reading:
        """Read a page of the gateway's own feed, for a client that may have cursors and rows of sources.

        The client's cursor may be the mark of a source's page. It is translated to the feed's cursor, and what it shows
        about the source is stored. An INSERT of a row that the client may have from a source gets a DELETE before it.

        Args:
            view: a consistent read of the gateway's store.
            request: the pull, after its checks.

        Returns:
            The page, and what it was computed from; its `since` is the feed's cursor.

        Raises:
            ResyncRequiredError: as `page_reading.read_page`.
        """
        pull = request.pull
        record = current_record(view.client(pull.client_id), view)
        if record is None or not record.sources:
            return page_reading.read_page(view, request, self._rules)
        since = source_progress.feed_cursor(record, pull.since_hlc)
        own = replace(pull, since_hlc=since, source=None)
        reading = page_reading.read_page(view, request._replace(pull=own), self._rules)
        if not reading.position.resync:  # a client that starts again loses its progress in the commit of its page
            self._update_progress(pull, request.claims, record)
        deltas = with_deletes(reading.page.deltas, record)
        return reading._replace(page=reading.page._replace(deltas=deltas))

    def close(self) -> None:
        """Wait for the pulls that are in progress; later ones are rejected."""
        with self._lock:
            self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def _pull(self, name: str, source: Source, pull: SyncPull, claims: Claims, live: bool) -> SyncPage:
        """Read a page; read it again if another request of the client changed its progress in the source meanwhile.

        A repetition needs no limit: each means that another request of the same client was completed.
        """
        while (page := self._try_pull(name, source, pull, claims, live)) is None:
            pass
        return page

    def _try_pull(self, name: str, source: Source, pull: SyncPull, claims: Claims, live: bool) -> SyncPage | None:
        """Return a page; None if another request changed the client's progress in the source while it was read."""
        record, config = self._store.read(
            self._gateway_id,
            lambda view: (self._rules.record(view, pull.client_id, claims), view.config),
        ).result()
        claims_read = self._rules.index(config).claims_read(claims)
        rules = config.rules or all_rows_rules()
        start = source_progress.page_start(record, name, pull.since_hlc, rules, claims_read, source.newest_position)
        page = read_source(source, start.after, start.progress.access_periods, pull.max_deltas)
        progress, cursor = source_progress.after_page(
            start, record, pull.since_hlc, page.end, page.tables, has_more=page.has_more
        )
        before = source_progress.progress_in(record, name)
        if record is None or progress != before:  # the progress changed, and is stored before the response is sent
            now = self._wall()

            def store(commit: ClientCommit) -> int | None:
                known = self._rules.record(commit, pull.client_id, claims)
                return _store_progress(commit, known, before, start, pull, page, now, live=live)

            stored_cursor = self._store.submit(self._gateway_id, store).result()
            if stored_cursor is None:
                return None
            cursor = stored_cursor
        return SyncPage(page.deltas, cursor, page.has_more)

    def _update_progress(self, pull: SyncPull, claims: Claims, record: ClientRecord) -> None:
        """Store what the cursor of a pull from the gateway's own feed confirms about sources.

        The pull does not wait for this write. If it fails, the page that the cursor confirms is sent again.

        Args:
            pull: the pull; its cursor may be the mark of a source's page, which it confirms.
            claims: the verified claims of the client's token.
            record: the client's record.
        """
        if source_progress.after_request(record, pull.since_hlc) == record:
            return

        def confirm(commit: ClientCommit) -> None:
            known = self._rules.record(commit, pull.client_id, claims)
            if known is not None:
                commit.put_client(source_progress.after_request(known, pull.since_hlc))

        self._store.submit(self._gateway_id, confirm).add_done_callback(_log_failure)

    def _unknown_source(self, name: str) -> NotFoundError:
        """Return the error for a name that no source has; call it with the lock held."""
        known = ", ".join(sorted(self._sources)) or "none"
        return NotFoundError(f"no source {name!r} is registered at gateway {self._gateway_id!r} (known: {known})")


def _store_progress(
    commit: ClientCommit,
    record: ClientRecord | None,
    before: SourceProgress,
    start: source_progress.PageStart,
    pull: SyncPull,
    page: SourcePage,
    now_ms: int,
    *,
    live: bool,
) -> int | None:
    """Store a client's progress in a source after a page, and return the cursor of the response.

    The new progress is computed again, from the record in this transaction. Another page of the client may have used
    the same mark since.

    Args:
        commit: the open transaction in the gateway's store.
        record: the client's record; None if it has none.
        before: the progress that was stored when the page was read.
        start: where the page began.
        pull: the decoded request.
        page: the page that was read.
        now_ms: server wall time in milliseconds since 1970.
        live: whether the pull came over the connection on which the client gets broadcasts.

    Returns:
        The cursor; None, without a change, if another progress is stored now.
    """
    if source_progress.progress_in(record, start.progress.source) != before:
        return None
    progress, cursor = source_progress.after_page(
        start, record, pull.since_hlc, page.end, page.tables, has_more=page.has_more
    )
    record = record or ClientRecord(pull.client_id, commit.epoch, now_ms)
    confirmed = source_progress.after_request(replace(record, last_seen_ms=now_ms), pull.since_hlc)
    commit.put_client(source_progress.with_progress(confirmed, progress))
    if page.deltas:
        announce_other_connection(commit, record, live=live)
    return cursor


def _log_failure(ended: Future[None]) -> None:
    """Log a write that failed; a callback of its future."""
    error = ended.exception()
    if error is not None:
        log.warning("progress in a source not stored; its page may be sent again", reason=str(error))
