"""Latency from a push of one delta to its broadcast at every other client, over WebSockets.

A writer pushes at a constant rate; the gateway stores each push durably and sends it to every other connection. Figures
with `echo` are those of a minimal server without storage (`benchmarks.baselines`); `ratio` is that of the medians.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import broadcasts, load, server

LIMITS = {
    "LAKESYNC_LIMITS_WEBSOCKET_CONNECTIONS": "100000",
    "LAKESYNC_LIMITS_WEBSOCKET_MESSAGES_PER_SECOND": "1000000",
}
"""Settings of a gateway whose limits the load does not reach."""


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100, help="pushes a second, of one delta each")
    parser.add_argument("--pushes", type=int, default=1000)
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    wanted = broadcasts.BroadcastLoad(
        connections=options.connections, pushes=options.pushes, pushes_per_second=options.rate
    )
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway", **LIMITS) as gateway, gateway.measure() as used:
            result = load.run_in_process(broadcasts.run_load, gateway.port, wanted)
        found = figures(result) | used[0]._asdict()
        found["cpu_us_per_delivery"] = round(used[0].cpu_seconds / found["deliveries"] * 1e6, 1)
        if not options.no_baseline:
            with server.echo(folder / "echo") as echo, echo.measure() as spent:
                echo_result = load.run_in_process(
                    broadcasts.run_load, echo.port, msgspec.structs.replace(wanted, echo=True)
                )
            baseline = figures(echo_result)
            found |= {"echo_p50_ms": baseline["p50_ms"], "echo_p99_ms": baseline["p99_ms"]}
            found["echo_cpu_us_per_delivery"] = round(spent[0].cpu_seconds / baseline["deliveries"] * 1e6, 1)
            found["ratio"] = round(found["p50_ms"] / baseline["p50_ms"], 2)
    return found


def figures(result: broadcasts.BroadcastResult) -> dict[str, Any]:
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
