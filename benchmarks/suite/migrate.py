"""Migration: deltas per second from one backend to another, copied, read back and verified at the end.

By default from SQLite to Parquet on the local disk. `--from` and `--to` accept the URI of any empty adapter, or
`postgres` or `mariadb`, which are started. `rss_peak_mib` is the memory of the moving process, which does not grow with
the number of deltas. With `--heap` Spark executors move the deltas. Then memory is `rss_step_mib` of the asset's step,
`rss_jvm_mib` of Spark's JVM, `rss_spark_mib` of the JVM and its Python workers, and `all_mib` of all of them with
shared pages counted once (`all_begin_mib` before).
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
    parser.add_argument("--from", dest="source", help="URI of an empty place; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty place; default: Parquet on disk")
    parser.add_argument("--one-way", action="store_true", help="and not back again, to SQLite")
    parser.add_argument("--heap", help="have Spark's executors move, as assets do, with so much heap: 2g")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        source = place(servers, options.source, f"sqlite://{folder}/source.db")
        fill(source, options.deltas)
        target = place(servers, options.destination, f"file://{folder}/objects")
        found = moved("migrate", source, target, options.heap)
        if options.one_way:
            return {"deltas": options.deltas, **found}
        back = moved("migrate", target, f"sqlite://{folder}/back.db", options.heap)
    return {"deltas": options.deltas, **found, **{f"back_{name}": value for name, value in back.items()}}
