"""Batches of the lake's history, for tests of followers. It imports little, because killed processes use it."""

from __future__ import annotations

import pyarrow as pa

from lakesync.adapters import StoredDelta
from lakesync.adapters.arrow import to_arrow
from tests.conformance.book import make_delta


def history(pushes, size=7, shard="main"):
    """Batches of the lake's history from `(gateway, arrival, deltas)`, in order; one flush for every two pushes."""
    found = []
    for gateway, arrival, deltas in sorted(pushes, key=lambda push: push[:2]):
        table = to_arrow([StoredDelta(gateway, arrival, delta) for delta in deltas])
        for name, value in (("shard", shard), ("batch_id", f"{gateway}.{shard}.1.{(arrival - 1) // 1024}")):
            table = table.append_column(name, pa.array([value] * len(table), pa.string()))
        found.append(table)
    return pa.concat_tables(found).combine_chunks().to_batches(size) if found else []


def pushes(count=12, each=3):
    return [
        (
            "gh"[number % 2],
            256 * number,
            [make_delta("c", 100 * number + n, f"r{(number + n) % 5}", size=10 * number + n) for n in range(each)],
        )
        for number in range(1, count + 1)
    ]
