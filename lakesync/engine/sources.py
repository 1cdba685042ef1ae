"""The named sources of one gateway: adapters from which clients pull with `source=NAME`, beside the gateway's own feed.

An *adapter* gives access to a database or object store with deltas: INSERTs, UPDATEs and DELETEs of rows, in an order
in which each has a *position*. A client has one *cursor* for the gateway's own feed and all sources. The cursor of a
source's page is a *mark*: a client that sends it back has received the page (`engine.source_positions`). Each client's
positions in the sources are in its *record* in the staging store. `SyncGateway` calls `submit_pull` for pulls from a
source, and `read_page` for every other pull.

`read_source` reads a page through the gateway's sync rules, which are evaluated for each row. Each row is sent whole,
as DELETE and INSERT, because the gateway does not know what a client has of it. A row that the client may not see now
is sent as DELETE if an earlier version of it was shown to the client. That can be computed, because a source has all
deltas of a row.

An adapter may have the deltas of several gateways, which may have rows with the same table and id. So a source reads
the deltas of one gateway. One that an application registers without a gateway reads all deltas of its adapter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.deltas import DeltaQuery, StoredDelta, position_of
from lakesync.adapters.registry import Adapter
from lakesync.engine import page_reading
from lakesync.engine import source_positions as positions
from lakesync.engine.active_rules import RulesCache
from lakesync.engine.page_reading import PullRequest, Reading
from lakesync.engine.pulling import announce_other_connection
from lakesync.feed import render
from lakesync.feed.client_state import current_record
from lakesync.model.errors import NotFoundError, StagingUnavailableError
from lakesync.model.merge import RowState
from lakesync.model.types import Claims, Position, RowDelta, RowKey, SyncPull, SyncResponse
from lakesync.rules.model import all_rows_rules, matches
from lakesync.staging.records import ClientRecord, StoredRow
from lakesync.staging.records.clients import AccessPeriod, SourcePosition
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import ClientCommit

_CHUNK = 1000
"""Deltas in one read of the adapter."""
_MAX_CHUNKS = 20
"""The most reads of one pull, so that a pull ends that finds no row that its client may see."""
log = structlog.get_logger("gateway")

_WORKERS = 4
"""Number of threads of a gateway that read its sources."""


class SharedSource(NamedTuple):
    """A source of every gateway of an engine."""

    adapter: Adapter
    """An open adapter, which may have deltas of several gateways."""
    gateway: str | None = None
    """The gateway whose deltas all gateways read; None if each gateway reads its own."""


class Source(NamedTuple):
    """An adapter, and which of its deltas clients pull."""

    adapter: DatabaseAdapter
    gateway: str | None
    """The gateway whose deltas are read; None for all deltas of the adapter."""


class SourcePage(NamedTuple):
    """A page of a source."""

    deltas: list[RowDelta]
    end: Position | None
    """The position in the source at which the page ends; None if the source is empty."""
    has_more: bool
    """Whether the source may have more after it."""

    @property
    def tables(self) -> frozenset[str]:
        """The tables of the page's rows."""
        return frozenset(delta.table for delta in self.deltas)


def read_source(
    source: Source, after: Position | None, access_periods: Sequence[AccessPeriod], limit: int
) -> SourcePage:
    """Return the page after a position: whole rows, until the page has `limit` deltas.

    Args:
        source: the source, with an open adapter.
        after: the position in the source after which the page begins; None for the beginning.
        access_periods: the rules and claims by which the client was sent rows earlier, and, last, the current ones.
        limit: deltas at which the page ends; the last row may exceed it.

    Raises:
        AdapterError: the source cannot be read.
    """
    deltas: list[RowDelta] = []
    reached, has_more, chunks = after, True, 0
    while has_more and len(deltas) < limit and chunks < _MAX_CHUNKS:
        chunk = source.adapter.query_deltas_since(DeltaQuery(after=reached, gateway=source.gateway, limit=_CHUNK))
        chunks += 1
        has_more = chunk.end is not None
        if not chunk.deltas:
            break
        last = position_of(chunk.deltas[-1], "arrival")
        for latest, history in _rows(source, chunk.deltas, last):
            if len(deltas) >= limit:
                return SourcePage(deltas, reached, has_more=True)
            deltas += _deltas_for(history, access_periods)
            reached = latest
        reached = last
    return SourcePage(deltas, reached, has_more)


class _History(NamedTuple):
    """All deltas of a row, in order of arrival, the gateway's timestamp of their commit."""

    key: RowKey
    deltas: list[StoredDelta]


def _rows(source: Source, chunk: Iterable[StoredDelta], last: Position) -> list[tuple[Position, _History]]:
    """Return the rows of a chunk in order of their latest delta, each with that delta's position.

    A row that has a delta after `last`, the end of the chunk, is skipped: it comes with the chunk of that delta.
    """
    rows = []
    for table, group in groupby(sorted({stored.delta.key for stored in chunk}), key=lambda key: key[0]):
        histories: dict[str, list[StoredDelta]] = {}
        query = DeltaQuery(gateway=source.gateway, tables=(table,), rows=tuple(row_id for _, row_id in group))
        for stored in _all_pages(source.adapter, query):
            histories.setdefault(stored.delta.row_id, []).append(stored)
        for row_id, deltas in histories.items():
            latest = position_of(deltas[-1], "arrival")
            if latest <= last:
                rows.append((latest, _History((table, row_id), deltas)))
    return sorted(rows, key=lambda each: each[0])


def _all_pages(adapter: DatabaseAdapter, query: DeltaQuery) -> Iterable[StoredDelta]:
    """Yield the deltas of all pages of a query."""
    while True:
        page = adapter.query_deltas_since(query)
        yield from page.deltas
        if page.end is None:
            return
        query = msgspec.structs.replace(query, after=page.end)


def _deltas_for(history: _History, access_periods: Sequence[AccessPeriod]) -> list[RowDelta]:
    """Return what a client is sent of a row: DELETE and INSERT, DELETE alone, or nothing.

    Args:
        history: the row's deltas.
        access_periods: the periods in which the client was sent rows, the current one last.
    """
    positions = [position_of(stored, "arrival") for stored in history.deltas]
    state, was_shown = RowState(), False
    for position, replaced_at, stored in zip(positions, [*positions[1:], None], history.deltas, strict=True):
        state.merge(stored.delta)  # one version of the row after the other
        was_shown = was_shown or any(
            _overlaps(period, position, replaced_at) and _shows(period, history.key[0], state)
            for period in access_periods
        )
    row = StoredRow(history.key, arrival=0, state=state)
    if _shows(access_periods[-1], history.key[0], state):
        return [render.delete(row), *render.insert(row)]
    return [render.delete(row)] if was_shown else []


def _overlaps(period: AccessPeriod, written_at: Position, replaced_at: Position | None) -> bool:
    """Return whether the client may have been sent a version of a row during a period.

    A period has two positions in the source: `first`, the newest one when it began, and `last`, up to which the client
    was sent rows.

    Args:
        period: the access period.
        written_at: position of the delta that made the version.
        replaced_at: position of the delta that replaced it; None for the current version.
    """
    if period.last is None or written_at > period.last:  # nothing was sent, or only earlier versions
        return False
    return replaced_at is None or period.first is None or replaced_at > period.first


def _shows(period: AccessPeriod, table: str, state: RowState) -> bool:
    """Return whether a period's rules show a version of a row to the client."""
    if not state.visible:
        return False
    values = {column: msgspec.json.decode(raw) for column, raw in state.values().items()}
    return matches(period.rules, table, values, period.claims)


def with_deletes(deltas: Sequence[RowDelta], record: ClientRecord) -> list[RowDelta]:
    """Put a DELETE before each INSERT of a row that the client may have from a source.

    The feed sends an INSERT because the client lacks the row of the feed. An INSERT of a row that the client has from a
    source would fail at a client that applies plain SQL.

    Args:
        deltas: a page of the gateway's own feed.
        record: the client's record, which has the tables of the rows that it was sent from sources.
    """
    tables = {table for known in record.sources for table in known.tables}
    result: list[RowDelta] = []
    for delta in deltas:
        has_delete = result and result[-1].key == delta.key and result[-1].op == "DELETE"
        if delta.op == "INSERT" and delta.table in tables and not has_delete:
            result.append(_delete_before(delta))
        result.append(delta)
    return result


def _delete_before(delta: RowDelta) -> RowDelta:
    """Return a DELETE with the stamp (hlc and client id) of an INSERT."""
    state = RowState()
    state.merge(delta)
    return render.delete(StoredRow(delta.key, arrival=0, state=state))


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
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def register(self, name: str, source: Source) -> None:
        """Register a source, in place of an earlier one with the same name.

        Clients keep their positions in the earlier one, so the new one must have the same deltas. Register a source
        with other deltas under another name.

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

    def submit_pull(self, name: str, pull: SyncPull, claims: Claims, *, live: bool = False) -> Future[SyncResponse]:
        """Read a page of the changes of a source that a client lacks, in a thread, because adapters block.

        Args:
            name: the source's name.
            pull: the decoded request.
            claims: the verified claims of the client's token.
            live: whether the pull came over the connection on which the client gets broadcasts (pages without a
                request). Otherwise that connection's process is notified that the client may have these rows.

        Returns:
            A future of the page. It raises AdapterError if the source cannot be read, and StagingUnavailableError if
            the store does not respond.

        Raises:
            NotFoundError: no source has this name.
            StagingUnavailableError: the gateway is closed.
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
        record = current_record(view.client(pull.client_id), view.epoch)
        if record is None or not record.sources:
            return page_reading.read_page(view, request, self._rules)
        since = positions.feed_cursor(record, pull.since_hlc)
        own = replace(pull, since_hlc=since, source=None)
        reading = page_reading.read_page(view, request._replace(pull=own), self._rules)
        if not reading.position.resync:  # a client that starts again loses its positions in the commit of its page
            self._update_positions(pull, record)
        deltas = with_deletes(reading.page.deltas, record)
        return reading._replace(page=reading.page._replace(deltas=deltas))

    def close(self) -> None:
        """Wait for the pulls that are in progress; later ones are rejected."""
        with self._lock:
            self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def _pull(self, name: str, source: Source, pull: SyncPull, claims: Claims, live: bool) -> SyncResponse:
        """Read a page; read it again if another request of the client changed its position in the source meanwhile.

        A repetition needs no limit: each means that another request of the same client was completed.
        """
        while (page := self._try_pull(name, source, pull, claims, live)) is None:
            pass
        return page

    def _try_pull(self, name: str, source: Source, pull: SyncPull, claims: Claims, live: bool) -> SyncResponse | None:
        """Return a page; None if another request changed the client's position in the source while it was read."""
        record, config = self._store.read(
            self._gateway_id,
            lambda view: (current_record(view.client(pull.client_id), view.epoch), view.config),
        ).result()
        claims_read = self._rules.index(config).claims_read(claims)
        rules = config.rules or all_rows_rules()
        newest = partial(source.adapter.newest_position, source.gateway)
        start = positions.page_start(record, name, pull.since_hlc, rules, claims_read, newest)
        page = read_source(source, start.after, start.position.access_periods, pull.max_deltas)
        position, cursor = positions.after_page(
            start, record, pull.since_hlc, page.end, page.tables, has_more=page.has_more
        )
        before = positions.position_in(record, name)
        if record is None or position != before:  # the position changed, and is stored before the response is sent
            now = self._wall()
            stored_cursor = self._store.submit(
                self._gateway_id, lambda commit: _store_position(commit, before, start, pull, page, now, live=live)
            ).result()
            if stored_cursor is None:
                return None
            cursor = stored_cursor
        return SyncResponse(tuple(page.deltas), cursor, page.has_more)

    def _update_positions(self, pull: SyncPull, record: ClientRecord) -> None:
        """Store what the cursor of a pull from the gateway's own feed confirms about sources.

        The pull does not wait for this write. If it fails, a page that the cursor confirms is sent again; but a client
        that starts again without a cursor is not sent what it confirmed before.

        Args:
            pull: the pull; its cursor may be the mark of a source's page, which it confirms.
            record: the client's record.
        """
        if positions.after_request(record, pull.since_hlc) == record:
            return

        def confirm(commit: ClientCommit) -> None:
            known = current_record(commit.client(pull.client_id), commit.epoch)
            if known is not None:
                commit.put_client(positions.after_request(known, pull.since_hlc))

        self._store.submit(self._gateway_id, confirm).add_done_callback(_log_failure)

    def _unknown_source(self, name: str) -> NotFoundError:
        """Return the error for a name that no source has; call it with the lock held."""
        known = ", ".join(sorted(self._sources)) or "none"
        return NotFoundError(f"no source {name!r} is registered at gateway {self._gateway_id!r} (known: {known})")


def _store_position(
    commit: ClientCommit,
    before: SourcePosition,
    start: positions.PageStart,
    pull: SyncPull,
    page: SourcePage,
    now_ms: int,
    *,
    live: bool,
) -> int | None:
    """Store a client's position in a source after a page, and return the cursor of the response.

    The new position is computed again, from the record in this transaction. Another page of the client may have used
    the same mark since.

    Args:
        commit: the open transaction in the gateway's store.
        before: the position that was stored when the page was read.
        start: where the page began.
        pull: the decoded request.
        page: the page that was read.
        now_ms: server wall time in milliseconds since 1970.
        live: whether the pull came over the connection on which the client gets broadcasts.

    Returns:
        The cursor; None, without a change, if another position is stored now.
    """
    record = current_record(commit.client(pull.client_id), commit.epoch)
    if positions.position_in(record, start.position.source) != before:
        return None
    position, cursor = positions.after_page(
        start, record, pull.since_hlc, page.end, page.tables, has_more=page.has_more
    )
    record = record or ClientRecord(pull.client_id, commit.epoch, now_ms)
    confirmed = positions.after_request(replace(record, last_seen_ms=now_ms), pull.since_hlc)
    commit.put_client(positions.with_position(confirmed, position))
    if page.deltas:
        announce_other_connection(commit, record, live=live)
    return cursor


def _log_failure(ended: Future[None]) -> None:
    """Log a write that failed; a callback of its future."""
    error = ended.exception()
    if error is not None:
        log.warning("position in a source not stored; its page may be sent again", reason=str(error))
