"""Scans of many bucket keys return the entries of each key."""

from __future__ import annotations

from lakesync.engine import Engine
from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store

NOW = 1_700_000_000_000
RULES = {
    "version": 1,
    "buckets": [
        {"name": "teams", "tables": [], "filters": [{"column": "team", "op": "in", "value": "jwt:teams"}]},
        {"name": "all", "tables": [], "filters": []},
    ],
}


def insert(number: int, row: str, team: str) -> RowDelta:
    columns = (ColumnValue.of("team", team),)
    stamp = hlc.encode(NOW, number)
    identity = delta_id(client_id="ann", hlc=stamp, table="notes", row_id=row, columns=columns)
    return RowDelta("INSERT", "notes", row, "ann", columns, stamp, identity)


def test_both_query_plans_find_the_same_entries():
    engine = Engine(open_store("memory://", lambda: NOW), lambda: NOW)
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway.set_rules(parse_rules(RULES))
        deltas = [insert(number, f"r{number}", f"t{number % 20}") for number in range(60)]
        gateway.handle_push(SyncPush("ann", tuple(deltas)))
        gateway.handle_push(SyncPush("ann", (insert(100, "r7", "t3"), insert(101, "r9", "t4"))))
        rows = [("notes", "r7"), ("notes", "r9"), ("notes", "r41")]

        def entries(view, buckets):
            return sorted((each.bucket, each.row_id, each.changed) for each in view.entries_of(rows, buckets))

        buckets = engine.store.read("g", lambda view: view.buckets("")).result()
        assert len(buckets) > 20
        together = engine.store.read("g", lambda view: entries(view, buckets)).result()
        one_by_one = engine.store.read("g", lambda view: [each for name in buckets for each in entries(view, [name])])
        assert together == sorted(one_by_one.result())
        assert len(together) == 2 * len(rows) + 2  # two of them have left a team
    finally:
        engine.close()
