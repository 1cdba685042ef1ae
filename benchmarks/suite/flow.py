"""Flows: deltas per second from one backend to another, into a gateway, and from the lake, in Spark tasks.

A flow copies from SQLite to Parquet on the local disk, unless `--from` and `--to` name other backends: the URI of any
empty adapter, or `postgres` or `mariadb`, which are started. Memory figures are those of `scripts/bench migrate
--heap`. Figures with the prefix `push_` are of a flow into a gateway; `gateway_rss_peak_mib` is that gateway's memory.
Figures with the prefix `follow_` are of a destination that follows the lake: SQLite, or the adapter of `--leaf`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from benchmarks import server
from benchmarks.moving import backend_uri, fill, run_move


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to move")
    parser.add_argument("--from", dest="source", help="URI of an empty backend; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty backend; default: Parquet on disk")
    parser.add_argument("--leaf", help="URI of an empty backend that follows the lake; default: SQLite")
    parser.add_argument("--heap", default="2g", help="heap of Spark's JVM; the default is the one of `lakesync up`")
    parser.add_argument("--ways", default="flow,push,follow", help="moves to measure")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    found, ways = dict[str, Any](), options.ways.split(",")
    with server.temporary_folder(options.folder) as folder, ExitStack() as servers:
        source = backend_uri(servers, options.source, f"sqlite://{folder}/source.db")
        if ways != ["follow"]:
            fill(source, options.deltas)
        if "flow" in ways:
            target = backend_uri(servers, options.destination, f"file://{folder}/objects")
            found |= run_move("flow", source, target, options.heap)
        if "push" in ways:
            with server.gateway(folder, LAKESYNC_SERVICE_TOKEN=server.SECRET) as gateway, gateway.measure() as used:
                found |= _named("push", run_move("push", source, f"http://127.0.0.1:{gateway.port}", options.heap))
            found["gateway_rss_peak_mib"] = used[0].rss_peak_mib
        if "follow" in ways:
            lake, leaf = str(folder / "lake"), backend_uri(servers, options.leaf, f"sqlite://{folder}/leaf.db")
            run_move("history", lake, str(options.deltas), options.heap)
            found |= _named("follow", run_move("follow", lake, leaf, options.heap))
    return {"deltas": options.deltas, **found}


def _named(way: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures with a prefix for their names."""
    return {f"{way}_{name}": value for name, value in figures.items()}
