"""Benchmark `flush`: deltas per second that a flush moves from staging's log to the Iceberg table `deltas`.

Staging is the gateway's store. A flush plans a batch, reads and decodes the log, writes the batch, and reads its count
back. The SQLite log has pushes of 100 deltas as a gateway writes them, and Spark is warm.

With `--requests` the benchmark measures something else: the seconds from a request to `/admin/flush` until the snapshot
is committed, in a complete `lakesync up` with Dagster. There `steps` has the duration and Spark jobs of each step of
the run. `scripts/bench` runs it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from msgspec import Raw

from benchmarks import server, up
from benchmarks.lake import GATEWAY, columns_of, id_of, lake, row_of
from benchmarks.suite import Benchmark
from lakehouse.history.flush import MAX_DELTAS, flush_backlog
from lakesync.engine import Engine
from lakesync.model.hlc import wall_clock
from lakesync.model.types import ColumnValue, Op, RowDelta
from lakesync.staging import open_store
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.push import PushCommit
from lakesync.wire.log import pack

_DELTAS_PER_PUSH = 100
_ROWS = 250_000
"""Rows that the deltas change: the first `_ROWS` deltas insert them, the others update them."""
_WARM_BATCHES = 6
"""Batches that are flushed before the measurement, to warm up Spark."""


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=300_000)
    parser.add_argument(
        "--warm", type=int, default=600_000, help="deltas to flush in six batches before the measurement"
    )
    parser.add_argument("--batch", type=int, default=MAX_DELTAS, help="max. deltas of a batch, as [flush] batch_deltas")
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")
    parser.add_argument("--requests", type=int, default=0, help="measure this number of requested flushes instead")
    parser.add_argument("--each", type=int, default=1_000, help="with --requests: deltas of each flush")
    parser.add_argument("--tables", type=int, default=1, help="with --requests: tables that the deltas are spread over")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    if options.requests:
        with server.temporary_folder(options.folder) as folder:
            return up.flushes(folder, options.requests, options.tables, options.each)
    with server.temporary_folder(options.folder) as folder, lake(folder / "lake", options.memory) as bench:
        engine = Engine(open_store(f"sqlite://{folder / 'staging'}", wall_clock), wall_clock)
        engine.open()
        try:
            engine.gateway(GATEWAY)
            _push(engine.store, 0, options.warm)
            flush_backlog(bench.spark, engine.store, max_deltas=max(1, options.warm // _WARM_BATCHES))
            _push(engine.store, options.warm, options.deltas)
            (backlog,) = engine.store.backlog()
            with bench.measure() as spent:
                reports = flush_backlog(bench.spark, engine.store, max_deltas=options.batch)
        finally:
            engine.close()
    deltas = sum(report.deltas for report in reports)
    return {
        "deltas": deltas,
        "batches": len(reports),
        "seconds": spent[0].seconds,
        "rate": round(deltas / spent[0].seconds),
        "cpu_us_per_delta": round(spent[0].cpu_seconds / deltas * 1e6, 1),
        "log_bytes_per_delta": round(backlog.bytes / deltas, 1),
        "peak_mib": spent[0].rss_peak_mib,
    }


def _push(store: TransactionStore, first: int, count: int) -> None:
    """Append pushes to the log without merging them into rows, because a flush reads only the log."""
    for begin in range(first, first + count, _DELTAS_PER_PUSH):
        client = f"client-{begin // _DELTAS_PER_PUSH % 16}"
        deltas = [_delta(number, client) for number in range(begin, min(begin + _DELTAS_PER_PUSH, first + count))]

        def work(commit: PushCommit, client: str = client, deltas: list[RowDelta] = deltas) -> None:
            commit.append(client, pack(deltas), commit.next_arrivals(1)[-1], {"sub": client})

        store.submit(GATEWAY, work).result()


def _delta(number: int, client: str) -> RowDelta:
    """Return the synthetic delta with a number, as a client pushes it."""
    cells = tuple([ColumnValue(name, Raw(text.encode())) for name, text in columns_of(number, _ROWS)])
    op: Op = "INSERT" if number < _ROWS else "UPDATE"
    hlc = (wall_clock() << 16) + number % _DELTAS_PER_PUSH
    return RowDelta(op, "tasks", row_of(number, _ROWS), client, cells, hlc, id_of(number))


BENCHMARKS = (Benchmark("flush", __doc__, arguments, run),)
