"""An app that remakes, renames and alters its synced table while it writes and synchronises, in one process with its
gateway: `python app_remaker.py FOLDER SEED`.

It is busy until it is killed, and prints a line a step. A diary in the app's own file, committed with each write, says
what the app did: it alone writes the column `mine`, with numbers that grow, and another client the column `theirs`. All
that is ever pushed is noted in `pushed.jsonl`.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from lakesync.client import Client, LocalTransport, TableError, open_client
from lakesync.client.core import CoreLimits
from lakesync.engine import SyncGateway
from lakesync.exceptions import LakeSyncError
from lakesync.hlc import HLC
from lakesync.types import PushResult, SyncPush
from tests.integration.app_writer import ROWS, SCHEMA, write_by_another
from tests.integration.client_writer import open_gateway

MAKE = "CREATE TABLE notes (row_id TEXT PRIMARY KEY NOT NULL, mine NUMERIC, theirs NUMERIC)"
_COPY = "INSERT INTO notes (row_id, mine, theirs) SELECT row_id, mine, theirs FROM old"
_AWAY = "ALTER TABLE notes RENAME TO old"
WAYS: dict[str, list[str]] = {  # @: a name that nothing has; NEW: a row that only the new table has
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
    "indexed": ["CREATE INDEX @ ON notes (mine)"],
    "vacuumed": ["VACUUM"],
    "as pandas replaces it": [
        "CREATE TABLE old AS SELECT row_id, mine, theirs FROM notes",
        "DROP TABLE notes",
        'CREATE TABLE "notes" ("row_id" TEXT, "mine" TEXT, "theirs" REAL)',
        'CREATE INDEX @ ON "notes" ("row_id")',
        f"{_COPY} WHERE row_id <> 'r3'",
        "DROP TABLE old",
    ],
}


class NotingTransport(LocalTransport):
    """Notes every change before it is pushed."""

    def __init__(self, gateway: SyncGateway, folder: Path) -> None:
        super().__init__(gateway)
        self._place = folder / "pushed.jsonl"

    def push(self, push: SyncPush) -> PushResult:
        with self._place.open("a") as file:
            for delta in push.deltas:
                values = {cell.column: cell.decoded() for cell in delta.columns}
                file.write(json.dumps([delta.delta_id, delta.op, delta.row_id, values]) + "\n")
        return super().push(push)


def open_app(folder: Path, gateway: SyncGateway) -> Client:
    """The app, with what its last process left."""
    return open_client(
        folder / "app.db",
        transport=NotingTransport(gateway, folder),
        client_id="me",
        schemas=[SCHEMA],
        limits=CoreLimits(push_deltas=3, pull_deltas=2),
        interval=0.05,
    )


class App:
    """The app's side: it writes by a connection that knows nothing of LakeSync."""

    def __init__(self, folder: Path, gateway: SyncGateway, dice: random.Random) -> None:
        self._folder = folder
        self._gateway = gateway
        self._dice = dice
        self._client: Client | None = None
        self._new: set[str] = set()
        """Rows that the table had not, and that were added since it was opened: to delete one undoes that."""
        self.db = sqlite3.connect(folder / "app.db", timeout=60, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE IF NOT EXISTS diary (number INTEGER PRIMARY KEY, row_id TEXT, op TEXT)")
        self.db.execute("DROP TABLE IF EXISTS old")  # of a migration that was killed

    def open(self) -> Client:
        """Open LakeSync anew, where the app has it closed."""
        if self._client is None:
            self._client = open_app(self._folder, self._gateway)
            self._new.clear()
            if self._dice.random() < 0.5:
                self._client.coordinator.start_auto_sync()
        return self._client

    def close(self) -> None:
        """Close it."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def write(self, rows: list[str]) -> None:
        """Write rows, and in the diary what was done, in one transaction."""
        self.db.execute("BEGIN IMMEDIATE")
        for row_id in rows:
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
        self.db.execute("COMMIT")
        print("wrote", flush=True)

    def remake(self) -> None:
        """Remake the table by one of the ways, in one transaction or not, with LakeSync open or closed."""
        if self._dice.random() < 0.3:
            self.close()
        name = self._dice.choice(list(WAYS))
        self.db.execute("DROP TABLE IF EXISTS old")
        whole = name != "vacuumed" and self._dice.random() < 0.3
        if whole:
            self.db.execute("BEGIN IMMEDIATE")
        for statement in WAYS[name]:
            if statement == "NEW":
                self._add(f"new{time.time_ns()}")
            else:
                self.db.execute(statement.replace("@", f"own{time.time_ns()}"))
            if not whole:
                print("part of", name, flush=True)
        if whole:
            self.db.execute("COMMIT")
        print("remade", name, flush=True)
        if self._client is not None and self._dice.random() < 0.3:
            try:
                self._client.sync()
            except TableError:
                print("told", flush=True)
        self.close()

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


def main(folder: Path, seed: int) -> None:
    """Work without end."""
    dice, clock = random.Random(seed), HLC()
    _, gateway = open_gateway(folder)
    app = App(folder, gateway, dice)
    with closing(app.db):
        while True:
            client = app.open()
            for _ in range(dice.randrange(1, 8)):
                what = dice.random()
                if what < 0.5:
                    app.write(dice.sample(ROWS, 2))
                elif what < 0.7:
                    write_by_another(gateway, clock, dice)
                else:
                    try:
                        client.sync()
                    except LakeSyncError as error:
                        sys.exit(f"sync failed: {error!r}")
                    print("synced", flush=True)
            app.remake()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
