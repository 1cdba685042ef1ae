"""The Python client without a network: local writes, pages that it applies, a first sync, and its imports.

Pages and checkpoint frames are prepared in memory in their HTTP form. The client decodes, merges and commits them
durably, as in a real sync. `cpu` figures are processor time of the client's process. Figures with `plain` are those of
sqlite3 alone with the same rows.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import server
from benchmarks.suite import Benchmark
from lakesync.client.client import Client
from lakesync.client.core import CoreLimits, FetchCheckpoint
from lakesync.client.factory import open_client
from lakesync.client.sync.checkpoint_load import load_checkpoint
from lakesync.client.transports.base import Checkpoint, SyncTransport
from lakesync.model.delta import delta_id
from lakesync.model.errors import NotFoundError
from lakesync.model.types import ColumnValue, Op, PushResult, RowDelta, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from lakesync.wire.pages import decode_page

_START = 1_780_000_000_000 << 16
"""The lowest hlc of the deltas."""
_COLUMNS = (("title", "string"), ("team", "string"), ("n", "number"), ("done", "boolean"))
_SCHEMA = {"table": "todos", "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS]}
_FRAME_ROWS = 50_000
"""Rows in one frame of the checkpoint."""
_MIB = 1 << 20


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=100_000, help="remote deltas to apply")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the checkpoint")
    parser.add_argument("--page", type=int, default=8000, help="deltas in a page")
    parser.add_argument("--transactions", type=int, default=200, help="transactions of 100 local writes each")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    with server.temporary_folder(options.folder) as folder:
        found = _imports(folder) | _writes(folder, options.transactions)
        found |= _pages(folder, options.deltas, options.page)
        found |= _first_sync(folder, options.rows)
        return found | {"first_sync_ratio": round(found["first_sync_cpu_rate"] / found["plain_insert_cpu_rate"], 2)}


class _PreparedPages:
    """A transport that returns prepared pages, decoded from their HTTP form."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        """The JSON bodies of the pages."""

    def pull(self, _: SyncPull) -> SyncResponse:
        """Return the next page, whatever is requested."""
        return decode_page(self.bodies.pop(0))

    def push(self, push: SyncPush) -> PushResult:
        """Fail: the benchmark pushes nothing.

        Raises:
            NotFoundError: always.
        """
        raise NotFoundError(f"this transport does not push the {len(push.deltas)} deltas of {push.client_id!r}")

    def close(self) -> None:
        """Do nothing."""


def _client(folder: Path, name: str, page: int = 1000, transport: SyncTransport | None = None) -> Client:
    """Open a client of an own file in a folder; `page` is the largest page. By default nothing can be pulled."""
    limits = CoreLimits(pull_deltas=page)
    transport = transport or _PreparedPages()
    return open_client(folder / f"{name}.db", transport=transport, client_id=name, schemas=[_SCHEMA], limits=limits)


def _imports(folder: Path) -> dict[str, Any]:
    """Return the processor milliseconds of imports, once Python has compiled the modules. Each is the least of five."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")

    def cpu_ms(*command: str) -> float:
        used: list[float] = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return round(min(used) * 1000, 1)

    return {
        "python_cpu_ms": cpu_ms("-c", "pass"),
        "import_client_cpu_ms": cpu_ms("-c", "import lakesync.client"),
        "import_open_cpu_ms": cpu_ms("-c", "import lakesync; lakesync.open"),
        "help_cpu_ms": cpu_ms("-c", "import sys; sys.argv[1:] = ['--help']; from lakesync.cli import main; main()"),
    }


def _writes(folder: Path, transactions: int) -> dict[str, Any]:
    """Measure local writes in transactions of 100: through the table, by SQL, and to an untracked database."""
    found: dict[str, Any] = {}
    with _client(folder, "writer") as client:
        table = client["todos"]

        def by_table(number: int) -> None:
            with client.transaction():
                for each in range(100):
                    table.insert({"title": "Buy oat milk", "n": each}, row_id=f"{number}-{each}")

        def by_sql(number: int) -> None:
            _insert(client.conn, f"sql-{number}")

        found["write_us"], found["write_p99_us"], found["write_cpu_us"] = _each(by_table, transactions)
        found["sql_write_us"], _, found["sql_write_cpu_us"] = _each(by_sql, transactions)
        begun = time.process_time()
        count = len(client.pending())
        found["record_us"] = round((time.process_time() - begun) / count * 1e6, 1)
    with closing(sqlite3.connect(folder / "plain.db")) as plain:
        plain.executescript("PRAGMA journal_mode = WAL; CREATE TABLE todos (row_id TEXT PRIMARY KEY, title, n)")
        found["untracked_us"], _, found["untracked_cpu_us"] = _each(lambda n: _insert(plain, f"sql-{n}"), transactions)
    return found


def _insert(db: sqlite3.Connection, name: str) -> None:
    """Insert 100 rows by SQL in one transaction; their ids begin with `name`."""
    for number in range(100):
        db.execute("INSERT INTO todos (row_id, title, n) VALUES (?, 'Buy oat milk', ?)", (f"{name}-{number}", number))
    db.commit()


def _each(work: Callable[[int], None], times: int) -> tuple[float, float, float]:
    """Return the microseconds of one write in a transaction of 100 writes: median, 99th percentile, processor time.

    Args:
        work: runs the transaction with the given number.
        times: number of transactions.
    """
    spent = []
    cpu = time.process_time()
    for number in range(times):
        begun = time.perf_counter()
        work(number)
        spent.append((time.perf_counter() - begun) / 100 * 1e6)
    cpu = (time.process_time() - cpu) / times / 100 * 1e6
    return round(statistics.median(spent), 1), round(sorted(spent)[int(times * 0.99)], 1), round(cpu, 1)


def _pages(folder: Path, deltas: int, page: int) -> dict[str, Any]:
    """Measure pages of INSERTs of new rows, then pages of UPDATEs of all of them, and sqlite3 with the same rows."""
    found: dict[str, Any] = {}
    transport = _PreparedPages()
    with _client(folder, "reader", page, transport) as client:
        rounds: list[tuple[str, Op, int]] = [("insert", "INSERT", _START), ("update", "UPDATE", _START + (1 << 32))]
        for name, op, hlc in rounds:
            transport.bodies = list(_bodies(_deltas(op, deltas, hlc), page, hlc))
            begun, cpu = time.perf_counter(), time.process_time()
            pulled = client.coordinator.pull_from_gateway()
            found[f"{name}_rate"] = round(deltas / (time.perf_counter() - begun))
            found[f"{name}_cpu_rate"] = round(deltas / (time.process_time() - cpu))
            assert pulled == deltas, pulled
        assert len(client["todos"]) == deltas
    found |= _plain(folder, deltas, page)
    for name in ("insert", "update"):
        found[f"{name}_ratio"] = round(found[f"{name}_cpu_rate"] / found[f"plain_{name}_cpu_rate"], 2)
    return found


def _plain(folder: Path, deltas: int, page: int) -> dict[str, Any]:
    """Write the same rows as Python values with `executemany` to an untracked table, one commit per page."""
    statements: list[tuple[str, Op, str]] = [
        ("insert", "INSERT", "INSERT INTO todos (title, team, n, done, row_id) VALUES (?, ?, ?, ?, ?)"),
        ("update", "UPDATE", "UPDATE todos SET title = ?, n = ? WHERE row_id = ?"),
    ]
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(folder / "plain-pages.db", isolation_level=None)) as db:
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32000")
        db.execute(
            "CREATE TABLE todos (row_id TEXT PRIMARY KEY NOT NULL, title TEXT, team TEXT, n NUMERIC, done BOOLEAN)"
        )
        for name, op, statement in statements:
            rows = [
                (*(cell.decoded() for cell in delta.columns), delta.row_id) for delta in _deltas(op, deltas, _START)
            ]
            cpu = time.process_time()
            for start in range(0, deltas, page):
                db.execute("BEGIN")
                db.executemany(statement, rows[start : start + page])
                db.execute("COMMIT")
            found[f"plain_{name}_cpu_rate"] = round(deltas / (time.process_time() - cpu))
    return found


def _bodies(deltas: Iterator[RowDelta], page: int, hlc: int) -> Iterator[bytes]:
    """Yield the JSON bodies of pages with these deltas.

    Args:
        deltas: the deltas.
        page: deltas in one page.
        hlc: base of the pages' cursors.
    """
    chunk: list[RowDelta] = []
    pages: list[list[RowDelta]] = []
    for delta in deltas:
        chunk.append(delta)
        if len(chunk) == page:
            pages.append(chunk)
            chunk = []
    pages += [chunk] if chunk else []
    for number, each in enumerate(pages, 1):
        yield wire_json.encode_response(SyncResponse(tuple(each), hlc + (number << 8), number < len(pages)))


def _deltas(op: Op, count: int, hlc: int) -> Iterator[RowDelta]:
    """Yield one delta for each of `count` rows, with hlcs from `hlc` on. Row ids are in no order, as in real tables."""
    names = [name for name, _ in _COLUMNS]
    for number in range(count):
        row_id = f"{number * 2_654_435_761 % (1 << 32):08x}-{number:08x}"
        values: list[Any] = [f"Buy oat milk, number {number}", f"team-{number % 100}", number, number % 2 == 0]
        if op == "UPDATE":
            values = values[:1] + values[2:3]
        chosen = names if op == "INSERT" else [names[0], names[2]]
        columns = tuple(map(ColumnValue.of, chosen, values))
        client = f"client-{number % 50}"
        identity = delta_id(client_id=client, hlc=hlc + number, table="todos", row_id=row_id, columns=columns)
        yield RowDelta(op, "todos", row_id, client, columns, hlc + number, identity)


def _first_sync(folder: Path, rows: int) -> dict[str, Any]:
    """Measure a first sync from a checkpoint, in a process of its own, so that its memory can be measured."""
    frames = folder / "frames"
    with frames.open("wb") as file:
        chunk: list[RowDelta] = []
        for delta in _deltas("INSERT", rows, _START):
            chunk.append(delta)
            if len(chunk) == _FRAME_ROWS:
                _write_frame(file, chunk)
                chunk = []
        if chunk:
            _write_frame(file, chunk)
    code = f"from benchmarks.suite.client import first_sync; first_sync({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    found = msgspec.json.decode(done.stdout)
    assert found.pop("rows") == rows
    return {f"first_sync_{name}": value for name, value in found.items()}


def _write_frame(file: Any, deltas: list[RowDelta]) -> None:
    """Append deltas to a file as a checkpoint's frame, after its length."""
    message = protobuf.encode_response(SyncResponse(tuple(deltas), _START))
    file.write(len(message).to_bytes(4, "big") + message)


def first_sync(folder_name: str) -> None:
    """Load the checkpoint in a folder into a new client, and print the figures as JSON. `_first_sync` starts it.

    Args:
        folder_name: path of the folder; the file `frames` in it has the checkpoint.
    """
    folder = Path(folder_name)
    with _client(folder, "newcomer") as client:
        replica = client.coordinator.replica
        base = peak_mib()
        begun, cpu = time.perf_counter(), time.process_time()
        replica.core.request_pull()
        assert isinstance(replica.next_request(), FetchCheckpoint)
        loaded = load_checkpoint(replica, Checkpoint(_START, _frames(folder / "frames")), lambda _: None)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        assert len(client["todos"]) == loaded.rows
    found = {
        "rows": loaded.rows,
        "rate": round(loaded.rows / seconds),
        "cpu_rate": round(loaded.rows / cpu),
        "peak_mib": peak_mib(),
        "base_mib": base,
        "file_mib": round((folder / "newcomer.db").stat().st_size / _MIB),
    }
    print(msgspec.json.encode(found).decode())


def peak_mib() -> int:
    """Return this process's peak memory. `getrusage` is not used, because it would include the parent's memory."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


def _frames(path: Path) -> Iterator[bytes]:
    """Yield the frames of a file that `_write_frame` has written."""
    with path.open("rb") as file:
        while prefix := file.read(4):
            yield file.read(int.from_bytes(prefix, "big"))


BENCHMARKS = (Benchmark("client", __doc__, arguments, run),)
