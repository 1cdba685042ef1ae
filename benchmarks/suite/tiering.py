"""Tiering: deltas per second from a hot tier to a cold one, copied, read back, and then deleted.

By default from SQLite to Parquet on the local disk. `--hot` and `--cold` accept the URI of any empty adapter, or
`postgres`, which is started.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from benchmarks.moving import fill, moved, place


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="to be moved")
    parser.add_argument("--hot", help="URI of an empty place; default: SQLite")
    parser.add_argument("--cold", help="URI of an empty place; default: Parquet on disk")
    parser.add_argument("--heap", help="have Spark's executors move, as assets do, with so much heap: 2g")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        hot = place(servers, options.hot, f"sqlite://{folder}/hot.db")
        cold = place(servers, options.cold, f"file://{folder}/objects")
        fill(hot, options.deltas)
        return {"deltas": options.deltas, **moved("tier", hot, cold, options.heap)}
