"""Clients pull through a gateway from backends that `lakesync.toml` declares, alone and composed."""

import json

import pytest

from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.adapters.backends.postgres import PostgresAdapter
from tests.conformance.book import make_delta

DECLARED = """
[adapters]
here = "sqlite://{folder}/here.db"
there = "env:THERE"
[routes.main]
tables = {{ events = "there" }}
default = "here"
[sources]
sqlite = {{ uri = "sqlite://{folder}/here.db", gateway = "lake" }}
postgres = {{ uri = "there", gateway = "lake" }}
both = {{ uri = "main", gateway = "lake" }}
"""
RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}


@pytest.fixture
def gateway(spawn, tmp_path, own_database):
    here, there = SqliteAdapter(tmp_path / "here.db"), PostgresAdapter(own_database)
    for table, adapter in (("notes", here), ("events", there)):
        made = [make_delta("etl", n, f"{table}{n}", table=table, team="ab"[n % 2], x=n) for n in range(1, 5)]
        stored = tuple(StoredDelta("lake", 256 * n, delta) for n, delta in enumerate(made, 1))
        adapter.insert_deltas(DeltaBatch("lake.main.1.1-4", "lake", stored))
        adapter.close()
    (tmp_path / "declared.toml").write_text(DECLARED.format(folder=tmp_path))
    return spawn(LAKESYNC_CONFIG=str(tmp_path / "declared.toml"), THERE=own_database)


def test_each_declared_source_is_pulled_through_rules(gateway):
    admin = gateway.client("admin").admin()
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=RULES).status_code == 200
    for source, tables in (("sqlite", ("notes",)), ("postgres", ("events",)), ("both", ("notes", "events"))):
        reader = gateway.client(f"reader of {source}", team="b")
        since, row_ids, more = "0", [], True
        while more:
            page = reader.pull(since, source=source, limit=1).json()
            row_ids += [each["rowId"] for each in page["deltas"] if each["op"] == "INSERT"]
            since, more = page["serverHlc"], page["hasMore"]
        assert sorted(row_ids) == sorted(f"{table}{n}" for table in tables for n in (1, 3)), json.dumps(page)
