"""Migration: deltas a second from one backend to another, read, written, read back and compared at the end.

By default from SQLite to Parquet on this machine's disk; `--from` and `--to` take any adapter's URI, of an empty place,
or `postgres` or `mariadb`, which are started then. `rss_peak_mib` is the memory of the process that moves, which does
not grow with what is moved. With `--heap` executors move, and memory is `rss_step_mib` of the asset's step,
`rss_jvm_mib` of Spark's JVM and `rss_spark_mib` of the JVM and its Python workers, the greatest resident memory; and
`all_mib`, what all of them took of the machine, where a page that several share counts once (`all_begin_mib` before).
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
    parser.add_argument("--from", dest="source", help="URI of an empty place; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty place; default: Parquet on disk")
    parser.add_argument("--one-way", action="store_true", help="and not back again, to SQLite")
    parser.add_argument("--heap", help="have Spark's executors move, as assets do, with so much heap: 2g")


def run(options: Namespace) -> dict[str, Any]:
    """Measure."""
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
