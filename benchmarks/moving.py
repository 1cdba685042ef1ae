"""`python -m benchmarks.moving migrate|tier URI URI` runs one move in a process of its own, to measure its memory.

Prints one JSON object: deltas moved, seconds, processor seconds and peak memory in MiB. The benchmarks of adapters and
moves take its generated deltas.
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
from lakesync.adapters.compositions.lifecycle import LifecycleAdapter
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.adapters.transfer.migration import migrate_adapter
from tests.backend_servers import mariadb_server
from tests.postgres_server import postgres_server


def deltas_between(first: int, last: int) -> pa.Table:
    """Return deltas of one gateway with the given numbers, in pushes of 100, three columns each."""
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


PART = 50_000


def place(servers: ExitStack, given: str | None, default: str) -> str:
    """Return the URI of an empty backend; `postgres` and `mariadb` start a server.

    Args:
        servers: stops the servers when it exits.
        given: a URI or one of those names.
        default: used if nothing is given.
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
    """Write deltas to a backend in batches."""
    adapter = as_database(open_adapter(uri))
    for number, part in enumerate(_parts(count)):
        write_arrow(adapter, f"g.main.1.{number}", "g", part)
    adapter.close()


def moved(how: str, source: str, destination: str, heap: str | None = None) -> dict[str, Any]:
    """Run one move in a process of its own.

    Args:
        how: `migrate` or `tier`.
        source: URI of the backend with the deltas.
        destination: URI of the other backend.
        heap: of Spark's JVM; with it, Spark executors move the deltas as for assets.
    """
    module, *more = ("benchmarks.moving",) if heap is None else ("benchmarks.executors", heap)
    done = subprocess.run(
        [sys.executable, "-m", module, how, source, destination, *more], check=True, stdout=subprocess.PIPE
    )
    found: dict[str, Any] = msgspec.json.decode(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Move the deltas, and print the figures."""
    how, *uris = sys.argv[1:]
    source, destination = (as_database(open_adapter(uri)) for uri in uris)
    begun, used = time.perf_counter(), time.process_time()
    count = _tier(source, destination) if how == "tier" else migrate_adapter(source, destination).deltas
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    told = {
        "moved": count,
        "rate": round(count / seconds),
        "cpu_us_per_delta": round(cpu / count * 1e6, 2),
        "rss_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(msgspec.json.encode(told).decode())


def _tier(hot: DatabaseAdapter, cold: DatabaseAdapter) -> int:
    return LifecycleAdapter(hot, cold, 0).migrate_to_tier().deltas


def _parts(count: int) -> Iterator[pa.Table]:
    for start in range(0, count, PART):
        yield deltas_between(start, min(count, start + PART))


if __name__ == "__main__":
    main()
