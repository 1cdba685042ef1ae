"""Tables that an app drops, recreates, renames or alters: no change is lost, and no missing row is a delete."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from lakesync.client import LocalTransport, TableError
from lakesync.model.errors import ConfigurationError

NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}
SCHEMAS = [NOTES]
MAKE = "CREATE TABLE notes (row_id TEXT PRIMARY KEY NOT NULL, text TEXT, n NUMERIC)"

WAYS = {
    "dropped": "DROP TABLE notes",
    "remade": f"DROP TABLE notes; {MAKE}",
    "remade without rowid": f"DROP TABLE notes; {MAKE} WITHOUT ROWID",
    "remade with fewer columns": "DROP TABLE notes; CREATE TABLE notes (row_id TEXT PRIMARY KEY, text)",
    "remade with a generated column": "DROP TABLE notes; CREATE TABLE notes (row_id TEXT PRIMARY KEY, text TEXT, "
    "n NUMERIC, shout AS (upper(text)))",
    "remade with some rows": f"DROP TABLE notes; {MAKE}; INSERT INTO notes VALUES ('a', 'x', 9), ('b', 'b', 1)",
    "remade with a new row": f"DROP TABLE notes; {MAKE}; INSERT INTO notes VALUES ('z', 'z', 9)",
    "copied": f"ALTER TABLE notes RENAME TO old; {MAKE}; INSERT INTO notes SELECT * FROM old; DROP TABLE old",
    "copied and emptied": f"ALTER TABLE notes RENAME TO old; {MAKE}; INSERT INTO notes SELECT * FROM old; "
    "UPDATE old SET text = 'stale', n = -1; INSERT INTO old VALUES ('stale', 'stale', 1); DELETE FROM old",
    "copied as SQLite advises": "CREATE TABLE made (row_id TEXT PRIMARY KEY, text, n, mine); "
    "INSERT INTO made (row_id, text, n) SELECT * FROM notes; DROP TABLE notes; ALTER TABLE made RENAME TO notes",
    "renamed": "ALTER TABLE notes RENAME TO old",
    "renamed and emptied": "ALTER TABLE notes RENAME TO old; DELETE FROM old",
    "renamed, emptied and dropped": "ALTER TABLE notes RENAME TO old; DELETE FROM old; DROP TABLE old",
    "renamed there and back": "ALTER TABLE notes RENAME TO old; ALTER TABLE old RENAME TO notes",
    "renamed in case": "ALTER TABLE notes RENAME TO other; ALTER TABLE other RENAME TO Notes",
    "a column renamed": "ALTER TABLE notes RENAME COLUMN n TO m",
    "a column renamed and made": "ALTER TABLE notes RENAME COLUMN n TO m; ALTER TABLE notes ADD COLUMN n",
    "a column added": "ALTER TABLE notes ADD COLUMN mine TEXT DEFAULT 'x'",
    "vacuumed": "VACUUM",
    "an index made": "CREATE INDEX by_text ON notes (text)",
}


def rows(client):
    return {row["row_id"]: (row["text"], row["n"]) for row in client["notes"]}


def unsent(client):
    return {(edit.delta.op, edit.delta.row_id): edit.values for edit in client.pending()}  # noqa: PD011 no frame


@pytest.fixture
def bob(opened):
    return opened("bob")


@pytest.fixture
def alice(opened, bob):
    """Alice, with rows that the gateway and bob have."""
    alice = opened()
    for row_id in "abcd":
        alice["notes"].insert({"text": row_id, "n": 1}, row_id=row_id)
    alice.sync()
    bob.sync()
    return alice


def change(alice):
    alice["notes"].insert({"text": "new", "n": 2}, row_id="new")
    alice["notes"].update("a", n=3)
    alice["notes"].delete("c")


CHANGES = {("INSERT", "new"): {"text": "new", "n": 2}, ("UPDATE", "a"): {"n": 3}, ("DELETE", "c"): {}}
AFTERWARDS = {"a": ("a", 3), "b": ("b", 1), "d": ("d", 1), "new": ("new", 2)}


@pytest.mark.parametrize(
    ("closed", "recorded"),
    [
        ("closed", False),
        ("killed", True),
        *(pytest.param(*each, marks=pytest.mark.deep) for each in (("closed", True), ("killed", False))),
        *(pytest.param("by another program", recorded, marks=pytest.mark.deep) for recorded in (False, True)),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_unsent_changes_survive_and_missing_rows_are_not_deletes(opened, alice, bob, tmp_path, way, closed, recorded):
    change(alice)
    if recorded:
        alice.pending()
    if closed == "by another program":
        alice.close()
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.executescript(WAYS[way])
    if closed == "closed":
        alice.close()
    alice.coordinator._session.sync_lock.release()  # as at the end of its process
    again = opened()
    new = {("INSERT", "z"): {"text": "z", "n": 9}} if way == "remade with a new row" else {}
    assert unsent(again) == {**CHANGES, **new}
    assert {row_id: row for row_id, row in rows(again).items() if row_id == "new"} == {"new": ("new", 2)}
    assert "c" not in rows(again)
    for client in (again, bob, again):
        client.sync()
    assert rows(again) == rows(bob) == {**AFTERWARDS, **({"z": ("z", 9)} if new else {})}
    again["notes"].update("b", n=7)
    again["notes"].delete("d")
    again.sync()
    bob.sync()
    assert rows(bob) == rows(again)
    assert rows(bob)["b"] == ("b", 7)
    assert "d" not in rows(bob)


@pytest.mark.parametrize("index", [False, True])
def test_a_table_replaced_by_to_sql_is_repaired_on_reopening(opened, alice, bob, index):
    change(alice)
    frame = alice.to_pandas("notes").query("row_id != 'b'")
    frame = pd.concat([frame, pd.DataFrame([{"row_id": "z", "text": "z", "n": 9}])])
    if index:
        frame.set_index("row_id").to_sql("notes", alice.conn, if_exists="replace")
    else:
        frame.to_sql("notes", alice.conn, if_exists="replace", index=False)
    alice.close()
    again = opened()
    assert unsent(again) == {**CHANGES, ("INSERT", "z"): {"text": "z", "n": 9}}
    for client in (again, bob, again):
        client.sync()
    assert rows(again) == rows(bob) == {**AFTERWARDS, "z": ("z", 9)}
    again["notes"].upsert("z", n=10)
    with pytest.raises(sqlite3.IntegrityError):
        again.conn.execute("INSERT INTO notes (row_id) VALUES ('z')")


def test_a_number_column_that_pandas_declared_text_is_repaired(opened, alice, bob):
    frame = pd.DataFrame({"row_id": ["a", "z"], "text": [None, "z"], "n": [None, None]})
    frame.to_sql("notes", alice.conn, if_exists="replace", index=False)
    alice.close()
    again = opened()
    for client in (again, bob, again):
        client.sync()
    assert rows(again) == rows(bob)
    assert rows(again)["a"] == ("a", 1)
    again["notes"].update("z", n=4)
    again.conn.execute("UPDATE notes SET n = 5 WHERE row_id = 'b'")
    again.conn.commit()
    again.sync()
    bob.sync()
    assert rows(bob) == rows(again) == {"a": ("a", 1), "b": ("b", 5), "c": ("c", 1), "d": ("d", 1), "z": ("z", 4)}


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("CREATE TABLE notes (text, n)", "has no column row_id"),
        ("CREATE TABLE notes (row_id TEXT, text, n); INSERT INTO notes VALUES ('a', 'a', 1), ('a', 'b', 2)", "unique"),
        ("CREATE TABLE notes (row_id TEXT, text, n); INSERT INTO notes VALUES (NULL, 'a', 1)", "row_id is None"),
        ("CREATE TABLE notes (row_id INTEGER, text, n)", "declared INTEGER"),
        ("CREATE VIEW notes AS SELECT 'a' AS row_id", "is a view in this database"),
    ],
)
def test_an_unusable_recreated_table_is_named_and_nothing_is_lost(opened, alice, bob, tmp_path, sql, why):
    change(alice)
    alice.conn.executescript(f"DROP TABLE notes; {sql}")
    alice.close()
    with pytest.raises(ConfigurationError, match=why):
        opened()
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.executescript("DROP VIEW notes" if "VIEW" in sql else "DROP TABLE notes")
    again = opened()
    assert unsent(again) == CHANGES
    again.sync()
    assert rows(again) == AFTERWARDS


def test_a_deleted_row_that_is_in_the_recreated_table_is_kept(opened, alice, bob):
    change(alice)
    alice.pending()
    alice["notes"].delete("d")
    alice.conn.executescript(
        f"DROP TABLE notes; {MAKE}; INSERT INTO notes VALUES ('c', 'back', 5), ('d', 'stays', 6), ('b', 'b', 1)"
    )
    alice.close()
    again = opened()
    for client in (again, bob, again):
        client.sync()
    assert rows(bob) == rows(again)
    assert (rows(bob)["c"], rows(bob)["d"]) == (("back", 5), ("stays", 6))


def test_writes_to_a_recreated_table_before_its_repair_are_kept(opened, alice, bob):
    change(alice)
    alice.conn.executescript(f"DROP TABLE notes; {MAKE}")
    alice["notes"].insert({"text": "untracked"}, row_id="u")
    assert unsent(alice) == CHANGES
    alice.close()
    again = opened()
    assert unsent(again) == {**CHANGES, ("INSERT", "u"): {"text": "untracked"}}


def test_closing_tracks_a_recreated_table_again(opened, alice, bob, tmp_path):
    change(alice)
    alice.conn.executescript(f"DROP TABLE notes; {MAKE}; INSERT INTO notes VALUES ('u', 'u', 1)")
    alice.close()
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:  # closed, and written to by another program
        db.execute("UPDATE notes SET n = 2 WHERE row_id = 'u'")
        db.execute("DELETE FROM notes WHERE row_id = 'new'")
        db.commit()
    again = opened()
    again.sync()
    bob.sync()
    assert rows(bob) == {"a": ("a", 3), "b": ("b", 1), "d": ("d", 1), "u": ("u", 2)}


def test_closing_succeeds_with_an_unusable_table_or_a_busy_file(opened, alice, bob, tmp_path):
    change(alice)
    alice.conn.executescript("DROP TABLE notes; CREATE TABLE notes (text)")
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.execute("BEGIN IMMEDIATE")
        alice.close()
    with pytest.raises(ConfigurationError):
        opened()


def test_a_copied_file_has_its_unsent_changes(opened, alice, bob, tmp_path):
    change(alice)
    alice.conn.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
    alice.close()
    for path in tmp_path.glob("alice.db*"):
        path.unlink()
    (tmp_path / "copy.db").rename(tmp_path / "alice.db")
    again = opened()
    assert unsent(again) == CHANGES
    again["notes"].delete("b")
    again.sync()
    assert rows(again) == {row_id: row for row_id, row in AFTERWARDS.items() if row_id != "b"}


def test_a_program_that_attaches_the_file_is_tracked_and_may_recreate_the_table(opened, alice, bob, tmp_path):
    with closing(sqlite3.connect(tmp_path / "another.db")) as db:
        db.execute("CREATE TABLE notes (row_id TEXT PRIMARY KEY, text, n)")
        db.execute("INSERT INTO notes VALUES ('a', 'not hers', 1)")
        db.execute("ATTACH ? AS app", (str(tmp_path / "alice.db"),))
        db.execute("INSERT INTO app.notes VALUES ('new', 'new', 2)")
        db.execute("UPDATE app.notes SET n = 3 WHERE row_id = 'a'")
        db.execute("DELETE FROM app.notes WHERE row_id = 'c'")
        db.execute("DELETE FROM notes")
        db.commit()
        assert unsent(alice) == CHANGES
        db.execute("DROP TABLE app.notes")
        db.execute(MAKE.replace("notes", "app.notes"))
    alice.close()
    again = opened()
    assert unsent(again) == CHANGES
    again.sync()
    assert rows(again) == AFTERWARDS


@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL", "UPSERT"])
def test_the_apps_conflict_clauses_do_not_affect_the_journal(opened, alice, bob, tmp_path, verb):
    """SQLite applies the conflict clause of the triggering statement to the statements in the trigger."""
    tail = "ON CONFLICT (row_id) DO UPDATE SET text = excluded.text, n = excluded.n" if verb == "UPSERT" else ""
    verb = "INSERT" if verb == "UPSERT" else verb
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        for text in ("one", "two"):
            for row_id in ("a", "new"):
                try:
                    db.execute(f"{verb} INTO notes (row_id, text, n) VALUES (?, ?, 1) {tail}", (row_id, text))
                except sqlite3.IntegrityError:
                    assert verb == "INSERT OR FAIL"
        db.commit()
    replaced = verb not in ("INSERT OR IGNORE", "INSERT OR FAIL")
    text = "two" if replaced else "one"
    assert unsent(alice) == {
        ("INSERT", "new"): {"text": text, "n": 1},
        **({("UPDATE", "a"): {"text": "two"}} if replaced else {}),
    }


def test_an_ignored_insert_does_not_affect_a_later_write(opened, alice, bob):
    alice.conn.execute("INSERT OR IGNORE INTO notes (row_id, text) VALUES ('a', 'ignored')")
    alice.conn.commit()
    bob["notes"].update("a", text="bob's")
    bob.sync()
    alice.sync()
    alice["notes"].update("a", n=5)
    assert unsent(alice) == {("UPDATE", "a"): {"n": 5}}


class WritingDuringPull(LocalTransport):
    """Lets the app write during a pull."""

    meanwhile = None

    def pull(self, asked):
        if self.meanwhile is not None:
            self.meanwhile()
        return super().pull(asked)


def test_an_answer_during_a_table_recreation_makes_no_inserts(opened, gateway, bob, tmp_path):
    """The page finds no row in a table that the app is about to fill."""
    line = WritingDuringPull(gateway)
    alice = opened(transport=line)
    for row_id in "abc":
        bob["notes"].insert({"text": row_id, "n": 1}, row_id=row_id)
    bob.sync()
    alice.sync()
    bob["notes"].update("a", n=5)
    bob.sync()
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        line.meanwhile = lambda: db.executescript(f"ALTER TABLE notes RENAME TO old; {MAKE}")
        with pytest.raises(TableError, match="notes"):
            alice.sync()
        db.executescript("INSERT INTO notes SELECT row_id, 'stale', -n FROM old; DROP TABLE old")
    alice.close()
    again = opened()
    assert unsent(again) == {}
    again.sync()
    bob.sync()
    assert rows(again) == rows(bob) == {"a": ("a", 5), "b": ("b", 1), "c": ("c", 1)}


def test_no_page_is_written_into_a_table_that_the_app_is_recreating(opened, gateway, bob, tmp_path):
    """The app's own INSERT … SELECT would fail on the existing row."""
    line = WritingDuringPull(gateway)
    alice = opened(transport=line)
    bob["notes"].insert({"text": "a", "n": 1}, row_id="a")
    bob.sync()
    alice.sync()
    bob["notes"].insert({"text": "b", "n": 1}, row_id="b")
    bob.sync()
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        line.meanwhile = lambda: db.executescript(f"ALTER TABLE notes RENAME TO old; {MAKE}")
        with pytest.raises(TableError, match="notes"):
            alice.sync()
        assert db.execute("SELECT count(*) FROM notes").fetchone() == (0,)
        db.executescript("INSERT INTO notes SELECT * FROM old; DROP TABLE old")
    alice.close()
    again = opened()
    again.sync()
    assert rows(again) == rows(bob)


def test_a_page_does_not_end_the_full_pull_that_another_process_has_requested(opened, gateway, bob, tmp_path):
    """The other process opens the file, which repairs the table, while a page is on its way to the first one."""
    line = WritingDuringPull(gateway)
    alice = opened(transport=line)
    for row_id in "ab":
        bob["notes"].insert({"text": row_id, "n": 1}, row_id=row_id)
        bob.sync()
        alice.sync()
    bob["notes"].update("b", n=2)
    bob.sync()

    def recreate() -> None:
        line.meanwhile = None
        with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
            db.executescript(f"DROP TABLE notes; {MAKE}")
        opened().close()

    line.meanwhile = recreate
    alice.sync()
    alice.sync()
    assert rows(alice) == rows(bob) == {"a": ("a", 1), "b": ("b", 2)}
