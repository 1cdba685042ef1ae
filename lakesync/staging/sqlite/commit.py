"""A reading, and a unit of work, over the journal and the state together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, RowKey
from lakesync.rules.model import SyncRules
from lakesync.staging.configuration import with_rules, with_schema, with_write_scope, without_schema
from lakesync.staging.head import Head
from lakesync.staging.head_view import HeadView
from lakesync.staging.notices import Announcement, Presence
from lakesync.staging.records import ClientRecord, Entry, LogEntry, Move, StoredRow, WriteScope
from lakesync.staging.side_tables import SideCommit, SideView
from lakesync.staging.sqlite.journal import Journal, MustRunAloneError
from lakesync.staging.sqlite.state import State
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import WholeRow
from lakesync.wire.log import PackedDeltas

_ASKED_BY_EVERY_PUSH = ("SELECT max(hlc) FROM erasure ",)
"""They find what they look for though the group's own pushes wait in memory, and find the same until it is written."""


class SqliteView(HeadView, SideView):
    """`View` of one gateway, in the owner thread, between groups."""

    def __init__(self, journal: Journal, state: State, gateway: str) -> None:
        """Raises: NotFoundError: there is no such gateway."""
        self._journal = journal
        self._state = state
        self._gateway = gateway
        journal.head(gateway)

    @property
    def gateway(self) -> str:
        """The gateway's id."""
        return self._gateway

    @property
    def _head(self) -> Head:
        return self._journal.head(self._gateway)

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """The stored rows among `keys`."""
        return {key: row.fold() for key, row in self._state.rows(self.gateway, keys).items()}

    def entries_after(self, buckets: Collection[str], since: int, limit: int) -> list[Entry]:
        """Entries under any of `buckets` with `since < changed <= arrival`, in order of `changed`."""
        return list(islice(self._state.entries_after(self.gateway, buckets, since, self.arrival, limit), limit))

    def whole_rows(self, bucket: str, since: int, limit: int) -> list[WholeRow]:
        """Entries under one bucket with `since < changed <= arrival`, in order of `changed`, with their rows."""
        return self._state.whole_rows(self.gateway, bucket, since, self.arrival, limit)

    def stretch(self, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader) -> Stretch | None:
        """The next entries under these buckets, joined, where a reader lacks them all."""
        return self._state.stretch(self.gateway, buckets, since, min(until, self.arrival), limit, reader)

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Every entry of these rows under these buckets."""
        return self._state.entries_of(self.gateway, keys, buckets)

    def changed_after(self, buckets: Collection[str], since: int) -> bool:
        """Whether any entry under `buckets` has `changed > since`."""
        return self._state.changed_after(self.gateway, buckets, since)

    def unheard(self, buckets: Collection[str], since: int) -> Collection[str]:  # noqa: ARG002
        """None: the thread that reads has told of what was committed."""
        return ()

    def buckets(self, prefix: str) -> list[str]:
        """The bucket keys in use that start with `prefix`."""
        return self._state.buckets(self.gateway, prefix)

    def client(self, client_id: str) -> ClientRecord | None:
        """What is known of a client."""
        return self._journal.client(self.gateway, client_id)

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._journal.sql.execute(statement, (self.gateway, *values)).fetchall()


class SqliteCommit(SqliteView, SideCommit):
    """`Commit` of one gateway; the group that it belongs to begins and ends the transactions."""

    def __init__(
        self,
        journal: Journal,
        state: State,
        gateway: str,
        *,
        alone: bool = False,
        announcement: Announcement | None = None,
    ) -> None:
        """Args: alone: whether the state was written behind before this work, and will be after it."""
        super().__init__(journal, state, gateway)
        self._alone = alone
        self._announcement = announcement or Announcement()

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if statement.startswith(_ASKED_BY_EVERY_PUSH):
            ask = super()._ask
            return self._journal.remembered((statement, self.gateway, *values), lambda: ask(statement, *values))
        self._journal.direct()
        return super()._ask(statement, *values)

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """`(hlc, id digest)` of the client's accepted deltas with `low <= hlc <= high`."""
        return self._journal.known_ids(self.gateway, client_id, low, high)

    def highest_hlc(self, client_id: str) -> int:
        """The client's highest accepted hlc; -1 when it has none."""
        return self._journal.writer(self.gateway, client_id)[0]

    def next_arrivals(self, count: int) -> range:
        """`count` new arrivals, above every one handed out before."""
        head, arrivals = self._head.next_arrivals(count, self._journal.wall())
        if count:
            self._journal.set_head(head)
        return arrivals

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row with the next dense `seq`, its ids, and its share of the ledger."""
        return self._journal.append(self.gateway, client_id, deltas, arrival, claims)

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Tell all processes which clients are connected."""
        self._announcement.announce_presence(self.gateway, presence)

    def unfolded_rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """The stored rows among `keys`; of some `StoredRow.fold` may still have something to do."""
        return self._state.rows(self.gateway, keys)

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Write rows whole, and feed entries."""
        if rows or moves:
            self._announcement.moved(self.gateway, self._state.put(self.gateway, rows, moves))

    def put_moves(self, moves: Collection[Move]) -> None:
        """Write feed entries."""
        self.put_rows((), moves)

    def put_client(self, record: ClientRecord) -> None:
        """Write a client record whole."""
        self._journal.put_client(self.gateway, record)

    def put_schema(self, schema: TableSchema) -> int:
        """Register a schema or evolve it; its version."""
        config = with_schema(self.config, schema)
        version = config.schemas[schema.table].version
        if config is not self.config:
            self._journal.put_schema(self.gateway, schema.table, version, config.schemas[schema.table].schema)
            self._journal.put_config(self.gateway, config)
        return version

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema; the version of that."""
        config = without_schema(self.config, table)
        self._journal.put_schema(self.gateway, table, config.retired[table], None)
        self._journal.put_config(self.gateway, config)
        return config.retired[table]

    def put_rules(self, rules: SyncRules) -> int:
        """Set the rules in force from here on.

        A replay indexes rows by the rules of the day, so everything before this commit is written behind first, and
        this commit itself before anybody sees it: the work is run again, alone.
        """
        self.run_alone()
        config = with_rules(self.config, rules)
        self._journal.put_config(self.gateway, config)
        self._announcement.everything(self.gateway)
        return config.rules_version

    def run_alone(self) -> None:
        """Have this work in a commit of its own, the state written behind before it and after it."""
        if not self._alone:
            raise MustRunAloneError

    def put_write_scope(self, scope: WriteScope) -> None:
        """Set what a push may change from here on."""
        self._journal.put_config(self.gateway, with_write_scope(self.config, scope))

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows of the gateway in key order, after a key."""
        return self._state.scan_rows(self.gateway, after, limit)
