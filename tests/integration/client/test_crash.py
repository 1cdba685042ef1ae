"""A client and its gateway are killed at any time: nothing is lost or applied twice, and their tables agree."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from lakesync.client.core.rows import visible_row
from lakesync.client.sqlite.client_store import SqliteClientStore
from lakesync.engine import SyncGateway
from lakesync.model.types import SyncPull
from tests.integration.client import client_writer
from tests.integration.client.client_writer import ROWS, SCHEMA

KILLS = 5
WRITER = Path(client_writer.__file__)


def _killed_after(folder: Path, lines: int, seed: int) -> int:
    """Kill the writer after a number of steps; return the highest number of an edit that it reported."""
    with subprocess.Popen([sys.executable, WRITER, folder, str(seed)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines_read = [line for _, line in zip(range(lines), writer.stdout, strict=False)]
        writer.send_signal(signal.SIGKILL)
        lines_read += writer.stdout.readlines()
    assert len(lines_read) >= lines, "the writer ended by itself"
    made = [int(line.split()[1]) for line in lines_read if line.startswith("made") and line.endswith("\n")]
    return max(made, default=0)


def _check_tables(folder: Path) -> None:
    """Check that the app's table is the merge of the known rows and the edits."""
    db, core = client_writer.open_client(folder)
    with closing(db):
        store = SqliteClientStore(db, [SCHEMA])
        keys = {("notes", row_id) for row_id in ROWS}
        known, edits = store.known(keys), store.edits_of(keys)
        for key in keys:
            state = known[key].state if key in known else None
            merged = visible_row(state, edits.get(key, ()))
            expected = None if merged is None else {name: msgspec.json.decode(text) for name, text in merged.items()}
            assert client_writer.row(db, key[1]) == expected
        numbers = [edit.number for edit in core.edits()]
        assert numbers == sorted(set(numbers))


def _all_rows(gateway: SyncGateway) -> dict[str, dict[str, object]]:
    """The rows that a new client is sent."""
    page = gateway.handle_pull(SyncPull("auditor", 0, 10_000))
    rows: dict[str, dict[str, object]] = {}
    for delta in page.deltas:
        cells = {cell.column: cell.decoded() for cell in delta.columns}
        rows.setdefault(delta.row_id, {}).update(cells)
    return rows


def test_a_killed_client_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    dice = random.Random(4)
    reported = 0
    for seed in range(KILLS):
        reported = max(reported, _killed_after(tmp_path, dice.randrange(5, 60), seed))
        _check_tables(tmp_path)
    engine, gateway = client_writer.open_gateway(tmp_path)
    db, core = client_writer.open_client(tmp_path)
    with closing(db), closing(engine):
        core.request_pull()
        while client_writer.ask(core, gateway):
            pass
        made = SqliteClientStore(db, [SCHEMA]).position().edit_count
        assert core.edits() == []
        assert made >= reported > 0
        kept = engine.store.submit("g", lambda commit: commit.known_ids("me", 0, 1 << 62)).result()
        assert len(kept) == made
        rows = {row_id: row for row_id in ROWS if (row := client_writer.row(db, row_id)) is not None}
        assert rows == _all_rows(gateway)
