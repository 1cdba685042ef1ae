"""`log.db`: gateways and their heads, log rows, ids, client records, configuration.

What pushes write waits in memory until their group commits; everything else is written at once, in a savepoint of its
work.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lakesync.exceptions import NotFoundError
from lakesync.schema import TableSchema
from lakesync.staging.decoding import decode_client, decode_rules, decode_schema
from lakesync.staging.head import MAIN_SHARD, Head, new_config
from lakesync.staging.ledger import NOTHING, Tally, day_of, signed, unsigned
from lakesync.staging.log_rows import next_entry, row_of, size_of
from lakesync.staging.records import ClientRecord, GatewayConfig, LogEntry, SchemaVersion
from lakesync.staging.restored_log import ANYONE
from lakesync.staging.sqlite import bulk
from lakesync.staging.sqlite.files import LOG_FILE, connect, migrate
from lakesync.staging.sqlite.undo import Undo
from lakesync.types import Claims
from lakesync.wire.log import PackedDeltas, unpack_ids, unpacked_size

_Client = tuple[str, str]
"""`(gateway, client id)`."""

_REPLAY_CHUNK = 200
_REMEMBERED = 4096
"""Clients, and writers, whose numbers are held in memory."""
_PUT_WRITER = "ON CONFLICT (gateway, client_id) DO UPDATE SET hlc_high = excluded.hlc_high, widest = excluded.widest"
_PUT_CLIENT = "ON CONFLICT (gateway, client_id) DO UPDATE SET record = excluded.record"
_PUT_LEDGER = "ON CONFLICT (gateway, day) DO UPDATE SET count = excluded.count, id_sum = excluded.id_sum"
_ENTRY = (
    "SELECT gateway, shard, epoch, seq, arrival, client_id, hlc_low, hlc_high, count, ids, body, claims FROM log"
    " WHERE gateway = ? AND shard = ? AND epoch = ? AND seq > ? ORDER BY seq LIMIT ?"
)
_CLIENT = "SELECT record FROM client WHERE gateway = ? AND client_id IN (?, ?) ORDER BY client_id DESC LIMIT 1"
_HEADS = (
    "SELECT id, epoch, config_version, rules, rules_version, write_scope, arrival, shard, last_seq, last_arrival,"
    " flushed_seq, trimmed_seq, deltas, bytes, flush_requested_ms, flush_requested_seq"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id"
)
_encode = msgspec.json.Encoder().encode

V = TypeVar("V")


class MustRunAloneError(Exception):
    """A work in a group turned out to need more than a group can give: run it again, alone."""


class _Group:
    """What the works of a group wrote and the file is yet to be given."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.undo = Undo()
        self.work = 0
        """Where the work under way began."""
        self.direct = False
        """The work under way has a savepoint."""
        self.moved: set[str] = set()
        self.entries: list[tuple[LogEntry, int]] = []
        self.writers: dict[_Client, tuple[int, int]] = {}
        self.clients: dict[_Client, ClientRecord] = {}

    @property
    def waits(self) -> bool:
        """Whether there is anything apart from heads."""
        return bool(self.entries or self.writers or self.clients)


class Journal:
    """The journal's connection, with every gateway's head in memory.

    All methods belong to the owner thread; a thread of its own waits for the disk where there is something to do
    meanwhile. What changed since a mark can be taken back.
    """

    def __init__(self, folder: Path, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Open or make `log.db`; `shard` is what the streams of new gateways are called.

        Raises:
            StagingVersionError: it was written by a newer version.
        """
        self.path = folder / LOG_FILE
        self.wall = wall
        self._shard = shard
        self.sql = connect(self.path)
        migrate(self.sql, "sqlite/log", self.path)
        self.sql.execute("INSERT INTO store VALUES (1, ?) ON CONFLICT DO NOTHING", (uuid.uuid4().hex,))
        (self.store_id,) = self.sql.execute("SELECT store_id FROM store").fetchone()
        self.heads: dict[str, Head] = {head.gateway: head for head in self._stored_heads()}
        self._disk = ThreadPoolExecutor(1, f"commits of {LOG_FILE}")
        self.unpacked_bytes = 0
        """Of all bodies that were ever appended, before they were compressed; it only grows."""
        self._group = _Group(alone=False)
        self._writers: dict[_Client, tuple[int, int]] = {}
        self._clients: dict[_Client, ClientRecord] = {}
        self._answers: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}

    def close(self) -> None:
        """Release the file."""
        self._disk.shutdown()
        self.sql.close()

    # -- one group of works, and one work in it ------------------------------------------------------------------

    def begin(self, *, alone: bool = False) -> None:
        """Begin a group, or a work that is one alone."""
        self._group = _Group(alone=alone)
        self.sql.execute("BEGIN IMMEDIATE")

    @property
    def intact(self) -> bool:
        """Whether the group's transaction is open: SQLite ends one on its own when a disk is full."""
        return self.sql.in_transaction

    def commit(self, meanwhile: Callable[[Callable[[], bool]], None] | None = None) -> set[str]:
        """Make the group durable; the gateways whose heads moved.

        Args:
            meanwhile: called while the disk is waited for, with what tells whether that is over; it does not touch the
                journal.
        """
        group = self._group
        self._write()
        for gateway in group.moved:
            self._write_head(self.heads[gateway])
        if meanwhile is None:
            self.sql.execute("COMMIT")
        else:
            committed = self._disk.submit(self.sql.execute, "COMMIT")
            try:
                meanwhile(committed.done)
            finally:
                wait([committed])
            committed.result()
        self._group = _Group(alone=False)
        return group.moved

    def rollback(self) -> None:
        """Take the group back."""
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")
        self._forget()
        self._group.undo.take_back(0)
        self._group = _Group(alone=False)

    def mark(self) -> int:
        """Begin a work inside the group."""
        group = self._group
        if group.direct:
            self.sql.execute("RELEASE work")
            group.direct = False
        group.work = group.undo.mark()
        return group.work

    def take_back(self, mark: int) -> None:
        """Take back what the work did since its mark."""
        group = self._group
        if group.direct:
            self.sql.execute("ROLLBACK TO work")
            self._forget()
            group.entries, group.writers, group.clients = [], {}, {}
        group.undo.take_back(mark)

    def direct(self) -> None:
        """Make ready for statements of the work under way that read or write the file itself.

        Raises:
            MustRunAloneError: the work has written what waits in memory, which could not be told from others' then.
        """
        group = self._group
        if not (group.alone or group.direct):
            if group.waits and group.undo.mark() > group.work:
                raise MustRunAloneError
            self._write()
            self.sql.execute("SAVEPOINT work")
            group.direct = True
        self._write()
        self._forget()

    def _forget(self) -> None:
        """What is remembered may not be what the file holds."""
        self._writers.clear()
        self._clients.clear()
        self._answers.clear()

    def remembered(self, question: tuple[Any, ...], ask: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """The rows of a statement, asked for once until a work writes to the file itself."""
        known = self._answers.get(question)
        if known is None:
            known = ask()
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[question] = known
        return known

    def _write(self) -> None:
        """Write what waits in memory."""
        group = self._group
        if group.entries:
            rows = [row_of(entry, committed_ms) for entry, committed_ms in group.entries]
            bulk.insert(self.sql, "log", rows)
            self._count(rows)
        if group.writers:
            _remember(self._writers, group.writers)
            values = [(*client, *numbers) for client, numbers in group.writers.items()]
            bulk.insert(self.sql, "writer", values, _PUT_WRITER)
        if group.clients:
            _remember(self._clients, group.clients)
            records = [(gateway, name, _encode(record)) for (gateway, name), record in group.clients.items()]
            bulk.insert(self.sql, "client", records, _PUT_CLIENT)
        group.entries, group.writers, group.clients = [], {}, {}

    def head(self, gateway: str) -> Head:
        """A gateway's head.

        Raises:
            NotFoundError: there is no such gateway.
        """
        head = self.heads.get(gateway)
        if head is None:
            raise NotFoundError(f"no gateway {gateway!r} in {self.path.parent}: make it with ensure_gateway first")
        return head

    def set_head(self, head: Head) -> None:
        """Move a gateway's head; written when the group commits."""
        self._group.undo.update(self.heads, {head.gateway: head})
        self._group.moved.add(head.gateway)

    # -- gateways ------------------------------------------------------------------------------------------------

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway; its epoch is the wall time, so that a store made anew never has an old one's."""
        if gateway in self.heads:
            return
        self.direct()
        epoch = max(1, self.wall())
        self.sql.execute(
            "INSERT INTO gateway (id, epoch, arrival, config_version, rules_version) VALUES (?, ?, 0, 0, 0)",
            (gateway, epoch),
        )
        self.set_head(Head(gateway=gateway, epoch=epoch, config=new_config(), shard=self._shard))

    def _write_head(self, head: Head) -> None:
        self.sql.execute("UPDATE gateway SET arrival = ? WHERE id = ?", (head.arrival, head.gateway))
        self.sql.execute(
            "INSERT OR REPLACE INTO shard VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                head.gateway,
                head.shard,
                head.last_seq,
                head.last_arrival,
                head.flushed_seq,
                head.trimmed_seq,
                head.deltas,
                head.bytes,
                head.flush_requested_ms,
                head.flush_requested_seq,
            ),
        )

    def _stored_heads(self) -> Iterator[Head]:
        heads = self.sql.execute(_HEADS).fetchall()
        for gateway, epoch, version, rules, rules_version, write_scope, *progress in heads:
            config = GatewayConfig(
                version=version,
                schemas=dict(self._schemas(gateway)),
                rules=decode_rules(rules) if rules is not None else None,
                rules_version=rules_version,
                write_scope=write_scope,
            )
            yield Head(gateway, epoch, config, *progress)

    # -- configuration -------------------------------------------------------------------------------------------

    def put_schema(self, gateway: str, version: int, schema: TableSchema) -> None:
        """Write a table's schema under its new version."""
        self.direct()
        self.sql.execute(
            "INSERT OR REPLACE INTO table_schema VALUES (?, ?, ?, ?)",
            (gateway, schema.table, version, msgspec.json.encode(schema)),
        )

    def put_config(self, gateway: str, config: GatewayConfig) -> None:
        """Write a gateway's configuration, its schemas excepted."""
        self.direct()
        self.sql.execute(
            "UPDATE gateway SET config_version = ?, rules = ?, rules_version = ?, write_scope = ? WHERE id = ?",
            (
                config.version,
                msgspec.json.encode(config.rules) if config.rules is not None else None,
                config.rules_version,
                config.write_scope,
                gateway,
            ),
        )
        self.set_head(msgspec.structs.replace(self.head(gateway), config=config))

    def _schemas(self, gateway: str) -> Iterator[tuple[str, SchemaVersion]]:
        query = "SELECT table_name, version, body FROM table_schema WHERE gateway = ?"
        for table, version, body in self.sql.execute(query, (gateway,)):
            yield table, SchemaVersion(version, decode_schema(body))

    # -- clients -------------------------------------------------------------------------------------------------

    def client(self, gateway: str, client_id: str) -> ClientRecord | None:
        """What is known of a client."""
        place = (gateway, client_id)
        known = self._group.clients.get(place) or self._clients.get(place)
        if known is None:
            found = self.sql.execute(_CLIENT, (gateway, client_id, ANYONE)).fetchone()
            if found is None:
                return None
            known = msgspec.structs.replace(decode_client(found[0]), client_id=client_id)
            _remember(self._clients, {place: known})
        return known

    def put_client(self, gateway: str, record: ClientRecord) -> None:
        """Write a client record whole."""
        self._group.undo.update(self._group.clients, {(gateway, record.client_id): record})

    def writer(self, gateway: str, client_id: str) -> tuple[int, int]:
        """The client's highest accepted hlc, -1 for none, and the width of its widest push."""
        place = (gateway, client_id)
        known = self._group.writers.get(place) or self._writers.get(place)
        if known is None:
            query = "SELECT hlc_high, widest FROM writer WHERE gateway = ? AND client_id = ?"
            found = self.sql.execute(query, place).fetchone()
            if found is None:
                return (-1, 0)
            known = (found[0], found[1])
            _remember(self._writers, {place: known})
        return known

    def known_ids(self, gateway: str, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Ids of the client's log rows that reach into `low..high`, narrowed to it.

        A row that does ends at `high + widest` at the latest, so this is one bounded range of the index.
        """
        _, widest = self.writer(gateway, client_id)
        rows = self.sql.execute(
            "SELECT ids FROM log WHERE gateway = ? AND client_id = ? AND hlc_high BETWEEN ? AND ? AND hlc_low <= ?",
            (gateway, client_id, low, high + widest, high),
        )
        packed = [ids for (ids,) in rows]
        packed += [
            entry.ids
            for entry, _ in self._group.entries
            if (entry.gateway, entry.client_id) == (gateway, client_id) and entry.hlc_high >= low
        ]
        return {known for ids in packed for known in unpack_ids(ids) if low <= known[0] <= high}

    # -- the log -------------------------------------------------------------------------------------------------

    def append(self, gateway: str, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row, its ids, its share of the ledger."""
        group, head = self._group, self.head(gateway)
        entry = next_entry(head, client_id, deltas, arrival, claims)
        highest, widest = self.writer(gateway, client_id)
        numbers = (max(highest, entry.hlc_high), max(widest, entry.hlc_high - entry.hlc_low))
        self.unpacked_bytes += unpacked_size(entry.body) if entry.body else 0
        group.entries.append((entry, self.wall()))
        group.undo.add(lambda: group.entries and group.entries.pop())
        group.undo.update(group.writers, {(gateway, client_id): numbers})
        self.set_head(head.appended(arrival, entry.count, size_of(entry)))
        return entry

    def _count(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add log rows, as `row_of` has them, to the ledger."""
        days: dict[tuple[str, str], Tally] = {}
        for gateway, _, _, _, arrival, _, _, _, count, id_sum, *_ in rows:
            place = (gateway, day_of(arrival))
            days[place] = days.get(place, NOTHING).plus(count, unsigned(id_sum))
        for place, tally in days.items():
            query = "SELECT count, id_sum FROM ledger WHERE gateway = ? AND day = ?"
            for count, id_sum in self.sql.execute(query, place).fetchall():
                days[place] = tally.plus(count, unsigned(id_sum))
        values = [(*place, tally.deltas, signed(tally.id_sum), 0, 0) for place, tally in days.items()]
        bulk.insert(self.sql, "ledger", values, _PUT_LEDGER)

    def entries_above(self, head: Head, seq: int) -> Iterator[LogEntry]:
        """The log rows of a shard above `seq`, in order, read a chunk at a time."""
        while True:
            chunk = self.sql.execute(_ENTRY, (head.gateway, head.shard, head.epoch, seq, _REPLAY_CHUNK)).fetchall()
            for *values, claims in chunk:
                yield LogEntry(*(*values, msgspec.json.decode(claims, type=Claims)))
            if len(chunk) < _REPLAY_CHUNK:
                return
            seq = chunk[-1][3]


def _remember(known: dict[_Client, V], new: Mapping[_Client, V]) -> None:
    if len(known) + len(new) > _REMEMBERED:
        known.clear()
    known.update(new)
