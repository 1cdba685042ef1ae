"""A client over SQLite and a gateway in one process, busy until it is killed: `python client_writer.py FOLDER SEED`.

It prints a line for each step once that is durable: `made N` for an edit, `asked` for a request and its answer.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

from lakesync.client.core import ClientCore, CoreLimits, ErrorResponse, LocalChange, Wait
from lakesync.client.sqlite.client_store import SqliteClientStore
from lakesync.engine import Engine, SyncGateway
from lakesync.model.delta import extract_delta
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import HLC, wall_clock
from lakesync.model.schema import parse_schema
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.staging.sqlite import SqliteStore

SCHEMA = parse_schema(
    {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}
)
ROWS = [f"r{place}" for place in range(6)]
COLUMNS = [column.name for column in SCHEMA.columns]


def open_gateway(folder: Path) -> tuple[Engine, SyncGateway]:
    """Open the gateway with the data of its last process."""
    engine = Engine(SqliteStore(folder / "staging", wall_clock), wall_clock)
    engine.open()
    return engine, engine.gateway("g")


def open_client(folder: Path) -> tuple[sqlite3.Connection, ClientCore]:
    """Open the client with the data of its last process."""
    db = sqlite3.connect(folder / "app.db")
    db.execute("PRAGMA journal_mode = WAL")
    seconds = itertools.count(step=100)
    store = SqliteClientStore(db, [SCHEMA])
    limits = CoreLimits(push_deltas=3, pull_deltas=2)
    return db, ClientCore(store, "me", limits=limits, monotonic=lambda: float(next(seconds)))


def row(db: sqlite3.Connection, row_id: str) -> dict[str, Any] | None:
    """A row of the app, without NULLs."""
    found = db.execute(f"SELECT {', '.join(COLUMNS)} FROM notes WHERE row_id = ?", (row_id,)).fetchone()
    return (
        None if found is None else {name: cell for name, cell in zip(COLUMNS, found, strict=True) if cell is not None}
    )


def ask(core: ClientCore, gateway: SyncGateway) -> bool:
    """Send one request and apply its answer; return False if there was no request to send."""
    request = core.next_request()
    if isinstance(request, Wait):
        return False
    try:
        if isinstance(request, SyncPush):
            core.receive(gateway.handle_push(request))
        elif isinstance(request, SyncPull):
            core.receive(gateway.submit_pull(request, {"sub": "me"}, knows_resync=True).result().decoded())
        else:
            gateway.submit_checkpoint("me", {"sub": "me"}).result()
    except LakeSyncError as error:
        core.receive(ErrorResponse(error.code, str(error)))
    return True


def _change(dice: random.Random, before: dict[str, Any] | None) -> dict[str, Any] | None:
    if before is not None and dice.random() < 0.2:
        return None
    new = {"text": f"text {dice.random()}", "n": dice.randrange(1000)}
    return {**(before or {}), **{name: new[name] for name in dice.sample(COLUMNS, dice.randint(1, 2))}}


def _by_another(dice: random.Random, clock: HLC) -> list[RowDelta]:
    ids = dice.sample(ROWS, 2)
    before = [{"n": -1} if dice.random() < 0.8 else None for _ in ids]
    afters = [None if dice.random() < 0.1 else {"n": dice.randrange(1000)} for _ in ids]
    made = [
        extract_delta(was, now, table="notes", row_id=row_id, client_id="other", hlc=clock.now())
        for row_id, was, now in zip(ids, before, afters, strict=True)
    ]
    return [delta for delta in made if delta is not None]


def main(folder: Path, seed: int) -> None:
    """Work until the process is killed."""
    dice = random.Random(seed)
    _, gateway = open_gateway(folder)
    db, core = open_client(folder)
    clock = HLC()
    while True:
        what = dice.random()
        if what < 0.4:
            row_id = dice.choice(ROWS)
            before = row(db, row_id)
            for number in core.record([LocalChange("notes", row_id, before, _change(dice, before))]).edits:
                print("made", number, flush=True)
        elif what < 0.5:
            gateway.handle_push(SyncPush("other", tuple(_by_another(dice, clock))))
        else:
            core.request_pull()
            ask(core, gateway)
            print("asked", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
