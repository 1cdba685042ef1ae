"""The server's own flushes, from start to shutdown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

import pytest
from structlog.testing import capture_logs

from gateway.bootstrap import Backends
from gateway.metrics import Metrics
from lakesync import config
from lakesync.adapters import SqliteAdapter, migrate_adapter
from lakesync.engine import Engine
from lakesync.engine.housekeeping import Housekeeping
from lakesync.engine.pushing import PushRequest
from lakesync.flush import record_target
from lakesync.model.errors import FlushError
from lakesync.model.hlc import encode, wall_clock
from lakesync.model.schema import Column, TableSchema
from lakesync.model.types import SyncPush
from lakesync.staging import open_store
from tests.conformance.book import make_delta


@pytest.mark.parametrize("error", [FlushError("the backend does not answer"), OverflowError("too large")])
def test_the_engine_is_closed_although_the_last_flush_fails(monkeypatch, tmp_path, error):
    calls = []

    def fail(_):
        calls.append("flush_all")
        raise error

    monkeypatch.setattr(Housekeeping, "flush_all", fail)
    settings = config.load({"data_dir": tmp_path, "flush": {"to_uri": f"file://{tmp_path / 'lake'}"}})
    with closing(Backends(settings)) as backends:
        engine = Engine(open_store("memory://", lambda: 1), lambda: 1, outlet=backends.outlet)
        backends.engine_starter(engine, Metrics(list, dict, 1))()
        backends.finish()
        engine.close()
    assert calls == ["flush_all"]


def test_rows_that_were_flushed_to_another_adapter_are_written_after_a_migration(tmp_path):
    old, new = (f"sqlite://{tmp_path}/{name}.db" for name in ("old", "new"))
    rows = {}
    for uri, row in ((old, "r1"), (new, "r2"), (new, "r3")):
        settings = config.load({"data_dir": tmp_path, "flush": {"to_uri": uri}})
        if row == "r2":
            with (
                closing(SqliteAdapter(tmp_path / "old.db")) as source,
                closing(SqliteAdapter(tmp_path / "new.db")) as to,
            ):
                migrate_adapter(source, to)
        with closing(Backends(settings)) as backends, capture_logs() as logs:
            store = open_store(f"sqlite://{tmp_path}/staging", wall_clock)
            engine = Engine(store, wall_clock, outlet=backends.outlet)
            backends.engine_starter(engine, Metrics(list, dict, 1))()
            gateway = engine.gateway("g")
            gateway.register_schema(TableSchema("t", (Column("x", "number"),)))
            delta = make_delta("c", encode(wall_clock(), 0), row, table="t", x=1)
            gateway.submit_push(partial(PushRequest, SyncPush("c", (delta,)), {"sub": "c"})).result()
            backends.finish()
            engine.close()
        warned = any(each["event"].startswith("flush.to_uri has changed") for each in logs)
        with closing(sqlite3.connect(uri.removeprefix("sqlite://"))) as connection:
            rows[row] = (warned, {row_id for (row_id,) in connection.execute("SELECT row_id FROM t")})
    assert rows == {"r1": (False, {"r1"}), "r2": (True, {"r1", "r2"}), "r3": (False, {"r1", "r2", "r3"})}


def test_a_target_with_another_user_or_password_is_the_same():
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    named = [
        "postgresql://ann:one@h/db",
        "postgresql://bob:two@h/db",
        "postgresql://h/db",
        "postgresql://bob:two@h/other",
        "s3://b/p?secret_key=one",
        "s3://b/p?secret_key=two",
    ]
    changed = [record_target(engine.store, uri) for uri in named]
    engine.close()
    assert changed == [None, None, None, "postgresql://h/db", "postgresql://h/other", None]
