"""Lost shards, one or all of them, are rebuilt from the lake."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakesync.cli.app import app
from lakesync.engine import Engine, EngineLimits
from lakesync.engine.rebuild import rebuild
from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.model.types import ColumnValue, RowDelta, StoredConnector
from lakesync.staging import open_staging
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from tests.conformance.rebuild_support import ENTRIES, RULES, SCHEMA, Client, Lake, everything

TABLES = {"orders": "shard-orders", "products": "shard-products"}


def shards(folder: Path) -> ShardMap:
    """Orders inside the default shard's folder, products in a separate folder."""
    return ShardMap(TABLES, "shard-default", {"shard-products": f"sqlite://{folder / 'products'}"})


def opened(folder: Path, clock) -> Engine:
    """An engine over all shards."""
    engine = Engine(
        open_staging(f"sqlite://{folder / 'staging'}", shards(folder), clock), clock, EngineLimits(write_scope="any")
    )
    engine.open()
    return engine


def write(row: str, table: str, clock, **values) -> RowDelta:
    """An INSERT by alice."""
    cells = tuple(ColumnValue.of(name, value) for name, value in values.items())
    return RowDelta("INSERT", table, row, "alice", cells, clock.now_ms << 16, f"{table}-{row}-{clock.now_ms}")


def stores_of(engine: Engine) -> list[Any]:
    """The stores of the shards."""
    assert isinstance(engine.store, ShardedStore)
    return list(engine.store.stores.values())


def carried(engine: Engine) -> Lake:
    """A lake with all flushed deltas."""
    lake = Lake()
    entries = []
    for store in stores_of(engine):
        entries += store.submit("g", lambda commit: commit._query(ENTRIES)).result()
    for arrival, client, body in sorted(entries):
        lake.carry(engine, [_Entry(arrival, client, body)])
    return lake


class _Entry:
    gateway = "g"

    def __init__(self, arrival: int, client_id: str, body: bytes) -> None:
        self.arrival, self.client_id, self.body = arrival, client_id, body


@pytest.fixture
def lost(tmp_path, clock):
    """A lake, alice with all rows, her deltas, and the rows that bob of the other team saw; the stores are closed."""
    engine = opened(tmp_path, clock)
    gateway = engine.gateway("g")
    gateway.set_rules(RULES)
    gateway.register_schema(SCHEMA)
    alice = Client("alice", "red")
    sent = []
    for number in range(12):
        clock.advance(5)
        team = "red" if number % 3 else "blue"
        table = ("notes", "orders", "products")[number % 3]
        push = [write(f"{table}-{number}", table, clock, team=team, x=number), write(f"n{number}", "notes", clock, x=1)]
        alice.push(engine, *push)
        sent.append(push)
    alice.pull(engine)
    lake, seen = carried(engine), everything(engine, "blue")
    engine.close()
    return lake, alice, sent, seen


def check(engine: Engine, alice: Client, sent, seen, *, ours: bool) -> None:
    """Check that every client ends with its rows, and that repeats change nothing."""
    assert everything(engine, "blue") == seen
    for push in sent:
        assert alice.push(engine, *push).accepted == len(push)
    alice.pull(engine, ours=ours)
    assert alice.rows == everything(engine, "red")
    assert engine.gateway("g").config().rules == RULES
    assert [store.gateway_config("g").schemas.keys() for store in stores_of(engine)] == [{"notes"}] * 3


@pytest.mark.parametrize("ours", [False, True], ids=["stock", "ours"])
def test_all_shards_are_rebuilt_with_their_tables(tmp_path, clock, lost, ours):
    lake, alice, sent, seen = lost
    shutil.rmtree(tmp_path / "staging")
    shutil.rmtree(tmp_path / "products")
    url = f"sqlite://{tmp_path / 'staging'}"
    lake.registered["g"] = [StoredConnector("bq", "bigquery", {"projectId": "p", "dataset": "d"})]
    done = rebuild(url, clock, lake, shards=shards(tmp_path))
    assert {each.shard: each.deltas for each in done} == {"shard-default": 16, "shard-orders": 4, "shard-products": 4}
    assert {each.shard: each.connectors for each in done} == {
        "shard-default": 1,
        "shard-orders": 0,
        "shard-products": 0,
    }
    with pytest.raises(ConfigurationError, match="--replace"):
        rebuild(url, clock, lake, shards=shards(tmp_path))
    engine = opened(tmp_path, clock)
    check(engine, alice, sent, seen, ours=ours)
    engine.close()
    rebuild(url, clock, lake, shards=shards(tmp_path), replace=True)
    assert (next(tmp_path.glob("staging.replaced-*")) / "shard-orders" / "log.db").exists()
    assert next(tmp_path.glob("products.replaced-*")).is_dir()
    assert not list(tmp_path.rglob("*.rebuilding"))


@pytest.mark.parametrize("name", ["shard-orders", "shard-products"])
def test_one_shard_is_rebuilt_and_the_others_are_unchanged(tmp_path, clock, lost, name):
    lake, alice, sent, seen = lost
    shutil.rmtree(tmp_path / ("products" if name == "shard-products" else "staging/shard-orders"))
    (done,) = rebuild(f"sqlite://{tmp_path / 'staging'}", clock, lake, shards=shards(tmp_path), only=name)
    assert (done.shard, done.deltas) == (name, 4)
    engine = opened(tmp_path, clock)
    check(engine, alice, sent, seen, ours=False)
    engine.close()


def test_a_shard_with_a_missing_store_does_not_start_empty(tmp_path, clock, lost):
    _, alice, sent, seen = lost
    (tmp_path / "products").rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(IntegrityError, match="shard-products"):
            opened(tmp_path, clock)
    shutil.rmtree(tmp_path / "products")
    (tmp_path / "away").rename(tmp_path / "products")
    engine = opened(tmp_path, clock)
    check(engine, alice, sent, seen, ours=False)
    engine.close()


def test_a_shard_that_cannot_be_rebuilt_alone_is_rejected_and_unchanged(tmp_path, clock, lost):
    lake = lost[0]
    url = f"sqlite://{tmp_path / 'staging'}"
    with pytest.raises(ConfigurationError, match="contains that of shard-orders"):
        rebuild(url, clock, lake, shards=shards(tmp_path), only="shard-default", replace=True)
    with pytest.raises(ConfigurationError, match="no shard 'absent'"):
        rebuild(url, clock, lake, shards=shards(tmp_path), only="absent")
    with pytest.raises(ConfigurationError, match="no shard 'shard-orders'"):
        rebuild(url, clock, lake, only="shard-orders", replace=True)
    (tmp_path / "staging" / "log.db").unlink()
    with pytest.raises(ConfigurationError, match=r"shard-orders: add --replace"):
        rebuild(url, clock, lake, shards=shards(tmp_path))
    assert (tmp_path / "staging" / "shard-orders" / "log.db").exists()


def test_the_commands_apply_to_every_shard(tmp_path, clock, lost, monkeypatch):
    monkeypatch.setenv("LAKESYNC_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LAKESYNC_STAGING_URL", f"sqlite://{tmp_path / 'staging'}")
    given = {"shards": TABLES, "default": "shard-default", "stores": shards(tmp_path).urls}
    monkeypatch.setenv("LAKESYNC_SHARD_CONFIG", json.dumps(given))

    def run_command(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["staging", *arguments])

    found = json.loads(run_command("status", "--json").stdout)
    assert {name: [head["shard"] for head in each["heads"]] for name, each in found.items()} == {
        name: [name] for name in ("shard-default", "shard-orders", "shard-products")
    }
    assert run_command("status").stdout.count("gateway g shard shard-") == 3
    done = json.loads(run_command("migrate", "--json").stdout)
    assert {name: [each["database"] for each in own] for name, own in done.items()} == {
        name: ["log.db", "state.db"] for name in found
    }
    old, newer = tmp_path / "staging" / "state.db", tmp_path / "products" / "log.db"
    for file, version in ((old, 1), (newer, 99)):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
    refused = run_command("migrate")
    assert "99" in refused.output + str(refused.exception)
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,), "no shard is upgraded if one is rejected"
    for words in (["--shard", "shard-orders"], []):
        refused = run_command("rebuild", "--from-lake", *words, "--staging", f"sqlite://{tmp_path / 'elsewhere'}")
        assert (refused.exit_code, "leave out --staging" in refused.output) == (2, True)


def test_pages_of_a_store_that_was_rebuilt_from_several_shards_lose_no_row(tmp_path, clock):
    engine = opened(tmp_path, clock)
    alice = Client("alice", "red")
    for number in range(4):
        clock.advance(5)
        for table in ("orders", "products", "notes"):  # at one time, so the shards' arrivals are equal
            alice.push(engine, write(f"{table}-{number}", table, clock, x=number))
    lake = carried(engine)
    assert len({push.arrival for push in lake.pushes("g")}) == 4
    engine.close()
    url = f"sqlite://{tmp_path / 'one'}"
    (done,) = rebuild(url, clock, lake)
    assert done.deltas == 12
    engine = Engine(open_staging(url, None, clock), clock)
    engine.open()
    expected = {f"{table}-{number}" for table in ("orders", "products", "notes") for number in range(4)}
    for limit in (1, 2, 3):
        reader = Client(f"reader-{limit}", "red")
        reader.pull(engine, limit=limit)
        assert reader.rows.keys() == expected
    engine.close()
