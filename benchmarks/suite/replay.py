"""Benchmark `replay`: processor time of pushes in one process, without HTTP and without the load generator.

16 clients change the same rows, in the shapes of `push --mix`. All pushes are prepared before. The figures show what
decoding, merging and storing cost, with less noise than `push`. To compare two commits, run them in turns: the speed of
a machine may drift by a third. `scripts/bench` runs it.
"""

from __future__ import annotations

import gc
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from benchmarks import load, server
from benchmarks.suite import Benchmark
from lakesync.engine import Engine
from lakesync.engine.checks import EngineLimits
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.pushing import PushRequest
from lakesync.model.hlc import wall_clock
from lakesync.model.parts import parts
from lakesync.staging import open_store
from lakesync.wire.json import decode_push

_GC_THRESHOLD = 20_000
"""As in the gateway, garbage is collected rarely."""


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--shape", default="mixture", choices=load.SHAPES, help="how a delta changes a row")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--deltas", type=int, default=200_000)


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    filled = load.PushLoad(rows=options.rows, batch=1000, deltas=options.rows)
    wanted = msgspec.structs.replace(filled, batch=100, deltas=options.deltas, shape=options.shape)
    first, pushes = load.push_bodies(filled), load.push_bodies(wanted)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    with server.temporary_folder(options.folder) as folder:
        limits = EngineLimits(max_backpressure_bytes=1 << 40)
        engine = Engine(open_store(f"sqlite://{folder}", wall_clock), wall_clock, limits)
        engine.open()
        try:
            gateway = engine.gateway(server.GATEWAY)
            _push(gateway, first, wanted.clients)
            tenth = max(1, len(pushes) // 10)
            spent = [_push(gateway, part, wanted.clients) for part in parts(pushes, tenth)]
        finally:
            engine.close()
    return {
        "deltas": options.deltas,
        "cpu_us_per_delta": round(sum(spent) / options.deltas * 1e6, 2),
        "tenths_us": [round(seconds / tenth / wanted.batch * 1e6, 1) for seconds in spent[:10]],
    }


def _push(gateway: SyncGateway, pushes: Sequence[tuple[str, bytes]], clients: int) -> float:
    """Push, and return the seconds of processor time.

    Args:
        gateway: the gateway.
        pushes: the pushes, each with its client's id.
        clients: number of pushes that are submitted together, as by clients that wait for their responses.
    """
    begun = time.process_time()
    for part in parts(pushes, clients):
        for submitted in [gateway.submit_push(partial(_received, *each)) for each in part]:
            submitted.result()
    return time.process_time() - begun


def _received(client: str, body: bytes) -> PushRequest:
    """Return the decoded push of a client."""
    return PushRequest(decode_push(body), {"sub": client})


BENCHMARKS = (Benchmark("replay", __doc__, arguments, run),)
