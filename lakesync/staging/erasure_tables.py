"""Erasures (permanent deletions) in the log and in their own table, with the same SQL on SQLite and Postgres.

`ErasingStore` runs an erasure's steps with these methods of a commit, and each push calls `filter_erased`. The views
and commits of both stores inherit from `ErasureQueries` and `ErasureStatements`; their `_query` adds the gateway's id
as the first value of each statement. `staging.store.operations` says what each method promises.

A *view* reads the tables of one gateway, and a *commit* changes them in a transaction. A *gateway* is one app's stream
of changes. Its *head* has its present numbers. Among them are its *epoch*, one copy of the gateway in the store, and
its *shard*, a store with some of the tables. An *arrival* is its timestamp of a commit. A *checkpoint* has all rows as
of one arrival, for new clients. An *action* is a command of a client, whose result (*outcome*) is stored. *Claims* are
what a client's token says about its user.

The *log* has one row for each push; its *body* is the encoded deltas (changes of rows). An erased delta keeps its place
there: hlc (the client's timestamp), client, table, row, and its id, which is a hash. Otherwise a device could push the
delta again, and the log would differ from the lake in number and ids. Its values are removed: an INSERT or UPDATE
becomes an UPDATE without columns, which changes nothing when it is merged. A DELETE in the log has no values and stays
as it is, because it deletes older values of other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

import msgspec

from lakesync.model.parts import parts
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.records import Checkpoint, Erasure
from lakesync.staging.table_values import MAX_VALUES, SqlQueries
from lakesync.wire.log import decode_body, encode_body

_ERASURE_FIELDS = (
    "gateway, seq, table_name, row_id, client_id, hlc, arrival, requested_ms, deltas, row_count, done_ms, lake_ms"
)
"""The first fields of `Erasure`, in order. The last one, `shards`, is not stored: a sharded store computes it."""
_REDACTABLE = (
    "SELECT seq, {column} FROM log WHERE gateway = ? AND shard = ? AND epoch = ? AND seq > ? AND body IS NOT NULL"
    " ORDER BY seq LIMIT ?"
)
"""SQL: the number and one column of the next log rows that still have their bodies."""
_DELTAS_PER_COMMIT = 10_000
"""Number of deltas after which one commit reads no further log row. Each takes 6 microseconds, and pushes wait."""
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
_HAS_OUTCOMES = "SELECT 1 FROM action WHERE gateway = ? AND client_id = ? AND (outcome IS NULL OR outcome <> ?) LIMIT 1"
"""SQL: whether a client has an action with another outcome than the given one, or without any."""
_ERASED_OUTCOME = msgspec.json.encode(
    {"code": "ERASED", "message": "this was done once; its result was erased with the client's data"}
)
"""The outcome that a repeated action of an erased client returns."""


class ErasureQueries(SqlQueries):
    """The methods of a `View` that read erasures."""

    def erasures(self) -> list[Erasure]:
        """Return every erasure, in order."""
        rows = self._query(f"SELECT {_ERASURE_FIELDS} FROM erasure WHERE gateway = ? ORDER BY seq")
        return [Erasure(*row) for row in rows]

    def predates_erasure(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint may contain values that were erased after it was made.

        An erasure commits a DELETE of each erased row, at its arrival. A checkpoint at a later arrival has that DELETE.
        But an erased client has also written columns of other clients' rows. Checkpoints are made from the lake's state
        tables, which keep these columns until the lake has executed the erasure.
        """
        return any(
            erasure.arrival > checkpoint.arrival or (erasure.client_id is not None and erasure.lake_ms is None)
            for erasure in self.erasures()
        )


class ErasureStatements(ErasureQueries):
    """The methods of a `Commit` that erase."""

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
        values = (head.shard, head.epoch, max(after, head.trimmed_seq))
        counts = self._query(_REDACTABLE.format(column="count"), *values, limit)
        before = accumulate((count for _, count in counts), initial=0)  # for each log row, the deltas before it
        some = sum(deltas < _DELTAS_PER_COMMIT for deltas, _ in zip(before, counts, strict=False))
        rows = self._query(_REDACTABLE.format(column="body"), *values, some)
        redacted = 0
        for seq, body in rows:
            deltas = decode_body(bytes(body))
            # an INSERT makes its row visible even without columns; other deltas without columns have no content
            covered = [(delta.op == "INSERT" or bool(delta.columns)) and covers(delta) for delta in deltas]
            if any(covered):
                pairs = zip(deltas, covered, strict=True)
                new_body = encode_body([_without_values(delta) if is_covered else delta for delta, is_covered in pairs])
                self._query(_REDACT, new_body, head.shard, head.epoch, seq)
                redacted += sum(covered)
        is_end = some == len(counts) < limit
        return (None if is_end else rows[-1][0]), redacted

    def has_outcomes(self, client_id: str) -> bool:
        """Return whether a client has actions without an erased outcome; see `ErasureCommit.has_outcomes`."""
        return bool(self._query(_HAS_OUTCOMES, client_id, _ERASED_OUTCOME))

    def forget_client(self, client_id: str) -> None:
        """Remove a client's claims from the log, and the results of its actions."""
        self._query(_BLANK_CLAIMS, b"{}", client_id)
        self._query(_BLANK_OUTCOMES, _ERASED_OUTCOME, client_id)

    def _erased_rows(self, row_ids: Collection[str]) -> dict[RowKey, int]:
        """Return the erased rows with one of these ids, in any table, each with the hlc up to which it is erased."""
        erased: dict[RowKey, int] = {}
        for chunk in parts(sorted(row_ids), MAX_VALUES):
            marks = ", ".join("?" * len(chunk))
            query = f"SELECT table_name, row_id, max(hlc) FROM erasure WHERE gateway = ? AND row_id IN ({marks})"
            for table, row_id, hlc in self._query(f"{query} GROUP BY table_name, row_id", *chunk):
                erased[table, row_id] = hlc
        return erased


def _without_values(delta: RowDelta) -> RowDelta:
    """Return a delta without values, which changes nothing when it is merged; it keeps its id."""
    return msgspec.structs.replace(delta, op="UPDATE", columns=())
