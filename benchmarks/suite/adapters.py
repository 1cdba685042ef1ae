"""Adapters: append, upsert and read, each compared with the driver's own bulk path on the same data.

An adapter stores deltas and current rows in a database or object store. `append` and `read` are of deltas, `upsert` is
of rows.

Rates are deltas or rows per second; `_ratio` is the adapter's rate divided by the driver's. Postgres, MariaDB and S3
(moto) are started as for the tests, so `scripts/install --dev` is required. `cpu_us` is this process's processor time,
`server_us` the database server's. Postgres is configured for bulk loads unless `--untuned`, and read after `VACUUM
ANALYZE`. It is warmed up with the same amount unless `--cold`: a new server zeroes its log files and touches its memory
for the first time while it is measured. `append_keyed` is the driver's COPY of prepared bytes into a table with the
adapter's keys and indexes: the upper bound for the adapter.
"""

from __future__ import annotations

import io
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks.backend_transfers import deltas_between
from benchmarks.suite import Benchmark
from lakesync.adapters.arrow import columns_as_text
from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.backends.postgres_arrow import encode_binary
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.object_store.deltas import ObjectDeltas
from lakesync.adapters.sql import SqlAdapter
from lakesync.adapters.sql.delta_table import DELTAS_TABLE, to_table_rows
from lakesync.adapters.sql.row_tables import RowTable
from lakesync.adapters.sql.row_values import rows_schema
from lakesync.model.schema import parse_schema

_SCHEMA = parse_schema(
    {
        "table": "items",
        "columns": [
            {"name": "title", "type": "string"},
            {"name": "size", "type": "number"},
            {"name": "tags", "type": "json"},
        ],
    }
)
_PAGE = 100_000
"""Deltas in one batch or page."""
_TUNED = {
    "shared_buffers": "2GB",
    "wal_buffers": "64MB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
}
"""An operator's settings of Postgres for bulk loads: fewer checkpoints."""


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=200_000, help="deltas to append and read, in batches of 100,000")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to upsert into a table that has these rows")
    parser.add_argument("--untuned", action="store_true", help="use Postgres with its default settings")
    parser.add_argument("--cold", action="store_true", help="measure Postgres without warming it up")
    parser.add_argument("--backends", default="postgres,mariadb,s3", help="backends to measure")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    found: dict[str, Any] = {"deltas": options.deltas, "rows": options.rows}
    deltas = deltas_between(0, options.deltas)
    with ExitStack() as servers:
        for name in options.backends.split(","):
            figures = _BACKENDS[name](servers, deltas, options)
            found |= {f"{name}_{key}": value for key, value in figures.items()}
    return found


def _postgres(servers: ExitStack, deltas: pa.Table, options: Namespace) -> dict[str, Any]:
    """Start Postgres, and measure its adapter and its driver."""
    import psycopg

    from lakesync.adapters.backends.postgres import PostgresAdapter
    from tests.postgres_server import postgres_server

    server = servers.enter_context(postgres_server())
    if not options.untuned:
        with psycopg.connect(server.uri, autocommit=True) as sql:
            for name, value in _TUNED.items():
                sql.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        server.restart()
    uri, pid = server.uri, int((server.data / "postmaster.pid").read_text().split()[0])
    adapter = servers.enter_context(closing(PostgresAdapter(uri)))
    sql = servers.enter_context(psycopg.connect(uri, autocommit=True))
    plain = columns_as_text(to_table_rows(deltas))
    sql.execute(
        "CREATE TABLE plain AS SELECT *, NULL::text AS long_id FROM (SELECT 0::bigint AS hlc, '' AS client_id,"
        " '' AS delta_id, '' AS gateway, 0::bigint AS arrival, '' AS table_name, '' AS row_id, '' AS op,"
        " '' AS columns) AS one WHERE false"
    )

    def append() -> None:
        file = io.BytesIO()
        csv.write_csv(plain, file, csv.WriteOptions(include_header=False))
        with sql.cursor() as cursor, cursor.copy("COPY plain FROM STDIN (FORMAT csv)") as copy:
            copy.write(file.getbuffer())

    def read() -> None:
        with sql.cursor() as cursor, cursor.copy("COPY plain TO STDOUT (FORMAT csv)") as copy:
            for _ in copy:
                pass

    def vacuum() -> None:
        sql.execute("VACUUM ANALYZE")

    encoded = [list(encode_binary(iter([plain.slice(start, _PAGE)]))) for start in range(0, len(plain), _PAGE)]
    names = ", ".join(f'"{name}"' for name in plain.column_names)

    def append_keyed(table: str = "keyed") -> None:
        sql.execute(f"CREATE TABLE {table} (LIKE {DELTAS_TABLE} INCLUDING ALL)")
        for parts in encoded:
            with sql.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT binary)") as copy:
                for part in parts:
                    copy.write(part)

    if not options.cold:
        adapter.prepare()
        append_keyed("before")
        sql.execute("DROP TABLE before")
        sql.execute("CHECKPOINT")  # afterwards Postgres overwrites the files of its log instead of creating new ones
    figures = _sql_figures(adapter, deltas, options.rows, append, read, pid, vacuum)
    figures |= _timed("append_keyed_driver", len(deltas), append_keyed, pid)
    return figures | {"append_keyed_ratio": round(figures["append_rate"] / figures["append_keyed_driver_rate"], 2)}


def _mariadb(servers: ExitStack, deltas: pa.Table, options: Namespace) -> dict[str, Any]:
    """Start MariaDB, and measure the MySQL adapter and its driver."""
    import pymysql

    from lakesync.adapters.backends.mysql import MySqlAdapter, _lines
    from tests.backend_servers import mariadb_server

    server = servers.enter_context(mariadb_server())
    sql = pymysql.connect(host="127.0.0.1", port=server.port, user="root", local_infile=True, autocommit=True)
    servers.enter_context(sql)
    with sql.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        cursor.execute(
            "CREATE TABLE bench.plain (hlc BIGINT, client_id TEXT, delta_id TEXT, gateway TEXT,"
            " arrival BIGINT, table_name TEXT, row_id TEXT, op TEXT, columns LONGTEXT, long_id TEXT)"
        )
    adapter = servers.enter_context(closing(MySqlAdapter(f"{server.uri}/bench")))
    plain, pid = columns_as_text(to_table_rows(deltas)), server.pid

    def append() -> None:
        with tempfile.NamedTemporaryFile() as file, sql.cursor() as cursor:
            file.write(_lines(plain))
            file.flush()
            cursor.execute(f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE bench.plain CHARACTER SET utf8mb4")

    def read() -> None:
        with sql.cursor() as cursor:
            cursor.execute("SELECT * FROM bench.plain")
            cursor.fetchall()

    return _sql_figures(adapter, deltas, options.rows, append, read, pid)


def _sql_figures(
    adapter: SqlAdapter,
    deltas: pa.Table,
    rows: int,
    append: Callable[[], None],
    read: Callable[[], None],
    pid: int,
    before_read: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure a SQL adapter, and its driver's `append` and `read` of the same deltas.

    Args:
        adapter: the adapter, with an empty database.
        deltas: the deltas to append and read.
        rows: number of rows to upsert.
        append: appends the deltas with the driver alone.
        read: reads them with the driver alone.
        pid: process id of the database server.
        before_read: called between appending and reading.
    """
    adapter.prepare()
    adapter.ensure_schema(_SCHEMA)
    items = _items(rows, 0)
    _upsert(adapter, items)
    again = _items(rows, 1)
    appended = _compare("append", len(deltas), lambda: _append(adapter, deltas), append, pid)
    before_read()
    return {
        **appended,
        **_compare("read", len(deltas), lambda: _read(adapter), read, pid),
        **_timed("upsert", rows, lambda: _upsert(adapter, again), pid),
    }


def _upsert(adapter: SqlAdapter, rows: pa.Table) -> None:
    """Merge rows into the destination table, in one transaction."""
    with adapter._executor.connect() as connection:  # noqa: SLF001 an adapter writes rows only from deltas
        table = RowTable(connection, adapter._dialect, _SCHEMA)  # noqa: SLF001
        table.load(rows)
        with connection.transaction():
            table.take_locks()
            table.merge()


def _s3(servers: ExitStack, deltas: pa.Table, options: Namespace) -> dict[str, Any]:  # noqa: ARG001 it keeps no rows
    """Start an S3 server, and measure the object store adapter and boto3."""
    import boto3

    from lakesync.adapters.object_store.s3 import S3Objects
    from tests.backend_servers import s3_server

    endpoint = servers.enter_context(s3_server())
    keys = {"region": "us-east-1", "access_key": "k", "secret_key": "s"}
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="k",
        aws_secret_access_key="s",  # noqa: S106
    )
    client.create_bucket(Bucket="bench")
    adapter = servers.enter_context(closing(ObjectDeltas(S3Objects("bench", endpoint=endpoint, **keys))))

    def append() -> None:
        file = io.BytesIO()
        pq.write_table(deltas, file, compression="zstd")
        client.put_object(Bucket="bench", Key="plain", Body=file.getvalue())

    def read() -> None:
        pq.read_table(io.BytesIO(client.get_object(Bucket="bench", Key="plain")["Body"].read()))

    figures = _compare("append", len(deltas), lambda: _append(adapter, deltas), append)
    fresh = servers.enter_context(closing(ObjectDeltas(S3Objects("bench", endpoint=endpoint, **keys))))
    return figures | _compare("read", len(deltas), lambda: _read(fresh), read)


_BACKENDS: dict[str, Callable[[ExitStack, pa.Table, Namespace], dict[str, Any]]] = {
    "postgres": _postgres,
    "mariadb": _mariadb,
    "s3": _s3,
}


def _append(adapter: SqlAdapter | ObjectDeltas, deltas: pa.Table) -> None:
    """Append deltas with the adapter, in batches of `_PAGE`."""
    for start in range(0, len(deltas), _PAGE):
        some = deltas.slice(start, _PAGE)
        assert adapter.insert_arrow(f"g.main.1.{start}", "g", some).deltas == len(some)


def _read(adapter: SqlAdapter | ObjectDeltas) -> None:
    """Read all deltas with the adapter, in pages of `_PAGE`."""
    for page in read_pages(adapter, DeltaQuery(limit=_PAGE)):
        assert len(page.deltas)


def _compare(
    name: str, count: int, with_adapter: Callable[[], None], with_driver: Callable[[], None], pid: int | None = None
) -> dict[str, Any]:
    """Return the figures of the same work with the adapter and with the driver alone, and the ratio of the rates."""
    found = _timed(name, count, with_adapter, pid) | _timed(f"{name}_driver", count, with_driver, pid)
    return found | {f"{name}_ratio": round(found[f"{name}_rate"] / found[f"{name}_driver_rate"], 2)}


def _timed(name: str, count: int, work: Callable[[], object], pid: int | None = None) -> dict[str, Any]:
    """Run some work once, and return its rate and processor times per delta or row, with a prefix for their names."""
    begun, used, served = time.perf_counter(), time.process_time(), _used(pid)
    work()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    found = {f"{name}_rate": round(count / seconds), f"{name}_cpu_us": round(cpu / count * 1e6, 2)}
    return found if pid is None else found | {f"{name}_server_us": round((_used(pid) - served) / count * 1e6, 2)}


def _used(pid: int | None) -> float:
    """Return the processor seconds of a server and its living children."""
    if pid is None:
        return 0.0
    server = psutil.Process(pid)
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _items(count: int, version: int) -> pa.Table:
    """Return rows of a destination table."""
    instant = pa.array([1_700_000_000_000] * count, pa.timestamp("ms", "UTC"))
    columns = {
        "gateway": ["g"] * count,
        "row_id": [f"row-{n}" for n in range(count)],
        "title": [f"item {n} v{version}" for n in range(count)],
        "size": [str(n % 1000 + version) for n in range(count)],
        "tags": [f'["a",{{"n":{n}}}]' for n in range(count)],
        "synced_at": instant,
        "last_arrival": pa.array(range(count), pa.int64()),
        "deleted_at": pa.nulls(count, instant.type),
    }
    return pa.table(columns, schema=rows_schema(_SCHEMA))


BENCHMARKS = (Benchmark("adapters", __doc__, arguments, run),)
