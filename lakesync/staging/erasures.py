"""What is erased for good: requests, and the log's side of carrying them out. The same statements in every store.

Of an erased delta its place stays: hlc, client, table, row, and id, which is a hash. Without them a repeat from a
device that is still out there would bring it back, and neither ledger nor batch would agree with the lake. What it said
is gone: it becomes an UPDATE of no columns, which changes nothing wherever it is merged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.asking import Asking
from lakesync.staging.head import Head
from lakesync.staging.records import Cut, Erasure
from lakesync.wire.log import decode_body, encode_body

_FIELDS = "gateway, seq, table_name, row_id, client_id, hlc, arrival, requested_ms, deltas, row_count, done_ms, lake_ms"
"""The first of `Erasure`, in order; what is behind them a sharded store adds."""
_REDACTABLE = (
    "SELECT seq, body FROM log WHERE gateway = ? AND shard = ? AND epoch = ? AND seq > ? AND body IS NOT NULL"
    " ORDER BY seq LIMIT ?"
)
_REDACT = (
    "WITH given (gateway, body) AS (VALUES (?, ?)) UPDATE log SET body = (SELECT body FROM given)"
    " WHERE gateway = (SELECT gateway FROM given) AND shard = ? AND epoch = ? AND seq = ?"
)
_BLANK_CLAIMS = (
    "WITH given (gateway, claims) AS (VALUES (?, ?)) UPDATE log SET claims = (SELECT claims FROM given)"
    " WHERE gateway = (SELECT gateway FROM given) AND client_id = ?"
)
_BLANK_OUTCOMES = (
    "WITH given (gateway, outcome) AS (VALUES (?, ?)) UPDATE action SET outcome = (SELECT outcome FROM given),"
    # who is at one of them now is not to bring its result
    " claim = '' WHERE gateway = (SELECT gateway FROM given) AND client_id = ?"
)
_ERASED_OUTCOME = msgspec.json.encode(
    {"code": "ERASED", "message": "this was done once; its result was erased with the client's data"}
)
_AT_ONCE = 500


class ErasureView(Asking):
    """The part of a `View` that knows what was erased."""

    def erasures(self) -> list[Erasure]:
        """Every request, in order."""
        rows = self._ask(f"SELECT {_FIELDS} FROM erasure WHERE gateway = ? ORDER BY seq")
        return [Erasure(*row) for row in rows]

    def is_barred(self, cut: Cut) -> bool:
        """Whether a cut may hold what was erased since it was made.

        A row's tombstone is part of every later cut. What a client wrote into rows of others leaves the lake's states
        only once the lake has erased it.
        """
        return any(
            erasure.arrival > cut.arrival or (erasure.client_id is not None and erasure.lake_ms is None)
            for erasure in self.erasures()
        )


class ErasingCommit(ErasureView):
    """The part of a `Commit` that erases."""

    @property
    @abstractmethod
    def _head(self) -> Head:
        """The head at this moment of the work."""

    def put_erasure(self, erasure: Erasure) -> None:
        """Write a request whole, in place of the one with its `seq`."""
        self._ask("DELETE FROM erasure WHERE gateway = ? AND seq = ?", erasure.seq)
        kept = len(_FIELDS.split(", "))
        marks = ", ".join("?" * kept)
        self._ask(f"INSERT INTO erasure ({_FIELDS}) VALUES ({marks})", *msgspec.structs.astuple(erasure)[1:kept])

    def spared(self, deltas: Sequence[RowDelta]) -> Sequence[RowDelta]:
        """One client's deltas as they may be kept: those that an erasure covers without what they say."""
        newest = self._ask("SELECT max(hlc) FROM erasure WHERE gateway = ?")[0][0]
        if newest is None or all(delta.hlc > newest for delta in deltas):
            return deltas
        client = self._ask("SELECT max(hlc) FROM erasure WHERE gateway = ? AND client_id = ?", deltas[0].client_id)[0][
            0
        ]
        rows = self._erased_rows({delta.row_id for delta in deltas})
        floor = -1 if client is None else client
        return [delta if delta.hlc > max(floor, rows.get(delta.key, -1)) else _silenced(delta) for delta in deltas]

    def redact(self, after: int, limit: int, covers: Callable[[RowDelta], bool]) -> tuple[int | None, int]:
        """Take what they said from the covered deltas of the next log rows that have a body.

        Args:
            after: the `seq` to go on from, 0 at first.
            limit: how many log rows are looked at.

        Returns:
            The `seq` to go on from, None at the end, and the number of deltas redacted.
        """
        head = self._head
        found = self._ask(_REDACTABLE, head.shard, head.epoch, max(after, head.trimmed_seq), limit)
        redacted = 0
        for seq, body in found:
            deltas = decode_body(bytes(body))
            covered = sum(bool(delta.columns) and covers(delta) for delta in deltas)
            if covered:
                blank = encode_body([_blank(delta) if covers(delta) else delta for delta in deltas])
                self._ask(_REDACT, blank, head.shard, head.epoch, seq)
                redacted += covered
        return (found[-1][0] if len(found) == limit else None), redacted

    def blank_client(self, client_id: str) -> None:
        """Forget what is beside a client's deltas: its claims in the log and what its actions brought."""
        self._ask(_BLANK_CLAIMS, b"{}", client_id)
        self._ask(_BLANK_OUTCOMES, _ERASED_OUTCOME, client_id)

    def _erased_rows(self, row_ids: Collection[str]) -> dict[RowKey, int]:
        found: dict[RowKey, int] = {}
        for some in _parts(sorted(row_ids)):
            marks = ", ".join("?" * len(some))
            query = f"SELECT table_name, row_id, max(hlc) FROM erasure WHERE gateway = ? AND row_id IN ({marks})"
            for table, row_id, hlc in self._ask(f"{query} GROUP BY table_name, row_id", *some):
                found[table, row_id] = hlc
        return found


def _parts(values: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]


def _blank(delta: RowDelta) -> RowDelta:
    if not delta.columns:
        return delta  # a DELETE says nothing but that the row is gone
    return _silenced(delta)


def _silenced(delta: RowDelta) -> RowDelta:
    return msgspec.structs.replace(delta, op="UPDATE", columns=())
