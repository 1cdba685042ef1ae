"""Deltas carried a second from staging's log into the committed history: planned, read, decoded, written, read back.

Pushes of 100 deltas stand in a SQLite log as a gateway leaves them; Spark is warm.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import server
from benchmarks.lake import GATEWAY, columns_of, lake, row_of
from lakesync.delta import delta_id
from lakesync.engine import Engine
from lakesync.staging import open_store
from lakesync.staging.store import Commit, StagingStore
from lakesync.types import ColumnValue, RowDelta
from resources.lake.deltas import flush_due

_A_PUSH = 100
_WARM = 2_000
_ROWS = 250_000


def arguments(parser: ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--deltas", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=250_000, help="deltas in a batch at most, as [flush] batch_deltas")
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")


def run(options: Namespace) -> dict[str, Any]:
    """Measure."""
    with server.folder(options.folder) as place, lake(place / "lake", options.memory) as bench:
        engine = Engine(open_store(f"sqlite://{place / 'staging'}", _wall), _wall)
        engine.open()
        try:
            engine.gateway(GATEWAY)
            _push(engine.store, 0, _WARM)
            flush_due(bench.spark, engine.store)
            _push(engine.store, _WARM, options.deltas)
            (waiting,) = engine.store.backlog()
            with bench.measured() as spent:
                reports = flush_due(bench.spark, engine.store, max_deltas=options.batch)
        finally:
            engine.close()
    deltas = sum(report.deltas for report in reports)
    return {
        "deltas": deltas,
        "batches": len(reports),
        "seconds": spent[0].seconds,
        "rate": round(deltas / spent[0].seconds),
        "cpu_us_per_delta": round(spent[0].cpu_seconds / deltas * 1e6, 1),
        "log_bytes_per_delta": round(waiting.bytes / deltas, 1),
        "peak_mib": spent[0].peak_mib,
    }


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _push(store: StagingStore, first: int, count: int) -> None:
    """Log rows alone: a flush reads nothing else."""
    for begin in range(first, first + count, _A_PUSH):
        client = f"client-{begin // _A_PUSH % 16}"
        deltas = [_delta(number, client) for number in range(begin, min(begin + _A_PUSH, first + count))]

        def work(commit: Commit, client: str = client, deltas: list[RowDelta] = deltas) -> None:
            commit.append(client, deltas, commit.next_arrivals(1)[-1], {"sub": client})

        store.submit(GATEWAY, work).result()


def _delta(number: int, client: str) -> RowDelta:
    cells = tuple(ColumnValue.of(name, text) for name, text in columns_of(number, _ROWS))
    row, hlc = row_of(number, _ROWS), (_wall() << 16) + number % _A_PUSH
    identity = delta_id(client_id=client, hlc=hlc, table="tasks", row_id=row, columns=cells)
    return RowDelta("INSERT" if number < _ROWS else "UPDATE", "tasks", row, client, cells, hlc, identity)
