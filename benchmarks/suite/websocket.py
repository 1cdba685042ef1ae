"""Many WebSocket connections: memory per connection, deliveries per second, and the duration of a storm of reconnects.

The writer pushes faster than single broadcasts are possible, so that broadcasts combine pushes. A plain fan-out without
storage that broadcasts every push runs for comparison.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import crowd, load, server
from benchmarks.suite.latency import LIMITS, figures


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200, help="pushes a second, of one delta each")
    parser.add_argument("--pushes", type=int, default=1000)
    parser.add_argument("--no-baseline", action="store_true", help="leave the bare fan-out out")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    wanted = crowd.Crowd(
        connections=options.connections, pushes=options.pushes, pushes_per_second=options.rate, storm=True
    )
    with server.folder(options.folder) as place:
        with server.gateway(place / "gateway", **LIMITS) as gateway:
            with gateway.measured() as idle:
                quiet = load.apart(crowd.hold, gateway.port, msgspec.structs.replace(wanted, pushes=0))
            with gateway.measured() as used:
                held = load.apart(crowd.hold, gateway.port, wanted)
        found = figures(held) | used[0]._asdict()
        found["connections"] = options.connections
        found["kib_per_connection"] = round(
            (idle[0].rss_peak_mib - idle[0].rss_begin_mib) * 1024 / options.connections, 1
        )
        found["connect_seconds"] = quiet.connect_seconds
        found["storm_seconds"] = held.reconnect_seconds
        if not options.no_baseline:
            with server.echo(place / "echo") as echo:
                bare = load.apart(crowd.hold, echo.port, msgspec.structs.replace(wanted, echo=True))
            told = figures(bare)
            found["echo_deliveries_per_second"] = told["deliveries_per_second"]
            found["echo_storm_seconds"] = bare.reconnect_seconds
            found["ratio"] = round(found["deliveries_per_second"] / told["deliveries_per_second"], 2)
    return found
