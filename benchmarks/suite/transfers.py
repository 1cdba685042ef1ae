"""Benchmarks of transfers of deltas between backends, which are databases and object stores.

A migration copies all deltas once, tiering moves old ones to a cold backend, and a flow copies new ones each time it
runs. `benchmarks.backend_transfers` has their common tools.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from benchmarks import server
from benchmarks.backend_transfers import backend_uri, fill, run_transfer
from benchmarks.suite import Benchmark


def _migrate_arguments(parser: ArgumentParser) -> None:
    """Add the options of `migrate`."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to copy")
    parser.add_argument("--from", dest="source", help="URI of an empty backend; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty backend; default: Parquet on disk")
    parser.add_argument("--one-way", action="store_true", help="do not copy back to SQLite")
    parser.add_argument("--heap", help="copy in Spark tasks, as assets do, with this heap of the JVM, such as 2g")


def migrate(options: Namespace) -> dict[str, Any]:
    """Migrations: deltas per second that are copied from one backend to another, read back and verified at the end.

    A migration copies from SQLite to Parquet on the local disk, unless `--from` and `--to` name other backends: the URI
    of any empty adapter, or `postgres` or `mariadb`, which are started. `rss_peak_mib` is the memory of the copying
    process, which does not grow with the number of deltas. With `--heap`, Spark tasks copy. Then `rss_step_mib` is the
    memory of the asset's step, `rss_jvm_mib` that of Spark's JVM, `rss_spark_mib` that of the JVM and its Python
    workers, and `all_mib` that of all of them with shared pages counted once (`all_begin_mib` before the migration).
    """
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        source = backend_uri(servers, options.source, f"sqlite://{folder}/source.db")
        fill(source, options.deltas)
        target = backend_uri(servers, options.destination, f"file://{folder}/objects")
        found = run_transfer("migrate", source, target, options.heap)
        if options.one_way:
            return {"deltas": options.deltas, **found}
        back = run_transfer("migrate", target, f"sqlite://{folder}/back.db", options.heap)
    return {"deltas": options.deltas, **found, **{f"back_{name}": value for name, value in back.items()}}


def _tiering_arguments(parser: ArgumentParser) -> None:
    """Add the options of `tiering`."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to move")
    parser.add_argument("--hot", help="URI of an empty backend; default: SQLite")
    parser.add_argument("--cold", help="URI of an empty backend; default: Parquet on disk")
    parser.add_argument("--heap", help="move in Spark tasks, as assets do, with this heap of the JVM, such as 2g")


def tiering(options: Namespace) -> dict[str, Any]:
    """Tiering: deltas per second that move from a hot tier to a cold one: copied, read back, and then deleted.

    The hot tier is SQLite and the cold one Parquet on the local disk, unless `--hot` and `--cold` name other backends:
    the URI of any empty adapter, or `postgres` or `mariadb`, which are started.
    """
    with ExitStack() as servers:
        folder = servers.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="lakesync-bench-"))
        hot = backend_uri(servers, options.hot, f"sqlite://{folder}/hot.db")
        cold = backend_uri(servers, options.cold, f"file://{folder}/objects")
        fill(hot, options.deltas)
        return {"deltas": options.deltas, **run_transfer("tier", hot, cold, options.heap)}


def _flow_arguments(parser: ArgumentParser) -> None:
    """Add the options of `flow`."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to move")
    parser.add_argument("--from", dest="source", help="URI of an empty backend; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty backend; default: Parquet on disk")
    parser.add_argument("--leaf", help="URI of an empty backend that follows the lake; default: SQLite")
    parser.add_argument("--heap", default="2g", help="heap of Spark's JVM; the default is the one of `lakesync up`")
    parser.add_argument("--ways", default="flow,push,follow", help="transfers to measure")


def flow(options: Namespace) -> dict[str, Any]:
    """Flows: deltas per second from one backend to another, into a gateway, and from the lake, in Spark tasks.

    A flow copies from SQLite to Parquet on the local disk, unless `--from` and `--to` name other backends: the URI of
    any empty adapter, or `postgres` or `mariadb`, which are started. Memory figures are those of `scripts/bench migrate
    --heap`. Figures with the prefix `push_` are of a flow into a gateway; `gateway_rss_peak_mib` is that gateway's
    memory. Figures with the prefix `follow_` are of a destination that follows the lake: SQLite, or the adapter of
    `--leaf`.
    """
    found, ways = dict[str, Any](), options.ways.split(",")
    with server.temporary_folder(options.folder) as folder, ExitStack() as servers:
        source = backend_uri(servers, options.source, f"sqlite://{folder}/source.db")
        if ways != ["follow"]:
            fill(source, options.deltas)
        if "flow" in ways:
            target = backend_uri(servers, options.destination, f"file://{folder}/objects")
            found |= run_transfer("flow", source, target, options.heap)
        if "push" in ways:
            with server.gateway(folder, LAKESYNC_SERVICE_TOKEN=server.SECRET) as gateway, gateway.measure() as used:
                found |= _named("push", run_transfer("push", source, f"http://127.0.0.1:{gateway.port}", options.heap))
            found["gateway_rss_peak_mib"] = used[0].rss_peak_mib
        if "follow" in ways:
            lake, leaf = str(folder / "lake"), backend_uri(servers, options.leaf, f"sqlite://{folder}/leaf.db")
            run_transfer("history", lake, str(options.deltas), options.heap)
            found |= _named("follow", run_transfer("follow", lake, leaf, options.heap))
    return {"deltas": options.deltas, **found}


def _named(way: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures with a prefix for their names."""
    return {f"{way}_{name}": value for name, value in figures.items()}


BENCHMARKS = (
    Benchmark("migrate", migrate.__doc__, _migrate_arguments, migrate),
    Benchmark("tiering", tiering.__doc__, _tiering_arguments, tiering),
    Benchmark("flow", flow.__doc__, _flow_arguments, flow),
)
