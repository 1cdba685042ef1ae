"""A table or value that a destination rejects delays no others, is listed, and is written when it becomes possible."""

from __future__ import annotations

import psycopg
import pymysql
import pytest
from msgspec.structs import replace

from lakesync.adapters import DeltaQuery, SqliteAdapter
from lakesync.adapters.backends import mysql, postgres
from lakesync.adapters.base import LONGEST_PAUSE_MS
from lakesync.adapters.digests import DigestScope
from lakesync.adapters.transfer import table_rewrites
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history, read_follower_progress
from lakesync.adapters.uri import BackendUri
from lakesync.model.errors import AdapterError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import parse_schema
from tests.conformance.adapter_places import DATABASES, SERVERS, start_server
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history
from tests.conformance.test_adapter_tables import NOTES, rows
from tests.conformance.test_adapters import batch, everything

LINES = parse_schema({"table": "lines", "columns": [{"name": "n", "type": "number"}, {"name": "j", "type": "json"}]})
BOTH = [NOTES, LINES]
TRANSACTIONAL = ("sqlite", "postgres", "mariadb")


_ENDLESS = "SELECT SUM(a.seq + b.seq) FROM seq_1_to_1000000 a JOIN seq_1_to_1000000 b"


@pytest.fixture(params=TRANSACTIONAL)
def adapter(request, tmp_path):
    start_server(request)
    opened = DATABASES[request.param](tmp_path)
    yield opened
    opened.close()


def pushes(count, start=1):
    """Pushes of both tables."""
    return [
        (
            "g",
            256 * number,
            [
                make_delta("c", number, f"n{number}", title=f"t{number}"),
                make_delta("c", number, "l", "lines", n=number),
            ],
        )
        for number in range(start, start + count)
    ]


def follow(adapter, made, schemas=BOTH):
    return list(follow_history(adapter, "leaf", DeltaSelection(), history(made), schemas))


def sql(adapter, statement):
    with adapter._executor.connect() as connection:
        connection.execute(statement)


def test_b11_a_table_that_cannot_be_created_does_not_block_others_and_is_retried(adapter, monkeypatch):
    sql(adapter, "CREATE TABLE notes (owner VARCHAR(80))")  # a table of the operator
    follow(adapter, pushes(3))
    assert float(rows(adapter, "lines")["l"]["n"]) == 3
    assert read_follower_progress(adapter, "leaf", DeltaSelection()).deltas == len(everything(adapter)) == 6
    (aside,) = adapter.suspended_tables("leaf")
    assert (aside.table, aside.failures, "was not created by LakeSync" in aside.reason) == ("notes", 1, True)
    follow(adapter, pushes(4))  # its next attempt is not due yet
    assert float(rows(adapter, "lines")["l"]["n"]) == 4
    with monkeypatch.context() as patched:
        patched.setattr(table_rewrites, "wall_clock", lambda: wall_clock() - 2 * LONGEST_PAUSE_MS)
        follow(adapter, pushes(4))
    assert [each.failures for each in adapter.suspended_tables("leaf")] == [2], "the clock was set back by two hours"
    adapter.retry_tables("leaf", ["notes"])
    follow(adapter, pushes(4))
    assert [each.failures for each in adapter.suspended_tables("leaf")] == [3]
    sql(adapter, "DROP TABLE notes")
    adapter.retry_tables("leaf", ["notes"])
    follow(adapter, pushes(4))
    assert adapter.suspended_tables("leaf") == []
    assert rows(adapter).keys() == {f"n{number}" for number in range(1, 5)}
    follow(adapter, pushes(5))
    assert "n5" in rows(adapter)


def test_b11_a_dropped_table_is_filled_again(adapter):
    """The next delta created the table again with its own row alone, and no check before the nightly audit found it."""
    follow(adapter, pushes(3))
    sql(adapter, "DROP TABLE notes")
    follow(adapter, pushes(4))
    assert rows(adapter).keys() == {f"n{number}" for number in range(1, 5)}
    assert float(rows(adapter, "lines")["l"]["n"]) == 4
    assert adapter.suspended_tables("leaf") == []


@pytest.mark.parametrize("left", [[LINES], []], ids=["schema retired", "no rows"])
def test_b11_a_table_that_is_no_longer_a_destination_table_is_not_suspended(adapter, left):
    sql(adapter, "CREATE TABLE notes (owner VARCHAR(80))")
    follow(adapter, pushes(2))
    assert [each.table for each in adapter.suspended_tables("leaf")] == ["notes"]
    follow(adapter, pushes(3), left)
    assert adapter.suspended_tables("leaf") == [], "no run retries it, so it would always be due"
    sql(adapter, "DROP TABLE notes")
    follow(adapter, pushes(4))
    assert rows(adapter).keys() == {f"n{number}" for number in range(1, 5)}


def test_b11_a_destination_table_has_the_rows_of_one_synced_table(adapter):
    """A second table with the same `sourceTable` would overwrite them, because both may have rows with one id."""
    todo = parse_schema({"table": "todo", "sourceTable": "notes", "columns": [{"name": "due", "type": "string"}]})
    of_todo = [make_delta("c", 7, "n1", "todo", due="now"), make_delta("c", 8, "n2", "todo")]
    made = [*pushes(2), ("g", 1024, of_todo)]
    follow(adapter, made, [todo, NOTES])
    assert {row: cells["due"] for row, cells in rows(adapter).items()} == {"n1": "now"}
    (aside,) = adapter.suspended_tables("leaf")
    assert (aside.table, "with the rows of 'todo'" in aside.reason) == ("notes", True)
    scope = DigestScope(schemas=(todo, NOTES), days=(0,))
    assert adapter.remove_orphan_rows(scope) == 0
    assert rows(adapter).keys() == {"n1"}
    sql(adapter, "DROP TABLE notes")
    adapter.retry_tables("leaf", ["notes"])
    follow(adapter, made, [NOTES])
    assert rows(adapter).keys() == {"n1", "n2"}
    assert adapter.suspended_tables("leaf") == []


def test_tables_whose_names_differ_in_case_are_one_in_sqlite(tmp_path):
    adapter = SqliteAdapter(tmp_path / "leaf.db")
    other = replace(NOTES, table="Notes")
    follow(adapter, [*pushes(1), ("g", 512, [make_delta("c", 7, "n1", "Notes", title="other")])], [NOTES, other])
    assert rows(adapter)["n1"]["title"] == "t1"
    assert [each.table for each in adapter.suspended_tables("leaf")] == ["Notes"]
    adapter.close()


def lock(kind, folder):
    """Lock a table so that no other session can read it."""
    if kind == "postgres":
        held = psycopg.connect(DATABASES[kind](folder)._executor._uri)
        held.execute("LOCK TABLE notes IN ACCESS EXCLUSIVE MODE")
        return held
    server = BackendUri.parse(SERVERS["mariadb_uri"])
    database = DATABASES[kind](folder)._executor._address.path
    held = pymysql.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, database=database
    )
    with held.cursor() as cursor:
        cursor.execute("LOCK TABLES notes WRITE")
    return held


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_b11_a_locked_table_is_suspended_in_time_and_does_not_block_others(request, kind, tmp_path, monkeypatch):
    request.param = kind
    start_server(request)
    for module in (postgres, mysql):
        monkeypatch.setattr(module, "_LOCK_SECONDS", 1)
    adapter = DATABASES[kind](tmp_path)
    follow(adapter, pushes(1))
    held = lock(kind, tmp_path)
    follow(adapter, pushes(3))
    held.close()
    assert float(rows(adapter, "lines")["l"]["n"]) == 3
    (aside,) = adapter.suspended_tables("leaf")
    assert (aside.table, "lock" in aside.reason.lower()) == ("notes", True)
    assert rows(adapter).keys() == {"n1"}
    adapter.retry_tables("leaf", ["notes"])
    follow(adapter, pushes(3))
    assert rows(adapter).keys() == {"n1", "n2", "n3"}
    adapter.close()


def test_b11_a_slow_statement_is_cancelled(request, tmp_path, monkeypatch):
    monkeypatch.setattr(postgres, "_STATEMENT_SECONDS", 1)
    monkeypatch.setattr(mysql, "_STATEMENT_SECONDS", 1)
    for kind, slow in (("postgres", "SELECT pg_sleep(30)"), ("mariadb", _ENDLESS)):
        request.param = kind
        start_server(request)
        adapter = DATABASES[kind](tmp_path)
        with adapter._executor.connect() as connection, pytest.raises((psycopg.Error, pymysql.Error)) as ended:
            connection.query(slow)
        assert "time" in str(ended.value)
        adapter.close()


def test_b11_rows_that_violate_a_constraint_are_dead_letters_and_can_be_retried(adapter):
    follow(adapter, pushes(1))
    title = "title(50)" if isinstance(adapter, mysql.MySqlAdapter) else "title"
    sql(adapter, f"CREATE UNIQUE INDEX mine ON notes ({title})")
    taken = [make_delta("c", 9, "again", title="t1", size=5), make_delta("c", 9, "other", title="new", size=6)]
    made = [*pushes(1), ("g", 1024, taken)]
    follow(adapter, made)
    found = rows(adapter)
    assert found.keys() == {"n1", "again", "other"}
    assert (found["again"]["title"], float(found["again"]["size"]), found["n1"]["title"]) == (None, 5, "t1")
    (letter,) = adapter.dead_letters(10)
    assert (letter.table, letter.row_id, letter.column, letter.value) == ("notes", "again", "title", '"t1"')
    assert adapter.suspended_tables("leaf") == []
    sql(adapter, "DROP INDEX mine" + (" ON notes" if isinstance(adapter, mysql.MySqlAdapter) else ""))
    adapter.retry_tables("leaf", ["notes"])
    follow(adapter, made)
    assert rows(adapter)["again"]["title"] == "t1"
    assert (adapter.dead_letters(10), adapter.suspended_tables("leaf")) == ([], [])


def test_a_delta_that_conflicts_with_another_unique_key_is_an_error(adapter):
    adapter.insert_deltas(batch(1, make_delta("c", 1, "a")))
    sql(adapter, "CREATE UNIQUE INDEX mine ON lakesync_deltas (row_id)")
    with pytest.raises(AdapterError):
        adapter.insert_deltas(batch(2, make_delta("c", 2, "a")))
    assert len(everything(adapter)) == 1


def test_json_that_is_too_deep_for_the_database_is_a_dead_letter(adapter):
    deep = shallow = [1]
    for _ in range(40):
        deep = [deep]
    rest = [("g", 256, [make_delta("c", 1, "deep", "lines", j=deep, n=1), make_delta("c", 1, "l", "lines", j=shallow)])]
    follow(adapter, rest)
    found = rows(adapter, "lines")
    assert (float(found["deep"]["n"]), found["l"]["j"] is None) == (1, False)
    letters = [(each.row_id, each.column) for each in adapter.dead_letters(10)]
    assert letters == ([("deep", "j")] if isinstance(adapter, mysql.MySqlAdapter) else [])


@pytest.mark.parametrize("depth", range(28, 36))
def test_mariadbs_json_depth_limit_is_correct(mariadb_uri, depth, tmp_path):
    SERVERS["mariadb_uri"] = mariadb_uri
    adapter = DATABASES["mariadb"](tmp_path)
    text = "[" * depth + "]" * depth
    with adapter._executor.connect() as connection:
        ((is_valid,),) = connection.query("SELECT JSON_VALID(?)", [text])
    assert bool(is_valid) == (depth <= adapter._dialect.max_json_depth)
    adapter.close()


@pytest.mark.parametrize("kind", ["parquet on local disk", "parquet on s3"])
def test_an_object_store_accepts_a_table_selected_later(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter, made = DATABASES[kind](tmp_path), pushes(4)

    def take(*tables):
        choice = DeltaSelection(tables=tables)
        wanted = [
            (gateway, arrival, own)
            for gateway, arrival, some in made
            if (own := [delta for delta in some if not tables or delta.table in tables])
        ]
        list(follow_history(adapter, "leaf", choice, history(wanted)))
        return read_follower_progress(adapter, "leaf", choice).deltas

    assert take("notes") == 4
    assert take("notes", "lines") == 8
    assert take("lines") == 4
    assert take() == 8
    found = adapter.query_deltas_since(DeltaQuery()).deltas
    assert len(found) == len({each.identity for each in found}) == 8
    adapter.close()
