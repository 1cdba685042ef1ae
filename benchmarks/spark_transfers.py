"""Moves deltas once with Spark tasks, as a step of a Dagster asset does.

`benchmarks.backend_transfers.run_transfer` runs `python -m benchmarks.spark_transfers TRANSFER A B HEAP`, to measure
the process's memory. TRANSFER is `migrate`, `tier` or `flow` between the backends with the URIs A and B; `push`, a flow
from A into the gateway at B; or `follow`, a destination with the URI B that follows the lake in the folder A. `history`
creates such a lake in the folder A, with B deltas. HEAP is the heap of Spark's JVM, such as `2g`.

It prints one JSON object: deltas moved, their rate, and the peak of resident memory of this process (the step), of
Spark's JVM, and of the JVM with its Python workers, where shared pages count once per process. `all_mib` is the peak of
all of them, with shared pages counted once; `all_begin_mib` is the memory before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from pydantic import SecretStr

from benchmarks.lake import Lake, SyntheticHistory, lake, write_history
from benchmarks.server import SECRET
from benchmarks.usage import MeasuredProcess, SharedMemory
from lakehouse.backends.destinations import Follower, follow
from lakehouse.backends.flows import Flow, LakeFlow, flow
from lakehouse.backends.transfers import Migration, migrate, move_to_tier
from lakesync.adapters.backend_config import SingleBackend, TieredBackend, WriteTarget
from lakesync.adapters.deltas import PAGE_DELTAS
from lakesync.adapters.transfer.flow_pages import RowFilter
from lakesync.adapters.transfer.follower import DeltaSelection
from lakesync.adapters.transfer.migration import MigrationScope


def main() -> None:
    """Move the deltas, and print the figures."""
    transfer, source, target, heap = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="lakesync-bench-") as temporary:
        folder = Path(source) if transfer in {"history", "follow"} else Path(temporary) / "lake"
        if transfer == "history":
            figures = _create_history(folder, int(target))
        else:
            figures = _measure_transfer(folder, transfer, source, target, heap)
    print(msgspec.json.encode(figures).decode())


def _create_history(folder: Path, count: int) -> dict[str, float]:
    """Create a lake in a folder, with this number of deltas in its history."""
    with lake(folder) as bench:
        write_history(bench.spark, SyntheticHistory(0, count, 250_000))
    return {"written": count}


def _measure_transfer(folder: Path, transfer: str, source: str, target: str, heap: str) -> dict[str, float]:
    """Move deltas with Spark, and measure this process, Spark's JVM and its workers.

    Args:
        folder: the lake's folder.
        transfer: a key of `_TRANSFERS`.
        source: URI of the backend with the deltas, or the lake's folder.
        target: URI of the other backend, or of the gateway.
        heap: heap of Spark's JVM.
    """
    with lake(folder, heap) as bench:
        step, jvm = MeasuredProcess(os.getpid()), MeasuredProcess(bench.spark_process.pid)
        together = SharedMemory(step.pid, jvm.pid)
        with (
            step.measure() as own,
            jvm.measure() as java,
            bench.spark_process.measure() as executors,
            together.measure() as memory,
        ):
            begun = time.perf_counter()
            count = _TRANSFERS[transfer](bench, SingleBackend("source", source), target, folder)
            seconds = time.perf_counter() - begun
    return {
        "moved": count,
        "rate": round(count / seconds),
        "cpu_us_per_delta": round((own[0].cpu_seconds + executors[0].cpu_seconds) / count * 1e6, 2),
        "rss_step_mib": own[0].rss_peak_mib,
        "rss_jvm_mib": java[0].rss_peak_mib,
        "rss_spark_mib": executors[0].rss_peak_mib,
        "all_begin_mib": memory[0],
        "all_mib": memory[1],
    }


def _migrate(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:
    """Copy all deltas to the target, read them back and compare. Return their number, as all transfers do."""
    work = Migration(
        "migrations/bench", source, SingleBackend("target", target), MigrationScope(), PAGE_DELTAS, str(folder)
    )
    return migrate(bench.spark, [work])[0].deltas


def _tier(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:  # noqa: ARG001
    """Move all deltas from a hot tier to a cold one."""
    tiers = TieredBackend(source, SingleBackend("target", target), 0)
    return move_to_tier(bench.spark, "bench", tiers, time.time_ns() // 1_000_000).deltas


def _flow(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:  # noqa: ARG001
    """Copy all deltas by an unfiltered flow between two backends."""
    (pages,) = flow(bench.spark, [Flow("flows/bench", source, WriteTarget("target", target), RowFilter())])
    return sum(page.deltas for page in pages)


def _push(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:
    """Copy all deltas by a flow into the gateway whose URL is `target`."""
    config = bench.config.replace(gateway={"url": target}, service_token=SecretStr(SECRET))
    (pages,) = flow(bench.spark, [LakeFlow(source, RowFilter(), None, config, folder / "progress.json", {})])
    return sum(page.deltas for page in pages)


def _follow(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:  # noqa: ARG001
    """Let a destination follow the lake's history."""
    return follow(bench.spark, Follower("destinations/bench", WriteTarget("target", target), DeltaSelection())).deltas


_TRANSFERS: dict[str, Callable[[Lake, SingleBackend, str, Path], int]] = {
    "migrate": _migrate,
    "tier": _tier,
    "flow": _flow,
    "push": _push,
    "follow": _follow,
}
"""The transfers by the argument TRANSFER; each gets the lake, the source, the target's URI and the lake's folder, and
returns the number of deltas."""


if __name__ == "__main__":
    main()
