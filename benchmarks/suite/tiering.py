"""Tiering: deltas per second that move from a hot tier to a cold one: copied, read back, and then deleted.

The hot tier is SQLite and the cold one Parquet on the local disk, unless `--hot` and `--cold` name other backends: the
URI of any empty adapter, or `postgres` or `mariadb`, which are started.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from benchmarks.moving import backend_uri, fill, run_move


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to move")
    parser.add_argument("--hot", help="URI of an empty backend; default: SQLite")
    parser.add_argument("--cold", help="URI of an empty backend; default: Parquet on disk")
    parser.add_argument("--heap", help="move in Spark tasks, as assets do, with this heap of the JVM, such as 2g")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        hot = backend_uri(servers, options.hot, f"sqlite://{folder}/hot.db")
        cold = backend_uri(servers, options.cold, f"file://{folder}/objects")
        fill(hot, options.deltas)
        return {"deltas": options.deltas, **run_move("tier", hot, cold, options.heap)}
