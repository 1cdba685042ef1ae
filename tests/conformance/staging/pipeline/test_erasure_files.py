"""Erased values are in no file and no table of a store, even if other processes use the store."""

from __future__ import annotations

import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from lakesync.model.errors import StagingUnavailableError
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.staging.sqlite import file_rewrite
from tests.conformance.book import make_delta
from tests.conformance.erased_world import SECRET, World, files_with
from tests.conformance.places import postgres


def test_no_file_contains_erased_values(tmp_path, clock):
    """Neither the erased values, nor earlier values that were changed or trimmed before."""

    world = World(f"sqlite://{tmp_path / 'staging'}", clock)
    bodies = []
    needles = [f"{SECRET}-{uuid.uuid4().hex}" for _ in range(30)]
    for number, needle in enumerate(needles):
        world.write("x", "r1", name=needle)
        world.write("a", f"kept-{number}", name="kept" * 20)
        bodies += world.query("SELECT body FROM log WHERE gateway = ? AND client_id = ?", "x")
        if number == 20:
            batch = world.store.plan("g", "main", 100)
            waiting = [(day.count, day.id_sum) for day in world.store.ledger("g")]
            world.store.confirm(batch.batch_id, waiting[0][0], waiting[0][1])
            world.store.trim("g", "main")
    folder = Path(tmp_path / "staging")

    def held() -> bytes:
        return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))

    compressed = [bytes(body) for (body,) in bodies if body is not None]
    assert any(body in held() for body in compressed)
    assert needles[-1].encode() in held() or world.store.trim("g", "main") == 0
    world.store.erase_row("g", "notes", "r1")
    left = held()
    assert [needle for needle in needles if needle.encode() in left] == []
    assert [body for body in compressed if body in left] == []
    assert b"kept" in left
    assert set(world.pull("c")) == {f"kept-{n}" for n in range(30)}
    world.close()


def test_a_concurrent_reader_of_the_files_delays_an_erasure(tmp_path, clock, monkeypatch):
    """The file cannot be replaced then: the erasure fails and reports it."""

    monkeypatch.setattr(file_rewrite, "READER_SECONDS", 0.0)
    world = World(f"sqlite://{tmp_path / 'staging'}", clock)
    world.write("a", "r1", name=SECRET)
    with closing(sqlite3.connect(tmp_path / "staging" / "log.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        with pytest.raises(StagingUnavailableError, match="erase again"):
            world.store.erase_row("g", "notes", "r1")
        (pending,) = world.store.erasures("g")
        assert pending.done_ms is None
        assert world.pull("c") == {}
    done = world.store.erase_row("g", "notes", "r1")
    assert (done.seq, done.done_ms is not None) == (pending.seq, True)
    assert files_with(tmp_path / "staging", SECRET) == []
    world.close()


def test_an_erasure_takes_effect_in_every_process(request, clock):
    """One process erases while another one still has pushes of the client to commit."""
    url = postgres(request)
    one, other = World(url, clock), World(url, clock)
    late = [make_delta("x", (clock.now_ms << 16) + n, f"late{n}", name=SECRET) for n in range(20)]
    one.write("x", "r1", name=SECRET)
    one.write("a", "r2", name="kept")
    with ThreadPoolExecutor(2) as threads:
        erased = threads.submit(one.store.erase_client, "g", "x")
        pushed = [threads.submit(other.push, "x", delta) for delta in late]
        assert [each.result().accepted for each in pushed] == [1] * 20
        erased.result()
    assert other.pull("c") == {"r2": {"name": "kept"}}
    assert SECRET not in str(other.logged())
    one.close()
    other.close()


def test_no_table_of_postgres_contains_erased_values(request, clock):
    url = postgres(request)
    world = World(url, clock)
    for number in range(5):
        world.write("x", "r1", name=f"{SECRET}-{number}")
    cells = (ColumnValue.of("name", SECRET),)
    world.push("x", RowDelta("INSERT", "notes", "r1", "x", cells, (clock.now_ms << 16) + 9, "no hash"))
    world.store.erase_client("g", "x")
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'lakesync'").fetchall()
        for (table,) in tables:
            rows = connection.execute(f"SELECT t::text FROM lakesync.{table} t").fetchall()
            assert SECRET.encode().hex() not in str(rows)
            assert SECRET not in str(rows)
    assert all(SECRET not in str(delta) for delta in world.logged())
    world.close()
