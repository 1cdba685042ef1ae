"""The SQL statements that read and write `log.db`, the journal of a SQLite store.

`JournalFile` is the base class of `Journal`, which adds transactions and caches. The file has:

- for each gateway (one app's stream of changes) its *head*: its counters and its epoch, the time at which it was
  created in this store. One of the counters is its newest *arrival*, its timestamp of a commit. A *shard* is a store
  for some of a gateway's tables.
- each gateway's configuration: schemas, sync rules and write scope (which rows clients may push to). A *retired*
  schema was withdrawn; only its version is kept.
- for each client its *record*, what it was sent. For each client that has pushed also a row as *writer*: its highest
  hlc, and the greatest difference of hlcs in one of its pushes. An *hlc* is the timestamp that a client gave a delta
  (a change of a row).
- the *log*, one row for each push; and the *ledger*: the number of accepted deltas of each UTC day, and the sum of
  their ids as 64-bit numbers (`id_sum`).

The actions' and the pipeline's tables are in the file too; `SideQueries` and `PipelineTables` have their statements.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lakesync.model.types import Claims
from lakesync.model.validation import MAX_HLC
from lakesync.staging.head import Head
from lakesync.staging.ledger import EMPTY_TALLY, Tally, day_of, signed, unsigned
from lakesync.staging.rebuild_commit import ANYONE
from lakesync.staging.records import ClientRecord, LogEntry
from lakesync.staging.sqlite import bulk
from lakesync.staging.sqlite.file_copy import FileInUseError, replace_file
from lakesync.staging.sqlite.files import LOG_FILE, connect, migrate
from lakesync.staging.table_values import decode_client, decode_config, row_of

Client = tuple[str, str]
"""`(gateway, client id)`."""

_REPLAY_CHUNK = 200
"""Log rows that a replay reads at once."""
_SCHEMAS = "SELECT table_name, version, body FROM table_schema WHERE gateway = ?"
"""SQL: the schemas of a gateway, retired ones included."""
_PUT_WRITER = "ON CONFLICT (gateway, client_id) DO UPDATE SET hlc_high = excluded.hlc_high, widest = excluded.widest"
_PUT_CLIENT = "ON CONFLICT (gateway, client_id) DO UPDATE SET record = excluded.record"
_PUT_LEDGER = "ON CONFLICT (gateway, day) DO UPDATE SET count = excluded.count, id_sum = excluded.id_sum"
_ENTRY = (
    "SELECT gateway, shard, epoch, seq, arrival, client_id, hlc_low, hlc_high, count, ids, body, claims FROM log"
    " WHERE gateway = ? AND shard = ? AND epoch = ? AND seq > ? ORDER BY seq LIMIT ?"
)
"""SQL: the next log rows of a shard, as fields of `LogEntry`."""
_CLIENT = "SELECT record FROM client WHERE gateway = ? AND client_id IN (?, ?) ORDER BY client_id DESC LIMIT 1"
"""SQL: a client's record, or the one of `ANYONE`, whose id is the lowest."""
_WRITER = "SELECT hlc_high, widest FROM writer WHERE gateway = ? AND client_id = ?"
"""SQL: a client's highest accepted hlc, and the greatest difference of hlcs within one of its pushes."""
_IDS = "SELECT ids FROM log WHERE gateway = ? AND client_id = ? AND hlc_high BETWEEN ? AND ? AND hlc_low <= ?"
"""SQL: the ids in a client's log rows that may contain hlcs of a range; see `stored_ids`."""
_HEADS = (
    "SELECT id, epoch, config_version, rules, rules_version, write_scope, arrival, shard, last_seq, last_arrival,"
    " flushed_seq, trimmed_seq, deltas, bytes, flush_requested_ms, flush_requested_seq"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id"
)
"""SQL: the fields of every gateway's `Head`, with its rules and write scope."""
_encode = msgspec.json.Encoder().encode


class JournalFile:
    """The connection to `log.db`. Only the thread that owns the store calls its methods, within a transaction."""

    def __init__(self, folder: Path) -> None:
        """Open or create `log.db` in a folder, and apply migrations.

        Raises:
            StagingVersionError: a newer LakeSync wrote it.
            sqlite3.Error: it cannot be read or written.
        """
        self.path = folder / LOG_FILE
        self._open()
        migrate(self.sql, "sqlite/log", self.path)
        self.sql.execute("INSERT INTO store VALUES (1, ?) ON CONFLICT DO NOTHING", (uuid.uuid4().hex,))
        # a random id, by which `state.db` notes to which journal it belongs
        (self.store_id,) = self.sql.execute("SELECT store_id FROM store").fetchone()

    def close(self) -> None:
        """Close the file."""
        self.sql.close()

    def _open(self) -> None:
        self.sql = connect(self.path)
        self._is_open = True

    # -- replacement by a rewritten copy; see `file_rewrite` -----------------------------------------------------

    def replace(self, copy: Path) -> None:
        """Replace the file by a copy with the same contents; see `RewritableFile.replace`."""
        self._is_open = False
        try:
            replace_file(self.sql, copy, self.path)
        except FileInUseError:
            self._is_open = True
            raise
        self._open()

    def reopen(self) -> None:
        """Open the file if an error has prevented `replace` from doing so."""
        if not self._is_open:
            self.sql.close()
            self._open()

    # -- gateways and their configuration ------------------------------------------------------------------------

    def stored_heads(self) -> Iterator[Head]:
        """Yield every gateway's head, with its configuration."""
        heads = self.sql.execute(_HEADS).fetchall()
        for gateway, epoch, version, rules, rules_version, write_scope, *counters in heads:
            schemas = self.sql.execute(_SCHEMAS, (gateway,))
            config = decode_config(version, rules, rules_version, write_scope, schemas)
            yield Head(gateway, epoch, config, *counters)

    def write_gateway(self, gateway: str, epoch: int) -> None:
        """Insert a gateway with its epoch; `write_head` adds its counters."""
        self.sql.execute(
            "INSERT INTO gateway (id, epoch, arrival, config_version, rules_version) VALUES (?, ?, 0, 0, 0)",
            (gateway, epoch),
        )

    def write_head(self, head: Head) -> None:
        """Write a head, without its configuration."""
        self.sql.execute("UPDATE gateway SET arrival = ? WHERE id = ?", (head.arrival, head.gateway))
        self.sql.execute(
            "INSERT OR REPLACE INTO shard VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (head.gateway, head.shard, *head.counters),
        )

    # -- clients -------------------------------------------------------------------------------------------------

    def stored_client(self, gateway: str, client_id: str) -> ClientRecord | None:
        """Return a client's record; None if it has none.

        A rebuild from the lake stores one record for all clients that it cannot know, under the id `ANYONE`. A client
        without a record of its own gets a copy of that record, if there is one.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
        """
        row = self.sql.execute(_CLIENT, (gateway, client_id, ANYONE)).fetchone()
        return msgspec.structs.replace(decode_client(row[0]), client_id=client_id) if row is not None else None

    def write_clients(self, clients: Mapping[Client, ClientRecord]) -> None:
        """Write client records."""
        records = [(*client, _encode(record)) for client, record in clients.items()]
        bulk.insert(self.sql, "client", records, _PUT_CLIENT)

    def stored_writer(self, gateway: str, client_id: str) -> tuple[int, int] | None:
        """Return a client's `(hlc_high, widest)`, as `_WRITER` explains them; None if it never pushed.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
        """
        numbers: tuple[int, int] | None = self.sql.execute(_WRITER, (gateway, client_id)).fetchone()
        return numbers

    def write_writers(self, writers: Mapping[Client, tuple[int, int]]) -> None:
        """Write the values that `stored_writer` returns."""
        bulk.insert(self.sql, "writer", [(*client, *numbers) for client, numbers in writers.items()], _PUT_WRITER)

    # -- the log -------------------------------------------------------------------------------------------------

    def stored_ids(self, gateway: str, client_id: str, low: int, high: int, widest: int) -> list[bytes]:
        """Return the ids in each log row of the client that may have hlcs from `low` to `high`, packed by `wire.log`.

        A push is compared with them, to recognise deltas that it repeats. The highest hlc of such a row is at most
        `high + widest`, so this reads one bounded range of the index.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            low: the lowest hlc.
            high: the highest hlc.
            widest: the greatest difference of hlcs within one of the client's pushes.
        """
        rows = self.sql.execute(_IDS, (gateway, client_id, low, min(high + widest, MAX_HLC), high))
        return [packed for (packed,) in rows]

    def write_entries(self, entries: Iterable[tuple[LogEntry, int]]) -> None:
        """Add log rows to the log and to the ledger.

        Args:
            entries: the log rows, each with the server's wall time of its push in milliseconds since 1970.
        """
        rows = [row_of(entry, committed_ms) for entry, committed_ms in entries]
        bulk.insert(self.sql, "log", rows)
        self._count(rows)

    def _count(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add log rows, as `row_of` returns them, to the ledger."""
        days: dict[tuple[str, str], Tally] = {}
        for gateway, _, _, _, arrival, _, _, _, count, id_sum, *_ in rows:
            key = (gateway, day_of(arrival))
            days[key] = days.get(key, EMPTY_TALLY).plus(count, unsigned(id_sum))
        for key, tally in days.items():
            query = "SELECT count, id_sum FROM ledger WHERE gateway = ? AND day = ?"
            for count, id_sum in self.sql.execute(query, key).fetchall():
                days[key] = tally.plus(count, unsigned(id_sum))
        # 0, 0: the columns `flushed_count` and `flushed_id_sum` of a new day; `_PUT_LEDGER` does not replace them
        values = [(*key, tally.deltas, signed(tally.id_sum), 0, 0) for key, tally in days.items()]
        bulk.insert(self.sql, "ledger", values, _PUT_LEDGER)

    def entries_above(self, head: Head, seq: int) -> Iterator[LogEntry]:
        """Yield a shard's log rows above `seq`, in order; recovery replays them.

        Rows are read in chunks, so that a long log does not fill the memory.

        Args:
            head: the gateway's head in the shard.
            seq: the number of the log row after which to begin; 0 for all.
        """
        while True:
            chunk = self.sql.execute(_ENTRY, (head.gateway, head.shard, head.epoch, seq, _REPLAY_CHUNK)).fetchall()
            for *values, claims in chunk:
                yield LogEntry(*(*values, msgspec.json.decode(claims, type=Claims)))
            if len(chunk) < _REPLAY_CHUNK:
                return
            seq = chunk[-1][3]
