"""Destinations follow the lake: each leaf independently, each delta once, also after an outage."""

import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import dagster as dg
import msgspec
import psycopg
import pytest

import lakehouse.backends.transfers
from lakehouse.backends import destinations
from lakehouse.backends.comparison import compare
from lakehouse.backends.declared import follower_positions
from lakehouse.backends.destinations import Follower
from lakehouse.schema_snapshot import registered
from lakesync.adapters import DeltaQuery, LocalDisk, ObjectDeltas, SqliteAdapter
from lakesync.adapters.backend_config import WriteTarget
from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.adapters.sql import SqlAdapter
from lakesync.adapters.transfer.follower import DeltaSelection
from lakesync.adapters.transfer.loads import begin_load, is_announced
from lakesync.adapters.transfer.migration import MigrationScope, scope_checksum
from lakesync.analysis.marks import FollowerMark
from tests.conformance.test_adapters import everything
from tests.dagster_instance import dagster_instance
from tests.integration.dagster.destination_support import DAY, LEAVES, Moves, Warehouse, metadata_of
from tests.integration.gateway_support import until, wall_ms
from tests.postgres_server import postgres_server
from tests.run_support import a_run

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


@pytest.fixture(scope="module", params=[3, pytest.param(10, marks=pytest.mark.deep)])
def warehouse(request, serve, spark_server, tmp_path_factory):
    """A warehouse with as many flushes as during an outage of Postgres."""
    with dagster_instance() as instance, postgres_server() as postgres:
        yield Warehouse(
            serve(), spark_server["config"], instance, tmp_path_factory.mktemp("warehouse"), postgres, request.param
        )


def test_an_unreachable_adapter_does_not_delay_others_and_catches_up_later(warehouse):
    warehouse.flush([("flights", range(30), {"number": 1, "name": "é"}), ("events", range(5), {"number": 1})])
    first = warehouse.follow()
    assert {name: run.success for name, run in first.items()} == dict.fromkeys(LEAVES, True)
    series = {name: metadata_of(run) for name, run in first.items()}
    assert {name: each["deltas_in"] for name, each in series.items()} == {"pg": 30, "copy": 30, "objects": 5}
    assert all(each["lag_seconds"] >= 0 for each in series.values())
    assert series["pg"]["dagster/uri"].count("postgres:…@") == 1
    assert warehouse.follow() == {}
    with psycopg.connect(warehouse.postgres.uri) as sql:
        sql.execute("UPDATE flights SET props = '{\"mine\": 1}' WHERE row_id = 'r1'")

    warehouse.postgres.halt()
    away = warehouse.flushes
    made = warehouse.flush([("flights", range(3), {"number": number}) for number in range(2, 2 + away)])
    assert len(set(made)) == away
    runs = warehouse.follow()
    (event,) = [each for each in runs["pg"].all_events if each.is_step_failure]
    assert "ADAPTER_ERROR: Postgres at postgresql://postgres:…@" in str(event.event_specific_data)
    assert [runs[name].success for name in ("pg", "copy", "objects")] == [False, True, True]
    assert metadata_of(runs["copy"])["dagster/row_count"] == 30 + 3 * away

    warehouse.postgres.restart("immediate")
    last = until(warehouse.follow, "the end of the pause")
    assert last["pg"].success
    assert metadata_of(last["pg"])["deltas_in"] == 3 * away
    assert warehouse.rows()["r1"] == (1 + away, "é", {"mine": 1})
    assert len(warehouse.rows()) == 30
    with (
        closing(PostgresAdapter(warehouse.postgres.uri)) as pg,
        closing(SqliteAdapter(warehouse.folder / "copy.db")) as copy,
    ):
        there = {"pg": pg, "copy": copy, "objects": ObjectDeltas(LocalDisk(warehouse.folder / "objects"))}
        found = {name: scope_checksum(adapter, MigrationScope()) for name, adapter in there.items()}
    assert found["pg"] == found["copy"]
    assert (found["pg"].deltas, found["objects"].deltas) == (30 + 3 * away, 5)
    assert warehouse.check() == dict.fromkeys(LEAVES, (True, []))


DAMAGES = {
    "pg": "DELETE FROM flights",
    "copy": "UPDATE lakesync_deltas SET columns = '{}' WHERE row_id = 'r2'",
}


def test_damage_at_a_destination_is_reported_by_day_and_repaired_by_rebuilding_the_day(warehouse):
    today = datetime.now(UTC).date()
    with psycopg.connect(warehouse.postgres.uri) as sql:
        sql.execute(DAMAGES["pg"])
    with closing(sqlite3.connect(warehouse.folder / "copy.db")) as sql, sql:
        sql.execute(DAMAGES["copy"])
    lost = next((warehouse.folder / "objects" / "deltas").rglob("*.parquet"))
    lost.unlink()
    assert warehouse.check() == dict.fromkeys(LEAVES, (False, [today.isoformat()]))
    for name in LEAVES:
        assert warehouse.rebuild(name, today)[today] > 0
    assert warehouse.check() == dict.fromkeys(LEAVES, (True, []))
    assert len(warehouse.rows()) == 30


def poison(warehouse, name):
    """Make a leaf unusable; return a function that repairs it."""
    if name == "pg":
        with psycopg.connect(warehouse.postgres.uri) as sql:
            sql.execute("ALTER TABLE lakesync_deltas RENAME TO hidden")

        def repair():
            with psycopg.connect(warehouse.postgres.uri) as sql:
                sql.execute("ALTER TABLE hidden RENAME TO lakesync_deltas")

        return repair
    path = warehouse.folder / {"copy": "copy.db", "objects": "objects"}[name]
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    path.write_text("neither a database nor a folder")

    def put_back():
        path.unlink()
        aside.rename(path)

    return put_back


def test_b11_a_failing_adapter_does_not_stop_the_others(warehouse):
    for number, poisoned in enumerate(LEAVES):
        repair = poison(warehouse, poisoned)
        pushed = [("flights", range(3), {"number": number}), ("planes", range(2), {"number": number})]
        warehouse.flush([*pushed, ("events", range(2), {"number": number})])
        runs = {name: warehouse.run(name) for name in LEAVES}
        assert {name: run.success for name, run in runs.items()} == {name: name != poisoned for name in LEAVES}
        assert all(metadata_of(run)["lag_seconds"] < 120 for name, run in runs.items() if name != poisoned)
        repair()
        assert warehouse.run(poisoned).success
        assert {name: warehouse.compare(name).is_equal for name in LEAVES} == dict.fromkeys(LEAVES, True)


def followers_when(warehouse, now_ms):
    """The leaf at Postgres, as the sensors see it at that time."""
    found = follower_positions(warehouse.config, warehouse.engine.store, lambda: now_ms)
    return [each for each in found if each.name.endswith("/pg")]


def test_b11_a_failing_table_does_not_stop_the_others(warehouse):
    def sql(*statements):
        with psycopg.connect(warehouse.postgres.uri) as connection:
            for statement in statements:
                connection.execute(statement)

    warehouse.flush([(table, [0], {"number": 99}) for table in ("flights", "planes")])
    assert warehouse.run("pg").success
    for number, poisoned in enumerate(("flights", "planes"), 100):
        other = {"flights": "planes", "planes": "flights"}[poisoned]
        sql(f"ALTER TABLE {poisoned} RENAME TO mine", f"CREATE TABLE {poisoned} (owner text)")
        warehouse.flush([(table, [0], {"number": number}) for table in ("flights", "planes")])
        done = warehouse.run("pg")
        assert done.success
        assert list(metadata_of(done)["set_aside"]) == [poisoned]
        with psycopg.connect(warehouse.postgres.uri) as connection:
            found = connection.execute(f"SELECT number FROM {other} WHERE row_id = 'r0'").fetchall()
        assert found == [(number,)]
        text = warehouse.engine.store.marks()["destinations/warehouse/pg"]
        mark = msgspec.json.decode(text, type=FollowerMark)
        assert 0 < mark.retry_ms - wall_ms() <= 60_000
        assert (mark.suspended, mark.dead_letters) == ((poisoned,), {})
        (now,), (then,) = (followers_when(warehouse, ms) for ms in (mark.retry_ms - 1, mark.retry_ms))
        assert now.streams == mark.streams
        assert all(then.streams[name] < arrival for name, arrival in mark.streams.items()), "the sensor requests a run"
        (set_back,) = followers_when(warehouse, mark.retry_ms - 7_200_000)
        assert set_back == then, "the clock was set back by two hours, which delays no attempt"
        compared = warehouse.compare("pg")
        assert not compared.is_equal
        assert [each.table for each in compared.suspended] == [poisoned]
        sql(f"DROP TABLE {poisoned}", f"ALTER TABLE mine RENAME TO {poisoned}")
        with closing(PostgresAdapter(warehouse.postgres.uri)) as adapter:
            adapter.retry_tables("destinations/warehouse/pg", [poisoned])  # instead of after the pause
        again = metadata_of(warehouse.run("pg"))
        assert (again["set_aside"], again["deltas_in"]) == ({}, 0)
        assert warehouse.compare("pg").is_equal


def test_a_large_backlog_is_written_by_several_tasks(warehouse, monkeypatch):
    monkeypatch.setattr(destinations, "_MIN_DELTAS_PER_PART", 20)
    with psycopg.connect(warehouse.postgres.uri, autocommit=True) as sql:
        sql.execute("CREATE SCHEMA late")
    uri = f"{warehouse.postgres.uri}?options=-csearch_path%3Dlate"
    schemas = registered(warehouse.engine.store).tables
    late = Follower("late", WriteTarget("late", uri), DeltaSelection(without=("events",)), schemas)
    with a_run(warehouse.config) as run, closing(late.open()) as adapter:
        spark, names = run.pyspark.spark_session, run.lake.names
        run.pyspark.start_measuring()
        with only_in_tasks(monkeypatch):
            first = destinations.follow(spark, late, names)
        assert run.pyspark.job_figures().tasks > 2  # tasks that moved rows, and the few of the plan
        assert (first.tasks, first.deltas, first.is_behind) == (2, first.progress.deltas, False)
        assert first.deltas >= 30
        assert compare(spark, late, names).is_equal
        assert destinations.follow(spark, late, names).tasks == 0

        begin_load(
            adapter, late.name, late.selection, first.progress.streams, 2, schemas
        )  # by a run that was killed at that point
        warehouse.flush([("flights", range(25, 40), {"number": 99})])
        again = destinations.follow(spark, late, names)
        assert (again.tasks, again.deltas, again.is_behind, again.progress.load) == (3, 15, False, None)
        assert not is_announced(adapter, late.name)
        assert compare(spark, late, names).is_equal
        found = scope_checksum(adapter, MigrationScope())
        assert (again.progress.deltas, again.progress.id_sum) == (found.deltas, found.id_sum)
    with psycopg.connect(uri) as sql:
        rows = dict(sql.execute("SELECT row_id, number FROM flights").fetchall())
    assert len(rows) == 40
    assert {row for row, number in rows.items() if number == 99} == {f"r{row}" for row in range(25, 40)}


@contextmanager
def only_in_tasks(monkeypatch):
    """In this process, which runs the step, no adapter may read or write deltas; tasks run in other processes."""

    def refuse(*_, **__):
        raise AssertionError("the step moved rows itself")

    with monkeypatch.context() as patched:
        for adapter in (SqlAdapter, ObjectDeltas):
            for method in ("query_arrow", "insert_arrow", "apply_arrow"):
                patched.setattr(adapter, method, refuse)
        yield


def test_flows_tiers_and_migrations_run_on_executors(warehouse, tmp_path, monkeypatch):
    moves = Moves(warehouse, tmp_path)
    moves.fill(moves.old, range(40), -3, carrier="AA", delay=1)
    moves.fill(moves.old, range(40, 60), -1, carrier="UA", delay=2)
    first = moves.carry("flows_american")
    assert (first["scanned"], first["deltas_in"]) == (60, 40)
    moves.fill(moves.old, [0], 0, carrier="UA")  # leaves the filter
    moves.fill(moves.old, [50], 0, carrier="AA")  # enters the filter
    moves.carry("flows_american")
    there = SqliteAdapter(tmp_path / "slice.db")
    held = {stored.delta.row_id for stored in everything(there)}
    whole = everything(there)
    there.delete_deltas(there.query_arrow(DeltaQuery(until=(moves.today - 2 * DAY) << 16, limit=10)).deltas)
    assert len(everything(there)) == len(whole) - 10
    days = [f"{moves.day(number)}" for number in (-3, -2, -1)]
    assert moves.replay("flows_american", -3, -1) == {days[0]: (0, 40), days[1]: (0, 0), days[2]: (0, 1)}
    assert everything(there) == whole, "lost deltas are back, and no delta is stored twice"
    assert held == {f"r{n}" for n in range(40)} | {"r50"}
    # with its values from before it matched
    assert len([1 for stored in everything(there) if stored.delta.row_id == "r50"]) == 2

    assert moves.carry("flows_home")["deltas_in"] == 62
    assert warehouse.engine.gateway("home").buffer_stats().log_size > 0
    assert moves.carry("flows_home")["deltas_in"] <= 2  # read again by the lookback, and known
    home, columns = warehouse.engine.gateway("home"), [{"name": "carrier", "type": "string"}]
    home.register_schema({"table": "flights", "columns": columns})
    pushed = home.buffer_stats().log_size
    moves.fill(moves.old, [51], 0, unknown="x")
    moves.fill(moves.old, [52], 0, carrier="AA")
    with pytest.raises(dg.Failure, match="rejected 1 deltas, and the flow copied the others"):
        moves.carry("flows_home")
    assert home.buffer_stats().log_size == pushed + 1

    hot = SqliteAdapter(tmp_path / "hot.db")
    for day in (-4, -3, -1):
        moves.fill(hot, range(30), day, delay=day)
    monkeypatch.setattr(lakehouse.backends.transfers, "DELTAS_PER_RANGE", 12)
    with only_in_tasks(monkeypatch):
        tiered = moves.run("tiers_aged", partition_key=f"{moves.day(-3)}")
    assert (tiered["deltas_moved"], tiered["spark/tasks"], tiered["pages"]) == (60, 5, 5)
    cold = ObjectDeltas(LocalDisk(tmp_path / "cold"))
    assert (scope_checksum(hot, MigrationScope()).deltas, scope_checksum(cold, MigrationScope()).deltas) == (30, 60)

    asset = moves.definitions.resolve_asset_graph().get(dg.AssetKey(["migrations", "away"])).assets_def
    with only_in_tasks(monkeypatch):
        done = dg.materialize([asset], instance=moves.instance, partition_key=f"{moves.day(-3)}|flights")
    assert (metadata_of(done)["copied"], metadata_of(done)["spark/tasks"], metadata_of(done)["pages"]) == (40, 4, 4)
    assert scope_checksum(ObjectDeltas(LocalDisk(tmp_path / "new")), MigrationScope()).deltas == 40
    for each in (moves.old, there, hot):
        each.close()
