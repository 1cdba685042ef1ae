"""An app that writes by SQL and synchronises, and its gateway, in one process: `python app_writer.py FOLDER SEED`.

It is busy until it is killed. It prints a line for each step once that is durable: `wrote ROW NUMBER`, with increasing
numbers that no other client writes, or `synced`.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from lakesync.client import Client, LocalTransport, open_client
from lakesync.client.core import CoreLimits
from lakesync.engine import SyncGateway
from lakesync.model.delta import extract_delta
from lakesync.model.hlc import HLC
from lakesync.model.types import SyncPush
from tests.integration.client.client_writer import open_gateway

SCHEMA = {"table": "notes", "columns": [{"name": "mine", "type": "number"}, {"name": "theirs", "type": "number"}]}
ROWS = [f"r{place}" for place in range(8)]


def open_app(folder: Path, gateway: SyncGateway) -> Client:
    """Open the app with the data of its last process."""
    limits = CoreLimits(push_deltas=3, pull_deltas=2)
    return open_client(
        folder / "app.db", transport=LocalTransport(gateway), client_id="me", schemas=[SCHEMA], limits=limits
    )


def _write(db: sqlite3.Connection, dice: random.Random) -> None:
    """Write two rows in one transaction, over a connection without LakeSync's functions."""
    (last,) = db.execute("SELECT coalesce(max(mine), 0) FROM notes").fetchone()
    written = []
    for number, row_id in enumerate(dice.sample(ROWS, 2), int(last) + 1):
        if dice.random() < 0.1:
            db.execute("DELETE FROM notes WHERE row_id = ?", (row_id,))
        else:
            db.execute(
                "INSERT INTO notes (row_id, mine) VALUES (?, ?) ON CONFLICT DO UPDATE SET mine = excluded.mine",
                (row_id, number),
            )
            written.append((row_id, number))
    db.commit()
    for row_id, number in written:
        print("wrote", row_id, number, flush=True)


def write_by_another(push: Callable[[SyncPush], object], clock: HLC, dice: random.Random) -> None:
    """Let another client change its own column."""
    after = {"theirs": dice.randrange(1000)}
    delta = extract_delta(
        {"theirs": -1}, after, table="notes", row_id=dice.choice(ROWS), client_id="other", hlc=clock.now()
    )
    assert delta is not None
    push(SyncPush("other", (delta,)))


def main(folder: Path, seed: int) -> None:
    """Work until the process is killed."""
    dice, clock = random.Random(seed), HLC()
    _, gateway = open_gateway(folder)
    app = open_app(folder, gateway)
    with closing(sqlite3.connect(folder / "app.db")) as db:
        while True:
            what = dice.random()
            if what < 0.5:
                _write(db, dice)
            elif what < 0.6:
                write_by_another(gateway.handle_push, clock, dice)
            else:
                app.sync()
                print("synced", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
