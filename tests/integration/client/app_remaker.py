"""An app that remakes, renames and alters its synced table while it writes and synchronises with a gateway over HTTP:
`python app_remaker.py FOLDER SEED URL`.

It is busy until it is killed, and prints a line a step. A diary in the app's own file, committed with each write,
records what the app did. Only the app writes the column `mine`, with increasing numbers; another client writes the
column `theirs`. `pushed.jsonl` has every pushed change.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from lakesync.client import Client, TableError, UnreachableError, open_client
from lakesync.client.core import CoreLimits
from lakesync.client.transports.http import HttpTransport
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import HLC
from lakesync.model.types import PushResult, SyncPush
from tests.blackbox.server import sign
from tests.integration.client.app_writer import ROWS, SCHEMA, write_by_another

MAKE = "CREATE TABLE notes (row_id TEXT PRIMARY KEY NOT NULL, mine NUMERIC, theirs NUMERIC)"
_COPY = "INSERT INTO notes (row_id, mine, theirs) SELECT row_id, mine, theirs FROM old"
_AWAY = "ALTER TABLE notes RENAME TO old"
WAYS: dict[str, list[str]] = {  # @: a new name; NEW: a row that only the new table has
    "dropped": ["DROP TABLE notes"],
    "remade": ["DROP TABLE notes", MAKE],
    "without rowid": ["DROP TABLE notes", f"{MAKE} WITHOUT ROWID"],
    "with less": ["DROP TABLE notes", "CREATE TABLE notes (row_id TEXT PRIMARY KEY, theirs)"],
    "with some rows": [_AWAY, MAKE, f"{_COPY} WHERE row_id < 'r4'", "DROP TABLE old"],
    "with other values": [_AWAY, MAKE, _COPY, "UPDATE notes SET mine = -mine, theirs = -1", "DROP TABLE old"],
    "with a new row": [_AWAY, MAKE, _COPY, "NEW", "DROP TABLE old"],
    "copied": [_AWAY, MAKE, _COPY, "UPDATE old SET mine = -1", "DELETE FROM old", "DROP TABLE old"],
    "copied as SQLite advises": [
        MAKE.replace("notes", "old"),
        "INSERT INTO old SELECT row_id, mine, theirs FROM notes",
        "DROP TABLE notes",
        "ALTER TABLE old RENAME TO notes",
    ],
    "renamed": [_AWAY, "UPDATE old SET theirs = -1", "INSERT INTO old (row_id) VALUES ('away')", "DELETE FROM old"],
    "renamed and back": [_AWAY, "ALTER TABLE old RENAME TO notes"],
    "a column renamed": ["ALTER TABLE notes RENAME COLUMN mine TO @"],
    "a column remade": ["ALTER TABLE notes RENAME COLUMN theirs TO @", "ALTER TABLE notes ADD COLUMN theirs"],
    "a column added": ["ALTER TABLE notes ADD COLUMN @ DEFAULT 7"],
    "a column added and dropped": ["ALTER TABLE notes ADD COLUMN @", "ALTER TABLE notes DROP COLUMN @"],
    "with columns dropped": [
        "DROP TABLE notes",
        MAKE,
        "ALTER TABLE notes DROP COLUMN theirs",
        "ALTER TABLE notes DROP COLUMN mine",
    ],
    "indexed": ["CREATE INDEX @ ON notes (mine)"],
    "vacuumed": ["VACUUM"],
    "by pandas": ["PANDAS"],
    "as pandas replaces it": [
        "CREATE TABLE old AS SELECT row_id, mine, theirs FROM notes",
        "DROP TABLE notes",
        'CREATE TABLE "notes" ("row_id" TEXT, "mine" TEXT, "theirs" REAL)',
        'CREATE INDEX @ ON "notes" ("row_id")',
        f"{_COPY} WHERE row_id <> 'r3'",
        "DROP TABLE old",
    ],
}


_IN_STEPS = {"vacuumed", "by pandas"}
"""Ways that commit themselves, and cannot be part of a transaction."""


class NotingTransport(HttpTransport):
    """Records every change before it is pushed."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, "g", sign("me", "g", {}))
        self._place = folder / "pushed.jsonl"

    def push(self, push: SyncPush) -> PushResult:
        with self._place.open("a") as file:
            for delta in push.deltas:
                values = {cell.column: cell.decoded() for cell in delta.columns}
                file.write(json.dumps([delta.delta_id, delta.op, delta.row_id, values]) + "\n")
        return super().push(push)


def open_app(folder: Path, url: str) -> Client:
    """Open the app with the data of its last process."""
    return open_client(
        folder / "app.db",
        transport=NotingTransport(url, folder),
        client_id="me",
        schemas=[SCHEMA],
        limits=CoreLimits(push_deltas=3, pull_deltas=2),
        interval=0.05,
    )


class App:
    """The app; it writes over a connection without LakeSync's functions."""

    def __init__(self, folder: Path, url: str, dice: random.Random) -> None:
        self._folder = folder
        self._url = url
        self._dice = dice
        self._client: Client | None = None
        self._new: set[str] = set()
        """Rows that were added since the table was opened; deleting one of them undoes its INSERT."""
        self.db = sqlite3.connect(folder / "app.db", timeout=60, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE IF NOT EXISTS diary (number INTEGER PRIMARY KEY, row_id TEXT, op TEXT)")
        self.db.execute("DROP TABLE IF EXISTS old")  # of a migration that was killed

    def open(self) -> Client:
        """Open LakeSync again, if the app has it closed."""
        if self._client is None:
            self._client = open_app(self._folder, self._url)
            self._new.clear()
            if self._dice.random() < 0.5:
                self._client.coordinator.start_auto_sync()
        return self._client

    def close(self) -> None:
        """Close LakeSync."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def write(self) -> None:
        """Write rows and their diary entries in one transaction, which may be rolled back."""
        new = set(self._new)
        self.db.execute("BEGIN IMMEDIATE")
        self._write_rows()
        if self._dice.random() < 0.1:
            self.db.execute("ROLLBACK")
            self._new = new
            print("undone", flush=True)
        else:
            self.db.execute("COMMIT")
            print("wrote", flush=True)

    def _write_rows(self) -> None:
        for row_id in self._dice.sample(ROWS, self._dice.randint(1, len(ROWS))):
            if self._dice.random() < 0.2:
                done = self.db.execute("DELETE FROM notes WHERE row_id = ?", (row_id,)).rowcount
                self._note(row_id, ("undo" if row_id in self._new else "delete") if done else "nothing")
            else:
                if not self.db.execute("SELECT 1 FROM notes WHERE row_id = ?", (row_id,)).fetchone():
                    self._new.add(row_id)
                self.db.execute(
                    "INSERT INTO notes (row_id, mine) VALUES (?, ?) ON CONFLICT DO UPDATE SET mine = excluded.mine",
                    (row_id, self._note(row_id, "write")),
                )

    def remake(self) -> None:
        """Recreate the table in one of the ways, in one transaction or not, with LakeSync open or closed."""
        if self._dice.random() < 0.3:
            self.close()
        name = self._dice.choice(list(WAYS))
        self.db.execute("DROP TABLE IF EXISTS old")
        whole = name not in _IN_STEPS and self._dice.random() < 0.3
        if whole:
            self.db.execute("BEGIN IMMEDIATE")
            if self._dice.random() < 0.5:
                self._write_rows()
        column = f"own{time.time_ns()}"
        for statement in WAYS[name]:
            if statement == "NEW":
                self._add(f"new{time.time_ns()}")
            elif statement == "PANDAS":
                self._replace_by_pandas()
            else:
                self.db.execute(statement.replace("@", column))
            if not whole:
                print("part of", name, flush=True)
        if whole:
            self.db.execute("COMMIT")
        print("remade", name, flush=True)
        if self._client is not None and self._dice.random() < 0.3:
            try:
                self._client.sync()
            except (TableError, UnreachableError):
                print("sync failed", flush=True)
        self.close()

    def _replace_by_pandas(self) -> None:
        import pandas as pd

        rows = pd.read_sql("SELECT row_id, mine, theirs FROM notes WHERE row_id <> 'r3'", self.db)
        rows.to_sql("notes", self.db, if_exists="replace", index=False)

    def _add(self, row_id: str) -> None:
        begun = not self.db.in_transaction
        if begun:
            self.db.execute("BEGIN IMMEDIATE")
        self.db.execute("INSERT INTO notes (row_id, mine) VALUES (?, ?)", (row_id, self._note(row_id, "write")))
        if begun:
            self.db.execute("COMMIT")

    def _note(self, row_id: str, op: str) -> int:
        number = self.db.execute("INSERT INTO diary (row_id, op) VALUES (?, ?)", (row_id, op)).lastrowid
        assert number is not None
        return number


def main(folder: Path, seed: int, url: str) -> None:
    """Work until the process is killed."""
    dice, clock = random.Random(seed), HLC()
    app, other = App(folder, url, dice), HttpTransport(url, "g", sign("other", "g", {}))
    with closing(app.db):
        while True:
            client = app.open()
            for _ in range(dice.randrange(1, 8)):
                what = dice.random()
                try:
                    if what < 0.45:
                        app.write()
                    elif what < 0.5:
                        app.close()
                        app.write()
                        client = app.open()
                    elif what < 0.7:
                        write_by_another(other.push, clock, dice)
                    else:
                        client.sync()
                        print("synced", flush=True)
                except UnreachableError:
                    print("offline", flush=True)
                except LakeSyncError as error:
                    sys.exit(f"a step failed: {error!r}")
            app.remake()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
