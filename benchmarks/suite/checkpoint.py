"""Rows per second written as checkpoint frames, and megabytes per second read and filtered by the gateway."""

from __future__ import annotations

import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.lake import GATEWAY, TASKS, Story, lake, write_history
from gateway.checkpoint_frames import frame_files, visible_frames
from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.tables.increments import merge_table
from lakesync.engine import Engine
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.staging import open_store
from lakesync.staging.records import Checkpoint

_MB = 1_000_000
_RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    story = Story(0, options.rows, options.rows)
    with server.folder(options.folder) as place, lake(place / "lake", options.memory) as bench:
        engine = Engine(open_store(f"sqlite://{place / 'staging'}", _wall), _wall)
        engine.open()
        try:
            engine.gateway(GATEWAY)
            write_history(bench.spark, story)
            merge_table(bench.spark, TASKS, {GATEWAY: story.last_arrival})
            checkpoints: list[Checkpoint] = []
            for number in range(3):  # the first warm Spark's workers
                hold = engine.store.cut_point(GATEWAY)
                hold = msgspec.structs.replace(hold, arrival=story.last_arrival + number)
                with bench.measured() as spent:
                    uri = (place / f"frames-{number}").as_uri()
                    checkpoints.append(make_checkpoint(bench.spark, engine.store, hold, [TASKS], directory_uri=uri))
        finally:
            engine.close()
        checkpoint = checkpoints[-1]
        size = sum(table.bytes for table in checkpoint.tables)
        return {
            "rows": options.rows,
            "seconds": spent[0].seconds,
            "rate": round(options.rows / spent[0].seconds),
            "cpu_us_per_row": round(spent[0].cpu_seconds / options.rows * 1e6, 1),
            "peak_mib": spent[0].rss_peak_mib,
            "frame_bytes": size,
            "served_mb_per_s": _served(checkpoint, None, size),
            "filtered_mb_per_s": _served(checkpoint, _RULES, size),
            "serving_peak_mib": _memory(checkpoint),
        }


def _served(checkpoint: Checkpoint, rules: SyncRules | None, size: int) -> float:
    """Measure stored frames."""
    begun = time.perf_counter()
    for _ in visible_frames(frame_files(checkpoint), rules, {"sub": "reader", "team": "team-7"}):
        pass
    return round(size / _MB / (time.perf_counter() - begun), 1)


def _memory(checkpoint: Checkpoint) -> float:
    """Measure the peak of Python's memory during reading."""
    tracemalloc.start()
    for _ in visible_frames(frame_files(checkpoint), None, {"sub": "reader"}):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(peak / (1 << 20), 1)


def _wall() -> int:
    return time.time_ns() // 1_000_000
