"""Tiering: deltas a second from a hot tier to a cold one, copied, read back, and only then removed.

By default from SQLite to Parquet on this machine's disk;
`--hot` and `--cold` take any adapter's URI, of an empty place, or `postgres`, which is started then.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from benchmarks.moving import fill, moved, place


def arguments(parser: ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="to be moved")
    parser.add_argument("--hot", help="URI of an empty place; default: SQLite")
    parser.add_argument("--cold", help="URI of an empty place; default: Parquet on disk")
    parser.add_argument("--heap", help="have Spark's executors move, as assets do, with so much heap: 2g")


def run(options: Namespace) -> dict[str, Any]:
    """Measure."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        hot = place(servers, options.hot, f"sqlite://{folder}/hot.db")
        cold = place(servers, options.cold, f"file://{folder}/objects")
        fill(hot, options.deltas)
        return {"deltas": options.deltas, **moved("tier", hot, cold, options.heap)}
