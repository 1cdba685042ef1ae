"""An app that writes by plain SQL, killed at any moment with its gateway: nothing is lost, nothing is done twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from lakesync.types import SyncPull
from tests.integration import app_writer

KILLS = 5


def _killed_after(folder: Path, lines: int, seed: int) -> dict[str, int]:
    """Let the app do so many steps and kill it during a later one; the last number that it told of each row."""
    command = [sys.executable, app_writer.__file__, folder, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        told = [line for _, line in zip(range(lines), app.stdout, strict=False)]
        app.send_signal(signal.SIGKILL)
        told += app.stdout.readlines()
    assert len(told) >= lines, "the app ended by itself"
    wrote = [line.split() for line in told if line.startswith("wrote") and line.endswith("\n")]
    return {row_id: int(number) for _, row_id, number in wrote}


def test_an_app_that_is_killed_at_any_moment_loses_no_write_and_sends_none_twice(tmp_path: Path) -> None:
    dice = random.Random(7)
    told: dict[str, int] = {}
    for seed in range(KILLS):
        told |= _killed_after(tmp_path, dice.randrange(3, 60), seed)
    engine, gateway = app_writer.open_gateway(tmp_path)
    with closing(engine), app_writer.open_app(tmp_path, gateway) as app:
        before = {row["row_id"]: row["mine"] for row in app["notes"] if row["mine"] is not None}
        app.sync()
        assert app.pending() == []
        position = app.coordinator.replica.store.position()
        sent = engine.store.submit("g", lambda commit: commit.known_ids("me", 0, 1 << 62)).result()
        assert len(sent) == position.edits > 0, "each edit is known there, once"
        rows: dict[str, dict[str, object]] = {}
        for delta in gateway.handle_pull(SyncPull("auditor", 0, 10_000)).deltas:
            rows.setdefault(delta.row_id, {}).update({cell.column: cell.decoded() for cell in delta.columns})
        here = {
            row.pop("row_id"): {name: value for name, value in row.items() if value is not None} for row in app["notes"]
        }
        assert here == rows
        assert {row_id: row["mine"] for row_id, row in here.items() if "mine" in row} == before
        lost = {row_id: number for row_id, number in told.items() if row_id in before and before[row_id] < number}
        assert not lost, "an older value than one that was told is there"
