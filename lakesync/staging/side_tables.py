"""The tables beside the log, with the same SQL in both stores (SQLite and Postgres).

They contain erasures (permanent deletions), actions (commands of clients) and attempts at them, and connectors
(external systems). They also contain the position of a re-index, broadcast cursors of sharded gateways (whose tables
are in several stores), the spelling of names in the lake, and the jobs that update the destination's tables after a
flush without a pipeline. The views and commits of both stores inherit from `SideQueries` and `SideStatements`; their
`_query` adds the gateway's id as the first value of each statement. `staging.store.operations` and `staging.store.push`
say what each method promises.

An erased delta keeps its place in the log: hlc (the client's timestamp), client, table, row, and its id, which is a
hash. Otherwise a device could push the delta again, and the log would differ from the lake in number and ids. Its
values are removed: an INSERT or UPDATE becomes an UPDATE without columns, which changes nothing when it is merged. A
DELETE in the log has no values and stays as it is, because it deletes older values of other clients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from lakesync.model.types import RowDelta, RowKey, StoredConnector
from lakesync.staging.head import Head
from lakesync.staging.records import ActionEntry, ActionRecord, Checkpoint, Erasure, Reindex
from lakesync.staging.table_values import SqlQueries, decode_client
from lakesync.wire.log import decode_body, encode_body

_ERASURE_FIELDS = (
    "gateway, seq, table_name, row_id, client_id, hlc, arrival, requested_ms, deltas, row_count, done_ms, lake_ms"
)
"""The first fields of `Erasure`, in order. The last one, `shards`, is not stored: a sharded store computes it."""
_REDACTABLE = (
    "SELECT seq, body FROM log WHERE gateway = ? AND shard = ? AND epoch = ? AND seq > ? AND body IS NOT NULL"
    " ORDER BY seq LIMIT ?"
)
"""SQL: the next log rows that still have their bodies."""
_REDACT = (
    "WITH given (gateway, body) AS (VALUES (?, ?)) UPDATE log SET body = (SELECT body FROM given)"
    " WHERE gateway = (SELECT gateway FROM given) AND shard = ? AND epoch = ? AND seq = ?"
)
"""SQL: replace the body of a log row. The gateway is the first value, as in every statement of `SqlQueries`."""
_BLANK_CLAIMS = (
    "WITH given (gateway, claims) AS (VALUES (?, ?)) UPDATE log SET claims = (SELECT claims FROM given)"
    " WHERE gateway = (SELECT gateway FROM given) AND client_id = ?"
)
"""SQL: replace the claims in a client's log rows."""
_BLANK_OUTCOMES = (
    "WITH given (gateway, outcome) AS (VALUES (?, ?)) UPDATE action SET outcome = (SELECT outcome FROM given),"
    # a process that executes one of them now must not store its result
    " claim = '' WHERE gateway = (SELECT gateway FROM given) AND client_id = ?"
)
"""SQL: replace the outcomes of a client's actions."""
_ERASED_OUTCOME = msgspec.json.encode(
    {"code": "ERASED", "message": "this was done once; its result was erased with the client's data"}
)
"""The outcome that a repeated action of an erased client returns."""
_MAX_ROW_IDS = 500
"""The most row ids in one statement."""
_PUT_NAME = (  # the statements in this module take the gateway as their first value, also where it is not needed
    "INSERT INTO spelled_name (gateway, namespace, folded, spelled) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (namespace, folded) DO NOTHING"
)
# `? <> ''` takes the gateway, which this query does not need: spellings belong to a namespace
_GET_NAMES = "SELECT folded, spelled FROM spelled_name WHERE ? <> '' AND namespace = ? AND folded IN "
_MAX_NAMES = 500
"""The most names in one statement."""


class ErasureQueries(SqlQueries):
    """The methods of a `View` that read erasures."""

    def erasures(self) -> list[Erasure]:
        """Return every erasure, in order."""
        rows = self._query(f"SELECT {_ERASURE_FIELDS} FROM erasure WHERE gateway = ? ORDER BY seq")
        return [Erasure(*row) for row in rows]

    def predates_erasure(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint may contain values that were erased after it was made.

        A checkpoint above the erasure's arrival, its time of commit, has the DELETE of an erased row. But the columns
        that an erased client wrote to rows of others leave the lake's state tables, from which checkpoints are made,
        only when the lake has executed the erasure.
        """
        return any(
            erasure.arrival > checkpoint.arrival or (erasure.client_id is not None and erasure.lake_ms is None)
            for erasure in self.erasures()
        )


class ErasureStatements(ErasureQueries):
    """The methods of a `Commit` that erase."""

    @property
    @abstractmethod
    def _head(self) -> Head:
        """The current head of the commit's gateway."""

    def put_erasure(self, erasure: Erasure) -> None:
        """Store an erasure; it replaces the one with its `seq`."""
        self._query("DELETE FROM erasure WHERE gateway = ? AND seq = ?", erasure.seq)
        columns = len(_ERASURE_FIELDS.split(", "))
        marks = ", ".join("?" * columns)
        self._query(
            f"INSERT INTO erasure ({_ERASURE_FIELDS}) VALUES ({marks})", *msgspec.structs.astuple(erasure)[1:columns]
        )

    def filter_erased(self, deltas: Sequence[RowDelta]) -> Sequence[RowDelta]:
        """Return a pushed client's deltas as they may be stored: those that an erasure covers lose their effect.

        A device that was offline during the erasure may push such deltas. Each becomes an UPDATE without columns, also
        a DELETE. The same sequence is returned if no erasure covers any of them.

        Args:
            deltas: deltas of one client.
        """
        newest = self._query("SELECT max(hlc) FROM erasure WHERE gateway = ?")[0][0]
        if newest is None or all(delta.hlc > newest for delta in deltas):
            return deltas
        of_client = "SELECT max(hlc) FROM erasure WHERE gateway = ? AND client_id = ?"
        client_erased = self._query(of_client, deltas[0].client_id)[0][0]
        rows_erased = self._erased_rows({delta.row_id for delta in deltas})
        floor = -1 if client_erased is None else client_erased
        return [
            delta if delta.hlc > max(floor, rows_erased.get(delta.key, -1)) else _without_values(delta)
            for delta in deltas
        ]

    def redact(self, after: int, limit: int, covers: Callable[[RowDelta], bool]) -> tuple[int | None, int]:
        """Remove the values of covered deltas from the next log rows that have a body.

        Args:
            after: the log row (`seq`) after which to continue; 0 at first.
            limit: the most log rows to read.
            covers: returns whether the erasure covers a delta.

        Returns:
            The `seq` after which to continue, None at the end, and the number of redacted deltas.
        """
        head = self._head
        rows = self._query(_REDACTABLE, head.shard, head.epoch, max(after, head.trimmed_seq), limit)
        redacted = 0
        for seq, body in rows:
            deltas = decode_body(bytes(body))
            covered = sum(_has_content(delta) and covers(delta) for delta in deltas)
            if covered:
                new_body = encode_body([_redacted(delta) if covers(delta) else delta for delta in deltas])
                self._query(_REDACT, new_body, head.shard, head.epoch, seq)
                redacted += covered
        return (rows[-1][0] if len(rows) == limit else None), redacted

    def forget_client(self, client_id: str) -> None:
        """Remove a client's claims from the log, and the results of its actions."""
        self._query(_BLANK_CLAIMS, b"{}", client_id)
        self._query(_BLANK_OUTCOMES, _ERASED_OUTCOME, client_id)

    def _erased_rows(self, row_ids: Collection[str]) -> dict[RowKey, int]:
        """Return the erased rows with one of these ids, in any table, each with the hlc up to which it is erased."""
        erased: dict[RowKey, int] = {}
        for chunk in _chunks(sorted(row_ids)):
            marks = ", ".join("?" * len(chunk))
            query = f"SELECT table_name, row_id, max(hlc) FROM erasure WHERE gateway = ? AND row_id IN ({marks})"
            for table, row_id, hlc in self._query(f"{query} GROUP BY table_name, row_id", *chunk):
                erased[table, row_id] = hlc
        return erased


def _chunks(values: list[str]) -> Iterator[list[str]]:
    """Yield parts of at most `_MAX_ROW_IDS` values."""
    for start in range(0, len(values), _MAX_ROW_IDS):
        yield values[start : start + _MAX_ROW_IDS]


def _has_content(delta: RowDelta) -> bool:
    """Return whether a redaction changes a delta: an INSERT makes its row visible even without columns."""
    return delta.op == "INSERT" or bool(delta.columns)


def _redacted(delta: RowDelta) -> RowDelta:
    """Return a stored delta without its content; one that has none, as a DELETE, stays as it is."""
    return _without_values(delta) if _has_content(delta) else delta


def _without_values(delta: RowDelta) -> RowDelta:
    """Return a delta without values, which changes nothing when it is merged; it keeps its id."""
    return msgspec.structs.replace(delta, op="UPDATE", columns=())


class NameQueries(SqlQueries):
    """Reads the case in which tables and columns are spelled in each namespace of the lake."""

    def name_spellings(self, namespace: str, names: Collection[str]) -> dict[str, str]:
        """Return the stored spelling of names, by their lower-case forms; unknown names are absent.

        Args:
            namespace: the namespace of the gateway's state tables in the lake.
            names: tables, and columns as `table.column`, in any case.
        """
        folded = sorted({name.lower() for name in names})
        spellings: dict[str, str] = {}
        for start in range(0, len(folded), _MAX_NAMES):
            chunk = folded[start : start + _MAX_NAMES]
            spellings.update(self._query(f"{_GET_NAMES}({', '.join('?' * len(chunk))})", namespace, *chunk))
        return spellings


class NameStatements(NameQueries):
    """Adds spellings. `engine.names` calls it, because SQL engines that read the lake ignore case in names."""

    def add_spellings(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names that a namespace does not have in any case; return the stored spelling of all, by lower-case form.

        The table's primary key is the lock: if two commits add a name at the same time, the second waits for the first.

        Args:
            namespace: the namespace of the gateway's state tables in the lake.
            names: tables, and columns as `table.column`.
        """
        known = self.name_spellings(namespace, names)
        missing = sorted(name for name in names if name.lower() not in known)
        for name in missing:
            self._query(_PUT_NAME, namespace, name.lower(), name)
        return self.name_spellings(namespace, names) if missing else known


_GET_CURSOR = "SELECT parts FROM shared_cursor WHERE gateway = ? AND cursor = ?"
_NEWEST_CURSOR = "SELECT cursor FROM shared_cursor WHERE gateway = ? ORDER BY cursor DESC LIMIT 1"
_PUT_CURSOR = "INSERT INTO shared_cursor (gateway, cursor, parts) VALUES (?, ?, ?)"
_FORGET_CURSORS = "DELETE FROM shared_cursor WHERE gateway = ? AND cursor < ?"

_CLIENTS = "SELECT record FROM client WHERE gateway = ?"
_NO_ROWS = 1
"""The highest cursor of a client that was sent nothing (0), or pushed and was sent nothing (1)."""

_decode_parts = msgspec.json.Decoder(dict[str, int]).decode


class SharedCursorQueries(SqlQueries):
    """Reads broadcast cursors of a sharded gateway.

    A broadcast to many clients has one cursor, which means a cursor in each shard.
    """

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Return the cursors by shard of a broadcast cursor; None if it is unknown or was deleted."""
        rows = self._query(_GET_CURSOR, cursor)
        return _decode_parts(rows[0][0]) if rows else None

    def newest_shared_cursor(self) -> int:
        """Return the highest stored broadcast cursor; 0 if there is none."""
        rows = self._query(_NEWEST_CURSOR)
        return int(rows[0][0]) if rows else 0

    def sent_rows_of_shard(self, shard: str) -> bool:
        """Return whether any client has a cursor that means rows of a shard.

        This reads all client records. `ShardedStore` calls it when a shard's store is empty at the start: the store may
        have been lost.
        """
        parts = self.shared_cursor(self.newest_shared_cursor()) or {}
        if parts.get(shard, 0) > _NO_ROWS:
            return True
        of_clients = (decode_client(record).sent_cursors for (record,) in self._query(_CLIENTS))
        return any(
            name == shard and cursor > _NO_ROWS
            for sent_cursors in of_clients
            if sent_cursors is not None
            for vector in sent_cursors.vectors
            for name, cursor in vector.parts
        )


class SharedCursorStatements(SharedCursorQueries):
    """Writes broadcast cursors of a sharded gateway."""

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Store a broadcast cursor, and delete old ones.

        Args:
            cursor: the cursor that clients are sent.
            parts: the cursor in each shard that it means, by shard name.
            forget_below: stored broadcast cursors below this are deleted.
        """
        self._query(_FORGET_CURSORS, forget_below)
        self._query(_PUT_CURSOR, cursor, msgspec.json.encode(dict(parts)).decode())


_PUT_REINDEX = (
    "INSERT INTO reindex (gateway, rules_version, table_name, row_id, done) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (gateway) DO UPDATE SET rules_version = excluded.rules_version,"
    " table_name = excluded.table_name, row_id = excluded.row_id, done = excluded.done"
)


class ReindexQueries(SqlQueries):
    """Reads the position of the gateway's re-index: the update of all rows' bucket keys after a change of rules."""

    def reindexing(self) -> Reindex | None:
        """Return the position of the latest re-index; None before the first."""
        rows = self._query("SELECT rules_version, table_name, row_id, done FROM reindex WHERE gateway = ?")
        if not rows:
            return None
        version, table, row_id, done = rows[0]
        return Reindex(version, None if table is None else (table, row_id), bool(done))


class ReindexStatements(ReindexQueries):
    """Writes the gateway's re-index position."""

    def put_reindexing(self, position: Reindex) -> None:
        """Store the position of a re-index."""
        table, row_id = position.after or (None, None)
        self._query(_PUT_REINDEX, position.rules_version, table, row_id, int(position.done))


_ADD_JOB = "INSERT INTO flush_job (gateway, set_aside, job_id, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DROP_JOB = "DELETE FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ?"
_GET_JOB = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ?"
_LIST_JOBS = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? ORDER BY job_id LIMIT ?"


class FlushJobQueries(SqlQueries):
    """Reads the jobs by which a flush without a pipeline updates the destination's tables."""

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Return encoded jobs, ordered by id.

        Args:
            set_aside: whether to return jobs that failed and were set aside, instead of waiting jobs.
            limit: the most jobs to return.
        """
        return [bytes(body) for (body,) in self._query(_LIST_JOBS, int(set_aside), limit)]


class FlushJobStatements(FlushJobQueries):
    """Writes the jobs by which a flush without a pipeline updates the destination's tables."""

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job, unless one with its id exists.

        Args:
            job_id: the job's id.
            body: the encoded job, as `lakesync.flush` encodes it.
            set_aside: whether the job failed and is set aside.
        """
        self._query(_ADD_JOB, int(set_aside), job_id, body)

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job and return its body; None if there is no such job.

        Args:
            job_id: the job's id.
            set_aside: whether to look among the jobs that failed and were set aside, instead of the waiting ones.
        """
        rows = self._query(_GET_JOB, int(set_aside), job_id)
        self._query(_DROP_JOB, int(set_aside), job_id)
        return bytes(rows[0][0]) if rows else None


_ACTION = (
    "SELECT client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms, outcome FROM action"
    " WHERE gateway = ? AND client_id = ? AND"
)
_ENTRIES = (
    "SELECT seq, at_ms, client_id, action_id, connector, action_type, attempt, code, ms FROM action_log"
    " WHERE gateway = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
_NEWEST = "SELECT seq FROM action_log WHERE gateway = ? ORDER BY seq DESC LIMIT 1"
_NO_BOUND = (1 << 63) - 1
"""In place of a `seq` below which to read: it is above every one."""

_decode_connector = msgspec.json.Decoder(StoredConnector).decode


class SideQueries(ErasureQueries, ReindexQueries, SharedCursorQueries, NameQueries, FlushJobQueries):
    """The methods of a `View` that read the tables of this module."""

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """Return a client's action by its id, otherwise by its idempotency key; None if there is none.

        Args:
            client_id: the client's id.
            action_id: the action's id.
            idempotency_key: the key by which to look if no action has the id; None for no further look.
        """
        rows = self._query(f"{_ACTION} action_id = ?", client_id, action_id)
        if not rows and idempotency_key is not None:
            rows = self._query(f"{_ACTION} idempotency_key = ?", client_id, idempotency_key)
        return ActionRecord(*rows[0]) if rows else None

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """Return attempts at actions, newest first.

        Args:
            before: return only attempts with a lower `seq`; None starts with the newest.
            limit: the most attempts to return.
        """
        rows = self._query(_ENTRIES, _NO_BOUND if before is None else before, limit)
        return [ActionEntry(*row) for row in rows]

    def connectors(self) -> list[StoredConnector]:
        """Return every registered connector, ordered by name."""
        rows = self._query("SELECT body FROM connector WHERE gateway = ? ORDER BY name")
        return [_decode_connector(body) for (body,) in rows]


class SideStatements(
    SideQueries, ErasureStatements, ReindexStatements, SharedCursorStatements, NameStatements, FlushJobStatements
):
    """The methods of a `Commit` that write the tables of this module."""

    def put_action(self, record: ActionRecord) -> None:
        """Store an action's record; it replaces records with the same id or idempotency key."""
        self._query(
            "DELETE FROM action WHERE gateway = ? AND client_id = ? AND action_id = ?",
            record.client_id,
            record.action_id,
        )
        if record.idempotency_key is not None:
            self._query(
                "DELETE FROM action WHERE gateway = ? AND client_id = ? AND idempotency_key = ?",
                record.client_id,
                record.idempotency_key,
            )
        self._query(
            "INSERT INTO action (gateway, client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms,"
            " outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(record),
        )

    def drop_actions(self, touched_before_ms: int) -> None:
        """Delete the actions whose latest change was before a server wall time, in milliseconds since 1970."""
        self._query("DELETE FROM action WHERE gateway = ? AND touched_ms < ?", touched_before_ms)

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Add an attempt at an action to the log of attempts; return its `seq`, which counts from 1.

        Args:
            entry: the attempt; its `seq` is ignored.
            keep: how many of the newest attempts are kept; older ones are deleted.
        """
        newest = self._query(_NEWEST)
        seq: int = newest[0][0] + 1 if newest else 1
        numbered = msgspec.structs.replace(entry, seq=seq)
        self._query(
            "INSERT INTO action_log (gateway, seq, at_ms, client_id, action_id, connector, action_type, attempt, code,"
            " ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(numbered),
        )
        self._query("DELETE FROM action_log WHERE gateway = ? AND seq <= ?", seq - keep)
        return seq

    def put_connector(self, connector: StoredConnector) -> None:
        """Store a connector; it replaces one with its name."""
        self.drop_connector(connector.name)
        self._query(
            "INSERT INTO connector (gateway, name, body) VALUES (?, ?, ?)",
            connector.name,
            msgspec.json.encode(connector),
        )

    def drop_connector(self, name: str) -> bool:
        """Delete a connector; return False if there is none with this name."""
        known = self._query("SELECT 1 FROM connector WHERE gateway = ? AND name = ?", name)
        self._query("DELETE FROM connector WHERE gateway = ? AND name = ?", name)
        return bool(known)
