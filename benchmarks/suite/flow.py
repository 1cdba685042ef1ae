"""Flows: deltas a second from one backend to another, and from there into a gateway, by Spark's executors.

By default from SQLite to Parquet on this machine's disk; `--from` and `--to` take any adapter's URI, of an empty place.
The `rss_` figures are those of `scripts/bench migrate --heap`. With `push_` before them they are of the flow into the
gateway, whose own memory, that of a server that takes as many deltas, is `gateway_rss_peak_mib`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import server
from benchmarks.moving import fill, moved


def arguments(parser: ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="to be moved")
    parser.add_argument("--from", dest="source", help="URI of an empty place; default: SQLite")
    parser.add_argument("--to", dest="destination", help="URI of an empty place; default: Parquet on disk")
    parser.add_argument("--heap", default="512m", help="heap of Spark's JVM")
    parser.add_argument("--no-push", action="store_true", help="leave the gateway out")


def run(options: Namespace) -> dict[str, Any]:
    """Measure."""
    with server.folder(options.folder) as place:
        source = options.source or f"sqlite://{place}/source.db"
        fill(source, options.deltas)
        found = moved("flow", source, options.destination or f"file://{place}/objects", options.heap)
        if not options.no_push:
            with server.gateway(place, LAKESYNC_SERVICE_TOKEN=server.SECRET) as gateway, gateway.measured() as used:
                pushed = moved("push", source, f"http://127.0.0.1:{gateway.port}", options.heap)
            found |= {f"push_{name}": value for name, value in pushed.items()}
            found["gateway_rss_peak_mib"] = used[0].rss_peak_mib
    return {"deltas": options.deltas, **found}
