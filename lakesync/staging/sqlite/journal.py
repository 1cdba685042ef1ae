"""`log.db`: gateways and their heads, log rows, ids, client records, configuration."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from lakesync.exceptions import NotFoundError
from lakesync.rules.model import SyncRules
from lakesync.schema import TableSchema
from lakesync.staging.head import Head, new_config
from lakesync.staging.ledger import Tally, day_of, signed, tally_of, unsigned
from lakesync.staging.records import ClientRecord, GatewayConfig, LogEntry, SchemaVersion
from lakesync.staging.restored_log import ANYONE
from lakesync.staging.sqlite.files import LOG_FILE, connect, migrate
from lakesync.types import Claims, RowDelta
from lakesync.wire.log import encode_body, pack_ids, unpack_ids

_REPLAY_CHUNK = 200
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


class Journal:
    """The journal's connection, with every gateway's head in memory.

    All methods belong to the owner thread. What changed since a mark can be taken back, heads included.
    """

    def __init__(self, folder: Path, wall: Callable[[], int]) -> None:
        """Open or make `log.db`.

        Raises:
            StagingVersionError: it was written by a newer version.
        """
        self.path = folder / LOG_FILE
        self.wall = wall
        self.sql = connect(self.path)
        migrate(self.sql, "sqlite/log", self.path)
        self.sql.execute("INSERT INTO store VALUES (1, ?) ON CONFLICT DO NOTHING", (uuid.uuid4().hex,))
        (self.store_id,) = self.sql.execute("SELECT store_id FROM store").fetchone()
        self.heads: dict[str, Head] = {head.gateway: head for head in self._stored_heads()}
        self._undo: list[tuple[str, Head | None]] = []

    def close(self) -> None:
        """Release the file."""
        self.sql.close()

    # -- one group of works, and one work in it ------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a group."""
        self._undo.clear()
        self.sql.execute("BEGIN IMMEDIATE")

    def commit(self) -> set[str]:
        """Make the group durable; the gateways whose heads moved."""
        moved = {gateway for gateway, _ in self._undo}
        for gateway in moved:
            self._write_head(self.heads[gateway])
        self.sql.execute("COMMIT")
        self._undo.clear()
        return moved

    def rollback(self) -> None:
        """Take the group back."""
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")
        self._restore_heads(0)

    def mark(self) -> int:
        """Begin a work inside the group."""
        self.sql.execute("SAVEPOINT work")
        return len(self._undo)

    def keep(self) -> None:
        """Keep what the work did."""
        self.sql.execute("RELEASE work")

    def take_back(self, mark: int) -> None:
        """Take back what the work did since its mark."""
        self.sql.execute("ROLLBACK TO work")
        self.sql.execute("RELEASE work")
        self._restore_heads(mark)

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
        self._undo.append((head.gateway, self.heads.get(head.gateway)))
        self.heads[head.gateway] = head

    def _restore_heads(self, mark: int) -> None:
        while len(self._undo) > mark:
            gateway, before = self._undo.pop()
            if before is None:
                self.heads.pop(gateway, None)
            else:
                self.heads[gateway] = before

    # -- gateways ------------------------------------------------------------------------------------------------

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway; its epoch is the wall time, so that a store made anew never has an old one's."""
        if gateway in self.heads:
            return
        epoch = max(1, self.wall())
        self.sql.execute(
            "INSERT INTO gateway (id, epoch, arrival, config_version, rules_version) VALUES (?, ?, 0, 0, 0)",
            (gateway, epoch),
        )
        self.set_head(Head(gateway=gateway, epoch=epoch, config=new_config()))

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
                rules=msgspec.json.decode(rules, type=SyncRules) if rules is not None else None,
                rules_version=rules_version,
                write_scope=write_scope,
            )
            yield Head(gateway, epoch, config, *progress)

    # -- configuration -------------------------------------------------------------------------------------------

    def put_schema(self, gateway: str, version: int, schema: TableSchema) -> None:
        """Write a table's schema under its new version."""
        self.sql.execute(
            "INSERT OR REPLACE INTO table_schema VALUES (?, ?, ?, ?)",
            (gateway, schema.table, version, msgspec.json.encode(schema)),
        )

    def put_config(self, gateway: str, config: GatewayConfig) -> None:
        """Write a gateway's configuration, its schemas excepted."""
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
            yield table, SchemaVersion(version, msgspec.json.decode(body, type=TableSchema))

    # -- clients -------------------------------------------------------------------------------------------------

    def client(self, gateway: str, client_id: str) -> ClientRecord | None:
        """What is known of a client."""
        found = self.sql.execute(_CLIENT, (gateway, client_id, ANYONE)).fetchone()
        if found is None:
            return None
        return msgspec.structs.replace(msgspec.json.decode(found[0], type=ClientRecord), client_id=client_id)

    def put_client(self, gateway: str, record: ClientRecord) -> None:
        """Write a client record whole."""
        self.sql.execute(
            "INSERT OR REPLACE INTO client VALUES (?, ?, ?)",
            (gateway, record.client_id, msgspec.json.encode(record)),
        )

    def writer(self, gateway: str, client_id: str) -> tuple[int, int]:
        """The client's highest accepted hlc, -1 for none, and the width of its widest push."""
        found = self.sql.execute(
            "SELECT hlc_high, widest FROM writer WHERE gateway = ? AND client_id = ?", (gateway, client_id)
        ).fetchone()
        return (found[0], found[1]) if found else (-1, 0)

    def known_ids(self, gateway: str, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Ids of the client's log rows that reach into `low..high`, narrowed to it.

        A row that does ends at `high + widest` at the latest, so this is one bounded range of the index.
        """
        _, widest = self.writer(gateway, client_id)
        rows = self.sql.execute(
            "SELECT ids FROM log WHERE gateway = ? AND client_id = ? AND hlc_high BETWEEN ? AND ? AND hlc_low <= ?",
            (gateway, client_id, low, high + widest, high),
        )
        return {known for (ids,) in rows for known in unpack_ids(ids) if low <= known[0] <= high}

    # -- the log -------------------------------------------------------------------------------------------------

    def append(
        self, gateway: str, client_id: str, deltas: Sequence[RowDelta], arrival: int, claims: Claims
    ) -> LogEntry:
        """Add a log row, its ids, its share of the ledger."""
        head = self.head(gateway)
        stamps = [delta.hlc for delta in deltas]
        entry = LogEntry(
            gateway=gateway,
            shard=head.shard,
            epoch=head.epoch,
            seq=head.last_seq + 1,
            arrival=arrival,
            client_id=client_id,
            hlc_low=min(stamps),
            hlc_high=max(stamps),
            count=len(deltas),
            ids=pack_ids(deltas),
            body=encode_body(deltas),
            claims=claims,
        )
        size = len(entry.body or b"")
        tally = tally_of(entry.ids)
        self._insert(entry, tally, size)
        self._count(gateway, day_of(arrival), tally)
        self._note_writer(entry)
        self.set_head(head.appended(arrival, len(deltas), size))
        return entry

    def _insert(self, entry: LogEntry, tally: Tally, size: int) -> None:
        self.sql.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.gateway,
                entry.shard,
                entry.epoch,
                entry.seq,
                entry.arrival,
                entry.client_id,
                entry.hlc_low,
                entry.hlc_high,
                entry.count,
                signed(tally.id_sum),
                size,
                self.wall(),
                msgspec.json.encode(entry.claims),
                entry.ids,
                entry.body,
            ),
        )

    def _count(self, gateway: str, day: str, tally: Tally) -> None:
        found = self.sql.execute(
            "SELECT count, id_sum FROM ledger WHERE gateway = ? AND day = ?", (gateway, day)
        ).fetchone()
        if found is None:
            self.sql.execute("INSERT INTO ledger VALUES (?, ?, 0, 0, 0, 0)", (gateway, day))
        else:
            tally = tally.plus(found[0], unsigned(found[1]))
        self.sql.execute(
            "UPDATE ledger SET count = ?, id_sum = ? WHERE gateway = ? AND day = ?",
            (tally.deltas, signed(tally.id_sum), gateway, day),
        )

    def _note_writer(self, entry: LogEntry) -> None:
        self.sql.execute(
            "INSERT INTO writer VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " hlc_high = max(hlc_high, excluded.hlc_high), widest = max(widest, excluded.widest)",
            (entry.gateway, entry.client_id, entry.hlc_high, entry.hlc_high - entry.hlc_low),
        )

    def entries_above(self, head: Head, seq: int) -> Iterator[LogEntry]:
        """The log rows of a shard above `seq`, in order, read a chunk at a time."""
        while True:
            chunk = self.sql.execute(_ENTRY, (head.gateway, head.shard, head.epoch, seq, _REPLAY_CHUNK)).fetchall()
            for *values, claims in chunk:
                yield LogEntry(*(*values, msgspec.json.decode(claims, type=Claims)))
            if len(chunk) < _REPLAY_CHUNK:
                return
            seq = chunk[-1][3]
