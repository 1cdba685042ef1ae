"""Pushes to a gateway and flushes it, for a process that is killed meanwhile."""

from __future__ import annotations

from pathlib import Path

from lakesync.adapters import LocalDisk
from lakesync.flush import FlushSettings, ObjectFlushQueue
from lakesync.model.schema import parse_schema
from lakesync.testing import ManualClock
from tests.integration.embedded.embedded_support import KINDS, Author, gateway_over

SETTINGS = FlushSettings(batch_deltas=4)
NOTES = parse_schema({"table": "notes", "columns": [{"name": "x", "type": "number"}]})


def opened(folder: Path, kind: str, clock: ManualClock):
    """Open the gateway, with staging and destination in one folder."""
    queue = ObjectFlushQueue(LocalDisk(folder / "objects"))
    staging = f"sqlite://{folder / 'staging'}"
    return gateway_over(clock, KINDS[kind](folder), staging=staging, settings=SETTINGS, queue=queue)


def main(folder: Path, kind: str) -> None:
    """Push three times and flush, repeatedly; print the id of each delta once it is acknowledged."""
    clock = ManualClock(1_700_000_000_000)
    author = Author("a", clock)
    with opened(folder, kind, clock) as gateway:
        gateway.register_schema(NOTES)
        for number in range(1, 1000):
            clock.advance(10)
            some = [author.delta(f"r{number % 5}", {"x": number}), author.delta(f"s{number}", {"x": number})]
            for delta in author.push(gateway, *some):
                print(delta.delta_id, flush=True)
            if number % 3 == 0:
                gateway.flush()
