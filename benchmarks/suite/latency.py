"""Latency from a push of one delta to its broadcast at every other client, over WebSockets.

A writer pushes durably at a constant rate; every other connection gets every push. A plain fan-out without storage runs
for comparison; the ratio is of the medians.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from benchmarks import crowd, load, server

LIMITS = {
    "LAKESYNC_LIMITS_WEBSOCKET_CONNECTIONS": "100000",
    "LAKESYNC_LIMITS_WEBSOCKET_MESSAGES_PER_SECOND": "1000000",
}


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100, help="pushes a second, of one delta each")
    parser.add_argument("--pushes", type=int, default=1000)
    parser.add_argument("--no-baseline", action="store_true", help="leave the bare fan-out out")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    wanted = crowd.Crowd(connections=options.connections, pushes=options.pushes, pushes_per_second=options.rate)
    with server.folder(options.folder) as place:
        with server.gateway(place / "gateway", **LIMITS) as gateway, gateway.measured() as used:
            held = load.apart(crowd.hold, gateway.port, wanted)
        found = figures(held) | used[0]._asdict()
        found["cpu_us_per_delivery"] = round(used[0].cpu_seconds / found["deliveries"] * 1e6, 1)
        if not options.no_baseline:
            with server.echo(place / "echo") as echo, echo.measured() as spent:
                bare = load.apart(crowd.hold, echo.port, msgspec.structs.replace(wanted, echo=True))
            told = figures(bare)
            found |= {"echo_p50_ms": told["p50_ms"], "echo_p99_ms": told["p99_ms"]}
            found["echo_cpu_us_per_delivery"] = round(spent[0].cpu_seconds / told["deliveries"] * 1e6, 1)
            found["ratio"] = round(found["p50_ms"] / told["p50_ms"], 2)
    return found


def figures(held: crowd.Held) -> dict[str, Any]:
    """Return deliveries and their latencies."""
    latencies = sorted(sample.seconds * 1000 for sample in held.samples)
    return {
        "deliveries": len(latencies),
        "deliveries_per_second": round(len(latencies) / held.pushed_seconds),
        "seconds": held.pushed_seconds,
        "p50_ms": load.percentile(latencies, 50),
        "p95_ms": load.percentile(latencies, 95),
        "p99_ms": load.percentile(latencies, 99),
    }
