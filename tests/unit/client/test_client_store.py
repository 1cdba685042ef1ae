"""The contents of the SQLite store in the app's database."""

import sqlite3
from contextlib import closing

import msgspec
import pytest
from msgspec import Raw

from lakesync.client.core import ClientCore, LocalChange
from lakesync.client.sqlite.bulk_changes import DROP_TRIGGERS_FROM
from lakesync.client.sqlite.client_store import SqliteClientStore
from lakesync.client.sqlite.sql_values import from_sql, round_trips, to_sql
from lakesync.client.sqlite.stamps import Layout
from lakesync.model.delta import jcs_raw
from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.model.schema import Column, parse_schema
from lakesync.model.types import PushResult
from tests.unit.client.core_support import delta, error_answer, page

SCHEMA = parse_schema({"table": "t", "columns": [{"name": "x", "type": "number"}, {"name": "y", "type": "string"}]})
NEW_ROW = delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", -5, y="one")


@pytest.fixture
def db():
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


def greeted(db, *deltas):
    core = ClientCore(SqliteClientStore(db, [SCHEMA]), "me", monotonic=lambda: 0.0)
    core.request_pull()
    core.next_request()
    core.receive(error_answer("NOT_FOUND"))
    core.next_request()
    core.receive(page(1000, *deltas))
    return core


def kept(db):
    (found,) = db.execute("SELECT stamps, whole FROM _lakesync_known_t").fetchall()
    return found


def test_only_stamps_are_stored_for_a_settled_row(db):
    greeted(db, *NEW_ROW)
    stamps, whole = kept(db)
    assert whole is None
    parts = SqliteClientStore(db, [SCHEMA]).stamp_codec.decode(stamps).parts
    assert [part[1:] for part in parts] == [("other", ("x",)), ("other", ("y",))]
    assert len(stamps) == 28
    assert db.execute("SELECT * FROM t").fetchall() == [("r1", 1, "one")]


def test_a_row_with_an_edit_is_stored_whole_and_settles_when_accepted(db):
    core = greeted(db, *NEW_ROW)
    core.record([LocalChange("t", "r1", {"x": 1, "y": "one"}, {"x": 2})])
    assert kept(db)[0] is None
    assert b'"one"' in kept(db)[1]
    core.next_request()
    core.receive(PushResult(1, 1))
    assert kept(db)[1] is None
    assert db.execute("SELECT * FROM t").fetchall() == [("r1", 2, "one")]


def test_a_dropped_edit_restores_the_row(db):
    core = greeted(db, *NEW_ROW)
    (number,) = core.record([LocalChange("t", "r1", {"x": 1, "y": "one"}, None)]).edits
    assert db.execute("SELECT * FROM t").fetchall() == []
    core.drop([number])
    assert db.execute("SELECT * FROM t").fetchall() == [("r1", 1, "one")]


def test_a_value_that_its_column_cannot_hold_is_stored_in_the_record(db):
    greeted(db, delta("INSERT", "r1", 0, x="no number", unknown=[1]))
    assert kept(db)[0] is None
    (row,) = SqliteClientStore(db, [SCHEMA]).known({("t", "r1")}).values()
    assert {name: bytes(value) for name, value in row.state.values().items()} == {
        "x": b'"no number"',
        "unknown": b"[1]",
    }


def test_rows_of_a_table_without_a_schema_are_stored(db):
    core = ClientCore(SqliteClientStore(db, []), "me")
    core.record([LocalChange("t", "r1", None, {"x": 1})])
    assert [edit.delta.row_id for edit in core.edits()] == ["r1"]
    assert db.execute("SELECT name FROM sqlite_master WHERE name = 't'").fetchall() == []


def test_a_commit_joins_the_apps_transaction_and_is_rolled_back_with_it(db):
    core = greeted(db, *NEW_ROW)
    db.execute("BEGIN")
    core.record([LocalChange("t", "r2", None, {"x": 2})])
    db.execute("ROLLBACK")
    assert db.execute("SELECT row_id FROM t").fetchall() == [("r1",)]
    assert core.edits() == []


@pytest.mark.parametrize("inside", [False, True])
def test_a_failed_commit_stores_nothing(db, inside):
    core = greeted(db, *NEW_ROW)
    db.execute("CREATE TRIGGER full BEFORE INSERT ON _lakesync_known_t BEGIN SELECT RAISE(ABORT, 'full'); END")
    if inside:
        db.execute("BEGIN")
        db.execute("INSERT INTO t (row_id) VALUES ('the app own')")
    core.request_pull()
    core.next_request()
    with pytest.raises(sqlite3.IntegrityError, match="full"):
        core.receive(page(2000, delta("INSERT", "r2", 0, x=1)))
    assert db.in_transaction == inside
    assert db.execute("SELECT row_id FROM t WHERE row_id = 'r2'").fetchall() == []
    assert SqliteClientStore(db, [SCHEMA]).position().cursor == 1000


def test_a_row_deleted_without_tracking_is_an_integrity_error(db):
    core = greeted(db, *NEW_ROW)
    db.execute("DROP TRIGGER _lakesync_t_deleted")
    db.execute("DELETE FROM t")
    with pytest.raises(IntegrityError, match="row 'r1' of table 't' was deleted without change tracking"):
        core.record([LocalChange("t", "r1", {"x": 1}, {"x": 2})])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("string", '"żółć \\u0000 🎉"'),
        ("string", "null"),
        ("number", "-12.5e-7"),
        ("number", "9007199254740993"),
        ("number", "1.0"),
        ("number", "100000000000000000000000"),
        ("boolean", "true"),
        ("boolean", "false"),
        ("json", '{"b":[1,{"a":null}]}'),
        ("json", '"text"'),
        ("json", "7"),
        ("null", "null"),
    ],
)
def test_a_value_survives_the_round_trip_through_its_column(db, kind, text):
    raw = Raw(text.encode())
    assert round_trips(kind, raw)
    store = SqliteClientStore(db, [parse_schema({"table": "v", "columns": [{"name": "c", "type": kind}]})])
    assert store.edits() == []
    db.execute("INSERT INTO v (row_id, c) VALUES ('r', ?)", (to_sql(kind, raw),))
    (cell,) = db.execute("SELECT c FROM v").fetchone()
    assert jcs_raw(from_sql(kind, cell)) == jcs_raw(raw)


@pytest.mark.parametrize(
    ("kind", "text"), [("string", "1"), ("number", "true"), ("number", '"1"'), ("boolean", "1"), ("null", "0")]
)
def test_a_value_of_another_type_does_not_round_trip(kind, text):
    assert not round_trips(kind, Raw(text.encode()))


def test_the_apps_writes_are_tracked_after_a_bulk_page(db):
    rows = [f"r{number}" for number in range(DROP_TRIGGERS_FROM)]
    core = greeted(db, *(delta("INSERT", row, -10, x=1, y="one") for row in rows))
    assert db.execute("SELECT count(*), sum(x) FROM t").fetchone() == (DROP_TRIGGERS_FROM, DROP_TRIGGERS_FROM)
    core.request_pull()
    core.next_request()
    core.receive(page(2000, *(delta("UPDATE", row, -5, x=2) for row in rows)))
    assert db.execute("SELECT sum(x), min(y) FROM t").fetchone() == (2 * DROP_TRIGGERS_FROM, "one")
    tracking = SqliteClientStore(db, [SCHEMA]).tracking
    assert tracking.count() == 0
    db.execute("INSERT INTO t VALUES ('mine', 7, 'seven')")
    db.execute("UPDATE t SET x = 3 WHERE row_id = 'r0'")
    db.execute("DELETE FROM t WHERE row_id = 'r1'")
    assert [(change.row_id, change.before, change.after) for change in tracking.read_journal(9)] == [
        ("mine", None, {"x": 7, "y": "seven"}),
        ("r0", {"x": 2, "y": "one"}, {"x": 3, "y": "one"}),
        ("r1", {"x": 2, "y": "one"}, None),
    ]


def test_a_schema_of_a_rolled_back_transaction_is_not_used(db):
    greeted(db, *NEW_ROW)
    store, types = SqliteClientStore(db, [SCHEMA]), [{"name": "x", "type": "number"}, {"name": "y", "type": "string"}]
    good = parse_schema({"table": "good", "columns": types})
    db.execute("CREATE TABLE bad (row_id INTEGER)")
    with pytest.raises(ConfigurationError, match="bad"):
        store.add_schemas([good, parse_schema({"table": "bad", "columns": types})])
    grown = parse_schema({"table": "t", "columns": [*types, {"name": "z", "type": "json"}]})

    def fill_the_disk():
        with store.transaction():
            store.put_gateway_schema(grown, 1)
            db.execute("CREATE TABLE large AS SELECT zeroblob(1000000)")

    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + 20}").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="full"):
        fill_the_disk()
    db.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert store.schemas == {"t": SCHEMA}
    assert not store.track_recreated_tables()
    assert not store.has_recreated_tables_after_schema_change()
    store.forget_missing()
    core = ClientCore(store, "me")
    core.request_pull()
    core.next_request()
    core.receive(page(2000, delta("INSERT", "r2", 0, x=2), delta("UPDATE", "r1", 0, x=3, z=[1])))
    store.put_gateway_schema(grown, 1)
    assert db.execute("SELECT * FROM t").fetchall() == [("r1", 3, "one", "[1]"), ("r2", 2, None, None)]


def test_a_schema_version_of_a_rolled_back_transaction_is_read_again(tmp_path):
    """Another client of the file may reach the same number with other schemas."""
    with (
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as db,
        closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other,
    ):
        store, others = SqliteClientStore(db, [SCHEMA]), SqliteClientStore(other, [SCHEMA])

        def version():
            return db.execute("PRAGMA schema_version").fetchone()

        def change_and_fail():
            with store.transaction():
                for number in range(40):
                    db.execute(f"CREATE TABLE t{number} (x)")
                store.reload_schemas()
                seen.append(version())
                raise ConfigurationError("no")

        seen = []
        with pytest.raises(ConfigurationError):
            change_and_fail()
        grown = msgspec.structs.replace(SCHEMA, columns=(*SCHEMA.columns, Column("z", "json")))
        others.add_schemas([grown])
        while version() < seen[0]:
            other.execute(f"CREATE TABLE u{version()[0]} (x)")
        store.reload_schemas()
        assert store.schemas == {"t": grown}


def test_stamp_numbers_of_a_rolled_back_transaction_are_not_used(db):
    store = SqliteClientStore(db, [SCHEMA])
    layout, elsewhere = Layout((("x",),)), Layout((("y",),))

    def fail():
        with store.transaction():
            store.stamp_codec.encode_rows(layout, [1], ["alice"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (record,) = store.stamp_codec.encode_rows(elsewhere, [2], ["bob"])
    (first,) = store.stamp_codec.encode_rows(layout, [1], ["alice"])
    assert store.stamp_codec.decode(record).parts == [(2, "bob", ("y",))]
    assert store.stamp_codec.decode(first).parts == [(1, "alice", ("x",))]
