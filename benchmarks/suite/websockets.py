"""Benchmarks of WebSockets: the latency of broadcasts, and many connections."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import broadcasts, load, server
from benchmarks.suite import Benchmark

_LIMITS = {
    "LAKESYNC_LIMITS_WEBSOCKET_CONNECTIONS": "100000",
    "LAKESYNC_LIMITS_WEBSOCKET_MESSAGES_PER_SECOND": "1000000",
}
"""Settings of a gateway whose limits the load does not reach."""


def _latency_arguments(parser: ArgumentParser) -> None:
    """Add the options of `latency`."""
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100, help="pushes a second, of one delta each")
    parser.add_argument("--pushes", type=int, default=1000)
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")


def latency(options: Namespace) -> dict[str, Any]:
    """Latency from a push of one delta to its broadcast at every other client, over WebSockets.

    A writer pushes at a constant rate; the gateway stores each push durably and sends it to every other connection.
    Figures with `echo` are those of a minimal server without storage (`benchmarks.baselines`); `ratio` is that of the
    medians.
    """
    wanted = broadcasts.BroadcastLoad(
        connections=options.connections, pushes=options.pushes, pushes_per_second=options.rate
    )
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway", **_LIMITS) as gateway, gateway.measure() as used:
            result = load.run_in_process(broadcasts.run_load, gateway.port, wanted)
        found = _figures(result) | used[0]._asdict()
        found["cpu_us_per_delivery"] = round(used[0].cpu_seconds / found["deliveries"] * 1e6, 1)
        if not options.no_baseline:
            with server.echo(folder / "echo") as echo, echo.measure() as spent:
                echo_result = load.run_in_process(
                    broadcasts.run_load, echo.port, msgspec.structs.replace(wanted, echo=True)
                )
            baseline = _figures(echo_result)
            found |= {"echo_p50_ms": baseline["p50_ms"], "echo_p99_ms": baseline["p99_ms"]}
            found["echo_cpu_us_per_delivery"] = round(spent[0].cpu_seconds / baseline["deliveries"] * 1e6, 1)
            found["ratio"] = round(found["p50_ms"] / baseline["p50_ms"], 2)
    return found


def _websocket_arguments(parser: ArgumentParser) -> None:
    """Add the options of `websocket`."""
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200, help="pushes a second, of one delta each")
    parser.add_argument("--pushes", type=int, default=1000)
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")


def websocket(options: Namespace) -> dict[str, Any]:
    """Many WebSocket connections: memory per connection, deliveries per second, and seconds until all have reconnected.

    The writer pushes faster than the gateway could send single broadcasts, so that one broadcast contains several
    pushes. Figures with `echo_` are those of a minimal server without storage (`benchmarks.baselines`), which forwards
    every push.
    """
    wanted = broadcasts.BroadcastLoad(
        connections=options.connections, pushes=options.pushes, pushes_per_second=options.rate, storm=True
    )
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway", **_LIMITS) as gateway:
            with gateway.measure() as idle:
                quiet = load.run_in_process(
                    broadcasts.run_load, gateway.port, msgspec.structs.replace(wanted, pushes=0)
                )
            with gateway.measure() as used:
                result = load.run_in_process(broadcasts.run_load, gateway.port, wanted)
        found = _figures(result) | used[0]._asdict()
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
            baseline = _figures(echo_result)
            found["echo_deliveries_per_second"] = baseline["deliveries_per_second"]
            found["echo_storm_seconds"] = echo_result.reconnect_seconds
            found["ratio"] = round(found["deliveries_per_second"] / baseline["deliveries_per_second"], 2)
    return found


def _figures(result: broadcasts.BroadcastResult) -> dict[str, Any]:
    """Return the number of deliveries, their rate, and percentiles of their latencies in milliseconds."""
    latencies = sorted(sample.seconds * 1000 for sample in result.samples)
    return {
        "deliveries": len(latencies),
        "deliveries_per_second": round(len(latencies) / result.pushed_seconds),
        "seconds": result.pushed_seconds,
        "p50_ms": load.percentile(latencies, 50),
        "p95_ms": load.percentile(latencies, 95),
        "p99_ms": load.percentile(latencies, 99),
    }


BENCHMARKS = (
    Benchmark("latency", latency.__doc__, _latency_arguments, latency),
    Benchmark("websocket", websocket.__doc__, _websocket_arguments, websocket),
)
