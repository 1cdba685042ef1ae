"""Rows per second that a checkpoint writes as frames, and megabytes per second that the gateway reads and filters.

A checkpoint has all rows of a gateway (one app's stream of deltas) in files of frames (protobuf messages), for the
first sync of new clients. A cut point says up to which arrival, the gateway's timestamp of a push, it has the deltas.
`served_mb_per_s` is read without sync rules, `filtered_mb_per_s` with one rule that selects a hundredth of the rows.
"""

from __future__ import annotations

import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.lake import GATEWAY, TASKS, SyntheticHistory, lake, write_history
from benchmarks.load import RULES
from benchmarks.suite import Benchmark
from gateway.checkpoint_frames import frame_files, visible_frames
from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.tables.merging import merge_table
from lakesync.engine import Engine
from lakesync.model.hlc import wall_clock
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.staging import open_store
from lakesync.staging.records import Checkpoint

_MB = 1_000_000
_RULES = parse_rules(RULES)


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    history = SyntheticHistory(0, options.rows, options.rows)
    with server.temporary_folder(options.folder) as folder, lake(folder / "lake", options.memory) as bench:
        engine = Engine(open_store(f"sqlite://{folder / 'staging'}", wall_clock), wall_clock)
        engine.open()
        try:
            engine.gateway(GATEWAY)
            write_history(bench.spark, history)
            merge_table(bench.spark, TASKS, {GATEWAY: history.last_arrival})
            checkpoints: list[Checkpoint] = []
            for number in range(3):  # only the last is reported; the others warm up Spark's workers
                cut_point = engine.store.cut_point(GATEWAY)
                cut_point = msgspec.structs.replace(cut_point, arrival=history.last_arrival + number)
                with bench.measure() as spent:
                    uri = (folder / f"frames-{number}").as_uri()
                    checkpoints.append(
                        make_checkpoint(bench.spark, engine.store, cut_point, [TASKS], directory_uri=uri)
                    )
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
            "served_mb_per_s": _read_rate(checkpoint, None, size),
            "filtered_mb_per_s": _read_rate(checkpoint, _RULES, size),
            "serving_peak_mib": _read_peak_mib(checkpoint),
        }


def _read_rate(checkpoint: Checkpoint, rules: SyncRules | None, size: int) -> float:
    """Return the megabytes of frames per second that the gateway reads for one client.

    Args:
        checkpoint: the checkpoint.
        rules: the sync rules that select the client's rows; None for all rows.
        size: bytes of all frames.
    """
    begun = time.perf_counter()
    for _ in visible_frames(frame_files(checkpoint), rules, {"sub": "reader", "team": "team-7"}):
        pass
    return round(size / _MB / (time.perf_counter() - begun), 1)


def _read_peak_mib(checkpoint: Checkpoint) -> float:
    """Return the peak of Python's memory while the frames are read."""
    tracemalloc.start()
    for _ in visible_frames(frame_files(checkpoint), None, {"sub": "reader"}):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(peak / (1 << 20), 1)


BENCHMARKS = (Benchmark("checkpoint", __doc__, arguments, run),)
