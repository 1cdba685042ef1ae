"""Migrations: deltas per second that are copied from one backend to another, read back and verified at the end.

A migration copies from SQLite to Parquet on the local disk, unless `--from` and `--to` name other backends: the URI of
any empty adapter, or `postgres` or `mariadb`, which are started. `rss_peak_mib` is the memory of the copying process,
which does not grow with the number of deltas. With `--heap`, Spark tasks copy. Then `rss_step_mib` is the memory of the
asset's step, `rss_jvm_mib` that of Spark's JVM, `rss_spark_mib` that of the JVM and its Python workers, and `all_mib`
that of all of them with shared pages counted once (`all_begin_mib` before the migration).
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from benchmarks.moving import backend_uri, fill, run_move


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to copy")
    parser.add_argument("--from", dest="source", help="URI of an empty backend; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty backend; default: Parquet on disk")
    parser.add_argument("--one-way", action="store_true", help="do not copy back to SQLite")
    parser.add_argument("--heap", help="copy in Spark tasks, as assets do, with this heap of the JVM, such as 2g")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        source = backend_uri(servers, options.source, f"sqlite://{folder}/source.db")
        fill(source, options.deltas)
        target = backend_uri(servers, options.destination, f"file://{folder}/objects")
        found = run_move("migrate", source, target, options.heap)
        if options.one_way:
            return {"deltas": options.deltas, **found}
        back = run_move("migrate", target, f"sqlite://{folder}/back.db", options.heap)
    return {"deltas": options.deltas, **found, **{f"back_{name}": value for name, value in back.items()}}
