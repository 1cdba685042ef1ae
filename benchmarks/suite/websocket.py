"""Many WebSocket connections: memory per connection, deliveries per second, and seconds until all have reconnected.

The writer pushes faster than the gateway could send single broadcasts, so that one broadcast contains several pushes.
Figures with `echo_` are those of a minimal server without storage (`benchmarks.baselines`), which forwards every push.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import broadcasts, load, server
from benchmarks.suite.latency import LIMITS, figures


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200, help="pushes a second, of one delta each")
    parser.add_argument("--pushes", type=int, default=1000)
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    wanted = broadcasts.BroadcastLoad(
        connections=options.connections, pushes=options.pushes, pushes_per_second=options.rate, storm=True
    )
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway", **LIMITS) as gateway:
            with gateway.measure() as idle:
                quiet = load.run_in_process(
                    broadcasts.run_load, gateway.port, msgspec.structs.replace(wanted, pushes=0)
                )
            with gateway.measure() as used:
                result = load.run_in_process(broadcasts.run_load, gateway.port, wanted)
        found = figures(result) | used[0]._asdict()
        found["connections"] = options.connections
        found["kib_per_connection"] = round(
            (idle[0].rss_peak_mib - idle[0].rss_begin_mib) * 1024 / options.connections, 1
        )
        found["connect_seconds"] = quiet.connect_seconds
        found["storm_seconds"] = result.reconnect_seconds
        if not options.no_baseline:
            with server.echo(folder / "echo") as echo:
                echo_result = load.run_in_process(
                    broadcasts.run_load, echo.port, msgspec.structs.replace(wanted, echo=True)
                )
            baseline = figures(echo_result)
            found["echo_deliveries_per_second"] = baseline["deliveries_per_second"]
            found["echo_storm_seconds"] = echo_result.reconnect_seconds
            found["ratio"] = round(found["deliveries_per_second"] / baseline["deliveries_per_second"], 2)
    return found
