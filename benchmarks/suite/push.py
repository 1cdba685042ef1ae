"""Deltas per second that clients push. Each push is durable before its response; rows are merged for other clients.

`plain_rate` is the rate of a minimal server (`benchmarks.baselines`: one SQLite row per delta, one commit per push) for
comparison, and `ratio` that of the two. With `--mix`, rows are inserted first and then changed in each of the five
shapes of `load.SHAPES`, one after another; the figures without a shape's name are those of the last, `mixture`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import load, server
from benchmarks.suite import Benchmark
from tests.postgres_server import postgres_server


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=10_000, help="distinct rows")
    parser.add_argument("--batch", type=int, default=100, help="deltas in a push")
    parser.add_argument("--deltas", type=int, default=500_000, help="number of deltas of all clients together")
    parser.add_argument("--seconds", type=float, default=60, help="longest duration of the load")
    parser.add_argument("--columns", type=int, default=0, help="additional columns of an INSERT")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")
    parser.add_argument("--mix", action="store_true", help="measure changes of existing rows, in several shapes")
    parser.add_argument("--shapes", default=",".join(load.SHAPES), help="with --mix: the shapes to measure")
    parser.add_argument(
        "--rule", action="store_true", help="with --mix: with a sync rule; each client has its own rows"
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite", help="with --mix: staging store")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
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
    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway") as gateway:
            with gateway.measure() as used:
                samples = load.run_in_process(load.push, gateway.port, wanted)
            gateway.stop()
            stored = gateway.stored_bytes()
        found = load.figures(samples)
        found |= load.usage_figures(used[0], found["deltas"])
        found["stored_bytes_per_delta"] = round(stored / found["deltas"], 1)
        if not options.no_baseline:
            found |= plain_figures(folder, wanted, found["rate"])
    return found


def mix(options: Namespace) -> dict[str, Any]:
    """Measure each shape of `options.shapes` over the same rows, and return the figures."""
    found: dict[str, Any] = {}
    filled = load.PushLoad(
        clients=options.clients, rows=options.rows, batch=1000, deltas=options.rows, own_team=options.rule
    )
    with ExitStack() as opened:
        folder = opened.enter_context(server.temporary_folder(options.folder))
        settings = {}
        if options.store == "postgres":
            settings["LAKESYNC_STAGING_URL"] = opened.enter_context(postgres_server()).uri
        gateway = opened.enter_context(server.gateway(folder / "gateway", **settings))
        plain = None if options.no_baseline else opened.enter_context(server.plain(folder / "plain"))
        if options.rule:
            load.admin(gateway.port, "sync-rules", load.RULES)
        for measured in (gateway, plain):
            if measured is not None:
                load.run_in_process(load.push, measured.port, filled)
        for shape in options.shapes.split(","):
            wanted = msgspec.structs.replace(
                filled, batch=options.batch, deltas=options.deltas, seconds=options.seconds, shape=shape
            )
            with gateway.measure() as used:
                samples = load.run_in_process(load.push, gateway.port, wanted)
            figures = load.figures(samples)
            figures |= load.usage_figures(used[0], figures["deltas"])
            if plain is not None:
                figures |= _of_plain(plain, wanted, figures["rate"])
            found |= figures | {f"{shape}_{name}": figures[name] for name in ("rate", "p99_ms", "cpu_us_per_delta")}
    return found


def plain_figures(folder: Path, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    """Return the figures of the minimal server under a tenth of the same load.

    Args:
        folder: folder for the server's data.
        wanted: the load of the gateway.
        rate: the gateway's rate, from which the ratio is computed.
    """
    with server.plain(folder / "plain") as plain:
        return _of_plain(plain, wanted, rate)


def _of_plain(plain: server.Server, wanted: load.PushLoad, rate: float) -> dict[str, Any]:
    """Return the figures of the running minimal server; see `plain_figures`."""
    less = msgspec.structs.replace(wanted, deltas=max(wanted.deltas // 10, wanted.clients * wanted.batch))
    baseline = load.figures(load.run_in_process(load.push, plain.port, less))
    return {
        "plain_rate": baseline["rate"],
        "plain_p99_ms": baseline["p99_ms"],
        "ratio": round(rate / baseline["rate"], 2),
    }


BENCHMARKS = (Benchmark("push", __doc__, arguments, run),)
