"""`python -m benchmarks.executors HOW URI URI HEAP` runs one move on Spark executors, as the step of an asset does.

HOW is `migrate`, `tier`, `flow`, `push` (a flow into the gateway at the second URI) or `follow` (a destination that
applies the lake in the first folder). `history` fills such a lake with the given number of deltas; that Spark's memory
is not counted. Prints one JSON object: deltas moved, seconds, and resident memory of this process (the step), of
Spark's JVM, and of the JVM with its Python workers, where shared pages count once per process. `all_mib` is the memory
of all of them, with shared pages counted once. Each is the maximum seen; `all_begin_mib` is the memory before.
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

from benchmarks.lake import Lake, Story, lake, write_history
from benchmarks.server import SECRET
from benchmarks.usage import Shared, Watched
from lakehouse.backends.destinations import Follower, follow
from lakehouse.backends.flows import Flow, LakeFlow, flow, flow_to_lake
from lakehouse.backends.moves import Migration, migrate, move_to_tier
from lakesync.adapters.arrow_access import PAGE_DELTAS
from lakesync.adapters.backend_config import SingleBackend, TieredBackend, WriteTarget
from lakesync.adapters.transfer.flows import RowFilter
from lakesync.adapters.transfer.follower import DeltaSelection
from lakesync.adapters.transfer.migration import MigrationScope


def main() -> None:
    """Move the deltas, and print the figures."""
    how, source, target, heap = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="lakesync-bench-") as folder:
        place = Path(source) if how in {"history", "follow"} else Path(folder) / "lake"
        told = _filled(place, int(target)) if how == "history" else _measured(place, how, source, target, heap)
    print(msgspec.json.encode(told).decode())


def _filled(place: Path, count: int) -> dict[str, float]:
    with lake(place) as bench:
        write_history(bench.spark, Story(0, count, 250_000))
    return {"written": count}


def _measured(place: Path, how: str, source: str, target: str, heap: str) -> dict[str, float]:
    with lake(place, heap) as bench:
        step, jvm = Watched(os.getpid()), Watched(bench.watched.pid)
        together = Shared(step.pid, jvm.pid)
        with (
            step.measured() as own,
            jvm.measured() as java,
            bench.watched.measured() as executors,
            together.measured() as memory,
        ):
            begun = time.perf_counter()
            count = _WAYS[how](bench, SingleBackend("source", source), target, place)
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
    work = Migration(
        "migrations/bench", source, SingleBackend("target", target), MigrationScope(), PAGE_DELTAS, str(folder)
    )
    return migrate(bench.spark, [work])[0].deltas


def _tier(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:  # noqa: ARG001
    place = TieredBackend(source, SingleBackend("target", target), 0)
    return move_to_tier(bench.spark, "bench", place, time.time_ns() // 1_000_000).deltas


def _flow(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:  # noqa: ARG001
    (pages,) = flow(bench.spark, [Flow("flows/bench", source, WriteTarget("target", target), RowFilter())])
    return sum(page.deltas for page in pages)


def _push(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:
    config = bench.config.replace(gateway={"url": target}, service_token=SecretStr(SECRET))
    pages = flow_to_lake(bench.spark, LakeFlow(source, RowFilter(), None, config, folder / "progress.json"))
    return sum(page.deltas for page in pages)


def _follow(bench: Lake, source: SingleBackend, target: str, folder: Path) -> int:  # noqa: ARG001
    return follow(bench.spark, Follower("destinations/bench", WriteTarget("target", target), DeltaSelection())).deltas


_WAYS: dict[str, Callable[[Lake, SingleBackend, str, Path], int]] = {
    "migrate": _migrate,
    "tier": _tier,
    "flow": _flow,
    "push": _push,
    "follow": _follow,
}


if __name__ == "__main__":
    main()
