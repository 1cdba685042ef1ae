"""Deltas pushed per second, with each push durable before its answer, and row states and feed entries stored.

A plain implementation (one SQLite row per delta, one commit per push) runs for comparison.

With `--mix` rows are inserted first and then written in the five shapes of `load.SHAPES`, one after another; the main
figures are those of `mixture`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import load, server
from tests.postgres_server import postgres_server


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=10_000, help="distinct rows")
    parser.add_argument("--batch", type=int, default=100, help="deltas in a push")
    parser.add_argument("--deltas", type=int, default=500_000, help="deltas in all")
    parser.add_argument("--seconds", type=float, default=60, help="end after this time at the latest")
    parser.add_argument("--columns", type=int, default=0, help="further columns of an INSERT")
    parser.add_argument("--no-baseline", action="store_true", help="leave the plain implementation out")
    parser.add_argument("--mix", action="store_true", help="rows that are there, and deltas of every shape")
    parser.add_argument("--shapes", default=",".join(load.SHAPES), help="with --mix: which")
    parser.add_argument("--rule", action="store_true", help="with --mix: one equality rule; each client its own rows")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite", help="with --mix: staging")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    if options.mix:
        return mix(options)
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
        found = load.figures(samples)
        found |= load.usage_figures(used[0], found["deltas"])
        found["stored_bytes_per_delta"] = round(stored / found["deltas"], 1)
        if not options.no_baseline:
            found |= against_plain(place, wanted, found["rate"])
    return found


def mix(options: Namespace) -> dict[str, Any]:
    """Every shape, over the same rows."""
    found: dict[str, Any] = {}
    filled = load.PushLoad(
        clients=options.clients, rows=options.rows, batch=1000, deltas=options.rows, own_team=options.rule
    )
    with ExitStack() as opened:
        place = opened.enter_context(server.folder(options.folder))
        settings = {}
        if options.store == "postgres":
            settings["LAKESYNC_STAGING_URL"] = opened.enter_context(postgres_server()).uri
        gateway = opened.enter_context(server.gateway(place / "gateway", **settings))
        plain = None if options.no_baseline else opened.enter_context(server.plain(place / "plain"))
        if options.rule:
            load.admin(gateway.port, "sync-rules", load.RULES)
        for measured in (gateway, plain):
            if measured is not None:
                load.apart(load.push, measured.port, filled)
        for shape in options.shapes.split(","):
            wanted = msgspec.structs.replace(
                filled, batch=options.batch, deltas=options.deltas, seconds=options.seconds, shape=shape
            )
            with gateway.measured() as used:
                samples = load.apart(load.push, gateway.port, wanted)
            figures = load.figures(samples)
            figures |= load.usage_figures(used[0], figures["deltas"])
            if plain is not None:
                figures |= _of_plain(plain, wanted, figures["rate"])
            found |= figures | {f"{shape}_{name}": figures[name] for name in ("rate", "p99_ms", "cpu_us_per_delta")}
    return found


def against_plain(place: Path, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    """The plain implementation's rate under a tenth of the same load, and how many times it `rate` is."""
    with server.plain(place / "plain") as plain:
        return _of_plain(plain, wanted, rate)


def _of_plain(plain: server.Server, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    less = msgspec.structs.replace(wanted, deltas=max(wanted.deltas // 10, wanted.clients * wanted.batch))
    baseline = load.figures(load.apart(load.push, plain.port, less))
    return {
        "plain_rate": baseline["rate"],
        "plain_p99_ms": baseline["p99_ms"],
        "ratio": round(rate / baseline["rate"], 2),
    }
