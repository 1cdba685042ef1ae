"""Deltas pushed a second, every push durable before its answer, row states and feed entries kept.

Beside it, in the same run, a plain implementation (one SQLite row a delta, one commit a push).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import load, report, server


def arguments(parser: ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=10_000, help="distinct rows")
    parser.add_argument("--batch", type=int, default=100, help="deltas in a push")
    parser.add_argument("--deltas", type=int, default=500_000, help="deltas in all")
    parser.add_argument("--seconds", type=float, default=60, help="end after this time at the latest")
    parser.add_argument("--columns", type=int, default=0, help="further columns of an INSERT")
    parser.add_argument("--no-baseline", action="store_true", help="leave the plain implementation out")


def run(options: Namespace) -> dict[str, Any]:
    """Measure."""
    wanted = load.PushLoad(
        clients=options.clients,
        rows=options.rows,
        batch=options.batch,
        deltas=options.deltas,
        seconds=options.seconds,
        columns=options.columns,
    )
    with server.folder(options.folder) as place:
        with server.gateway(place / "gateway") as gateway:
            with gateway.measured() as used:
                samples = load.apart(load.push, gateway.port, wanted)
            gateway.stop()
            stored = gateway.stored_bytes()
        found = report.figures(samples)
        found |= report.usage(used[0], found["deltas"])
        found["stored_bytes_per_delta"] = round(stored / found["deltas"], 1)
        if not options.no_baseline:
            found |= against_plain(place, wanted, found["rate"])
    return found


def against_plain(place: Path, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    """The plain implementation's rate under a tenth of the same load, and how many times it `rate` is."""
    with server.plain(place / "plain") as plain:
        less = msgspec.structs.replace(wanted, deltas=max(wanted.deltas // 10, wanted.clients * wanted.batch))
        baseline = report.figures(load.apart(load.push, plain.port, less))
    return {
        "plain_rate": baseline["rate"],
        "plain_p99_ms": baseline["p99_ms"],
        "ratio": round(rate / baseline["rate"], 2),
    }
