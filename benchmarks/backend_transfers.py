"""Tools of the transfer benchmarks: synthetic deltas, empty backends, and transfers in a process of their own.

`python -m benchmarks.backend_transfers migrate|tier URI URI` is one transfer without Spark. `run_transfer` starts it,
or `benchmarks.spark_transfers` for a transfer with Spark, in a process of its own, to measure its memory. It prints one
JSON object: deltas moved, their rate, microseconds of processor time per delta, and peak memory in MiB.
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pyarrow as pa
import pymysql

from lakesync.adapters.arrow import arrow_schema
from lakesync.adapters.arrow_access import write_arrow
from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.composite import LifecycleAdapter
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.adapters.transfer.migration import migrate_adapter
from tests.backend_servers import mariadb_server
from tests.postgres_server import postgres_server


def deltas_between(first: int, last: int) -> pa.Table:
    """Return synthetic deltas of one gateway, in pushes of 100, each with three columns.

    Args:
        first: number of the first delta.
        last: number after the last delta.
    """
    numbers, count = range(first, last), last - first
    cells = [[("title", f'"item {n}"'), ("size", str(n % 1000)), ("tags", f'["a",{{"n":{n}}}]')] for n in numbers]
    columns = [
        ["g"] * count,
        [(1_700_000_000_000 + n // 100) << 16 for n in numbers],
        ["items"] * count,
        [f"row-{n % 50_000}" for n in numbers],
        ["UPDATE"] * count,
        [f"client-{n % 20}" for n in numbers],
        [(1_700_000_000_000 << 16) + n for n in numbers],
        [hashlib.sha256(str(n).encode()).hexdigest() for n in numbers],
        cells,
    ]
    schema = arrow_schema()
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


_DELTAS_PER_BATCH = 50_000


def backend_uri(servers: ExitStack, given: str | None, default: str) -> str:
    """Return the URI of an empty backend. Start a server if the option names one.

    Args:
        servers: stops the servers when it exits.
        given: the option's value: a URI, `postgres`, `mariadb`, or None.
        default: the URI if the option is not given.
    """
    if given == "postgres":
        return servers.enter_context(postgres_server()).uri
    if given == "mariadb":
        server = servers.enter_context(mariadb_server())
        with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as sql, sql.cursor() as cursor:
            cursor.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        return f"{server.uri}/bench"
    return given or default


def fill(uri: str, count: int) -> None:
    """Write synthetic deltas to a backend in batches.

    Args:
        uri: the backend's URI.
        count: number of deltas.
    """
    adapter = as_database(open_adapter(uri))
    for number, part in enumerate(_parts(count)):
        write_arrow(adapter, f"g.main.1.{number}", "g", part)
    adapter.close()


def run_transfer(transfer: str, source: str, destination: str, heap: str | None = None) -> dict[str, Any]:
    """Run one transfer in a process of its own, and return its figures.

    Args:
        transfer: `migrate` or `tier`; with `heap` also the other transfers of `benchmarks.spark_transfers`.
        source: URI of the backend with the deltas.
        destination: URI of the other backend.
        heap: heap of Spark's JVM, such as `2g`, to move with Spark tasks as assets do. None: without Spark.
    """
    module, *more = ("benchmarks.backend_transfers",) if heap is None else ("benchmarks.spark_transfers", heap)
    done = subprocess.run(
        [sys.executable, "-m", module, transfer, source, destination, *more], check=True, stdout=subprocess.PIPE
    )
    found: dict[str, Any] = msgspec.json.decode(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Move the deltas, and print the figures."""
    transfer, *uris = sys.argv[1:]
    source, destination = (as_database(open_adapter(uri)) for uri in uris)
    begun, used = time.perf_counter(), time.process_time()
    count = _tier(source, destination) if transfer == "tier" else migrate_adapter(source, destination).deltas
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    figures = {
        "moved": count,
        "rate": round(count / seconds),
        "cpu_us_per_delta": round(cpu / count * 1e6, 2),
        "rss_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(msgspec.json.encode(figures).decode())


def _tier(hot: DatabaseAdapter, cold: DatabaseAdapter) -> int:
    """Move all deltas from a hot tier to a cold one, and return their number."""
    return LifecycleAdapter(hot, cold, 0).migrate_to_tier().deltas


def _parts(count: int) -> Iterator[pa.Table]:
    """Yield synthetic deltas in batches."""
    for start in range(0, count, _DELTAS_PER_BATCH):
        yield deltas_between(start, min(count, start + _DELTAS_PER_BATCH))


if __name__ == "__main__":
    main()
