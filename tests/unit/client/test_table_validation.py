"""Tables that an app already has: synchronised as they are, or rejected with advice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lakesync.client.errors import TableError
from lakesync.client.sqlite import client_store
from lakesync.model.errors import ConfigurationError, SchemaError

NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}
SCHEMAS = [NOTES]
TEXTS = {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "string"}]}
RECREATED = """
    ALTER TABLE notes RENAME TO old; CREATE TABLE notes (row_id TEXT PRIMARY KEY, text, n);
    INSERT INTO notes SELECT * FROM old; DROP TABLE old; INSERT INTO notes VALUES ('c', 'new', NULL)"""


def rows(*clients):
    for _ in range(2):
        for client in clients:
            client.sync()
    first, *others = [{row["row_id"]: (row["text"], row["n"]) for row in client["notes"]} for client in clients]
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE VIEW notes AS SELECT 'a' AS row_id", "'notes' is a view in this database"),
        ("CREATE VIRTUAL TABLE notes USING fts5(row_id, text)", "'notes' is a virtual table in this database"),
        ("CREATE TABLE notes (row_id INTEGER PRIMARY KEY, text)", "declared INTEGER, which turns text into numbers"),
        ("CREATE TABLE notes (row_id UUID PRIMARY KEY, text)", "declared UUID"),
        (
            "CREATE TABLE notes (row_id TEXT PRIMARY KEY, text STRING)",
            "column 'text' of table 'notes' is declared STRING, which turns text into numbers",
        ),
        ("CREATE TABLE notes (row_id TEXT PRIMARY KEY, Text DECIMAL(10, 2))", r"declared DECIMAL\(10, 2\)"),
        ("CREATE TABLE notes (row_id TEXT PRIMARY KEY COLLATE NOCASE, text)", "without a collation of its own"),
        (
            "CREATE TABLE notes (row_id TEXT COLLATE NOCASE); CREATE UNIQUE INDEX i ON notes (row_id COLLATE binary)",
            "row_id of table 'notes' has a collation, by which different ids are equal",
        ),
        (
            "CREATE TABLE notes (id INTEGER PRIMARY KEY, row_id TEXT AS (CAST(id AS TEXT)) STORED UNIQUE, text)",
            "row_id of table 'notes' is a generated column, which cannot be written",
        ),
        ("CREATE TABLE notes (row_id TEXT, b, text, PRIMARY KEY (row_id, b))", "row_id of table 'notes' is not unique"),
        (
            "CREATE TABLE notes (row_id TEXT PRIMARY KEY, n, text AS (n || 'x'))",
            "column 'text' of table 'notes' is a generated column",
        ),
        (
            "CREATE TABLE notes (row_id PRIMARY KEY, text); INSERT INTO notes VALUES (7, 'a')",
            "a row whose row_id is 7: change it to text",
        ),
        (
            "CREATE TABLE notes (row_id TEXT PRIMARY KEY, text); INSERT INTO notes VALUES (NULL, 'a')",
            "a row whose row_id is None",
        ),
        (
            "CREATE TABLE notes (row_id TEXT PRIMARY KEY, n); INSERT INTO notes VALUES ('a', 1), ('b', 'one')",
            "row 'b' of table 'notes' has 'one' in column 'n', which takes a finite number",
        ),
    ],
)
def test_a_table_that_cannot_be_synchronised_is_rejected_when_opened(opened, sql, why):
    with pytest.raises(ConfigurationError, match=why):
        opened(sql=sql)


def test_tables_that_differ_only_in_case_are_rejected(opened):
    with pytest.raises(SchemaError, match="'notes' and 'Notes' differ only in case"):
        opened(schemas=[NOTES, {**NOTES, "table": "Notes"}])


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE notes (Row_ID VARCHAR(36) PRIMARY KEY, Text)",
        "CREATE TABLE notes (row_id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID",
        "CREATE TABLE notes (row_id TEXT PRIMARY KEY, text TEXT) STRICT",
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, row_id TEXT UNIQUE, n DEFAULT 5, text DEFAULT 'none')",
    ],
)
def test_tables_of_many_shapes_store_other_clients_changes(opened, sql):
    alice, bob = opened(sql=sql), opened("bob")
    alice.conn.execute("INSERT INTO notes (row_id, text, n) VALUES ('a', 'A', 1)")
    alice.conn.commit()
    for number in range(30):  # a page that is written in bulk; without defaults that SQLite would fill in
        bob["notes"].insert({"n": number} if number % 2 else {"text": "t"}, row_id=f"b{number}")
    found = rows(alice, bob)
    assert (found["a"], found["b1"], found["b2"]) == (("A", 1), (None, 1), ("t", None))


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE notes",
        "ALTER TABLE notes RENAME TO old_notes",
        "ALTER TABLE notes RENAME COLUMN n TO m",
    ],
)
def test_a_dropped_table_raises_and_is_filled_again_after_reopening(opened, sql):
    alice, bob = opened(), opened("bob")
    for row_id in "abc":
        alice["notes"].insert({"text": row_id, "n": 3}, row_id=row_id)
    alice.sync()
    alice["notes"].update("a", n=4)
    alice.pending()
    alice["notes"].update("b", n=5)  # in the journal alone
    alice.conn.execute(sql)
    alice.conn.commit()
    with pytest.raises(TableError, match=r"dropped, recreated or altered .* close the database and open"):
        alice.sync()
    assert not alice.status.last_error.retryable
    alice.close()
    alice = opened()
    assert rows(alice, bob) == {"a": ("a", 4), "b": ("b", 5), "c": ("c", 3)}


def test_a_recreated_table_is_tracked_again_and_repaired(opened):
    alice, bob = opened(), opened("bob")
    for row_id in "abc":
        alice["notes"].insert({"text": row_id}, row_id=row_id)
    alice.sync()
    alice["notes"].update("a", text="unsent")
    alice.conn.executescript(
        """CREATE TABLE made (row_id TEXT PRIMARY KEY, text, n, mine);
        INSERT INTO made (row_id, text, n) SELECT * FROM notes WHERE row_id <> 'b';
        INSERT INTO made (row_id, text) VALUES ('d', 'new');
        DROP TABLE notes;
        ALTER TABLE made RENAME TO notes;"""
    )
    with pytest.raises(
        TableError, match=r"'notes' was dropped, recreated or altered .* close the database and open it"
    ):
        alice.sync()
    alice.close()
    alice = opened()
    alice["notes"].update("c", n=1)
    assert rows(alice, bob) == {"a": ("unsent", None), "b": ("b", None), "c": ("c", 1), "d": ("new", None)}


@pytest.mark.parametrize("declared", ["", "ANY", "VARCHAR(80)", "BLOB", "DATETIME", "DATE", "TIMESTAMP"])
def test_a_string_column_may_have_any_declared_type_that_leaves_its_text_unchanged(opened, declared):
    alice, bob = opened(sql=f"CREATE TABLE notes (row_id TEXT PRIMARY KEY, text {declared})"), opened("bob")
    bob["notes"].insert({"text": "2026-11-28"}, row_id="a")
    assert rows(bob, alice) == {"a": ("2026-11-28", None)}


def test_a_file_with_a_string_column_that_turns_text_into_numbers_can_still_be_opened(opened, monkeypatch):
    """Earlier versions accepted it."""
    with monkeypatch.context() as now:
        now.setattr(client_store, "check_text_columns", lambda *_: None)
        opened(sql="CREATE TABLE notes (row_id TEXT PRIMARY KEY, text STRING)").close()
    opened().sync()


def test_a_row_replaced_by_another_unique_column_is_deleted_everywhere_with_recursive_triggers(opened):
    alice = opened(sql="CREATE TABLE notes (row_id TEXT PRIMARY KEY, text UNIQUE)")
    bob = opened("bob")
    alice["notes"].insert({"text": "one"}, row_id="a")
    assert rows(alice, bob) == {"a": ("one", None)}
    alice.conn.execute("PRAGMA recursive_triggers = ON")
    alice.conn.execute("INSERT OR REPLACE INTO notes (row_id, text) VALUES ('b', 'one')")
    alice.conn.commit()
    assert rows(alice, bob) == {"b": ("one", None)}


COUNTED = """CREATE TABLE notes (row_id TEXT PRIMARY KEY, text, n DEFAULT 0);
CREATE TABLE log (text);
CREATE TRIGGER logged AFTER UPDATE ON notes BEGIN INSERT INTO log VALUES (NEW.text); END;
CREATE TRIGGER said AFTER DELETE ON notes BEGIN INSERT INTO log VALUES ('delete from notes'); -- into notes
END;
CREATE TRIGGER counted AFTER UPDATE OF text ON notes {}
begin UPDATE OR/**/IGNORE "notes" SET n = OLD.n + 1 WHERE row_id = NEW.row_id; END;"""


def test_a_trigger_that_writes_on_remote_changes_is_rejected_and_a_guarded_one_is_accepted(opened):
    with pytest.raises(
        ConfigurationError, match="trigger 'counted' writes into table 'notes', also while other clients'"
    ):
        opened("carl", COUNTED.format(""))
    guarded = COUNTED.format("WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet)")
    alice, bob = opened("alice", guarded), opened("bob", guarded)
    alice["notes"].insert({"text": "a"}, row_id="t")
    rows(alice, bob)
    alice["notes"].update("t", text="b")
    assert rows(alice, bob) == {"t": ("b", 1)}
    assert bob.query("SELECT text FROM log")


STAMPED = {**NOTES, "columns": [*NOTES["columns"], {"name": "updated_at", "type": "number"}]}
STAMP = """CREATE TABLE notes (row_id TEXT PRIMARY KEY, text, n, updated_at, touched INTEGER DEFAULT 0);
INSERT INTO notes (row_id, text) VALUES ('old', 'o');
CREATE TRIGGER stamped AFTER UPDATE ON notes WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet)
BEGIN UPDATE notes SET updated_at = coalesce(OLD.updated_at, 0) + 1, touched = 1 WHERE row_id = NEW.row_id; END;"""


@pytest.mark.parametrize("schema", [NOTES, STAMPED], ids=["of the app", "synchronised"])
def test_the_documented_updated_at_trigger_fires_on_every_update(opened, tmp_path, schema):
    alice, bob = opened(sql=STAMP, schemas=[schema]), opened("bob", sql=STAMP.replace("'old'", "'bobs'"))
    alice.conn.execute("UPDATE notes SET text = 'first' WHERE row_id = 'old'")
    alice.conn.commit()
    alice["notes"].update("old", n=1)
    alice["notes"].insert({"text": "new"}, row_id="new")
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.execute("UPDATE notes SET n = 2 WHERE row_id = 'new'")
        db.commit()
    stamps = "SELECT row_id, updated_at, touched FROM notes ORDER BY row_id"
    assert alice.conn.execute(stamps).fetchall() == [("new", 1, 1), ("old", 2, 1)]
    values = {"new": {"text": "new", "n": 2, "updated_at": 1}, "old": {"text": "first", "n": 1, "updated_at": 2}}
    names = {column["name"] for column in schema["columns"]}
    expected = {row: {name: value for name, value in cells.items() if name in names} for row, cells in values.items()}
    assert {edit.delta.row_id: edit.values for edit in alice.pending()} == expected
    for client in (alice, bob, alice, bob):
        client.sync()
    assert bob.conn.execute("SELECT count(*) FROM notes WHERE touched").fetchone() == (0,), "only its own writes count"
    alice["notes"].update("new", text="newer")
    assert [edit.values.keys() for edit in alice.pending()] == [{"text", "updated_at"} & names]


def test_a_constraint_that_rejects_remote_rows_is_named_and_nothing_is_lost(opened):
    alice, bob = opened(sql="CREATE TABLE notes (row_id TEXT PRIMARY KEY, text TEXT NOT NULL, n)"), opened("bob")
    alice["notes"].insert({"text": "mine"}, row_id="a")
    bob["notes"].insert({"n": 1}, row_id="b")
    bob.sync()
    with pytest.raises(TableError, match=r"NOT NULL constraint failed: notes\.text: remove that constraint"):
        alice.sync()
    assert isinstance(alice.status.last_error, TableError)
    bob["notes"].update("b", text="there now")
    bob.sync()
    assert rows(alice, bob) == {"a": ("mine", None), "b": ("there now", 1)}


TASKS = {"table": "tasks", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}


@pytest.mark.parametrize("sql", ["", "DROP TABLE tasks", "DROP TABLE tasks; CREATE TABLE tasks (id INTEGER)"])
def test_a_table_without_a_schema_argument_stays_synchronised_until_dropped(opened, sql):
    both = [NOTES, TASKS]
    alice, bob = opened(schemas=both), opened("bob", schemas=both)
    for row_id in ("changed", "deleted"):
        alice["tasks"].insert({"text": "one", "n": 1}, row_id=row_id)
    rows(alice, bob)
    bob.close()
    alice["tasks"].update("changed", n=2)
    alice["tasks"].delete("deleted")
    alice["tasks"].insert({"text": "new"}, row_id="new")
    bob = opened("bob", sql)
    rows(alice, bob)
    bob.close()
    bob = opened("bob", "DROP TABLE IF EXISTS tasks" if sql else "", schemas=both)
    rows(alice, bob)
    assert bob["tasks"].rows() == [
        {"row_id": "changed", "text": "one", "n": 2},
        {"row_id": "new", "text": "new", "n": None},
    ]


def test_records_of_the_earlier_shared_table_are_migrated(opened):
    alice, bob = opened(), opened("bob")
    for row_id in ("a", "b"):
        alice["notes"].insert({"text": "one", "n": 1}, row_id=row_id)
    rows(alice, bob)
    bob["notes"].update("a", text="bob's")
    assert [edit.delta.row_id for edit in bob.pending()] == ["a"]
    bob.close()
    alice["notes"].update("a", n=2)
    alice["notes"].delete("b")
    old = "INSERT INTO _lakesync_known SELECT 'notes', * FROM _lakesync_known_notes; DROP TABLE _lakesync_known_notes"
    bob = opened("bob", old)
    assert rows(alice, bob) == {"a": ("bob's", 2)}
    assert bob.conn.execute("SELECT count(*) FROM _lakesync_known").fetchone() == (0,)


FORMER = (Path(__file__).parents[2] / "vectors" / "client_file_of_november.sql").read_text()
"""A file of a version whose triggers stored only rows before a change: one change is recorded, three are not."""


@pytest.mark.parametrize("remade", ["", "DROP TABLE notes"])
def test_a_file_of_an_earlier_version_keeps_its_unsent_changes(opened, remade):
    alice, bob = opened(sql=FORMER + remade), opened("bob")
    written = [(edit.delta.op, edit.delta.row_id, edit.values) for edit in alice.pending()]
    recorded = ("INSERT", "new", {"text": "new", "n": 2})
    later = [("UPDATE", "new", {"n": 3}), ("INSERT", "other", {"text": "other"})]
    assert written == [recorded, *([] if remade else later)], "in that version, only the table had unrecorded writes"
    alice["notes"].delete("new")
    expected = {} if remade else {"other": ("other", None)}
    assert rows(alice, bob) == expected
    alice.close()
    assert rows(opened(), bob) == expected


def test_invalid_utf8_is_escaped_and_pushed(opened):
    alice, bob = opened(), opened("bob")
    alice["notes"].insert({"text": "one"}, row_id="a")
    alice.sync()
    for statement in (
        "INSERT INTO notes (row_id, text) VALUES ('latin', CAST(x'436166e9' AS TEXT))",
        "UPDATE notes SET text = CAST(x'ff' AS TEXT) WHERE row_id = 'a'",
        "INSERT INTO notes (row_id, text) VALUES (CAST(x'6964ff' AS TEXT), 'id')",
        "INSERT INTO notes (row_id, text) VALUES (CAST(x'ff' AS TEXT), 'gone')",
        "DELETE FROM notes WHERE row_id = CAST(x'ff' AS TEXT)",
    ):
        alice.conn.execute(statement)
    alice.conn.commit()
    expected = {"a": (r"\xff", None), "latin": (r"Caf\xe9", None), r"id\xff": ("id", None)}
    assert rows(alice, bob) == expected
    alice["notes"].update("latin", text="Café")
    assert rows(alice, bob) == {**expected, "latin": ("Café", None)}


def test_invalid_utf8_in_an_existing_table_is_named_when_opened(opened):
    with pytest.raises(
        ConfigurationError, match=r"row 'a' of table 'notes' has text in column 'text' that is not valid UTF-8"
    ):
        opened(
            sql="CREATE TABLE notes (row_id TEXT PRIMARY KEY, text, n);"
            "INSERT INTO notes VALUES ('a', CAST(x'ff' AS TEXT), 1)"
        )


def columns(count):
    return [{"table": "notes", "columns": [{"name": f"c{place}", "type": "number"} for place in range(count)]}]


def test_a_row_of_more_than_a_thousand_columns_is_recorded(opened):
    alice = opened(schemas=columns(1100))
    alice["notes"].insert({"c0": 1, "c1099": 2}, row_id="a")
    alice.sync()
    alice["notes"].update("a", c1098=3)
    alice["notes"].insert(row_id="b")
    alice["notes"].delete("b")
    assert [edit.values for edit in alice.pending()] == [{"c1098": 3}]


def test_more_columns_than_sqlite_allows_are_rejected(opened):
    with pytest.raises(ConfigurationError, match=r"has 1997 columns, and SQLite allows 1996"):
        opened(schemas=columns(1997))


def test_another_clients_value_of_another_type_does_not_fail_verify(opened):
    alice, bob = opened(), opened("bob", schemas=[TEXTS])
    bob["notes"].insert({"n": "half"}, row_id="b")
    assert rows(bob, alice) == {"b": (None, "half")}
    assert not alice.verify()["notes"].differed


@pytest.mark.parametrize(
    ("sql", "schemas", "pushed"),
    [
        (RECREATED, [NOTES], {"b": (None, "half"), "c": ("new", None)}),
        (RECREATED, [], {"b": (None, "half"), "c": ("new", None)}),
        (
            "ALTER TABLE notes ADD COLUMN more; UPDATE notes SET more = 'm'",
            [{**NOTES, "columns": [*NOTES["columns"], {"name": "more", "type": "string"}]}],
            {"b": (None, "half")},
        ),
    ],
)
def test_another_clients_value_of_another_type_does_not_fail_opening(opened, tmp_path, sql, schemas, pushed):
    alice, bob = opened(), opened("bob", schemas=[TEXTS])
    bob["notes"].insert({"n": "half"}, row_id="b")
    rows(bob, alice)
    alice.close()
    with closing(sqlite3.connect(tmp_path / "alice.db")) as own:
        own.executescript(sql)
    assert rows(opened(schemas=schemas), bob) == pushed
