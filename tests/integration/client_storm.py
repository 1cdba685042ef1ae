"""An app that writes by plain SQL, killed with its gateway again and again: what is left is looked at in the end.

`scripts/client-storm --kills 200 --seed 1` does it for long; its last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from lakesync.types import SyncPull
from tests.integration import app_writer


def play(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill the app so many times, each at another moment, and look whether anything was lost or done twice.

    Raises:
        AssertionError: a promise was broken.
    """
    dice = random.Random(seed)
    told: dict[str, int] = {}
    steps = 0
    for life in range(kills):
        lines = _killed_after(folder, dice.randrange(3, 60), seed * 1000 + life)
        wrote = [line.split() for line in lines if line.startswith("wrote") and line.endswith("\n")]
        told |= {row_id: int(number) for _, row_id, number in wrote}
        steps += len(lines)
    return {"kills": kills, "steps": steps, **_looked_at(folder, told)}


def _killed_after(folder: Path, lines: int, seed: int) -> list[str]:
    """Let the app do so many steps and kill it during a later one; what it told."""
    command = [sys.executable, app_writer.__file__, folder, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        told = [line for _, line in zip(range(lines), app.stdout, strict=False)]
        app.send_signal(signal.SIGKILL)
        told += app.stdout.readlines()
    assert len(told) >= lines, "the app ended by itself"
    return told


def _looked_at(folder: Path, told: dict[str, int]) -> dict[str, int]:
    engine, gateway = app_writer.open_gateway(folder)
    with closing(engine), app_writer.open_app(folder, gateway) as app:
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
        there = {row_id: {k: v for k, v in row.items() if v is not None} for row_id, row in rows.items()}
        differing = {row_id for row_id in here.keys() | there.keys() if here.get(row_id) != there.get(row_id)}
        assert not differing, {row_id: (here.get(row_id), there.get(row_id)) for row_id in differing}
        assert {row_id: row["mine"] for row_id, row in here.items() if "mine" in row} == before
        lost = {row_id: number for row_id, number in told.items() if row_id in before and before[row_id] < number}
        assert not lost, "an older value than one that was told is there"
    return {"edits": position.edits, "twice": len(sent) - position.edits, "lost": len(lost)}


def main() -> None:
    """Play for long; figures as JSON on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = play(Path(folder), options.kills, options.seed)
    print(json.dumps({**found, "seed": options.seed, "seconds": round(time.monotonic() - begun)}))


if __name__ == "__main__":
    main()
