"""A minimal engine over a store: the pushes of the suite, and their replay."""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.model.delta import dedup_key, delta_id, id_number
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.rules.model import SyncRules
from lakesync.staging.records import ARRIVAL_STEP, Entry, LogEntry, Move, StoredRow
from lakesync.staging.store import Commit, View
from lakesync.wire.log import decode_body, pack

EVERYONE = "*"


def make_delta(client: str, hlc: int, row: str, table: str = "notes", **values: object) -> RowDelta:
    """An INSERT with its true id; without a value, a DELETE."""
    columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
    identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=columns)
    return RowDelta("INSERT" if values else "DELETE", table, row, client, columns, hlc, identity)


def id_sum(deltas: Sequence[RowDelta]) -> int:
    """The checksum of ids, as the lake computes it."""
    return sum(id_number(delta.delta_id) for delta in deltas) % 2**64


class Book:
    """Rows under one bucket for each value of their column `team`, or under one bucket if they have no team."""

    def __init__(self) -> None:
        self.replayed: list[tuple[str, int]] = []

    def push(self, deltas: Sequence[RowDelta], claims: dict[str, str | list[str]] | None = None):
        """Return the commit that stores deltas of one client, each once."""

        def work(commit: Commit) -> LogEntry | None:
            client = deltas[0].client_id
            low, high = min(delta.hlc for delta in deltas), max(delta.hlc for delta in deltas)
            known = commit.known_ids(client, low, high) if low <= commit.highest_hlc(client) else set()
            new = [delta for delta in deltas if (delta.hlc, dedup_key(delta.delta_id)) not in known]
            if not new:
                return None
            arrival = commit.next_arrivals(len({delta.key for delta in new}))[-1]
            entry = commit.append(client, pack(new), arrival, claims or {"sub": client})
            self._apply(commit, new, arrival)
            return entry

        return work

    def replay(self, commit: Commit, entry: LogEntry) -> None:
        """Apply a log row again."""
        assert entry.body is not None
        self.replayed.append((entry.gateway, entry.seq))
        self._apply(commit, decode_body(entry.body), entry.arrival)

    def set_rules(self, rules: SyncRules):
        """Return the commit that changes rules."""

        def work(commit: Commit) -> int:
            version = commit.put_rules(rules)
            self._reindex(commit)
            return version

        return work

    def _reindex(self, commit: Commit) -> None:
        """Index every row again; rows whose buckets change get a new arrival."""
        after = None
        while rows := commit.scan_rows(after, 2):
            after = rows[-1].key
            for row in rows:
                old, row.keys = row.keys, _keys(row, commit)
                if old != row.keys:
                    (row.arrival,) = commit.next_arrivals(1)
                    commit.put_rows([row], _moves(row, old))

    def settle(self, commit: Commit, rows: Sequence[StoredRow]) -> None:
        """Change the state of rows without changing their arrivals."""
        for row in rows:
            old, row.keys = row.keys, _keys(row, commit)
            commit.put_rows([row], _moves(row, old))

    def _apply(self, commit: Commit, deltas: Sequence[RowDelta], last: int) -> None:
        keys = list(dict.fromkeys(delta.key for delta in deltas))
        stored = commit.rows(keys)
        for place, key in enumerate(keys):
            row = (stored.get(key) or StoredRow(key, arrival=0, state=RowState())).copy()
            row.arrival = last - ARRIVAL_STEP * (len(keys) - 1 - place)
            for delta in deltas:
                if delta.key == key:
                    row.state.merge(delta)
            old, row.keys = row.keys, _keys(row, commit)
            commit.put_rows([row], _moves(row, old))


def _keys(row: StoredRow, view: View) -> tuple[str, ...]:
    if not row.state.visible:
        return ()
    team = row.state.values().get("team")
    prefix = f"v{view.config.rules_version}:" if view.config.rules_version else ""
    return (prefix + (bytes(team).decode() if team else EVERYONE),)


def _moves(row: StoredRow, old: tuple[str, ...]) -> list[Move]:
    def move(bucket: str, kind) -> Move:
        return Move(bucket, row.table, row.row_id, row.arrival, kind)

    moves = [move(bucket, "leave") for bucket in old if bucket not in row.keys]
    return moves + [move(bucket, "stay" if bucket in old else "join") for bucket in row.keys]


def contents(view: View) -> tuple[list[StoredRow], list[Entry]]:
    """Everything that a read can return, for comparison."""
    buckets = view.buckets("")
    entries = view.entries_after(buckets, 0, 100_000)
    rows = view.rows({entry.key for entry in entries})
    return sorted(rows.values(), key=lambda row: row.key), entries
